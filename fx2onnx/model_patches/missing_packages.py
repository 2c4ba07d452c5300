"""Stand-ins for packages of GPU kernels: modules with the functions that patches compute, importable where the package is not installed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import GPU_PACKAGES
from fx2onnx.base.stack_frames import public
from fx2onnx.model_patches.patching import PATCHES, Patch

Object = TypeVar("Object", bound=Callable[..., Any])

_OBJECTS: dict[str, dict[str, Any]] = {}
"""Classes and functions of stand-ins that need no patch where the package is installed, by module and name."""


def offered_by(*modules: str) -> Callable[[Object], Object]:
    """The decorated class or function is in the stand-ins for ``modules``."""

    def register(offered: Object) -> Object:
        for module in modules:
            _OBJECTS.setdefault(module, {})[offered.__name__] = offered
        return offered

    return register


@public
@contextlib.contextmanager
def stand_ins(*packages: str) -> Iterator[None]:
    """Let code import packages of GPU kernels that are not installed: ``flash_attn``, ``mamba_ssm`` and others (docs/gpu_kernels.md).

    Each function computes in PyTorch what the kernel computes, on any device. Modules that are imported inside keep the functions
    when the block ends; the imports themselves are undone.

    packages: those to stand in for, even if they are installed; default: all that are not. Raises: ``UserError`` E601.
    """
    names = _offered()
    known = {module.partition(".")[0] for module in names}
    if unknown := [package for package in packages if package not in known]:
        raise UserError(
            "E601", f"there is no stand-in for {', '.join(unknown)}", next=f"known: {', '.join(sorted(known))}"
        )
    wanted = set(packages) or {name for name in known if name not in sys.modules and not importlib.util.find_spec(name)}
    finder = _Finder({module: held for module, held in names.items() if module.partition(".")[0] in wanted})
    installed = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in wanted}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in wanted]:
            del sys.modules[name]
        sys.modules.update(installed)


def _offered() -> dict[str, dict[str, Any]]:
    """The functions and classes of all stand-ins, by module and name."""
    importlib.import_module("fx2onnx.model_patches.kernels")
    plugins.import_all(plugins.PATCHES)
    found: dict[str, dict[str, Any]] = {module: dict(held) for module, held in _OBJECTS.items()}
    for patch in PATCHES.values():
        if patch.stands_in:
            function = _own(patch)
            for module in (patch.module, *patch.stands_in):
                found.setdefault(module, {})[patch.qualname] = function
    for module in list(found):
        while module := module.rpartition(".")[0]:
            found.setdefault(module, {})
    return found


@functools.cache
def _own(patch: Patch) -> FunctionType:
    """A copy of the patch's function, which the patch may replace without replacing ``compute``."""
    function = cast(FunctionType, patch.compute)
    name = patch.qualname
    made = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__, made.__module__ = function.__kwdefaults__, function.__doc__, patch.module
    return made


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the packages that it stands in for."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        return ModuleSpec(fullname, self, origin="a stand-in of fx2onnx", is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in GPU_PACKAGES:
            vars(module)["__version__"] = GPU_PACKAGES[name]
        for child in self._modules:
            if child.rpartition(".")[0] == name:
                importlib.import_module(child)
        vars(module).update(
            self._modules[name]
        )  # behind the children: torch_scatter.scatter is a function and a module
