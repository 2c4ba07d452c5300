"""Values of inputs: of the example's kind, over the whole range that a module takes, and at the ends of it.

What an input means is read from the example and from what eager PyTorch does with it: zeros and ones are a mask, which
gets real padding on both sides; integers that pick rows of a table are drawn over all of its rows; other integers go up
to some times the example's, where eager PyTorch takes such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import torch

from fx2onnx.verify.float_values import FLOAT_ENDS, draw_floats, turns_at_marks
from fx2onnx.verify.marks import NONE, Marks, beside

Role = Literal["floats", "complex", "ids", "mask", "empty"]

KINDS = ("sample", "seed", "large", "ties", "small", "zeros")
"""``sample``: its own content. ``seed``: like the example, ids over the whole range, masks padded on both sides. ``large``,
``small``: 16 and 1/512 times that; 4 and 1/16 for a file in float16. ``ties``: few different numbers. ``zeros``: zeros, the lowest ids, nothing masked."""
AT_SAMPLE_SIZES = ("ties", "small", "large", "zeros")
ENDS = ("masked", "hidden", "between", "marks", "signs", "wide", "special", *FLOAT_ENDS)
"""Kinds of values for some inputs; the others are as for ``seed``. ``masked``: rows of which everything is masked, or
all but one. ``hidden``: masks of which everything is. ``between``: any floats, where zeros and ones may be no mask
(spikes, or the ones of an example). ``marks``: at, beside and far behind the numbers that the module compares with.
``signs``: integers below zero, and beyond the rows of a table, where eager PyTorch takes such. ``wide``: integers that
neither 32 bits nor a float hold, where the file has those and the module does not. ``special``: NaN, infinities and
zeros below zero, where the module looks for them; and those of ``float_values.py``."""
_MOST_WHOLE = 1 << 24
"""A mark is drawn where it times the numbers of its input is less: some modules make so many numbers of such an integer."""
_WIDE = {torch.int64: (2**54, 2**33, 2**31, 0), torch.int32: (2**30, 2**25, 0)}
"""Bases of wide integers; 0: one of the usual."""
_NEAR = 1 << 12
"""The largest distance between integers of one base: their differences are small, or none."""


@dataclass(frozen=True, slots=True)
class InputValues:
    """The values that an input may hold: floats of a mean and a deviation, integers from ``low`` to ``high``, or a mask."""

    role: Role
    low: int = 0
    high: int = 0
    is_open: bool = False
    """True if nothing is known of the largest integer: eager PyTorch decides whether it takes larger ones."""
    mean: float = 0.0
    deviation: float = 1.0
    marks: Marks = NONE
    turn: int = 0
    """The number of the set of inputs among those at marks."""
    is_narrow: bool = False
    """True if the file computes in float16 where the module does not: floats of other sizes stay nearer to the
    example's."""

    @staticmethod
    def of(
        tensor: torch.Tensor, rows: tuple[int, int] | None, marks: Marks = NONE, *, is_narrow: bool = False
    ) -> InputValues:
        """The values of the example inputs; ``rows`` are the least and the largest integer that picks a row of a
        table."""
        if not tensor.numel():
            return InputValues("empty")
        if tensor.is_complex():
            parts = torch.view_as_real(tensor.resolve_conj()).double()
            return InputValues("complex", marks=marks, deviation=float(parts.std(correction=0)) or 1.0)
        if rows is not None and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return InputValues("ids", *rows, marks=_within(marks, *rows))
        if tensor.dtype == torch.bool or _is_mask(tensor):
            return InputValues("mask")
        if tensor.is_floating_point():
            wide = tensor.cpu().to(torch.float64)
            wide = wide[torch.isfinite(wide)] if not bool(torch.isfinite(wide).all()) else wide
            if not wide.numel():
                return InputValues("empty")
            if is_narrow:
                marks = replace(marks, numbers=tuple(each for each in marks.numbers if _in_float16(each)))
            mean, deviation = float(wide.mean()), float(wide.std(correction=0)) or 1.0
            return InputValues("floats", mean=mean, deviation=deviation, marks=marks, is_narrow=is_narrow)
        limits, most = torch.iinfo(tensor.dtype), _MOST_WHOLE // tensor.numel()
        marks = _within(marks, max(limits.min, -most), min(limits.max, most))
        return InputValues("ids", int(tensor.min()), int(tensor.max()), True, marks=marks)

    def at(self, sizes: Mapping[str, int], others: Mapping[str, int]) -> InputValues:
        """The same at other sizes: a table of as many rows as a size has as many as that has there."""
        counts = [others[name] for name, size in sizes.items() if name in others and size == self.high + 1]
        if self.role != "ids" or self.is_open or not counts or not min(counts):
            return self
        low = -min(counts) if self.low == -self.high - 1 else self.low
        return replace(self, low=low, high=min(counts) - 1, marks=_within(self.marks, low, min(counts) - 1))

    def ends(self, like: torch.Tensor) -> set[str]:
        """The kinds of ENDS that mean something for such an input, ``like`` the example's."""
        if self.role == "mask":
            between = {"between"} if like.is_floating_point() else set()
            return between | ({"masked", "hidden"} if not _is_switch(like) and like.shape[-1] > 1 else set())
        marked = {"marks"} if (self.marks.whole if self.role == "ids" else self.marks.numbers) else set()
        if self.role == "ids":
            is_signed = like.dtype != torch.uint8 and (self.low >= 0 or not self.is_open)
            wide = {"wide"} if self.marks.is_wide and like.dtype in _WIDE else set()
            return marked | wide | ({"signs"} if is_signed else set())
        special = {"special"} if self.marks.special else set()
        if self.role == "complex":
            return marked | special | {"far"}
        return marked | special | set(FLOAT_ENDS) if self.role == "floats" else set()

    def turns(self, like: torch.Tensor) -> int:
        """The count of sets of inputs in which everything at or beside a mark stands once."""
        if "marks" not in self.ends(like):
            return 0
        if self.role == "ids":
            return ceil(len(beside(self.marks.whole)) / _places_at_marks(like.numel()))
        return turns_at_marks(self, like if self.role == "floats" else torch.view_as_real(like.resolve_conj()))

    def draw(self, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
        """Numbers of the kind in the shape and dtype of ``like``, which has the example's content."""
        if kind == "sample" or self.role == "empty":
            return like
        kind = "seed" if kind in ENDS and kind not in self.ends(like) else kind
        return _DRAW[self.role](self, like, kind, generator)

    def milder(self, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
        """The same where the whole range is too much: numbers that stand repeatedly in the example inputs stay in their
        places, and others are its own, shuffled.
        """
        if self.role in ("floats", "complex"):
            return self.draw(like, "marks" if kind == "marks" else "seed", generator)
        if self.role == "mask":
            return like
        flat = like.reshape(-1).clone()
        values, index, counts = torch.unique(flat, return_inverse=True, return_counts=True)
        once = torch.nonzero(counts[index] == 1).reshape(-1) if len(values) > 1 else index[:0]
        flat[once] = flat[once[torch.randperm(len(once), generator=generator)]]
        return flat.reshape(like.shape)


def _is_mask(tensor: torch.Tensor) -> bool:
    """Return whether it holds zeros and ones alone, and of floats some ones: zeros are states and biases, too."""
    if tensor.numel() < 2:
        return False
    is_one, is_zero = tensor == 1, tensor == 0
    return bool((is_one | is_zero).all()) and (bool(is_one.any()) or not tensor.is_floating_point())


def _is_switch(tensor: torch.Tensor) -> bool:
    """Return whether a mask has nothing that is padded: one bool, or one a row."""
    return not tensor.dim() or (tensor.dtype == torch.bool and tensor.shape[-1] == 1)


def _in_float16(mark: float) -> bool:
    """Return whether numbers around the mark have all their digits, and room for some products of theirs."""
    return not mark or 2.0**-8 <= abs(mark) <= 2.0**8


def _within(marks: Marks, low: int, high: int) -> Marks:
    """The whole numbers that integers of a range are compared with."""
    return Marks(whole=tuple(number for number in marks.whole if low <= number <= high), is_wide=marks.is_wide)


def _draw_complex(values: InputValues, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    return torch.view_as_complex(draw_floats(values, torch.view_as_real(like.resolve_conj()), kind, generator))


def _whole_at_marks(
    values: InputValues, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Integers at, behind and before the marks; of many a quarter as they were drawn. Integers below zero are tried only
    where a mark is."""
    limits, lowest = torch.iinfo(like.dtype), min(values.marks.whole)
    open_least = max(limits.min, lowest - 1) if lowest < 0 else 0
    least, most = (open_least, limits.max) if values.is_open else (values.low, values.high)
    at = torch.tensor(beside(values.marks.whole)).clamp(least, most)
    places = torch.randperm(len(drawn), generator=generator)[: _places_at_marks(len(drawn))]
    drawn[places] = at[(torch.arange(len(places)) + values.turn * len(places)) % len(at)]
    return drawn


def _places_at_marks(count: int) -> int:
    return max(3 * count // 4, min(count, 4))


def _draw_ids(values: InputValues, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """With both ends of the range, and with the lowest numbers, which often mean something: padding, begin, end."""
    low, high = values.low, values.high
    if kind == "large" and values.is_open:
        high = min(4 * abs(high) + 8, torch.iinfo(like.dtype).max - 1)
    if kind == "zeros" or (low == high and kind not in ENDS):
        return torch.full_like(like, low)
    count = like.numel()
    drawn = torch.randint(low, high + 1, (count,), generator=generator)
    if kind == "ties":
        drawn = drawn[torch.randint(max(count // 4, 1), (count,), generator=generator)]
    if kind == "large":
        drawn = high - (high - drawn) % min(8, high - low + 1)
    if kind == "small":
        drawn = low + (drawn - low) % min(4, high - low + 1)
    if kind == "signs":
        least, most = (-high - 1, high + 1) if values.is_open else (min(2 * low, -high - 1), 2 * high + 2)
        limits = torch.iinfo(like.dtype)
        drawn = torch.randint(max(least, limits.min), min(most, limits.max), (count,), generator=generator)
    if kind == "wide":
        bases = torch.tensor(_WIDE[like.dtype])
        bases = bases[torch.randint(len(bases) if count > 1 else 1, (count,), generator=generator)]
        far_apart = torch.rand((count,), generator=generator) < 0.5
        near = torch.randint(_NEAR, (count,), generator=generator) % torch.where(far_apart, _NEAR, 3)
        drawn = torch.where(bases > 0, bases + near + (count == 1), drawn)
    if kind == "marks":
        drawn = _whole_at_marks(values, drawn, like, generator)
    if kind == "seed" and count > 4:
        wanted = [high, low, min(low + 1, high), *([0] if low < 0 <= high else [])]
        drawn[torch.randperm(count, generator=generator)[: len(wanted)]] = torch.tensor(wanted)
    return drawn.reshape(like.shape).to(like.dtype)


def _draw_mask(values: InputValues, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """The mask values of an input: in each row some are masked, at its end, at its begin in every other row; all alternate where
    rows are short. Bools of
    one a row are switches, which are turned.
    """
    if like.dtype == torch.bool and _is_switch(like):
        return like.logical_not() if kind in ("seed", "large", "ties") else like
    if kind == "zeros" or not like.dim():
        return torch.ones_like(like)
    length = like.shape[-1]
    if not length:
        return like
    rows = like.numel() // length
    if kind == "between":
        return torch.rand(like.shape, generator=generator, dtype=torch.float64).mul_(1.25).to(like.dtype)
    if kind == "hidden":
        return torch.zeros_like(like)
    if kind == "masked":
        last = torch.arange(length) == length - 1
        mask = torch.stack([torch.zeros(length, dtype=torch.bool), last, last.flip(0)])[torch.arange(rows) % 3]
        return mask.reshape(like.shape).to(like.dtype)
    kept = torch.randint((length + 1) // 2, length + 1, (rows, 1), generator=generator)
    if length > 2:
        kept[0] = min(int(kept[0]), length - 1)
    place = torch.arange(length)
    turn = torch.arange(rows)[:, None] + (kind in ("ties", "large"))
    mask = torch.where(turn % 2 == 0, place < kept, place >= length - kept)
    if kind == "small":
        mask = torch.rand((rows, length), generator=generator) < 0.5
        mask[:, 0] = True
    return mask.reshape(like.shape).to(like.dtype)


_DRAW: dict[str, Callable[[InputValues, torch.Tensor, str, torch.Generator], torch.Tensor]] = {
    "floats": draw_floats,
    "complex": _draw_complex,
    "ids": _draw_ids,
    "mask": _draw_mask,
}
