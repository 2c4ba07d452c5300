"""The check that every ONNX file passes before a command reads it: what a file must say for any runtime to take it.

Nothing native looks at a file before: shape inference, inlining and sessions of other runtimes run in this process, and a
malformed file can make C++ end it.
"""

from __future__ import annotations

import os

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.reading.build import build_program
from fx2onnx.semantics.reading.load import AGAIN, LoadedProto, load_model
from fx2onnx.semantics.reading.static_shapes import check_static_shapes


def check_model(loaded: LoadedProto) -> LoadedProto:
    """The model itself, where it is valid. The runner need not have kernels for it, and files of weights need not be there.

    Raises: UserError E303 for what contradicts itself or ONNX, E404 for what is too large to look at.
    """
    program = build_program(loaded, runs=False)
    with np.errstate(all="ignore"):
        check_static_shapes(program, {})
    return loaded


def open_file(path: str | os.PathLike[str]) -> LoadedProto:
    """Read a file and check it. Raises: UserError E302 for a file that cannot be read; as ``check_model``."""
    text = os.fspath(path)
    loaded = load_model(text)
    if not loaded.proto.HasField("graph") or not loaded.proto.ir_version:
        why = "it is empty" if not os.path.getsize(text) else "it has no graph, or does not say its version"
        raise UserError("E303", f"'{text}' is not an ONNX model", why=why, next=AGAIN)
    try:
        return check_model(loaded)
    except UserError as error:
        what = f"'{text}' is not a valid ONNX model: {error.what}"
        raise UserError(error.code, what, node=error.node, why=error.why, next=error.next) from error
