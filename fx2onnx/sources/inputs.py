"""The files that a source is read from, which no output of the same command may replace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fx2onnx.sources.registry import FOLDERS, is_file, prefixes, with_kind
from fx2onnx.sources.source import WEIGHT_WORDS

_EXPORTED = (".onnx", ".data")
"""The suffixes of files in a checkpoint's folder that are none of its own: exports by reference, which are made anew
there."""


def input_files(spec: str, weights: str | None = None) -> list[Path]:
    """The files of ``hf:FOLDER`` and other folders, ``gguf:FILE``, ``file:PATH``, the file of a factory, and a file given as ``weights``. Imports nothing."""
    kind, _, rest = with_kind(spec).partition(":")
    files = [] if weights is None or weights in WEIGHT_WORDS else [Path(weights).expanduser()]
    if kind == "gguf" and os.path.isfile(Path(rest.partition("?")[0]).expanduser()):
        files.append(Path(rest.partition("?")[0]).expanduser())
    elif kind in ("gguf", *FOLDERS):
        folder = Path(rest.partition("?")[0]).expanduser()
        inside = (folder.iterdir() if kind == "hf" else folder.rglob("*")) if os.path.isdir(folder) else ()
        files += [path for path in inside if path.suffix not in _EXPORTED and os.path.isfile(path)]
    elif is_file(spec):
        files.append(Path(spec.removeprefix("file:").partition("?")[0]).expanduser())
    elif kind.endswith(".py"):
        files.append(Path(kind))
    elif kind not in prefixes():
        parts = kind.split(".")
        places = (Path(base, *parts) for base in ("", *sys.path))
        candidates = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
        files += [file for file in candidates if os.path.isfile(file)]
    return files
