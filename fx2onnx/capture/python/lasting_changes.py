"""Whether a stretch of a run leaves anything behind that Python could see later, but for what it returns.

Modules, and lists and dicts that they and the arguments hold, are compared with what they were. Of all else each function that
the user's code runs is looked at: it gives no variable of others, and no attribute of anything but ``self``, a value.
"""

from __future__ import annotations

import dis
import os
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from operator import is_
from types import CodeType, FrameType

import numpy as np
import torch

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.bounded import Bounded
from fx2onnx.torchcompat.frames import is_user

_CONTAINERS = frozenset({dict, list, set, OrderedDict, defaultdict, deque, tuple})
_CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft"}
) | {"remove", "reverse", "setdefault", "sort", "update"}
"""Methods of lists, dicts and sets."""
_OF_OTHERS = ("STORE_GLOBAL", "DELETE_GLOBAL")
_OF_FUNCTIONS = ("STORE_DEREF", "DELETE_DEREF")
_OF_OBJECTS = ("STORE_ATTR", "DELETE_ATTR")
_OF_ELEMENTS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_MAKES = ("__init__", "__post_init__", "__new__")
_LIBRARY, _SITE = os.path.dirname(dis.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
ITSELF = "an attribute of itself"

_seen_code: Bounded[int, tuple[CodeType, str]] = Bounded(20_000)
"""By the id of the code, which is kept, what it changes."""


class Held:
    """What modules and other objects hold, to be compared later."""

    def __init__(self, modules: Iterable[torch.nn.Module], *others: object) -> None:
        self._kept: list[tuple[object, list[object]]] = []
        seen: set[int] = set()
        pending: list[object] = [*(vars(module) for module in modules), *others]
        while pending:
            holder = pending.pop()
            if type(holder) not in _CONTAINERS or id(holder) in seen:
                continue
            seen.add(id(holder))
            content = _content(holder)
            self._kept.append((holder, content))
            pending += [part for part in content if type(part) in _CONTAINERS]
        self._drawn = _draws()

    def changed(self) -> bool:
        return self._drawn != _draws() or any(not _is_same(_content(holder), kept) for holder, kept in self._kept)


def _content(holder: object) -> list[object]:
    if isinstance(holder, dict):
        return [*holder.keys(), *holder.values()]
    return [*holder]  # type: ignore[misc]


def _is_same(now: list[object], before: list[object]) -> bool:
    if len(now) != len(before):
        return False
    return all(map(is_, now, before)) or all(map(_is_equal, now, before))


def _is_equal(one: object, other: object) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, bool | int | float | str) and one == other


def _draws() -> object:
    """How far Python's and NumPy's random numbers are."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, keys.tobytes(), rest  # type: ignore[union-attr]


@answers_for_caller
class Watched:
    """A ``with`` block in which this thread's functions are looked at. ``seen`` says what of them may last."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = {id(module) for module in modules}
        self._before: object = None
        self._is_on = False
        self.seen = ""

    def __enter__(self) -> None:
        self._before, self._is_on = sys.getprofile(), True
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        self._is_on = False
        sys.setprofile(self._before)  # type: ignore[arg-type]

    def pause(self) -> None:
        """While the recorder runs."""
        if self._is_on:
            sys.setprofile(None)

    def go_on(self) -> None:
        if self._is_on:
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        known = _seen_code.get(id(code))
        if known is None:
            is_looked_at = is_user(code) and not _is_of_python(code.co_filename)
            changes = _changes_of(code, frame.f_globals) if is_looked_at else ""
            known = _seen_code[id(code)] = code, changes
        changes = known[1]
        if changes and not (changes == ITSELF and id(frame.f_locals.get(code.co_varnames[0])) in self._modules):
            self.seen = f"{code.co_qualname} changes {changes}"


def _is_of_python(file: str) -> bool:
    """Whether a function is one of Python's own library."""
    return file.startswith(_LIBRARY) and _SITE not in file


def _changes_of(code: CodeType, space: dict[str, object]) -> str:
    """What a function may change beyond its own variables."""
    found = ""
    has_elements, before = bool(_CHANGING & {*code.co_names}), None
    for one in dis.get_instructions(code):
        has_elements |= one.opname in _OF_ELEMENTS
        if one.opname in _OF_OTHERS or (one.opname in _OF_FUNCTIONS and one.argval in code.co_freevars):
            return "a variable of others"
        if one.opname in _OF_OBJECTS:
            is_own = before is not None and _gives_first(before, code)
            if not is_own:
                return "an attribute of another object"
            found = found if code.co_name in _MAKES else ITSELF
        before = one
    if has_elements and (code.co_freevars or any(type(space.get(name)) in _CONTAINERS for name in code.co_names)):
        return "elements of what others hold"
    return found


def _gives_first(one: dis.Instruction, code: CodeType) -> bool:
    """Whether an instruction gives the first parameter last, as ``self.a = b`` does before the attribute."""
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    return one.opname.startswith("LOAD_FAST") and bool(code.co_argcount) and names[-1] == code.co_varnames[0]
