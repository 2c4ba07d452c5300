"""The numbers that a file's codes stand for, made once more from a module's weight: what a verification runs beside the file."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx_ir as ir

from fx2onnx.quantize.model import METADATA_KEY
from fx2onnx.quantize.schemes import SCHEMES, Array
from fx2onnx.quantize.weights import RowWeight

Stated = dict[str, tuple[str, int | None, int]]


def read(text: str) -> Stated:
    """What a file's metadata says under ``METADATA_KEY``; nothing for another text."""
    try:
        entries = json.loads(text or "{}")
        return {
            str(name): (str(kind), None if axis is None else int(axis), int(block))
            for name, (kind, axis, block) in entries.items()
            if kind in SCHEMES and int(block) > 0
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def rounded(array: Array, kind: str, axis: int | None, block: int) -> Array:
    """``array`` as its codes give it back. Raises UserError E203 for numbers that are not finite."""
    if axis is None:
        turned, order = array.reshape(len(array), -1), None
    else:
        order = (*(each for each in range(array.ndim) if each != axis % array.ndim), axis % array.ndim)
        turned = array.transpose(order)
    rows = np.ascontiguousarray(turned)
    weight = RowWeight(ir.Tensor(rows), None, rows.shape, SCHEMES[kind], min(block, math.prod(rows.shape[-1:])))
    found = weight.values()
    return found.reshape(array.shape) if order is None else found.transpose(np.argsort(order))


__all__ = ["METADATA_KEY", "read", "rounded"]
