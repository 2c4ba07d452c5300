"""Boxes and maps of labels behind a model, as transformers' own processors make them of the model's outputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fx2onnx.sources import Source, resolve
from fx2onnx.sources.hf.image_processor import Answered, with_answers
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("torchvision", reason="torchvision is not installed")

SIZES = ((2, 41, 50), (1, 40, 30), (3, 9, 90))
AXES = {"images": {0: "batch", 2: "height", 3: "width"}}
BOXES = ("scores", "labels", "boxes")


class Net(torch.nn.Module):
    """A detector with 6 boxes, or a segmenter, of 5 classes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.classes, self.boxes = kind, torch.nn.Linear(3, 5), torch.nn.Linear(3, 4)

    def forward(self, images: torch.Tensor) -> Any:
        parts = F.adaptive_avg_pool2d(images.float(), (2, 3)) / 100
        rows = parts.flatten(2).mT
        if self.kind == "boxes":
            return SimpleNamespace(logits=self.classes(rows) * 3, pred_boxes=self.boxes(rows).sigmoid())
        if self.kind == "queries":
            masks = (self.boxes(rows).mT.unflatten(2, (2, 3)), self.classes(self.boxes(rows).mT[..., :3]))
            return SimpleNamespace(masks_queries_logits=masks[0], class_queries_logits=masks[1])
        return SimpleNamespace(logits=self.classes(rows).mT.unflatten(2, (2, 3)))


def _images(batch: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)


@pytest.mark.long_cases("Segformer", "Yolos", "Conditional", "RTDetr", "OwlViT", "GroundingDino", "Beit", "MaskFormer")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("Detr", "boxes", id="Detr"),
        pytest.param("Yolos", "boxes", id="Yolos"),
        pytest.param("ConditionalDetr", "boxes", id="Conditional"),
        pytest.param("RTDetr", "boxes", id="RTDetr"),
        pytest.param("OwlViT", "boxes", id="OwlViT"),
        pytest.param("GroundingDino", "boxes", id="GroundingDino"),
        pytest.param("Segformer", "map", id="Segformer"),
        pytest.param("Beit", "map", id="Beit"),
        pytest.param("MaskFormer", "queries", id="MaskFormer"),
    ],
)
def test_the_answers_of_the_processor(name: str, kind: str) -> None:
    processor, net = getattr(transformers, f"{name}ImageProcessor")(), Net(kind)
    samples = [(_images(*size),) for size in SIZES]
    source = with_answers(Source("net", net, (), {"images": samples[0][0]}, AXES), processor)
    assert source.output_names == (BOXES if kind == "boxes" else ("segmentation",))
    for (images,) in samples:
        with torch.no_grad():
            outputs, found = net(images), source.module(images)
        sizes = [images.shape[-2:]] * len(images)
        if kind == "boxes":
            expected = processor.post_process_object_detection(outputs, threshold=-1.0, target_sizes=sizes)
            for key, got in zip(BOXES, found, strict=True):
                torch.testing.assert_close(got, torch.stack([one[key] for one in expected]))
        else:
            expected = processor.post_process_semantic_segmentation(outputs, target_sizes=sizes)
            torch.testing.assert_close(found[0], torch.stack(expected))
    check(source.module, samples[0], others=samples[1:], dynamic_shapes=AXES, atol=1e-4)


def test_an_unknown_answer_leaves_the_outputs() -> None:
    class Other:
        def post_process_object_detection(self, outputs: Any, **_: Any) -> list[dict[str, torch.Tensor]]:
            return [dict.fromkeys(BOXES, one) for one in outputs.logits]

    source = Source("net", Net("boxes"), (), {"images": _images(2, 8, 8)}, AXES)
    assert with_answers(source, Other()) is source  # type: ignore[arg-type]


@pytest.mark.long
def test_a_folder_of_a_detector_that_pads(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.YolosConfig(image_size=[32, 32], patch_size=8, num_detection_tokens=6, num_labels=4, **small)
    model = transformers.YolosForObjectDetection(config).eval()
    processor = transformers.YolosImageProcessor(size={"height": 32, "width": 32})
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    source = resolve(f"hf:{tmp_path}", with_processor=True)
    assert isinstance(source.module, Answered)
    assert set(source.kwargs) == {"images"}
    images = _images(2, 33, 21)
    with torch.no_grad():
        outputs = model(**processor(list(images), return_tensors="pt"))
        found = source.module(images)
    expected = processor.post_process_object_detection(outputs, threshold=-1.0, target_sizes=[(33, 21)] * 2)
    for key, got in zip(BOXES, found, strict=True):
        torch.testing.assert_close(got, torch.stack([one[key] for one in expected]))
