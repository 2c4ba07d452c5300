"""Import ``onnx_ir`` without ``sympy``, which it has for arithmetic on names of sizes alone: half of what the runner needs to
start.

Importing this file is enough. ``onnx_ir`` gets a module in the place of ``sympy`` that imports the real one when something of
it is used; nobody else sees that module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_SYMPY = "sympy"


class _LateFunction:
    """A function of ``sympy`` that is imported when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any) -> Any:
        return getattr(importlib.import_module(_SYMPY), self._name)(*args)


class _Late(ModuleType):
    """The stand-in for ``sympy`` while ``onnx_ir`` is imported: it gets functions for later."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what importing asks of a module
            raise AttributeError(name)
        if sys.modules.get(_SYMPY) is self:
            return _LateFunction(name)
        return getattr(importlib.import_module(_SYMPY), name)


def _import_onnx_ir() -> None:
    if "onnx_ir" in sys.modules or _SYMPY in sys.modules or importlib.util.find_spec(_SYMPY) is None:
        return
    late = sys.modules[_SYMPY] = _Late(_SYMPY)
    try:
        importlib.import_module("onnx_ir")
    except Exception:  # a version of it that does more with sympy than to name its functions
        for name in [name for name in sys.modules if name.partition(".")[0] == "onnx_ir"]:
            del sys.modules[name]
    finally:
        if sys.modules.get(_SYMPY) is late:
            del sys.modules[_SYMPY]


_import_onnx_ir()
