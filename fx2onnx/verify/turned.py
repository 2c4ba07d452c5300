"""The integers that are turned into what has less room for them: in a module as eager PyTorch runs it, and in a file."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

import torch

_READS = (torch.ops.aten._local_scalar_dense.default,)
_COUNTS = (torch.ops.aten.repeat_interleave.Tensor, torch.ops.aten.bincount.default)
"""Operators that make as many numbers as an integer says."""
_MOST = 1 << 16
"""Of so many integers it is looked whether they are those of an input."""
_OPERANDS = frozenset({"self", "other", "input"})


@dataclass(slots=True)
class Turned:
    """``floats``: some become floats; ``raw``: integers of inputs do, as they are; ``whole_again``: floats become integers; ``bits``: of narrower integers;
    ``is_read``: one becomes a size, a count of a loop's turns or a number of Python's, as which it may not be large.
    """

    floats: bool = False
    raw: bool = False
    whole_again: bool = False
    bits: set[int] = field(default_factory=set)
    is_read: bool = False

    def more_than(self, module: Turned) -> bool:
        """Return whether a file may lose what its ``module`` keeps."""
        is_other = (
            (self.floats and not module.floats)
            or (self.raw and not module.raw)
            or (self.whole_again and not module.whole_again)
        )
        return not (self.is_read or module.is_read) and (is_other or bool(self.bits - module.bits))

    def see(self, func: Any, args: Any, result: Any, inputs: Set[int]) -> None:
        """One call of an operator in eager PyTorch. ``inputs``: all integers of the inputs."""
        if func in _READS or func in _COUNTS:
            self.is_read |= any(isinstance(each, torch.Tensor) and _bits(each) > 8 for each in args)
        if not isinstance(result, torch.Tensor):
            return
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.name not in _OPERANDS or not isinstance(given, torch.Tensor):
                continue
            if _bits(given):
                if result.is_floating_point():
                    self.floats = True
                    self.raw |= given.numel() > _MOST or inputs >= set(given.reshape(-1).tolist())
                if 0 < _bits(result) < _bits(given):
                    self.bits.add(_bits(result))
            elif given.is_floating_point() and _bits(result) and func.name().startswith("aten::_to_copy"):
                self.whole_again = True


def _bits(tensor: torch.Tensor) -> int:
    """The bits of integers; 0 of all else, such as quantized values that have a scale."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.bool:
        return 0
    return 8 * tensor.element_size()


def whole_numbers(inputs: Iterable[torch.Tensor]) -> set[int]:
    """All integers of the inputs."""
    found: set[int] = set()
    for tensor in inputs:
        if _bits(tensor) and tensor.numel() <= _MOST:
            found.update(tensor.reshape(-1).tolist())
    return found
