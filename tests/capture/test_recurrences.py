"""Recurrences that Python steps through, exported for every length."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.sources.torchvision_compat import prepare
from tests.support import check

prepare()
pytest.importorskip("transformers", reason="transformers is not installed")


def _function(kind: str, name: str) -> Any:
    found: Any = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


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


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: _mamba(kind) for kind in ("mamba", "falcon_mamba", "jamba", "zamba")),
        lambda: _rwkv(False),
        lambda: _rwkv(True),
        _griffin,
    ],
)
def test_every_length(make: Any) -> None:
    sample, others = _lengths(5, 9, 1)
    result = check(make(), sample, others=others, dynamic_shapes={"x": {0: "batch", 1: "length"}})
    assert _loops(result)


def test_a_fixed_length_is_stepped_through() -> None:
    result = fx2onnx.export(_griffin(), _lengths(4)[0])
    assert not _loops(result)
