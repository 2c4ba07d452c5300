"""The replacements that the user's files find under Python's own names while a module is captured: ``len``, ``type``,
``int``, ``float`` and ``range`` of symbolic sizes, which Python's own cannot give.

``len`` and ``type`` are there wherever the module's code can come from. The others are classes, which code may
compare and pass on, so they are there only in files that were seen to turn a size into a number.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from fx2onnx.base.code_patch import SharedReason, content_of, put_name
from fx2onnx.base.memoized import Bounded
from fx2onnx.base.source import SourceLocation, file_of, line_of
from fx2onnx.capture.python.stand_ins import FLOAT, INT, RANGE, TYPE, TYPE_OF_NUMBERS, length_of
from fx2onnx.torchcompat.frames import LIBRARIES
from fx2onnx.torchcompat.modules import ModuleTree

Names: TypeAlias = dict[str, Any]


def install_names(
    tree: ModuleTree,
    own: Sequence[Callable[..., object]],
    numbers_in: frozenset[str],
    functions: Mapping[int, object],
    loops: Names | None = None,
    *,
    has_arrays: bool = False,
) -> None:
    """Until ``Changes`` end, in this thread, the code of the modules of ``tree`` finds ``len`` and ``type`` that know symbolic
    sizes; the files ``numbers_in`` find ``int``, ``float`` and ``range``, too, and ``functions`` (by the id of those that they have) under
    names of their own. ``own``: functions that are set on modules. ``loops``: names where loops over sizes are loops of the file, and ``functions`` have stand-ins everywhere.
    ``has_arrays``: ``functions`` have one for NumPy, everywhere.
    """
    for space in _spaces_of(tree, own):
        if loops is not None or has_arrays:
            _exchange(space, functions)
        if loops is not None:
            _put(space, {"range": RANGE, **loops})
        _put(space, {"len": length_of} | ({"type": TYPE} if not _is_library(space) or _asks_for_types(space) else {}))
    for name in numbers_in:
        space = vars(sys.modules[name]) if name in sys.modules else {}
        _exchange(space, functions)
        _put(space, {"len": length_of, "type": TYPE_OF_NUMBERS, "int": INT, "float": FLOAT, "range": RANGE})
        _put(space, loops or {})


def _exchange(space: Names, functions: Mapping[int, object]) -> None:
    """Put what stands for functions, by the id of each, in their places."""
    for key, value in [*space.items()]:
        if id(value) in functions:
            put_name(space, key, functions[id(value)], SharedReason.PYTHON)


def _put(space: Names, names: Names) -> None:
    for name, value in names.items():
        if name not in space or space[name] is length_of or space[name] is TYPE:
            put_name(space, name, value, SharedReason.PYTHON)


def may_keep_number(where: SourceLocation | None) -> bool:
    """Return True if the line may call ``int``, ``float`` or a rounding function, or index something."""
    return where is not None and _KEEPS_NUMBER.search(line_of(where.file, where.line)) is not None


def names_numpy(where: SourceLocation | None) -> bool:
    """Return True if the line may call a function of NumPy."""
    return where is not None and re.search(r"\b(np|numpy)\.", line_of(where.file, where.line)) is not None


_KEEPS_NUMBER = re.compile(r"\b(int|float|round|floor|ceil|trunc)\(|[\w)\]]\[")


def names_of_file(where: SourceLocation | None) -> frozenset[str]:
    """The names in ``sys.modules`` of the modules whose file is that of the line."""
    file = where.file if where is not None else ""
    return frozenset(name for name, module in list(sys.modules.items()) if file_of(module) == file)


_NEVER = frozenset({"torch", "builtins", "fx2onnx", "numpy", *sys.stdlib_module_names})


def _spaces_of(tree: ModuleTree, own: Sequence[Callable[..., object]]) -> Iterator[Names]:
    """Globals of the files that define the classes of the modules or the forwards that are set on them, and of what files that
    are no installed library's import.
    """
    kinds = {base for kind in set(map(type, tree.modules)) for base in kind.__mro__}
    names = {kind.__module__ for kind in kinds if kind.__module__.split(".")[0] not in _NEVER}
    pending = [vars(sys.modules[name]) for name in names if name in sys.modules]
    for function in _functions_of(own):
        if not str(function.__globals__.get("__name__")).startswith("torch."):
            pending.append(function.__globals__)
    seen: set[int] = set()
    while pending:
        space = pending.pop()
        if id(space) not in seen:
            seen.add(id(space))
            yield space
            pending += _imported(space)


def _functions_of(held: Sequence[Callable[..., object]]) -> list[FunctionType]:
    """Functions that are attributes of modules, such as a ``forward`` of its own, and those that they hold in closures."""
    pending = [inspect.unwrap(value) for value in held]
    found: dict[int, FunctionType] = {}
    while pending:
        function = pending.pop()
        if isinstance(function, FunctionType) and id(function) not in found:
            found[id(function)] = function
            pending += [content_of(cell, "") for cell in function.__closure__ or ()]
    return list(found.values())


_NAMED = (ModuleType, FunctionType, type)


def _imported(space: Names) -> list[Names]:
    """The files of the user's own that a file of theirs has functions, classes or modules from."""
    if _is_library(space):
        return []
    found = {
        value.__name__ if isinstance(value, ModuleType) else value.__module__
        for value in list(space.values())
        if isinstance(value, _NAMED)
    }
    others = [name for name in found if isinstance(name, str) and name.split(".")[0] not in _NEVER]
    files = [vars(sys.modules[name]) for name in others if name in sys.modules]
    return [one for one in files if not _is_library(one)]


def _is_library(space: Names) -> bool:
    return str(space.get("__file__") or "").startswith(LIBRARIES)


_asking: Bounded[int, tuple[CodeType, bool]] = Bounded(20_000)
"""The answer for each code object, by its id; the object is kept."""


_asking_files: Bounded[int, tuple[Names, int, bool]] = Bounded(5_000)
"""The answer for each dict of globals, by its id, with the number of names it had; the dict is kept."""


def _asks_for_types(space: Names) -> bool:
    """Return whether a function of the installed file names ``type`` and one of Python's numbers."""
    known = _asking_files.get(id(space))
    if known is None or known[1] != len(space):
        known = _asking_files[id(space)] = space, len(space), _has_asking_function(space)
    return known[2]


def _has_asking_function(space: Names) -> bool:
    for value in list(space.values()):
        held = (
            vars(value).values() if isinstance(value, type) and value.__module__ == space.get("__name__") else (value,)
        )
        if any(isinstance(one, FunctionType) and _code_asks(one.__code__) for one in held):
            return True
    return False


def _code_asks(code: CodeType) -> bool:
    known = _asking.get(id(code))
    if known is None:
        inner = any(_code_asks(one) for one in code.co_consts if isinstance(one, CodeType))
        asks = inner or ("type" in code.co_names and not {"int", "float"}.isdisjoint(code.co_names))
        known = _asking[id(code)] = code, asks
    return known[1]
