"""The table of ATen overloads: one file per family, imported when one of its overloads is looked up."""

from __future__ import annotations

from fx2onnx.aten_map.table.registry import TABLE, Table, TableEntry, translates

__all__ = ["TABLE", "Table", "TableEntry", "translates"]
