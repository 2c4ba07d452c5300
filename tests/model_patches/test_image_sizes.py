"""Images of any size: resized and cropped as torchvision and transformers do, which decide in Python by the size."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.model_patches.support import patched
from tests.support import check

pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
AXES = {"x": {0: "batch", 2: "height", 3: "width"}}
SIZES = ((2, 3, 21, 30), (1, 3, 30, 17), (1, 3, 12, 12), (1, 1, 5, 40), (2, 3, 12, 9))


def _samples(dtype: torch.dtype, channels: int = 3) -> list[Any]:
    made = [torch.randint(0, 256, (size[0], channels, *size[2:])) for size in SIZES]
    return [((one / 255).to(dtype) if dtype.is_floating_point else one.to(dtype),) for one in made]


def _resize(**options: Any) -> Any:
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")
    return lambda x: functional.resize(x, **options)


@pytest.mark.long_cases("1", "2", "3", "4", "5")
@pytest.mark.compares("torchvision.transforms.v2.functional:resize_image")
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        pytest.param(torch.uint8, {"size": [12, 9]}, id="0"),
        pytest.param(torch.uint8, {"size": [12, 9], "interpolation": 3}, id="1"),
        pytest.param(torch.uint8, {"size": [12], "interpolation": 3}, id="2"),
        pytest.param(torch.float32, {"size": 12}, id="3"),
        pytest.param(torch.int16, {"size": [20, 31], "interpolation": 3}, id="4"),
        pytest.param(torch.uint8, {"size": [9, 7], "interpolation": 0}, id="5"),
    ],
)
def test_an_image_is_resized(dtype: torch.dtype, options: dict[str, Any]) -> None:
    resize = _resize(**options)
    samples = _samples(dtype)
    with patched():
        torch.testing.assert_close(resize(samples[0][0]), resize(samples[0][0].clone()))
    at_rest = 1 if dtype == torch.int16 else 0 if dtype == torch.uint8 else 1e-5
    check(resize, samples[0], others=samples[1:], dynamic_shapes=AXES, rtol=0, atol=at_rest)


@pytest.mark.compares("transformers.image_transforms:get_resize_output_image_size")
@pytest.mark.compares("transformers.image_processing_backends:TorchvisionBackend.center_crop")
@pytest.mark.parametrize("crop", [(8, 20), pytest.param((12, 12), marks=pytest.mark.long)])
def test_the_shorter_edge_and_the_middle(crop: tuple[int, int]) -> None:
    transforms = importlib.import_module("transformers.image_transforms")
    backends = importlib.import_module("transformers.image_processing_backends")
    sizes = importlib.import_module("transformers.image_utils").SizeDict(height=crop[0], width=crop[1])

    def forward(x: torch.Tensor) -> torch.Tensor:
        size = transforms.get_resize_output_image_size(
            x, 10, default_to_square=False, input_data_format="channels_first"
        )
        found: torch.Tensor = backends.TorchvisionBackend.center_crop(None, F.interpolate(x, size=size), sizes)
        return found

    samples = _samples(torch.float32)
    check(forward, samples[0], others=samples[1:], dynamic_shapes=AXES)


@pytest.mark.parametrize(
    ("mode", "size"),
    [("bilinear", (7, 30)), ("bicubic", (7, 30)), pytest.param("bicubic", None, marks=pytest.mark.long)],
)
def test_bytes_are_resampled_in_fixed_point(mode: str, size: Any) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        wanted = (x.shape[2] * 2 // 3, x.shape[3] + 5) if size is None else size
        return F.interpolate(x, size=wanted, mode=mode, antialias=True)

    samples = _samples(torch.uint8)
    check(forward, samples[0], others=samples[1:], dynamic_shapes=AXES, rtol=0, atol=0)
