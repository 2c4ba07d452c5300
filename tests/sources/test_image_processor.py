"""Models with their image processor in front: the numbers of transformers' own processor, for images of any size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.sources import Source, resolve
from fx2onnx.sources.hf.image_processor import Preprocessed, with_image_processor
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("torchvision", reason="torchvision is not installed")

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
AXES = {"images": {0: "batch", 2: "height", 3: "width"}}
SIZES = ((2, 41, 50), (1, 40, 30), (3, 24, 24), (1, 9, 90), (1, 25, 24))
EDGE, CROP, BOTH = {"shortest_edge": 24}, {"height": 20, "width": 30}, {"height": 24, "width": 20}


class Pixels(torch.nn.Module):
    """A model that gives back what it is fed."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return pixel_values


def _images(batch: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)


@pytest.mark.long_cases("Bit", "ConvNext", "Segformer", "MobileNetV1", "Perceiver", "RTDetr", "no-resize", "float")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("ViT", {"size": BOTH}, id="ViT"),
        pytest.param("CLIP", {"size": EDGE, "crop_size": CROP}, id="CLIP"),
        pytest.param("Bit", {"size": EDGE, "do_center_crop": False}, id="Bit"),
        pytest.param("ConvNext", {"size": EDGE, "crop_pct": 0.5}, id="ConvNext"),
        pytest.param("Segformer", {"size": BOTH}, id="Segformer"),
        pytest.param("MobileNetV1", {"size": EDGE, "crop_size": BOTH}, id="MobileNetV1"),
        pytest.param("Perceiver", {"size": BOTH, "crop_size": CROP}, id="Perceiver"),
        pytest.param("RTDetr", {"size": BOTH}, id="RTDetr"),
        pytest.param("CLIP", {"do_resize": False, "crop_size": CROP, "do_normalize": False}, id="no-resize"),
        pytest.param("DINOv3ViT", {"size": BOTH}, id="float"),
    ],
)
def test_the_numbers_of_the_processor(name: str, settings: dict[str, Any]) -> None:
    processor = getattr(transformers, f"{name}ImageProcessor")(**settings)
    module = Preprocessed(Pixels(), processor)
    tolerance = 1e-4 if name == "DINOv3ViT" else 1e-6  # resized in float32
    samples = [(_images(*size),) for size in SIZES]
    for (images,) in samples:
        expected = processor(list(images), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(module(images), expected, rtol=0, atol=0)
    check(module, samples[0], others=samples[1:], dynamic_shapes=AXES, rtol=0, atol=tolerance)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=3, **SMALL)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_with_a_processor(folder: Path) -> None:
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    processor.save_pretrained(folder)
    plain, source = resolve(f"hf:{folder}"), resolve(f"hf:{folder}", with_processor=True)
    assert set(source.kwargs) == {"images"}
    assert source.kwargs["images"].dtype == torch.uint8
    assert source.dynamic_shapes == AXES
    assert "with ViTImageProcessor" in source.origin
    images = _images(2, 33, 21)
    with torch.no_grad():
        expected = plain.module(processor(list(images), return_tensors="pt")["pixel_values"]).logits
        torch.testing.assert_close(source.module(images=images).logits, expected)


def test_a_folder_without_one(folder: Path) -> None:
    with pytest.raises(fx2onnx.UserError, match="has no image processor") as caught:
        resolve(f"hf:{folder}", with_processor=True)
    assert "preprocessor_config.json" in caught.value.why


def test_a_source_that_has_none() -> None:
    with pytest.raises(fx2onnx.UserError, match="--with-processor has no meaning for zoo:"):
        resolve("zoo:mnist_cnn", with_processor=True)


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("Qwen2VL", {}, "ValueError"),  # patches of an image in rows
        pytest.param("Idefics3", {}, "Error|other numbers", marks=pytest.mark.long),  # tiles
        ("Detr", {"pad_size": {"height": 90, "width": 90}}, "ValueError"),
        ("ViT", {"resample": None, "do_resize": True, "size": {"longest_edge": 5}}, "Error"),
    ],
)
def test_a_processor_that_is_no_graph(tmp_path: Path, name: str, settings: dict[str, Any], why: str) -> None:
    made = getattr(transformers, f"{name}ImageProcessor")()
    for key, value in settings.items():
        setattr(made, key, value)
    made.save_pretrained(tmp_path)
    source = Source("model", Pixels(), (), {"pixel_values": torch.ones(2, 3, 16, 16)}, {"pixel_values": {0: "batch"}})
    with pytest.raises(fx2onnx.UserError) as caught:
        with_image_processor(source, tmp_path)
    assert caught.value.code == "E601"
    assert re.search(why, caught.value.why)
