"""Writes ``fx2onnx/aten_map/table/families.json``: which file of the table registers the entries of which overloads.

    python -m tools.aten_families fx2onnx/aten_map/table/families.json

Run in a process of its own, where no family is imported yet.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import fx2onnx.aten_map
from fx2onnx.aten_map.table import registry

_PREFIX = "fx2onnx.aten_map."
_NO_FAMILIES = ("table", "namespaces")


def written() -> dict[str, dict[str, list[str]]]:
    """The contents that the file should have. Names that ``overloads_of`` leaves out in this torch are there, too, in
    both kinds."""
    found: dict[str, dict[str, set[str]]] = {}
    overloads_of = registry.overloads_of

    def note(name: str, kind: str) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>" or not frame.f_globals["__name__"].startswith(_PREFIX):
            assert frame.f_back is not None
            frame = frame.f_back
        family = frame.f_globals["__name__"].removeprefix(_PREFIX)
        found.setdefault(family, {}).setdefault(kind, set()).add(name)

    def add(table: Any, overload: Any, since: int, function: Any, is_complex: bool = False, form: str = "") -> None:
        note(str(overload), "complex" if is_complex else "real")

    def named(names: str) -> list[Any]:
        for name in names.split():
            if not overloads_of(name):
                packet, _, overload = name.partition(".")
                note(f"aten.{packet}.{overload or 'default'}", "real")
                note(f"aten.{packet}.{overload or 'default'}", "complex")
        return overloads_of(names)

    registry.Table.add = add  # type: ignore[method-assign]
    registry.overloads_of = named
    for module in pkgutil.walk_packages(fx2onnx.aten_map.__path__, _PREFIX):
        if module.name.removeprefix(_PREFIX).split(".")[0] not in _NO_FAMILIES:
            importlib.import_module(module.name)
    return {family: {kind: sorted(kinds[kind]) for kind in sorted(kinds)} for family, kinds in sorted(found.items())}


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(written(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
