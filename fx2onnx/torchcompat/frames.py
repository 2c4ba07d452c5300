"""The frames of who is calling: the innermost frame of the user, the one that asks a question, and the node of a backward pass."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.autograd import graph as autograd_graph

from fx2onnx.base.code_patch import ANSWERING, CALLING, answers_for_caller
from fx2onnx.base.memoized import Bounded
from fx2onnx.base.source import ENTRANCES, PACKAGE_FOLDER, SourceLocation

TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__))
_NOT_USER = (
    TORCH_FOLDER + os.sep,
    PACKAGE_FOLDER + os.sep,
    "<frozen",
    os.path.dirname(contextlib.__file__) + os.sep + "contextlib",
)
_TORCH_INSTALLED = os.sep + os.path.join("site-packages", "torch") + os.sep
"""The folder of torch as installed on any machine; a saved program comes from another."""
_PROGRAMS = (os.path.join(TORCH_FOLDER, "_export", "db") + os.sep, os.path.join(TORCH_FOLDER, "testing") + os.sep)
"""Folders of torch that hold modules to export."""
_CALLS_SCRIPTED = os.path.join(TORCH_FOLDER, "testing", "_internal", "common_utils.py")
"""The module whose functions stand for the calls of scripted functions and modules once it is imported."""
_ANSWERING_FILES = {
    os.path.join(TORCH_FOLDER, *path) for path in (["__init__.py"], ["fx", "experimental", "sym_node.py"])
}
"""Files of torch that make functions of sizes by the hundred, and register none as answering."""
_SITE = os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))) + os.sep
_CALLED = (_SITE + "numpy" + os.sep, _SITE + "scipy" + os.sep)
"""Folders of libraries of which the line that calls them says more than one of theirs."""
_PYTHON, _PACKAGES = os.path.dirname(os.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
USER, CALLED, ENTRANCE, OTHER = "user", "called", "entrance", ""
_kinds: Bounded[int, tuple[CodeType, str]] = Bounded(20_000)
"""The owner of a code object, by the object's id; the object is kept. Code of equal functions in two files is equal,
and its hash takes long."""
_others: Bounded[int, CodeType] = Bounded(20_000)
"""The code objects of ``_kinds`` that are neither the user's nor an entrance, by id."""
_locations: Bounded[tuple[int, int], tuple[CodeType, SourceLocation]] = Bounded(20_000)
"""Locations by the id of the code and the line."""
_written_for: Bounded[int, tuple[CodeType, dict[int, SourceLocation]]] = Bounded(1_000)
"""The lines of the user for which the lines of generated code were written, by the id of the code; the code is kept."""
check: Any = torch._check
"""Ends the run where a condition of sizes does not hold; the graph goes on with it."""
_NN = os.path.join(TORCH_FOLDER, "nn") + os.sep
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)

