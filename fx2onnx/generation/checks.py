"""Checks of the inputs for an exported folder before an engine sees them: names, dtypes, shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.engine import Graph, dtype_of, shape_of
from fx2onnx.judge.engines import Array

_WHOLE = "iub"
TOKENIZE = 'AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="np") of transformers makes token ids of a text'


def cast(name: str, value: Any, onnx_type: str) -> Array:
    """``value`` as the graph's input ``name`` takes it. Raises UserError E401 where numbers would be lost."""
    try:
        array = np.asarray(value)
    except ValueError as cause:
        raise UserError("E401", f"{name} is no array", why=str(cause)) from cause
    wanted = np.dtype(dtype_of(onnx_type))
    loses = wanted.kind in _WHOLE and array.dtype.kind not in _WHOLE and not _is_whole(array)
    if array.dtype.kind in "OUSMm" or loses:
        is_text = array.dtype.kind in "OU" and wanted.kind in _WHOLE
        raise UserError("E401", f"{name} is {array.dtype}, the model takes {wanted}", next=TOKENIZE if is_text else ())
    return array.astype(wanted, copy=False)


def _is_whole(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isfinite(array).all() and (array == np.trunc(array)).all())


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> None:
    """Raises UserError E401 where a feed is missing or does not fit the graph's shape or another feed."""
    missing = [name for name in graph.inputs if name not in feeds]
    if missing:
        raise UserError("E401", f"{graph.path.name} needs {missing[0]}", why=_takes(graph))
    bound: dict[str, tuple[int, str]] = {}
    for name, arg in graph.inputs.items():
        given = shape_of(feeds[name])
        if len(given) != len(arg.shape):
            raise UserError("E401", f"{name} is {list(given)}, {graph.path.name} takes {list(arg.shape)}")
        for axis, (size, wanted) in enumerate(zip(given, arg.shape, strict=True)):
            if isinstance(wanted, int) and size != wanted:
                raise UserError("E401", f"{name} is {list(given)}, {graph.path.name} takes {list(arg.shape)}")
            if not isinstance(wanted, str) or not wanted.isidentifier():
                continue
            first, place = bound.setdefault(wanted, (size, f"axis {axis} of {name}"))
            if first != size:
                raise UserError(
                    "E401", f"{wanted} has two sizes", why=f"{first} at {place}, {size} at axis {axis} of {name}"
                )


def check_known(graph: Graph, names: Collection[str], next: str = "") -> None:
    """Raises UserError E401 for a name that is no input of ``graph``."""
    unknown = [name for name in names if name not in graph.inputs]
    if unknown:
        raise UserError("E401", f"{graph.path.name} has no input {unknown[0]!r}", why=_takes(graph), next=next or ())


def _takes(graph: Graph) -> str:
    return f"its inputs: {', '.join(port.name for port in graph.form.inputs)}"
