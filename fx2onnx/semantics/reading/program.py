"""The Program: numbered steps over slots, the runner's own form of a graph, and the types of its values as ``TypeProto`` says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.semantics.registry import Kernel
from fx2onnx.semantics.types import (
    TENSOR_NAMES,
    Array,
    DataType,
    MapType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Value,
    describe,
    onnx_dtype,
    type_name,
)


@dataclass(slots=True)
class Slot:
    """One value: a feed, a constant or what a step writes."""

    index: int
    name: str
    type: Any = None
    shape: tuple[int | str | None, ...] | None = None
    const: Value = None
    is_const: bool = False
    producer: int = -1
    type_name: str = ""
    """The type that follows from the graph or that it declares, by onnxruntime's name; "" where it is not known."""
    users: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """One operator call. ``inputs`` and ``outputs`` are slot numbers, -1 for an omitted one."""

    index: int
    kernel: Kernel
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    name: str = ""
    origin: Any = ""
    """One line about the node it comes from, by ``str``."""
    bodies: dict[str, Program] = field(default_factory=dict)
    dtypes: tuple[frozenset[Any], ...] = ()
    """The dtypes that the node's inputs may have; the last entry is for all that follow, too. Empty: any."""
    axes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The numbers of axes that the node's input at each place may have."""
    n_inputs: int = 0
    """Inputs of the node itself; what its bodies capture follows them."""
    kept: dict[str, Any] = field(default_factory=dict)
    """The values that the kernel computes from constants, once for all shapes of feeds."""

    @property
    def op_type(self) -> str:
        return self.kernel.op_type


@dataclass(slots=True)
class Program:
    """Steps in order. ``captures`` pairs slots of the enclosing program with slots here."""

    name: str
    slots: list[Slot] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    defaults: dict[int, Value] = field(default_factory=dict)
    captures: list[tuple[int, int]] = field(default_factory=list)

    def new_slot(
        self, name: str, type: Any = None, shape: Any = None, const: Value = None, is_const: bool = False
    ) -> Slot:
        slot = Slot(len(self.slots), name, type, shape, const, is_const)
        self.slots.append(slot)
        return slot

    def new_constant(self, name: str, const: Any, type: Any) -> Slot:
        slot = self.new_slot(name, type, const.shape, const, True)
        slot.type_name = type_name(type)
        return slot

    def link(self) -> None:
        """Number the steps and write producers and users anew."""
        slots = self.slots
        for slot in slots:
            slot.producer = -1
            slot.users = []
        for index, step in enumerate(self.steps):
            step.index = index
            for source in step.inputs:
                if source >= 0:
                    users = slots[source].users
                    if not users or users[-1] != index:
                        users.append(index)
            for target in step.outputs:
                if target >= 0:
                    slots[target].producer = index

    def drop_dead_steps(self) -> int:
        """Remove steps of which nothing is read; returns how many."""
        needed = set(self.outputs)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                needed.discard(-1)
                kept.append(step)
        dropped = len(self.steps) - len(kept)
        self.steps = kept[::-1]
        self.link()
        return dropped


KERNEL_FAULTS = (
    ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError, MemoryError,
    RecursionError, NotImplementedError,
)  # fmt: skip
"""The exceptions of NumPy and Python for operands that do not fit; reported with the node, the cause chained."""

Error = TypeVar("Error", bound=Fx2OnnxError)


def check_operands(step: Step, args: Sequence[Value], code: str = "E403") -> None:
    """Raises: UserError ``code`` for an array of a dtype or number of axes that ONNX does not allow there; NumPy might take it in silence."""
    allowed, last = step.dtypes, len(step.dtypes) - 1
    if last < 0:
        return
    for place, arg in enumerate(args[: step.n_inputs]):
        if isinstance(arg, np.ndarray) and arg.dtype not in allowed[place if place < last else last]:
            names = sorted(TENSOR_NAMES[dtype] for d in allowed[min(place, last)] if (dtype := onnx_dtype(d)))
            raise UserError(
                code,
                f"input {place} of {step.op_type} has a type that ONNX does not allow there",
                node=node_line(step, args),
                why=f"it may be {', '.join(names) or 'no tensor'}",
            )
    for place, axes in step.axes.items():
        arg = args[place] if place < step.n_inputs else None
        if isinstance(arg, np.ndarray) and arg.ndim not in axes:
            raise UserError(
                code,
                f"input {place} of {step.op_type} has {arg.ndim} axes",
                node=node_line(step, args),
                why=f"it must have {' or '.join(map(str, axes))}",
            )


