"""Watches what a thread runs besides operators, which the tracer sees: whether it changes anything that Python could see later.

While a body of a statement runs, nothing but computing with tensors is allowed (``more_than_computing``): a function of anybody but
torch must neither give attributes, elements or variables of others a value nor call what might. While a call of a module runs, what
may last counts (``lasting_changes``): a function gives no variable of others, and no attribute of anything but ``self``, a value;
modules, and lists and dicts that they and the arguments hold, are compared with what they were (``Contents``). ``RunBefore`` is the
run around one path of a call.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import os
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import is_
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FrameType
from typing import TypeAlias

import numpy as np
import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.memoized import Bounded
from fx2onnx.capture.python.held import is_equal_number
from fx2onnx.capture.python.module_state import host_states
from fx2onnx.capture.recording.decisions import DecisionTrace
from fx2onnx.capture.recording.nested import ValuesBefore
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.frames import is_user
from fx2onnx.torchcompat.graphs import RecordedGraph

Trace: TypeAlias = Callable[[FrameType, str, object], "Trace | None"]
_OWN = frozenset(
    {"STORE_FAST", "DELETE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_MAYBE_NULL"}
)
"""Instructions that change what no one else sees."""
_CHANGES = ("STORE_", "DELETE_", "IMPORT_", "YIELD_", "SEND")
_LIBRARY, _SITE = os.path.dirname(dis.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
_NUMPY = os.path.dirname(np.__file__) + os.sep
_HIDES_CALLS = frozenset({"map", "filter", "exec", "eval", "partial", "reduce", "partialmethod", "methodcaller"})
"""Names of functions that call other functions without the watch seeing it."""
_BINDS = functools.partialmethod.__get__.__code__
"""The code that arithmetic of sizes is called through, which changes nothing."""
_OF_BUILTINS = frozenset(
    {"abs", "all", "any", "callable", "divmod", "getattr", "hasattr", "hash", "id", "isinstance", "issubclass", "len"}
) | {"max", "min", "pow", "round", "sorted", "sum"}
"""Builtin functions that compute only."""
_READS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
"""Methods of lists and dicts."""
_PLAIN = (str, bytes, int, float, complex, tuple, frozenset)
_SEEN = (*_PLAIN, torch.Tensor, torch.dtype, torch.device, torch.SymInt, torch.SymFloat)
"""Classes whose methods compute only."""


@lru_cache(maxsize=4096)
def _computes_only(code: CodeType) -> bool:
    """Return True if a function assigns to its own variables only. The tracer sees what torch's functions change."""
    if not is_user(code) or code is _BINDS:
        return True
    if _HIDES_CALLS & {*code.co_names}:
        return False
    return not any(map(_changes_others, dis.get_instructions(code)))


def _changes_others(one: dis.Instruction) -> bool:
    """Return whether an instruction gives anything but a variable of its function a value; ``x += y`` may write into ``x``."""
    is_in_place = one.opname == "BINARY_OP" and one.argrepr.endswith("=")
    return is_in_place or (one.opname.startswith(_CHANGES) and one.opname not in _OWN)


def _is_harmless(function: object) -> bool:
    """Return whether a function of C computes only."""
    if not isinstance(function, BuiltinFunctionType | BuiltinMethodType):
        return False
    owner = function.__self__
    if isinstance(owner, _SEEN) or owner is math or (owner is builtins and function.__name__ in _OF_BUILTINS):
        return True
    if isinstance(owner, list | dict):
        return function.__name__ in _READS
    name = getattr(owner, "__module__", None) if isinstance(owner, type) else getattr(owner, "__name__", None)
    return str(name or function.__module__).startswith("torch")


def _is_of_user(frame: FrameType | None) -> bool:
    """Return whether a function is the user's, or one of Python's own library or of NumPy that the user's called, rather than torch's."""
    while frame is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_user(frame.f_code)


