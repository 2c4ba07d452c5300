"""The functions of capture for ATen overloads: one registry, in which an overload has at most one function of each
kind.

``@register(Kind.RECORD, aten.cov.default, aten.corrcoef.default)`` registers with the real overload objects. A function
that handles calls (``Kind.RECORD``, ``Kind.WRITE``) takes the tracer, the call, and those of the call's arguments that it
needs, under the names of the schema; an argument that only some of its overloads have gets a Python default.

Files that register functions are families. One is imported when an overload of it is first seen; ``families.json`` says which
family has which overloads, and `make families` writes it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import torch

from fx2onnx.base.errors import InternalError
from fx2onnx.base.memoized import Bounded
from fx2onnx.base.source import place_of
from fx2onnx.capture.op_table import Op
from fx2onnx.torchcompat.operators import OpOverload


class Kind(Enum):
    """The kinds of knowledge. The values say what a function of the kind does."""

    RECORD = "records a call that is more than one node, or NotImplemented"
    WRITE = "expresses a call that writes into its arguments by other calls"
    RESULT_TYPE = "gives the type of the result by formula, or None"
    INVERSE = "carries a write through a view back to what is viewed"


class Call(NamedTuple):
    """A call of an overload as it was made."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Handler: TypeAlias = Callable[[Any, OpOverload, tuple[object, ...], dict[str, object]], object]
"""Takes the tracer and a call."""

F = TypeVar("F", bound=Callable[..., object])


_ENTRIES: dict[Kind, dict[str, Callable[..., Any]]] = {kind: {} for kind in Kind}
"""The registered functions, by kind and by the full names of overloads."""

FAMILIES = Path(__file__).with_name("overloads") / "families.json"


def register(kind: Kind, *overloads: OpOverload | str) -> Callable[[F], F]:
    """Register the decorated function. An overload of a package that may not be there is given by its full name.

    Raises: InternalError E900 where an overload has a function of this kind.
    """

    def decorate(function: F) -> F:
        known = _ENTRIES[kind]
        for overload in overloads:
            name = overload if isinstance(overload, str) else full_name(overload)
            if name in known and not _is_of_module_run_again(known[name], function):
                raise InternalError(
                    "E900",
                    f"{name} is registered twice as Kind.{kind.name}",
                    why=f"first at {place_of(known[name])}, again at {place_of(function)}",
                    next="keep one of the two functions",
                )
            known[name] = function
        return function

    return decorate


def full_name(overload: OpOverload) -> str:
    """The name of an overload with its namespace, such as ``aten::slice.Tensor``."""
    return overload.name()  # type: ignore[no-any-return, no-untyped-call]


def _is_of_module_run_again(old: Callable[..., object], new: Callable[..., object]) -> bool:
    """An import that an interrupt ended is run again from the start."""
    return old.__module__ == new.__module__ and old.__globals__ is not new.__globals__


def find(kind: Kind, overload: OpOverload) -> Callable[..., Any] | None:
    """The overload's function of this kind, of a family that is imported."""
    return _ENTRIES[kind].get(full_name(overload))


def load(overload: OpOverload) -> None:
    """Import the families that have functions for the overload."""
    for name in _families_of().get(full_name(overload), ()):
        load_family(name)


def load_family(name: str) -> ModuleType:
    """A file of capture, imported now if it was not before. What watches the user's code does not look at functions of ours."""
    return importlib.import_module(f"fx2onnx.capture.{name}")


def read_families() -> dict[str, list[str]]:
    """Full names of overloads, by the family that registers functions for them."""
    families: dict[str, list[str]] = json.loads(FAMILIES.read_text(encoding="utf-8"))
    return families


@cache
def _families_of() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, overloads in read_families().items():
        for overload in overloads:
            found.setdefault(overload, []).append(name)
    return found


def overloads_of(packet: Any) -> list[OpOverload]:
    return [getattr(packet, name) for name in packet.overloads()]


