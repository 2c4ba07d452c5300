"""Tensors and numbers that modules and objects hold, by name: what a run changed of them, and other tensors in their places.

A name is the path of attributes, keys and positions: ``lstm.h``, ``cache.0``, ``state.items.0``; a buffer has that of its
``state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fx2onnx.capture.python.advancing import is_put_back, is_same_state, stand_in, state_of, users_own
from fx2onnx.capture.python.held import (
    ADVANCING,
    ARRAY,
    BUFFERS,
    CELL,
    COMPARED,
    DICT,
    LIST,
    MISSING,
    NAMESPACE,
    OBJECT,
    PARAMETERS,
    PLAIN,
    REGISTRIES,
    TENSOR,
    TUPLE,
    Snapshot,
    Value,
    base_of,
    content_of_cell,
    differing,
    entries_of,
    is_same,
    is_same_array,
    kind_of,
    parts_of,
    parts_of_view,
    put_name_into,
)
from fx2onnx.capture.python.stand_ins import SYMBOLIC

NUMBERS = (bool, int, float, str)
_SILENT = frozenset({BUFFERS, PARAMETERS, "forward"})
"""Keys that are no part of a name: registries, and the function that is exported as a module."""
_LOOKED_INTO = (*COMPARED, TUPLE)
_CONSTANTS = {"cell": "function", "dict": "module", "builtin_function_or_method": "method"}
"""Words for classes of holders."""


class Change(NamedTuple):
    """A place whose content differs; ``MISSING`` where there was, or is, none."""

    name: str
    before: Value
    after: Value
    kind: str
    """``buffer``, ``parameter`` or ``attribute``."""


class Names:
    """The places of a snapshot by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._entries = snapshot.entries
        self._scripted = snapshot.scripted
        self._before = {id(entry.holder): entry.content for entry in self._entries}

    def path(self, place: int) -> tuple[object, ...]:
        keys: list[object] = []
        while place >= 0:
            entry = self._entries[place]
            keys.append(entry.key)
            place = entry.parent
        return tuple(reversed(keys))

    def changes(self) -> list[Change]:
        """Tensors that are others, plain numbers and words that differ, and numbers of the capture, in the order in which they
        were found.
        """
        found: dict[str, Change] = {}
        for place, entry in enumerate(self._entries):
            if entry.kind in (ADVANCING, ARRAY):
                if not self._is_unused(place):
                    name = name_of(self.path(place))
                    found.setdefault(name, Change(name, MISSING, MISSING, _kind(self.path(place))))
            elif entry.kind in COMPARED:
                others = list(differing(entry))
                if others and entry.kind != CELL and self._now(place) is not entry.holder:
                    continue  # nobody holds it any more
                for key, before, after in others:
                    path = (*self.path(place), key)
                    if _kind(path) == "module" or (isinstance(key, str) and (key in REGISTRIES or key == "training")):
                        continue
                    for change in self._compared(path, before, after):
                        found.setdefault(change.name, change)
        for name, scripted, attributes in self._scripted:
            for key, before in attributes.items():
                after = scripted.getattr(key)
                if not is_same(after, before):
                    for change in self._compared((name, key), before, after):
                        found.setdefault(change.name, change)
        return list(found.values())

    def _is_unused(self, place: int) -> bool:
        """Return whether an array has its elements, and what goes on as it is used the state that it had."""
        entry = self._entries[place]
        if entry.kind == ARRAY:
            return is_same_array(entry.holder, entry.content)
        return is_same_state(state_of(self._now(place)), entry.content)

    def _compared(self, path: tuple[object, ...], before: Value, after: Value) -> Iterator[Change]:
        kind, name = _kind(path), name_of(path)
        old, new = dict(self._leaves(name, before, then=True)), dict(self._leaves(name, after, then=False))
        for key in dict.fromkeys((*old, *new)):
            one, two = old.get(key, MISSING), new.get(key, MISSING)
            if one is two:
                continue
            are_numbers = type(one) in NUMBERS and type(two) in NUMBERS
            is_tensor = isinstance(one, torch.Tensor) or isinstance(two, torch.Tensor)
            if is_tensor or type(two) in SYMBOLIC or (are_numbers and one != two):
                yield Change(key, one, two, kind)

    def _leaves(self, name: str, value: Value, *, then: bool) -> Iterator[tuple[str, Value]]:
        """Tensors and numbers in a value, as it is or as it was."""
        pending, seen = [(name, value)], set[int]()
        while pending:
            name, value = pending.pop()
            kind = kind_of(type(value))
            if kind in (PLAIN, TENSOR, ADVANCING):
                yield name, value
            elif kind in _LOOKED_INTO and kind != CELL and id(value) not in seen:
                seen.add(id(value))
                for entry in entries_of(value, kind, -1, ""):
                    content = self._before.get(id(entry.holder), entry.content) if then else entry.content
                    inner = [(f"{name}.{key}", part) for key, part in parts_of(entry.kind, content)]
                    pending += reversed(inner)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The present tensors in the places that were noted."""
        found: dict[str, torch.Tensor] = {}
        for name, (place, key) in self.places().items():
            found[name] = dict(parts_of(self._entries[place].kind, self._entries[place].content))[key]
        for name, _, attributes in self._scripted:
            for key, part in attributes.items():
                if isinstance(part, torch.Tensor):
                    found.setdefault(name_of((name, key)), part)
        return found

    def places(self) -> dict[str, tuple[int, object]]:
        """The entry and the key of each tensor."""
        found: dict[str, tuple[int, object]] = {}
        for place, entry in enumerate(self._entries):
            if entry.kind in _LOOKED_INTO:
                for key, part in parts_of(entry.kind, entry.content):
                    if isinstance(part, torch.Tensor):
                        found.setdefault(name_of((*self.path(place), key)), (place, key))
        return found

    def in_objects(self) -> dict[str, tuple[str, tuple[object, ...], torch.Tensor]]:
        """The tensors in objects by name: the holder, the keys that lead to the tensor, and the tensor. Those of
        modules and functions are constants.
        """
        found = {}
        for name, (place, key) in self.places().items():
            root, *keys = (*self.path(place), key)
            if self._constant(place) is None:
                tensor = dict(parts_of(self._entries[place].kind, self._entries[place].content))[key]
                found[name] = str(root), tuple(keys), tensor
        return found

    def constants(self) -> dict[str, str]:
        """The class, by name, of each array of NumPy, and of each module, function and ``functools.partial`` that has tensors."""
        arrays = [at for at, entry in enumerate(self._entries) if entry.kind == ARRAY]
        found = [*arrays, *(self._constant(place) for place, _ in self.places().values())]
        kinds = {at: type(self._entries[at].holder).__name__ for at in found if at is not None}
        return {name_of(self.path(at)): _CONSTANTS.get(kind, kind) for at, kind in kinds.items()}

    def _constant(self, place: int) -> int | None:
        """The entry of a module whose weights lead to a tensor, of a function, or of what cannot be made anew with another one."""
        found, is_weight = None, self._entries[place].key in (PARAMETERS, BUFFERS)
        while place >= 0:
            entry = self._entries[place]
            if entry.kind == CELL:
                return place
            if entry.kind == TUPLE and entry.holder and not isinstance(entry.holder, tuple):
                found, is_weight = place, False  # of a method in a ``functools.partial``, the latter
            if is_weight and entry.kind == DICT and PARAMETERS in entry.content:
                found = place  # of modules inside each other, the outermost
            place = entry.parent
        return found

    def stand_in_for_iterators(self) -> None:
        """Copies in the places of iterators, for the objects themselves to stay where they are."""
        for entry in self._entries:
            if entry.kind == ADVANCING and entry.parent >= 0 and (other := stand_in(entry.holder)) is not None:
                self._put(entry.parent, entry.key, other)

    def lasting(self) -> list[str]:
        """The changes that no run puts back, each with its class."""
        return [
            f"{name_of(self.path(place))} ({type(users_own(entry.holder)).__name__})"
            for place, entry in enumerate(self._entries)
            if entry.kind == ADVANCING and not (is_put_back(entry.holder) and entry.parent >= 0)
        ]

    def put(self, values: dict[str, torch.Tensor]) -> None:
        """Put tensors into the places of these names."""
        places = self.places() if values else {}
        for name, value in values.items():
            if name in places:
                self._put(*places[name], value)
            else:
                for owner, scripted, attributes in self._scripted:
                    for key in attributes:
                        if name_of((owner, key)) == name:
                            scripted.setattr(key, value)

    def _put(self, place: int, key: object, value: Value) -> None:
        entry = self._entries[place]
        if entry.kind == DICT:
            base_of(entry.holder).__setitem__(entry.holder, key, value)
        elif entry.kind == NAMESPACE:
            put_name_into(entry.holder, str(key), value)
        elif entry.kind == LIST:
            entry.holder[key] = value
        elif entry.kind == OBJECT:
            object.__setattr__(entry.holder, str(key), value)
        elif entry.kind == CELL:
            entry.holder.cell_contents = value
        elif entry.kind == TUPLE:
            parts = list(self._now(place))
            parts[key] = value  # type: ignore[call-overload]
            kind = type(entry.holder)
            made = kind(parts) if kind is tuple else kind._make(parts)
            self._put(entry.parent, entry.key, made)

    def now(self, names: list[str]) -> list[Value]:
        """The present values in the places of these names; ``MISSING`` where they are no more."""
        places, found = self.places(), []
        for name in names:
            if name in places:
                place, key = places[name]
                found.append(_part(self._now(place), key))
            else:
                found.append(self._new(name))
        return found

    def _new(self, name: str) -> Value:
        return next((change.after for change in self.changes() if change.name == name), MISSING)

    def _now(self, place: int) -> Value:
        """The container that is in the place of an entry's now."""
        entry = self._entries[place]
        if entry.kind == CELL:
            return {entry.content[0]: content_of_cell(entry.holder)}
        if entry.parent < 0:
            return entry.holder
        value = _part(self._now(entry.parent), entry.key)
        if entry.kind == DICT and not isinstance(value, dict):
            return getattr(value, "__dict__", MISSING)
        return value


def name_of(path: tuple[object, ...]) -> str:
    return ".".join(str(key) for key in path if not (isinstance(key, str) and (key in _SILENT or not key)))


def _kind(path: tuple[object, ...]) -> str:
    if PARAMETERS in path:
        return "parameter"
    if BUFFERS in path:
        return "buffer"
    return "module" if any(key in REGISTRIES for key in path if isinstance(key, str)) else "attribute"


def _part(container: Value, key: Value) -> Value:
    if isinstance(container, dict):
        return base_of(container).get(container, key, MISSING)
    try:
        return parts_of_view(container)[key] if isinstance(key, int) else getattr(container, str(key), MISSING)
    except (IndexError, TypeError):
        return MISSING
