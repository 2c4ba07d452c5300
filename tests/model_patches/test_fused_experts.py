"""Mixtures of experts as onnxruntime's MoE: what eager PyTorch gives, in both engines, for every gate that it has."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.activations import ACT2FN  # noqa: E402
from transformers.integrations import moe  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss  # noqa: E402
from transformers.models.mixtral import modeling_mixtral as mixtral  # noqa: E402
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron  # noqa: E402

from fx2onnx.model_patches.transformers.experts import EXPERTS, Gate, gate_of  # noqa: E402

COUNT, WIDTH, INNER = 4, 8, 12
SIZES: dict[str, Any] = {
    "num_local_experts": COUNT, "hidden_size": WIDTH, "intermediate_size": INNER, "num_experts_per_tok": 2,
    "experts_implementation": "grouped_mm",
}  # fmt: skip
Router = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Block(torch.nn.Module):
    """Experts behind a router; ``route`` gives index and shares of the logits."""

    def __init__(self, experts: Any, route: Router, implementation: str = "grouped_mm", width: int = WIDTH) -> None:
        super().__init__()
        self.router, self.experts, self.route = torch.nn.Linear(width, COUNT), experts, route
        experts.config = SimpleNamespace(_experts_implementation=implementation)
        for weight in self.parameters():
            torch.nn.init.normal_(weight, std=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = torch.tanh(x)
        index, shares = self.route(self.router(states))
        return self.experts(states, index, shares) + 1


def _mixtral(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shares, index = torch.softmax(logits.float(), -1).topk(2)
    return index, shares / shares.sum(-1, keepdim=True)


def _olmoe(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shares, index = torch.softmax(logits, -1).topk(3)
    return index, shares


def _granite(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest, index = logits.topk(2)
    return index, torch.softmax(largest, -1)


def _deepseek(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By biased scores of the better of two groups, weighted with the scores themselves."""
    scores = logits.sigmoid()
    biased = scores + torch.tensor([0.3, -0.2, 0.1, 0.0])
    groups = biased.view(-1, 2, 2).sum(-1).argmax(-1, keepdim=True)
    mask = torch.zeros(len(logits), 2).scatter(1, groups, 1).repeat_interleave(2, 1)
    index = biased.masked_fill(mask == 0, 0.0).topk(2)[1]
    shares = scores.gather(1, index)
    return index, shares / (shares.sum(-1, keepdim=True) + 1e-20) * 2.5


