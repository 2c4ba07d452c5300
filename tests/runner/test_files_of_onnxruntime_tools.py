"""Files that onnxruntime's quantizer and optimizers make of the zoo: each node gives what it gives in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from studies.onnxruntime_tools import TOOLS, Feeds, compared, exported

ONE_CODE = 0.012
"""One step of 8 bits beside the largest code, with room for an output that does not use its whole range."""


@pytest.fixture(scope="module", params=["mnist_cnn", "bert_tiny"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Feeds]:
    name: str = request.param
    path, feeds = exported(name, str(tmp_path_factory.mktemp("tools")))
    return name, path, feeds


REFUSED_BY_THE_TOOL = {
    "mnist_cnn": ("dynamic-uint8", "dynamic-int8", "dynamic-int8-channels", "transformers, dynamic-uint8"),
    "bert_tiny": ("qoperator-uint8", "qoperator-int8", "qoperator-uint8-channels"),
}
"""What onnxruntime's quantizer itself fails at: sizes of a transposed weight, and names of values in a file that it made."""

BRIEF = ("mnist_cnn-qdq-uint8, level-extended", "mnist_cnn-qoperator-uint8", "mnist_cnn-level-all")


@pytest.mark.long_cases(but=BRIEF)
@pytest.mark.parametrize("tool", TOOLS)
def test_each_node(source: tuple[str, str, Feeds], tool: str) -> None:
    name, path, feeds = source
    if tool in REFUSED_BY_THE_TOOL[name] or (name == "mnist_cnn" and tool == "dynamic-uint8, level-all"):
        pytest.skip("onnxruntime's tool does not take the file")
    whole, (worst, node), made = compared(path, feeds, name, tool)
    nodes = {(each.domain, each.op_type) for each in onnx.load(made).graph.node}
    is_rounded = any("Quantize" in op_type or "QLinear" in op_type for _, op_type in nodes)
    assert worst <= (ONE_CODE if is_rounded else 1e-4), node
    assert whole <= (0.1 if is_rounded else 1e-4)
    assert Path(made).exists()
