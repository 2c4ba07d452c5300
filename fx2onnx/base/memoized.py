"""Results that a class's functions keep between calls (``functools.lru_cache``), forgotten after a run without numbers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any


@contextlib.contextmanager
def forgotten(kinds: Iterable[type], functions: Iterable[Any] = ()) -> Iterator[None]:
    """What is kept inside by functions of ``kinds``, or of the files that define them or ``functions``, is not afterwards.

    A cache that a call inside adds to is emptied; its other results are computed anew when they are next asked for.
    """
    caches = {id(cache): cache for kind in kinds for cache in _caches_near(kind)}
    for function in functions:
        space = getattr(inspect.unwrap(function), "__globals__", {})
        caches |= {id(cache): cache for cache in _caches_in(space.values())}
    before = [(cache, cache.cache_info().misses) for cache in caches.values()]
    try:
        yield
    finally:
        for cache, misses in before:
            if cache.cache_info().misses != misses:
                cache.cache_clear()


_NEAR: weakref.WeakKeyDictionary[type, tuple[weakref.ref[Any], ...]] = weakref.WeakKeyDictionary()
"""The caches of a class, not held: a function holds what its body reads from around it."""


def _caches_near(kind: type) -> Iterator[Any]:
    if kind not in _NEAR:
        found: list[Any] = []
        for base in kind.__mro__:
            if base.__module__.split(".")[0] not in ("torch", "builtins", "fx2onnx"):
                found += _caches_in(vars(base).values())
                found += _caches_in(vars(sys.modules.get(base.__module__, sys)).values())
        _NEAR[kind] = tuple(map(weakref.ref, found))
    yield from filter(None, (cache() for cache in _NEAR[kind]))


def _caches_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in list(values):
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        cells = (plain.__closure__ or ()) if isinstance(plain, FunctionType) else ()
        for candidate in (plain, *(_content(cell) for cell in cells)):
            if isinstance(candidate, functools._lru_cache_wrapper):
                yield candidate


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a cell that was not filled yet
        return None
