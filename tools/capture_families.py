"""Writes ``fx2onnx/capture/overloads/families.json``: which file of capture registers functions for which overloads.

python -m tools.capture_families fx2onnx/capture/overloads/families.json
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path

import fx2onnx.capture
from fx2onnx.capture import registry

PACKAGE = "fx2onnx.capture."
ROOMS = ("overloads", "quantized", "recording")
WRITES = "recording.aliasing"
"""The file whose inverses of views are imported by the first write, not by the views."""


def written() -> dict[str, list[str]]:
    """The content of the file."""
    for module in pkgutil.walk_packages(fx2onnx.capture.__path__, PACKAGE):
        if module.name.removeprefix(PACKAGE).split(".")[0] in ROOMS:
            importlib.import_module(module.name)
    found: dict[str, set[str]] = {}
    for functions in registry._ENTRIES.values():
        for overload, function in functions.items():
            found.setdefault(function.__module__.removeprefix(PACKAGE), set()).add(overload)
    del found[WRITES]
    return {family: sorted(found[family]) for family in sorted(found)}


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(written(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
