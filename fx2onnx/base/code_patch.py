"""Let the callers of a function reach another one: by its code object, so it does not matter under which names they have
it, and no class changes (torch.nn.Module has thousands of subclasses, whose caches would have to be forgotten).

Only the thread that put the patch in reaches the other function; in every other one the function does what it does. What
has no code object (a builtin) is replaced by name, by something that looks in ``THREAD`` which of the two it is.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial, wraps
from operator import is_
from threading import get_ident
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from fx2onnx.base.changes import before_change

_NUMBERS = itertools.count()
_ABSENT = object()


class _Thread(threading.local):
    captures = False
    """True while this thread runs a module on fake tensors."""
    tracer: Any = None
    """The tracer of the run, for code below it that has to do with capture."""
    fuses_attention = False
    """True if torch's modules may take their fused attention while a module is captured."""


THREAD = _Thread()


class Patched(NamedTuple):
    """A name that is another while a module is captured."""

    holder: Any
    """The module, class or namespace that has the name, or the function whose code it is."""
    name: str
    replacement: object
    why: str


_PATCHED: dict[tuple[int, str], Patched] = {}
"""The names that are others now and are in no group, by the id of their holder and the name: one thread captures at a time."""


class SharedReason:
    """The reasons that many patches share."""

    SIZES = "torch's own takes plain numbers: this one takes symbolic sizes, too"
    PYTHON = "Python computes with numbers that may be symbolic sizes"
    METHODS = "an integer or a real number has it, and torch's symbolic one has not, or asks for the number"
    ASKED = "Python asks a tensor for what no operator shows"
    QUESTIONS = "torch's Python asks of its own symbolic sizes, which ours are not"
    WRITTEN = "the operators that it stands for are recorded, as it is written, uncompiled"
    SCRIPT = "TorchScript is run by Python, one operator at a time"


CALLING: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()
"""Code that is put in the place of a function's, to call another one; by id."""


def put_name(holder: Any, name: str, value: Any, why: str = "") -> None:
    """``name`` of a dict, module, class or cell is ``value`` until ``Changes`` end, or until other code sets it. ``why``: the reason in
    ``patched()``, for a name that others than fx2onnx use.
    """
    before = content_of(holder, name)
    if before is not value:  # else a capture around this one did it
        before_change(partial(_put_back, holder, name, value, before))
        if why:
            _PATCHED[id(holder), name] = Patched(holder, name, value, why)
        _put(holder, name, value)


_Done: TypeAlias = tuple[Any, dict[str, Any], dict[str, Any]]
"""A holder, replacements by name, and what the holder had under those names that were put in."""


class NameGroup:
    """Many names of modules and classes that are put in and back together, each as ``put_name`` does it."""

    def __init__(self, names: Iterable[Patched]) -> None:
        self.names = list(names)
        self._held: dict[int, tuple[Any, dict[str, Any]]] = {}
        for each in self.names:
            self._held.setdefault(id(each.holder), (each.holder, {}))[1][each.name] = each.replacement

    def put_in(self) -> None:
        """Put the names in until ``Changes`` end, or until other code sets them."""
        done: list[_Done] = []
        before_change(partial(_put_all_back, done))
        _GROUPS[id(done)] = self
        for holder, values in self._held.values():
            space = vars(holder)
            before = {name: space.get(name, _ABSENT) for name in values}
            if any(map(is_, before.values(), values.values())):  # a capture around this one did it
                before = {name: found for name, found in before.items() if found is not values[name]}
            done.append((holder, values, before))
            for name in before:
                setattr(holder, name, values[name])


_GROUPS: dict[int, NameGroup] = {}
"""The groups that are in, by the id of the list of what they replaced."""


def patched() -> list[Patched]:
    """All names of Python, torch and the user's files that are others now."""
    return [*_PATCHED.values(), *(each for group in [*_GROUPS.values()] for each in group.names)]


def _put_all_back(done: list[_Done]) -> None:
    _GROUPS.pop(id(done), None)
    while done:
        holder, values, before = done[-1]
        space = vars(holder)
        for name, found in before.items():
            if space.get(name) is values[name]:
                delattr(holder, name) if found is _ABSENT else setattr(holder, name, found)
        done.pop()


def content_of(holder: Any, name: str) -> Any:
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # a cell that was not filled yet
            return _ABSENT
    return (holder if isinstance(holder, dict) else vars(holder)).get(name, _ABSENT)


