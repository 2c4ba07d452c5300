"""What the recorder has to know of an overload, found out once in a process."""

from __future__ import annotations

from typing import ClassVar

import torch

from fx2onnx.base.bounded import Bounded
from fx2onnx.capture.overloads import data_dependent, recurrent, slices, strided, unbacked
from fx2onnx.capture.recording import functionalize
from fx2onnx.capture.torch_private import OpOverload

aten = torch.ops.aten

TO_PYTHON = frozenset({aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default})
"""Overloads by which Python asks for a tensor's number."""

SPECIAL = {
    **functionalize.SPECIAL,
    **unbacked.SPECIAL,
    **recurrent.SPECIAL,
    **data_dependent.SPECIAL,
    **slices.SPECIAL,
    aten.as_strided.default: strided.as_strided,
}


class Way:
    """How calls of an overload are recorded. There is one for each overload, which it keeps, so that ``id(func)`` stays its
    own: it takes the overload's place in keys, as torch hashes overloads in Python.
    """

    __slots__ = ("asks", "func", "is_mutable", "is_query", "lifts", "name", "special")
    known: ClassVar[Bounded[int, Way]] = Bounded(10_000)
    """By the id of the overload, which each holds."""

    def __init__(self, func: OpOverload) -> None:
        self.func = func
        self.name = func._schema.name
        self.asks = func in TO_PYTHON
        self.is_query = func.namespace in ("prim", "profiler") or func in functionalize.QUERIES
        self.lifts = func is aten.lift_fresh.default
        self.special = SPECIAL.get(func) or unbacked.SPECIAL_BY_NAME.get(self.name)
        self.is_mutable = func._schema.is_mutable and self.special is None


def way_of(func: OpOverload) -> Way:
    way = Way.known.get(id(func))
    if way is None:
        way = Way.known[id(func)] = Way(func)
    return way
