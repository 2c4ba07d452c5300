"""Signatures of a library's functions: whether a patch serves for one, and how calls of the function become calls of the patch.

Releases rename parameters, add some that have a default and take some away. Such a function computes what it did for every call
that says nothing of what the patch does not know, so the patch serves for these calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from types import FunctionType
from typing import Any, TypeAlias

RENAMED: Mapping[str, Mapping[str, str]] = {"transformers": {"past_key_values": "cache", "cache_params": "cache"}}
"""By library, parameters that a release gave another name wherever they are, and that name, which patches use."""

Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
"""The arguments by position, and by name."""

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_PLAIN = (bool, int, float, str)


class Unfit(Exception):
    """The function, or a call of it, is another than the patch is written for; says how."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a call of the function becomes one of the patch."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """The patch's names of the function's parameters that have others."""
    by_name: bool = False
    """Whether they take different parameters."""
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
    """How ``compute`` serves for ``function``; see ``Patch`` for ``around`` and ``names``. Raises: Unfit."""
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
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    renamed = _renamed(signature.parameters, library)
    return {renamed.get(name, name): value for name, value in bound.arguments.items()}


def _renamed(parameters: Collection[str], library: str) -> dict[str, str]:
    return {old: new for old, new in RENAMED.get(library, {}).items() if old in parameters and new not in parameters}


def _is_same(given: Any, default: Any) -> bool:
    return given is default or (type(given) is type(default) and type(given) in _PLAIN and given == default)


def _described(parameters: Mapping[str, Parameter]) -> list[tuple[str, Any, Any]]:
    return [(name, one.kind, one.default) for name, one in parameters.items()]


def _signature(parameters: Iterable[Parameter]) -> str:
    return f"it takes {inspect.Signature([one.replace(annotation=Parameter.empty) for one in parameters])}"
