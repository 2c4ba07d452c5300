"""What the tables of other runtimes say, and what these do where they are installed."""

from __future__ import annotations

import importlib.util
import random

import onnx
import pytest

from benchmarks.target_cases import Case, cases
from benchmarks.target_probes import tried
from fx2onnx.targets.find import find
from fx2onnx.targets.lint import lint

SAMPLE = 120


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    every = [case for case in cases() if case.dtype != "bfloat16"]
    assert len(every) > 3000
    return random.Random(0).sample(every, SAMPLE)


def where_installed(name: str) -> object:
    reason = f"{name} is not installed: pip install {name}"
    return pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason))


@pytest.mark.parametrize("runtime", [where_installed("openvino"), where_installed("tract")])
def test_the_runtime_runs_what_its_table_says(runtime: str, sample: list[Case]) -> None:
    said = tried(runtime, sample, [])
    target = find(runtime)
    lies = [
        f"{case.name} {case.op_type}-{case.version} {case.dtype}: {problem}"
        for case, problem in zip(sample, said, strict=True)
        if not problem and [f for f in lint(onnx.load_from_string(case.model), target) if f.rule != "size"]
    ]
    assert lies == [], "runs, though the table says that it does not"
    counts = [not problem for problem in said]
    assert sum(counts) > SAMPLE * 0.4


@pytest.mark.parametrize("runtime", ["openvino", "tract", "onnxruntime-web"])
def test_what_the_table_lacks_is_found(runtime: str) -> None:
    target = find(runtime)
    assert target.rows is not None
    assert {"::Conv", "::MatMul", "::Softmax", "::LayerNormalization", "::Gather"} <= set(target.rows)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy")
    for domain, rules in (("", []), ("mine", ["domain"])):
        node = onnx.helper.make_node("Relu", ["x"], ["y"], domain=domain)
        imports = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("mine", 1)]
        proto = onnx.helper.make_model(
            onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=9
        )
        assert [finding.rule for finding in lint(proto, target)] == rules
