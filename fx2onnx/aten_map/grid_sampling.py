"""Sampling at grid points, affine grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import filled, steps, transpose, unsqueeze
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
MODES = ("bilinear", "nearest", "bicubic")
MODES_20 = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
"""Names by PyTorch's numbers; opset 20 renamed the modes."""


def sampled(op: Emit, value: ir.Value, grid: ir.Value, mode: int, padding: int, align_corners: bool) -> ir.Value:
    """``GridSample``: opset 16 on, of volumes opset 20 on.

    Raises UserError E202 below that.
    """
    needed = 16 if op.rank(value) == 4 else 20
    if op.opset < needed:
        raise UserError(
            "E202",
            f"grid_sample of a {op.rank(value)}-D tensor needs opset {needed}, the export asks for {op.opset}",
            why=f"ONNX GridSample takes it from opset {needed} on",
            next=f"export with opset_version={needed} or newer",
        )
    attrs: dict[str, Any] = {"mode": (MODES_20 if op.opset >= 20 else MODES)[mode], "padding_mode": PADDINGS[padding]}
    if align_corners:
        attrs["align_corners"] = 1
    return op.GridSample(value, grid, outputs=[op.result[0]], **attrs)


register_shared(
    sampled,
    "GridSample from opset 16 on (5-D: from 20 on)",
    *overloads_of("grid_sampler grid_sampler_2d grid_sampler_3d"),
)


def base_points(sizes: Sequence[int], align_corners: bool) -> np.ndarray[Any, Any]:
    """[points, axes + 1]: every grid point in homogeneous coordinates, x first. Source: F.affine_grid."""
    lines = []
    for size in sizes:
        line = np.linspace(-1, 1, size) if size > 1 else np.zeros(size)
        lines.append(line if align_corners or size < 2 else line * (size - 1) / size)
    mesh = np.meshgrid(*lines, indexing="ij")
    columns = [axis.reshape(-1) for axis in reversed(mesh)]
    return np.stack([*columns, np.ones_like(columns[0])], axis=1)


def _points(op: Emit, sizes: Sequence[DimLike], align_corners: bool, dtype: ir.DataType) -> ir.Value:
    """``base_points`` of symbolic sizes: (2 * i - (n - 1)) divided by n, or by n - 1, where the corners are aligned."""
    columns = []
    for axis, size in enumerate(sizes):
        count = op.size(size, dtype)
        last = op.Sub(count, 1)
        below = op.Max(last, 1) if align_corners else count
        line = op.Div(op.Sub(op.Mul(steps(op, size, dtype), 2), last), below)
        others = [place for place in range(len(sizes)) if place != axis]
        columns.append(unsqueeze(op, op.expand(unsqueeze(op, line, *others), sizes), len(sizes)))
    columns = [*reversed(columns), filled(op, [*sizes, 1], 1, dtype)]
    return op.reshape(op.Concat(*columns, axis=len(sizes)), (product(list(sizes)), len(sizes) + 1))


@translates(aten.affine_grid_generator.default)
def affine_grid_generator(op: Emit, theta: ir.Value, size: Sequence[DimLike], align_corners: bool) -> ir.Value:
    """affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor

    ONNX:  a product with a grid of points, a constant where no size is symbolic. (AffineGrid differs where a size is 1.)
    """
    spatial = list(size[2:])
    if any(isinstance(number, Dim) for number in spatial):
        points = _points(op, spatial, align_corners, op.dtype(theta))
    else:
        points = op.const(base_points([int(number) for number in spatial], align_corners), op.dtype(theta))  # type: ignore[arg-type]
    grid = op.MatMul(points, transpose(op, theta, (0, 2, 1)))
    return op.reshape(grid, (op.dims(theta)[0], *spatial, len(spatial)))
