"""Zoo models: the same numbers at every level, and no more nodes than torch.onnx.export writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.optimize.pipelines import run
from fx2onnx.verify.arrays import to_numpy
from models_zoo.registry import build
from tests.optimize.support import run as run_onnxruntime

THEIR_NODES = {
    "mnist_cnn": 10,
    "mnist_cnn_same": 10,
    "resnet18": 49,
    "vit_tiny": 86,
    "bert_tiny": 89,
    "gpt2_tiny": 97,
    "t5_tiny": 218,
    "llama_tiny": 141,
}
"""Nodes of torch.onnx.export(dynamo=True), torch 2.13, opset 20; T5 with eager attention (with SDPA it fails).
Source: benchmarks/graph_economy.py."""


@pytest.mark.long_cases("resnet18")
@pytest.mark.parametrize("name", THEIR_NODES)
def test_no_more_nodes_than_torch(name: str) -> None:
    source = build(name)
    result = fx2onnx.export(source.module.eval(), source.args, kwargs=source.kwargs, opset_version=20)
    assert len(result.model.graph) <= THEIR_NODES[name]


@pytest.mark.long_cases(but=["mnist_cnn_same"])
@pytest.mark.parametrize("name", ["mnist_cnn_same", "vit_tiny", "gpt2_tiny", "t5_tiny", "llama_tiny"])
def test_levels_agree(name: str) -> None:
    source = build(name)

    def exported() -> fx2onnx.ExportResult:
        return fx2onnx.export(source.module.eval(), source.args, kwargs=source.kwargs, optimize=False)

    plain = exported().model_proto
    leaves = torch.utils._pytree.tree_leaves((source.args, source.kwargs))
    feeds = {value.name: to_numpy(leaf) for value, leaf in zip(plain.graph.input, leaves, strict=True)}
    wanted = run_onnxruntime(plain, feeds)
    counts = []
    for level in (0, 1, 2, 3):
        result = exported()
        run(result.model, level, check=level == 3)
        counts.append(len(result.model.graph))
        for want, got in zip(wanted, run_onnxruntime(result.model_proto, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    assert counts == sorted(counts, reverse=True)


def test_a_module_without_data_optimises_to_the_same_weights() -> None:
    """On the meta device nothing can be computed, and nothing is."""
    source = build("mnist_cnn")
    real = fx2onnx.export(source.module.eval(), source.args)
    described = fx2onnx.export(source.module.to("meta"), source.args)
    assert list(described.model.graph.initializers) == list(real.model.graph.initializers)
    assert [node.op_type for node in described.model.graph] == [node.op_type for node in real.model.graph]
