"""NumPy kernels, one file a family. Importing a family fills the registry."""

from __future__ import annotations

import importlib
import pkgutil


def load(*families: str) -> None:
    """Import these families once."""
    for family in families:
        importlib.import_module(f"{__name__}.{family}")


def load_all() -> None:
    """Import every family once."""
    load(*(module.name for module in pkgutil.iter_modules(__path__)))