def _put_back(holder: Any, name: str, value: Any, before: Any) -> None:
    _PATCHED.pop((id(holder), name), None)
    if content_of(holder, name) is value:
        _put(holder, name, before)


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, dict):
        holder.pop(name, None) if value is _ABSENT else holder.__setitem__(name, value)
    elif value is _ABSENT:
        delattr(holder, name)
    else:
        setattr(holder, name, value)


class Delegate:
    """A stand-in with every name that ``original`` has, except those that a subclass defines."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)


class WithHashOf(partial[Any]):
    """A function with the hash of ``original``: an overload has that of what it calls, and torch keeps sets of overloads, whichever
    thread makes them first.
    """

    hash: int

    def __new__(cls, original: object, function: Callable[..., Any]) -> WithHashOf:
        made = super().__new__(cls, function)
        made.hash = hash(original)
        return made

    def __hash__(self) -> int:
        return self.hash


class CodePatch:
    """``function`` calls ``replacement(original)`` while the patch is in; ``original`` computes what it computes otherwise. ``why``: the
    reason in ``patched()``.
    """

    def __init__(
        self, patched: Callable[..., object], replacement: Callable[[FunctionType], Callable[..., object]], why: str
    ) -> None:
        function = cast(FunctionType, patched)
        original = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        instead = replacement(original)

        @answers_for_caller
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return (instead if get_ident() == self._thread else original)(*args, **kwargs)

        self.original = original
        name = f"__fx2onnx_patch_{next(_NUMBERS)}"
        self._prepare(function, _calling(name, function.__code__), {name: called}, why)
        CALLING[id(self._calling)] = self._calling

    @classmethod
    def of_code(cls, function: Callable[..., object], code: CodeType, why: str, **names: Any) -> CodePatch:
        """``function`` runs ``code``, which finds ``names`` among the function's globals: no frame more than before. In other
        threads, too, so ``code`` checks which one it is.
        """
        made = cls.__new__(cls)
        made._prepare(cast(FunctionType, function), code, names, why)
        return made

    def _prepare(self, function: FunctionType, code: CodeType, names: dict[str, Any], why: str) -> None:
        self.function, self._why = function, why
        self.code = function.__code__
        self._thread = 0
        self._calling = code.replace(
            co_name=self.code.co_name,
            co_qualname=self.code.co_qualname,
            co_filename=self.code.co_filename,
            co_firstlineno=self.code.co_firstlineno,
        )
        # The names stay: another thread may have entered the patched code when this one takes the patch out.
        function.__globals__.update(names)

    def still_fits(self, function: Callable[..., object]) -> bool:
        """Return whether this is for ``function`` with the code that it has now."""
        code = self.function.__code__
        return self.function is function and (code is self.code or code is self._calling)

    def put_in(self) -> bool:
        """Patch the code for this thread until its ``Changes`` end. Returns whether it is: another one may have it."""
        if not self._thread:
            before_change(self.take_out)
            self._thread = get_ident()
            _PATCHED[id(self.function), "__code__"] = Patched(self.function, "__code__", self._calling, self._why)
            self.function.__code__ = self._calling
        return self._thread == get_ident()

    def take_out(self) -> None:
        """The function's own code again."""
        _PATCHED.pop((id(self.function), "__code__"), None)
        self.function.__code__ = self.code
        self._thread = 0


def instead_of(function: Callable[..., object], instead: Callable[..., object], why: str) -> CodePatch:
    """The patch by which callers of ``function`` reach ``instead``, which needs nothing of it."""
    return CodePatch(function, lambda original: instead, why)


def _calling(name: str, code: CodeType) -> CodeType:
    """Code that calls ``name``; it holds as many cells as ``code``, in whose place it is put."""
    cells = code.co_freevars
    lines = ["def outer():", *(f"    {cell} = None" for cell in cells), "    def calling(*args, **kwargs):"]
    lines += [f"        return {name}(*args, **kwargs)", *(f"        {cell}" for cell in cells), "    return calling"]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    made: CodeType = space["outer"]().__code__
    return made


F = TypeVar("F", bound=Callable[..., object])

ANSWERING: dict[int, CodeType] = {}
"""Code of such functions by id: code objects that read the same are equal, whatever file or class they are of."""


def answers_for_caller(answering: F) -> F:
    """Register a function, or the methods of a class, with the functions inside."""
    functions = vars(answering).values() if isinstance(answering, type) else (answering,)
    for function in functions:
        plain = function.fget if isinstance(function, property) else function
        if isinstance(plain, FunctionType):
            _register(plain.__code__)
    return answering


def _register(code: CodeType) -> None:
    ANSWERING[id(code)] = code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _register(constant)
