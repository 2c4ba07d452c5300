"""Names of models by kind of source, as `make names` found them: nothing is imported to list or to suggest one."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

NAMES = Path(__file__).with_name("names.json")


@cache
def _tabled() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", json.loads(NAMES.read_text(encoding="utf-8")))


def known_names() -> dict[str, list[str]]:
    """Names of models by kind, as `make names` found them: nothing is imported to suggest one."""
    return _tabled()["names"]


def is_as_tabled(kind: str, package: str) -> bool:
    """Return whether names.json has the names of the installed version of the package; one that is imported may have others."""
    if package in sys.modules or kind not in known_names():
        return False
    try:
        return importlib.metadata.version(package) == _tabled()["versions"].get(package)
    except importlib.metadata.PackageNotFoundError:
        return False


def specs_named(name: str) -> list[str]:
    """``KIND:NAME`` for each kind that has the name."""
    return [f"{kind}:{name}" for kind, names in known_names().items() if name in names]


def close_specs(name: str) -> list[str]:
    """The same of names that are spelt alike, five at most."""
    every = [other for names in known_names().values() for other in names]
    close = dict.fromkeys(difflib.get_close_matches(name, every, n=3, cutoff=0.75))
    return [spec for other in close for spec in specs_named(other)][:5]
