"""Paths that a command will write to, checked before anything expensive happens."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError


def check_writable(path: Path) -> None:
    """Raise UserError E301 unless a file can be created or replaced at ``path``. Leaves nothing behind."""
    folder = path.parent
    if path.is_dir():
        raise UserError(
            "E301", f"cannot write '{path}'", why="it is a folder", next="give a file name, such as model.onnx"
        )
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError("E301", f"cannot write '{path}'", why=f"'{folder}' {what}", next=f"mkdir -p '{folder}'")
    try:
        # Replacing a file needs a writable folder, whatever the file's own mode; only trying tells for sure.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError("E301", f"cannot write '{path}'", why=error.strerror or str(error)) from error


def check_readable(path: Path) -> None:
    """Raise UserError E302 unless ``path`` is a readable file."""
    if path.is_dir():
        raise UserError("E302", f"cannot read '{path}'", why="it is a folder")
    if not path.is_file():
        raise UserError("E302", f"cannot read '{path}'", why="there is no such file")
    if not os.access(path, os.R_OK):
        raise UserError("E302", f"cannot read '{path}'", why="permission denied")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well and disappears otherwise.

    Raises:   UserError E301 where the system refuses to write.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; the result is an ordinary one
        temporary.replace(path)
    except OSError as error:
        raise UserError("E301", f"cannot write '{path}'", why=error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_report(path: Path, summary: Any) -> None:
    """``summary`` as JSON, whole or not at all. Raises UserError E301."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(summary, indent=2, default=str) + "\n", encoding="utf-8")
