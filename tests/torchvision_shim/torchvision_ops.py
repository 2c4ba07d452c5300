"""Torchvision's custom operators in plain PyTorch, for builds whose compiled kernels cannot be loaded.

Every function computes what torchvision's CPU kernel of the same name documents, on CPU tensors and without autograd.
They are registered by ``torchvision_hook`` only where the compiled operators are missing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_NMS_BLOCK = 256  # rows of the overlap matrix held at once: 256 x 4000 boxes are 4 MB
_ROI_BLOCK_ELEMENTS = 1 << 24  # sampled values held at once (64 MB in float32)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)  # the class that the compiled kernels raise


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes that greedy non-maximum suppression keeps, best score first.

    Shapes:   dets [N, 4] as (x1, y1, x2, y2), scores [N] -> int64 [kept].
    Source:   torchvision.ops.nms: a box is dropped where its IoU with a kept, better box is above the threshold.
    """
    _require(dets.dim() == 2 and dets.size(1) == 4, f"boxes must be [N, 4], got {list(dets.shape)}")
    _require(list(scores.shape) == [dets.size(0)], f"scores must be [{dets.size(0)}], got {list(scores.shape)}")
    order = scores.sort(stable=True, descending=True).indices
    boxes = dets[order]
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    count = boxes.size(0)
    dropped = torch.zeros(count, dtype=torch.bool)
    for start in range(0, count, _NMS_BLOCK):
        stop = min(start + _NMS_BLOCK, count)
        left = torch.maximum(x1[start:stop, None], x1)
        top = torch.maximum(y1[start:stop, None], y1)
        right = torch.minimum(x2[start:stop, None], x2)
        bottom = torch.minimum(y2[start:stop, None], y2)
        shared = (right - left).clamp(min=0) * (bottom - top).clamp(min=0)
        overlaps = shared / (areas[start:stop, None] + areas - shared) > iou_threshold
        for row in range(start, stop):
            if not dropped[row]:
                dropped[row + 1 :] |= overlaps[row - start, row + 1 :]
    return order[~dropped]


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Mean of bilinear samples in every bin of every region.

    Shapes:   input [N, C, H, W], rois [K, 5] as (image, x1, y1, x2, y2) -> [K, C, pooled_height, pooled_width].
    Source:   torchvision.ops.roi_align (Mask R-CNN, section 3); samples further than one pixel outside count as 0.
    """
    _require(rois.dim() == 2 and rois.size(1) == 5, f"rois must be [K, 5], got {list(rois.shape)}")
    _require(input.dtype == rois.dtype, f"input is {input.dtype}, but rois are {rois.dtype}")
    pooled = (pooled_height, pooled_width)
    starts, sizes = _roi_extents(rois, spatial_scale, aligned)
    output = input.new_zeros((rois.size(0), input.size(1), *pooled))
    for grid, members in _sampling_grids(sizes, pooled, sampling_ratio):
        if 0 in grid:
            continue
        per_roi = input.size(1) * pooled_height * pooled_width * grid[0] * grid[1]
        step = max(1, _ROI_BLOCK_ELEMENTS // per_roi)
        for first in range(0, members.size(0), step):
            chunk = members[first : first + step]
            images = rois[chunk, 0].long()
            output[chunk] = _mean_of_samples(input, images, starts[chunk], sizes[chunk], pooled, grid)
    return output


def _roi_extents(rois: Tensor, spatial_scale: float, aligned: bool) -> tuple[Tensor, Tensor]:
    """Top-left corner and size of each region in feature-map pixels, both [K, 2] as (y, x)."""
    scaled = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    starts, ends = scaled[:, [1, 0]], scaled[:, [3, 2]]
    sizes = ends - starts
    return starts, sizes if aligned else sizes.clamp(min=1.0)


def _sampling_grids(sizes: Tensor, pooled: tuple[int, int], ratio: int) -> list[tuple[tuple[int, int], Tensor]]:
    """Samples per bin along (y, x), with the indices of the regions that use them."""
    if ratio > 0:
        return [((ratio, ratio), torch.arange(sizes.size(0)))]
    grids = torch.ceil(sizes / torch.tensor(pooled, dtype=sizes.dtype)).long().clamp(min=0)
    kinds, inverse = torch.unique(grids, dim=0, return_inverse=True)
    return [((int(y), int(x)), (inverse == kind).nonzero()[:, 0]) for kind, (y, x) in enumerate(kinds.tolist())]


def _mean_of_samples(
    input: Tensor, images: Tensor, starts: Tensor, sizes: Tensor, pooled: tuple[int, int], grid: tuple[int, int]
) -> Tensor:
    channels, count = input.size(1), images.size(0)
    rows = _axis_samples(starts[:, 0], sizes[:, 0], pooled[0], grid[0], input.size(2))
    columns = _axis_samples(starts[:, 1], sizes[:, 1], pooled[1], grid[1], input.size(3))
    maps = input.permute(0, 2, 3, 1)
    at = images[:, None, None]

    def corner(y: Tensor, y_weight: Tensor, x: Tensor, x_weight: Tensor) -> Tensor:
        return maps[at, y[:, :, None], x[:, None, :]] * (y_weight[:, :, None] * x_weight[:, None, :])[..., None]

    values = sum((corner(*row, *column) for row in rows for column in columns), torch.zeros(()))
    bins = values.reshape(count, pooled[0], grid[0], pooled[1], grid[1], channels)
    return (bins.sum((2, 4)) / max(grid[0] * grid[1], 1)).permute(0, 3, 1, 2)


def _axis_samples(start: Tensor, size: Tensor, bins: int, grid: int, limit: int) -> list[tuple[Tensor, Tensor]]:
    """Lower pixels of every sample along one axis and their weights, then the upper ones, each [K, bins * grid]."""
    bin_size = (size / bins)[:, None, None]
    bin_index = torch.arange(bins, dtype=start.dtype)[None, :, None]
    sample_index = torch.arange(grid, dtype=start.dtype)[None, None, :]
    position = start[:, None, None] + bin_index * bin_size + (sample_index + 0.5) * bin_size / grid
    position = position.reshape(start.size(0), bins * grid)
    inside = (position >= -1.0) & (position <= limit)
    position = position.clamp(min=0.0)
    low = position.long().clamp(max=limit - 1)
    at_edge = low >= limit - 1
    high = torch.where(at_edge, low, low + 1)
    fraction = torch.where(at_edge, torch.zeros_like(position), position - low)
    return [(low, (1.0 - fraction) * inside), (high, fraction * inside)]


def ps_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    """Position-sensitive ``roi_align``: bin (i, j) of output channel c reads input channel (c * PH + i) * PW + j.

    Shapes:   input [N, C * PH * PW, H, W], rois [K, 5] -> ([K, C, PH, PW], int32 channel map of the same shape).
    Source:   torchvision.ops.ps_roi_align (Light-Head R-CNN).
    """
    mapping = _position_sensitive_channels(input.size(1), pooled_height, pooled_width)
    aligned = roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, True)
    chosen = aligned.gather(1, mapping.expand(rois.size(0), *mapping.shape))
    return chosen, mapping.int().expand(rois.size(0), *mapping.shape).contiguous()


def _position_sensitive_channels(channels: int, height: int, width: int) -> Tensor:
    _require(channels % (height * width) == 0, f"{channels} channels do not divide into {height} x {width} bins")
    return torch.arange(channels).reshape(channels // (height * width), height, width)


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Largest value in every bin of every region, and its place in the flattened map (-1 for an empty bin).

    Shapes:   input [N, C, H, W], rois [K, 5] -> ([K, C, PH, PW], int32 [K, C, PH, PW]).
    Source:   torchvision.ops.roi_pool (Fast R-CNN, section 2.1).
    """
    shape = (rois.size(0), input.size(1), pooled_height, pooled_width)
    output = input.new_zeros(shape)
    places = torch.full(shape, -1, dtype=torch.int32)
    width = input.size(3)

    def pool(k: int, i: int, j: int, image: int, rows: slice, columns: slice) -> None:
        window = input[image, :, rows, columns]
        best, place = window.flatten(1).max(1)
        window_width = columns.stop - columns.start
        output[k, :, i, j] = best
        places[k, :, i, j] = ((rows.start + place // window_width) * width + columns.start + place % window_width).int()

    _for_each_bin(rois, spatial_scale, shape[2:], input.shape[2:], pool, inclusive=1)
    return output, places


def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Position-sensitive mean pooling over whole pixels; empty bins are 0.

    Shapes:   input [N, C * PH * PW, H, W], rois [K, 5] -> ([K, C, PH, PW], int32 channel map of the same shape).
    Source:   torchvision.ops.ps_roi_pool (R-FCN), whose kernel clips bins to the last row and column but one.
    """
    mapping = _position_sensitive_channels(input.size(1), pooled_height, pooled_width)
    output = input.new_zeros((rois.size(0), *mapping.shape))

    def pool(k: int, i: int, j: int, image: int, rows: slice, columns: slice) -> None:
        output[k, :, i, j] = input[image, mapping[:, i, j], rows, columns].mean((1, 2))

    limits = (input.size(2) - 1, input.size(3) - 1)
    _for_each_bin(rois, spatial_scale, (pooled_height, pooled_width), limits, pool, inclusive=0)
    return output, mapping.int().expand(rois.size(0), *mapping.shape).contiguous()


def _for_each_bin(
    rois: Tensor,
    spatial_scale: float,
    pooled: tuple[int, ...],
    limits: tuple[int, ...],
    pool: Callable[[int, int, int, int, slice, slice], None],
    *,
    inclusive: int,
) -> None:
    """Call ``pool(k, i, j, image, rows, columns)`` for every bin that covers at least one pixel."""
    for k, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        spans = [
            _bin_spans(y1 * spatial_scale, y2 * spatial_scale, pooled[0], limits[0], inclusive),
            _bin_spans(x1 * spatial_scale, x2 * spatial_scale, pooled[1], limits[1], inclusive),
        ]
        for i, rows in enumerate(spans[0]):
            for j, columns in enumerate(spans[1]):
                if rows.stop > rows.start and columns.stop > columns.start:
                    pool(k, i, j, int(image), rows, columns)


def _bin_spans(low: float, high: float, bins: int, limit: int, inclusive: int) -> list[slice]:
    """Pixel ranges of the bins of one axis; ``inclusive`` is 1 where the last pixel belongs to the region."""
    start, end = _round_half_away(low), _round_half_away(high)
    bin_size = max(end - start + inclusive, 1) / bins

    def clipped(value: int) -> int:
        return min(max(value + start, 0), limit)

    return [slice(clipped(math.floor(b * bin_size)), clipped(math.ceil((b + 1) * bin_size))) for b in range(bins)]


def _round_half_away(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Convolution whose taps are moved by ``offset`` (y, x per tap) and scaled by ``mask``.

    Shapes:   input [N, C, H, W], weight [O, C / groups, KH, KW], offset [N, 2 * G * KH * KW, OH, OW],
              mask [N, G * KH * KW, OH, OW] (read only if ``use_mask``), bias [O] -> [N, O, OH, OW].
    Source:   torchvision.ops.deform_conv2d (Deformable ConvNets v2, equation 1); bilinear taps, zero outside.
    """
    batch, channels, height, width = input.shape
    kernel_h, kernel_w = weight.shape[-2:]
    out_h, out_w = offset.shape[-2:]
    taps = kernel_h * kernel_w
    moves = offset.reshape(batch, offset_groups, taps, 2, out_h, out_w)
    tap_y = (torch.arange(kernel_h) * dilation_h).repeat_interleave(kernel_w)[:, None, None]
    tap_x = (torch.arange(kernel_w) * dilation_w).repeat(kernel_h)[:, None, None]
    y = moves[:, :, :, 0] + (torch.arange(out_h) * stride_h - pad_h)[:, None] + tap_y
    x = moves[:, :, :, 1] + (torch.arange(out_w) * stride_w - pad_w) + tap_x
    maps = input.reshape(batch * offset_groups, channels // offset_groups, height * width)
    columns = _bilinear_with_zeros(maps, y.reshape(maps.size(0), -1), x.reshape(maps.size(0), -1), height, width)
    columns = columns.reshape(batch, offset_groups, channels // offset_groups, taps, out_h * out_w)
    if use_mask:
        columns = columns * mask.reshape(batch, offset_groups, 1, taps, out_h * out_w)
    columns = columns.reshape(batch, groups, channels // groups * taps, out_h * out_w)
    product = weight.reshape(groups, -1, channels // groups * taps) @ columns
    return product.reshape(batch, -1, out_h, out_w) + bias[:, None, None]


def _bilinear_with_zeros(maps: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Samples of ``maps`` [B, C, H * W] at (y, x) [B, P], pixels outside counting as 0 -> [B, C, P]."""
    y_low, x_low = torch.floor(y), torch.floor(x)
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)
    total = maps.new_zeros((maps.size(0), maps.size(1), y.size(1)))
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = y_low + dy, x_low + dx
        share = (1 - (y - row).abs()) * (1 - (x - column).abs())
        valid = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
        picked = maps.gather(2, place[:, None].expand(-1, maps.size(1), -1))
        total = total + picked * (share * valid)[:, None]
    return total


# Source: the TORCH_LIBRARY blocks of torchvision 0.28 (torchvision/csrc/ops/*.cpp).
_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
SCHEMAS: dict[str, str] = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": f"(Tensor grad, Tensor rois, {_POOLED}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align": (
        "(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point, "
        f"{_POOLED}, int sampling_ratio, bool aligned) -> Tensor"
    ),
    "roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SIZES}) -> Tensor",
    "ps_roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": (
        f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, int sampling_ratio, {_SIZES}) -> Tensor"
    ),
    "ps_roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_SIZES}) -> Tensor",
    "deform_conv2d": f"({_DEFORM}) -> Tensor",
    "_deform_conv2d_backward": f"(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated": "(Tensor boxes1, Tensor boxes2) -> Tensor",
    "_cuda_version": "() -> int",
}
CPU_KERNELS = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
_library: object = None  # the declarations live as long as it does


def declare_operators() -> None:
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
    for name in CPU_KERNELS:
        library.impl(name, globals()[name], "CPU")
    # torchvision compares this number with PyTorch's CUDA version; -1 says "not a CUDA build".
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    _library = library


@contextlib.contextmanager
def extension_counts_as_loaded(file: str) -> Iterator[None]:
    """While torchvision is imported, let loading its ``_C`` succeed: the operators that it would define are declared.

    torchvision registers its fakes, autograd and autocast rules, and calls its operators at all, only if that load
    succeeded; it offers no other switch.
    """
    ops: Any = torch.ops
    original = ops.load_library

    def load_library(path: str) -> None:
        if not (Path(path).parent == Path(file).parent and Path(path).stem.split(".")[0] == "_C"):
            original(path)

    ops.load_library = load_library
    try:
        yield
    finally:
        del ops.load_library
