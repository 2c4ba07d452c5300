"""``torch.ops.torchvision``: box suppression, region pooling, deformable convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import END, INT64, sliced, squeeze, unsqueeze
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim

vision = torch.ops.torchvision


@translates(vision.nms.default)
def nms(op: Emit, dets: ir.Value, scores: ir.Value, iou_threshold: float) -> ir.Value:
    """nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor

    ONNX:  NonMaxSuppression in float32 of one batch and one class; its third column names the boxes.
    """
    count = Dim.symbol(op.builder.unique("kept"))
    chosen = _chosen(
        op, unsqueeze(op, dets, 0), unsqueeze(op, scores, 0, 1), iou_threshold, outputs=[(INT64, (count, 3))]
    )
    return op.Gather(chosen, op.const(2), axis=1, outputs=[op.result[0]])


def suppressed(op: Emit, boxes: ir.Value, scores: ir.Value, iou_threshold: float, score_threshold: float) -> ir.Value:
    """fx2onnx::suppressed(Tensor boxes, Tensor scores, float iou_threshold, float score_threshold) -> Tensor

    ONNX:  NonMaxSuppression in float32 of all images and classes at once.
    """
    least = op.const(np.array([score_threshold], dtype=np.float32))
    return _chosen(op, boxes, scores, iou_threshold, least, outputs=[op.result[0]])


def _chosen(
    op: Emit, boxes: ir.Value, scores: ir.Value, iou_threshold: float, *least: ir.Value, outputs: Any
) -> ir.Value:
    """Rows (image, class, box) of those that stay."""
    limit = np.float32(iou_threshold)
    if float(limit) > iou_threshold:  # torchvision compares with the float64 itself
        limit = np.nextafter(limit, np.float32(-1))
    return op.NonMaxSuppression(
        op.cast(boxes, ir.DataType.FLOAT),
        op.cast(scores, ir.DataType.FLOAT),
        op.const(np.array([2**31 - 1])),
        op.const(np.array([limit], dtype=np.float32)),
        *least,
        outputs=outputs,
    )


def _split_rois(op: Emit, rois: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Boxes [K, 4] and the numbers of their images [K] from [K, 5]."""
    images = op.Cast(squeeze(op, sliced(op, rois, 1, 0, 1, 1), 1), to=INT64)
    return sliced(op, rois, 1, 1, END, 4), images


@translates(vision.roi_align.default)
def roi_align(
    op: Emit,
    input: ir.Value,
    rois: ir.Value,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> ir.Value:
    """roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor

    ONNX:  RoiAlign; ``aligned`` needs opset 16.
    """
    if aligned and op.opset < 16:
        raise UserError(
            "E202",
            f"roi_align(aligned=True) needs opset 16, the export asks for {op.opset}",
            why="RoiAlign-10 has no coordinate_transformation_mode",
            next="export with opset_version=16 or newer",
        )
    boxes, images = _split_rois(op, rois)
    mode = {"coordinate_transformation_mode": "half_pixel" if aligned else "output_half_pixel"}
    return op.RoiAlign(
        input,
        boxes,
        images,
        output_height=int(pooled_height),
        output_width=int(pooled_width),
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=float(spatial_scale),
        outputs=[op.result[0]],
        **(mode if op.opset >= 16 else {}),
    )


@translates(vision.roi_pool.default)
def roi_pool(
    op: Emit, input: ir.Value, rois: ir.Value, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[ir.Value, None]:
    """roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> (Tensor, Tensor)

    ONNX:  MaxRoiPool; the places of the maxima serve the backward pass and are not given.
    """
    pooled = op.MaxRoiPool(
        input,
        rois,
        pooled_shape=[int(pooled_height), int(pooled_width)],
        spatial_scale=float(spatial_scale),
        outputs=[op.result[0]],
    )
    return pooled, None


@translates(vision.deform_conv2d.default)
def deform_conv2d(
    op: Emit,
    input: ir.Value,
    weight: ir.Value,
    offset: ir.Value,
    mask: ir.Value,
    bias: ir.Value,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> ir.Value:
    """deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor

    ONNX:  DeformConv, from opset 19 on.
    """
    return op.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask if use_mask else None,
        dilations=[dilation_h, dilation_w],
        group=groups,
        kernel_shape=[int(size) for size in op.dims(weight)[2:]],  # type: ignore[arg-type]
        offset_group=offset_groups,
        pads=[pad_h, pad_w, pad_h, pad_w],
        strides=[stride_h, stride_w],
        outputs=[op.result[0]],
    )
