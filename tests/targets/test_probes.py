"""What the tables of other runtimes say, and what these do where they are installed."""

from __future__ import annotations

import importlib.util
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fx2onnx.targets.form import find
from fx2onnx.targets.lint import lint
from fx2onnx.targets.match import DYNAMIC, features_of
from tools.target_cases import cases
from tools.target_features import lacking
from tools.target_nodes import Case
from tools.target_probes import by_node, tried

SAMPLE = 120
WEB = Path(__file__).parents[2] / "out" / "web"
"""The folder into which ``make browser-test`` installs onnxruntime-web."""
MODULES = {"qnn": "onnxruntime_qnn", "rten": "rten_convert"}
"""Modules of packages that are named otherwise than the runtime."""
LEAST_THAT_RUN = {"wonnx": 0.1}
"""Share of the cases; of others it is 0.4."""


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    every = list(cases())
    assert len(every) > 10_000
    return random.Random(0).sample(every, SAMPLE)


def where_installed(name: str) -> object:
    package = MODULES.get(name, name)
    reason = f"{name} is not installed: pip install {package.replace('_', '-')}"
    return pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=reason))


@pytest.mark.parametrize("runtime", [where_installed(name) for name in ("openvino", "tract", "qnn", "wonnx", "rten")])
def test_the_runtime_runs_what_its_table_says(runtime: str, sample: list[Case]) -> None:
    check(runtime, sample, tried(runtime, sample, []))


def check(runtime: str, sample: list[Case], said: list[str]) -> None:
    target = find(runtime)
    lies = [
        f"{case.name} {case.op_type}-{case.version} {case.types}: {problem}"
        for case, problem in zip(sample, said, strict=True)
        if not problem and [f for f in lint(onnx.load_from_string(case.model), target) if f.rule != "size"]
    ]
    assert lies == [], "runs, though the table says that it does not"
    counts = [not problem for problem in said]
    assert sum(counts) > SAMPLE * LEAST_THAT_RUN.get(runtime, 0.4)


@pytest.mark.skipif(
    not (WEB / "node_modules" / "onnxruntime-web").exists() or shutil.which("node") is None,
    reason="onnxruntime-web or Node.js is not installed: make browser-test",
)
def test_the_web_runs_what_its_table_says(sample: list[Case]) -> None:
    check("onnxruntime-web", sample, by_node(sample, WEB))


@pytest.mark.parametrize("runtime", ["openvino", "tract", "onnxruntime-web", "qnn", "rten"])
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


def resize(name: str, **attributes: object) -> Case:
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 4, 4])]
    node = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        inputs,
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(4, np.float32), "scales")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    found = features_of(ir.from_proto(model).graph[0], 19)
    return Case(name, "Resize", 19, 19, {"T1": "float"}, model.SerializeToString(), features=found)


def test_only_what_tells_a_case_from_those_that_run_is_lacked() -> None:
    plain, cubic, both = resize("a"), resize("b", mode="cubic"), resize("c", mode="cubic", antialias=1)
    smooth = resize("d", antialias=1)
    assert lacking([plain, cubic, both], ["", "", "fails"]) == {"::Resize": ["antialias=1"]}
    assert lacking([plain, both], ["", "fails"]) == {}, "one of two, nobody knows which"
    assert lacking([plain, smooth, both], ["", "fails", ""]) == {}, "it runs in another case"
    assert lacking([smooth], ["fails"]) == {}, "the operator may not run at all"
    assert lacking([plain, resize("e", mode="nearest")], ["", "fails"]) == {}, "that is the default"


def test_dynamic_sizes_are_lacked_where_the_same_node_without_them_runs() -> None:
    plain, other = resize("a"), resize("b")
    dynamic = replace(plain, features=plain.features | {DYNAMIC})
    assert lacking([plain, dynamic], ["", "fails"]) == {"::Resize": [DYNAMIC]}
    assert lacking([plain, other, dynamic], ["fails", "", "fails"]) == {}, "that very node does not run at all"
