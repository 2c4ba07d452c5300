"""The contents of modules and objects, at any depth: noted before a run, compared with it, and put back after it.

Attributes, slots, lists, dicts, sets and what lies in them, variables of functions, attributes of scripted modules. What is
there all the time is never missing meanwhile: only what differs is put back, into the containers that held it.
"""

from __future__ import annotations

import array
import enum
import functools
import io
import math
import queue
import random
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, filterfalse
from operator import is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from fx2onnx.base.memoized import of_class
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.rare_roads import road
from fx2onnx.torchcompat.pytrees import slots_of

Value: TypeAlias = Any
"""Any Python object that a module may hold."""
Readers: TypeAlias = list[tuple[Value, object, Value]]
"""Functions in C that are held, and generators over the system's random bytes: what holds them, where, and they themselves."""
K = TypeVar("K")

PLAIN, DICT, LIST, SET, TUPLE, OBJECT, TENSOR, CELL, ARRAY, MODULE, ADVANCING, NAMESPACE = range(12)
"""Kinds of values: what is looked into, and how."""
COMPARED = frozenset({DICT, LIST, OBJECT, CELL, NAMESPACE})
"""Kinds whose entries differ where another object is in a place."""
REGISTRIES = frozenset(vars(torch.nn.Module())) - {"training"}
"""A module's own dicts: of what they hold, only tensors are state."""
_ALWAYS = frozenset({"__dict__", "__weakref__"})
PARAMETERS, BUFFERS = "_parameters", "_buffers"
_OTHER_REGISTRIES = tuple(name for name in vars(torch.nn.Module()) if name in REGISTRIES - {PARAMETERS, BUFFERS})
_IMMEDIATE = frozenset({bool, int, float, str, type(None)})
_OTHERS = frozenset(
    [
        "torch", "numpy", "builtins", "logging", "threading", "_thread", "weakref", "asyncio", "concurrent", "multiprocessing",
        "queue", "socket", "importlib", "inspect", "functools", "types", "abc", "enum", "typing", "re", "ast", "onnx",
        "onnxruntime", "onnx_ir",
    ]
)  # fmt: skip
"""Packages whose objects are no state of a model; containers, modules and distributions are looked into all the same."""


class StandIn:
    """Base of what stands for an iterator while a module runs."""


ADVANCING_TYPES: tuple[type, ...] = (
    random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, io.IOBase, queue.Queue,
    queue.SimpleQueue, bytearray, memoryview, array.array, types.GeneratorType, StandIn,
)  # fmt: skip
"""Classes of objects that change as they are used, besides iterators (``advancing.py``)."""
_NOT_LOOKED_INTO = (
    type, types.ModuleType, BaseException, enum.Enum, torch.Size, str, bytes, int, float, DataNumber,
)  # fmt: skip
_VIEWS = (functools.partial, types.MappingProxyType, types.BuiltinFunctionType)
"""Python's own classes whose objects hold others and do not change themselves."""
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_HOLDERS = (types.SimpleNamespace, types.MethodType, threading.local, *_WEAK)
_READERS = (types.BuiltinFunctionType, random.SystemRandom)
"""Classes of what may read a clock, or random bytes of the system."""
_WITH_ATTRIBUTES = (torch.Tensor, torch.nn.Parameter, types.FunctionType)
_MOST_ENTRIES = 200_000
"""Objects beyond so many are not looked into: a module that refers to a whole program is not its state."""
_MOST_ELEMENTS = 1 << 20
"""NumPy arrays of more are not copied."""
MISSING: Value = type("Missing", (), {"__repr__": lambda _: "nothing"})()
"""The value in the place of what is not there."""


class Entry(NamedTuple):
    """One holder and what was in it."""

    holder: Value
    content: Value
    kind: int
    parent: int
    """The entry that held it; -1 where ``key`` is the whole name."""
    key: object


