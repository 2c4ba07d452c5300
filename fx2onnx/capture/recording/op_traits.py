"""What the recorder has to know of an overload, computed once in a process."""

from __future__ import annotations

from typing import ClassVar

import torch

from fx2onnx.base.bounded import Bounded
from fx2onnx.capture.overloads.registry import Kind, find, handler, load
from fx2onnx.capture.recording import functionalize
from fx2onnx.capture.recording.eager_refusals import is_tried_whole
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

TO_PYTHON = frozenset({aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default})
"""Overloads by which Python reads a tensor's number."""

QUERIES = frozenset(
    {
        aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default,
        aten.is_contiguous.default, aten.is_contiguous.memory_format, aten.is_strides_like_format.default,
        aten.is_non_overlapping_and_dense.default, aten.size.default, aten.stride.default, aten.dim.default,
        aten._has_compatible_shallow_copy_type.default, aten.is_complex.default, aten.is_floating_point.default,
        aten.is_same_size.default, aten.result_type.Tensor, aten.can_cast.default, aten._has_same_storage_numel.default,
    }
)  # fmt: skip
"""Overloads whose result depends on a tensor's type, not on its values."""


_OF_ONE_OPERAND = frozenset(
    f"aten::{name}"
    for name in (
        *("_log_softmax", "_softmax", "_to_copy", "argsort", "clone", "contiguous", "cummax", "cummin", "cumprod"),
        *("cumsum", "dropout", "flip", "log_softmax", "logcumsumexp", "renorm", "roll", "softmax", "sort"),
    )
)
"""Besides pointwise ones, overloads whose results have the sizes of their operand."""


class OpTraits:
    """How calls of an overload are recorded. There is one for each overload, which it keeps, so that ``id(func)`` stays its
    own: it takes the overload's place in keys, as torch hashes overloads in Python.
    """

    __slots__ = (
        "func",
        "is_query",
        "is_tried_whole",
        "keeps_sizes",
        "lifts",
        "name",
        "reads_number",
        "records",
        "result_type",
        "writes",
    )
    known: ClassVar[Bounded[int, OpTraits]] = Bounded(10_000)
    """By the id of the overload, which each holds."""

    def __init__(self, func: OpOverload) -> None:
        load(func)
        self.func = func
        self.name = func._schema.name
        self.reads_number = func in TO_PYTHON
        self.is_query = func.namespace in ("prim", "profiler") or func in QUERIES
        self.keeps_sizes = torch.Tag.pointwise in func.tags or self.name in _OF_ONE_OPERAND
        self.is_tried_whole = is_tried_whole(func)
        self.lifts = func is aten.lift_fresh.default
        self.records = handler(Kind.RECORD, func) or (functionalize.as_aten if hasattr(func, "impl_aten") else None)
        is_write = func._schema.is_mutable and self.records is None
        self.writes = (handler(Kind.WRITE, func) or functionalize.mutate) if is_write else None
        self.result_type = find(Kind.RESULT_TYPE, func)


def asks_of_strides(traits: OpTraits, args: tuple[object, ...]) -> bool:
    """Whether the operator has one operand and its sizes, so that what a kernel decides by sizes is how it goes through them."""
    return traits.keeps_sizes and sum(isinstance(arg, torch.Tensor) and arg.dim() > 0 for arg in args) == 1


def traits_of(func: OpOverload) -> OpTraits:
    traits = OpTraits.known.get(id(func))
    if traits is None:
        traits = OpTraits.known[id(func)] = OpTraits(func)
    return traits
