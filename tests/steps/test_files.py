"""Files of other tools: never wrong, never larger, and each thing done that it is there for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fx2onnx
from fx2onnx.base.metadata import DERIVATION
from fx2onnx.steps.opened import open_model
from tests.steps.graphs import GRAPHS, normal, text, weights

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
FILES = sorted(FOREIGN.glob("*.onnx"))
ONNXSIM: dict[str, int] = json.loads((FOREIGN / "onnxsim.json").read_text())
"""The number of nodes that onnxsim leaves, measured by ``benchmarks/optimize_files.py``."""


def test_there_are_files_of_many_tools() -> None:
    assert len(FILES) + len(GRAPHS) >= 60
    assert {path.name.split("_")[0] for path in FILES} == {
        "dynamo",
        "paddle2onnx",
        "skl2onnx",
        "tf2onnx",
        "torchscript",
    }
    assert all(path.stat().st_size < 100_000 for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_other_tools(path: Path, tmp_path: Path) -> None:
    """In the runner and in onnxruntime: the same results, at most the size, and at most the nodes that onnxsim leaves."""
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", check=True)
    assert result.verified is True, result.warnings
    assert not result.left_out
    assert result.after.total_bytes <= result.before.total_bytes
    assert (tmp_path / "out.onnx").stat().st_size == result.after.total_bytes
    assert result.after.nodes <= ONNXSIM[path.name]
    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written)
    given = onnx.load(path)
    for one, other in ((written.graph.input, given.graph.input), (written.graph.output, given.graph.output)):
        assert [value.name for value in one] == [value.name for value in other]
        assert [value.type.WhichOneof("value") for value in one] == [value.type.WhichOneof("value") for value in other]


LEFT = {
    "weights_as_inputs": ["Conv"],
    "default_of_input": ["Mul", "Add"],
    "functions": ["Sin", "Sin", "LeakyRelu"],
    "constant_condition": ["Mul", "Relu", "Sigmoid"],
    "condition_of_data": ["ReduceSum", "Greater", "If", "Relu", "Neg"],
    "loop": ["Loop", "Identity", "Div", "Add"],
    "sparse_weight": ["MatMul"],
    "old_attributes": ["Split", "Clip", "Slice", "TopK"],
    "shape_chain": ["Reshape", "Transpose"],
    "expanded_shape": ["Expand"],
    "equal_weights": ["MatMul", "Tanh", "Add"],
    "large_constants": ["Conv"],
    "wrong_value_info": ["Relu", "Reshape", "Sin"],
    "no_shapes": ["Relu"],
    "contrib_operator": ["com.microsoft::Gelu"],
    "half_precision": ["Cast", "Cast", "Mul"],
    "random_numbers": ["RandomNormalLike", "RandomNormalLike", "Sub", "Add", "Exp"],
    "input_is_output": ["Identity", "Identity"],
    "strings": ["ai.onnx.ml::LabelEncoder"],
    "sequences": ["SplitToSequence", "SequenceAt"],
    "quantized": ["QuantizeLinear", "DequantizeLinear"],
    "unused": ["Sin", "Add"],
    "weights_of_bodies": ["ReduceMax", "Greater", "If", "MatMul", "Add", "Relu", "MatMul", "Add", "Neg"],
}
"""Operators that are to be left of each graph, nested ones too."""


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_all_kinds(name: str, tmp_path: Path) -> None:
    proto = GRAPHS[name]()
    path = tmp_path / "in.onnx"
    onnx.save(proto, path)
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", check=True)
    assert result.verified is True, result.warnings
    assert not result.left_out
    left = sorted(op for op, count in result.after.operators.items() for _ in range(count))
    assert left == sorted(LEFT[name])
    assert result.after.total_bytes <= result.before.total_bytes


COMPUTED = {
    "Slice": ("float[1, 8] x) => (float y", "z = Slice (x, zero, four, one) y = Sigmoid (z)"),
    "steps": ("float[8, 8] x) => (float y", "z = Slice (x, zero, most, zero, two) y = Sigmoid (z)"),
    "Squeeze": ("float[1, 8, 1] x) => (float y", "z = Squeeze (x, zero) u = Unsqueeze (z, zero) y = Sigmoid (u)"),
    "Pad": ("float[8, 8] x) => (float y", "p = Concat <axis = 0> (zero, one) z = Pad (x, p, , one) y = Sigmoid (z)"),
    "Split": ("float[2, 8] x) => (float y", "p = Concat <axis = 0> (two, six) q, r = Split <axis = 1> (x, p) y = Slice (r, zero, four, one)"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_operands_that_nodes_compute_are_not_left_out(name: str) -> None:
    """An operand that is given and not known yet is no default: sizes that followed from one made rewrites wrong."""
    head, body = COMPUTED[name]
    numbers = {"zero": 0, "one": 1, "two": 2, "four": 4, "six": 6, "most": 2**40}
    made = " ".join(
        f"{name}_c = Constant <value = int64 {{{number}}}> () {name}_m = Constant <value = int64[1] {{-1}}> () "
        f"{name} = Reshape ({name}_c, {name}_m)"
        for name, number in numbers.items()
        if f"{name}," in body or f"{name})" in body
    )
    proto = text(f"g ({head}) {{ {made} {body} }}", opset=18)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    result = fx2onnx.optimize_model(proto, check=True)
    assert result.verified is True, result.warnings
    assert not result.left_out
    assert "Reshape" not in result.after.operators


@pytest.mark.parametrize("level", [0, 2, 3])
def test_a_sparse_weight_stays_sparse(level: int, tmp_path: Path) -> None:
    proto = GRAPHS["sparse_weight"]()
    proto.graph.sparse_initializer[0].dims[0] = 300
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 300
    result = fx2onnx.optimize_model(proto, tmp_path / "out.onnx", level=level)
    assert result.verified is True
    assert not result.warnings
    written = onnx.load(tmp_path / "out.onnx").graph
    assert [list(each.dims) for each in written.sparse_initializer] == [[300, 2]]
    assert not written.initializer
    half = fx2onnx.optimize_model(proto, tmp_path / "half.onnx", level=level, dtype="float16")
    assert half.warnings == ["the sparse weight w is stored dense"]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_given_message_is_left_as_it_is(name: str) -> None:
    proto = GRAPHS[name]()
    before = proto.SerializeToString(deterministic=True)
    fx2onnx.optimize_model(proto, verify=False)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("dtype", ["float16", "mixed"])
def test_weights_that_bodies_read_in_half_precision(dtype: str, tmp_path: Path) -> None:
    result = fx2onnx.optimize_model(GRAPHS["weights_of_bodies"](), tmp_path / "out.onnx", dtype=dtype)
    assert result.verified is True, result.warnings
    largest = max(
        value.const_value.nbytes for value in result.model.graph.initializers.values() if value.const_value is not None
    )
    assert largest == 20 * 20 * 2


def test_metadata_is_kept(tmp_path: Path) -> None:
    result = fx2onnx.optimize_model(GRAPHS["unused"](), tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    kept = {entry.key: entry.value for entry in written.metadata_props}
    assert kept.pop(DERIVATION)
    assert kept == {"author": "somebody"}
    assert written.doc_string == "a model"
    assert result.after.weights == 0


def test_a_default_of_an_input_may_still_be_fed(tmp_path: Path) -> None:
    import onnxruntime

    fx2onnx.optimize_model(GRAPHS["default_of_input"](), tmp_path / "out.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    x, w = normal(2, 3), np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], x + w * w, rtol=1e-6)


def test_equal_weights_are_stored_once() -> None:
    result = fx2onnx.optimize_model(GRAPHS["equal_weights"]())
    assert result.after.weights == 1
    assert result.after.total_bytes < 0.6 * result.before.total_bytes


def test_level_zero_removes_what_is_dead_alone() -> None:
    result = fx2onnx.optimize_model(GRAPHS["old_attributes"](), level=0)
    assert result.after.nodes == result.before.nodes
    assert fx2onnx.optimize_model(GRAPHS["unused"](), level=0).after.nodes == 2


def test_nothing_to_do_leaves_every_byte(tmp_path: Path) -> None:
    proto = text("g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }")
    onnx.save(proto, tmp_path / "in.onnx")
    fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "in.onnx").read_bytes()


def test_types_between_nodes_are_written_where_the_file_has_them(tmp_path: Path) -> None:
    proto = onnx.shape_inference.infer_shapes(GRAPHS["shape_chain"]())
    fx2onnx.optimize_model(proto, tmp_path / "out.onnx")
    inner = onnx.load(tmp_path / "out.onnx").graph.value_info
    dims = [[dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in inner]
    assert dims == [["N", "L", 2, 4]]


def test_types_of_the_main_inputs_are_read_as_expressions() -> None:
    body = """g (float[N, L, 4] x, float[N, 2*L, 4] c) => (float[a, b] y) {
        k = Concat <axis = 1> (x, c) s = Shape (k) i = Constant <value_int = 1> () l = Gather (s, i)
        z = Constant <value_ints = [0]> () l1 = Unsqueeze (l, z) m = Constant <value_ints = [-1]> ()
        t = Concat <axis = 0> (m, l1) p = Transpose <perm = [0, 2, 1]> (k) y = Reshape (p, t) }"""
    result = fx2onnx.optimize_model(text(body.replace("2*L", "M")))
    assert result.verified
    assert open_model(GRAPHS["functions"]()).fresh().functions == {}


@pytest.mark.long
@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_level_is_right(level: int) -> None:
    for path in FILES[::5]:
        assert fx2onnx.optimize_model(path, level=level, check=True).verified, path.name


def test_a_conv_takes_what_is_added_and_multiplied() -> None:
    body = "g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) { a = Conv (x, w) b = Mul (a, s) c = Add (b, t) d = Sub (c, u) y = Relu (d) }"
    proto = weights(
        text(body),
        w=normal(4, 3, 3, 3),
        s=normal(4, 1, 1),
        t=normal(1, 4, 1, 1),
        u=np.float32(0.5) * np.ones(1, np.float32),
    )
    result = fx2onnx.optimize_model(proto)
    assert result.verified
    assert result.after.operators == {"Conv": 1, "Relu": 1}
    wide = weights(text(body.replace("Conv (x, w)", "ConvTranspose <group = 1> (x, w)").replace("6, 6] y", "10, 10] y")), w=normal(3, 4, 3, 3), s=normal(4, 1, 1), t=normal(1, 4, 1, 1), u=normal(1))  # fmt: skip
    assert fx2onnx.optimize_model(wide).after.operators == {"ConvTranspose": 1, "Relu": 1}


def test_a_conv_does_not_take_what_differs_by_place() -> None:
    body = "g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) { a = Conv (x, w) y = Add (a, t) }"
    result = fx2onnx.optimize_model(weights(text(body), w=normal(4, 3, 3, 3), t=normal(6)), explain=True)
    assert result.verified
    assert not result.left_out
    assert "the constant is not one number a channel" in result.refusals["FoldConvAffine"]


def test_a_zero_is_kept_where_its_sign_is_read() -> None:
    body = "g (float[N] x) => (float[N] y) {{ z = Constant <value = float {{0.0}}> () a = Add (x, z) y = {} }}"
    assert fx2onnx.optimize_model(text(body.format("Reciprocal (a)"))).after.nodes == 2
    assert fx2onnx.optimize_model(text(body.format("Exp (a)"))).after.nodes == 1


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_state_that_is_not_zero_stays(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    state = "s = ConstantOfShape <value = float[1] {%s}> (n)"
    body = "g (float[L, B, 3] x) => (float[L, 1, B, 2] y) { h = Shape (x) i = Constant <value_ints = [1]> () b = Gather (h, i) o = Constant <value_ints = [1]> () k = Constant <value_ints = [2]> () n = Concat <axis = 0> (o, b, k) "
    arrays: dict[str, Any] = {"w": normal(1, gates * 2, 3), "r": normal(1, gates * 2, 2)}
    for number, nodes in (("0", 1), ("1", 5)):
        ending = f" y = {op_type} <hidden_size = 2> (x, w, r, , , s) }}"
        result = fx2onnx.optimize_model(weights(text(body + state % number + ending), **arrays))
        assert result.verified, result.warnings
        assert result.after.nodes == nodes
        assert not result.left_out


def test_a_loop_without_a_step_gives_nothing_of_the_same_shape(tmp_path: Path) -> None:
    """Types between nodes are left out here, because the file would grow; what a step gives keeps its own."""
    body = onnx.parser.parse_graph(
        "b (int64 i, bool go, float[2] a) => (bool on, float[2] r, float[2] s) { on = Identity (go) r = Add (a, x) s = Identity (r) }"
    )
    model = text("g (float[2] x) => (float[2] y, float[K, 2] all) { y = Identity (x) }", opset=17)
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Loop", ["n", "go", "x"], ["y", "all"], body=body))
    model = weights(model, n=np.array(4), go=np.array(False))
    result = fx2onnx.optimize_model(model, tmp_path / "out.onnx", external_data=True, external_data_bytes=0)
    assert result.verified is True, result.warnings


def test_a_target_adds_no_types(tmp_path: Path) -> None:
    proto = text("g (float[N, 4] x) => (float[N, 4] y) { a = Sin (x) b = Relu (a) c = Tanh (b) y = Abs (c) }")
    result = fx2onnx.optimize_model(proto, tmp_path / "out.onnx", target="onnxruntime")
    assert result.after.total_bytes <= result.before.total_bytes
