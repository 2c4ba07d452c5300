"""What modules and objects hold, at any depth: noted before a run, compared with it, and put back after it.

Attributes, slots, lists, dicts, sets and what lies in them, variables of functions, attributes of scripted modules. What is
there all the time is never missing meanwhile: only what differs is put back, into the containers that held it.
"""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from operator import is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

K = TypeVar("K")
Value: TypeAlias = Any
"""Whatever a module may hold."""

_PLAIN, _DICT, _LIST, _SET, _TUPLE, _OBJECT, _TENSOR, _FUNCTION, _ARRAY, _MODULE = range(10)
"""Kinds of values: what is looked into, and how."""
_REGISTRIES = frozenset(vars(torch.nn.Module())) - {"training"}
"""A module's own dicts: of what they hold, only tensors are state."""
_SILENT = frozenset({"_parameters", "_buffers"})
"""Registries that are no part of the names of what they hold."""
_OTHERS = frozenset(
    [
        "torch", "numpy", "builtins", "logging", "threading", "_thread", "weakref", "asyncio", "concurrent", "multiprocessing",
        "queue", "socket", "importlib", "inspect", "functools", "types", "abc", "enum", "typing", "re", "ast", "onnx",
        "onnxruntime", "onnx_ir",
    ]
)  # fmt: skip
"""Packages whose objects are no state of a model; containers, modules and distributions are looked into all the same."""
_NOT_LOOKED_INTO = (
    type,
    types.ModuleType,
    BaseException,
    enum.Enum,
    torch.Size,
    torch.Generator,
    str,
    bytes,
    int,
    float,
)
_MOST_ENTRIES = 200_000
"""Objects beyond so many are not looked into: a module that refers to a whole program is not its state."""
_MOST_ELEMENTS = 1 << 20
"""NumPy arrays of more are not copied."""
MISSING: Value = type("Missing", (), {"__repr__": lambda _: "nothing"})()
"""In the place of what is not there."""


class _Entry(NamedTuple):
    """One holder and what was in it."""

    holder: Value
    content: Value
    kind: int
    parent: int
    """The entry that held it; -1 where ``key`` is the whole name."""
    key: object


class Change(NamedTuple):
    """A place whose content differs; ``MISSING`` where there was, or is, none."""

    name: str
    before: object
    after: object
    is_buffer: bool


class Snapshot:
    """What ``modules``, by name, and ``others`` hold at this moment."""

    def __init__(
        self, modules: Iterable[tuple[str, torch.nn.Module]] = (), others: Iterable[tuple[str, object]] = ()
    ) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        """Those that are no parameters or buffers of the modules, by id."""
        self._entries: list[_Entry] = []
        self._empty: list[dict[Value, Value]] = []
        self._scripted: list[tuple[str, Value, dict[str, object]]] = []
        """Name, what has them, and its attributes, of each scripted module."""
        self._kinds: dict[type, int] = {}
        self._seen: set[int] = set()
        self._pending: list[tuple[Value, int, int, object]] = []
        named = list(modules)
        self._seen.update(id(module) for _, module in named)
        for name, module in named:
            self._add_module(name, module)
        self._walk()
        for name, value in others:
            self._found(value, -1, name)
        self._walk()

    # -- what there is ----------------------------------------------------------------------------------------------
    def _add_module(self, name: str, module: torch.nn.Module, parent: int = -1) -> None:
        attributes = module.__dict__.copy()
        entries, kinds, place = self._entries, self._kinds, len(self._entries)
        entries.append(_Entry(module.__dict__, attributes, _DICT, parent, name))
        for key, value in attributes.items():
            kind = kinds.get(type(value))
            if kind is None:
                kind = kinds[type(value)] = _kind_of(type(value))
            if kind == _PLAIN:
                continue
            if key not in _REGISTRIES:
                self._found(value, place, key)
            elif not value:
                self._empty.append(value)
            elif kind in (_DICT, _SET):
                entries.append(_Entry(value, value.copy(), kind, place, key))
        if isinstance(module, torch.jit.ScriptModule) and "_c" in attributes:
            self._scripted.append((name, module._c, _scripted_attributes(module)))

    def _found(self, value: Value, parent: int, key: object) -> None:
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = _kind_of(type(value))
        if kind == _TENSOR:
            self.tensors[id(value)] = value
        elif kind != _PLAIN:
            self._pending.append((value, kind, parent, key))

    def _walk(self) -> None:
        pending, seen = self._pending, self._seen
        while pending and len(self._entries) < _MOST_ENTRIES:
            value, kind, parent, key = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            place = len(self._entries)
            if kind == _MODULE:
                self._add_module(str(key), value, parent)
                for name, child in value._modules.items():
                    self._found(child, place, name)
            elif kind == _FUNCTION:
                for name, cell in _cells(value):
                    self._add(_Entry(cell, _of_cell(cell), kind, parent, f"{key}.{name}"), {name: _of_cell(cell)})
            elif kind == _ARRAY:
                if value.size <= _MOST_ELEMENTS and value.dtype != object:
                    self._entries.append(_Entry(value, value.copy(), kind, parent, key))
            else:
                for entry in _entries_of(value, kind, parent, key):
                    self._add(entry, _parts(entry.kind, entry.content))

    def _add(self, entry: _Entry, parts: Iterable[tuple[object, Value]] | Mapping[str, Value]) -> None:
        place = len(self._entries)
        self._entries.append(entry)
        for key, part in parts.items() if isinstance(parts, Mapping) else parts:
            self._found(part, place, key)

    # -- as before --------------------------------------------------------------------------------------------------
    def put_back(self) -> None:
        """All is as it was."""
        for entry in self._entries:
            _PUT_BACK[entry.kind](entry.holder, entry.content)
        for container in self._empty:
            if container:
                container.clear()
        for _, scripted, attributes in self._scripted:
            for name, value in attributes.items():
                if not _is_same(scripted.getattr(name), value):
                    scripted.setattr(name, value)


