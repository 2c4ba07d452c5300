"""Pooling and resampling: every window, every coordinate."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge
from tests.support import check

R = torch.randn
torch.manual_seed(0)
FAST = settings(max_examples=60, deadline=None, derandomize=True)
IMAGE = R(2, 3, 5, 6)
BYTES = (IMAGE * 50 + 100).clamp(0, 255).to(torch.uint8)
SMOOTH = (1e-4, 1e-4)
"""Resampling in float32: onnxruntime and PyTorch compute the coordinates in another order."""


@pytest.mark.long
@FAST
@given(
    size=st.integers(5, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
)
def test_max_pool(size, kernel, stride, padding, dilation, ceil_mode):
    padding = min(padding, kernel // 2)
    arguments = (R(2, 3, size, size + 1), [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2, ceil_mode)
    judge(Case(aten.max_pool2d_with_indices.default, arguments), opsets=(11, 20))


@pytest.mark.long
@FAST
@given(
    size=st.integers(4, 9),
    kernel=st.integers(2, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    ceil_mode=st.booleans(),
    count_include_pad=st.booleans(),
    divisor=st.none() | st.integers(1, 7),
)
def test_avg_pool(size, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
    padding = min(padding, kernel // 2)
    arguments = (
        R(2, 3, size, size + 1), [kernel] * 2, [stride] * 2, [padding] * 2, ceil_mode, count_include_pad, divisor,
    )  # fmt: skip
    judge(Case(aten.avg_pool2d.default, arguments), opsets=(11, 20, 23))


POOLS = [
    case(aten.max_pool1d.default, R(3, 9), [3], [2], [1], [1], True),
    case(aten.max_pool2d.default, torch.randint(0, 99, (2, 3, 8, 8)), [3]),
    case(aten.max_pool3d.default, R(2, 3, 8, 8, 8), [3], nodes=1),
    case(aten.avg_pool1d.default, R(3, 9), [2], nodes=3),
    case(aten.avg_pool3d.default, R(2, 3, 8, 8, 8), [3], [2], [1], True),
    case(aten.adaptive_avg_pool1d.default, R(2, 3, 7), [3], nodes=1),
    case(aten.adaptive_avg_pool3d.default, R(2, 3, 5, 6, 7), [3, 4, 2]),
    case(aten.adaptive_max_pool1d.default, R(3, 7), [3]),
    case(aten.adaptive_max_pool3d.default, R(2, 3, 5, 6, 7), [3, 4, 2]),
    case(aten.avg_pool2d.default, R(2, 3, 2, 3), [9, 8], [9, 8], [0, 0], True, True, None, nodes=1),
    case(aten.avg_pool2d.default, R(2, 3, 2, 9), [9, 4], [9, 3], [0, 1], True, True, 5),
    case(aten.max_pool2d.default, R(2, 3, 2, 3), [9, 8], [9, 8], [0, 0], [1, 1], True, nodes=1),
    case(aten.max_pool2d.default, torch.randint(0, 255, (1, 2, 5, 6)).byte(), [2, 3], [1, 2], [1, 1]),
    case(aten.adaptive_avg_pool2d.default, R(2, 3, 8, 8), [1, 1], nodes=1),
    case(aten.adaptive_avg_pool2d.default, R(2, 3, 8, 8), [2, 4], nodes=1),
]
for output in ([3, 5], [8, 1], [11, 5]):
    POOLS += [
        case(aten.adaptive_avg_pool2d.default, R(2, 3, 8, 8), output, nodes=2),
        case(aten.adaptive_max_pool2d.default, R(2, 3, 8, 8), output),
    ]
_values, _places = aten.max_pool2d_with_indices(R(2, 3, 8, 8), [2, 2])
POOLS.append(case(aten.max_unpool2d.default, _values, _places, [8, 8]))


@pytest.mark.parametrize("given_case", POOLS, ids=str)
def test_pools(given_case: Case):
    judge(given_case)


SIZES = ([9, 7], [3, 3], [10, 12], [1, 1], [5, 6])
FACTORS = ([2.0, 2.0], [0.5, 0.7], [1.3, 2.6], [0.37, 1.05])
ALIGNED = ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
RESAMPLED = []
for target, factors in itertools.chain(((s, None) for s in SIZES), ((None, f) for f in FACTORS)):
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        RESAMPLED.append(case(getattr(aten, name).vec, IMAGE, target, factors, nodes=2))
    for name, align in itertools.product(ALIGNED, (False, True)):
        RESAMPLED.append(case(getattr(aten, name).vec, IMAGE, target, align, factors, nodes=2, tolerance=SMOOTH))
    if target is not None and target != [1, 1]:
        RESAMPLED += [
            case(getattr(aten, name).vec, BYTES, target, align, None)
            for name, align in itertools.product(ALIGNED, (False, True))
        ]
RESAMPLED += [
    case(aten._upsample_lanczos2d_aa.vec, IMAGE, [9, 4], False, None, tolerance=SMOOTH),
    case(aten.upsample_bilinear2d.default, IMAGE, [10, 12], False, 2.0, 2.0, tolerance=SMOOTH, nodes=1),
    case(aten.upsample_linear1d.vec, R(2, 3, 5), [7], False, None, tolerance=SMOOTH, nodes=1),
    case(aten.upsample_trilinear3d.vec, R(2, 3, 4, 5, 6), None, False, [1.5, 2, 0.5], tolerance=SMOOTH, nodes=1),
    case(aten.upsample_nearest3d.vec, R(2, 3, 4, 5, 6), [7, 3, 9], None),
    case(aten.upsample_bicubic2d.vec, IMAGE.double(), None, False, [1.3, 2.6]),
]


@pytest.mark.parametrize("given_case", RESAMPLED, ids=str)
def test_resampling(given_case: Case):
    judge(given_case, opsets=(13, 20))


@pytest.mark.parametrize("size", range(1, 24, 2))
def test_nearest_takes_the_same_elements_at_every_size(size):
    for count in range(1, 40, 4):
        for name in ("upsample_nearest1d", "_upsample_nearest_exact1d"):
            judge(case(getattr(aten, name).vec, R(1, 1, size), [count], None), opsets=(20,))


GRID, VOLUME_GRID = torch.rand(2, 4, 7, 2) * 2.6 - 1.3, torch.rand(2, 4, 3, 2, 3) * 2.6 - 1.3
SAMPLED = [
    case(aten.grid_sampler.default, IMAGE, GRID, mode, padding, align, since=16, nodes=1, tolerance=(1e-3, 1e-3))
    for mode, padding, align in itertools.product((0, 1, 2), (0, 1, 2), (False, True))
]
SAMPLED += [
    case(
        aten.grid_sampler.default,
        R(2, 3, 4, 5, 6),
        VOLUME_GRID,
        mode,
        padding,
        True,
        since=20,
        nodes=1,
        tolerance=SMOOTH,
    )
    for mode, padding in itertools.product((0, 1), (0, 1, 2))
]
for align in (False, True):
    SAMPLED += [
        case(aten.affine_grid_generator.default, R(2, 2, 3), [2, 3, 4, 5], align, nodes=3),
        case(aten.affine_grid_generator.default, R(2, 3, 4), [2, 3, 4, 5, 6], align, nodes=3),
    ]


@pytest.mark.parametrize("given_case", SAMPLED, ids=str)
def test_sampling(given_case: Case):
    judge(given_case, opsets=(13, 17, 20))


def test_adaptive_pool_of_a_symbolic_size():
    call = harness.call_of(aten.adaptive_avg_pool2d.default, R(2, 3, 8, 9), [3, 5])
    model = harness.build(call, 20, {8: "h", 9: "w"})
    other = R(4, 3, 7, 10)[:2]
    model.feeds = {"input0": other.numpy()}
    (output,) = harness.run_onnxruntime(model)
    assert not harness.difference(output, aten.adaptive_avg_pool2d.default(other, [3, 5]))


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("filler", [0.0, -7.0, float("-inf")])
def test_a_pool_of_padded_numbers(opset, filler):
    def pooled(x):
        return torch.nn.functional.max_pool2d(torch.nn.functional.pad(x, (1, 1, 1, 1), value=filler), 3, 2)

    result = check(pooled, (-torch.rand(1, 4, 6, 6) - 1,), opset_version=opset)
    assert ("Pad" in {node.op_type for node in result.model.graph}) == (filler != float("-inf"))


LARGE = 2**60
POOLS_OF_INTEGERS = {
    "max": lambda x: torch.max_pool2d(x, 2, 1),
    "max with places": lambda x: torch.nn.functional.max_pool2d(x, 3, 2, padding=1, return_indices=True),
    "max of dilated windows": lambda x: torch.max_pool2d(x, (2, 3), 2, 1, (2, 1), ceil_mode=True),
    "average": lambda x: torch.nn.functional.avg_pool2d(x, 2, 1),
    "average of what is inside": lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1, True, False),
    "average with padding": lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1, True, True),
    "sum by a divisor": lambda x: torch.nn.functional.avg_pool2d(x, 2, 2, divisor_override=-3),
}


@pytest.mark.parametrize("name", POOLS_OF_INTEGERS)
def test_integers_that_no_float_holds_are_pooled_exactly(name):
    def image(rows):
        return torch.randint(-9, 9, (1, 2, rows, 6)) + LARGE * torch.randint(-1, 2, (1, 2, rows, 6))

    others = [(image(rows),) for rows in (6, 9)]
    check(POOLS_OF_INTEGERS[name], (image(7),), others=others, dynamic_shapes=({2: "h"},), rtol=0, atol=0)


def test_the_smallest_integer_is_found_beside_padding():
    def pooled(x):
        return torch.nn.functional.max_pool2d(x, 3, 2, padding=1, return_indices=True)

    smallest = torch.full((1, 1, 5, 6), torch.iinfo(torch.int64).min)
    some = smallest.clone()
    some[..., 1::3, 2::3] += 1
    check(pooled, (smallest,), others=[(some,), (smallest[:, :, :4],)], dynamic_shapes=({2: "h"},), rtol=0, atol=0)
