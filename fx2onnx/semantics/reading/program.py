"""The Program: numbered steps over slots, the runner's own form of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.semantics.registry import Kernel
from fx2onnx.semantics.types import TENSOR_NAMES, Value, describe, onnx_dtype, type_name


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
