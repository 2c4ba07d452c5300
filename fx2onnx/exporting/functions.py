"""Modules of an export as ONNX functions: which, and what they are called."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.capture.driver import as_module
from fx2onnx.optimize.outline_modules import FunctionName, Outlined, outline_modules

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
"""Modules that nobody calls."""


def outlined(model: ir.Model, module: Any, functions: bool | Sequence[type | str]) -> Outlined:
    """Make functions of modules: of all but the outermost, or of those of the classes asked for, by class or name.

    Raises: UserError E001 for a class that no module has.
    """
    root = as_module(module)
    if not isinstance(functions, bool):
        require_modules(root, functions)
    wanted = None if isinstance(functions, bool) else {_name_of(each) for each in functions}
    kinds = {}
    modules = dict(root.named_modules(remove_duplicate=False))
    for path, each in modules.items():
        if path and not isinstance(each, _CONTAINERS) and (wanted is None or wanted & _names_of(type(each))):
            kinds[path] = FunctionName(type(each).__module__, type(each).__name__)
    with record("functions"):
        return outline_modules(model, kinds, modules)


def require_modules(root: torch.nn.Module, functions: bool | Sequence[type | str]) -> None:
    """Raises UserError E001 for a class that no module has."""
    names = {name for each in root.modules() for name in _names_of(type(each))}
    for name in () if isinstance(functions, bool) else map(_name_of, functions):
        if name not in names:
            meant = difflib.get_close_matches(name, sorted(names), 3, 0.4)
            raise UserError(
                "E001", f"no module is a {name}", next=[f"did you mean {' or '.join(meant)}?"] if meant else ()
            )


def found_in(root: torch.nn.Module, functions: bool | Sequence[type | str]) -> bool | Sequence[type | str]:
    """The functions that are asked for of a model, less the classes that this part of it has none of."""
    if isinstance(functions, bool):
        return functions
    names = {name for each in root.modules() for name in _names_of(type(each))}
    return [each for each in functions if _name_of(each) in names]


def _names_of(kind: type) -> set[str]:
    return {kind.__name__, _name_of(kind)}


def _name_of(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
