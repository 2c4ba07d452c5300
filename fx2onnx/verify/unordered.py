"""The choices of eager PyTorch among what has no order (NaN, equal infinities), and those by the sign of NaN.

PyTorch's ``topk`` and ``sort`` take NaN for the largest number, its ``unique`` takes each for another one, and its ``copysign``
reads the sign bit of NaN; ONNX says nothing of any. So the module runs again with NaN in other places of the order: what these runs give otherwise says
nothing of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fx2onnx.judge.engines import Array
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.verify.rounding import CHOICES
from fx2onnx.verify.wide import axis_of

RUNS = 8
"""Orders that are tried: NaN behind all numbers, before them, and anywhere."""
_CASTS = frozenset(["aten::_to_copy", "aten::view"])
"""Operators whose integers are not places among the numbers that they are given."""
_READ_SIGN = {"aten::copysign": 1, "aten::copysign_": 1, "aten::signbit": 0}
"""Operators that read the sign of an argument, and which argument."""


class Unordered(EagerMode):
    """NaN stands in another place of the order, and equal infinities do, where operators choose among floats."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        if _reads_sign_of_nan(func, args):
            place = _READ_SIGN[func._schema.name]
            return func(*args[:place], self._as_number(args[place]), **kwargs)
        result = func(*args, **kwargs)
        if not chooses_without_order(func, args, result):
            return result
        name = func._schema.name.rpartition("::")[2]
        if name in CHOICES and len(func._schema.returns) == 2:
            return self._chosen(func, args, kwargs)
        other_args, other_kwargs = pytree.tree_map(self._as_number, (args, kwargs))
        other = func(*other_args, **other_kwargs)
        return pytree.tree_map(lambda own, moved: own if _is_like(own, moved) else moved, result, other)

    def _chosen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Places in another order, and the numbers that stand there."""
        own, axis = args[0], axis_of(func, args, kwargs)
        wide = self._as_number(own).double()
        wide = torch.where(torch.isinf(own), wide.clamp(-1e300, 1e300), wide)
        drawn = torch.rand(wide.shape, generator=self._generator, dtype=torch.float64).to(own.device)
        keys = wide + wide.abs() * (drawn * 2.0**-40)
        places = func(keys, *args[1:], **kwargs)[1]
        if places.dim() == own.dim():
            return own.gather(axis, places), places
        return own.gather(axis, places.unsqueeze(axis)).squeeze(axis), places

    def _as_number(self, value: Any) -> Any:
        """A number in the place of each NaN."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        largest = torch.finfo(value.dtype).max
        drawn = torch.rand(value.shape, generator=self._generator).to(value)
        place = {1: torch.ones_like(drawn), 2: -torch.ones_like(drawn)}.get(self._seed, (drawn - 0.5).sign())
        return torch.where(
            torch.isnan(value), largest / 2 * place * (1 + drawn) if self._seed > 2 else largest * place, value
        )


def chooses_without_order(func: Any, args: Any, result: Any) -> bool:
    """Return whether the operator gives places among numbers of which some are NaN or infinite, or reads the sign of NaN. In Recording:
    for each call.
    """
    if _reads_sign_of_nan(func, args):
        return True
    if isinstance(result, torch.Tensor):
        if not _is_whole(result):
            return False
    elif not isinstance(result, tuple | list) or not any(map(_is_whole, result)):
        return False
    if func._schema.is_mutable or func._schema.name in _CASTS:
        return False
    return any(map(_has_no_order, pytree.tree_leaves(args)))


def _reads_sign_of_nan(func: Any, args: Any) -> bool:
    place = _READ_SIGN.get(func._schema.name)
    return place is not None and isinstance(args[place], torch.Tensor) and bool(torch.isnan(args[place]).any())


def _is_like(own: Any, moved: Any) -> bool:
    """Return whether floats are those that the operator gives without."""
    return isinstance(own, torch.Tensor) and own.is_floating_point() and own.shape == moved.shape


def _is_whole(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_quantized or value.dtype == torch.bool:
        return False
    return not value.is_floating_point() and not value.is_complex()


def _has_no_order(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_meta:
        return False
    return not bool(torch.isfinite(value).all())


def open_places(run: Callable[[Unordered], Sequence[Array]], expected: Sequence[Array]) -> list[Array | bool]:
    """The numbers of each output that depend on the order of what has none: a row of them where one does, and True where the shape
    does.
    """
    found: list[Array | bool] = [np.zeros(want.shape, bool) for want in expected]
    for seed in range(1, RUNS + 1):
        for index, (want, other) in enumerate(zip(expected, run(Unordered(seed)), strict=False)):
            known = found[index]
            if isinstance(known, bool):
                continue
            if other.shape != want.shape:
                found[index] = True
                continue
            differs = (other != want) & ~((other != other) & (want != want))
            found[index] = known | (differs.any(-1, keepdims=True) if differs.ndim > 1 else differs)
    return found


def without_open(got: Array, want: Array, is_open: Array | bool) -> Array:
    """The output with eager PyTorch's numbers in the places that are open, where it has the shape that it has to have."""
    if isinstance(is_open, bool):
        is_alike = got.ndim == want.ndim and got.dtype == want.dtype
        return want if is_open and is_alike else got
    if got.shape != want.shape or got.dtype != want.dtype:
        return got
    return np.where(is_open, want, got)
