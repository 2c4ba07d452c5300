"""Arguments other than the given ones, on which a file is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.judge.verdict import Verdict
from fx2onnx.verify.compare import SAMPLE
from fx2onnx.verify.eager import Eager, placed
from fx2onnx.verify.interface import assign, vanished
from fx2onnx.verify.noise import Recording
from fx2onnx.verify.values import Values

KINDS = ("seed", "large", "zeros")
"""Of the values tried for arguments that the file has no input for."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A call of the module. ``name`` says what is different in it; empty of the given one."""

    args: Any
    kwargs: Mapping[str, Any] | None
    name: str = ""


def where_failed(verdict: Verdict) -> Elsewhere | None:
    """The first inputs on which the verdict has a wrong row, where these are not the given ones."""
    if verdict.wrong_on is None:
        return None
    names = {tried.name for tried in verdict.tried}
    name = next(row.inputs for row in verdict.rows if not row.ok and row.inputs in names)
    return None if name == SAMPLE.name else Elsewhere(*verdict.wrong_on, name)


def without_inputs(
    root: torch.nn.Module, arguments: Arguments, inputs: Sequence[str], baked: Sequence[str]
) -> Iterator[Elsewhere]:
    """Other values of the arguments that the file has no input for: a verification keeps theirs."""
    names = [leaf.name for leaf in arguments.leaves]
    lost = vanished(names, assign(names, inputs, baked), baked)
    if not lost:
        return
    eager, originals = Eager(root, arguments), [leaf.tensor.detach().cpu() for leaf in arguments.leaves]
    with Recording() as recording:
        eager.run(originals)
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS:
        tensors: list[torch.Tensor] = [
            Values.of(tensor, recording.rows(tensor)).draw(tensor, kind, generator) if name in lost else tensor
            for name, tensor in zip(names, originals, strict=True)
        ]
        try:
            eager.run(tensors)
        except Exception:  # forward is the user's code
            continue
        yield Elsewhere(
            *placed(arguments, tensors), f"other values of {', '.join(lost)} ({kind}), which the file has no input for"
        )
