"""Patches of library functions: one registry, whether a patch serves for a function, and how they are put in while a module is captured, for the capturing thread
only.

A patch replaces the function's code object, so it does not matter under which names the function was imported. It must
compute what the function computes, for any sizes and data, without a Python decision on either.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

from fx2onnx.base.code_patch import CodePatch, answers_for_caller, put_name
from fx2onnx.base.errors import InternalError
from fx2onnx.base.source import place_of

RENAMED: Mapping[str, Mapping[str, str]] = {"transformers": {"past_key_values": "cache", "cache_params": "cache"}}
"""Parameters that a release gave another name wherever they are, and that name, which patches use, by library."""

Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
"""The arguments by position, and by name."""

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_PLAIN = (bool, int, float, str)


class Unfit(Exception):
    """The function, or a call of it, is another than the patch is written for; says how."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The way in which a call of the function becomes a call of the patch."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The patch's names of the function's parameters that have others."""
    by_name: bool = False
    """True if the two take different parameters, so that arguments are passed by name."""
    positional: Sequence[str] = ()
    """The function's parameters that may be given by position, under the patch's names."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """The function's parameters that the patch does not take, and their defaults."""
    taken: frozenset[str] | None = None
    """The patch's parameters; None: any name."""

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Raises: Unfit where it says something that the patch does not know."""
        if self.renamed:
            kwargs = {self.renamed.get(name, name): value for name, value in kwargs.items()}
        if not self.by_name:
            return args, kwargs
        if len(args) > len(self.positional):
            raise Unfit(f"it is called with {len(args)} arguments by position")
        given = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        said = [name for name, value in self.unknown.items() if name in given and not _is_same(given.pop(name), value)]
        said += [name for name in given if self.taken is not None and name not in self.taken]
        if said:
            raise Unfit(f"it is called with {', '.join(said)}")
        return (), given


def fit_of(
    compute: Callable[..., Any], function: Any, library: str, *, around: bool = False, names: Sequence[str] = ()
) -> Fit:
    """The way in which ``compute`` takes the arguments of ``function``; see ``Patch`` for ``around`` and ``names``.

    Raises: Unfit.
    """
    if function is None:
        raise Unfit("this version of the library has no such function")
    if not isinstance(function, FunctionType):
        raise Unfit(f"it is a {type(function).__name__}, no plain function")
    parameters = inspect.signature(function).parameters
    renamed = _renamed(parameters, library)
    theirs = {renamed.get(name, name): one for name, one in parameters.items()}
    missing = [name for name in names if name not in theirs]
    if missing:
        raise Unfit(f"it takes no {', '.join(missing)}")
    every = list(inspect.signature(compute).parameters.values())[int(around) :]
    own = {one.name: one for one in every if one.kind not in _REST}
    is_open = len(own) < len(every)
    renamed = {old: new for old, new in renamed.items() if new in own}
    first = dict(list(theirs.items())[: len(own)]) if around else theirs
    known = {name: one for name, one in first.items() if name in own}
    unknown = {name: one.default for name, one in theirs.items() if name not in own and one.kind not in _REST}
    # A patch around the function hands the parameters on by position.
    lacking = own.keys() - known.keys()
    is_needed = any(own[name].default is Parameter.empty for name in lacking) or (around and bool(lacking))
    if is_needed or _described(known) != _described({name: own[name] for name in own if name in known}):
        raise Unfit(_signature(parameters.values()))
    if around and is_open:
        return Fit(renamed)
    if Parameter.empty in unknown.values():
        raise Unfit(_signature(parameters.values()))
    positional = [name for name, one in theirs.items() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    return Fit(
        renamed, list(theirs) != [one.name for one in every], positional, unknown, None if is_open else frozenset(own)
    )


def arguments_of(
    function: FunctionType, library: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that ``function`` is called with, defaults included, under the names that patches use."""
    signature = signature_of(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    renamed = _renamed(signature.parameters, library)
    return {renamed.get(name, name): value for name, value in bound.arguments.items()}


signature_of: Callable[[FunctionType], inspect.Signature] = functools.lru_cache(maxsize=256)(inspect.signature)
"""The signature of a library's function, which is read once."""


def _renamed(parameters: Collection[str], library: str) -> dict[str, str]:
    return {old: new for old, new in RENAMED.get(library, {}).items() if old in parameters and new not in parameters}


def _is_same(given: Any, default: Any) -> bool:
    return given is default or (type(given) is type(default) and type(given) in _PLAIN and given == default)


def _described(parameters: Mapping[str, Parameter]) -> list[tuple[str, Any, Any]]:
    return [(name, one.kind, one.default) for name, one in parameters.items()]


def _signature(parameters: Iterable[Parameter]) -> str:
    return f"it takes {inspect.Signature([one.replace(annotation=Parameter.empty) for one in parameters])}"


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """``compute`` instead of the function ``qualname`` of ``module``, which is never imported for it."""

    module: str
    qualname: str
    compute: Callable[..., Any]
    """Takes the function's own parameters."""
    reason: str = ""
    """A sentence for the report: the data-dependent branch of the function, and what is done instead; empty for
    none."""
    around: bool = False
    """True if ``compute`` takes the function itself first. Then it may leave the function's last parameters to
    ``*args`` and ``**kwargs``."""
    names: tuple[str, ...] = ()
    """Parameters of the function that ``compute`` uses by name without taking them itself."""
    versions: str = ""
    """The versions of the library that it is meant for, as packaging writes them (``">=5,<5.30"``); "": any."""
    is_fused: bool = False
    """True if the patch is for files with a runtime's own operators only, there in the place of the function's other patch."""
    stands_in: tuple[str, ...] = ()
    """Modules that offer ``compute`` under the function's name where the package is not installed (``stand_ins``), beside ``module``;
    empty: none does."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]

    def fit(self, function: Any) -> Fit:
        """The way in which the patch takes the arguments of ``function``. Raises: Unfit."""
        return fit_of(self.compute, function, self.library, around=self.around, names=self.names)


PATCHES: dict[str, Patch] = {}
"""All that are registered, by ``"module:qualname"`` of what they replace, and ``"fused module:qualname"`` for fused files only."""


def patches(
    *targets: str,
    reason: str = "",
    around: bool = False,
    names: tuple[str, ...] = (),
    versions: str = "",
    is_fused: bool = False,
    stands_in: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """The decorated function is the patch of each target ``"module:qualname"``. Fields: see ``Patch``.

    Raises: InternalError E900 for a target that has a patch already.
    """

    def register(compute: F) -> F:
        for target in targets:
            key = f"fused {target}" if is_fused else target
            if key in PATCHES:
                raise InternalError(
                    "E900",
                    f"{target} is patched twice",
                    why=f"first at {place_of(PATCHES[key].compute)}, again at {place_of(compute)}",
                    next="remove one of them",
                )
            module, _, qualname = target.partition(":")
            PATCHES[key] = Patch(module, qualname, compute, reason, around, names, versions, is_fused, stands_in)
        return compute

    return register


@dataclass(frozen=True, slots=True)
class Applied:
    """The patches that one run applied, skipped or lacked."""

    called: dict[str, Patch] = field(default_factory=dict)
    """The patches that the run called, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Warnings, by name of the patch, for patches that the run would have called if the library were the one that they
    are for."""

    @property
    def warnings(self) -> list[str]:
        return list(self.left_out.values())


class _Thread(threading.local):
    def __init__(self) -> None:
        self.called: dict[str, Patch] = {}
        self.left_out: dict[str, str] = {}


_THREAD = _Thread()
_WHY = "its Python decides by data, or reads memory"
_CODE_PATCHES: dict[Patch, CodePatch] = {}
"""The code patch of each patch, once it was applied."""


def apply_patches(registered: Iterable[Patch]) -> Applied:
    """Until ``Changes`` end, the patches of those modules that are loaded are used by this thread."""
    applied = Applied()
    put_name(_THREAD, "called", applied.called)
    put_name(_THREAD, "left_out", applied.left_out)
    for patch in registered:
        module = sys.modules.get(patch.module)
        if module is None or not is_meant(patch):
            continue
        function = target_of(module, patch.qualname)
        code_patch = _CODE_PATCHES.get(patch)
        if code_patch is not None and code_patch.still_fits(function):
            code_patch.put_in()
            continue
        try:
            fit = patch.fit(function)
        except Unfit as change:
            if not isinstance(function, FunctionType):  # what nobody can be seen to call
                applied.left_out[patch.name] = _warning(patch, str(change))
                continue
            replacement = functools.partial(_telling, patch, str(change))
        else:
            replacement = functools.partial(_calling, patch, fit)
        code_patch = _CODE_PATCHES[patch] = CodePatch(function, replacement, patch.reason or _WHY)
        code_patch.put_in()
    return applied


def is_meant(patch: Patch) -> bool:
    """Return whether the library that is loaded is of the versions that the patch is for."""
    if not patch.versions:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(patch.versions).contains(_version(patch.library), prereleases=True)


def _version(library: str) -> str:
    return str(getattr(sys.modules.get(library), "__version__", "0"))


def target_of(module: Any, qualname: str) -> Any:
    """The object under ``qualname``, below its decorators; None where there is none."""
    target = module
    for part in qualname.split("."):
        target = getattr(target, part, None)
    return inspect.unwrap(target) if isinstance(target, FunctionType) else target


@answers_for_caller
def _calling(patch: Patch, fit: Fit, original: FunctionType) -> Callable[..., Any]:
    name = patch.name
    compute = functools.partial(patch.compute, original) if patch.around else patch.compute

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            known, named = fit.call(args, kwargs)
        except Unfit as change:
            _THREAD.left_out[name] = _warning(patch, str(change))
            return original(*args, **kwargs)
        _THREAD.called[name] = patch
        return compute(*known, **named)

    return called


@answers_for_caller
def _telling(patch: Patch, change: str, original: FunctionType) -> Callable[..., Any]:
    """The function itself, and a word that it was called."""

    def called(*args: Any, **kwargs: Any) -> Any:
        _THREAD.left_out[patch.name] = _warning(patch, change)
        return original(*args, **kwargs)

    return called


def _warning(patch: Patch, change: str) -> str:
    library = f"{patch.library} {_version(patch.library)}"
    owner = patch.compute.__module__.partition(".")[0]
    return (
        f"{owner}'s patch of {patch.name} does not fit {library} and was left out: {change}; a model that needs it may fail"
        f" or export for one size only: install a version of {patch.library} that {owner} is tested with"
        f"{' (constraints.txt)' if owner == 'fx2onnx' else ''}, or report it"
    )
