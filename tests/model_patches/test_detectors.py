"""torchvision's detectors: their functions in tensors compute what they computed, for any number of boxes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.model_patches.support import patched
from tests.support import check

pytest.importorskip("torchvision")
from torchvision.models import detection
from torchvision.models.detection import _utils, anchor_utils, roi_heads
from torchvision.ops import MultiScaleRoIAlign, batched_nms


def boxes_of(count: int, extent: float = 40.0) -> torch.Tensor:
    corners = torch.rand(count, 2) * extent
    return torch.cat([corners, corners + 1 + torch.rand(count, 2) * extent / 3], dim=1)


@pytest.mark.compares("torchvision.ops.boxes:batched_nms")
@pytest.mark.parametrize("count", [0, 1, 60, 1400])
def test_suppression_by_class(count: int) -> None:
    torch.manual_seed(count)
    boxes, scores, classes = boxes_of(count, 200), torch.rand(count), torch.randint(0, 7, (count,))
    want = batched_nms(boxes, scores, classes, 0.3)
    with patched():
        assert torch.equal(batched_nms(boxes, scores, classes, 0.3), want)
    assert count < 2 or 0 < len(want) < count


@pytest.mark.compares("torchvision.models.detection.roi_heads:paste_masks_in_image")
@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("padding", [0, 1])
def test_pasted_masks(count: int, padding: int) -> None:
    torch.manual_seed(count)
    masks, boxes = torch.rand(count, 1, 7, 7), boxes_of(count) - 6
    want = roi_heads.paste_masks_in_image(masks, boxes, (33, 41), padding=padding)
    with patched():
        torch.testing.assert_close(roi_heads.paste_masks_in_image(masks, boxes, (33, 41), padding), want)


@pytest.mark.compares("torchvision.models.detection._utils:BoxCoder.decode")
def test_decoded_boxes() -> None:
    coder = _utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    codes, boxes = torch.randn(5, 12), [boxes_of(2), boxes_of(3)]
    want = coder.decode(codes, boxes)
    with patched():
        torch.testing.assert_close(coder.decode(codes, boxes), want)
        assert coder.decode(torch.randn(0, 12), [boxes_of(0)]).shape == (0, 3, 4)


class Suppress(nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> Any:
        chosen = torch.where(scores > 0.5)[0]
        kept = batched_nms(boxes[chosen], scores[chosen], classes[chosen], 0.3)
        return boxes[chosen][kept], kept


class Paste(nn.Module):
    def forward(self, masks: torch.Tensor, boxes: torch.Tensor) -> Any:
        wide = torch.where(boxes[:, 2] - boxes[:, 0] > 5)[0]
        return roi_heads.paste_masks_in_image(masks[wide], boxes[wide], (30, 44))


class Keypoints(nn.Module):
    def forward(self, maps: torch.Tensor, boxes: torch.Tensor) -> Any:
        wide = torch.where(boxes[:, 2] - boxes[:, 0] > 5)[0]
        return roi_heads.heatmaps_to_keypoints(maps[wide], boxes[wide])


def test_any_number_of_boxes() -> None:
    """At run time none, one, and more than the 1000 above which torchvision goes class by class."""

    def sample(count: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(seed)
        return boxes_of(count, 200), torch.rand(count) * scale, torch.randint(0, 7, (count,))

    result = check(
        Suppress(), sample(40, 1), others=[sample(1, 2), sample(9, 3, 0.4), sample(2900, 4)],
        dynamic_shapes={name: {0: "n"} for name in ("boxes", "scores", "classes")},
    )  # fmt: skip
    assert any("batched_nms" in str(line) for line in result.report.assumptions)


@pytest.mark.long_cases("Paste")
@pytest.mark.parametrize(
    "kind",
    [
        Paste,
        pytest.param(
            Keypoints, marks=pytest.mark.compares("torchvision.models.detection.roi_heads:heatmaps_to_keypoints")
        ),
    ],
)
def test_as_many_results_as_boxes(kind: type[nn.Module]) -> None:
    def sample(count: int, seed: int, extent: float) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(seed)
        maps = torch.rand(count, 1 if kind is Paste else 3, 6, 6)
        return maps, boxes_of(count, extent)

    others = [sample(8, 2, 40), sample(8, 3, 3), sample(8, 4, 25)]
    check(kind(), sample(8, 1, 30), others=others, rtol=1e-3, atol=1e-4)


def small(kind: str) -> nn.Module:
    """A whole detector over a backbone of two convolutions."""

    class Backbone(nn.Module):
        out_channels = 8

        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(3, 8, 3, stride=4, padding=1)
            self.two = nn.Conv2d(8, 8, 3, stride=2, padding=1)

        def forward(self, x: torch.Tensor) -> Any:
            fine = self.one(x).relu()
            return OrderedDict([("0", fine), ("1", self.two(fine))])

    torch.manual_seed(5)
    anchors = anchor_utils.AnchorGenerator(((8,), (16,)), ((0.5, 1.0),) * 2)
    sizes: dict[str, Any] = {"min_size": 48, "max_size": 64, "rpn_anchor_generator": anchors}
    sizes |= {"rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 30, "box_detections_per_img": 6}

    def pool(size: int) -> Any:
        return MultiScaleRoIAlign(["0", "1"], size, 2, canonical_scale=16, canonical_level=1)

    sizes |= {"box_roi_pool": pool(4), "box_head": nn.Sequential(nn.Flatten(), nn.Linear(128, 16)),
              "box_predictor": detection.faster_rcnn.FastRCNNPredictor(16, 4), "box_score_thresh": 0.1}  # fmt: skip
    if kind == "mask":
        predictor = detection.mask_rcnn.MaskRCNNPredictor(8, 4, 4)
        return detection.MaskRCNN(
            Backbone(), mask_roi_pool=pool(4), mask_head=nn.Identity(), mask_predictor=predictor, **sizes
        )
    predictor = detection.keypoint_rcnn.KeypointRCNNPredictor(8, 3)
    return detection.KeypointRCNN(
        Backbone(), keypoint_roi_pool=pool(4), keypoint_head=nn.Identity(), keypoint_predictor=predictor, **sizes
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mask", "keypoint"])
def test_whole_detectors(kind: str) -> None:
    torch.manual_seed(6)
    detector = small(kind).eval()
    images = [torch.rand(3, 50, 60), torch.randn(3, 50, 60) * 2, torch.full((3, 50, 60), torch.nan)]
    with torch.no_grad():
        counts = [len(detector([image])[0]["boxes"]) for image in images]
    assert min(counts) == 0 < counts[0], "the samples do not try different numbers of boxes"
    check(detector, ([images[0]],), others=[([image],) for image in images[1:]], rtol=1e-3, atol=1e-3)


def test_only_the_capturing_thread_and_only_then() -> None:
    code = roi_heads.paste_masks_in_image.__code__
    torch.manual_seed(0)
    arguments = (torch.rand(2, 1, 5, 5), boxes_of(2), (30, 30))
    want = roi_heads.paste_masks_in_image(*arguments)
    found: list[Any] = []

    def elsewhere() -> None:
        found.append(roi_heads.paste_masks_in_image(*arguments))

    def inside() -> None:
        with patched() as patches:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert torch.equal(found[0], want)
            assert not patches.notes()
            roi_heads.paste_masks_in_image(*arguments)
            assert [str(note).split()[0].rpartition(".")[2] for note in patches.notes()] == ["paste_masks_in_image"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    assert roi_heads.paste_masks_in_image.__code__ is code
    assert torch.equal(roi_heads.paste_masks_in_image(*arguments), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fcos_resnet50_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"])
def test_single_stage_detectors(name: str) -> None:
    torch.manual_seed(0)
    model = detection.__dict__[name](weights=None, weights_backbone=None).eval()
    model.score_thresh = 0.011
    model.topk_candidates = 30
    if model.transform.fixed_size is None:
        model.transform.min_size, model.transform.max_size = (128,), 160
    images = [torch.rand(3, 100, 120), torch.randn(3, 100, 120) * 2, torch.full((3, 100, 120), torch.nan)]
    check(model, ([images[0]],), others=[([image],) for image in images[1:]], rtol=1e-3, atol=1e-2)


def test_a_decision_of_ones_own_is_still_refused() -> None:
    class Own(nn.Module):
        def forward(self, boxes: torch.Tensor) -> torch.Tensor:
            chosen = boxes[boxes[:, 0] > 3]
            return chosen * 2 if chosen.numel() > 20 else chosen

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Own(), (boxes_of(9),), data_branches="error")
    assert caught.value.code == "E104"