def _is_of_library(file: str) -> bool:
    """Return whether it runs for whoever called it, as a text that torch evaluates does; a body that evaluates one is seen to."""
    return file == "<string>" or file.endswith("typing_extensions.py") or file.startswith(_NUMPY) or _is_of_python(file)


def _is_of_libraries(file: str) -> bool:
    """Return True for a file of Python's standard library or of NumPy."""
    return file.startswith(_NUMPY) or _is_of_python(file)


def _is_of_python(file: str) -> bool:
    """Return whether a function is one of Python's own library."""
    return file.startswith(_LIBRARY) and _SITE not in file


def more_than_computing(frame: FrameType, function: object) -> str:
    """Name the side effect of a Python function, or of the C ``function`` that the frame calls. Empty if there is none."""
    if function is None:
        does_more = not _computes_only(frame.f_code) and _is_of_user(frame)
        return f"{frame.f_code.co_qualname} may do more than compute" if does_more else ""
    return f"{function} is called" if not _is_harmless(function) and _is_of_user(frame) else ""


@answers_for_caller
class SideEffectWatch:
    """A watch of what this thread runs, whose ``seen`` says what ``found`` finds in the frame of a function that begins, or in one that
    calls a function of C. ``at_line(frame, line, None)`` is called before each line of the frames that were begun with, and
    ``at_line(frame, None, value)`` as such a frame ends with a value.
    """

    def __init__(
        self,
        found: Callable[[FrameType, object], str],
        at_line: Callable[[FrameType, int | None, object], None] | None = None,
    ) -> None:
        self._found, self._at_line = found, at_line
        self._before: tuple[object, object] | None = None
        self._frames: list[tuple[FrameType, object]] = []
        self.seen = ""

    def begin(self, frame: FrameType | None = None) -> None:
        if self._before is None:
            before = self._before = sys.gettrace(), sys.getprofile()
            before_change(lambda: _set(*before) if self._before is not None else None)
            self.seen = ""
        if frame is not None:
            self._frames.append((frame, frame.f_trace))
            frame.f_trace = self._of_lines
            sys.settrace(self._of_calls)
        self.go_on()

    def end(self) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            while self._frames:
                frame, trace = self._frames.pop()
                frame.f_trace = trace  # type: ignore[assignment]
            _set(*before)

    def pause(self) -> None:
        """The tracer runs."""
        if self._before is not None:
            sys.setprofile(None)

    def go_on(self) -> None:
        if self._before is not None:
            sys.setprofile(self._profile)

    def _of_calls(self, frame: FrameType, event: str, arg: object) -> None:
        """Lines of frames that begin later are of no interest."""

    def _of_lines(self, frame: FrameType, event: str, arg: object) -> Trace | None:
        if self._at_line is not None and event in ("line", "return"):
            self._at_line(frame, *((frame.f_lineno, None) if event == "line" else (None, arg)))
        elif event == "exception" and isinstance(arg, tuple) and not issubclass(arg[0], StopIteration):
            self.seen = f"{arg[0].__name__} is raised"
        return self._of_lines if self._before is not None else None

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self.seen = self._found(frame, arg) or self.seen


def _set(trace: object, profile: object) -> None:
    sys.settrace(trace)  # type: ignore[arg-type]
    sys.setprofile(profile)  # type: ignore[arg-type]


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
ITSELF = "an attribute of itself"

_seen_code: Bounded[int, tuple[CodeType, str]] = Bounded(20_000)
"""The changes that each code object makes, by its id; the object is kept."""


class Contents:
    """The contents of modules and other objects, to be compared later."""

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
        self._drawn = host_states()

    def changed(self) -> bool:
        return self._drawn != host_states() or any(not _is_same(_content(holder), kept) for holder, kept in self._kept)


def _content(holder: object) -> list[object]:
    if isinstance(holder, dict):
        return [*holder.keys(), *holder.values()]
    return [*holder]  # type: ignore[misc]