def _put_back_list(found: Value, before: list[Value]) -> None:
    if len(found) != len(before) or not all(map(is_, found, before)):
        if isinstance(found, list):
            list.__setitem__(found, slice(None), before)
        else:
            found.clear()
            found.extend(before)


def _put_back_set(found: set[Value], before: set[Value]) -> None:
    try:
        if len(found) != len(before) or found != before:
            found &= before
            found |= before
    except TypeError:  # a size of the capture, whose hash ended with it
        found.clear()
        found |= before


def fill_dict(found: dict[K, Value], before: dict[K, Value]) -> None:
    """``found`` is as ``before``, in its order; what is there all the time is never missing, save to change the order."""
    if len(found) == len(before) and all(map(is_, found.values(), before.values())) and list(found) == list(before):
        return
    base = _base_of(found)
    own = set(map(id, before))
    try:
        for key in [key for key in found if id(key) not in own and key not in before]:
            base.__delitem__(found, key)
    except TypeError:  # a size of the capture, whose hash ended with it
        base.clear(found)
    for key, value in before.items():
        if base.get(found, key, MISSING) is not value:
            base.__setitem__(found, key, value)
    if list(found) != list(before):
        base.clear(found)
        for key, value in before.items():
            base.__setitem__(found, key, value)


def _base_of(value: dict[Value, Value]) -> Value:
    """Whose methods read and write a dict: a subclass may refuse to be written, or give something else."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def _put_back_slots(found: Value, before: dict[str, Value]) -> None:
    for name, value in before.items():
        if getattr(found, name, MISSING) is not value:
            if value is MISSING:
                object.__delattr__(found, name)
            else:
                object.__setattr__(found, name, value)


def _put_back_cell(found: Value, before: object) -> None:
    if _of_cell(found) is not before:
        if before is MISSING:
            del found.cell_contents
        else:
            found.cell_contents = before


def _put_back_array(found: Value, before: Value) -> None:
    if found.flags.writeable and not np.array_equal(found, before, equal_nan=before.dtype.kind in "fc"):
        found[...] = before


_PUT_BACK: dict[int, Value] = {
    _DICT: fill_dict,
    _LIST: _put_back_list,
    _SET: _put_back_set,
    _TUPLE: lambda *_: None,
    _OBJECT: _put_back_slots,
    _FUNCTION: _put_back_cell,
    _ARRAY: _put_back_array,
}


def _kind_of(kind: type) -> int:
    if issubclass(kind, torch.Tensor):
        return _TENSOR
    if issubclass(kind, torch.nn.Module):
        return _MODULE
    for base, found in ((dict, _DICT), (list | deque, _LIST), (set, _SET), (np.ndarray, _ARRAY)):
        if issubclass(kind, base):
            return found
    if issubclass(kind, types.FunctionType):
        return _FUNCTION
    if kind in (type(None), type(Ellipsis), torch.dtype, torch.device) or issubclass(kind, _NOT_LOOKED_INTO):
        return _PLAIN
    if issubclass(kind, tuple):
        return _TUPLE
    module = kind.__module__
    is_other = module.split(".")[0] in _OTHERS and not module.startswith("torch.distributions")
    if is_other and kind is not types.SimpleNamespace and kind is not types.MethodType:
        return _PLAIN
    return _OBJECT if kind.__dictoffset__ or _slots(kind) or kind is types.MethodType else _PLAIN


def _slots(kind: type) -> list[str]:
    return [
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and base is not object
    ]


def _entries_of(value: Value, kind: int, parent: int, key: object) -> Iterator[_Entry]:
    """A container, and what an instance of a class has beside."""
    if kind == _DICT:
        yield _Entry(value, dict(_base_of(value).items(value)), kind, parent, key)
    elif kind == _LIST:
        yield _Entry(value, list(value), kind, parent, key)
    elif kind == _SET:
        yield _Entry(value, set(value), kind, parent, key)
    elif kind == _TUPLE:
        yield _Entry(value, value, kind, parent, key)
        return
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield _Entry(own, own.copy(), _DICT, parent, key)
    slots = {name: getattr(value, name, MISSING) for name in _slots(type(value))}
    if slots:
        yield _Entry(value, slots, _OBJECT, parent, key)
    if isinstance(value, types.MethodType):
        yield _Entry((), (value.__self__,), _TUPLE, parent, key)


def _parts(kind: int, content: Value) -> Iterable[tuple[object, Value]]:
    if kind in (_DICT, _OBJECT):
        return content.items()  # type: ignore[no-any-return]
    return enumerate(content) if kind != _SET else ()


def _cells(function: Value) -> Iterator[tuple[str, Value]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)


def _of_cell(cell: Value) -> Value:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _scripted_attributes(module: Value) -> dict[str, object]:
    """Of a scripted module, which keeps them where Python's dicts do not reach."""
    try:
        names = [*module._concrete_type.get_attributes()]
    except (AttributeError, RuntimeError):
        return {}
    return {name: module._c.getattr(name) for name in names if module._c.hasattr(name) and name != "training"}


def _is_same(now: Value, before: Value) -> bool:
    """Whether two values of a scripted module, which makes Python's containers anew, are the same."""
    if now is before:
        return True
    if type(now) is not type(before) or isinstance(now, torch.Tensor):
        return False
    if isinstance(now, list | tuple):
        return len(now) == len(before) and all(map(_is_same, now, before))
    if isinstance(now, dict):
        return list(now) == list(before) and all(map(_is_same, now.values(), before.values()))
    return isinstance(now, int | float | str | bytes) and now == before