class Snapshot:
    """The contents of ``modules``, by name, and of ``others`` at this moment."""

    def __init__(
        self,
        modules: Iterable[tuple[str, torch.nn.Module]] = (),
        others: Iterable[tuple[str, object]] = (),
        namespaces: Callable[[list[Value], Readers], Iterable[tuple[str, Value, dict[str, Value]]]] = lambda *_: (),
    ) -> None:
        """``namespaces`` of the functions that all these hold: by name, dicts of globals and classes, and what of them may change."""
        self.tensors: dict[int, torch.Tensor] = {}
        """Tensors by id that are no parameters or buffers of the modules, and buffers of modules that no other one has
        as a child."""
        self.entries: list[Entry] = []
        self._empty: list[Value] = []
        self._owners: list[tuple[Value, dict[str, Value]]] = []
        """Modules and objects with the dicts of their attributes."""
        self.has_advancing = False
        """True if something that is held changes as it is used, such as an iterator."""
        self.scripted: list[tuple[str, Value, dict[str, object]]] = []
        """Name, what has them, and its attributes, of each scripted module."""
        self._set_on_modules: list[Value] = []
        self._functions: list[Value] = []
        self._readers: Readers = []
        self._kinds: dict[type, int] = {}
        self._seen: set[int] = set()
        self._pending: list[tuple[Value, int, int, object]] = []
        named = list(modules)
        self._seen.update(id(module) for _, module in named)
        self._owners += zip([module for _, module in named], map(vars, [module for _, module in named]), strict=True)
        for name, module in named:
            self._add_module(name, module)
        self.functions = [*self._set_on_modules]
        """Functions that are attributes of ``modules``, and what ``forward`` is on one itself."""
        self._pending.reverse()
        self._walk()
        for name, value in others:
            self._found(value, -1, name)
        self._pending.reverse()
        self._walk()
        self._outside = len(self.entries)
        for name, holder, content in namespaces(self._functions, self._readers):
            if isinstance(holder, types.FunctionType):
                self._found(holder, -1, name)
            else:
                self._add(Entry(holder, content, NAMESPACE, -1, name))
        self._pending.reverse()
        self._walk()

    def _add_module(self, name: str, module: torch.nn.Module, parent: int = -1) -> None:
        attributes = module.__dict__.copy()
        entries, place = self.entries, len(self.entries)
        entries.append(Entry(module.__dict__, attributes, DICT, parent, name))
        for key in (PARAMETERS, BUFFERS):
            tensors = attributes.get(key)
            if not tensors and key == PARAMETERS:
                self._empty.append(tensors)
            elif isinstance(tensors, dict):
                for own, tensor in tensors.items():
                    self._found_on(tensor, len(entries), own)
                entries.append(Entry(tensors, tensors.copy(), DICT, place, key))
        others = [*map(attributes.get, _OTHER_REGISTRIES)]
        self._empty += filterfalse(None, others)
        for key, value in compress(zip(_OTHER_REGISTRIES, others, strict=True), others):
            if isinstance(value, dict | set):
                entries.append(Entry(value, value.copy(), DICT if isinstance(value, dict) else SET, place, key))
                for hook in value.values() if isinstance(value, dict) and key.endswith("_hooks") else ():
                    self._found(hook, place, key)
        for key in attributes:
            if key not in REGISTRIES and type(value := attributes[key]) not in _IMMEDIATE:
                if type(value) is tuple and _IMMEDIATE.issuperset(map(type, value)):
                    continue
                self._found(value, place, key)
                if key == "forward" or type(value) is types.FunctionType:
                    self._set_on_modules.append(value)
        if slots := _slots(type(module)):
            place = len(entries)
            entries.append(Entry(module, _in_slots(module, slots), OBJECT, parent, name))
            for key, value in entries[place].content.items():
                self._found(value, place, key)
        if isinstance(module, torch.jit.ScriptModule) and "_c" in attributes:
            self.scripted.append((name, module._c, _scripted_attributes(module)))

    def _found(self, value: Value, parent: int, key: object) -> None:
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = kind_of(type(value))
        if kind == TENSOR:
            self.tensors[id(value)] = value
            self._found_on(value, parent, key)
        elif kind != PLAIN:
            self._pending.append((value, kind, parent, key))

    def _found_on(self, value: Value, parent: int, key: object) -> None:
        """The attributes that Python code has set on a tensor or on a function."""
        if type(value) not in _WITH_ATTRIBUTES and not isinstance(value, torch.Tensor):
            return
        attributes = vars(value)
        if attributes:
            self._pending.append((attributes, DICT, parent, key))
        else:
            self._empty.append(attributes)

    def _walk(self) -> None:
        pending, seen = self._pending, self._seen
        while pending and len(self.entries) < _MOST_ENTRIES:
            value, kind, parent, key = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            first = len(pending)
            place = len(self.entries)
            if isinstance(value, _READERS) and parent >= 0:
                self._readers.append((self.entries[parent].holder, key, value))
            if kind == MODULE:
                self._add_module(str(key), value, parent)
                self.tensors |= {id(each): each for each in value._buffers.values() if each is not None}
                for name, child in value._modules.items():
                    self._found(child, place, name)
            elif kind == CELL:
                if (value.__module__ or "").startswith("fx2onnx."):
                    continue  # stands for a module's own meanwhile: what it notes is the capture's
                self._functions.append(value)
                for name, cell in _cells(value):
                    self._add(Entry(cell, (name, content_of_cell(cell)), CELL, parent, key))
                self._add(Entry(value, parts_of_view(value), TUPLE, parent, key))
                self._found_on(value, parent, key)
            elif kind == ARRAY:
                if value.size <= _MOST_ELEMENTS:
                    self._add(Entry(value, value.copy(), kind, parent, key))
            elif kind == ADVANCING:
                self.has_advancing = True
                state = road("what goes on as it is used").state_of(value)
                self.entries.append(Entry(value, state, kind, parent, key))
            else:
                for entry in entries_of(value, kind, parent, key):
                    self._add(entry)
                    if entry.kind == DICT != kind:
                        self._owners.append((value, entry.holder))
            pending[first:] = reversed(pending[first:])

    def _add(self, entry: Entry) -> None:
        place = len(self.entries)
        self.entries.append(entry)
        for key, part in parts_of(entry.kind, entry.content):
            self._found(part, place, key)

    def names(self) -> Any:
        """The places by name (``held_names.Names``)."""
        return road("names of what is held").Names(self)

    def is_as_before(self) -> bool:
        """Return whether it is certain that everything is where it was, except for the modes of modules."""
        self._keep_dicts()
        if self.scripted or self.has_advancing:
            return False
        if not all(is_same_array(entry.holder, entry.content) for entry in self.entries if entry.kind == ARRAY):
            return False
        looked_at = (entry for entry in _that_may_differ(self.entries) if entry.kind in COMPARED)
        return all(key == "training" for entry in looked_at for key, _, _ in differing(entry))

    def put_back(self) -> None:
        """All is as it was; in namespaces only what has other tensors."""
        self._keep_dicts()
        outside = [entry for entry in self.entries[self._outside :] if _has_other_tensors(entry)]
        for entry in (*_that_may_differ(self.entries[: self._outside]), *outside):
            _PUT_BACK[entry.kind](entry.holder, entry.content)
        for container in filter(None, self._empty):
            container.clear()
        for _, scripted, attributes in self.scripted:
            for name, value in attributes.items():
                if not is_same(scripted.getattr(name), value):
                    scripted.setattr(name, value)

    def _keep_dicts(self) -> None:
        """Give owners the dicts of before, with the contents of those that forward gave them: ``self.__dict__ = {...}``."""
        for owner, own in self._owners:
            if (other := owner.__dict__) is not own:
                own.clear()
                own.update(other)
                object.__setattr__(owner, "__dict__", own)


