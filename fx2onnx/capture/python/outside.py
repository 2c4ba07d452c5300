"""State outside of the module and its arguments: in globals, a class, an object that others hold.

What the code of the user's own files names is state like the module's own. Elsewhere forward may keep the capture's own tensors, without
data, and eager PyTorch would compute on them afterwards. So what still exists of them after a run is looked for, and taken out of what
holds it.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from random import SystemRandom
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import torch

from fx2onnx.base.source import file_of
from fx2onnx.capture.python.held import Readers, space_of
from fx2onnx.capture.rare_roads import road
from fx2onnx.torchcompat.frames import is_user


@dataclass
class OutsideState:
    """The facts that one capture knows about state outside of the module."""

    before: dict[int, tuple[object, dict[str, Any]]]
    """The namespaces of Python modules and classes, by id, and what they had before the capture."""
    tensors: list[ReferenceType[torch.Tensor]] = field(default_factory=list)
    """The tensors of the last runs, which are gone unless somebody keeps them."""
    returned: list[object] = field(default_factory=list)
    """Objects in what forward returns, which may hold tensors as they like."""
    notes: dict[str, None] = field(default_factory=dict)
    """A line for each name or attribute that was put back."""

    def put_back(self, has_ended: bool = False) -> None:
        """Take the tensors out of the objects that keep them. A name or an attribute has its value of before, or None,
        where that is unknown.

        ``has_ended``: the capture is over, without an error. Then whatever keeps them is found; else, while tracebacks keep them, too,
        the names of the module's own Python files and classes are looked through.
        """
        if any(each() is not None for each in self.tensors):
            kept = road("tensors kept outside")
            look = kept.taken_out if has_ended else kept.taken_out_of_names
            self.notes.update(dict.fromkeys(look(self.tensors, self.before, self.returned)))
        if has_ended:
            self.returned.clear()
            self.tensors.clear()


def outside_of(modules: Iterable[torch.nn.Module]) -> OutsideState:
    """The state outside of ``modules``: their classes, and the Python modules that their ``forward`` is from."""
    before: dict[int, tuple[object, dict[str, Any]]] = {}
    seen: set[type] = set()
    for module in modules:
        kind = type(module)
        if "forward" not in vars(module):
            if kind in seen:
                continue
            seen.add(kind)
        forward = vars(module).get("forward", vars(kind).get("forward"))  # of a function that is exported, its own
        if not isinstance(forward, FunctionType) or id(kind) in before or not is_user(forward.__code__):
            continue
        if "forward" in vars(kind):
            before[id(kind)] = kind, dict(vars(kind))
        space = forward.__globals__
        if id(space) not in before:
            before[id(space)] = space, dict(space)
    return OutsideState(before)


_WRAPPERS = (FunctionType, type(lru_cache(len)))
_NO_STATE = (FunctionType, BuiltinFunctionType, ModuleType, type, property, classmethod, staticmethod)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)
"""Parts of the paths of installed packages, whose globals are often tables of what they import."""


def namespaces_of(
    modules: Sequence[torch.nn.Module], functions: Iterable[FunctionType], readers: Readers
) -> list[tuple[str, object, dict[str, Any]]]:
    """The globals and the class attributes that may be state: those that the code of ``modules`` names, outside of installed packages.

    Code is that of their classes, of the ``functions`` that they hold, and of the functions and classes that it names in turn. Gives the
    name of each Python module or class, its namespace, and the values; and functions with defaults that may change. The clocks
    among these, and among the ``readers`` that the modules hold, are noted in ``MET``.
    """
    clocks: list[tuple[dict[str, object], str]] = [
        (holder if isinstance(holder, dict) else {}, str(key)) for holder, key, value in readers if _is_clock(value)
    ]
    pending: list[Any] = [
        *functions,
        *dict.fromkeys(chain.from_iterable(kind.__mro__ for kind in dict.fromkeys(map(type, modules)))),
    ]
    spaces: dict[int, tuple[str, Any, set[str]]] = {}
    met: dict[int, FunctionType] = {}
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if _is_clock(found.__func__ if isinstance(found, staticmethod) else found):
            clocks.append(({}, ""))
        elif isinstance(found, type):
            if _is_of_user(found):
                spaces[id(found)] = found.__name__, found, {name for name in vars(found) if not name.startswith("__")}
                pending += vars(found).values()
        elif (function := _function(found)) is not None:
            space, names = function.__globals__, set(_names(function.__code__))
            spaces.setdefault(id(space), (space.get("__name__", ""), space, set()))[2].update(names)
            values = {name: space[name] for name in names if name in space}
            pending += values.values()
            clocks += [(space, name) for name, value in values.items() if _is_clock(value)]
            unseen = [name for name in names & _CLOCKS if not _is_clock(values.get(name))]
            clocks += [(space, name) for name in unseen if not _is_held(name, function, modules)]
            pending += [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
            pending += function.__defaults__ or ()
            met[id(function)] = function
    if MET.clocks is not None:
        MET.clocks += clocks
    contents = [(name, space, space_of(space), names) for name, space, names in spaces.values()]
    found = [
        (name, space, {key: own[key] for key in sorted(names & own.keys()) if _may_be_state(own[key])})
        for name, space, own, names in contents
    ]
    return [*found, *((each.__qualname__, each, {}) for each in met.values() if _has_state(each))]


class _Met(threading.local):
    clocks: list[tuple[dict[str, object], str]] | None = None
    """Globals and their names that are clocks, or modules with clocks or with random bytes; None where nobody asks."""
    is_later = False
    """True while the clocks show another time."""


MET = _Met()
_CLOCKS = frozenset(
    ["time", "datetime", "uuid", "secrets", "urandom", "Random", "SystemRandom", "RandomState", "default_rng", "now", "today"]
)  # fmt: skip
"""Modules whose functions return other values in each run, such functions, and generators that the system's random bytes may seed."""


