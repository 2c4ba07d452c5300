"""Patches of transformers' image processors, whose Python decides by the height and width of an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.torchvision import shorter_edge
from fx2onnx.model_patches.transformers.chunked import is_dynamic


@patches("transformers.image_transforms:get_resize_output_image_size", around=True)
def resized_by_the_shorter_edge(
    original: Callable[..., Any], input_image: Any, size: Any, *args: Any, **kwargs: Any
) -> Any:
    """``get_resize_output_image_size``: both edges in proportion, the shorter one as given.

    Shapes:  input_image [..., H, W] -> (height, width).
    """
    height, width = input_image.shape[-2:]
    is_plain = isinstance(size, int) and not kwargs.get("default_to_square", True) and kwargs.get("max_size") is None
    if args or not is_plain or not (is_dynamic(height) or is_dynamic(width)):
        return original(input_image, size, *args, **kwargs)
    return shorter_edge(height, width, size)


@patches("transformers.image_processing_backends:TorchvisionBackend.center_crop", around=True)
def center_crop(original: Callable[..., Any], self: Any, image: Tensor, size: Any, **kwargs: Any) -> Tensor:
    """``center_crop``: zeros around an image that is too small, then the middle.

    Shapes:  image [..., H, W] -> [..., size.height, size.width].
    """
    if not any(is_dynamic(one) for one in image.shape[-2:]):
        cropped: Tensor = original(self, image, size, **kwargs)
        return cropped
    padding: list[Any] = []
    starts: list[Any] = []
    for wanted, has in ((size.width, image.shape[-1]), (size.height, image.shape[-2])):
        lacking: Any = torch.sym_max(wanted - has, 0)  # type: ignore[no-untyped-call]
        padding += [lacking // 2, (lacking + 1) // 2]
        starts.append(torch.sym_max(has - wanted, 0) // 2)  # type: ignore[no-untyped-call]
    padded = torch.nn.functional.pad(image, padding)
    left, top = starts
    return padded[..., top : top + size.height, left : left + size.width]
