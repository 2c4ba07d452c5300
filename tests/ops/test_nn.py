"""Layers: products, convolution, normalisation, activations, dropout, embedding, padding, pixels, folding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge, judge_at_other_sizes
from tests.support import check

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
FAST = settings(max_examples=30, deadline=None, derandomize=True)
IMAGE = R(2, 3, 5, 6)
INF, NAN = float("inf"), float("nan")
CURVE = T([-3.0, -1, -0.5, -0.0, 0.3, 0.5, 1, 4, 30])
EDGES = T([-3.0, 0.3, 0.5, INF, -INF, NAN])
W, B, MEAN, VAR = R(4), R(4), R(4), R(4).abs()
INTS = torch.randint(-5, 5, (2, 3))

CASES = [
    case(aten.linear.default, R(2, 3), R(4, 3), R(4), nodes=1),
    case(aten.linear.default, R(5, 2, 3), R(4, 3), R(4), nodes=3),
    case(aten.linear.default, R(3), R(4, 3), None),
    case(aten.linear.default, R(3), R(3), R(())),
    case(aten.linear.default, R(2, 0), R(4, 0), R(4)),
    case(aten.matmul.default, R(5, 1, 2, 3), R(4, 3, 2), nodes=1),
    case(aten.matmul.default, R(3), R(3), nodes=1),
    case(aten.matmul.default, INTS.to(torch.int8), INTS.t().to(torch.int8)),
    case(aten.addmm.default, R(4), R(2, 3), R(3, 4), beta=0.5, alpha=2, nodes=1),
    case(aten.addmm.default, torch.full((4,), NAN), R(2, 3), R(3, 4), beta=0, nodes=1),
    case(aten.addmm.default, R(4), R(2, 0), R(0, 4), beta=2),
    case(aten.addmv.default, R(()), R(2, 3), R(3), beta=2),
    case(aten.baddbmm.default, R(4), R(5, 2, 3), R(5, 3, 4), alpha=2),
    case(aten.addbmm.default, R(2, 4), R(5, 2, 3), R(5, 3, 4)),
    case(aten.bilinear.default, R(5, 2, 3), R(5, 2, 4), R(6, 3, 4), R(6)),
    case(aten.conv2d.default, R(2, 4, 7, 8), R(6, 4, 3, 3), R(6), [2, 1], [1, 0], [1, 2], nodes=1),
    case(aten.conv2d.default, R(2, 4, 7, 8), R(6, 2, 3, 3), R(6), groups=2, nodes=1),
    case(aten.conv2d.default, R(4, 7, 8), R(6, 4, 3, 3), nodes=3),
    case(aten.conv1d.padding, R(2, 4, 7), R(6, 4, 4), R(6), padding="same", nodes=1),
    case(aten.conv3d.default, R(2, 4, 5, 6, 7), R(6, 4, 2, 2, 2), nodes=1),
    case(aten.conv_transpose1d.default, R(4, 5), R(4, 3, 3)),
    case(aten.conv_transpose2d.input, R(2, 4, 5, 6), R(4, 3, 3, 3), R(6), [2, 2], [1, 1], [1, 0], 2, [1, 2], nodes=1),
    case(aten.conv_transpose2d.input, R(2, 2, 4, 4), R(2, 2, 4, 5), R(4), [3, 2], [1, 2], [2, 3], 2, [4, 4], nodes=1),
    case(aten.conv_transpose3d.input, R(1, 2, 3, 4, 5), R(2, 3, 2, 2, 2), None, [2, 2, 2], nodes=1),
    case(aten.conv_tbc.default, R(5, 2, 3), R(3, 3, 4), R(4), 1),
    case(aten.layer_norm.default, IMAGE, [5, 6], R(5, 6), R(5, 6), nodes=1),
    case(aten.layer_norm.default, IMAGE, [6], nodes=1),
    case(aten.native_layer_norm.default, IMAGE, [6], R(6), None, 1e-5, nodes=1),
    case(aten.rms_norm.default, IMAGE, [6], R(6), nodes=6),
    case(aten.rms_norm.default, IMAGE.half(), [6], R(6).half(), 1e-6),
    case(aten._fused_rms_norm.default, IMAGE, [6], R(6), 1e-5),
    case(aten.group_norm.default, R(2, 4, 5), 2, W, B, nodes=7),
    case(aten.group_norm.default, R(2, 4, 5), 4, W, B, nodes=1),
    case(aten.group_norm.default, R(3, 4), 2, W),
    case(aten.native_group_norm.default, R(2, 4, 5), W, B, 2, 4, 5, 2, 1e-5),
    case(aten.instance_norm.default, R(2, 4, 5), W, B, None, None, True, 0.1, 1e-5, False, nodes=1),
    case(aten.instance_norm.default, R(2, 4, 5), W, B, MEAN, VAR, False, 0.1, 1e-5, False, nodes=1),
    case(aten._weight_norm.default, R(4, 3, 2), R(4, 1, 1), 0, nodes=3),
    case(aten.norm_except_dim.default, R(4, 3, 2), 3, 1),
    case(aten.dropout.default, R(2, 3), 0.5, False, nodes=0),
    case(aten.glu.default, R(2, 6, 4), 1, nodes=3),
    case(aten.prelu.default, R(2, 3, 4), R(3)),
    case(aten.prelu.default, R(()), R(1)),
    case(aten.hardshrink.default, EDGES),
    case(aten.softshrink.default, EDGES),
    case(aten.threshold.default, EDGES, 0.5, 2.0),
    case(aten.threshold.default, INTS, 0, 7),
    case(aten.softplus.default, EDGES),
    case(aten.softplus.default, CURVE, 2, 1.0),
    case(aten.elu.default, CURVE, 0.7, 1.1, 0.9),
    case(aten.celu.default, CURVE, 0.7),
    case(aten.gelu.default, CURVE, nodes=1),
    case(aten.gelu.default, CURVE, approximate="tanh", nodes=1),
    case(aten.softmax.int, R(()), 0),
    case(aten.softmax.int, INTS, 0, torch.float32, nodes=2),
    case(aten.softmax.int, IMAGE, 1, nodes=1),
    case(aten.log_softmax.int, IMAGE, -1, nodes=1),
    case(aten._safe_softmax.default, T([[1.0, 2], [-INF, -INF]]), -1),
    case(aten.embedding.default, R(10, 4), T([[1, 2], [0, 9]]), nodes=1),
    case(aten.pad_sequence.default, [R(2, 3), R(4, 3)], True, 0.5),
    case(aten.pixel_shuffle.default, R(2, 18, 3, 4), 3, nodes=1),
    case(aten.pixel_shuffle.default, R(2, 2, 8, 3, 4), 2, nodes=3),
    case(aten.pixel_unshuffle.default, R(2, 3, 4, 6), 2, nodes=3),
    case(aten.channel_shuffle.default, R(2, 6, 4, 5), 3, nodes=3),
    case(aten.pad.default, R(5, 6, 4, 4), [5, -4, -4, 3], "replicate"),
    case(aten.pad.default, R(3, 5, 6), [-1, 2, 1, 0], "circular"),
    case(aten.constant_pad_nd.default, INTS.short(), [1, -1], 3),
    case(aten.constant_pad_nd.default, IMAGE, [0, 0], nodes=0),
    # kernels that give more than the function does, and registered with it
    case(aten._weight_norm_interface.default, R(4, 3, 2), R(4, 1, 1), 0),
    case(aten.nll_loss_forward.default, R(3, 4), T([1, 0, 3]), B.abs(), 1, -100),
    case(aten.nll_loss_forward.default, R(3, 4), T([1, 0, 3]), None, 0, -100),
    case(aten.embedding_renorm.default, R(5, 3), T([1, 3]), 1.0, 3.0),
    case(aten._batch_norm_no_update.default, R(2, 4, 5), W, B, MEAN, VAR, 0.1, 1e-5),
    case(aten._index_put_impl.default, R(3, 4), [T([0, 2])], R(4)),
    case(aten.frobenius_norm.dim, R(3, 4), [1], True),
]
CASES += [
    case(getattr(aten, name).default, value)
    for name in ("relu", "relu6", "selu", "silu", "mish", "hardsigmoid", "hardswish", "log_sigmoid", "gelu", "celu")
    for value in (CURVE, CURVE.half(), CURVE.bfloat16(), CURVE.double())
    if not (name in ("gelu", "celu") and value.dtype != torch.float32)
]
CASES += [case(aten.relu.default, INTS.to(dtype)) for dtype in (torch.int64, torch.int32, torch.int8)]
for shape in ((3, 4), (3, 4, 5), (3, 4, 5, 6)):
    x = R(shape)
    for training in (False, True):
        nodes = None if training else 1
        CASES += [
            case(aten.batch_norm.default, x, W, B, MEAN, VAR, training, 0.1, 1e-5, False, nodes=nodes),
            case(aten.batch_norm.default, x, None, None, MEAN, VAR, training, 0.1, 1e-5, False, nodes=nodes),
        ]
    CASES += [
        case(aten._native_batch_norm_legit_functional.default, x, W, B, MEAN, VAR, True, 0.1, 1e-5),
        case(aten._native_batch_norm_legit_no_training.default, x, W, B, MEAN, VAR, 0.1, 1e-5),
    ]
BAG_INDICES, BAGS = T([1, 2, 4, 5, 4, 3]), T([0, 2, 2, 5])
for mode in (0, 1, 2):
    weight = R(10, 4)
    CASES += [
        case(aten.embedding_bag.default, weight, BAG_INDICES, BAGS, False, mode),
        case(aten.embedding_bag.padding_idx, weight, BAG_INDICES, T([0, 2, 6]), False, mode, False, None, True, 4),
    ]
for kernel, dilation, padding, stride in (
    ([2, 3], [1, 1], [0, 0], [1, 1]),
    ([2, 3], [2, 1], [1, 2], [2, 1]),
    ([2, 2], [1, 1], [1, 0], [2, 2]),
):
    blocks = aten.im2col.default(IMAGE, kernel, dilation, padding, stride)
    CASES += [
        case(aten.im2col.default, IMAGE, kernel, dilation, padding, stride, nodes=5),
        case(aten.col2im.default, blocks, [5, 6], kernel, dilation, padding, stride, nodes=1),
    ]


@pytest.mark.parametrize("given_case", CASES, ids=str)
def test_case(given_case: Case):
    judge(given_case)


@FAST
@given(
    mode=st.sampled_from(["constant", "reflect", "replicate", "circular"]),
    pads=st.lists(st.integers(-2, 3), min_size=4, max_size=4),
)
def test_padding(mode, pads):
    judge(Case(aten.pad.default, (R(2, 5, 6), pads, mode)), opsets=(11, 20))


def test_training_dropout_drops_its_share_and_scales_the_rest():
    for opset in (11, 20):
        call = harness.call_of(aten.dropout.default, torch.ones(100, 100), 0.25, True)
        (output,) = harness.run_onnxruntime(harness.build(call, opset))
        kept = output != 0
        assert abs(kept.mean() - 0.75) < 0.03
        assert abs(output[kept] - 1 / 0.75).max() < 1e-5


DYNAMIC = [
    (aten.linear.default, (R(7, 9, 3), R(4, 3), R(4)), [(R(2, 5, 3), R(4, 3), R(4))]),
    (aten.conv2d.default, (R(7, 4, 9, 8), R(6, 4, 3, 3)), [(R(1, 4, 9, 8), R(6, 4, 3, 3))]),
    (aten.layer_norm.default, (R(7, 9, 6), [6], R(6), R(6)), [(R(2, 5, 6), [6], R(6), R(6))]),
    (aten.group_norm.default, (R(7, 4, 9), 2, W, B), [(R(2, 4, 5), 2, W, B)]),
    (aten.pixel_unshuffle.default, (R(7, 3, 4, 6), 2), [(R(1, 3, 4, 6), 2)]),
    (aten.pad.default, (R(7, 9, 6), [1, 2], "circular"), [(R(2, 5, 6), [1, 2], "circular")]),
]


@pytest.mark.parametrize("pads", [(1, 0), (1, -1, 0, 2), (0, 0, 0, 3)])
def test_padding_with_a_negative_zero(pads):
    x = torch.tensor([[1.0, -0.0, 2.0], [0.0, 3.0, -4.0]])
    others = [(x[:1],), (x[:0],)]
    check(lambda x: 1 / torch.nn.functional.pad(x, pads, value=-0.0), (x,), others=others, dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize(("overload", "args", "others"), DYNAMIC, ids=lambda item: str(item)[:24])
def test_other_sizes(overload, args, others):
    judge_at_other_sizes(overload, args, others, {7: "n", 9: "m"} if overload != aten.conv2d.default else {7: "n"})
