"""Errors of one shape: code, what, where, node, why, next.

Every field is an attribute, so that tests and ``--json`` read them; ``docs/errors.md`` has a section for each code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, cast

from fx2onnx.base.metadata import DOCS
from fx2onnx.base.notices import MADE
from fx2onnx.base.source import SourceLocation

CODES: dict[str, str] = {
    "E001": "an argument of the API or of the command line is wrong",
    "E101": "the module could not be called with the given arguments",
    "E102": "the module cannot be traced symbolically",
    "E103": "an in-place write cannot be expressed as a value",
    "E104": "Python control flow depends on tensor data",
    "E105": "dynamic_shapes or dynamic_axes does not fit the module",
    "E106": "the module changes a buffer or an input",
    "E107": "the module does something that capture does not support",
    "E108": "what is to be trained has no gradient",
    "E201": "an ATen overload has no translation to ONNX",
    "E202": "an operator needs a newer opset",
    "E203": "an argument, dtype or shape of a known ATen overload cannot be expressed in ONNX",
    "E204": "the target cannot run a node of the graph",
    "E301": "a file cannot be written",
    "E302": "a file cannot be read",
    "E303": "the ONNX model is not valid",
    "E304": "a file does not have its digest",
    "E401": "a feed does not fit the model's input",
    "E402": "the runner has no kernel for an operator",
    "E403": "a node failed while the model was running",
    "E404": "the model asks for more than a limit allows",
    "E501": "outputs differ from eager PyTorch",
    "E502": "the exported model is not verified",
    "E601": "a model source is unknown or cannot be built",
    "E602": "an optional package is missing",
    "E603": "what an installed package adds to fx2onnx cannot be used",
    "E604": "a cluster cannot be reached or was lost",
    "E900": "a fault of fx2onnx itself",
}

STEPS: dict[str, tuple[str, ...]] = {
    "E203": (
        "write that part of the module with other operators, or give it a translation of your own: @fx2onnx.translates",
    ),
    "E301": ("give a path in a folder that exists and can be written to",),
    "E302": (
        "check that this is the file you mean, and that it is complete: a download, a copy or git-lfs may have cut it",
    ),
    "E303": (
        "export the file again with the tool that wrote it; onnx.checker.check_model(PATH, full_check=True) may say more",
    ),
    "E401": ("fx2onnx inspect FILE prints the inputs, and session.get_inputs() has them",),
    "E402": ("give the runner a kernel with fx2onnx.runner.kernel, or run the file in onnxruntime",),
    "E404": ("raise the limit with an option of the runner where the file is trusted",),
}
"""The steps to take for errors that name none of their own, by code."""


def first_line(error: BaseException | None) -> str:
    """The first line that the error says; where it says nothing, the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def onnxruntime_errors() -> Iterator[None]:
    """Raise UserError E403 for what onnxruntime raises inside; other errors go on."""
    try:
        yield
    except Exception as cause:  # onnxruntime's classes share no base but Exception
        if not type(cause).__module__.startswith("onnxruntime"):
            raise
        why = " ".join(str(cause).split())[:600]  # the sizes that do not fit are in the lines behind the first
        step = "fx2onnx run FILE --input NAME=FILE.npy runs it in the bundled runner, whose errors name node and values"
        raise UserError("E403", "onnxruntime failed while running the model", why=why, next=step) from cause


