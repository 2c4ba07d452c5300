"""Families of the table: files of ``aten_map`` that register entries, imported when an overload of theirs is looked up.

``families.json`` says which family registers which overloads; `make families` writes it.
"""

from __future__ import annotations

import importlib
import json
from functools import cache
from pathlib import Path

FAMILIES = Path(__file__).with_name("families.json")
NAMESPACES = {name: name for name in ("flex_lib", "torchvision", "quantized_decomposed", "torch_nn", "torchao")} | {
    "onnx": "onnx_ops",
    "onnx_symbolic": "onnx_ops",
}
"""Operators of packages that are imported late or never: the file that has all entries of such a namespace."""

_PACKAGE = __name__.rsplit(".", 2)[0]
_loaded: set[tuple[object, bool]] = set()


def load(overload: object, is_complex: bool) -> None:
    """Import what registers the overload's entries for real or for complex calls."""
    if (overload, is_complex) not in _loaded:
        registers(overload)
        for family in _families_of()[is_complex].get(str(overload), ()):
            load_family(family)
        _loaded.add((overload, is_complex))  # afterwards: another thread waits for the same import


def registers(overload: object) -> bool:
    """True if a family registers entries for the overload. No family is imported to tell, except those of other packages."""
    namespace = getattr(overload, "namespace", "")
    if namespace in NAMESPACES:
        load_family(f"namespaces.{NAMESPACES[namespace]}")
        return False
    name = str(overload)
    return any(name in by_name for by_name in _families_of())


def load_all() -> None:
    """Import every family, except for the namespaces of packages that may not be installed."""
    for family in read_families():
        load_family(family)


def load_family(name: str) -> None:
    importlib.import_module(f"{_PACKAGE}.{name}")


def known_names() -> set[str]:
    """Names of the overloads that some family registers."""
    return {name for by_name in _families_of() for name in by_name}


def read_families() -> dict[str, dict[str, list[str]]]:
    """Names of overloads by family, ``real`` and ``complex``: for calls without and with complex numbers."""
    families: dict[str, dict[str, list[str]]] = json.loads(FAMILIES.read_text(encoding="utf-8"))
    return families


@cache
def _families_of() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The families of each overload, for real calls and for complex ones."""
    found: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for family, names in read_families().items():
        for by_name, kind in zip(found, ("real", "complex"), strict=True):
            for name in names.get(kind, ()):
                by_name.setdefault(name, []).append(family)
    return found
