"""The stand-ins for torchvision's operators against values that its compiled CPU kernels gave (``data/*.npz``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision_ops as ops
from torchvision_ops import CPU_KERNELS, SCHEMAS

# Written by torchvision 0.28's own kernels: inputs with regions partly outside the map, tied scores, empty bins.
_RECORDED = np.load(Path(__file__).with_name("torchvision_ops.npz"))


def recorded(name: str) -> torch.Tensor:
    return torch.from_numpy(_RECORDED[name])


@pytest.mark.parametrize(("threshold", "expected"), [(0.5, "nms_half"), (0.1, "nms_tenth")])
def test_nms_keeps_what_torchvision_keeps(threshold: float, expected: str) -> None:
    kept = ops.nms(recorded("boxes"), recorded("scores"), threshold)
    assert kept.dtype == torch.int64
    assert torch.equal(kept, recorded(expected))


@pytest.mark.long
def test_nms_over_several_blocks_is_the_greedy_definition() -> None:
    generator = torch.Generator().manual_seed(3)
    boxes = torch.rand(600, 4, generator=generator) * 10
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(600, generator=generator)
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        if all(_iou(boxes[index], boxes[other]) <= 0.3 for other in kept):
            kept.append(index)
    assert ops.nms(boxes, scores, 0.3).tolist() == kept


def _iou(a: torch.Tensor, b: torch.Tensor) -> float:
    width = (torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])).clamp(min=0)
    height = (torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])).clamp(min=0)
    shared = width * height
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(shared / (areas - shared))


def test_nms_of_nothing_is_nothing() -> None:
    assert ops.nms(torch.zeros(0, 4), torch.zeros(0), 0.5).shape == (0,)


@pytest.mark.parametrize(
    ("name", "ratio", "aligned"), [("roi_align_adaptive", -1, False), ("roi_align_aligned", 2, True)]
)
def test_roi_align_gives_torchvisions_values(name: str, ratio: int, aligned: bool) -> None:
    got = ops.roi_align(recorded("x"), recorded("rois"), 0.25, 3, 2, ratio, aligned)
    torch.testing.assert_close(got, recorded(name), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["ps_roi_align", "roi_pool", "ps_roi_pool"])
def test_other_poolings_give_torchvisions_values(name: str) -> None:
    extra = (2,) if name == "ps_roi_align" else ()
    got, index = getattr(ops, name)(recorded("x"), recorded("rois"), 0.25, 3, 2, *extra)
    torch.testing.assert_close(got, recorded(name), rtol=0, atol=1e-6)
    assert torch.equal(index, recorded(f"{name}_index"))


def test_roi_align_does_not_depend_on_its_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_ROI_BLOCK_ELEMENTS", 1)
    got = ops.roi_align(recorded("x"), recorded("rois"), 0.25, 3, 2, 2, True)
    torch.testing.assert_close(got, recorded("roi_align_aligned"), rtol=0, atol=1e-6)


def test_deform_conv2d_gives_torchvisions_values() -> None:
    tensors = [recorded(name) for name in ("x", "weight", "offset", "mask", "bias")]
    got = ops.deform_conv2d(*tensors, 2, 2, 1, 1, 1, 1, 2, 2, True)
    torch.testing.assert_close(got, recorded("deform_conv2d"), rtol=0, atol=2e-6)


def test_deform_conv2d_without_offsets_is_a_convolution() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 4, 9, 8, generator=generator), torch.randn(6, 2, 3, 3, generator=generator)
    expected = torch.nn.functional.conv2d(x, weight, torch.arange(6.0), stride=2, padding=1, groups=2)
    offset = torch.zeros(2, 18, *expected.shape[2:])
    got = ops.deform_conv2d(x, weight, offset, torch.zeros(2, 1), torch.arange(6.0), 2, 2, 1, 1, 1, 1, 2, 1, False)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rois", [torch.zeros(3, 4), torch.zeros(3, 5, dtype=torch.float64)])
def test_roi_align_refuses_regions_of_wrong_shape_or_dtype(rois: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="rois"):
        ops.roi_align(recorded("x"), rois, 1.0, 2, 2, -1, False)


def test_every_kernel_belongs_to_a_schema() -> None:
    assert set(CPU_KERNELS) <= set(SCHEMAS)
    for name in CPU_KERNELS:
        stated = [part.split()[-1] for part in SCHEMAS[name].split(" -> ")[0].strip("()").split(", ")]
        code = getattr(ops, name).__code__
        assert list(code.co_varnames[: code.co_argcount]) == stated
