"""Files in another opset: the same results, or every node that has no form there."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.steps.opset import LEAST, NEWEST, convert_opset
from tests.steps.graphs import GRAPHS, text

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
REFUSED = {"unet": "Resize", "views": "Slice", "shapes": "Slice", "image": "Resize", "knn": "TopK"}
"""What opset 9 has no form of, by a part of the file's name."""


@pytest.mark.long_cases(
    "dynamo_attention-9",
    "dynamo_attention-12",
    "dynamo_attention-16",
    "paddle2onnx_attention-9",
    "paddle2onnx_attention-21",
    "paddle2onnx_attention-26",
    "tf2onnx_gru-21",
    "tf2onnx_gru-26",
)
@pytest.mark.parametrize("opset", [9, 12, 16, 21, 26])
@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.onnx"))[::2], ids=lambda path: path.stem)
def test_files_in_every_opset(path: Path, opset: int, tmp_path: Path) -> None:
    refused = [op_type for part, op_type in REFUSED.items() if opset == 9 and part in path.stem]
    if refused:
        with pytest.raises(UserError, match=f"no form in opset {opset}") as caught:
            fx2onnx.optimize_model(path, tmp_path / "out.onnx", opset=opset)
        assert caught.value.code == "E202"
        assert refused[0] in caught.value.why
        assert list(tmp_path.iterdir()) == []
        return
    result = fx2onnx.optimize_model(path, tmp_path / "out.onnx", opset=opset)
    assert result.verified is True, result.warnings
    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written)
    assert {entry.domain: entry.version for entry in written.opset_import}.get("", opset) == result.opset == opset


def test_an_opset_that_onnxruntime_does_not_know() -> None:
    model = text("g (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }")
    newest = onnx.ModelProto()
    newest.CopyFrom(model)
    newest.opset_import[0].version = NEWEST
    with contextlib.suppress(Exception):
        onnxruntime.InferenceSession(newest.SerializeToString())
        pytest.skip("this onnxruntime knows ONNX's newest opset")
    result = fx2onnx.optimize_model(model, opset=NEWEST)
    assert result.verified is True
    assert {row.engine for row in result.comparison.rows} == {"runner"}
    assert [note.partition(", which")[0] for note in result.warnings] == [
        f"not compared in onnxruntime-{version('onnxruntime')}"
    ]
    assert fx2onnx.optimize_model(model, opset=NEWEST, engines=["onnxruntime"]).verified is None


FORMS = {
    "Softmax up, several axes": (12, 13, "y = Softmax <axis = 1> (x)"),
    "Softmax down": (13, 12, "y = Softmax <axis = -1> (x)"),
    "Upsample up": (9, 13, 's = Constant <value = float[3] {1.0, 1.0, 2.0}> () y = Upsample <mode = "nearest"> (x, s)'),
    "Resize down": (
        11,
        9,
        'r = Constant <value = float[0] {}> () s = Constant <value = float[3] {1.0, 1.0, 2.0}> () y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, r, s)',
    ),
    "Gelu down": (20, 13, "y = Gelu (x)"),
    "Gelu by tanh down": (20, 9, 'y = Gelu <approximate = "tanh"> (x)'),
    "Mish down": (18, 11, "y = Mish (x)"),
    "HardSwish down": (14, 11, "y = HardSwish (x)"),
    "reductions up": (11, 18, "a = ReduceSum <axes = [1], keepdims = 1> (x) b = ReduceMax <axes = [-1]> (x) y = Add (a, b)"),
    "reductions down": (18, 11, "i = Constant <value_ints = [-1]> () a = ReduceMean (x, i) y = ReduceSum <keepdims = 1> (a, i)"),
    "reduction of two axes down": (18, 11, "i = Constant <value_ints = [1, 2]> () a = ReduceMax (x, i) y = Sub (x, a)"),
    "reduction of nothing down": (18, 12, "i = Constant <value_ints = [1]> () a = ReduceMean <noop_with_empty_axes = 1> (x) y = Neg (a)"),
    "Split up": (11, 18, "a, b = Split <axis = 1> (x) y = Add (a, b)"),
    "Split down": (18, 11, "a, b = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 2> (b, a)"),
    "Shape of some axes down": (15, 14, "s = Shape <start = 1> (x) c = Cast <to = 1> (s) d = ReduceSum <keepdims = 0> (c) y = Mul (x, d)"),
    "Pad of some axes down": (
        18,
        9,
        "p = Constant <value_ints = [1, 2]> () a = Constant <value_ints = [-1]> () v = Constant <value = float {3.0}> () y = Pad (x, p, v, a)",
    ),
    "Pad of some axes by computed amounts down": (
        18,
        11,
        "s = Shape <start = 1> (x) h = Constant <value_ints = [3, 2]> () p = Div (s, h) a = Constant <value_ints = [-1]> () v = Constant <value = float {3.0}> () y = Pad (x, p, v, a)",
    ),
    "Pad by computed amounts down": (19, 11, "s = Shape (x) z = Sub (s, s) p = Concat <axis = 0> (z, s) y = Pad (x, p)"),
    "Split of an unknown size down": (
        18,
        13,
        "t = Concat <axis = 0> (x, x) d, e = Split <axis = 0, num_outputs = 2> (t) f = Shape (d) c = Cast <to = 1> (f) g = ReduceSum <keepdims = 0> (c) y = Mul (e, g)",
    ),
    "Dropout by a computed ratio down": (13, 11, "m = ReduceMax <keepdims = 0> (x) r = Sigmoid (m) y = Dropout (x, r)"),
    "Pad up": (9, 18, 'y = Pad <mode = "reflect", pads = [0, 0, 1, 0, 0, 1]> (x)'),
    "Clip up": (9, 13, "y = Clip <max = 0.5> (x)"),
    "Clip down": (13, 9, "l = Constant <value = float {-0.5}> () y = Clip (x, l)"),
    "negative axes down": (13, 9, "i = Constant <value_ints = [-2]> () a = Unsqueeze (x, i) b = Squeeze (a, i) y = Concat <axis = -1> (b, x)"),
    "LessOrEqual down": (16, 11, "z = Constant <value = float {0.1}> () a = LessOrEqual (x, z) y = Cast <to = 1> (a)"),
    "Gemm down": (13, 9, "f = Flatten <axis = 2> (x) t = Transpose (f) y = Gemm (t, f)"),
    "Dropout": (12, 7, "y = Dropout (x)"),
    "Slice up": (9, 13, "y = Slice <axes = [2], starts = [1], ends = [-1]> (x)"),
    "TopK up": (9, 11, "y, i = TopK <k = 2> (x)"),
    "Scatter up": (9, 16, "y = Scatter <axis = 2> (x, p, x)"),
    "power of another dtype down": (12, 9, "e = Constant <value = int64 {2}> () y = Pow (x, e)"),
    "allowzero down": (14, 13, "t = Constant <value_ints = [-1, 6]> () y = Reshape <allowzero = 1> (x, t)"),
}  # fmt: skip


