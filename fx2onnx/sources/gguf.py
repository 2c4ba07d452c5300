"""Models in GGUF files, built by transformers."""

from __future__ import annotations

from pathlib import Path

from fx2onnx.base.errors import UserError
from fx2onnx.sources.hf import kind
from fx2onnx.sources.hf.gguf import architectures as names
from fx2onnx.sources.hf.gguf_file import SUFFIX, file_of
from fx2onnx.sources.source import Options, Source

__all__ = ["build", "names"]


def build(name: str, options: Options) -> Source:
    """The model in the file ``name``, or in the folder that has one."""
    place = Path(name).expanduser()
    if not place.exists():
        raise UserError("E302", f"there is no file '{name}'", next="gguf:FILE reads local files and downloads nothing")
    if file_of(place) is None:
        raise UserError("E302", f"'{name}' is no GGUF file", next=f"a file that ends in {SUFFIX}, or a folder with one")
    return kind.build(name, options)
