"""A linear layer on the integers of a quantized checkpoint: computed here as they stand for numbers, exported as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

Codes = Callable[[torch.Tensor, int, int], torch.Tensor]
"""A function of what is stored that gives the codes of some rows: [rows, columns], a byte (or a float8) each."""


@dataclass(frozen=True)
class CodeLayout:
    """The layout of codes in memory, as ONNX has codes of 4 bits (the first in the low half of a byte) and of 8. An
    array of ``sizes``, whose last axis ``is_reversed``, with its axes in ``order`` is that of rows and columns, which
    ``PackedLinear.order`` then moves. Where it ``is_signed``, codes are 8 less, in two's complement.

    An array of ``sizes``, whose last axis ``is_reversed``, with its axes in ``order`` is that of rows and columns, which ``PackedLinear.order`` then
    moves. Where it ``is_signed``, codes are 8 less, in two's complement.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    is_signed: bool = False
    is_reversed: bool = False


class _Weight(torch.Tensor):
    """The weight of a packed layer, where a module reads it: its numbers are made when something computes with them."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """dtype, device and sizes of the stand-in, everything else of the numbers."""
        if function in _OF_STAND_IN:
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return function(*(_with_numbers(each) for each in args), **(kwargs or {}))


def _with_numbers(value: object) -> object:
    """``value``, also nested in lists, with numbers in the place of stand-ins."""
    if isinstance(value, list | tuple):
        return [*map(_with_numbers, value)]
    return vars(value)["numbers"]() if isinstance(value, _Weight) else value


_OF_STAND_IN = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "shape", "ndim", "is_meta", "layout")
) | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.is_floating_point}


class PackedModule(nn.Module):
    """A layer on integers of a checkpoint, which is exported as one call: ``fx2onnx.exporting.packed`` translates each class."""

    in_features: int
    out_features: int
    dtype = torch.float32

    def numbers(self) -> torch.Tensor:
        """All numbers [out_features, in_features], in float32."""
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        """The weight for modules that read more of it than a call: mostly its dtype, Mamba its numbers."""
        stand_in = torch.zeros((), dtype=self.dtype).expand(self.out_features, self.in_features)
        found = stand_in.as_subclass(_Weight)
        vars(found)["numbers"] = lambda: self.numbers().to(self.dtype)
        return found

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        """Follows casts of the module."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]


class PackedLinear(PackedModule):
    """``x @ ((codes - zero) * scale).T + bias``, where ``group`` columns of a row share scale and zero point; with a ``table``,
    ``x @ (table[codes] * scale).T + bias``. ``offset`` [groups, rows] is added to the numbers of each group.

    ``rows_of`` reads codes from ``packed``; ``as_rows`` is the same memory with codes of a row one after the other, two a byte, the
    first in the low half, where it lies so or is a transposition of 32 bits; None elsewhere. ``layout`` says how ``packed`` lies where
    that is not in rows.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    order: torch.Tensor | None
    offset: torch.Tensor | None

    def __init__(
        self,
        packed: torch.Tensor,
        rows_of: Codes,
        bits: int,
        scale: torch.Tensor,
        zero: torch.Tensor | None,
        *,
        columns: int,
        as_rows: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
        layout: CodeLayout | None = None,
    ) -> None:
        super().__init__()
        self.rows_of, self.bits, self.columns = rows_of, bits, columns
        self.rows = len(scale)
        self.in_features, self.out_features = columns, self.rows
        self.group = -(-columns // scale.shape[1])
        self.as_rows, self.layout = as_rows, layout
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("order", order)
        self.register_buffer("offset", offset)
        self.table = table  # no buffer: a cast of the module leaves it
        self.bias: nn.Parameter | None = None

    def codes(self, start: int, stop: int) -> torch.Tensor:
        """The codes of some rows."""
        return self.rows_of(self.packed, start, stop)

    def numbers(self) -> torch.Tensor:
        """All numbers [rows, columns], in float32."""
        found = self._in_stored_order()
        return found if self.order is None else found[:, self.order.argsort()]

    def _in_stored_order(self) -> torch.Tensor:
        codes = self.codes(0, self.rows)
        codes = codes.to(torch.float32) if self.table is None else self.table.to(torch.float32)[codes.long()]
        scale = self.scale.to(torch.float32).repeat_interleave(self.group, 1)[:, : self.columns]
        if self.zero is not None:
            codes = codes - self.zero.to(torch.float32).repeat_interleave(self.group, 1)[:, : self.columns]
        numbers = codes * scale
        if self.offset is not None:
            numbers = numbers + self.offset.to(torch.float32).t().repeat_interleave(self.group, 1)[:, : self.columns]
        return numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, in float32 up to the weight's numbers, which have the dtype of ``x``."""
        if self.order is not None:
            x = x[..., self.order]
        return nn.functional.linear(x, self._in_stored_order().to(x.dtype), self.bias)

    def fx2onnx_shaped(self, x: torch.Tensor) -> torch.Tensor:
        """Sizes and dtype of what ``forward`` gives: a capture asks for no more, of some hundred layers."""
        return x.new_empty((*x.shape[:-1], self.rows))


def nibbles(words: torch.Tensor) -> torch.Tensor:
    """The eight codes of 4 bits of each word of 32, the lowest first, on a new last axis."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts).bitwise_and(15).to(torch.uint8)


def words_of_bytes(words: torch.Tensor) -> torch.Tensor:
    """The four bytes of each word of 32."""
    return words.contiguous().view(torch.uint8).reshape(*words.shape, 4)
