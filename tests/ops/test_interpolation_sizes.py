"""Interpolation by factors that no float32 number is, at many sizes: sizes and values are eager's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.aten_map.interpolation import _factor_at_every_size
from tests.support import check

ROWS = [1, 2, 3, 5, 7, 9, 10, 15, 20, 30, 77, 250]


@pytest.mark.parametrize("mode", ["linear", "nearest", "nearest-exact"])
@pytest.mark.parametrize("scale", [4.2, 0.7, 1.1, 1.37, 2.1, 2.3])
def test_one_axis(mode: str, scale: float) -> None:
    module = partial(F.interpolate, scale_factor=scale, mode=mode)
    others = [(torch.rand(1, 2, n),) for n in ROWS if int(n * scale)]
    check(module, (torch.rand(1, 2, 17),), others=others, atol=1e-4, dynamic_shapes=({2: "n"},))


TWO: dict[str, dict[str, Any]] = {
    "bilinear": {"scale_factor": 2.3, "mode": "bilinear"},
    "bilinear of a small image": {"scale_factor": (1.1, 2.0), "mode": "bilinear"},
    "bicubic": {"scale_factor": 2.3, "mode": "bicubic"},
    "bicubic of a small image": {"scale_factor": 1.1, "mode": "bicubic"},
    "one axis": {"scale_factor": (4.2, 1.0), "mode": "bilinear"},
    "corners": {"scale_factor": 4.2, "mode": "bilinear", "align_corners": True},
    "recomputed": {"scale_factor": 2.3, "mode": "bilinear", "recompute_scale_factor": True},
    "nearest": {"scale_factor": (1.5, 1.1), "mode": "nearest"},
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_axes(name: str, dtype: torch.dtype) -> None:
    module = partial(F.interpolate, **TWO[name])
    others = [(torch.rand(1, 1, *sizes, dtype=dtype),) for sizes in ((1, 1), (2, 3), (5, 15), (10, 30), (33, 7))]
    wanted = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype] if "nearest" not in name else 0
    sample = (torch.rand(1, 1, 17, 15, dtype=dtype),)
    check(module, sample, others=others, rtol=0, atol=wanted, dynamic_shapes=({2: "h", 3: "w"},))


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ({"size": (7, 1), "mode": "bicubic", "align_corners": True}, torch.float64),
        ({"size": (7, 40), "mode": "bilinear"}, torch.float64),
    ],
)
def test_float64_by_sizes_is_computed_in_float64(arguments: dict[str, Any], dtype: torch.dtype) -> None:
    others = [(torch.rand(1, 1, *sizes, dtype=dtype),) for sizes in ((1, 1), (2, 3), (7, 40), (33, 7))]
    sample = (torch.rand(1, 1, 17, 15, dtype=dtype),)
    module = partial(F.interpolate, **arguments)
    check(module, sample, others=others, rtol=0, atol=1e-9, dynamic_shapes=({2: "h", 3: "w"},))


@pytest.mark.parametrize("scale", [(1.0, 2.1, 1.1), (2.0, 1.0, 1.37)])
@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_three_axes(scale: tuple[float, ...], mode: str) -> None:
    module = partial(F.interpolate, scale_factor=scale, mode=mode)
    others = [(torch.rand(1, 1, 2, *sizes),) for sizes in ((1, 1), (2, 3), (5, 15), (15, 5))]
    axes = {3: "h", 4: "w"}
    check(module, (torch.rand(1, 1, 2, 17, 15),), others=others, atol=1e-4, dynamic_shapes=(axes,))


@pytest.mark.parametrize(("size", "scale"), [(7, 1.1), (3, 2.1), (2, 1.1)])
def test_nearest_of_one_axis_uses_the_factor_where_the_size_stays(size: int, scale: float) -> None:
    check(partial(F.interpolate, scale_factor=scale), (torch.rand(1, 1, size),), rtol=0, atol=0)


def test_antialias_by_a_factor_that_no_resize_has_is_refused() -> None:
    module = partial(F.interpolate, scale_factor=2.3, mode="bilinear", antialias=True)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module, (torch.rand(1, 1, 17, 15),), dynamic_shapes=({2: "h", 3: "w"},))
    assert caught.value.code == "E203"


def test_factors_give_pytorchs_sizes() -> None:
    sizes = np.arange(1, 10_001)
    for scale in (4.2, 0.3, 1.1, 1 / 3, 2.5):
        factor = _factor_at_every_size(scale)
        assert factor is not None
        found = np.floor(sizes.astype(np.float32) * np.float32(factor))
        np.testing.assert_array_equal(found, [int(int(n) * scale) for n in sizes])
    assert _factor_at_every_size(2.3) is None
