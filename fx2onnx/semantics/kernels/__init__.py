"""NumPy kernels, one file a family. ``load_all`` imports them, which fills the registry."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every family once."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
