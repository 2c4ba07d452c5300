"""Modules that PT2E quantised, by the quantizers of XNNPACK and of Inductor on x86, QAT among them: clean Q/DQ in both engines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import fx2onnx

pytest.importorskip("torchao", reason="torchao is no dependency: the quantizers and convert_pt2e are its")

QUANTIZERS = ("xnnpack", "xnnpack dynamic", "xnnpack qat", "x86", "x86 qat")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.norm, self.pool = nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(2)
        self.up, self.down = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        hidden = torch.relu(self.second(hidden) + hidden)
        return self.down(torch.relu(self.up(self.pool(hidden).flatten(1))))  # type: ignore[no-any-return]


def quantizer(name: str) -> Any:
    is_qat, is_dynamic = name.endswith("qat"), name.endswith("dynamic")
    if name.startswith("xnnpack"):
        from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

        config = get_symmetric_quantization_config(is_per_channel=True, is_qat=is_qat, is_dynamic=is_dynamic)
        return XNNPACKQuantizer().set_global(config)
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(is_qat=is_qat))


def quantized(name: str) -> nn.Module:
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

    is_qat = name.endswith("qat")
    net = Net().train(is_qat)
    torch.manual_seed(1)
    program = torch.export.export(net, (torch.randn(2, 3, 8, 8),)).module()
    prepared = (prepare_qat_pt2e if is_qat else prepare_pt2e)(program, quantizer(name))
    for _ in range(4):
        prepared(torch.randn(2, 3, 8, 8))
    if is_qat:
        move_exported_model_to_eval(prepared)
    return convert_pt2e(prepared)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", QUANTIZERS)
def test_clean_quantisation(tmp_path: Path, name: str) -> None:
    module = quantized(name)
    result = fx2onnx.export(module, (torch.randn(2, 3, 8, 8),), tmp_path / "m.onnx", verify=True)
    assert {"runner", "onnxruntime"} <= set(result.report.verdict["versions"])
    graph = onnx.load(tmp_path / "m.onnx").graph
    weights = {init.name: onnx.numpy_helper.to_array(init) for init in graph.initializer}
    counts = Counter(node.op_type for node in graph.node)
    makers = {output: node for node in graph.node for output in node.output}
    read = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert counts["QuantizeLinear" if name != "xnnpack dynamic" else "DequantizeLinear"]
    for node in read:
        dequantised = makers.get(node.input[1])
        if dequantised is None:
            assert name == "xnnpack dynamic"  # convolutions stay
            continue
        while dequantised.op_type in ("Transpose", "Reshape"):
            dequantised = makers[dequantised.input[0]]
        assert dequantised.op_type == "DequantizeLinear"
        codes, _, zero = (weights[name] for name in dequantised.input)  # all of them weights, no node between
        assert codes.dtype == zero.dtype == np.int8
    assert not [node for node in graph.node if node.op_type == "Cast" and node.input[0] in weights]
