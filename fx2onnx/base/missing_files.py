"""The error for a file that is not there."""

from __future__ import annotations

import difflib
import os

from fx2onnx.base.errors import UserError


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
    close = difflib.get_close_matches(os.path.basename(text), sorted(beside), 3, 0.7)
    meant = f"did you mean {' or '.join(os.path.join(os.path.dirname(text), name) for name in close)}?"
    return UserError(
        "E302", begin, why="there is no such file", next=meant if close else f"check the path: it is not in '{folder}'"
    )