def node_line(step: Step, args: Sequence[Value]) -> str:
    """The node with the dtypes and shapes it was given."""
    given = ", ".join(describe(value) for value in args)
    label = f"{step.name}: " if step.name else ""
    return f"{label}{step.origin}  on ({given})"[:400]


def with_node(error: Error, step: Step, args: Sequence[Value]) -> Error:
    """The error with its node, that of ``step`` where it has none yet."""
    node = error.node or node_line(step, args)
    return type(error)(error.code, error.what, node=node, why=error.why, next=error.next)


def reason(error: BaseException) -> str:
    """The first line that the error says."""
    return str(error).splitlines()[0][:200] if str(error) else ""


Dims: TypeAlias = tuple[int | str | None, ...]


@lru_cache(maxsize=64)
def data_type(code: int) -> DataType:
    """The element type of that number. Raises: UserError E303."""
    try:
        return DataType(code)
    except ValueError:
        raise UserError("E303", f"{code} is no element type that ONNX knows") from None


@lru_cache(maxsize=64)
def _tensor_type(code: int) -> TensorType:
    if code == DataType.UNDEFINED:
        raise UserError("E303", "a tensor type does not say its element type")
    return TensorType(data_type(code))


def type_of_array(array: Array) -> TensorType:
    """The type of a constant."""
    dtype = onnx_dtype(array.dtype)
    assert dtype is not None
    return _tensor_type(int(dtype))


def type_and_dims(proto: Any) -> tuple[Any, Dims | None]:
    """The type (None where it is not given) and the dims of the tensors in it (None where their rank is not known).

    Raises: UserError E303 for a type that does not say what it is of.
    """
    form = proto.WhichOneof("value")
    if form == "tensor_type":
        tensor = proto.tensor_type
        return _tensor_type(tensor.elem_type), dims_of(tensor.shape) if tensor.HasField("shape") else None
    if form is None:
        return None, None
    if form == "sparse_tensor_type":
        sparse = proto.sparse_tensor_type
        dims = dims_of(sparse.shape) if sparse.HasField("shape") else None
        return SparseTensorType(data_type(sparse.elem_type)), dims
    if form == "map_type":
        return MapType(data_type(proto.map_type.key_type), _inner(proto.map_type.value_type)[0]), None
    if form == "sequence_type":
        inner, dims = _inner(proto.sequence_type.elem_type)
        return SequenceType(inner), dims
    if form == "optional_type":
        inner, dims = _inner(proto.optional_type.elem_type)
        return OptionalType(inner), dims
    raise UserError("E303", f"the runner does not know values of {form}")


def type_of_info(info: Any) -> tuple[Any, Dims | None]:
    """``type_and_dims`` of a ``ValueInfoProto``. Raises: UserError E303 with its name."""
    try:
        return type_and_dims(info.type)
    except UserError as error:
        raise UserError(error.code, f"the type of {info.name!r} is not valid", why=error.what) from error


def _inner(proto: Any) -> tuple[Any, Dims | None]:
    inner, dims = type_and_dims(proto)
    if inner is None:
        raise UserError("E303", "the type of a sequence, optional or map does not say what is in it")
    return inner, dims


def dims_of(shape: Any) -> Dims:
    """A fixed size as a number, a symbolic one as its name, an unknown one as None; so is a negative one (onnxruntime)."""
    dims: list[int | str | None] = []
    for dim in shape.dim:
        form = dim.WhichOneof("value")
        if form == "dim_value":
            size = dim.dim_value
            dims.append(size if size >= 0 else None)
        else:
            dims.append(dim.dim_param or None if form else None)
    return tuple(dims)


def denotations_of(proto: Any) -> list[str]:
    """The denotation of each dim of a tensor type, empty where it has none."""
    if proto.WhichOneof("value") != "tensor_type":
        return []
    return [dim.denotation for dim in proto.tensor_type.shape.dim]
