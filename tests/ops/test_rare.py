"""Rare operators: bits of numbers, segments, fractional pooling, packed QR, least squares, chunked losses; NaN."""

from __future__ import annotations

import itertools

import pytest
import torch

from fx2onnx.base.errors import UserError
from tests.ops import harness
from tests.ops.judge import aten, case, judge

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
INF, NAN = float("inf"), float("nan")
NUMBERS = T(
    [0.0, -0.0, 1.0, -1.0, 1.5, 2.0, -2.0, 1e-45, -1e-45, 1e-40, 2**-126, 3.4028235e38, INF, -INF, NAN, 123.456]
)
LEFT, RIGHT = NUMBERS.repeat_interleave(len(NUMBERS)), NUMBERS.repeat(len(NUMBERS))
DATA, LENGTHS = R(2, 7, 3), T([[2, 0, 5], [3, 3, 1]])
SINGULAR = T([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]])
SAMPLES = torch.rand(2, 3, 2)
TALL, WIDE = R(5, 3), R(3, 5)
POOLED, PLACES = aten.max_pool2d_with_indices(R(2, 3, 7, 8), [3, 3], [1, 2])
BESIDE_NOTHING = T([[-INF, -2.0, -3.0], [-INF, 2.0, 1.0], [-INF, -INF, -INF], [1.0, -INF, 2.0]])

CASES = [
    case(aten.nextafter.default, LEFT, RIGHT, tolerance=(0, 0)),
    case(aten.nextafter.default, LEFT.double(), RIGHT.double(), tolerance=(0, 0)),
    *(case(aten.cdist.default, NUMBERS.reshape(4, 4), NUMBERS.flip(0).reshape(4, 4), p) for p in (0.0, 1.0)),
    case(aten.pdist.default, NUMBERS.reshape(8, 2), 0.0),
    *(case(aten.logsumexp.default, BESIDE_NOTHING * scale, dim) for scale in (1.0, 400.0) for dim in ([1], [0], [0, 1])),
    case(aten.logsumexp.default, T([[INF, -INF, 3.0], [-INF, INF, INF]]), [1], keepdim=True),
    case(aten.multilabel_margin_loss.default, R(5), T([3, 0, -1, 1, 2]), 0),
    case(aten.hash_tensor.default, NUMBERS),
    case(aten.hash_tensor.default, NUMBERS.double()[:, None], [1]),
    case(aten.hash_tensor.default, T([[2**62 + 5, -3], [0, 7]]), [0], keepdim=True),
    *(case(aten.segment_reduce.default, DATA, reduce, lengths=LENGTHS, axis=1) for reduce in ("sum", "mean", "max", "min")),
    case(aten.segment_reduce.default, DATA, "prod", offsets=T([[0, 2, 2, 7], [0, 3, 6, 7]]), axis=1, initial=2.0),
    case(aten.segment_reduce.default, R(6), "mean", lengths=T([2, 0, 4]), initial=1.5),
    case(aten.fractional_max_pool2d.default, R(2, 3, 9, 8), [2, 3], [4, 5], SAMPLES),
    case(aten.fractional_max_pool2d.default, R(3, 9, 8), [2, 3], [1, 5], SAMPLES[:1]),
    case(aten.fractional_max_pool3d.default, R(2, 3, 6, 9, 8), [2, 3, 2], [4, 5, 3], torch.rand(2, 3, 3)),
    case(aten.max_pool2d_with_indices_backward.default, POOLED, R(2, 3, 7, 8), [3, 3], [1, 2], [0, 0], [1, 1], False, PLACES),
    *(case(aten.geqrf.default, matrix) for matrix in (TALL, WIDE, R(2, 4, 4), torch.eye(3))),
    case(aten.linalg_lstsq.default, TALL, R(5, 2), driver="gels"),
    case(aten.linalg_lstsq.default, WIDE, R(3, 2)),
    case(aten.linalg_lstsq.default, TALL, R(5, 2), driver="gelsd"),
    case(aten.linalg_lstsq.default, WIDE.double(), R(3, 2).double()),
    case(aten.linalg_svdvals.default, TALL.double()),
    case(aten.linalg_svdvals.default, R(2, 3, 5).double()),
    *(case(aten.linalg_svd.default, matrix, full) for full in (True, False) for matrix in (TALL, WIDE, R(2, 3, 3), SINGULAR, torch.zeros(3, 2))),
    case(aten._linalg_svd.default, TALL, False, False),
    case(aten.svd.default, R(2, 2, 4)),
    case(aten.svd.default, TALL, True, False),
    *(case(aten.linalg_eigh.default, SINGULAR @ SINGULAR.mT, side) for side in ("L", "U")),
    case(aten._linalg_eigh.default, R(2, 4, 4).double()),
    case(aten.linalg_pinv.default, WIDE.double(), 1e-12),
    case(aten.linalg_matrix_rank.tol_tensor, torch.ones(4, 4, dtype=torch.float64), T(1e-9, dtype=torch.float64)),
    case(aten._upsample_bilinear2d_aa.vec, R(1, 2, 10, 20), None, False, [1.7, 0.9]),
    case(aten.upsample_bilinear2d.vec, torch.randint(0, 255, (1, 3, 27, 27)).byte(), [13, 13], False, None),
]  # fmt: skip


