"""The table: ATen overload -> function that emits its ONNX form.

``@translates(aten.gelu.default, since=20)`` registers with the real overload object. Several entries for one overload
may differ in ``since``; the highest that the opset admits is used. The function's parameters after ``op`` are the
schema's arguments, in order, under the schema's names; arguments that say nothing to ONNX (``IGNORED``) may be left
out. The first docstring line is the schema.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import place_of

IGNORED = frozenset(
    [
        "layout",
        "device",
        "pin_memory",
        "memory_format",
        "non_blocking",
        "generator",
        "requires_grad",
        "copy",
        "sparse",
        "cudnn_enabled",
        "benchmark",
        "deterministic",
        "allow_tf32",
        "scale_grad_by_freq",
    ]
)
"""Arguments without influence on the values: where they are kept, how they are computed, what a gradient would be."""

OpOverload: TypeAlias = torch._ops.OpOverload
"""It has no public name."""
Translation: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Translation)


@dataclass(frozen=True, slots=True)
class Entry:
    """One translation of one overload."""

    overload: OpOverload
    since: int
    function: Translation
    arguments: tuple[str, ...]
    """Schema arguments that the function takes, in its order."""
    place: str
    """file:line of the function."""

    @property
    def is_ours(self) -> bool:
        """Whether the function is this package's, not a user's."""
        return getattr(self.function, "__module__", "").startswith("fx2onnx.")

    def call(self, op: Any, arguments: dict[str, Any]) -> Any:
        """Emit; ``arguments`` holds every argument of the schema.

        Outputs without elements are constants, whatever the operator: many kernels do not take empty tensors.
        """
        if op.result and all(0 in dims for _, dims in op.result):
            empty = tuple(op.expand(op.const(0, dtype), dims) for dtype, dims in op.result)
            is_list = isinstance(self.overload._schema.returns[0].type, torch.ListType)
            return empty if is_list or len(empty) > 1 else empty[0]
        return self.function(op, *(arguments[name] for name in self.arguments))


@dataclass
class Table:
    """Entries by overload, each list with the newest form first."""

    entries: dict[OpOverload, list[Entry]] = field(default_factory=dict)
    complex_entries: dict[OpOverload, list[Entry]] = field(default_factory=dict)
    """Entries for calls with a complex operand or result, which come as a trailing pair of reals."""

    def add(self, overload: OpOverload, since: int, function: Translation, is_complex: bool = False) -> None:
        """Register. Raises UserError E001 for a duplicate or a signature that is not the schema's."""
        if not isinstance(overload, OpOverload):
            raise UserError(
                "E001",
                f"{overload!r} is not an operator overload",
                next="name one, such as torch.ops.aten.gelu.default",
            )
        entry = Entry(
            overload=overload,
            since=since,
            function=function,
            arguments=_checked_arguments(overload, function),
            place=place_of(function),
        )
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

    def find(self, overload: Any, opset: int, is_complex: bool = False) -> Entry | None:
        """The best entry that ``opset`` admits, or None. ``is_complex``: for a call that touches complex numbers."""
        forms = (self.complex_entries if is_complex else self.entries).get(overload)
        if forms is None and overload in self:
            forms = (self.complex_entries if is_complex else self.entries).get(overload)
        for entry in forms or ():
            if entry.since <= opset:
                return entry
        return None

    def forms(self, overload: Any, is_complex: bool) -> list[Entry]:
        """The entries for real or for complex calls, the newest form first."""
        return list((self.complex_entries if is_complex else self.entries).get(overload, ()))

    def __contains__(self, overload: object) -> bool:
        if overload in self.entries or overload in self.complex_entries:
            return True
        load_namespace(getattr(overload, "namespace", ""))
        if isinstance(overload, OpOverload) and overload in TABLE.entries:
            self.entries[overload] = TABLE.entries[overload]
        return overload in self.entries

    def __iter__(self) -> Iterator[Entry]:
        for entries in self.entries.values():
            yield from entries

    def extended(self, custom: dict[OpOverload, Translation]) -> Table:
        """A copy in which ``custom`` replaces whatever was there."""
        copy = Table(dict(self.entries), dict(self.complex_entries))
        for overload, function in custom.items():
            copy.entries[overload] = []
            copy.add(overload, 0, function)
            copy.complex_entries[overload] = copy.entries[overload]
        return copy


TABLE = Table()


LAZY_NAMESPACES = {"torchvision", "quantized_decomposed", "torch_nn", "torchao"}
"""Operators of packages that are imported late or never: their entries are imported when one is first looked up."""


def load_namespace(namespace: str) -> None:
    """Import the entries of an operator namespace, once."""
    if namespace in LAZY_NAMESPACES:
        LAZY_NAMESPACES.discard(namespace)
        importlib.import_module(f"fx2onnx.aten_map.namespaces.{namespace}")


def _checked_arguments(overload: OpOverload, function: Translation) -> tuple[str, ...]:
    wanted = [argument.name for argument in overload._schema.arguments]
    names = [
        name.removesuffix("_") if name in ("from_",) else name
        for name in list(inspect.signature(function).parameters)[1:]
    ]
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


def translates(*overloads: OpOverload | type, since: int = 0) -> Callable[[F], F]:
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


def is_module_class(key: object) -> bool:
    return isinstance(key, type) and issubclass(key, torch.nn.Module)


ModuleCalls: TypeAlias = dict[tuple[OpOverload, int], tuple[torch.nn.Module, Sequence[str]]]
"""The module of each call, by operator and number, and the names of its weights."""


def add_module_calls(table: Table, function: Translation, overload: OpOverload, calls: ModuleCalls) -> None:
    """The entry of the operator that stands for modules: ``function(op, module, *inputs, weights={name: value})``."""

    def entry(op: Any, *arguments: Any) -> Any:
        *operands, number = arguments
        module, weights = calls[overload, number]
        inputs = len(operands) - len(weights)
        return function(op, module, *operands[:inputs], weights=dict(zip(weights, operands[inputs:], strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["op", *(argument.name for argument in overload._schema.arguments)]
    entry.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    entry.__wrapped__ = function  # type: ignore[attr-defined]
    table.add(overload, 0, entry)


def schema_line(overload: OpOverload) -> str:
    """The schema without namespace and overload name: what the first docstring line of an entry says."""
    head, _, rest = str(overload._schema).partition("(")
    return f"{head.partition('::')[2].partition('.')[0]}({rest}"


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