LIBRARIES = tuple({sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")})
"""The folders of Python's own files and of installed packages."""


def is_user(code: CodeType) -> bool:
    """Return whether code is the user's or a library's that is not torch. Only a path can tell; our functions that answer are known."""
    return _kind(code) in (USER, CALLED)


def is_of_modules(code: CodeType) -> bool:
    """Return whether code is the user's, a library's, or that of ``torch.nn``, which is written as they are."""
    return is_user(code) or code.co_filename.startswith(_NN)


def _kind(code: CodeType) -> str:
    known = _kinds.get(id(code))
    if known is None:
        name = code.co_filename
        is_program = name.startswith(_PROGRAMS) and name != _CALLS_SCRIPTED
        is_ours = id(code) in ANSWERING or (name.startswith(_NOT_USER) and not is_program)
        is_ours = is_ours or _is_made(code)
        kind = (CALLED if is_called(code) else USER) if not is_ours else ENTRANCE if code in ENTRANCES else OTHER
        known = _kinds[id(code)] = code, kind
        if kind == OTHER:
            _others[id(code)] = code
    return known[1]


def _is_made(code: CodeType) -> bool:
    """Return whether code is a method that Python made, of a dataclass or a named tuple, and none of a program in a text (``python
    -c``).
    """
    is_method = code.co_name.startswith("__") or code.co_varnames[:1] == ("_cls",)
    return code.co_filename == "<string>" and is_method


def user_frame(within: CodeType | None = None) -> FrameType | None:
    """The innermost frame outside torch and fx2onnx; of those that ``within`` or a command called, where one did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if id(code) not in _others and (kind := _kind(code)):
            return None if kind == ENTRANCE else frame
        if code is within:
            return None
        frame = frame.f_back
    return None


def user_depth() -> int:
    """The number of calls of the innermost function outside torch and fx2onnx, one within another, that run now."""
    frame = user_frame()
    code, depth = None if frame is None else frame.f_code, 0
    while frame is not None:
        depth += frame.f_code is code
        frame = frame.f_back
    return depth


def user_location(within: CodeType | None = None) -> SourceLocation | None:
    """The innermost line outside torch and fx2onnx, and outside NumPy, SciPy and Python's library where other code calls them; of the
    frames that ``within`` called, where it is given.
    """
    asking = user_frame(within)
    if asking is None:
        return None
    if _kind(asking.f_code) == CALLED:
        frame = asking.f_back
        while frame is not None and is_called(frame.f_code):
            frame = frame.f_back
        if frame is not None and is_user(frame.f_code):
            asking = frame
    return location_at(asking.f_code, asking.f_lineno)


def is_in_numpy(code: CodeType) -> bool:
    """Return whether a function is one of NumPy or SciPy."""
    return code.co_filename.startswith(_CALLED)


def is_called(code: CodeType) -> bool:
    """Return whether a function is one of NumPy, SciPy or Python's library, of which the line that calls it says more."""
    name = code.co_filename
    return name.startswith(_CALLED) or (name.startswith(_PYTHON) and _PACKAGES not in name)


def user_location_of(error: BaseException) -> SourceLocation | None:
    """The innermost line outside torch and fx2onnx, and outside NumPy, SciPy and Python's library where other code calls them, that the
    error passed.
    """
    passed = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__) if is_user(f.f_code)]
    own = [each for each in passed if not is_called(each[0])]
    return location_at(*(own or passed)[-1]) if passed else None


def location_at(code: CodeType, line: int) -> SourceLocation:
    """The place of a line of code; of code that a graph generated, the place that the line was captured at, where it is known."""
    known = _locations.get((id(code), line))
    if known is None:
        _, places = _written_for.get(id(code), (code, {}))
        place = places.get(line) or SourceLocation(code.co_filename, line, code.co_name)
        known = _locations[id(code), line] = code, place
    return known[1]


def know_places(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Take an error in the generated code of ``module`` for one at the user's line that was captured, where its nodes say it."""
    for graph in module.modules():
        numbers = getattr(graph, "_lineno_map", None)
        if isinstance(graph, torch.fx.GraphModule) and numbers:
            nodes = list(graph.graph.nodes)
            lines = {number + graph._prologue_start: nodes[at] for number, at in numbers.items() if at < len(nodes)}
            code = type(graph).forward.__code__
            _written_for[id(code)] = (
                code,
                {line: place for line, node in lines.items() if (place := _captured_at(node))},
            )
    return module


def _captured_at(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line outside torch in the stack that a node was captured with."""
    own = None
    for found in _FRAME.finditer(node.meta.get("stack_trace") or ""):
        file = found["file"]
        if not file.startswith(_NOT_USER) and _TORCH_INSTALLED not in file:
            own = SourceLocation(file, int(found["line"]), found["function"])
    return own


@answers_for_caller
def asked_by_user() -> bool:
    """Return whether a decision on a size comes straight from the user's code rather than from inside torch."""
    frame = asking_frame()
    return frame is not None and is_user(frame.f_code)


def asking_frame() -> FrameType | None:
    """The innermost frame that is not part of answering for its caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        id(frame.f_code) in ANSWERING or frame.f_code.co_filename in _ANSWERING_FILES or id(frame.f_code) in CALLING
    ):
        frame = frame.f_back
    return frame


_C = torch._C
ENGINE_CODE = autograd_graph._engine_run_backward.__code__
"""The code of the function that calls autograd's engine: frames inside are those of the backward pass."""


def nodes_made() -> int:
    """The number that this thread's next node will get."""
    return int(_C._autograd._get_sequence_nr())


def running_node() -> int | None:
    """The number of the node whose backward runs in this thread."""
    node = _C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
