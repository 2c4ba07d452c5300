"""Finds what holds a capture's tensors after it, by the garbage collector's account of who refers to whom, and takes them out."""

from __future__ import annotations

import functools
import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MappingProxyType, ModuleType
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch

MOST_LEVELS = 4
"""Containers inside each other: a tensor in a tuple in a dict in an object."""
_PACKAGE = f"{__name__.partition('.')[0]}."
MOST_OBJECTS = 20_000
_CACHE = functools._lru_cache_wrapper
_PASSED_ON = (tuple, frozenset)
_DICTS = (dict, OrderedDict, defaultdict)
"""Containers whose entries are taken out one by one; what cannot be changed, a tuple, goes as a whole."""
_OPAQUE = (
    str, bytes, int, float, type(None), ModuleType, FunctionType, BuiltinFunctionType, torch.Tensor, np.ndarray,
    np.generic,
)  # fmt: skip
"""Types whose objects hold no tensors, or are no namespace of the user's."""


def taken_out(
    released: Sequence[ReferenceType[torch.Tensor]],
    before: Mapping[int, tuple[object, dict[str, Any]]],
    returned: Sequence[object] = (),
) -> list[str]:
    """Take what is left of the tensors ``released`` out of dicts, lists, sets, names, attributes and closures.

    ``before``: what namespaces had, by their id; ``returned``: objects that may hold them.

    Returns a line for each name or attribute that was given another value; elements of containers are gone without one.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # the collector tells nothing of what is frozen
    try:
        gc.collect(0)  # cycles of forward's own that nobody else knows
        kept = [tensor for tensor in (each() for each in released) if tensor is not None]
        return _taken_out(kept, before, _parts_of(returned)) if kept else []
    finally:
        if was_frozen:
            gc.freeze()


def taken_out_of_names(
    released: Sequence[ReferenceType[torch.Tensor]],
    before: Mapping[int, tuple[object, dict[str, Any]]],
    returned: Sequence[object] = (),
) -> list[str]:
    """Take out like ``taken_out``, but only what the names of ``before`` lead to, and what functions with a cache keep, which takes no
    search of all objects."""
    ids = {id(tensor) for tensor in (each() for each in released) if tensor is not None}
    notes: list[str] = []
    spared = _parts_of(returned)
    for owner, _ in before.values():
        for holder in _holders(owner, ids):
            if id(holder) not in spared:
                notes += _cleared(holder, ids, before)
    for cache in _caches_of_modules():
        if _holds(_values(cache, 0), ids):
            cache.cache_clear()
    return notes


def _caches_of_modules() -> list[Any]:
    """The functions with a cache that are names of Python modules, without those of this package."""
    spaces = [[*vars(module).values()] for module in [*sys.modules.values()] if isinstance(module, ModuleType)]
    having = [space for space in spaces if _CACHE in map(type, space)]  # names may get caches at any time
    return [each for space in having for each in space if type(each) is _CACHE and not _is_ours(each)]


def _parts_of(returned: Iterable[object]) -> set[int]:
    """The ids of the objects, of their attributes, and of the variables that functions take along."""
    found: set[int] = set()
    for each in returned:
        found |= {id(each), id(getattr(each, "__dict__", None)), *map(id, getattr(each, "__closure__", None) or ())}
    return found


def _holders(first: object, ids: set[int]) -> list[object]:
    """The containers, classes and objects behind a namespace that hold what has one of the ids. Tuples of such are added to these."""
    found: list[object] = []
    seen: set[int] = set()
    pending: list[tuple[object, int]] = [(first, 0)]
    while pending and len(seen) < MOST_OBJECTS:
        holder, level = pending.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        values = _values(holder, level)
        ids.update(id(each) for each in values if isinstance(each, _PASSED_ON) and _holds(each, ids))
        if any(id(each) in ids for each in values):
            found.append(holder)
        if level < MOST_LEVELS:
            pending += [(each, level + 1) for each in values if not isinstance(each, _OPAQUE)]
    return found


def _values(holder: object, level: int) -> list[object]:
    if type(holder) is _CACHE:
        parts = gc.get_referents(holder)
        return [*parts, *(entry for part in parts if type(part) is dict for entry in part.values())]
    if type(holder) in _DICTS:
        return list(holder.values())  # type: ignore[attr-defined]
    if type(holder) in (list, deque, set, tuple, frozenset):
        return list(holder)  # type: ignore[call-overload, no-any-return]
    if level > 2 or isinstance(holder, dict):  # one that loads its values when asked
        return []
    try:
        space = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return []
    return list(space.values()) if isinstance(space, dict | MappingProxyType) else []


def _holds(parts: Iterable[object], ids: Set[int]) -> bool:
    return any(id(part) in ids or (isinstance(part, _PASSED_ON) and _holds(part, ids)) for part in parts)


def _taken_out(
    kept: Sequence[torch.Tensor], before: Mapping[int, tuple[object, dict[str, Any]]], spared: Set[int]
) -> list[str]:
    notes: list[str] = []
    wanted: list[object] = list(kept)
    running = _running()
    for _ in range(MOST_LEVELS):
        if not wanted:
            break
        ids = {id(each) for each in wanted}
        holders = _changeable(gc.get_referrers(*wanted), wanted, kept)
        wanted = []
        for holder in holders:
            if id(holder) in spared or _is_of_run(holder, running):
                continue
            if type(holder) in _PASSED_ON:
                wanted.append(holder)
            else:
                notes += _cleared(holder, ids, before)
    return notes


def _changeable(found: list[object], *own: object) -> list[object]:
    """The found objects without frames, which would make cycles with variables that hold them, and without our own."""
    return [each for each in found if not isinstance(each, FrameType) and all(each is not one for one in (found, *own))]


def _is_of_run(holder: object, running: Set[int]) -> bool:
    """Return whether an object of this package has it, or a function that has ended, in a traceback, as a variable: it is gone
    with these.
    """
    if _is_ours(holder):
        return True
    if type(holder) not in (list, dict, tuple, set, deque, CellType):
        return False
    for each in gc.get_referrers(holder):
        if id(each) in running:
            continue
        if isinstance(each, FrameType) or _is_ours(each):
            return True
        if isinstance(each, tuple | dict) and any(_is_ours(one) for one in gc.get_referrers(each)):
            return True  # of the cells of a function, or the attributes of an object
    return False


def _is_ours(holder: object) -> bool:
    module = holder.__module__ if isinstance(holder, FunctionType | _CACHE) else type(holder).__module__
    return str(module).startswith(_PACKAGE)


def _running() -> set[int]:
    """The ids of the frames of this thread."""
    found, frame = set(), sys._getframe(1)
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _cleared(holder: object, ids: set[int], before: Mapping[int, tuple[object, dict[str, Any]]]) -> list[str]:
    if isinstance(holder, dict) and type(holder) not in _DICTS:
        for key in [key for key, value in dict.items(holder) if id(value) in ids and _is_hashable(key)]:
            dict.pop(holder, key)
    elif isinstance(holder, dict):
        owner = _owner(holder)
        if owner is not None:
            return _put_back(owner, holder, ids, before)
        left = [(key, value) for key, value in holder.items() if id(value) not in ids and _is_hashable(key)]
        holder.clear()
        holder.update(left)
    elif type(holder) in (list, deque):
        _take_out_of_list(holder, ids)
    elif isinstance(holder, set):
        holder.difference_update([each for each in holder if id(each) in ids])
    elif type(holder) is _CACHE:
        holder.cache_clear()
    elif isinstance(holder, CellType):
        holder.cell_contents = None
        return ["forward keeps a tensor in a variable of a function outside of it, which is None again"]
    elif isinstance(holder, type) or isinstance(getattr(holder, "__dict__", None), dict):
        return _put_back(holder, vars(holder), ids, before)
    return []


def _is_hashable(key: object) -> bool:
    """Return False for a symbolic size of the capture, alone or in a tuple, which no one can look up afterwards."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _take_out_of_list(holder: Any, ids: set[int]) -> None:
    left = [each for each in holder if id(each) not in ids]
    holder.clear()
    holder.extend(left)