@pytest.mark.long_cases("0-Softmax down", "2-Gelu by tanh down")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("level", [0, 2])
def test_forms(name: str, level: int) -> None:
    before, after, body = FORMS[name]
    ir = 4 if before < 11 else 8
    proto = text(
        f"g (float[N, 4, 6] x) => (float y) {{ {body} }}".replace("(x, p, x)", "(x, p, u)"), ir=ir, opset=before
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    if "Scatter" in body:
        places = onnx.helper.make_tensor("p", onnx.TensorProto.INT64, [1, 4, 1], [3, 1, 0, 2])
        proto.graph.initializer.extend([places, onnx.helper.make_tensor("u", 1, [1, 4, 1], [1.0, 2.0, 3.0, 4.0])])
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    result = fx2onnx.optimize_model(proto, level=level, opset=after)
    assert result.verified is True, result.warnings
    assert result.opset == after


def test_every_node_without_a_form_is_named(tmp_path: Path) -> None:
    proto = text(
        "g (float[3, 3] x) => (float[3, 3] y) { [one] a = Trilu (x) [two] b = Trilu <upper = 0> (a) y = Relu (b) }"
    )
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(proto, tmp_path / "out.onnx", opset=11)
    assert caught.value.code == "E202"
    assert caught.value.what == "2 nodes have no form in opset 11"
    assert "Trilu one" in caught.value.why
    assert "Trilu two" in caught.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("before", "after"), [(11, 13), (13, 11)])
def test_a_mask_that_is_read_has_no_form_beyond_opset_11(before: int, after: int) -> None:
    proto = text("g (float[3] x) => (float[3] y, bool[3] m) { y, m = Dropout (x) }", opset=before)
    with pytest.raises(UserError, match="no form in opset") as caught:
        fx2onnx.optimize_model(proto, opset=after)
    assert "mask" in caught.value.why


@pytest.mark.long
def test_bodies_are_converted() -> None:
    for name in ("constant_condition", "condition_of_data", "loop"):
        for opset in (11, 13, 21):
            result = fx2onnx.optimize_model(GRAPHS[name](), level=0, opset=opset)
            assert result.verified, (name, opset, result.warnings)


@pytest.mark.parametrize("opset", [LEAST - 1, NEWEST + 1])
def test_opsets_that_are_none(opset: int) -> None:
    with pytest.raises(UserError, match=f"opset {opset} is none") as caught:
        fx2onnx.optimize_model(GRAPHS["unused"](), opset=opset)
    assert caught.value.code == "E001"


@pytest.mark.long
def test_newer_forms_are_used_after_conversion() -> None:
    path = FOREIGN / "torchscript_attention.onnx"
    result = fx2onnx.optimize_model(path, opset=20)
    assert {"LayerNormalization", "Gelu"} <= set(result.after.operators)


@pytest.mark.parametrize("kept", [(0,), (0, 1, 2), (0, 3)], ids=str)
def test_definitions_without_outputs_that_the_node_does_not_give(kept: tuple[int, ...]) -> None:
    """ONNX's definition of Attention leaves out caches and scores that nobody asks for, between outputs that somebody does."""
    queries, past = ["q", "k", "v"], ["pk", "pv"]
    shapes = {name: [2, 3, 4 if name in past else 5, 8] for name in (*queries, *past)}
    inputs = [*queries, "", *past] if 1 in kept else queries
    node = helper.make_node(
        "Attention", inputs, [f"y{place}" if place in kept else "" for place in range(max(kept) + 1)]
    )
    values = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes.get(name)) for name in names]
        for names in (filter(None, inputs), filter(None, node.output))
    ]
    proto = helper.make_model(
        helper.make_graph([node], "g", *values), opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    )
    model = ir.from_proto(proto)
    convert_opset(model, 22)
    draw = np.random.default_rng(0)
    feeds = {value.name: draw.normal(size=shapes[value.name]).astype(np.float32) for value in values[0]}
    before = InferenceSession(proto.SerializeToString()).run(None, feeds)
    after = InferenceSession(ir.to_proto(model).SerializeToString()).run(None, feeds)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_body_that_is_applied_to_a_sequence_has_no_form() -> None:
    case = next(case for case in collect_testcases(None) if case.name == "test_sequence_map_identity_1_sequence")
    with pytest.raises(UserError, match="SequenceMap") as caught:
        convert_opset(ir.from_proto(case.model), 16)
    assert caught.value.code == "E202"
