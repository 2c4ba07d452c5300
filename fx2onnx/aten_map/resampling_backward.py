"""Gradients of interpolation and of replication padding: linear in each axis, so a product with the transposed matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.aten_map.antialias import resampling_matrix
from fx2onnx.aten_map.interpolation import MODES, nearest_places
from fx2onnx.aten_map.table.axes import fixed, swap
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

Matrix = npt.NDArray[np.float64]
Scale = float | None


def along(op: Emit, value: ir.Value, axis: int, matrix: Matrix) -> ir.Value:
    """``value`` times ``matrix`` [its size, the new one] along ``axis``."""
    last, weights = op.rank(value) - 1, op.const(matrix, op.dtype(value))
    return swap(op, op.MatMul(swap(op, value, axis, last), weights), axis, last)


def _one_hot(places: Sequence[int], size: int) -> Matrix:
    matrix = np.zeros((len(places), size))
    matrix[np.arange(len(places)), list(places)] = 1
    return matrix


def _matrix(size: int, count: int, mode: str, scale: Scale, align_corners: bool, antialias: bool) -> Matrix:
    """[count, size]: what of each input goes into each output. Nearest neighbours ignore factors as those of images do."""
    if mode.startswith("nearest"):
        return _one_hot(nearest_places(size, count, scale, mode == "nearest-exact"), size)
    delta = 0.5 if align_corners and not antialias else 0.0
    return resampling_matrix(
        size, count, mode, None if align_corners else scale, align_corners, antialias, delta, not antialias
    )


def _repeats(size: DimLike, count: DimLike, scale: Scale) -> int | None:
    """How often nearest neighbours repeat each element, where each is repeated as often."""
    factor = count // size
    if isinstance(factor, int) and factor * size == count and (scale is None or scale == factor):
        return factor
    return None


def _upsample_backward(mode: str, antialias: bool) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        grad_output: ir.Value,
        input_size: Sequence[DimLike],
        scales: Scale = None,
        scales_d: Scale = None,
        scales_h: Scale = None,
        scales_w: Scale = None,
        align_corners: bool = False,
    ) -> ir.Value:
        spatial = op.rank(grad_output) - 2
        factors = [scales] if spatial == 1 else [scales_d, scales_h, scales_w][-spatial:]
        value = grad_output
        for axis, scale in enumerate(factors, start=2):
            size, count = input_size[axis], op.dims(value)[axis]
            if size == count and (scale is None or scale == 1 or (mode == "linear" and not antialias)):
                continue
            repeats = _repeats(size, count, scale) if mode.startswith("nearest") else None
            if repeats is not None:
                dims = op.dims(value)
                apart = op.reshape(value, (*dims[:axis], size, repeats, *dims[axis + 1 :]))
                value = op.ReduceSum(apart, axes=[axis + 1], keepdims=0)
                continue
            what = "a size that is interpolated and differentiated"
            matrix = _matrix(fixed(size, what), fixed(count, what), mode, scale, align_corners, antialias)
            value = along(op, value, axis, matrix)
        return value

    return entry


def _replication_pad_backward(op: Emit, grad_output: ir.Value, self: ir.Value, padding: Sequence[int]) -> ir.Value:
    value, what = grad_output, "a size that is padded by its borders and differentiated"
    for place, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        if not before and not after:
            continue
        axis = op.rank(self) - 1 - place
        size = fixed(op.dims(self)[axis], what)
        places = np.clip(np.arange(-before, size + after), 0, size - 1)
        value = along(op, value, axis, _one_hot(places.tolist(), size))
    return value


_FORM = "MatMul with the transposed weights of each axis; ReduceSum of equal repeats"
for _name, (_mode, _ranks) in MODES.items():
    for _spatial in _ranks:
        _packet = _name.format(_spatial)
        _backward = _packet.removesuffix("_aa") + ("_aa_backward" if _packet.endswith("_aa") else "_backward")
        register_shared(_upsample_backward(_mode, _packet.endswith("_aa")), _FORM, *overloads_of(_backward))
_PADS = " ".join(f"replication_pad{_spatial}d_backward" for _spatial in (1, 2, 3))
register_shared(_replication_pad_backward, "MatMul with the transposed weights of each axis", *overloads_of(_PADS))