class Fx2OnnxError(Exception):
    """Base of all errors that fx2onnx raises on purpose.

    ``code`` is a key of ``CODES``; ``what`` one sentence; ``where`` the user's source line; ``module_path`` the
    ``named_modules`` path; ``node`` one line about the graph node; ``why`` the reason; ``next`` what to do, in order.
    """

    exit_code = 1
    reason: Enum | None = None
    """The reason as a member of an enum, by which code decides how to go on; people read ``why``."""
    inputs: tuple[str, ...] = ()
    """The inputs of a module whose numbers Python would need."""
    is_caught: bool = False
    """True if the module's own ``except`` caught it: it may catch what other capture strategies raise, too."""
    own_class: type[Fx2OnnxError] | None = None
    """The class before ``catch_as_torch_error`` changed it; None if it did not."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        where: SourceLocation | None = None,
        module_path: str = "",
        node: str = "",
        why: str = "",
        next: Sequence[str] | str = (),
    ) -> None:
        if code not in CODES:
            raise KeyError(f"unknown error code {code}")
        self.code = code
        self.what = what
        self.where = where
        self.module_path = module_path
        self.node = node
        self.why = why
        self.next: tuple[str, ...] = ((next,) if isinstance(next, str) else tuple(next)) or STEPS.get(code, ())
        super().__init__(self.render())
        if MADE.errors is not None:
            MADE.errors.append(self)

    def render(self) -> str:
        """The error as people read it, one block of text."""
        lines = [f"[{self.code}] {self.what}"]
        if self.where is not None:
            lines += ["", *self.where.excerpt(self.module_path)]
        details = [("node", self.node), ("why", self.why)]
        indented = [(label, text.replace("\n", "\n" + " " * 8)) for label, text in details if text]
        body = [f"  {label:<5} {text}" for label, text in indented]
        for number, step in enumerate(self.next, 1):
            label = "next" if number == 1 else ""
            body.append(f"  {label:<5} {number}. {step}" if len(self.next) > 1 else f"  {label:<5} {step}")
        return "\n".join([*lines, "", *body, f"  {'docs':<5} {self.page}"])

    @property
    def page(self) -> str:
        """The address of the section on the error's code."""
        return f"{DOCS}errors.html#{self.code.lower()}"

    def add_next(self, steps: Sequence[str], *, before: Sequence[str] = ()) -> None:
        """Say more of what to do, where an error passes that knows it: ``before`` the steps that it has, and after them."""
        if steps or before:
            own = () if self.next == STEPS.get(self.code) else self.next
            self.next = (*before, *own, *steps)
            self.args = (self.render(),)

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {
            "code": self.code,
            "what": self.what,
            "where": None if self.where is None else self.where.as_dict(),
            "module_path": self.module_path,
            "node": self.node,
            "why": self.why,
            "next": list(self.next),
            "docs": self.page,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        rest = {name: getattr(self, name) for name in ("where", "module_path", "node", "why", "next")}
        return functools.partial(self.own_class or type(self), **rest), (self.code, self.what)


class UserError(Fx2OnnxError):
    """Something the user can change: the model, an argument, a file. Exit code 2."""

    exit_code = 2


class InternalError(Fx2OnnxError):
    """A fault of fx2onnx; worth a bug report. Exit code 1."""


FAULTS = (InternalError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a bug in a rewrite raises. Errors about memory, files or the user are not among them."""


class RewriteFailed(InternalError):
    """A rewrite or a pass that failed: its name, and the node that it failed at (empty for a pass)."""

    def __init__(self, rewrite: str, at: str, error: Exception) -> None:
        said = (error.what, error.why) if isinstance(error, Fx2OnnxError) else (f"{type(error).__name__}: {error}", "")
        place = f"{rewrite} failed at {at}" if at else f"{rewrite} failed"
        super().__init__("E900", f"{place}: {said[0]}", why=said[1])
        self.rewrite = rewrite
        self.at = at


class VerificationError(Fx2OnnxError):
    """The exported model's outputs differ from eager PyTorch's. Exit code 1."""

    locate: Callable[[], Any] | None = None
    """Finds the first wrong node, where whoever raised the error knows the module."""

    @functools.cached_property
    def first_wrong(self) -> Any:
        """The first wrong node (``fx2onnx.verify.FirstWrong``), looked for when it is first asked for; None where the module
        is not known, where nothing is found, or where the search itself fails.
        """
        if self.locate is None:
            return None
        try:
            return self.locate()
        except Exception:  # a search that fails must not hide the error that it is about
            return None


def catch_as_torch_error(error: Fx2OnnxError) -> None:
    """Let ``except torch.onnx.OnnxExporterError`` catch ``error`` where torch is loaded, which loads ``torch.onnx`` when first asked."""
    torch = sys.modules.get("torch")
    if torch is not None and error.own_class is None:
        own: Any = type(error)
        with contextlib.suppress(ImportError, AttributeError):  # a torch that lacks what torch.onnx needs
            error.__class__ = _torch_class(own, torch.onnx.OnnxExporterError)


@functools.cache
def _torch_class(own: Any, theirs: Any) -> type[Fx2OnnxError]:
    names = ("__module__", "__qualname__", "__doc__")
    joint: Any = type(own.__name__, (own, theirs), {name: getattr(own, name) for name in names})
    joint.own_class = own
    return cast(type[Fx2OnnxError], joint)


_OTHER_NAMES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "double": "float64",
    "fp8": "float8",
}
"""The names that other tools give to dtypes."""


def unknown_word(what: str, value: object, known: Iterable[str]) -> UserError:
    """The error E001 for a value that is none of the ``known`` words, with the one that it may stand for."""
    import difflib

    known = list(known)
    other = _OTHER_NAMES.get(str(value).lower(), "")
    close = [other] if other in known else difflib.get_close_matches(str(value), known, 1, 0.6)
    steps = [*(f"did you mean {each}?" for each in close), f"one of {', '.join(known)}"]
    return UserError("E001", f"{what} {value!r:.40} is not known", next=steps)


def no_such_file(path: str | os.PathLike[str], what: str = "") -> UserError:
    """The error E302 for ``path``, which is no file: a folder, or missing. Its steps name files that may be meant."""
    text, begin = os.fspath(path), f"cannot read {what} '{os.fspath(path)}'".replace("  ", " ")
    if os.path.isdir(text):
        return UserError("E302", begin, why="it is a folder", next="give a file in it")
    folder = os.path.dirname(os.path.abspath(os.path.expanduser(text)))
    if not os.path.isdir(folder):
        return UserError(
            "E302", begin, why="there is no such file", next=f"check the path: there is no folder '{folder}'"
        )
    try:
        beside = os.listdir(folder)
    except OSError:
        beside = []
    import difflib

    close = difflib.get_close_matches(os.path.basename(text), sorted(beside), 3, 0.7)
    meant = f"did you mean {' or '.join(os.path.join(os.path.dirname(text), name) for name in close)}?"
    steps = [meant if close else f"check the path: it is not in '{folder}'"]
    if re.fullmatch(r"([\w.]+|.*\.py):\w[^/\\]*", text):
        other = f"fx2onnx export '{text}' -o model.onnx makes a file of the source"
        steps = [f"{other}; in verify and locate the ONNX file comes first, then the model"]
    return UserError("E302", begin, why="there is no such file", next=steps)
