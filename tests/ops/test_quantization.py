"""Fake quantisation, quantised storage, and torchvision's operators."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed
import torchvision  # noqa: F401   declares its operators

from tests import support
from tests.ops.judge import Case, aten, case, judge

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
decomposed, vision = torch.ops.quantized_decomposed, torch.ops.torchvision
X, SCALES = R(3, 4, 5) * 20, torch.rand(4) * 0.3 + 0.1

FAKE = []
for low, high in ((0, 255), (-128, 127), (-127, 127), (0, 15), (-32768, 32767), (-(2**20), 2**20)):
    zeros = (T([0, 1, 2, 3]) + (low + high) // 2).clamp(low, high).int()
    byte = (low, high) in ((0, 255), (-128, 127))
    FAKE += [
        case(aten.fake_quantize_per_tensor_affine.default, X, 0.137, int(zeros[0]), low, high, nodes=2 if byte else 4),
        case(aten.fake_quantize_per_tensor_affine.tensor_qparams, X, T([0.137]), zeros[:1], low, high),
        case(aten.fake_quantize_per_channel_affine.default, X, SCALES, zeros, 1, low, high),
        case(aten.fake_quantize_per_tensor_affine_cachemask.default, X, 0.137, int(zeros[0]), low, high),
        case(aten.fake_quantize_per_channel_affine_cachemask.default, X, SCALES, zeros, 1, low, high),
    ]
STORED = []
RANGES = ((torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.int8, -127, 127), (torch.int16, -32768, 32767))
for dtype, low, high in RANGES:
    code = decomposed.quantize_per_tensor.default(X, 0.137, 3, low, high, dtype)
    STORED += [
        case(decomposed.quantize_per_tensor.default, X, 0.137, 3, low, high, dtype),
        case(decomposed.quantize_per_tensor.tensor, X, T(0.137), T(3), low, high, dtype),
        case(decomposed.quantize_per_channel.default, X, SCALES, T([1, 2, 3, 0]), 1, low, high, dtype),
        case(decomposed.dequantize_per_tensor.default, code, 0.137, 3, low, high, dtype),
        case(decomposed.dequantize_per_channel.default, code, SCALES, T([1, 2, 3, 0]), 1, low, high, dtype),
    ]
GROUPED = torch.randint(-8, 8, (4, 8)).to(torch.int8)
GROUP_SCALES, GROUP_ZEROS = torch.rand(4, 2) + 0.1, torch.randint(-3, 3, (4, 2)).to(torch.int8)
STORED += [
    case(
        decomposed.dequantize_per_channel_group.default,
        *(GROUPED, GROUP_SCALES, GROUP_ZEROS, -8, 7, torch.int8, 4, torch.float32),
    ),
    case(decomposed.quantize_per_channel_group.default, R(4, 8), GROUP_SCALES, GROUP_ZEROS, -8, 7, torch.int8, 4),
    case(decomposed.choose_qparams.tensor, X, -128, 127, 1e-5, torch.int8),
]


@pytest.mark.parametrize("given_case", FAKE + STORED, ids=str)
def test_quantised(given_case: Case):
    judge(given_case, opsets=(13, 20, 21))


BOXES = torch.rand(20, 4) * 10
BOXES[:, 2:] += BOXES[:, :2]
REGIONS = torch.cat([torch.randint(0, 2, (6, 1)).float(), BOXES[:6]], 1)
IMAGE = R(2, 3, 16, 16)
VISION = [
    case(vision.nms.default, BOXES, torch.rand(20), 0.4),
    case(vision.roi_align.default, IMAGE, REGIONS, 0.7, 3, 4, 2, False),
    case(vision.roi_align.default, IMAGE, REGIONS, 0.7, 3, 4, -1, True, since=16),
    case(vision.roi_pool.default, IMAGE, REGIONS, 0.7, 3, 4),
    case(
        vision.deform_conv2d.default,
        *(R(2, 4, 7, 8), R(6, 2, 3, 3), R(2, 36, 5, 6), torch.rand(2, 18, 5, 6), R(6)),
        *(1, 1, 0, 0, 1, 1, 2, 2, True),
        since=19,
    ),
]


@pytest.mark.parametrize("given_case", VISION, ids=lambda item: str(item)[:60])
def test_vision(given_case: Case):
    judge(given_case, opsets=(13, 20))


CHANNEL_SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 3, -2])
WHOLE = {
    "bytes": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize(),
    "their integers": lambda x: torch.quantize_per_tensor(x, 0.037, -5, torch.qint8).int_repr(),
    "wide": lambda x: torch.quantize_per_tensor(x, 0.037, -5, torch.qint32).dequantize(),
    "channels": lambda x: torch.quantize_per_channel(x, CHANNEL_SCALES, ZEROS, 0, torch.qint8).dequantize(),
    "modules": lambda x: torch.ao.nn.quantized.DeQuantize()(torch.ao.nn.quantized.Quantize(0.1, 3, torch.quint8)(x)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_tensors_of_quantised_dtypes(name: str) -> None:
    for opset in (13, 20):
        support.check(WHOLE[name], (torch.randn(3, 4) * 5,), opset_version=opset)