def _is_same(now: list[object], before: list[object]) -> bool:
    if len(now) != len(before):
        return False
    return all(map(is_, now, before)) or all(map(is_equal_number, now, before))


def lasting_changes(modules: Iterable[torch.nn.Module]) -> Callable[[FrameType, object], str]:
    """Return a watch for changes that outlive a function. Changes to attributes of ``modules`` alone do not count."""
    own = {id(module) for module in modules}

    @answers_for_caller
    def found(frame: FrameType, function: object) -> str:
        if function is not None:
            return ""
        code = frame.f_code
        known = _seen_code.get(id(code))
        if known is None:
            is_looked_at = is_user(code) and not _is_of_libraries(code.co_filename)
            changes = _changes_of(code, frame.f_globals) if is_looked_at else ""
            known = _seen_code[id(code)] = code, changes
        changes = known[1]
        is_own = changes == ITSELF and id(frame.f_locals.get(code.co_varnames[0])) in own
        return f"{code.co_qualname} changes {changes}" if changes and not is_own else ""

    return found


def _changes_of(code: CodeType, space: dict[str, object]) -> str:
    """A text that names what a function may change beyond its own variables."""
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
    """Return whether an instruction gives the first parameter last, as ``self.a = b`` does before the attribute."""
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    return one.opname.startswith("LOAD_FAST") and bool(code.co_argcount) and names[-1] == code.co_varnames[0]


def adopt(env: ShapeEnv, joined: ShapeEnv) -> None:
    """Take over the facts on sizes that all paths found together."""
    inner = joined.unbacked - env.unbacked
    env.know(unbacked=env.unbacked | inner)
    env.hints = {**env.hints, **{name: joined.hints[name] for name in inner}}
    env.next_unbacked = max(env.next_unbacked, joined.next_unbacked)
    for condition in joined.facts.conditions:
        if condition not in env.facts.conditions:
            env.narrow(condition.name, condition.sizes)
    env.know(conditions=joined.facts.conditions)
    env.guards = {**env.guards, **joined.guards}
    env.specializations = {**env.specializations, **joined.specializations}
    env.numbers_in |= joined.numbers_in
    env.assertions = {**env.assertions, **joined.assertions}
    env.asked_few |= joined.asked_few
    env.tried = {**env.tried, **joined.tried}


class RunBefore:
    """A run before a path: its parts as they were, to go back to."""

    def __init__(self, tracer: Tracer, trace: DecisionTrace, watch: SideEffectWatch) -> None:
        self._tracer = tracer
        self._values, self._sizes, self._types = ValuesBefore(tracer.values), tracer.sizes.kept(), tracer.types.kept()
        self.is_new = self._values.is_new
        self._symbols, self._scalars = dict(tracer.values.symbols), dict(tracer.unbacked_scalars)
        self._run = tracer.begin_path(RecordedGraph(), trace, watch)
        self._counts = self._noted()

    def _noted(self) -> tuple[int, ...]:
        tracer = self._tracer
        return len(tracer.numbers_read), len(tracer.quantized)

    def changed(self) -> str:
        """A text that names changes that others see."""
        if self._values.written():
            return "it writes into a tensor from outside it"
        if self._noted() != self._counts:
            return "it reads numbers of a tensor"
        return ""

    def restore(self) -> ShapeEnv:
        """Restore the state before; returns the sizes at the end of the path, with the guards of the path alone."""
        tracer, before = self._tracer, self._sizes.guards
        after = tracer.sizes.go_back(self._sizes)
        after.without_guards({key for key, guard in after.guards.items() if before.get(key) is guard})
        tracer.types.go_back(self._types)
        tracer.trace, tracer.has_if_bodies, tracer.watch = self._run
        self._values.restore()
        tracer.values.symbols, tracer.unbacked_scalars = self._symbols, self._scalars
        return after
