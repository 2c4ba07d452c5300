"""The end of a command: errors as one block (or JSON) and an exit code, and no traceback unless it is asked for."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, NoReturn, TypeVar, cast

import typer

from fx2onnx.base.errors import Fx2OnnxError, InternalError, UserError
from fx2onnx.base.escape import plain
from fx2onnx.base.notices import ExportWarning
from fx2onnx.base.packages import missing_package
from fx2onnx.base.source import ENTRANCES
from fx2onnx.base.stack_frames import wants_traceback
from fx2onnx.cli.options import gathered, groups_of

Result = TypeVar("Result")
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])
"""The base class of all errors of parsing, of the click that this version of typer uses."""
_LINES_SHOWN = 5
_KEYWORD = re.compile(r"""\b(\w+)=(?:\[("[\w.]+"(?:, "[\w.]+")*)\]|"([\w.-]+)"|(\d+|False)\b)""")
_SHAPES = re.compile(r"\bdynamic_shapes\b(?![=:])")
_OF_OTHER_TOOLS = {
    "--bits": "--kind",
    "--scheme": "--kind",
    "--weights": "--kind",
    "--weight-type": "--kind",
    "--fp16": "--dtype float16",
    "--half": "--dtype float16",
    "--int8": "--quantize int8",
}
"""Options that other tools have, and what they are here."""


def reports_errors(command: Callable[..., Result]) -> Callable[..., Result]:
    """Turn exceptions of a command into text on stderr and the exit code that scripts rely on.

    With ``json_output=True`` among the command's arguments the error's fields go to stdout as JSON instead. Groups of options
    among the parameters become a flag for each option.
    """
    signature, groups = groups_of(command)

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        try:
            with warnings.catch_warnings():
                # Commands show the report's warnings themselves. A filter of the user's own comes first.
                warnings.simplefilter("ignore", ExportWarning, append=True)
                if kwargs.get("strict"):
                    warnings.simplefilter("error", ExportWarning)
                return command(*args, **gathered(groups, kwargs))
        except Fx2OnnxError as error:
            error.next = tuple(in_flags(step, kwargs) for step in error.next)
            end_with(error, as_json=bool(kwargs.get("json_output")))
        except (typer.Exit, typer.Abort, typer.BadParameter, KeyboardInterrupt):
            raise
        except BrokenPipeError:
            # The reader (head, less) has gone; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:  # the last resort of a command: a bug in fx2onnx, shown as E900
            known = missing_package(error) or as_known(error)
            if isinstance(error, ExportWarning):
                known.what = in_flags(known.what, kwargs)
            _show(known, as_json=bool(kwargs.get("json_output")))
            raise typer.Exit(known.exit_code) from None

    ENTRANCES.add(cast(FunctionType, wrapped).__code__)
    vars(wrapped)["__signature__"] = signature
    wrapped.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return wrapped


def in_flags(step: str, known: Collection[str]) -> str:
    """A step or a warning with the options of the command, ``--opset 16``, in the place of Python's keywords, ``opset_version=16``."""
    if "--" in step:
        return step

    def flag(found: re.Match[str]) -> str:
        keyword, *values = map(str, found.groups(""))
        value = "".join(values).replace('"', "").replace(", ", ",")
        name = "opset" if keyword == "opset_version" else keyword
        if name not in known:
            return found[0]
        return f"--{'no-' * (value == 'False')}{name}".replace("_", "-") + f" {value}" * (value != "False")

    step = _KEYWORD.sub(flag, step)
    return _SHAPES.sub("--dynamic", step) if "dynamic" in known else step


@contextlib.contextmanager
def usage_errors(args: Sequence[str], command: str) -> Iterator[None]:
    """Around the parsing of ``args``: a wrong call is an error of fx2onnx, and an unknown option names those that it may stand for."""
    try:
        yield
    except _UsageError as error:
        if hasattr(error, "possibilities") and (flag := getattr(error, "option_name", "")):
            error.possibilities = _meant_flags(flag, error)
        shown = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(shown, err=True)
            raise typer.Exit(2) from None
        end_with(UserError("E001", shown.rstrip("."), next=f"{command} --help"), as_json="--json" in args)


