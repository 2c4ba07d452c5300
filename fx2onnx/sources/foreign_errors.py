"""Errors of code that is not fx2onnx's own (libraries, models, factories) as ``UserError``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fx2onnx.base.errors import UserError


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def summary(error: BaseException | None, text: Callable[[BaseException], str] = first_line) -> str:
    """The error's class and ``text`` of it; empty for None."""
    return "" if error is None else f"{type(error).__name__}: {text(error)}"


@contextlib.contextmanager
def reported(
    what: str, *, text: Callable[[BaseException], str] = first_line, next: str = "", code: str = "E601"
) -> Iterator[None]:
    """Turn every exception inside into a UserError of the code with ``what``; a UserError stays as it is."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each library has a class for each kind of fault
        raise UserError(code, what, why=summary(error, text), next=next or ()) from error