def _that_may_differ(entries: list[Entry]) -> list[Entry]:
    """The entries without the plain dicts, where all of these hold what they held."""
    dicts = [(entry.holder, entry.content) for entry in entries if entry.kind == DICT and type(entry.holder) is dict]
    found, before = [holder for holder, _ in dicts], [content for _, content in dicts]
    flat, values = chain.from_iterable, dict[Value, Value].values
    is_same = (
        [*map(len, found)] == [*map(len, before)]
        and all(map(is_, flat(map(values, found)), flat(map(values, before))))
        and all(map(is_, flat(found), flat(before)))
    )
    return [each for each in entries if each.kind != DICT or type(each.holder) is not dict] if is_same else entries


def _has_other_tensors(entry: Entry) -> bool:
    """Return whether a tensor is no more where it was, or another one is there."""
    if entry.kind not in COMPARED:
        return entry.kind in (ARRAY, ADVANCING)
    return any(isinstance(before, torch.Tensor) or _has_tensor(after) for _, before, after in differing(entry))


def _has_tensor(value: Value) -> bool:
    return any(map(_has_tensor, value)) if isinstance(value, list | tuple) else isinstance(value, torch.Tensor)


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
        if {*map(id, found)} == {*map(id, before)}:
            return
    except TypeError:  # a size of the capture, whose hash ended with it
        pass
    found.clear()  # which has equal ones, as True for 1
    found |= before


def fill_dict(found: dict[K, Value], before: dict[K, Value]) -> None:
    """``found`` is as ``before``, in its order; what is there all the time is never missing, save to change the order."""
    if len(found) == len(before) and all(map(is_, found.values(), before.values())) and _have_same_keys(found, before):
        return
    base = base_of(found)
    own = set(map(id, before))
    try:
        for key in [key for key in found if id(key) not in own and key not in before]:
            base.__delitem__(found, key)
    except TypeError:  # a size of the capture, whose hash ended with it
        base.clear(found)
    for key, value in before.items():
        if base.get(found, key, MISSING) is not value:
            base.__setitem__(found, key, value)
    if not _have_same_keys(found, before):
        base.clear(found)
        for key, value in before.items():
            base.__setitem__(found, key, value)


