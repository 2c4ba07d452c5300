"""Paths that something will be written to, checked before anything expensive happens."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    from os import PathLike

_KINDS = (
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def check_target(
    path: Any, *, inputs: Iterable[str | PathLike[str]] = (), what: str = "the model", is_trying: bool = True
) -> str:
    """The path as text, if a file can be made or replaced there that is none of ``inputs``. Leaves nothing behind.

    ``is_trying=False`` where the file is written next, which shows whether the folder may be written to.

    Raises:   UserError E301.
    """
    text = path_text(path, what)
    folder = os.path.dirname(os.path.abspath(text))
    try:
        status = os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except OSError as cause:
        raise _refusal(text, cause.strerror or str(cause)) from cause
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise _refusal(text, "it is a folder", "give a file name in it, such as model.onnx")
    if status is not None and not stat.S_ISREG(status.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "something else")
        raise _refusal(text, f"it is no regular file but {kind}", "give the name of a file")
    if not os.path.isdir(folder):
        above = folder
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise _refusal(text, f"'{above}' is not a folder", "give a path in a folder")
        raise _refusal(text, f"'{folder}' does not exist", f"mkdir -p '{folder}'")
    if is_trying:
        _try_writing(text, folder)
    for given in inputs:
        if is_same_file(given, text):
            raise _refusal(text, "this command reads that file or writes something else to it", "give another name")
    return text


def open_file(f: Any, *, has_own_data: bool | None = False) -> BinaryIO | None:
    """``f`` where it is an open file instead of a path; ``has_own_data``: whether weights go into a file of their own.

    Raises: UserError E301.
    """
    if not hasattr(f, "write") or isinstance(f, os.PathLike):
        return None
    if isinstance(f, io.TextIOBase):
        raise UserError("E301", "cannot write the model into a file of text", next="open it as open(path, 'wb')")
    if has_own_data:
        raise UserError(
            "E301",
            f"cannot write weights beside an open {type(f).__name__}",
            why="they go into a file of their own, by external_data=True or weight_files",
            next="give a path, or leave those out",
        )
    file: BinaryIO = f
    return file


def _try_writing(path: str, folder: str) -> None:
    """Replacing a file needs a writable folder, whatever the file's own mode; only a try shows for sure."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as cause:
        raise _refusal(path, cause.strerror or str(cause), "choose a folder you may write to") from cause


def is_same_file(one: str | PathLike[str], other: str | PathLike[str]) -> bool:
    """Return whether two paths lead to one file, by links or by another spelling."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


_SAVE = "save it first: result.save('model.onnx')"


def path_text(path: Any, what: str) -> str:
    """A path as text that every system call and every engine takes. Raises UserError E301."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UserError(
            "E301",
            f"the path of {what} is {type(path).__name__}, no path",
            next=_SAVE
            if hasattr(path, "save")
            else "give a path such as model.onnx; in export it comes after the example inputs",
        ) from None
    if not text:
        raise UserError("E301", f"the path of {what} is empty", next="give a path such as model.onnx")
    if "\0" in text:
        raise UserError("E301", f"the path {text[:200]!r} holds a NUL character", next="give a path such as model.onnx")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(
            "E301",
            f"the path {text[:200]!r} is not UTF-8",
            why="ONNX files name the file of their weights, and engines take paths, in UTF-8",
            next="give a path whose names are UTF-8",
        ) from None
    return text


def _refusal(path: str, why: str, next: str = "") -> UserError:
    return UserError("E301", f"cannot write '{path}'", why=why, next=next or "choose another name or folder")
