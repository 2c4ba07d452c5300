"""Floats of which no sample has any: files that are wrong there alone are refused, and no sound one is."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401   makes the operators
from torch.nn import functional as F

import fx2onnx
from fx2onnx import Verdict, verify
from fx2onnx.judge.verdict import Row
from fx2onnx.verify.float_values import BY_ANY_ENGINE, FLOAT_ENDS, NEEDS_RANGE, SPOILING, WITHOUT_NUMBERS
from fx2onnx.verify.marks import NONE
from fx2onnx.verify.outputs import _without_habits
from fx2onnx.verify.values import InputValues
from tests.verify.given import Forward, Given

GENERATOR = torch.Generator().manual_seed(11)
X = torch.randn(3, 6, 16, generator=GENERATOR)
PICTURE = torch.randn(2, 3, 8, 8, generator=GENERATOR)
ZERO = torch.zeros(())


def verified(right: Forward, exported: Forward, x: torch.Tensor) -> Verdict:
    return verify(fx2onnx.export(Given(exported), (x,)), Given(right), (x,))


PAIRS: dict[str, tuple[Forward, Forward]] = {
    "a maximum that drops NaN": (lambda x: torch.maximum(x, ZERO), lambda x: torch.where(x > 0, x, ZERO)),
    "NaN that is zero behind it": (lambda x: x * 2, lambda x: torch.where(x == x, x * 2, ZERO)),
    "a row's largest without NaN": (lambda x: x.amax(-1), lambda x: torch.where(x == x, x, -torch.inf).amax(-1)),
    "infinities cut off": (lambda x: x * 2, lambda x: (x * 2).clamp(-1e30, 1e30)),
    "the sign of an infinity": (lambda x: 1 / (x * -1.0), lambda x: 1 / (0.0 - x)),
    "squares that overflow": (lambda x: torch.hypot(x, x + 1), lambda x: (x * x + (x + 1) * (x + 1)).sqrt()),
    "squares that vanish": (lambda x: torch.hypot(x, x), lambda x: (x * x + x * x).sqrt()),
    "a length that overflows": (lambda x: x / x.abs().amax(-1, keepdim=True), lambda x: x / (x * x).amax(-1, keepdim=True).sqrt()),
    "a variance that cancels": (lambda x: x.var(-1, unbiased=False), lambda x: (x * x).mean(-1) - x.mean(-1) ** 2),
    "a deviation that cancels": (
        lambda x: F.layer_norm(x, (16,)),
        lambda x: (x - x.mean(-1, keepdim=True)) / ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + 1e-5).abs().sqrt(),
    ),
}  # fmt: skip


@pytest.mark.long_cases("a deviation that cancels")
@pytest.mark.parametrize("what", PAIRS)
def test_what_only_such_floats_show(what: str) -> None:
    right, wrong = PAIRS[what]
    assert torch.allclose(right(X), wrong(X), atol=1e-4)
    verdict = verified(right, right, X)
    assert verdict.ok, verdict.describe()
    assert not verified(right, wrong, X).ok


SOUND: dict[str, tuple[torch.Tensor, Forward]] = {
    "softmax": (X, lambda x: x.softmax(-1)),
    "logarithms": (X, lambda x: (x.logsumexp(-1), F.softplus(x), F.logsigmoid(x))),
    "activations": (X, lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.hardswish(x))),
    "bounds": (X, lambda x: (F.relu(x), x.clamp(-1, 1), F.hardtanh(x), x.minimum(ZERO), F.leaky_relu(x))),
    "norms": (X, lambda x: (F.layer_norm(x, (16,)), F.rms_norm(x, (16,)), F.normalize(x, dim=-1), x.norm(dim=-1))),
    "groups": (PICTURE, lambda x: (F.group_norm(x, 3), F.instance_norm(x), F.batch_norm(x, *torch.ones(2, 3)))),
    "windows": (PICTURE, lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1), F.adaptive_max_pool2d(x, 3))),
    "products": (X, lambda x: (x @ x.transpose(1, 2), F.linear(x, torch.ones(4, 16)))),
    "convolutions": (PICTURE, lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1)),
    "reductions": (X, lambda x: (x.sum(-1), x.mean(1), x.amax(1), x.amin(-1), x.prod(-1), x.cumsum(1), x.std(-1))),
    "choices": (X, lambda x: (x.topk(3)[0], x.sort(-1)[0], x[..., [1, 3]], x.roll(1, -1), F.pad(x, (1, 2)))),
    "sizes": (PICTURE, lambda x: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=(5, 5), mode="bilinear"))),
    "places": (X, lambda x: (x.argmax(-1), x.max(-1)[1], x.argmin(1))),
}


@pytest.mark.parametrize("what", SOUND)
def test_sound_files(what: str) -> None:
    x, forward = SOUND[what]
    verdict = verified(forward, forward, x)
    assert verdict.ok, verdict.describe()
    assert {"nan", "infinite", "signed"} <= {each.values for each in verdict.tried}


@pytest.mark.parametrize("dim", [0, 1])
def test_order_of_rows_among_nan(dim: int) -> None:
    """Rows that are ordered by comparisons with NaN lie as the sort leaves them; a file that drops the last of them is refused."""
    rows = X[0, :, :4].round()
    rows = torch.cat([rows, rows[:2]]) if dim == 0 else torch.cat([rows, rows[:, :2]], 1)
    unique = functools.partial(torch.unique, dim=dim, return_counts=True)
    assert verified(unique, unique, rows).ok
    assert not verified(unique, lambda x: tuple(each[:-1] for each in unique(x)), rows).ok


def test_what_is_masked_in_an_attention() -> None:
    """Its kernels leave out what is masked, where zero times NaN would be NaN; infinities of a mask stay."""
    mask = torch.where(torch.ones(6, 6).tril() > 0, 0.0, -torch.inf)
    module, args = Given(lambda x, m: F.scaled_dot_product_attention(x, x, x, m)), (X[:, None], mask)
    verdict = verify(fx2onnx.export(module, args), module, args)
    assert verdict.ok, verdict.describe()
    tried = {each.values for each in verdict.tried}
    assert "signed" in tried
    assert not tried & SPOILING
    values = InputValues.of(mask, None, NONE)
    for kind in ("seed", "large", "signed", "nan"):
        drawn = values.draw(mask, kind, torch.Generator().manual_seed(0))
        assert torch.equal(drawn.isneginf(), mask.isneginf())
    assert not bool(drawn.isnan().all())
    assert torch.equal(
        InputValues.of(mask - torch.inf, None, NONE).draw(mask - torch.inf, "seed", GENERATOR), mask - torch.inf
    )


@pytest.mark.long_cases("False")
@pytest.mark.parametrize("norm_first", [False, True])
def test_rows_whose_keys_are_all_masked(norm_first: bool) -> None:
    """PyTorch's fused layer of inference makes them NaN, the module as it is written makes them zero, and so does the file."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    causal = torch.nn.Transformer.generate_square_subsequent_mask(6)
    args = (X, causal, torch.zeros(3, 6, dtype=torch.bool))
    verdict = verify(fx2onnx.export(module, args), module, args)
    assert verdict.ok, verdict.describe()
    assert not {each.values for each in verdict.tried} & WITHOUT_NUMBERS