def _owner(space: dict[Any, Any]) -> object:
    """The Python module, class or object whose namespace it is; None for a dict of its own."""
    module = sys.modules.get(space["__name__"]) if isinstance(space.get("__name__"), str) else None
    if module is not None and vars(module) is space:
        return module
    for each in gc.get_referrers(space):
        own = getattr(each, "__dict__", None) if not isinstance(each, FrameType) else None
        if own is space or (isinstance(each, type) and any(part is space for part in gc.get_referents(own))):
            return each
    return None


def _put_back(
    owner: object, space: Mapping[str, Any], ids: set[int], before: Mapping[int, tuple[object, dict[str, Any]]]
) -> list[str]:
    known = before.get(id(owner if isinstance(owner, type) else space), (None, {}))[1]
    notes = []
    for name in [name for name, value in space.items() if id(value) in ids]:
        had_none = known and name not in known
        is_of_class = not isinstance(owner, type | ModuleType) and hasattr(type(owner), name)
        if had_none or is_of_class:
            delattr(owner, name)
        else:
            setattr(owner, name, known.get(name))
        where = owner.__name__ if isinstance(owner, type | ModuleType) else type(owner).__name__
        notes.append(
            f"forward keeps a tensor in {where}.{name}, outside of the module: the file computes it anew at each run"
        )
    return notes
