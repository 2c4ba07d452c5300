"""The ATen table of one export: with the user's own translations, and with operators that stand for module classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.registry import IGNORED, MODULE_TRANSLATIONS, ModuleCalls, add_module_calls, is_module_class
from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.module_calls import Called
from fx2onnx.irx.emit import Emit
from fx2onnx.lower.torchlib import WRITTEN_FOR, Origin, as_operand, emit
from fx2onnx.torchcompat.operators import OpOverload, is_decomposable


class Translations:
    """``table``, in ``resorts`` the overloads that it lacks, in ``problems`` a line for each package that could not add to it."""

    def __init__(self, custom: Mapping[Any, Callable[..., Any]] | None) -> None:
        self.problems = plugins.import_all(plugins.TRANSLATIONS)
        own = dict(custom or {})
        self._of_modules = MODULE_TRANSLATIONS | {key: own.pop(key) for key in list(own) if is_module_class(key)}
        self.table = TABLE.extended(own) if own or self._of_modules else TABLE
        self.resorts: dict[str, str] = {}
        self._calls: ModuleCalls = {}

    def keep(self, overload: Any) -> bool:
        """Return whether the overload stays whole; noted where PyTorch's decomposition takes its place."""
        if overload in self.table or not is_decomposable(overload):
            return True
        self.resorts[str(overload)] = "decomposition"
        return False

    def single_calls(self, module: Any) -> tuple[tuple[type, ...], Called] | None:
        """The classes whose calls are one operator each, and what takes note of the calls."""
        if self._of_modules and isinstance(module, torch.nn.Module):
            return tuple(self._of_modules), self._called
        return None

    def _called(self, overload: Any, number: int, part: torch.nn.Module, weights: Sequence[str]) -> None:
        self._calls[overload, number] = (part, weights)
        if overload not in self.table:
            kind = next(kind for kind in type(part).__mro__ if kind in self._of_modules)
            add_module_calls(self.table, self._of_modules[kind], overload, self._calls)


def translations_of(
    table: Mapping[Any, Callable[..., Any]] | None,
) -> tuple[dict[Any, Callable[..., Any]], list[str]]:
    """The table as ``custom_translations``, and a line for each target that is no overload, which no graph has here.

    Raises: UserError E001 for what is no function.
    """
    found, lines = {}, []
    for target, function in (table or {}).items():
        if isinstance(target, OpOverload):
            found[target] = _translation(target, function)
        else:
            lines.append(
                f"custom_translation_table has no effect for {target!r:.80}: it is no overload such as aten.relu.default"
            )
    return found, lines


def _translation(overload: OpOverload, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise UserError(
            "E001",
            f"custom_translation_table has {function!r:.80} for {overload}",
            next="give one onnxscript function for an overload",
        )
    names = [argument.name for argument in overload._schema.arguments]
    parameters = ["from_" if name == "from" else name for name in names]

    def translation(op: Emit, *values: Any) -> Any:
        return emit(op, overload, function, dict(zip(names, values, strict=True)), _ORIGIN)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = vars(translation)
    shown["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in ("op", *parameters)])
    shown["__wrapped__"] = getattr(function, "func", getattr(function, "function", function))  # whose place errors name
    return translation


def _by_place(
    op: Emit, overload: OpOverload, function: Any, given: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments as torch.onnx.export passes them: positional ones by their place, whatever the function calls them."""
    places, names, takes_any = _taken(function)
    args: list[Any] = []
    keywords: dict[str, Any] = {}
    last = 0
    for argument in overload._schema.arguments:
        value = given[argument.name]
        is_default = argument.has_default_value() and value == argument.default_value
        is_placed = not argument.kwarg_only and (len(args) < places or takes_any)
        if is_placed:
            args.append(as_operand(op, value))
            last = last if is_default else len(args)
        elif argument.name in names:
            keywords[argument.name] = as_operand(op, value)
        elif not is_default and argument.name not in IGNORED:
            raise NotImplementedError(f"the function has no argument {argument.name}, which is {value!r:.60}")
    return args[:last], {name: value for name, value in keywords.items() if value is not None}


def _taken(function: Any) -> tuple[int, set[str], bool]:
    """The number of positional arguments of the function, the names of all, and True if it takes any number."""
    signature = getattr(function, "op_signature", None)
    if signature is not None:
        names = [parameter.name for parameter in signature.params]
        return len(names), set(names), False
    parameters = inspect.signature(function).parameters.values()
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return (
        len(placed),
        {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY},
        any(each.kind is each.VAR_POSITIONAL for each in parameters),
    )


_ORIGIN = Origin(
    "custom_translation_table",
    _by_place,
    WRITTEN_FOR,
    "pass custom_translations={{torch.ops.{}: function}}, whose function gets `op` first (docs/adding_an_op.md)",
)
