"""What transformers itself generates: the truth that exported folders are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fx2onnx.sources.generation_codebooks import delays_of
from fx2onnx.sources.generation_parts import TASKS, WITH_PAST, switch_cache_on
from fx2onnx.sources.generation_within import language_of
from fx2onnx.sources.registry import resolve


def expected_tokens(spec: str, task: str, seed: int, inputs: Mapping[str, Any], max_new_tokens: int) -> Any:
    """The tokens [batch, length] that ``model.generate(do_sample=False)`` gives for ``inputs``, as an array.

    Raises:   UserError E601 where the source cannot be built.
    """
    word = TASKS.get(task.removesuffix(WITH_PAST))
    if word is not None and "task=" not in spec:
        spec = f"{spec}{'&' if '?' in spec else '?'}task={word}"
    model: Any = resolve(spec, seed=seed).module
    switch_cache_on(model.config)
    return generate_eagerly(model, inputs, max_new_tokens).numpy()


def generate_eagerly(model: Any, inputs: Mapping[str, Any], max_new_tokens: int) -> torch.Tensor:
    """Greedy tokens of ``model``; Whisper's own loop over long audio is left aside, since the graphs do one window.

    Of models of several codebooks [batch, codebooks, length], which their own loop alone knows to shift.
    """
    from transformers import GenerationMixin

    is_own = language_of(model) is not model or delays_of(model)
    mixed: Any = type(model).generate if is_own else GenerationMixin.generate
    tensors = {name: torch.as_tensor(value) for name, value in inputs.items()}
    with torch.no_grad():
        result: torch.Tensor = mixed(
            model,
            **tensors,
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=max_new_tokens,
            use_cache=True,
        )
    return result
