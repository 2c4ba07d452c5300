"""The effects of ``--weights`` and ``--dtype`` on a module that a source has built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError, unknown_word
from fx2onnx.sources.source import Source
from fx2onnx.sources.weight_files import map_file

DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_dtype(dtype: str | None) -> torch.dtype | None:
    """The torch dtype of that name. Raises UserError E001."""
    if dtype is None:
        return None
    if dtype not in DTYPES:
        raise unknown_word("--module-dtype", dtype, DTYPES)
    known: torch.dtype = getattr(torch, dtype)
    return known


def load_state(module: torch.nn.Module, path: Path) -> None:
    """Put the state dict of a ``.safetensors`` or ``torch.save`` file into ``module``, names and shapes as they must be.

    The tensors stay mapped, so nothing is read before it is used.

    Raises:   UserError E302 (unreadable), E601 (names or shapes that do not fit).
    """
    state = map_file(path).state
    own = module.state_dict()
    wrong = [
        f"{key} is {list(value.shape)}, the model has {list(own[key].shape)}"
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    ]
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    problems = [
        f"{len(names)} {what}, the first: {names[0]}"
        for what, names in (("of another shape", wrong), ("missing", missing), ("unknown", unknown))
        if names
    ]
    if problems:
        raise UserError(
            "E601",
            f"the weights '{path}' do not fit {type(module).__name__}",
            why="; ".join(problems),
            next="give the builder's arguments that the weights were trained with, such as ?num_classes=10",
        )
    cast = {key: value.to(own[key].dtype) for key, value in state.items()}
    module.load_state_dict(cast, assign=True)
    module.requires_grad_(False)


def apply_dtype(source: Source, dtype: torch.dtype) -> None:
    """Floating parameters, buffers and sample inputs in ``dtype``, in place."""
    source.module.to(dtype)
    source.args = tuple(cast_inputs(value, dtype) for value in source.args)
    source.kwargs = {name: cast_inputs(value, dtype) for name, value in source.kwargs.items()}


def cast_inputs(value: Any, dtype: torch.dtype) -> Any:
    """Tensors of a floating dtype in ``dtype``, also in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast_inputs(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: cast_inputs(item, dtype) for key, item in value.items()}
    return value
