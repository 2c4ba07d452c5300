"""Sizes of inputs: fixed, and made dynamic again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.cli.feeds import places_of
from fx2onnx.steps.sizes import parse_sizes
from tests.steps.graphs import GRAPHS, normal, text, weights

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


def shapes(path: Path) -> list[list[Any]]:
    graph = onnx.load(path).graph
    return [[d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]


def test_a_size_by_name_holds_wherever_it_stands(tmp_path: Path) -> None:
    result = fx2onnx.optimize_model(GRAPHS["shape_chain"](), tmp_path / "out.onnx", fix="N=2,L=5")
    assert shapes(tmp_path / "out.onnx") == [[2, 5, 8], [2, 2, 5, 4]]
    assert result.verified
    assert {tuple(each.sizes.items()) for each in (result.comparison.tried if result.comparison else [])} == {()}


def test_what_follows_from_a_size_is_folded() -> None:
    body = """g (float[N, 4] x) => (float[N, 4] y) { s = Shape (x) i = Constant <value_int = 0> () n = Gather (s, i)
        f = Cast <to = 1> (n) t = Sqrt (f) y = Div (x, t) }"""
    assert fx2onnx.optimize_model(text(body)).after.nodes == 5
    assert fx2onnx.optimize_model(text(body), fix={"N": 9}).after.operators == {"Div": 1}


@pytest.mark.parametrize("place", ["x:0", "N"])
def test_a_size_by_place_or_name(place: str, tmp_path: Path) -> None:
    proto = text("g (float[N, 4] x, float[N, 4] z) => (float[N, 4] y) { y = Add (x, z) }")
    fx2onnx.optimize_model(proto, tmp_path / "out.onnx", fix={place: 3})
    assert shapes(tmp_path / "out.onnx") == [[3, 4]] * 3


def test_a_size_without_a_name(tmp_path: Path) -> None:
    fx2onnx.optimize_model(FOREIGN / "skl2onnx_mlp.onnx", tmp_path / "out.onnx", fix="X:0=7")
    assert shapes(tmp_path / "out.onnx")[0] == [7, 5]


@pytest.mark.parametrize(
    ("fix", "code", "said"),
    [
        ("batch=1", "E001", "no input has a dynamic dim 'batch'"),
        ("N=1,x:0=2", "E001", "the dim 'N' is to be 1 and 2"),
        ("x:1=5", "E001", "axis 1 of the input 'x' is 4 in the file, and cannot be 5"),
        ("x:7=5", "E001", "there is no axis 7"),
        ("N=two", "E001", "cannot read fix 'N=two'"),
        ("N=1,N=2", "E001", "gives 'N' two sizes"),
    ],
)
def test_sizes_that_cannot_be(fix: str, code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        fx2onnx.optimize_model(GRAPHS["no_shapes"](), tmp_path / "out.onnx", fix=fix)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_the_graph_contradicts_names_the_node(tmp_path: Path) -> None:
    proto = weights(text("g (float[N, K] x) => (float[N, 2] y) { y = MatMul (x, w) }"), w=normal(3, 2))
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(proto, tmp_path / "out.onnx", fix="K=4")
    assert caught.value.code == "E105"
    assert "MatMul" in caught.value.node
    assert list(tmp_path.iterdir()) == []
    assert fx2onnx.optimize_model(proto, fix="K=3").verified


BRANCHES = """g (float[N, 4] x) => (float[N, 4] y) {
    s = Shape (x) z = Constant <value_ints = [0]> () d = Gather (s, z) c = Constant <value_ints = [3]> () e = Equal (d, c) b = Squeeze (e)
    y = If (b) <
        then_branch = three () => (float[N, 4] t) { t = Add (x, w) },
        else_branch = others () => (float[N, 4] u) { u = Neg (x) }> }"""
"""One branch for three rows, whose weight has three, and one for all others."""


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_branch_that_the_sizes_leave_out_contradicts_none(level: int, size: int, tmp_path: Path) -> None:
    proto = weights(text(BRANCHES), w=normal(3, 4))
    result = fx2onnx.optimize_model(proto, tmp_path / "out.onnx", fix={"N": size}, level=level)
    assert result.verified
    assert shapes(tmp_path / "out.onnx") == [[size, 4], [size, 4]]
    x = normal(size, 4)
    before, after = (onnxruntime.InferenceSession(each) for each in (proto.SerializeToString(), tmp_path / "out.onnx"))
    np.testing.assert_array_equal(after.run(None, {"x": x})[0], before.run(None, {"x": x})[0])
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Add" if size == 3 else "Neg"]


@pytest.mark.parametrize(("body", "level"), [(BRANCHES, 0), (BRANCHES.replace("Neg (x)", "Add (x, w)"), 2)])
def test_a_branch_that_stays_or_runs_contradicts(body: str, level: int, tmp_path: Path) -> None:
    proto = weights(text(body), w=normal(3, 4))
    with pytest.raises(UserError, match="the file does not take N=5") as caught:
        fx2onnx.optimize_model(proto, tmp_path / "out.onnx", fix={"N": 5}, level=level)
    assert caught.value.code == "E105"
    assert list(tmp_path.iterdir()) == []


ATTENTION = """g (float[2, 5, 16] x) => (float[2, 5, 16] y) {
    q = MatMul (x, w) a = Constant <value_ints = [2, 5, 2, 8]> () r = Reshape (q, a) t = Transpose <perm = [0, 2, 1, 3]> (r)
    b = Constant <value_ints = [4, 5, 8]> () m = Reshape (t, b) k = Transpose <perm = [0, 2, 1]> (m) s = MatMul (m, k)
    p = Softmax <axis = -1> (s) v = MatMul (p, m) c = Constant <value_ints = [2, 2, 5, 8]> () u = Reshape (v, c)
    n = Transpose <perm = [0, 2, 1, 3]> (u) d = Constant <value_ints = [2, -1, 16]> () y = Reshape (n, d) }"""


def test_a_batch_in_the_targets_of_reshapes_is_mended(tmp_path: Path) -> None:
    """Also where batch and heads are one axis, and where a -1 stands for another size."""
    proto = weights(text(ATTENTION), w=normal(16, 16))
    result = fx2onnx.optimize_model(proto, tmp_path / "out.onnx", dynamic={"x:0": "batch"})
    assert shapes(tmp_path / "out.onnx") == [["batch", 5, 16], ["batch", 5, 16]]
    assert result.verified
    assert any(each.sizes == {"x:0": 6} for each in (result.comparison.tried if result.comparison else []))
    before = onnxruntime.InferenceSession(proto.SerializeToString())
    after = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    x = normal(8, 5, 16)
    want = np.concatenate([before.run(None, {"x": x[i : i + 2]})[0] for i in range(0, 8, 2)])
    np.testing.assert_allclose(after.run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-6)


INSIDE = {
    "Add": "s = Sin (x) y = Add (s, w)",
    "Reshape": "t = Transpose <perm = [1, 0]> (x) a = Constant <value_ints = [2, 4]> () y = Reshape (t, a)",
}
"""Operator -> nodes that hold the batch of 2."""


@pytest.mark.parametrize("op_type", INSIDE)
def test_a_size_that_is_inside_names_its_node(op_type: str, tmp_path: Path) -> None:
    proto = weights(
        text(f"g (float[2, 4] x) => (float[2, 4] y) {{ {INSIDE[op_type]} }}"), w=normal(2, 4), v=normal(1, 4)
    )
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(proto, tmp_path / "out.onnx", dynamic={"x:0": "batch"})
    assert caught.value.code == "E105"
    assert op_type in caught.value.node or "not right at other sizes" in caught.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "nodes",
    [
        "e = Constant <value_ints = [2, 4]> () k = Expand (v, e) y = Mul (x, k)",
        "y = Add (x, r)",
        "e = Constant <value_ints = [2, 1]> () k = Expand (i, e) g = Gather (t, k) q = Constant <value_ints = [2, 4]> () h = Reshape (g, q) y = Add (x, h)",
        "k = Gather (t, j) y = Add (x, k)",
    ],
)  # fmt: skip
def test_rows_that_are_repeated_for_each_of_the_batch(nodes: str) -> None:
    """A row that is expanded to the batch, or stored for each of it, is left to broadcasting."""
    row = normal(1, 4)
    proto = weights(
        text(f"g (float[2, 4] x) => (float[2, 4] y) {{ {nodes} }}"),
        v=row, r=np.repeat(row, 2, 0), t=normal(3, 4), i=np.array([[1]]), j=np.array([2, 2]),
    )  # fmt: skip
    result = fx2onnx.optimize_model(proto, dynamic={"x:0": "batch"})
    assert result.verified
    assert any(each.sizes == {"x:0": 6} for each in (result.comparison.tried if result.comparison else []))


def test_rows_that_reach_each_other_are_found_by_running() -> None:
    proto = text(
        "g (float[2, 4] x) => (float[2, 4] y) { m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub (x, m) }"
    )
    with pytest.raises(UserError, match="not right at other sizes") as caught:
        fx2onnx.optimize_model(proto, dynamic={"x:0": "batch"})
    assert caught.value.code == "E105"


def test_another_axis_has_to_run(tmp_path: Path) -> None:
    body = "g (float[2, 6, 4] x) => (float[2, 6, 4] y) { y = Softmax <axis = 1> (x) }"
    result = fx2onnx.optimize_model(text(body), tmp_path / "out.onnx", dynamic={"x:1": "length"})
    assert shapes(tmp_path / "out.onnx")[1] == [2, "length", 4]
    assert result.verified


def test_texts() -> None:
    assert parse_sizes("batch=1, x:2=224") == {"batch": 1, "x:2": 224}
    assert places_of(["x:0=batch;z:0=batch", "x:1=length"]) == {"x:0": "batch", "z:0": "batch", "x:1": "length"}
    for wrong in ("x=batch", "x:0", "x:0=1a b"):
        with pytest.raises(UserError, match="cannot read --dynamic"):
            places_of([wrong])
    with pytest.raises(UserError, match="two names"):
        places_of(["x:0=a", "x:0=b"])


@pytest.mark.parametrize("place", ["x:1", "other:0"])
def test_places_that_cannot_be_dynamic(place: str) -> None:
    proto = text("g (float[2, N] x) => (float[2, N] y) { y = Relu (x) }")
    with pytest.raises(UserError, match=r"dynamic already|no such input"):
        fx2onnx.optimize_model(proto, dynamic={place: "batch"})


def test_only_sizes_that_the_file_allows_are_tried_and_engines_say_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")

    class Halves(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[1] < 8:
                raise ValueError("too few")
            return x.reshape(x.shape[0], 2, -1) * 2

    path = tmp_path / "halves.onnx"
    fx2onnx.export(Halves(), (torch.randn(3, 12),), path, dynamic_shapes=({0: "n", 1: "m"},))
    result = fx2onnx.optimize_model(path)
    assert result.verified
    assert result.comparison is not None
    sizes = [each.sizes for each in result.comparison.tried]
    assert all(each["m"] >= 8 and each["m"] % 2 == 0 for each in sizes)
    assert len({each["m"] for each in sizes}) > 1
    assert capfd.readouterr() == ("", "")


def test_what_onnxruntime_refuses_is_in_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    model = text("g (float[n] x) => (float[a, 4] y) { s = Constant <value_ints = [-1, 4]> () y = Reshape (x, s) }")
    assert fx2onnx.optimize_model(model).verified
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dim", ["t", "b, 1, t"])
def test_signals_are_long_enough_for_their_kernels(dim: str) -> None:
    import numpy as np

    names = [part for part in dim.split(", ") if not part.isdigit()]
    shape = dim if len(names) > 1 else f"1, 1, {dim}"
    model = text(f"g (float[{shape}] x) => (float[p, 2, q] y) {{ y = Conv (x, w) }}")
    weights(model, w=np.ones((2, 1, 400), np.float32))
    assert fx2onnx.optimize_model(model).verified