def _have_same_keys(one: Iterable[object], other: Iterable[object]) -> bool:
    """Return whether containers of one length have equal keys of the same types in one order. Tensors are equal to themselves only."""
    return all(map(is_, one, other)) or all(
        a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and a == b)
        for a, b in zip(one, other, strict=True)
    )


def base_of(value: dict[Value, Value]) -> Value:
    """The class whose methods read and write a dict: a subclass may refuse to be written, or return something else."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def _put_back_slots(found: Value, before: dict[str, Value]) -> None:
    for name, value in before.items():
        if getattr(found, name, MISSING) is not value:
            if value is MISSING:
                object.__delattr__(found, name)
            else:
                object.__setattr__(found, name, value)


def _put_back_cell(found: Value, named: tuple[str, object]) -> None:
    _, before = named
    if content_of_cell(found) is not before:
        if before is MISSING:
            del found.cell_contents
        else:
            found.cell_contents = before


def is_same_array(found: Value, before: Value) -> bool:
    """Return whether an array still has the elements of its copy."""
    if found.shape != before.shape:
        return False
    if before.dtype == object:
        return all(map(is_, found.flat, before.flat))
    return bool(found.tobytes() == before.tobytes())  # also of NaN, and of the sign of zero


def _put_back_array(found: Value, before: Value) -> None:
    if found.flags.writeable and not is_same_array(found, before):
        if found.shape != before.shape:
            found.resize(before.shape, refcheck=False)
        found[...] = before


def space_of(holder: Value) -> Value:
    """The names of a class, or of a dict of globals."""
    return vars(holder) if isinstance(holder, type) else holder


def put_name_into(holder: Value, name: str, value: Value) -> None:
    """Give a name of a class, or of a dict of globals, a value."""
    if isinstance(holder, type):
        setattr(holder, name, value)
    else:
        holder[name] = value


def _put_back_names(found: Value, before: dict[str, Value]) -> None:
    for name, value in before.items():
        if space_of(found).get(name, MISSING) is not value:
            put_name_into(found, name, value)


_PUT_BACK: dict[int, Value] = {
    DICT: fill_dict,
    LIST: _put_back_list,
    SET: _put_back_set,
    TUPLE: lambda *_: None,
    OBJECT: _put_back_slots,
    CELL: _put_back_cell,
    ARRAY: _put_back_array,
    NAMESPACE: _put_back_names,
    ADVANCING: lambda found, before: road("what goes on as it is used").put_back(found, before),
}


@of_class
def kind_of(kind: type) -> int:
    if issubclass(kind, torch.Tensor):
        return TENSOR
    if issubclass(kind, torch.nn.Module):
        return MODULE
    for base, found in ((dict, DICT), (list | deque, LIST), (set, SET), (np.ndarray, ARRAY)):
        if issubclass(kind, base):
            return found
    if issubclass(kind, types.FunctionType):
        return CELL
    if is_iterator(kind) or issubclass(kind, ADVANCING_TYPES):
        return ADVANCING
    if kind in (type(None), type(Ellipsis), torch.dtype, torch.device) or issubclass(kind, _NOT_LOOKED_INTO):
        return PLAIN
    if issubclass(kind, (tuple, *_VIEWS)):
        return TUPLE
    module = kind.__module__
    is_other = module.split(".")[0] in _OTHERS and not module.startswith(("torch.distributions", "torch.optim"))
    if is_other and kind not in _HOLDERS:
        return PLAIN
    return OBJECT if kind.__dictoffset__ or kind in _HOLDERS or _slots(kind) else PLAIN


_OF_PYTHON = frozenset(["builtins", "itertools", "_collections"])
"""Modules whose iterators say what they are made of."""


def is_iterator(kind: type) -> bool:
    """Return whether objects of a class are iterators of Python's own."""
    return hasattr(kind, "__next__") and kind.__module__ in _OF_PYTHON and kind is not types.GeneratorType


@of_class
def _slots(kind: type) -> list[str]:
    return [name for name in slots_of(kind) if name not in _ALWAYS]


def _in_slots(value: Value, names: Iterable[str]) -> dict[str, Value]:
    """The values of slots. What a class in C makes anew at each read is no state."""
    found = {name: getattr(value, name, MISSING) for name in names}
    return {name: held for name, held in found.items() if getattr(value, name, MISSING) is held}


