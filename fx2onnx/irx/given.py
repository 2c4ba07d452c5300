"""A model as callers give it, as the file that checks read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from fx2onnx.base.targets import path_text
from fx2onnx.irx import io
from fx2onnx.semantics.reading.load import content_of, load_model


@contextlib.contextmanager
def as_file(model: Any) -> Iterator[str]:
    """The path of a model: of the file that it is or that an export wrote; a model in memory gets one for the block.

    Raises: UserError E001 for an object that is no model, E301 for a path that cannot be one.
    """
    path = place_of(model)
    if path:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fx2onnx-given-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "given.onnx")
        held = model if isinstance(model, ir.Model) else getattr(getattr(model, "owned", None), "model", None)
        content = content_of(model)
        if held is not None:  # large weights go beside the file
            io.save(held, path)
        else:
            io.write_bytes(path, load_model(model).proto.SerializeToString() if content is None else content)
        yield path


def place_of(model: Any) -> str:
    """The path of the file that ``model`` is, or that an export wrote; empty for a model in memory."""
    if isinstance(model, str | os.PathLike):
        return path_text(model, "the model")
    path = getattr(model, "path", None)
    return path if isinstance(path, str) and os.path.exists(path) else ""


def name_of(model: Any) -> str:
    """The path of a model, or the name of its type where it is in memory."""
    return place_of(model) or type(model).__name__
