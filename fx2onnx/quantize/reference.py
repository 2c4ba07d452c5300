"""The numbers that a file's codes stand for, made once more from a module's weight: what a verification runs beside the file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.quantize.model import METADATA_KEY
from fx2onnx.quantize.schemes import SCHEMES, Array
from fx2onnx.quantize.stored import numbers
from fx2onnx.quantize.weights import RowWeight


@dataclass(frozen=True)
class Stated:
    """The entry of a file for a weight. ``stored``: where its codes are, of one that was fitted."""

    kind: str
    axis: int | None
    block: int
    stored: Mapping[str, Any] | None = None

    def numbers(self, array: Array, tensor: Callable[[str], ir.TensorProtocol]) -> Array:
        """The numbers that the quantized values stand for: of ``array`` rounded to the nearest, or of fitted values, which the file
        gives.

        Raises: UserError E203 for numbers that are not finite, ValueError for codes that are not those that were fitted.
        """
        if self.stored is None:
            return rounded(array, self.kind, self.axis, self.block)
        found = numbers(self.kind, self.block, self.stored, tensor)
        return found.T if self.axis == 0 else found


def read(text: str) -> dict[str, Stated]:
    """The entries of a file's metadata under ``METADATA_KEY``, by weight; nothing for another text."""
    try:
        entries = json.loads(text or "{}")
        return {
            str(name): Stated(str(kind), None if axis is None else int(axis), int(block), *more)
            for name, (kind, axis, block, *more) in entries.items()
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
