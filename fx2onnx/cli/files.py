"""Files of a command: those that it reads, and those that it will write to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError, no_such_file
from fx2onnx.base.targets import check_target
from fx2onnx.cli.outcome import json_text
from fx2onnx.files.staging import write_text


def check_readable(path: Path) -> None:
    """Raise UserError E302 unless ``path`` is a readable file."""
    if not os.path.isfile(path):
        raise no_such_file(path)
    if not os.access(path, os.R_OK):
        step = "run the command as a user who may read it"
        raise UserError("E302", f"cannot read '{path}'", why="permission denied", next=step)


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path]) -> None:
    """Every output can be written and is neither one of ``inputs`` nor another output. Raises UserError E301."""
    taken = list(inputs)
    for path in outputs:
        if path is not None:
            check_target(path, inputs=taken)
            taken.append(path)


def know_faults(path: Path | None) -> None:
    """Know the faults of engines in a table of the user's, if there is one. Raises UserError E001, E302."""
    if path is not None:
        from fx2onnx.targets.faults import add_table

        check_readable(path)
        add_table(path)


def write_report(path: Path, summary: Any) -> None:
    """``summary`` as JSON, whole or not at all. Raises UserError E301."""
    write_text(path, json_text(summary, indent=2) + "\n")


def write_report_of_folder(path: Path, folder: Path, summary: Any) -> None:
    """The same, where the report may not be one of the files that the export wrote. Raises UserError E301."""
    from fx2onnx.files.folder_commit import is_file_of_folder

    if is_file_of_folder(path, folder):
        raise UserError("E301", f"cannot write '{path}'", why="it is a file of the export", next="give another name")
    write_report(path, summary)
