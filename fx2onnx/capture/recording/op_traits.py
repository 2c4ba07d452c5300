"""The facts that the tracer has to know of an overload, computed once in a process."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from fx2onnx.base.bounded_cache import Bounded
from fx2onnx.capture.op_table import Op
from fx2onnx.capture.recording.eager_refusals import tries_real_kernel
from fx2onnx.capture.registry import Handler, Kind, find, full_name, handler, load, load_family
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten


class OpTraits:
    """How calls of an overload are recorded. There is one for each overload, which it keeps, so that ``id(func)`` stays its
    own: it takes the overload's place in keys, as torch hashes overloads in Python.
    """

    __slots__ = (
        "func",
        "is_query",
        "keeps_sizes",
        "lifts",
        "name",
        "reads_number",
        "records",
        "result_type",
        "tries_real_kernel",
        "writes",
    )
    known: ClassVar[Bounded[int, OpTraits]] = Bounded(10_000)
    """The traits by the id of the overload, which each holds."""

    def __init__(self, func: OpOverload) -> None:
        load(func)
        name = full_name(func)
        self.func = func
        self.name = func._schema.name
        self.reads_number = name in Op.READS_NUMBER.names
        self.is_query = func.namespace in ("prim", "profiler") or name in Op.QUERY.names
        self.keeps_sizes = torch.Tag.pointwise in func.tags or self.name in Op.KEEPS_SIZES.names
        self.tries_real_kernel = tries_real_kernel(func)
        self.lifts = func is aten.lift_fresh.default
        self.records = handler(Kind.RECORD, func) or (_as_aten if hasattr(func, "impl_aten") else None)
        is_write = func._schema.is_mutable and self.records is None
        self.writes = _writes(func) if is_write else None
        self.result_type = find(Kind.RESULT_TYPE, func)


def _writes(func: OpOverload) -> Handler:
    return handler(Kind.WRITE, func) or load_family("recording.functionalize").mutate


def _as_aten(tracer: Any, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """A call of an overload of ``prims`` as the ATen calls that torch gives for it."""
    with tracer.mode:
        return func.impl_aten(*args, **kwargs)  # type: ignore[attr-defined]


def asks_of_strides(traits: OpTraits, args: tuple[object, ...]) -> bool:
    """Whether the operator has one operand and its sizes, so that what a kernel decides by sizes is how it goes through them."""
    return traits.keeps_sizes and sum(isinstance(arg, torch.Tensor) and arg.dim() > 0 for arg in args) == 1


def traits_of(func: OpOverload) -> OpTraits:
    traits = OpTraits.known.get(id(func))
    if traits is None:
        traits = OpTraits.known[id(func)] = OpTraits(func)
    return traits