def _meant_flags(flag: str, error: Any) -> list[str]:
    """Options of the command that an unknown ``flag`` may stand for: one that begins as it does, else the closest spellings."""
    known = [each for param in error.ctx.command.params for each in (*param.opts, *param.secondary_opts)]
    flag = flag.replace("_", "-")
    other = _OF_OTHER_TOOLS.get(flag, "")
    if other.partition(" ")[0] in known:
        return [other]
    same = [each for each in known if each.startswith("--") and (flag.startswith(f"{each}-") or each.startswith(flag))]
    return same or difflib.get_close_matches(flag, known, 3, 0.75)


def print_json(value: Any) -> None:
    """``value`` on stdout as indented JSON."""
    print(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON, which has no numbers that are not finite: they become ``"nan"``, ``"inf"`` and ``"-inf"``."""
    text = json.dumps(value, default=str)
    return json.dumps(json.loads(text, parse_constant=lambda name: str(float(name))), indent=indent)


def print_text(text: str) -> None:
    """``text`` on stdout, whatever stands in the names of a file."""
    print(plain(text), end="")


def print_warnings(texts: Iterable[str]) -> None:
    """Each warning as a line on stderr, for a command that shows no summary."""
    for text in texts:
        typer.echo(f"warning: {plain(text)}", err=True)


def first_lines(texts: Iterable[str]) -> str:
    """Each text once, the first few; the report has them all."""
    unique = list(dict.fromkeys(texts))
    rest = len(unique) - _LINES_SHOWN
    return "\n".join(unique[:_LINES_SHOWN] + ([f"and {rest} more (--report)"] if rest > 0 else []))


def as_known(error: Exception) -> Fx2OnnxError:
    """``error`` itself where it is one of fx2onnx, what a filter of warnings made of one, or E900."""
    if isinstance(error, ExportWarning):
        return UserError(
            "E001",
            str(error),
            why="warnings are errors here: --strict, or a filter (-W, PYTHONWARNINGS)",
            next="change what the warning names, or leave the option or the filter out",
        )
    return error if isinstance(error, Fx2OnnxError) else as_internal(error)


def as_internal(error: Exception) -> InternalError:
    """An exception that nobody expected, as E900 with its place."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    wrapped = InternalError(
        "E900",
        f"fx2onnx failed with {type(error).__name__}",
        why=f"{(str(error).strip().splitlines() or ['no message'])[0][:300]}   ({_short(frame.filename)}:{frame.lineno})",
        next=["see the whole traceback: FX2ONNX_TRACEBACK=1", "report it with the command line and the model"],
    )
    wrapped.__cause__ = error
    return wrapped


def _short(file: str) -> str:
    for marker in (f"{os.sep}site-packages{os.sep}", f"{os.sep}fx2onnx{os.sep}"):
        if marker in file:
            return file.rsplit(marker, 1)[1]
    return os.path.basename(file)


def end_with(error: Fx2OnnxError, *, as_json: bool) -> NoReturn:
    """Show the error and end the command with its exit code."""
    _show(error, as_json=as_json)
    raise typer.Exit(error.exit_code) from None


def _show(error: Fx2OnnxError, *, as_json: bool) -> None:
    if wants_traceback():
        cause = error.__cause__ if error.code == "E900" and error.__cause__ is not None else error
        typer.echo(plain("".join(traceback.format_exception(cause))), nl=False, err=True)
    if as_json:
        print_json(error.as_dict())
    else:
        show_error(error)


def show_error(error: Fx2OnnxError) -> None:
    """The error's block on stderr."""
    heading, _, rest = plain(error.render()).partition("\n")
    typer.secho(heading, fg="red", bold=True, err=True)
    if rest:
        typer.echo(rest, err=True)
