"""Packed sequences in training graphs: rows of steps and padded steps, each the other's gradient.

A recurrent layer runs over padded steps from the first on. What it computes beyond the end of a sequence is not taken, so
that no gradient comes from there; backward in time each sequence is turned about within its own length.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.errors import UserError
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.modules import PATHS

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
Tensors = tuple[torch.Tensor, ...]
Side = Callable[[torch.Tensor, Tensors, Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]
"""A layer in one direction: padded steps, first states and parameters; gives the states after every step."""
SCHEMAS = {
    "pad_packed": "(Tensor data, Tensor batch_sizes, bool batch_first, float padding_value, int total_length) -> (Tensor, Tensor)",
    "packed_rows": "(Tensor value, Tensor batch_sizes, Tensor like) -> Tensor",
    "padded_rows": "(Tensor data, Tensor batch_sizes, Tensor like, float filler) -> Tensor",
}
"""``pad_packed`` is torch's own, which has no gradient; ``packed_rows`` takes the steps of ``value`` [time, batch, ..] that
are of the sequences, as many as ``like`` has rows; ``padded_rows`` puts them back into the [time, batch] of ``like``.
Their types are those of
``capture/overloads/recurrent.py``, their forms those of ``forms.py``."""
for _name, _schema in SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
_OPS: Any = torch.ops.fx2onnx


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, batch_sizes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(batch_sizes, value)
        return _OPS.packed_rows(value, batch_sizes, like)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        batch_sizes, value = ctx.saved_tensors
        return _Pad.apply(grads[0], batch_sizes, value.detach(), 0.0), None, None  # type: ignore[no-untyped-call]


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, data: torch.Tensor, batch_sizes: torch.Tensor, like: torch.Tensor, filler: float
    ) -> torch.Tensor:
        ctx.save_for_backward(batch_sizes, data)
        return _OPS.padded_rows(data, batch_sizes, like, filler)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        batch_sizes, data = ctx.saved_tensors
        return _Pack.apply(grads[0], batch_sizes, data.detach()), None, None, None  # type: ignore[no-untyped-call]


def _packing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        if not THREAD.captures:
            return plain(input, lengths, batch_first)
        like, batch_sizes = plain(input.detach(), lengths, batch_first)
        value = input.transpose(0, 1) if batch_first else input
        return _Pack.apply(value, batch_sizes, like), batch_sizes  # type: ignore[no-untyped-call]

    return pack


def _padding(plain: Callable[..., Any]) -> Callable[..., Any]:
    def padded(data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, filler: float, total: int) -> Any:
        if not THREAD.captures:
            return plain(data, batch_sizes, batch_first, filler, total)
        like, lengths = _OPS.pad_packed(data.detach(), batch_sizes, False, float(filler), total)
        value = _Pad.apply(data, batch_sizes, like, float(filler))  # type: ignore[no-untyped-call]
        return value.transpose(0, 1) if batch_first else value, lengths

    return padded


@contextlib.contextmanager
def packed() -> Iterator[None]:
    """While a module is captured, sequences are packed and padded so."""
    with Changes():
        for name, around in (("_pack_padded_sequence", _packing), ("_pad_packed_sequence", _padding)):
            put_name(torch._VF, name, around(getattr(torch._VF, name)))
        yield


def _refused(what: str) -> UserError:
    return UserError(
        "E107",
        f"a recurrent layer with {what} gets a packed sequence in a training graph",
        where=user_location(),
        module_path=PATHS.current,
        why="its gradient has no form for sequences of different lengths",
        next=("give the layer padded sequences", "and leave the padding out of the loss: ignore_index, or a mask"),
    )


def _at(value: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """value [time, batch, features] at other times [.., batch]."""
    index = times.unsqueeze(-1).expand(*times.shape, value.shape[-1])
    return value.gather(0, index)


def run_packed(
    side: Side, data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *more: Any
) -> Any:
    """As ``torch.lstm`` and the like with packed sequences. Raises UserError E107 for projections, dropout between layers."""
    has_biases, layers, p, train, both = more
    parts, sides = 4 if has_biases else 2, 2 if both else 1
    if len(params) != parts * layers * sides:
        raise _refused("projections")
    if p and train and layers > 1:
        raise _refused("dropout between its layers")
    states = (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)
    like, lengths = _OPS.pad_packed(data.detach(), batch_sizes, False, 0.0, 0)
    value = _Pad.apply(data, batch_sizes, like, 0.0)  # type: ignore[no-untyped-call]
    times = torch.arange(value.shape[0]).unsqueeze(1)
    turned = torch.where(times < lengths, lengths - 1 - times, times)
    ends = (lengths - 1).unsqueeze(0)
    last: list[Tensors] = []
    for _ in range(layers):
        found = []
        for reverse in range(sides):
            place = len(last)
            own = params[parts * place : parts * (place + 1)]
            x = _at(value, turned) if reverse else value
            every = side(x, tuple(state[place] for state in states), own)
            found.append(_at(every[0], turned) if reverse else every[0])
            last.append(tuple(_at(one, ends)[0] for one in every))
        value = torch.cat(found, -1) if both else found[0]
    output = _Pack.apply(value, batch_sizes, data.detach())  # type: ignore[no-untyped-call]
    return (output, *(torch.stack(of_state) for of_state in zip(*last, strict=True)))
