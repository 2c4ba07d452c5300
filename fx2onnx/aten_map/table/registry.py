"""The table: ATen overload -> function that emits its ONNX form.

``@translates(aten.gelu.default, since=20)`` registers with the real overload object. Several entries for one overload
may differ in ``since``; the highest that the opset admits is used. The function's parameters after ``op`` are the
schema's arguments, in order, under the schema's names; arguments that say nothing to ONNX (``IGNORED``) may be left
out. The first docstring line is the schema. ``register_shared`` is for functions that serve many overloads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import torch

from fx2onnx.aten_map.table.families import load, registers
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import place_of
from fx2onnx.base.stack_frames import public

IGNORED = frozenset([
    "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "requires_grad", "copy", "sparse",
    "cudnn_enabled", "benchmark", "deterministic", "allow_tf32", "scale_grad_by_freq", "unroll_dim",
])  # fmt: skip
"""Arguments without influence on the values: where they are kept, how they are computed, what a gradient would be."""

RENAMED = {"grad_output": "grad"}
"""Arguments that schemas of some versions of torch call otherwise than the functions here."""

OpOverload: TypeAlias = torch._ops.OpOverload
"""The class of overloads, which has no public name in torch."""
Translation: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Translation)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One translation of one overload."""

    overload: OpOverload
    since: int
    function: Translation
    arguments: tuple[str, ...]
    """Schema arguments that the function takes, in its order."""
    place: str
    """file:line of the function."""
    parameters: tuple[str, ...] | None = None
    """The function's own names of ``arguments``, where it is called by name."""
    form: str = ""
    """The ONNX form, where the function serves many overloads and its docstring does not say it."""

    @property
    def is_ours(self) -> bool:
        """True if the function is this package's, not a user's."""
        return getattr(self.function, "__module__", "").startswith("fx2onnx.")

    def call(self, op: Any, arguments: dict[str, Any]) -> Any:
        """Emit; ``arguments`` holds every argument of the schema.

        Outputs without elements are constants, whatever the operator: many kernels do not take empty tensors.
        """
        for _, dims in op.result:
            if 0 not in dims:
                break
        else:
            if op.result:
                empty = tuple(op.expand(op.const(0, dtype), dims) for dtype, dims in op.result)
                is_list = isinstance(self.overload._schema.returns[0].type, torch.ListType)
                return empty if is_list or len(empty) > 1 else empty[0]
        values = [arguments[name] for name in self.arguments]
        if self.parameters is None:
            return self.function(op, *values)
        return self.function(op, **dict(zip(self.parameters, values, strict=True)))


@dataclass
class Table:
    """Entries by overload, each list with the newest form first: its own, and those of ``below`` for the other overloads."""

    entries: dict[OpOverload, list[TableEntry]] = field(default_factory=dict)
    complex_entries: dict[OpOverload, list[TableEntry]] = field(default_factory=dict)
    """Entries for calls with a complex operand or result, which come as a trailing pair of reals."""
    below: Table | None = None
    load: Callable[[Any, bool], None] = lambda overload, is_complex: None
    """Imports what registers an overload's entries, for real or complex calls."""
    registers: Callable[[Any], bool] = lambda overload: False
    """Returns True if ``load`` has entries for an overload. It imports nothing, because it is called during captures."""

    def add(
        self,
        overload: OpOverload,
        since: int,
        function: Translation,
        is_complex: bool = False,
        form: str = "",
    ) -> None:
        """Register. With ``form`` the function takes by name what it wants of the arguments.

        Raises: UserError E001 for a duplicate or a signature that is not the schema's.
        """
        if not isinstance(overload, OpOverload):
            raise UserError(
                "E001",
                f"{overload!r} is not an operator overload",
                next=f"name one, such as torch.ops.{_overload_like(overload)}",
            )
        arguments, parameters = _wanted(overload, function) if form else (_checked_arguments(overload, function), None)
        entry = TableEntry(overload, since, function, arguments, place_of(function), parameters, form)
        if not entry.is_ours:
            self.load(overload, is_complex)
        known = (self.complex_entries if is_complex else self.entries).setdefault(overload, [])
        for other in known:
            if other.since == since:
                raise UserError(
                    "E001",
                    f"{overload} is registered twice for opset {since}",
                    why=f"first at {other.place}, again at {entry.place}",
                    next="give one of them another `since`, or pass yours as custom_translations= of one export",
                )
        known.append(entry)
        known.sort(key=lambda item: -item.since)

    def find(self, overload: Any, opset: int, is_complex: bool = False) -> TableEntry | None:
        """The best entry that ``opset`` admits, or None. ``is_complex``: for a call that touches complex numbers."""
        for entry in self.forms(overload, is_complex):
            if entry.since <= opset:
                return entry
        return None

    def forms(self, overload: Any, is_complex: bool) -> list[TableEntry]:
        """The entries for real or for complex calls, the newest form first."""
        self.load(overload, is_complex)
        own = (self.complex_entries if is_complex else self.entries).get(overload)
        if own is None:
            return self.below.forms(overload, is_complex) if self.below is not None else []
        return own

    def __contains__(self, overload: object) -> bool:
        if self.registers(overload) or overload in self.entries or overload in self.complex_entries:
            return True
        return self.below is not None and overload in self.below

    def extended(self, custom: dict[OpOverload, Translation]) -> Table:
        """A table in which ``custom`` takes the place of what is here."""
        table = Table(below=self)
        for overload, function in custom.items():
            table.add(overload, 0, function)
            table.complex_entries[overload] = table.entries[overload]
        return table


