"""torchvision's detectors: suppression by class, pasted masks and keypoints, for any number of boxes."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER


@patches(
    "torchvision.ops.boxes:batched_nms",
    reason="suppresses by moving the classes apart for any number of boxes; torchvision goes class by class above 1000",
)
def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Every class moved away from the others, then one suppression for all.

    Shapes:    boxes [N, 4], scores [N], idxs [N] -> int64 [kept], best score first.
    Numerics:  torchvision does the same up to 1000 boxes, and suppresses class by class above: equal except for the
               rounding of the moved boxes.
    Source:    torchvision.ops.boxes._batched_nms_coordinate_trick; -inf stands for the greatest of no box at all.
    """
    floor = boxes.new_full((1,), -torch.inf)
    greatest = torch.cat([boxes.flatten(), floor]).max()
    offsets = idxs.to(boxes) * (greatest + 1)
    kept: Tensor = _module("torchvision.ops.boxes").nms(boxes + offsets[:, None], scores, iou_threshold)
    return kept


@patches(
    "torchvision.models.detection._utils:BoxCoder.decode",
    reason="reshapes whether there are boxes or not; torchvision only where there are",
)
def decode(self: Any, rel_codes: Tensor, boxes: list[Tensor]) -> Tensor:
    """The same shapes for no box as for many.

    Shapes:  rel_codes [N, C * 4], boxes [.., 4] with N rows in all -> [N, C, 4].
    Source:  torchvision.models.detection._utils.BoxCoder.decode, which leaves out the reshapes where N is 0.
    """
    moved: Tensor = self.decode_single(rel_codes.flatten(1), torch.cat(boxes))
    return moved.reshape(moved.shape[0], moved.shape[1] // 4, 4)


@patches(
    "torchvision.models.detection.roi_heads:paste_masks_in_image",
    reason="pastes all masks by two matrix products; torchvision resizes them one by one",
)
def paste_masks_in_image(masks: Tensor, boxes: Tensor, img_shape: Any, padding: int = 1) -> Tensor:
    """Every mask resized to its box by two products with the weights of bilinear interpolation.

    Shapes:    masks [K, 1, M, M], boxes [K, 4], img_shape (H, W) -> [K, 1, H, W].
    Numerics:  sums of M terms, all but two of them zero.
    Source:    torchvision.models.detection.roi_heads.paste_mask_in_image.
    """
    heads = _module("torchvision.models.detection.roi_heads")
    masks, scale = heads.expand_masks(masks, padding=padding)
    boxes = heads.expand_boxes(boxes, scale).to(torch.int64)
    rows = _bilinear_weights(boxes[:, 1], boxes[:, 3], masks.shape[-2], img_shape[0], masks.dtype)
    columns = _bilinear_weights(boxes[:, 0], boxes[:, 2], masks.shape[-1], img_shape[1], masks.dtype)
    return rows[:, None] @ masks @ columns[:, None].transpose(-1, -2)


def _bilinear_weights(first: Tensor, last: Tensor, source: int, target: int, dtype: torch.dtype) -> Tensor:
    """The share of each of ``source`` samples, spread over the pixels first..last, in each of ``target`` pixels.

    Shapes:  first, last int64 [K] -> [K, target, source]; zero outside first..last.
    """
    span = last - first
    place = torch.arange(target)[None, :] - first[:, None]
    inside = (place >= 0) & (place <= span[:, None])
    ratio = source / (span + 1).clamp(min=1).to(dtype)
    position = ((place.to(dtype) + 0.5) * ratio[:, None] - 0.5).clamp(min=0, max=source - 1)
    distance = (position[:, :, None] - torch.arange(source, dtype=dtype)).abs()
    return (1 - distance).clamp(min=0) * inside[:, :, None].to(dtype)


@patches(
    "torchvision.models.detection.roi_heads:heatmaps_to_keypoints",
    reason="resizes the heatmaps in a loop of the file; torchvision's loop is one of Python",
)
def heatmaps_to_keypoints(maps: Tensor, rois: Tensor) -> tuple[Tensor, Tensor]:
    """A loop in the file over the boxes, each resizing its heatmaps to the box's own size.

    Shapes:  maps [K, N, H, W], rois [K, 4] -> [K, N, 3] as (x, y, 1), [K, N].
    Source:  torchvision.models.detection.roi_heads.heatmaps_to_keypoints.
    """
    sizes = (rois[:, 2:] - rois[:, :2]).clamp(min=1)
    whole = sizes.ceil()

    def best(heatmaps: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        width: Any = size[0].item()
        height: Any = size[1].item()
        resized = F.interpolate(heatmaps[:, None], size=(height, width), mode="bicubic", align_corners=False)
        flat = resized.reshape(heatmaps.shape[0], height * width)
        place = flat.argmax(dim=1)
        return place, flat.gather(1, place[:, None])[:, 0]

    places, scores = HIGHER_ORDER["map_impl"](best, (maps, whole.to(torch.int64)), ())
    width = whole[:, :1].to(torch.int64)
    column = places % width
    row = (places - column) // width
    x = (column.to(torch.float32) + 0.5) * (sizes / whole)[:, :1] + rois[:, :1]
    y = (row.to(torch.float32) + 0.5) * (sizes / whole)[:, 1:] + rois[:, 1:2]
    return torch.stack([x, y, torch.ones_like(x)], dim=2), scores.to(torch.float32)


@patches(
    "torchvision.transforms.v2.functional:resize_image",
    around=True,
    names=("interpolation", "max_size", "antialias"),
)
def resize_image(original: Any, image: Tensor, size: Any, *args: Any, **kwargs: Any) -> Tensor:
    """An image of any height and width, which torchvision leaves as it is where it has the size already.

    Shapes:  image [..., C, H, W], size two numbers, or one for the shorter edge -> [..., C, height, width].
    Source:  torchvision.transforms.v2.functional.resize_image.
    """
    given = dict(zip(("interpolation", "max_size", "antialias"), args, strict=False), **kwargs)
    height, width = image.shape[-2:]
    mode = given.get("interpolation", "bilinear")
    word = getattr(mode, "value", mode)
    size = [size] if isinstance(size, int) else size
    is_known = all(type(one) is int for one in (height, width, *size)) or given.get("max_size") is not None
    if is_known or word not in ("bilinear", "bicubic"):
        resized: Tensor = original(image, size, *args, **kwargs)
        return resized
    target = shorter_edge(height, width, size[0]) if len(size) == 1 else tuple(size)
    is_byte, found = image.dtype == torch.uint8, image.reshape(-1, *image.shape[-3:])
    is_native = image.dtype in (torch.float32, torch.float64) or (is_byte and _has_bytes(original, mode))
    found = found if is_native else found.to(torch.float32)
    antialias = given.get("antialias") is not False
    found = F.interpolate(found, size=target, mode=word, align_corners=False, antialias=antialias)
    if not is_native and is_byte:
        found = found.clamp(0, 255)
    found = found if is_native or image.is_floating_point() else found.round()
    return found.to(image.dtype).reshape(*image.shape[:-2], *target)


def _has_bytes(original: Any, mode: Any) -> bool:
    """Return whether torchvision takes PyTorch's kernel for uint8 on this processor."""
    asked: Any = original.__globals__.get("_do_native_uint8_resize_on_cpu")
    return asked is not None and asked(original.__globals__["_check_interpolation"](mode))


def shorter_edge(height: Any, width: Any, size: Any) -> tuple[Any, Any]:
    """The height and width in the same proportion whose smaller one is ``size``."""
    sizes = (size * height // width, size * width // height)
    return torch.sym_max(size, sizes[0]), torch.sym_max(size, sizes[1])  # type: ignore[no-untyped-call]


def _module(name: str) -> Any:
    return sys.modules[name]
