"""Recurrences that Python steps through, exported for every length."""

from __future__ import annotations

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.sources.seeding import seeded
from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")


def _function(kind: str, name: str) -> Any:
    found: Any = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _compares(kind: str, name: str) -> pytest.MarkDecorator:
    return pytest.mark.compares(f"transformers.models.{kind}.modeling_{kind}:{name}")


def _loops(result: fx2onnx.ExportResult) -> set[str]:
    return {node.op_type for node in result.model.graph} & {"Scan", "Loop"}


def _lengths(sample: int, *others: int) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    samples = [(torch.randn(2, length, 3),) for length in (sample, *others)]
    return samples[0], samples[1:]


def _mamba(kind: str) -> Any:
    scan = _function(kind, "mamba_selective_scan")
    decay, read, write = -torch.rand(3, 4), torch.randn(3, 4), torch.randn(3, 4)

    def forward(x: torch.Tensor) -> Any:
        u = x.transpose(1, 2)
        both = [torch.einsum("bls,sn->bnl", x, part) for part in (read, write)]
        gated = scan(u, u.abs(), decay, *both, torch.ones(3), u, delta_bias=torch.ones(3), delta_softplus=True)
        return gated, *scan(u, u.abs(), decay, *both, return_last_state=True)

    return forward


def _rwkv(with_state: bool) -> Any:
    attention = _function("rwkv", "rwkv_linear_attention_cpu")

    def forward(x: torch.Tensor) -> Any:
        state = [x[:, 0].abs() + place for place in range(3)] if with_state else None
        return attention(x[0, 0].abs(), x[0, 0], x, x * 2 - 1, state=state, return_state=True)

    return forward


def _griffin() -> Any:
    scan = _function("recurrent_gemma", "RecurrentGemmaRglru._rnn_scan")

    def forward(x: torch.Tensor) -> Any:
        return scan(SimpleNamespace(), x, x.sigmoid(), x[..., :1] > 1, None), scan(None, x, x.cos(), x > 2, x[:, 0])

    return forward


def _matrix_lstm(with_state: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        parts = [x[:, None] * factor for factor in (0.5, 0.3, 1.0)]
        gates = [x[..., 0][:, None], x[..., 1][:, None]]
        sizes = ((3, 3), (3,), (1,)) if with_state else ()
        states = [torch.full((x.shape[0], 1, *size), 0.25) for size in sizes]
        wanted = "wrap_chunkwise_arbitrary_sequence_length", "mlstm_chunkwise_native_autograd"
        others = "mlstm_recurrent_sequence_native", "mlstm_recurrent_step_native"
        whole, *kernels = (_function("xlstm", name) for name in (*wanted, *others))
        return whole(*kernels, *parts, *gates, *states, chunk_size=4), whole(*kernels, *parts, *gates, chunk_size=4)

    return forward


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(
                partial(_matrix_lstm, with_state), marks=_compares("xlstm", "wrap_chunkwise_arbitrary_sequence_length")
            )
            for with_state in (False, True)
        ),
        *(
            pytest.param(partial(_mamba, kind), marks=_compares(kind, "mamba_selective_scan"))
            for kind in ("mamba", "falcon_mamba", "jamba", "zamba")
        ),
        *(
            pytest.param(partial(_rwkv, with_state), marks=_compares("rwkv", "rwkv_linear_attention_cpu"))
            for with_state in (False, True)
        ),
        pytest.param(_griffin, marks=_compares("recurrent_gemma", "RecurrentGemmaRglru._rnn_scan")),
    ],
)
def test_every_length(make: Any) -> None:
    sample, others = _lengths(5, 1, 16, 17, 70)
    result = check(make(), sample, others=others, dynamic_shapes={"x": {0: "batch", 1: "length"}})
    assert _loops(result)


def test_a_fixed_length_is_stepped_through() -> None:
    result = fx2onnx.export(_griffin(), _lengths(4)[0])
    assert not _loops(result)


@pytest.mark.long_cases("SLANet")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=_compares(kind.lower(), f"{kind}SLAHead.forward")) for kind in ("SLANet", "SLANeXt")],
)
def test_tables_end_where_each_has_its_last_token(kind: str) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")()
    config.hidden_size, config.out_channels, config.max_text_length, config.post_conv_out_channels = 6, 5, 7, 4
    with seeded(3):
        head = _function(kind.lower(), f"{kind}SLAHead")(config).eval()
        for weight in head.parameters():
            torch.nn.init.normal_(weight, std=1.2)
        with torch.no_grad():
            head.structure_generator.fc2.bias[4] += 0.5

    def sample(batch: int) -> tuple[torch.Tensor]:
        with seeded(batch):
            return (torch.randn(batch, 3, 4) * 3,)

    def forward(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = head(x).last_hidden_state
        return found

    others = [sample(batch) for batch in (1, 3, 4, 5, 7)]
    steps = [forward(*given).shape[1] for given in others]
    assert min(steps) < max(steps) == 8, steps
    result = check(forward, sample(2), others=others, dynamic_shapes={"x": {0: "batch"}})
    assert _loops(result) == {"Loop"}
    assert any("loop of the file" in str(note) for note in result.report.assumptions)