def entries_of(value: Value, kind: int, parent: int, key: object) -> Iterator[Entry]:
    """A container, and what an instance of a class has beside."""
    if kind == DICT:
        yield Entry(value, dict(base_of(value).items(value)), kind, parent, key)
    elif kind == LIST:
        yield Entry(value, list(value), kind, parent, key)
    elif kind == SET:
        yield Entry(value, set(value), kind, parent, key)
    elif kind == TUPLE:
        yield Entry(value, parts_of_view(value), kind, parent, key)
        return
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        yield Entry(own, own.copy(), DICT, parent, key)
    slots = _slots(type(value))
    if slots:
        yield Entry(value, _in_slots(value, slots), OBJECT, parent, key)


def parts_of_view(value: Value) -> Value:
    """The parts of an object that does not change itself; ``value`` where it is a sequence."""
    if isinstance(value, types.FunctionType):
        return value.__defaults__, value.__kwdefaults__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.BuiltinFunctionType):
        return (value.__self__,)
    return tuple(value.values()) if isinstance(value, types.MappingProxyType) else value


def parts_of(kind: int, content: Value) -> Iterable[tuple[object, Value]]:
    """Keys and values directly inside of what an entry holds."""
    if kind in (DICT, OBJECT, NAMESPACE):
        return content.items()  # type: ignore[no-any-return]
    if kind == CELL:
        return [content]
    if kind == ARRAY:
        return enumerate(content.flat) if content.dtype == object else ()
    return enumerate(content) if kind in (LIST, TUPLE) else ()


def _cells(function: Value) -> Iterator[tuple[str, Value]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)


def content_of_cell(cell: Value) -> Value:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _scripted_attributes(module: Value) -> dict[str, object]:
    """The attributes of a scripted module, which keeps them where Python's dicts do not reach."""
    try:
        names = [*module._concrete_type.get_attributes()]
    except (AttributeError, RuntimeError):
        return {}
    return {name: module._c.getattr(name) for name in names if module._c.hasattr(name) and name != "training"}


def is_same(now: Value, before: Value) -> bool:
    """Return whether two values of a scripted module, which makes Python's containers anew, are the same."""
    if now is before:
        return True
    if type(now) is not type(before) or isinstance(now, torch.Tensor):
        return False
    if isinstance(now, list | tuple):
        return len(now) == len(before) and all(map(is_same, now, before))
    if isinstance(now, dict):
        return list(now) == list(before) and all(map(is_same, now.values(), before.values()))
    return is_equal_number(now, before)


def is_equal_number(one: object, other: object) -> bool:
    """Return whether two values are one, or equal numbers or texts: zeros of one sign."""
    if one is other or type(one) is not type(other) or not isinstance(one, int | float | complex | str | bytes):
        return one is other
    return one == other and (not isinstance(one, float | complex) or signs_of(one) == signs_of(other))  # type: ignore[arg-type]


def signs_of(number: complex) -> tuple[float, float]:
    """The signs of both parts of a number: 0.0 is equal to -0.0."""
    return math.copysign(1, number.real), math.copysign(1, number.imag)


def differing(entry: Entry) -> Iterator[tuple[object, Value, Value]]:
    """The keys at which a holder differs, what was there and what is."""
    holder, content = entry.holder, entry.content
    if entry.kind == CELL:
        name, before = content
        if content_of_cell(holder) is not before:
            yield name, before, content_of_cell(holder)
        return
    if entry.kind in (ARRAY, ADVANCING):
        if not _is_as_noted(entry):
            yield "state", content, holder
        return
    if entry.kind == OBJECT:
        items = [(name, getattr(holder, name, MISSING)) for name in content]
    elif entry.kind == NAMESPACE:
        items = [(name, space_of(holder).get(name, MISSING)) for name in content]
    elif entry.kind == DICT:
        items = list(base_of(holder).items(holder))
    else:
        items, content = list(enumerate(parts_of_view(holder))), dict(enumerate(content))
    if len(items) == len(content) and all(map(is_, chain.from_iterable(items), chain.from_iterable(content.items()))):
        return
    left = dict(content)
    for key, after in items:
        try:
            before = left.pop(key, MISSING)
        except TypeError:  # a size of the capture, which is no key of a dict outside of it
            before = MISSING
        if after is not before:
            yield key, before, after
    for key, before in left.items():
        yield key, before, MISSING


def _is_as_noted(entry: Entry) -> bool:
    """Return whether an array has its elements, or what advances the state, of before; where that is not known it has not."""
    if entry.kind == ARRAY:
        return is_same_array(entry.holder, entry.content)
    advancing = road("what goes on as it is used")
    now = advancing.state_of(entry.holder)
    return now is not advancing.UNKNOWN and bool(advancing.is_same_state(now, entry.content))
