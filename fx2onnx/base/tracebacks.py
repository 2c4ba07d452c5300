"""Frames that an error's traceback holds on to, with everything that their variables refer to."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator

from fx2onnx.base.source import PACKAGE_FOLDER

_PACKAGE = PACKAGE_FOLDER + os.sep


def empty_frames(error: BaseException) -> None:
    """Empty the finished frames of this package in the tracebacks of ``error`` and of the errors that it came from.

    A variable there that holds the error makes a cycle: what else the frames have, weights among it, would live until the
    collector comes by, long after the error. Frames of the user's and of torch stay as they are, for a debugger.
    """
    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename.startswith(_PACKAGE):
                with contextlib.suppress(RuntimeError):  # it is running
                    frame.clear()


def drop_frames(error: BaseException) -> None:
    """Take the tracebacks from ``error``, which is kept and not raised on: a frame also holds the one that called it."""
    for each in _chain(error):
        each.__traceback__ = None


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and all that it came from."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        last = pending.pop()
        if last is not None and all(last is not other for other in chain):
            chain.append(last)
            pending += [last.__cause__, last.__context__]
    return chain


@contextlib.contextmanager
def frames_emptied() -> Iterator[None]:
    """Errors that leave the block hold nothing through frames of this package."""
    try:
        yield
    except BaseException as error:
        empty_frames(error)
        raise