def test_places_of_maxima_among_nan() -> None:
    """Several NaN in a window, of which each kernel picks another."""
    forward = lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)  # noqa: E731
    verdict = verified(forward, forward, PICTURE)
    assert verdict.ok, verdict.describe()
    assert not {each.values for each in verdict.tried} & SPOILING


def test_files_that_round_to_codes_are_tried_on_numbers_alone() -> None:
    Q = torch.ops.quantized_decomposed

    def forward(x: torch.Tensor) -> torch.Tensor:
        whole = Q.quantize_per_tensor.default(x, 0.02, 3, -128, 127, torch.int8)
        return Q.dequantize_per_tensor.default(whole, 0.02, 3, -128, 127, torch.int8)  # type: ignore[no-any-return]

    verdict = verified(forward, forward, X)
    assert verdict.ok, verdict.describe()
    assert not {each.values for each in verdict.tried} & BY_ANY_ENGINE


def test_what_is_drawn() -> None:
    values = InputValues.of(X, None, NONE)
    assert set(FLOAT_ENDS) <= values.ends(X)
    drawn = {kind: values.draw(X, kind, torch.Generator().manual_seed(0)) for kind in FLOAT_ENDS}
    for kind, numbers in drawn.items():
        assert bool(torch.isfinite(numbers).all()) == (kind not in {"nan", "infinite"})
    assert bool(drawn["nan"].isnan()[0].any())
    assert not drawn["nan"][1].isnan().any()
    assert {-torch.inf, torch.inf} <= set(drawn["infinite"].reshape(-1).tolist())
    signs = drawn["signed"][drawn["signed"] == 0].signbit()
    assert 0 < int(signs.sum()) < len(signs)
    assert bool((drawn["huge"] ** 2).isinf().any())
    assert bool((drawn["tiny"] ** 2 == 0).all())
    assert float(drawn["offset"].mean() / drawn["offset"].std()) > 200


def test_half_precision_has_no_room_for_some() -> None:
    x = X.half()
    verdict = verified(F.relu, F.relu, x)
    assert verdict.ok, verdict.describe()
    tried = {each.values for each in verdict.tried}
    assert tried >= WITHOUT_NUMBERS
    assert not tried & NEEDS_RANGE


def test_eager_overflow_is_not_judged() -> None:
    """Its own sum of squares overflows where another's may not."""
    verdict = verified(
        lambda x: x / (x * x).sum(-1, keepdim=True).sqrt(),
        lambda x: x / x.double().norm(dim=-1, keepdim=True).float(),
        X,
    )
    assert verdict.ok, verdict.describe()
    assert any(text.startswith("huge: eager PyTorch itself gives other numbers") for text in verdict.left_out)


def test_a_habit_of_one_engine_is_a_note() -> None:
    right = Row("runner", "one", 0.0, 0.0, True, "nan")
    wrong = [Row.failed("onnxruntime", output, "nan", "NaN in other places") for output in ("one", "two")]
    verdict = Verdict()
    assert _without_habits([right, *wrong], verdict) == [right, wrong[1]]
    assert [note.split()[0] for note in verdict.notes] == ["onnxruntime"]


def test_one_engine_that_is_right_is_enough() -> None:
    """onnxruntime's own variance cancels."""
    verdict = verified(lambda x: F.layer_norm(x, (16,)), lambda x: F.layer_norm(x, (16,)), X)
    assert verdict.ok, verdict.describe()
    alone = verify(fx2onnx.export(Given(F.relu), (X,)), Given(F.relu), (X,), engines=["onnxruntime"])
    assert alone.ok, alone.describe()
    assert not {each.values for each in alone.tried} & WITHOUT_NUMBERS


def test_what_was_tried_is_json_without_infinities() -> None:
    """As other readers of JSON know it, with the range of the finite numbers."""
    verdict = verified(lambda x: x * 2, lambda x: x + x, X)
    assert {each.values for each in verdict.tried} >= {"nan", "infinite", "huge"}
    found = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))["ranges"]["args_0"]
    assert 2.0**64 < found["largest"] < 2.0**70
