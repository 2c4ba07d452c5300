"""Caches for the life of the process: bounded ones, and results that functions keep between calls (``functools.lru_cache``): a run without numbers keeps its own."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from fx2onnx.base.code_patch import CodePatch, answers_for_caller, content_of, put_name

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict of at most ``most`` entries, filled by ``kept[key] = value`` only; what it forgets is computed again."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)


def of_class(function: Callable[[type], V]) -> Callable[[type], V]:
    """Keep what ``function`` says of each class, as long as the class is there."""
    known: weakref.WeakKeyDictionary[type, V] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def kept(kind: type) -> V:
        try:
            return known[kind]
        except KeyError:
            found = known[kind] = function(kind)
            return found

    return kept


class _Missing(Exception):
    """Raised by a function that may only return a kept result and has none."""


class _Thread(threading.local):
    kept: dict[int, Any] | None = None
    """The caches of this thread's run, by the id of the one that each stands for; None outside."""
    looks = False
    """True while a cache may only return what it holds."""


_THREAD = _Thread()


class _Place(NamedTuple):
    """The place of a cache: under a name of a class or of a file's globals, or in a cell."""

    holder: Any
    name: str
    value: Any
    cache: Any


def keep_apart(kinds: Iterable[type], functions: Iterable[Any] = ()) -> None:
    """Until ``Changes`` end and for this thread, functions of ``kinds``, and of the files that define them or
    ``functions``, keep what they compute apart; what they kept before is still used.
    """
    bases = {base for kind in kinds for base in kind.__mro__}
    near = [place for base in bases for place in _places_near(base)]
    for function in functions:
        space = getattr(inspect.unwrap(function), "__globals__", {})
        near += _places_in(space, list(space))
    places = {(id(place.holder), place.name): place for place in near}.values()
    put_name(_THREAD, "kept", {})
    for place in places:
        if content_of(place.holder, place.name) is place.value:
            _looked_into(place.cache)
            chosen = _chosen(place.cache)
            is_method = isinstance(place.value, classmethod | staticmethod)
            put_name(place.holder, place.name, type(place.value)(chosen) if is_method else chosen, _WHY)


_WHY = "what it keeps of a capture is for that capture alone"


def _made_once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep the result of ``make`` for a cache in that cache, so that the two go together."""

    def kept_by(cache: Any) -> Any:
        kept, name = vars(cache), f"_fx2onnx{make.__name__}"
        if name not in kept:
            kept[name] = make(cache)
        return kept[name]

    return kept_by


@_made_once
@answers_for_caller
def _chosen(cache: Any) -> Any:
    """The cache, which in a thread that runs without numbers keeps results of its own."""

    @functools.wraps(cache)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if _THREAD.kept is None:
            return cache(*args, **kwargs)
        own = _THREAD.kept.get(id(cache))
        if own is None:
            own = _THREAD.kept[id(cache)] = functools.lru_cache(**cache.cache_parameters())(_computing(cache))
        return own(*args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(chosen, name, getattr(cache, name))
    return chosen


@answers_for_caller
def _computing(cache: Any) -> Callable[..., Any]:
    """A function that returns the result that the cache holds, else computes it, which the cache does not see."""
    code_patch = _looked_into(cache)
    function = cache.__wrapped__ if code_patch is None else code_patch.original

    def computed(*args: Any, **kwargs: Any) -> Any:
        if code_patch is not None:
            _THREAD.looks = True
            try:
                return cache(*args, **kwargs)
            except _Missing:
                pass
            finally:
                _THREAD.looks = False
        return function(*args, **kwargs)

    return computed


def _looked_into(cache: Any) -> CodePatch | None:
    """Makes the cache's function raise where it may only return what is kept. None where that cannot be."""
    code_patch = _code_patch(cache) if isinstance(cache.__wrapped__, FunctionType) else None
    is_in = code_patch is not None and code_patch.still_fits(cache.__wrapped__) and code_patch.put_in()
    return code_patch if is_in else None


@_made_once
def _code_patch(cache: Any) -> CodePatch:
    def looked_into(original: FunctionType) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if _THREAD.looks:
                raise _Missing
            return original(*args, **kwargs)

        return called

    return CodePatch(cache.__wrapped__, looked_into, _WHY)


_NAMES: weakref.WeakKeyDictionary[type, tuple[tuple[str, ...], tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""Under which names of a class and of its file caches are. No cache is held: a function holds what it reads."""


def _places_near(kind: type) -> list[_Place]:
    """The caches in a class and in the file that defines it."""
    if kind.__module__.split(".")[0] in ("torch", "builtins", "fx2onnx"):
        return []
    spaces = vars(kind), vars(sys.modules.get(kind.__module__, sys))
    names = _NAMES.get(kind)
    if names is None:
        own, others = (tuple(name for name in list(space) if any(_places_in(space, [name]))) for space in spaces)
        _NAMES[kind] = names = own, others
    return [*_places_in(spaces[0], names[0], kind), *_places_in(spaces[1], names[1])]


def _places_in(space: Any, names: Iterable[str], holder: Any = None) -> Iterator[_Place]:
    for name in names:
        value = space.get(name)
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(plain, functools._lru_cache_wrapper):
            yield _Place(space if holder is None else holder, name, value, plain)
        for cell in (plain.__closure__ or ()) if isinstance(plain, FunctionType) else ():
            kept = content_of(cell, "")
            if isinstance(kept, functools._lru_cache_wrapper):
                yield _Place(cell, "", kept, kept)
