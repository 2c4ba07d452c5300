"""Files of a folder that another party may have made: nothing outside is read because the folder says so.

``inside`` finds a file that the folder names, ``read_object`` reads JSON. Both say in a UserError E302 which file is wrong.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePath
from typing import Any, NoReturn

from fx2onnx.base.errors import UserError
from fx2onnx.files.staging import BINARY

LIMIT_BYTES = 16 << 20
"""The largest size of a config; the largest that are known have a megabyte of labels."""
_LONGEST_NAME = 255
"""The longest name of a file in bytes, as in Linux."""
_DEEPEST = 64
"""Levels of objects and lists. Configs have four or five; what walks them may be recursive."""


def inside(folder: Path, name: Any, *, said_by: str = "") -> Path:
    """``folder / name``, which need not exist. Links are followed and have to end in the folder, except for those of a
    Hugging Face cache, ``snapshots/REVISION/FILE`` -> ``blobs/HASH`` of the same entry.

    Raises:   UserError E302 for a name that is no text, is absolute or goes up, and for a link that leads elsewhere.
    """
    by = f"{said_by} names it" if said_by else ""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(os.fsencode(name)) <= _LONGEST_NAME:
        raise UserError("E302", f"{name!r:.80} is no name of a file in '{folder}'", why=by)
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise UserError(
            "E302",
            f"'{name}' leads out of the folder '{folder}'",
            why=by,
            next="a folder's own files are read, no others: put the file itself there",
        )
    path = folder / name
    try:
        home, real = folder.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError) as cause:
        raise UserError("E302", f"cannot read '{path}'", why=str(cause)) from cause
    if (
        real != home
        and home not in real.parents
        and not (home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs")
    ):
        raise UserError(
            "E302",
            f"'{path}' leads out of its folder",
            why=f"it is a symbolic link to '{real}'",
            next=f"put the file itself there: cp --remove-destination '{real}' '{path}'",
        )
    return path


def read_object(path: Path, *, limit_bytes: int = LIMIT_BYTES, finite: bool = False) -> dict[str, Any]:
    """The JSON object of a regular file. With ``finite``, NaN and Infinity are no numbers.

    Raises:   UserError E302, which names the file: no regular file, too large, no UTF-8, no JSON, too deep, no object.
    """
    text = _text(path, limit_bytes)
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite) if finite else json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair can neither be printed nor opened
    except RecursionError as cause:
        raise _unreadable(path, "it is nested too deeply") from cause
    except ValueError as cause:
        raise _unreadable(path, f"it is no JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise _unreadable(path, f"it holds a {type(value).__name__}, no JSON object")
    if _is_deep(value):
        raise _unreadable(path, f"it is nested more than {_DEEPEST} levels deep")
    return value


def _text(path: Path, limit_bytes: int) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY)  # a FIFO would wait for its writer
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _unreadable(path, "it is no regular file")
            with open(handle, "rb", closefd=False) as stream:
                data = stream.read(limit_bytes + 1)
        finally:
            os.close(handle)
        if len(data) > limit_bytes:
            raise _unreadable(path, f"it is larger than {limit_bytes >> 20} MiB")
        return data.decode("utf-8")
    except (OSError, ValueError) as cause:
        raise _unreadable(path, getattr(cause, "strerror", None) or str(cause)) from cause


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if abs(number) != float("inf") else _refuse(text[:20])


def _unreadable(path: Path, why: str) -> UserError:
    return UserError("E302", f"cannot read '{path}'", why=why)
