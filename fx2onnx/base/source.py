"""The place in the user's Python that a node comes from."""

from __future__ import annotations

import inspect
import linecache
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from fx2onnx.base.escape import storable

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the package fx2onnx."""
ENTRANCES: set[CodeType] = set()
"""Code that runs the commands of the shell: what called it is no place in the user's Python."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """One line of the user's Python. ``line`` counts from 1."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.relative_file()}:{self.line}, in {self.function}"

    def relative_file(self) -> str:
        """The path below the working directory or the installed package, so that no machine's layout leaks."""
        return storable(_installed(self.file) or _relative(self.file, os.getcwd()))

    def excerpt(self, module_path: str = "") -> list[str]:
        """Heading and the lines around the place, the place marked with ``>``."""
        heading = f"  {self}" + (f"   (module: {module_path})" if module_path else "")
        lines = [heading]
        if not lines_of(self.file):  # typed at a prompt, or made by exec
            return lines
        for number in range(self.line - 1, self.line + 2):
            text = line_of(self.file, number).rstrip()
            if text or number == self.line:
                mark = ">" if number == self.line else " "
                lines.append(f"  {mark} {number:>5} | {text}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.relative_file(), "line": self.line, "function": self.function}


def lines_of(file: str) -> list[str]:
    """The lines of a source file as it is now; none where it cannot be read."""
    linecache.checkcache(file)
    return linecache.getlines(file)


def line_of(file: str, line: int) -> str:
    """One of ``lines_of``, counted from 1; empty where there is none."""
    return "".join(lines_of(file)[line - 1 : line]) if line > 0 else ""


def file_of(module: object) -> str | None:
    """The file of a module in ``sys.modules``. A module may import others when it is asked for an attribute; it is not."""
    try:
        file = vars(module).get("__file__")
    except TypeError:  # other objects stand there, too, and None
        return None
    return file if isinstance(file, str) else None


def place_of(function: Callable[..., Any]) -> str:
    """``file:line`` of a function's definition, below its decorators, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _installed(file: str) -> str:
    """The path below the folder of installed packages; empty for other files."""
    return file.partition(f"{os.sep}site-packages{os.sep}")[2]


@lru_cache(maxsize=4096)
def _relative(file: str, folder: str) -> str:
    relative = relative_path(file, folder) if os.path.isabs(file) else file
    return os.path.basename(file) if relative.startswith("..") or os.path.isabs(relative) else relative


def relative_path(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """``os.path.relpath``; the path itself where it is on another drive."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return os.fspath(path)
