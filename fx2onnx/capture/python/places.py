"""Variables, attributes and elements by where they are, which get another value as if Python had given it."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

from fx2onnx.capture.python.held import CELL, DICT, LIST, MISSING, OBJECT, Value, base_of

VARIABLE = -1
"""The kind of a variable of a function; others are as of ``held.Entry``."""


class Place(NamedTuple):
    """A variable, attribute or element that a turn changes."""

    kind: int
    """The kind as in ``held.Entry``; -1 for a variable."""
    holder: Value
    key: Value

    @property
    def identity(self) -> tuple[int, int, object]:
        """Equal for the same place."""
        return self.kind, id(self.holder), self.key

    @property
    def name(self) -> str:
        """The name of the place in errors."""
        return str(self.key) if isinstance(self.key, str) else f"element {self.key} of a {type(self.holder).__name__}"


def put(place: Place, value: object) -> None:
    """Give a variable, attribute or element a value."""
    if place.kind == VARIABLE:
        set_variables(place.holder, {**place.holder.f_locals, place.key: value})
    elif place.kind == DICT:
        base_of(place.holder).__setitem__(place.holder, place.key, value)
    elif place.kind == LIST:
        (list if isinstance(place.holder, list) else deque).__setitem__(place.holder, place.key, value)
    elif place.kind == OBJECT:
        object.__setattr__(place.holder, place.key, value)
    else:
        place.holder.cell_contents = value


def value_at(place: Place) -> Value:
    """The value that is at ``place`` now."""
    if place.kind == VARIABLE:
        return place.holder.f_locals.get(place.key, MISSING)
    if place.kind == OBJECT:
        return getattr(place.holder, place.key, MISSING)
    if place.kind == CELL:
        return place.holder.cell_contents
    if place.kind == DICT:
        return base_of(place.holder).get(place.holder, place.key, MISSING)
    return place.holder[place.key]


def set_variables(frame: FrameType, values: Mapping[str, object]) -> None:
    """The variables of a function that has called us become these, and no others."""
    space = frame.f_locals
    for name in [name for name in space if name not in values]:
        if sys.version_info < (3, 13):  # later ones write through, and delete nothing
            del space[name]
    for name, value in values.items():
        if space.get(name, MISSING) is not value:
            space[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))
