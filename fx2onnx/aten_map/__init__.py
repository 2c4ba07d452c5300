"""The table of ATen overloads: one file per family. Importing this package registers every entry."""

from __future__ import annotations

import importlib
import pkgutil

from fx2onnx.aten_map.table.registry import TABLE, Entry, Table, translates

__all__ = ["TABLE", "Entry", "Table", "translates"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