def _is_clock(value: object) -> bool:
    if isinstance(value, BuiltinFunctionType) and isinstance(
        value.__self__, type
    ):  # a class's own, such as datetime.now
        value = value.__self__
    named = "__name__" if isinstance(value, ModuleType) else "__module__"
    return getattr(value, named, None) in _CLOCKS or value is os.urandom or isinstance(value, SystemRandom)


def _is_held(name: str, function: FunctionType, modules: Sequence[torch.nn.Module]) -> bool:
    """Return whether a name in a function's code, such as ``time``, is that of an attribute of the modules, and nothing imported."""
    return (
        name not in function.__globals__
        and any(
            name in names for each in modules for names in (vars(each), each._parameters, each._buffers, each._modules)
        )
        and name not in _imported(function.__code__)
    )


def _imported(code: CodeType) -> Iterator[str]:
    """The names of modules that code imports, also that of functions inside of it."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _imported(each)


def _has_state(function: FunctionType) -> bool:
    """Return whether a default of the function's may change."""
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return any(isinstance(value, list | dict | set | torch.Tensor) for value in defaults)


def _may_be_state(value: object) -> bool:
    """Return whether a value of a namespace may change: no function or class, and nothing of this package."""
    return not isinstance(value, _NO_STATE) and not (type(value).__module__ or "").startswith("fx2onnx.")


def _function(found: object) -> FunctionType | None:
    """The function that a value of a namespace is, or is made of, where it is of the user's own files."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod | MethodType):
        found = found.__func__
    inner = getattr(found, "__wrapped__", found) if isinstance(found, _WRAPPERS) else found
    if not isinstance(inner, FunctionType) or not is_user(inner.__code__):
        return None
    return None if any(part in inner.__code__.co_filename for part in _INSTALLED) else inner


def _is_of_user(kind: type) -> bool:
    """Return whether a class is of the user's own files, or of none, as in a notebook."""
    name = kind.__module__
    if name.partition(".")[0] in ("torch", "fx2onnx") or name in sys.builtin_module_names:
        return False
    file = file_of(sys.modules.get(name)) or ""
    return not any(part in file for part in _INSTALLED)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in code, also in that of functions inside of it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
