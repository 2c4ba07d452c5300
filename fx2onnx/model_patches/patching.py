"""Patches of library functions: one registry, and how they are put in while a module is captured, for the capturing thread
only.

A patch replaces the function's code object, so it does not matter under which names the function was imported. It must
compute what the function computes, for any sizes and data, without a Python decision on either.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from types import FunctionType
from typing import Any, TypeVar

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.base.errors import InternalError
from fx2onnx.base.source import place_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """``compute`` instead of the function ``qualname`` of ``module``, which is never imported for it."""

    module: str
    qualname: str
    compute: Callable[..., Any]
    """Takes the function's own parameters."""
    reason: str = ""
    """What the function decides by data, and what is done instead; said in the report, if anything."""
    around: bool = False
    """Whether ``compute`` takes the function itself first. Then it may leave the function's last parameters to ``*args``
    and ``**kwargs``."""
    names: tuple[str, ...] = ()
    """Parameters of the function that ``compute`` uses by name without taking them itself."""
    versions: str = ""
    """The versions of the library that it is meant for, as packaging writes them (``">=5,<5.30"``); "": any."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]


PATCHES: dict[str, Patch] = {}
"""All that are registered, by ``"module:qualname"`` of what they replace."""


def patches(
    *targets: str, reason: str = "", around: bool = False, names: tuple[str, ...] = (), versions: str = ""
) -> Callable[[F], F]:
    """The decorated function is the patch of each target ``"module:qualname"``. Fields: see ``Patch``.

    Raises: InternalError E900 for a target that has a patch already.
    """

    def register(compute: F) -> F:
        for target in targets:
            if target in PATCHES:
                raise InternalError(
                    "E900",
                    f"{target} is patched twice",
                    why=f"first at {place_of(PATCHES[target].compute)}, again at {place_of(compute)}",
                    next="remove one of them",
                )
            module, _, qualname = target.partition(":")
            PATCHES[target] = Patch(module, qualname, compute, reason, around, names, versions)
        return compute

    return register


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of the patches in one run."""

    called: dict[str, Patch] = field(default_factory=dict)
    """The patches that the run called, by name."""
    warnings: list[str] = field(default_factory=list)
    """A line for each patch that could not be applied, as the library is another than the patch knows."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.called: dict[str, Patch] = {}


_THREAD = _Thread()
_CODE_PATCHES: dict[Patch, CodePatch] = {}
"""How each one is put in, from when it was first."""


def apply_patches(registered: Iterable[Patch]) -> Applied:
    """Until ``Changes`` end, the patches of those modules that are loaded are used by this thread."""
    applied = Applied()
    put_name(_THREAD, "called", applied.called)
    for patch in registered:
        module = sys.modules.get(patch.module)
        if module is None or not is_meant(patch):
            continue
        function = target_of(module, patch.qualname)
        code_patch = _CODE_PATCHES.get(patch)
        if code_patch is not None and code_patch.still_fits(function):
            code_patch.put_in()
            continue
        change = change_of(patch, function)
        if change:
            applied.warnings.append(_warning(patch, change))
        else:
            code_patch = _CODE_PATCHES[patch] = CodePatch(function, functools.partial(_calling, patch))
            code_patch.put_in()
    return applied


def is_meant(patch: Patch) -> bool:
    """Whether the library that is loaded is of the versions that the patch is for."""
    if not patch.versions:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(patch.versions).contains(_version(patch.library), prereleases=True)


def _version(library: str) -> str:
    return str(getattr(sys.modules.get(library), "__version__", "0"))


def target_of(module: Any, qualname: str) -> Any:
    """What stands under ``qualname``, below its decorators; None where nothing does."""
    target = module
    for part in qualname.split("."):
        target = getattr(target, part, None)
    return inspect.unwrap(target) if isinstance(target, FunctionType) else target


@answers_for_caller
def _calling(patch: Patch, original: FunctionType) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        _THREAD.called[patch.name] = patch
        return patch.compute(original, *args, **kwargs) if patch.around else patch.compute(*args, **kwargs)

    return called


def change_of(patch: Patch, function: Any) -> str:
    """How ``function`` is another than the patch knows; "" where it is the same."""
    if function is None:
        return "the library no longer has it"
    if not isinstance(function, FunctionType):
        return f"it is a {type(function).__name__}, no plain function"
    theirs = inspect.signature(function).parameters
    missing = [name for name in patch.names if name not in theirs]
    if missing:
        return f"it takes no {', '.join(missing)}"
    if not _takes_the_same(patch, theirs):
        return f"it takes {inspect.Signature([one.replace(annotation=Parameter.empty) for one in theirs.values()])}"
    return ""


_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _takes_the_same(patch: Patch, theirs: Mapping[str, Parameter]) -> bool:
    own = list(inspect.signature(patch.compute).parameters.values())[int(patch.around) :]
    taken = [(one.name, one.kind, one.default) for one in own]
    known = [(one.name, one.kind, one.default) for one in theirs.values()]
    if patch.around and any(one.kind in _REST for one in own):
        named = [one for one in taken if one[1] not in _REST]
        return known[: len(named)] == named
    return taken == known


def _warning(patch: Patch, change: str) -> str:
    library = f"{patch.library} {_version(patch.library)}"
    owner = patch.compute.__module__.partition(".")[0]
    return (
        f"{owner}'s patch of {patch.name} does not fit {library} and was left out: {change}; a model that needs it may fail"
        f" or export for one size only: install a version of {patch.library} that {owner} is tested with"
        f"{' (constraints.txt)' if owner == 'fx2onnx' else ''}, or report it"
    )
