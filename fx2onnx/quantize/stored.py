"""The place in a file of the codes that a calibration chose, and the numbers that they stand for: read back from it, and made once more
from a module's weight, which a verification runs beside the file.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.quantize.forms import QuantizedForm
from fx2onnx.quantize.schemes import SCHEMES, Array, unpacked
from fx2onnx.quantize.weights import RowWeight

METADATA_KEY = "fx2onnx.quantized"
"""The key in the model's metadata of a JSON object: by the name of each weight ``[kind, axis of the blocks, numbers of
a block]``; axis None: all but the first are one. A weight that was fitted has ``Stored`` behind them: where its codes are."""
_CHECKED_ROWS = 256


@dataclass(frozen=True)
class Stored:
    """The initializers of a weight's codes, scales and zero points, and how they lie in them (``forms.Form``)."""

    method: str
    codes: str
    scales: str
    zeros: str | None
    layout: str
    start: int
    stop: int
    columns: int
    checksum: int
    """CRC-32 of the numbers in float32."""
    channels: str = ""
    """float32 in base64: what the columns were multiplied with."""


def stored(weight: RowWeight, form: QuantizedForm, start: int, stop: int) -> dict[str, Any]:
    """The entry of the file for the rows ``start`` to ``stop`` of a weight, as JSON types."""
    given = weight.given
    assert given is not None
    checksum = 0
    for first in range(start, stop, _CHECKED_ROWS):
        values = weight.scheme.values(*given.part(first, min(first + _CHECKED_ROWS, stop)))
        checksum = zlib.crc32(np.ascontiguousarray(weight.cut(values), np.float32).tobytes(), checksum)
    channels = "" if given.channels is None else base64.b64encode(given.channels.astype("<f4").tobytes()).decode()
    zeros = None if form.zeros is None else form.zeros.name
    return asdict(
        Stored(
            given.method, form.codes.name or "", form.scales.name or "", zeros, form.layout, start, stop,
            weight.columns, checksum, channels,
        )
    )  # fmt: skip


def numbers(kind: str, block: int, entry: Mapping[str, Any], tensor: Callable[[str], ir.TensorProtocol]) -> Array:
    """The numbers [rows, columns] of a weight, from the file's own initializers. Raises ValueError for others than were written."""
    found = Stored(**entry)
    scheme, columns = SCHEMES[kind], found.columns
    part = slice(found.start, found.stop)
    blocks = math.ceil(columns / block)
    scales = np.asarray(tensor(found.scales).numpy()).reshape(-1, blocks)
    width = columns if found.layout == "rows" else blocks * block
    is_fours = found.layout == "blocks" and scheme.product_bits == 2
    bits, offset = (2, 2) if is_fours else (scheme.bits, scheme.offset)
    codes = _flat(tensor(found.codes), bits, is_high_first=found.layout == "high")[: len(scales) * width]
    codes = codes.reshape(-1, width)[part, :columns]
    steps: Array
    if scheme.kind == "nf4" or scheme.dtype == ir.DataType.FLOAT8E4M3FN:
        steps = scheme.values(codes.view(scheme.held_as), np.ones(codes.shape[:1], np.float32), None)
    else:
        is_signed = found.layout == "rows" and scheme.offset
        steps = _signed(codes, scheme.bits) if is_signed else codes.astype(np.float32)
        if found.zeros is not None:
            length = blocks if found.layout == "rows" else blocks + blocks % 2
            zeros = _flat(tensor(found.zeros), scheme.bits)[: len(scales) * length].reshape(-1, length)
            steps -= np.repeat(zeros[part, :blocks].astype(np.float32), block, 1)[:, :columns]
        elif not is_signed:
            steps -= np.float32(offset)
    wide = (steps * np.repeat(scales[part].astype(np.float32), block, 1)[:, :columns]).astype(scales.dtype)
    if zlib.crc32(np.ascontiguousarray(wide, np.float32).tobytes()) != found.checksum:
        raise ValueError("the file's codes are not those that the calibration chose")
    if not found.channels:
        return wide
    channels = np.frombuffer(base64.b64decode(found.channels), "<f4")
    return np.asarray((wide.astype(np.float32) / channels).astype(wide.dtype))


def _flat(tensor: ir.TensorProtocol, bits: int, *, is_high_first: bool = False) -> Array:
    """The codes of a tensor as they lie, one a byte, unsigned."""
    content = np.frombuffer(tensor.tobytes(), np.uint8)
    if bits == 8:
        return content
    if bits == 2:
        return np.asarray(content[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
    return unpacked(np.asarray((content << 4) | (content >> 4), np.uint8) if is_high_first else content)


def _signed(codes: Array, bits: int) -> Array:
    return codes.astype(np.float32) - np.float32(1 << bits) * (codes >= 1 << (bits - 1))


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
