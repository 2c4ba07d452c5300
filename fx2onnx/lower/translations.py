"""The ATen table of one export: with the user's own translations, and with operators that stand for module classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.registry import MODULE_TRANSLATIONS, ModuleCalls, add_module_calls, is_module_class
from fx2onnx.base import plugins
from fx2onnx.capture.python.module_calls import Called
from fx2onnx.torchcompat.operators import is_decomposable


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