TABLE = Table(load=load, registers=registers)


def _wanted(overload: OpOverload, function: Translation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that a function for many overloads takes of this one, and its own names for them.

    A parameter that the schema does not have is the argument at its place: operands are ``self`` here and ``input``
    there. ``**given`` takes all.
    """
    names = [argument.name for argument in overload._schema.arguments]
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return tuple(names), tuple(names)
    arguments: dict[str, str] = {}
    for index, parameter in enumerate(parameters):
        name = "from" if parameter.name == "from_" else parameter.name
        if name not in names and parameter.default is parameter.empty and index < len(names):
            name = names[index]
        if name in names and name not in arguments.values():
            arguments[parameter.name] = name
        elif parameter.default is parameter.empty:
            _checked_arguments(overload, function)
    return tuple(arguments.values()), tuple(arguments)


def _overload_like(given: Any) -> str:
    """The name of the overload that ``given`` most likely means."""
    name = getattr(given, "_qualname", None) or getattr(given, "_qualified_op_name", None) or given
    space, _, name = str(name).partition("::") if isinstance(name, str) else ("", "", "")
    packet = getattr(getattr(torch.ops, space), name, None) if space.isidentifier() and name.isidentifier() else None
    return f"{space}.{name}.{packet.overloads()[0]}" if packet is not None else "aten.gelu.default"


def _checked_arguments(overload: OpOverload, function: Translation) -> tuple[str, ...]:
    wanted = [argument.name for argument in overload._schema.arguments]
    names = ["from" if name == "from_" else name for name in list(inspect.signature(function).parameters)[1:]]
    if getattr(function, "__module__", "").startswith("fx2onnx."):
        other = {RENAMED[name]: name for name in wanted if name in RENAMED and name not in names}
        names = [other.get(name, name) if name not in wanted else name for name in names]
    missing = [name for name in wanted if name not in names and name not in IGNORED]
    unknown = [name for name in names if name not in wanted]
    if missing or unknown:
        raise UserError(
            "E001",
            f"the translation of {overload} has parameters that are not its schema's",
            node=str(overload._schema),
            why="; ".join(
                text
                for text in (
                    f"missing: {', '.join(missing)}" if missing else "",
                    f"not in the schema: {', '.join(unknown)}" if unknown else "",
                )
                if text
            ),
            next="name the parameters after `op` as the schema does",
        )
    return tuple(names)


MODULE_TRANSLATIONS: dict[type, Translation] = {}
"""Classes of modules of which each call becomes what the function emits: ``function(op, module, *inputs, weights=)``."""


@public
def translates(*overloads: torch._ops.OpOverload | type, since: int = 0) -> Callable[[F], F]:
    """Register the decorated function for ``overloads`` (they must share the argument names) from opset ``since`` on,
    or for classes of modules.
    """

    def register(function: F) -> F:
        for overload in overloads:
            if is_module_class(overload):
                if overload in MODULE_TRANSLATIONS:
                    raise UserError(
                        "E001",
                        f"the module class {overload.__name__} is registered twice",
                        next="pass yours as custom_translations= of one export",
                    )
                MODULE_TRANSLATIONS[overload] = function  # type: ignore[index]
            else:
                TABLE.add(overload, since, function)  # type: ignore[arg-type]
        return function

    return register


def register_shared(function: Translation, form: str, *overloads: OpOverload, is_complex: bool = False) -> None:
    """Register one function for overloads whose arguments differ; it takes by name those of each that it names.

    The arguments it does not name are those that its reading of the result's type makes superfluous (sizes, dtypes), or
    that say nothing to ONNX. ``form``: the ONNX form in a few words.
    """
    for overload in overloads:
        TABLE.add(overload, 0, function, is_complex, form)


def overloads_of(names: str) -> list[OpOverload]:
    """``"zeros.default full.default"`` as overloads of aten; those this torch does not have are left out."""
    packets = (name.partition(".") for name in names.split())
    found = (getattr(getattr(torch.ops.aten, packet, None), name or "default", None) for packet, _, name in packets)
    return [overload for overload in found if overload is not None]


def is_module_class(key: object) -> bool:
    return isinstance(key, type) and issubclass(key, torch.nn.Module)


ModuleCalls: TypeAlias = dict[tuple[OpOverload, int], tuple[torch.nn.Module, Sequence[str]]]
"""The module of each call, by operator and number, and the names of its weights."""


def add_module_calls(table: Table, function: Translation, overload: OpOverload, calls: ModuleCalls) -> None:
    """The entry of the operator that stands for modules: ``function(op, module, *inputs, weights={name: value})``."""

    def entry(op: Any, **arguments: Any) -> Any:
        *operands, number = arguments.values()
        module, weights = calls[overload, number]
        inputs = len(operands) - len(weights)
        return function(op, module, *operands[:inputs], weights=dict(zip(weights, operands[inputs:], strict=True)))

    entry.__wrapped__ = function  # type: ignore[attr-defined]  # the place that messages name
    table.add(overload, 0, entry, form="as the translation of the module says")


def fill_defaults(overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Every schema argument by name, defaults filled in."""
    filled = dict(_defaults(overload))
    filled.update(zip(filled, args, strict=False))
    for name, value in kwargs.items():
        if name in filled:
            filled[name] = value
    return filled


@lru_cache(maxsize=4096)
def _defaults(overload: OpOverload) -> dict[str, Any]:
    """The schema's arguments in order, None where one has no default."""
    return {
        argument.name: argument.default_value if argument.has_default_value() else None
        for argument in overload._schema.arguments
    }