def handler(kind: Kind, overload: OpOverload) -> Handler | None:
    """The registered function as one of a call, which hands it its arguments by name."""
    function = find(kind, overload)
    if function is None:
        return None
    wanted = _arguments(function, overload)

    def handle(tracer: object, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        count = len(args)
        values = [args[i] if i < count else kwargs.get(name, default) for i, name, default in wanted]
        return function(tracer, Call(func, args, kwargs), *values)

    return handle


_NOWHERE = 1 << 30
"""The position of an argument that the overload does not have."""


def _arguments(function: Callable[..., object], overload: OpOverload) -> list[tuple[int, str, object]]:
    """Position, name and default of the arguments that ``function`` names.

    Raises: InternalError E900 for a name without a default that is not in the schema.
    """
    schema = {argument.name: (index, argument) for index, argument in enumerate(overload._schema.arguments)}
    wanted: list[tuple[int, str, object]] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[2:]:
        if name in schema:
            index, argument = schema[name]
            wanted.append((index, name, argument.default_value if argument.has_default_value() else None))
        elif parameter.default is not parameter.empty:
            wanted.append((_NOWHERE, name, parameter.default))
        else:
            raise InternalError(
                "E900",
                f"{overload} has no argument {name!r}",
                node=str(overload._schema),
                why=f"the function at {place_of(function)} names it",
                next="name the parameters as the schema does",
            )
    return wanted


aten = torch.ops.aten


NAMESPACES = frozenset({"aten", "torchvision"})
"""Namespaces of operators whose real kernels may be run: those of other libraries may do anything."""

NOT_TRIED = re.compile("polynomial|matrix_power|cartesian|combinations|as_strided|segment_reduce|_ctc_loss_backward")
"""Operators that work longer than the sizes of operands and results tell, that refuse strides or read all memory, whose
lengths have to fit sizes, or that check nothing.
"""


LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_RAISED: dict[Op, type[Exception]] = {
    Op.RAISES: RuntimeError,
    Op.RAISES_INDEX: IndexError,
    Op.RAISES_LINALG: LinAlgError,
}
"""The exceptions that kernels raise for some numbers of their operands."""


class OpTraits:
    """The traits of an overload: how its calls are recorded. There is one for each overload, which it keeps, so that
    ``id(func)`` stays its own: it takes the overload's place in keys, as torch hashes overloads in Python.
    """

    __slots__ = (
        "func", "is_query", "keeps_sizes", "lifts", "name", "raises", "reads_number", "records", "result_type",
        "tries_real_kernel", "writes",
    )  # fmt: skip
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
        self.raises = next((kind for flag, kind in _RAISED.items() if self.name in flag.names), None)
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


def tries_real_kernel(func: OpOverload) -> bool:
    """Return whether a call has to be tried on the real kernel because the fake kernel of the overload checks less. Views and plain
    pointwise overloads are not tried."""
    schema = func._schema
    is_view = bool(schema.returns) and schema.returns[0].alias_info is not None and not schema.is_mutable
    is_pointwise = torch.Tag.pointwise in func.tags and not schema.is_mutable
    only_tensors = all("Tensor" in str(each.type) for each in schema.arguments)
    is_plain = is_view or (is_pointwise and only_tensors)
    return func.namespace in NAMESPACES and not is_plain and not NOT_TRIED.search(schema.name)


def asks_of_strides(traits: OpTraits, args: tuple[object, ...]) -> bool:
    """Return whether the operator has one operand and its sizes, so that what a kernel decides by sizes is how it goes through them."""
    return traits.keeps_sizes and sum(isinstance(arg, torch.Tensor) and arg.dim() > 0 for arg in args) == 1


def traits_of(func: OpOverload) -> OpTraits:
    traits = OpTraits.known.get(id(func))
    if traits is None:
        traits = OpTraits.known[id(func)] = OpTraits(func)
    return traits
