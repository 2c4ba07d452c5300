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
from fx2onnx.optimize.outline_modules import Kind, Outlined, outline_modules

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
"""Modules that nobody calls."""


def outlined(model: ir.Model, module: Any, functions: bool | Sequence[type | str]) -> Outlined:
    """Make functions of modules: of all but the outermost, or of those of the classes asked for, by class or name.

    Raises: UserError E001 for a class that no module has.
    """
    root = as_module(module)
    wanted = None if isinstance(functions, bool) else [_name_of(each) for each in functions]
    kinds, names = {}, set[str]()
    modules = dict(root.named_modules(remove_duplicate=False))
    for path, each in modules.items():
        kind = type(each)
        names |= {kind.__name__, f"{kind.__module__}.{kind.__qualname__}"}
        if not path or isinstance(each, _CONTAINERS):
            continue
        if wanted is None or {kind.__name__, f"{kind.__module__}.{kind.__qualname__}"} & set(wanted):
            kinds[path] = Kind(kind.__module__, kind.__name__)
    for name in wanted or ():
        if name not in names:
            meant = difflib.get_close_matches(name, sorted(names), 3, 0.4)
            raise UserError(
                "E001", f"no module is a {name}", next=[f"did you mean {' or '.join(meant)}?"] if meant else ()
            )
    with record("functions"):
        return outline_modules(model, kinds, modules)


def _name_of(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
