"""Files that onnxruntime writes as ``optimized_model_filepath``: the runner gives what onnxruntime gives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.kernels.contrib import nchwc

NCHWC = "com.microsoft.nchwc"
LEVELS = ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


def optimized(source: str, folder: Path, level: str) -> tuple[str, onnxruntime.InferenceSession]:
    """The path of the file that onnxruntime makes, and its session of the file that it was given."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / f"{level}.onnx")
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return options.optimized_model_filepath, session


class Images(torch.nn.Module):
    """Convolutions of each kind that onnxruntime lays out in blocks: from few channels, plain, grouped, by channel, summed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        conv = torch.nn.Conv2d
        self.first, self.plain = conv(3, width, 3, padding=1), conv(width, 32, 3, stride=2)
        self.grouped, self.by_channel = conv(32, 32, 3, padding=1, groups=2), conv(32, 32, 3, padding=1, groups=32)
        self.last = conv(64, 10, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2, ceil_mode=True)
        x = torch.relu(self.plain(x))
        y = torch.relu(self.grouped(x) + x) + torch.sigmoid(self.by_channel(x))
        both = torch.cat([y, torch.nn.functional.avg_pool2d(x, 3, 1, 1)], 1)
        z = torch.nn.functional.interpolate(self.last(both), scale_factor=2, mode="nearest")
        return torch.nn.functional.hardtanh(z), both.mean((2, 3))


@pytest.fixture(scope="module", params=[20, 32])
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    path = str(tmp_path_factory.mktemp("images") / "model.onnx")
    x = torch.randn(2, 3, 17, 18)
    fx2onnx.export(Images(request.param).eval(), (x,), path, dynamic_shapes={"x": {0: "n"}}, verify=False)
    return path


def domains(path: str) -> set[str]:
    return {node.domain for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("level", LEVELS)
def test_convolutions(images: str, tmp_path: Path, level: str) -> None:
    path, session = optimized(images, tmp_path, level)
    assert (NCHWC in domains(path)) == (level == "ORT_ENABLE_ALL")
    for plain in (False, True):
        options = ort.SessionOptions()
        if plain:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        mine = ort.InferenceSession(path, options)
        for n in (2, 1, 2):
            feeds = {"x": np.random.default_rng(n).standard_normal((n, 3, 17, 18)).astype(np.float32)}
            for ours, theirs in zip(mine.run(None, feeds), session.run(None, feeds), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def reordered(path: str, block: int) -> bytes:
    """The file as onnxruntime would write it on a CPU with blocks of that many channels."""
    own = nchwc.block_of_this_machine()
    proto = onnx.load(path)
    filters = {node.input[1] for node in proto.graph.node if (node.domain, node.op_type) == (NCHWC, "Conv")}
    for tensor in proto.graph.initializer:
        if tensor.name not in filters:
            continue
        w = nchwc.plain_filter(onnx.numpy_helper.to_array(tensor), own)
        outs, ins, high, wide = w.shape
        if ins % block:
            laid = w.reshape(outs // block, block, ins, high, wide).transpose(0, 2, 3, 4, 1)
        else:
            split = w.reshape(outs // block, block, ins // block, block, high, wide)
            laid = split.transpose(0, 2, 4, 5, 3, 1)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(laid).reshape(w.shape), tensor.name))
    return proto.SerializeToString()


@pytest.mark.parametrize("images", [32], indirect=True)
def test_blocks_of_another_cpu(images: str, tmp_path: Path, caplog: Any) -> None:
    """The file does not say how long its blocks are: a config entry does, and a warning says what was taken."""
    path, session = optimized(images, tmp_path, "ORT_ENABLE_ALL")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 17, 18)).astype(np.float32)}
    wanted = session.run(None, feeds)
    for block in (8, 16):
        options = ort.SessionOptions()
        options.add_session_config_entry("fx2onnx.nchwc_block", str(block))
        for ours, theirs in zip(
            ort.InferenceSession(reordered(path, block), options).run(None, feeds), wanted, strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "fx2onnx.runner"):
        ort.InferenceSession(path)
    assert "fx2onnx.nchwc_block" in caplog.text
    options.add_session_config_entry("fx2onnx.nchwc_block", "32")
    with pytest.raises(UserError, match="whole blocks"):
        ort.InferenceSession(path, options)