def _one(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest, which no softmax says, with a share that may be 0."""
    largest, index = logits.topk(1, largest=False)
    return index, torch.relu(largest + 0.5)


def _experts(kind: Any = mixtral.MixtralExperts, **more: Any) -> Any:
    return kind(SimpleNamespace(**SIZES | {"hidden_act": "silu"} | more))


def _nemotron(activation: str) -> Any:
    return _experts(nemotron.NemotronHExperts, n_routed_experts=COUNT, moe_intermediate_size=INNER,
                    moe_latent_size=None, mlp_hidden_act=activation)  # fmt: skip


def _gpt_oss(alpha: float = 1.702, limit: float = 0.7) -> Any:
    return _experts(gpt_oss.GptOssExperts, swiglu_alpha=alpha, swiglu_limit=limit)


def _operators(module: Block, tokens: int = 7, **options: Any) -> list[str]:
    with seeded(0):
        x, others = torch.randn(tokens, WIDTH), [(torch.randn(count, WIDTH),) for count in (1, 30)]
    names = {"dynamic_shapes": ({0: "n"},), "target": "onnxruntime", "fused": True} | options
    result = check(module, (x,), others=others, **names)
    return [node.op_type for node in result.model_proto.graph.node]


@pytest.mark.compares(
    "transformers.integrations.moe:grouped_mm_experts_forward",
    "transformers.integrations.moe:batched_mm_experts_forward",
)
def test_files_that_are_not_fused_have_one_scan_over_the_experts() -> None:
    with seeded(0):
        for name in ("grouped_mm", "batched_mm"):
            found = _operators(Block(_experts(), _mixtral, name), fused=False)
            assert (found.count("Scan"), found.count("MoE")) == (1, 0)


@pytest.mark.compares(
    "fused transformers.integrations.moe:grouped_mm_experts_forward",
    "fused transformers.integrations.moe:batched_mm_experts_forward",
)
def test_both_implementations_are_one_operator() -> None:
    with seeded(0):
        found = [_operators(Block(_experts(), _mixtral, name)) for name in ("grouped_mm", "batched_mm")]
    assert found[0].count("MoE") == found[1].count("MoE") == 1
    assert "TopK" not in found[0] + found[1]


@pytest.mark.parametrize(("route", "has_router"), [(_olmoe, False), (_granite, False), (_deepseek, True), (_one, True)])
def test_routing(route: Router, has_router: bool) -> None:
    """The operator's own where it is the largest of a softmax; else the shares go in as logarithms."""
    with seeded(0):
        found = _operators(Block(_experts(), route))
    assert found.count("MoE") == 1
    assert ("TopK" in found) == ("ScatterElements" in found) == has_router


@pytest.mark.parametrize("build", [_gpt_oss, lambda: _nemotron("silu"), lambda: _nemotron("gelu_pytorch_tanh")])
def test_gates(build: Callable[[], Any]) -> None:
    with seeded(0):
        assert _operators(Block(build(), _granite)).count("MoE") == 1


@pytest.mark.parametrize(
    "build", [lambda: _experts(hidden_act="gelu"), lambda: _nemotron("relu2"), lambda: _experts().half()]
)
def test_what_the_operator_lacks_is_a_scan(build: Callable[[], Any]) -> None:
    with seeded(0):
        module = build()
        dtype = next(module.parameters()).dtype
        assert (gate_of(module) is None) == (dtype == torch.float32)
        block = Block(module, _granite)
        route, block.route = block.route, lambda logits: route(logits)
        if dtype == torch.float32:
            assert "Scan" in _operators(block)


def test_other_targets_have_a_scan() -> None:
    with seeded(0):
        assert "MoE" not in _operators(Block(_experts(), _mixtral), target=None, fused=False)


@pytest.mark.parametrize(
    ("gate", "wanted"),
    [
        (lambda g, u: g * torch.sigmoid(g) * u, Gate("swiglu")),
        (lambda g, u: g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)) * (u.clamp(-7, 7) + 1),
         Gate("swiglu", 1.702, 1.0, 7.0)),
        (lambda g, u: (g * torch.sigmoid(g)).clamp(max=7) * u.clamp(-7, 7), None),
        (lambda g, u: ACT2FN["silu"](g) * u.clamp(-7, 5), None),
        (lambda g, u: ACT2FN["gelu_pytorch_tanh"](g) * u, None),
        (lambda g, u: u * g, None),
        (lambda g, u: g * torch.sigmoid(u) * u, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_gate_is_known_by_its_numbers(gate: Any, wanted: Gate | None, interleaved: bool) -> None:
    def apply(x: torch.Tensor) -> torch.Tensor:
        return gate(*((x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)))

    found = gate_of(SimpleNamespace(has_gate=True, _apply_gate=apply))
    assert (found is None) == (wanted is None)
    if wanted is not None and found is not None:
        assert found._replace(alpha=wanted.alpha, limit=wanted.limit) == wanted._replace(interleaved=interleaved)
        assert math.isclose(found.alpha, wanted.alpha, rel_tol=1e-6)
        assert found.limit == wanted.limit or math.isclose(found.limit, wanted.limit, rel_tol=1e-6)


@pytest.mark.parametrize("build", [_experts, _gpt_oss])
def test_the_operator_in_eager_pytorch(build: Callable[[], Any]) -> None:
    with seeded(0):
        block = Block(build(), _granite)
        module, x = block.experts, torch.randn(5, WIDTH)
        index, shares = _granite(torch.randn(5, COUNT))
        biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
        gate = gate_of(module)
        assert gate is not None
        found = EXPERTS(x, index, shares, module.gate_up_proj, biases[0], module.down_proj, biases[1], *gate,
                        module.is_transposed)  # fmt: skip
        wanted = moe.batched_mm_experts_forward(module, x, index, shares)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def _wide(route: Router) -> tuple[Block, torch.Tensor]:
    with seeded(0):
        block = Block(_experts(hidden_size=32, intermediate_size=64), route, width=32)
        return block, torch.randn(7, 32)


@pytest.mark.parametrize(
    ("kind", "format", "operator"),
    [("int8", "auto", "QMoE"), ("int4", "auto", "QMoE"), ("uint4", "auto", "QMoE"), ("int8", "qdq", "MoE"),
     ("int8", "matmulnbits", "MoE"), ("nf4", "auto", "MoE")],
)  # fmt: skip
@pytest.mark.parametrize("route", [_mixtral, _olmoe])
@pytest.mark.long_cases(but=("_mixtral-int8-auto-QMoE", "_olmoe-int4-auto-QMoE"))
def test_experts_of_few_bits(kind: str, format: str, operator: str, route: Router, tmp_path: Path) -> None:
    """The numbers of the module with rounded weights; as one node where onnxruntime computes with them in float32."""
    block, x = _wide(route)
    quantize = fx2onnx.Quantize(kind, format=format, accuracy=False)
    names: dict[str, Any] = {"dynamic_shapes": ({0: "n"},), "target": "onnxruntime", "fused": True}
    result = fx2onnx.export(block, (x,), tmp_path / "m.onnx", quantize=quantize, verify=True, **names)
    assert [node.op_type for node in result.model_proto.graph.node].count(operator) == 1
    forms = [layer["form"] for layer in result.report.quantized["layers"].values()]
    assert forms == ["QMoE" if operator == "QMoE" else "DequantizeLinear"] * 2


def test_one_expert_weight_of_few_bits_is_dequantized(tmp_path: Path) -> None:
    block, x = _wide(_mixtral)
    quantize = fx2onnx.Quantize("int4", exclude="*down_proj", accuracy=False)
    result = fx2onnx.export(
        block, (x,), tmp_path / "m.onnx", quantize=quantize, verify=True, target="onnxruntime", fused=True
    )
    found = [node.op_type for node in result.model_proto.graph.node]
    assert (found.count("MoE"), found.count("DequantizeLinear")) == (1, 1)