@pytest.mark.long_cases(
    "linalg_lstsq.default(float32[3,5],float32[3,2])",
    "linalg_lstsq.default(float32[5,3],float32[5,2],driver=gelsd)",
    "linalg_lstsq.default(float64[3,5],float64[3,2])",
    "linalg_pinv.default(float64[3,5],1e-12)",
    *(f"linalg_svd.default(float32[{sizes}],False)" for sizes in ("5,3", "3,5", "2,3,3", "3,3", "3,2")),
    *("linalg_svd.default(float32[2,3,3],True)", "svd.default(float32[2,2,4])", "linalg_eigh.default(float32[3,3],U)"),
    "_linalg_eigh.default(float64[2,4,4])",
    "linalg_matrix_rank.tol_tensor(float64[4,4],float64[])",
)
@pytest.mark.parametrize("given_case", CASES, ids=str)
def test_case(given_case):
    judge(given_case, opsets=(11, 17, 20, 26))


@pytest.mark.parametrize("name", ["linalg_eig", "linalg_eigvals", "linalg_ldl_factor"])
def test_factorisations_that_are_not_unique_are_refused_by_name(name):
    call = harness.call_of(getattr(aten, name).default, R(3, 3))
    with pytest.raises(UserError, match=name) as caught:
        harness.build(call)
    assert caught.value.code == "E203"


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_chunked_cross_entropy_of_a_linear_layer(reduction):
    linear_cross_entropy = torch.nn.functional.linear_cross_entropy
    chunks = {"chunking_method": "auto"} if "chunking_method" in str(linear_cross_entropy.__doc__) else {}
    calls = harness.record(
        linear_cross_entropy, R(6, 4), R(9, 4), torch.randint(0, 9, (6,)), linear_bias=R(9), reduction=reduction, **chunks
    )  # fmt: skip
    for call in calls:
        for verdict in harness.check_engines(call, ["onnxruntime", "runner"]).values():
            assert verdict.status in ("ok", "ignored"), verdict


def test_bfloat16_before_opset_13_is_refused():
    with pytest.raises(UserError, match="opset 11 has no bfloat16") as caught:
        harness.build(harness.call_of(aten.relu.default, R(3).bfloat16()), 11)
    assert caught.value.code == "E202"


SMALL = T([[1.0, NAN, 3.0], [NAN, INF, 2.0], [INF, -INF, NAN], [5.0, 2.0, 5.0], [NAN] * 3, [-INF] * 3])
LONG = R(4, 37)
LONG.view(-1)[[3, 36, 70, 147]] = NAN
BY_AXIS = "argmax argmin cummax cummin median.dim nanmedian.dim logcumsumexp"
OF_ALL = "median nanmedian argmax argmin"
PAIRS = "maximum minimum fmax fmin clamp_min.Tensor clamp_max.Tensor"
UNBROKEN = "relu relu6 hardtanh hardsigmoid hardswish sign"
IN_RUNNER = "amax amin max.dim min.dim sort argsort topk kthvalue"
"""Reductions and sorts that are one ONNX operator each, whose NaN the standard leaves open and onnxruntime loses."""


def overload(name: str) -> torch._ops.OpOverload:
    packet, _, variant = name.partition(".")
    return getattr(getattr(aten, packet), variant or "default")


NAN_CASES = [
    case(overload(name), value, axis) for name in BY_AXIS.split() for value in (SMALL, LONG) for axis in (0, 1)
]
NAN_CASES += [case(overload(name), value) for name in OF_ALL.split() for value in (SMALL, LONG)]
NAN_CASES += [case(overload(name), value, value.flip(1)) for name in PAIRS.split() for value in (SMALL, LONG)]
NAN_CASES += [
    case(aten.clamp.default, SMALL, low, high)
    for low, high in itertools.product((-0.5, NAN, None), (0.5, NAN, None))
    if low is not None or high is not None
]
NAN_CASES += [case(overload(name), SMALL) for name in UNBROKEN.split()]


@pytest.mark.parametrize("given_case", NAN_CASES, ids=str)
def test_nan_goes_where_eager_lets_it_go(given_case):
    judge(given_case, opsets=(11, 20))


@pytest.mark.parametrize("name", IN_RUNNER.split())
def test_nan_in_our_runner_is_greater_than_every_number(name):
    for value, axis in itertools.product((SMALL, LONG, SMALL.double(), LONG.half()), (0, 1)):
        arguments = (
            (value, 2, axis) if name in ("kthvalue", "topk") else (value, [axis] if name.startswith("am") else axis)
        )
        call = harness.call_of(overload(name), *arguments)
        verdict = harness.check_engines(call, ["runner"])["runner"]
        assert verdict.status == "ok", verdict


KINDS = ("bartlett", "blackman", "hamming", "hann", "kaiser")
WINDOWS = [case(overload(f"{name}_window"), 9) for name in KINDS]
WINDOWS += [case(overload(f"{name}_window.periodic"), 8, False) for name in KINDS]
WINDOWS += [
    case(aten.range.default, 0.5, 4),
    case(aten.range.step, 1, 8, 3, dtype=torch.int64),
    case(aten.range.step, 0, 1, 1e-5),
    case(aten.kaiser_window.beta, 8, True, 3.5),
    case(aten.hamming_window.periodic_alpha_beta, 8, True, 0.5, 0.25),
    case(aten.blackman_window.default, 7, dtype=torch.float64),
]


@pytest.mark.parametrize("given_case", WINDOWS, ids=str)
def test_windows_and_ranges(given_case):
    judge(given_case, opsets=(11, 20))
