"""Files in and out: bad ones, external data, the file itself, memory; and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.cli.support import invoke
from tests.steps.graphs import GRAPHS, normal, text, weights


def linear(width: int = 64) -> onnx.ModelProto:
    body = f"g (float[N, {width}] x) => (float[N, {width}] y) {{ a = Identity (x) b = MatMul (a, w) y = Add (b, c) }}"
    return weights(text(body), w=normal(width, width), c=normal(width))


@pytest.mark.parametrize("content", [b"", b"this is no model", b"\x08\x07", bytes(1000)])
def test_what_is_no_model(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(content)
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert caught.value.code == "E303"
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.parametrize(
    "body",
    [
        "g (float[4] x) => (float[4] y) { y = Add (x, nothing) }",
        "g (float[4] x) => (float[4] y) { z = Relu (x) }",
        "g (float[4] x) => (float[4] y) { a = Add (x, b) b = Relu (a) y = Relu (b) }",
    ],
)
def test_graphs_that_are_broken(body: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(text(body), tmp_path / "out.onnx")
    assert caught.value.code == "E303"
    assert list(tmp_path.iterdir()) == []


def test_missing_files_and_levels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read") as caught:
        fx2onnx.optimize_model(tmp_path / "none.onnx", tmp_path / "out.onnx")
    assert caught.value.code == "E302"
    with pytest.raises(UserError, match="level 7"):
        fx2onnx.optimize_model(linear(), level=7)
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(linear(), tmp_path / "no" / "out.onnx")
    assert caught.value.code == "E301"


def test_the_file_itself_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path)
    result = fx2onnx.optimize_model(path, path)
    assert result.verified
    assert [node.op_type for node in onnx.load(path).graph.node] == ["MatMul", "Add"] or result.after.nodes == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def save_outside(proto: onnx.ModelProto, path: Path) -> None:
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=100)


def test_external_data_stays_outside_and_is_joined_on_request(tmp_path: Path) -> None:
    save_outside(linear(), tmp_path / "in.onnx")
    (tmp_path / "there").mkdir()
    result = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "there" / "out.onnx")
    assert result.verified
    names = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert len(names) == 2
    assert result.after.data_bytes >= 64 * 64 * 4
    joined = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "joined.onnx", external_data=False)
    assert joined.after.data_bytes == 0
    proto = onnx.load(tmp_path / "joined.onnx", load_external_data=False)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    np.testing.assert_array_equal(stored["w"], normal(64, 64))


def test_weights_are_split_by_size(tmp_path: Path) -> None:
    result = fx2onnx.optimize_model(linear(), tmp_path / "out.onnx", external_data=True, external_data_bytes=1000)
    proto = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    outside = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL}
    assert outside == {"w"}
    assert result.verified


def test_external_data_of_the_file_itself(tmp_path: Path) -> None:
    save_outside(linear(), tmp_path / "in.onnx")
    before = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "in.onnx")
    again = fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "in.onnx")
    assert before.verified
    assert again.verified
    assert again.before.nodes == before.after.nodes


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "missing.bin"])
def test_external_data_stays_in_its_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64 * 64 * 4))
    save_outside(linear(), folder / "in.onnx")
    proto = onnx.load(folder / "in.onnx", load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (folder / "in.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UserError) as caught:
        fx2onnx.optimize_model(folder / "in.onnx", folder / "out.onnx")
    assert caught.value.code == "E302"
    assert not (folder / "out.onnx").exists()


MEMORY = """
import resource, sys
import fx2onnx
fx2onnx.optimize_model({small!r}, {out!r}, verify=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = fx2onnx.optimize_model({large!r}, {out!r}, verify=False)
assert result.edits["FoldBatchNorm"] == 1 and result.after.nodes == 3, result.edits
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.long
def test_large_weights_are_never_there_twice(tmp_path: Path) -> None:
    """Less than half of 98 MB that are mapped and written piece by piece counts as memory beside the mapped pages."""
    body = "g (float[N, 3, 8, 8] x, float[N, 5000] z) => (float[N, 4, 6, 6] y, float[N, 5000] u) { i = Identity (z) a = MatMul (i, v) u = MatMul (a, w) c = Conv (x, k) y = BatchNormalization (c, s, s, s, s) }"
    for name, width in (("small", 10), ("large", 3500)):
        proto = weights(text(body.replace("5000", str(width))), v=normal(width, width), w=normal(width, width, seed=1), k=normal(4, 3, 3, 3), s=np.ones(4, np.float32))  # fmt: skip
        onnx.save(
            proto, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin", size_threshold=0
        )
    code = MEMORY.format(
        small=str(tmp_path / "small.onnx"), large=str(tmp_path / "large.onnx"), out=str(tmp_path / "out.onnx")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 140  # the mapped pages themselves are 98


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    onnx.save(GRAPHS["old_attributes"](), tmp_path / "in.onnx")
    arguments = [
        "optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--fix", "N=2", "--opset", "17",
        "--explain", "--diff", "-q",
    ]  # fmt: skip
    assert invoke(*arguments).exit_code == 0
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["verified"] is True
    assert found["opset"] == 17
    assert found["before"]["nodes"] > found["after"]["nodes"]
    assert found["edits"]["RemoveNoop"] >= 1
    assert found["refusals"]
    assert found["diff"]["equal"] is False


def test_the_command_shows_what_was_done(tmp_path: Path) -> None:
    onnx.save(GRAPHS["shape_chain"](), tmp_path / "in.onnx")
    result = invoke("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx", "-O", "2")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    for said in ("in ", "done FixedTarget 1", "nodes", "random inputs in runner, onnxruntime"):
        assert said in shown


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fix", "M=1"], "E001"),
        (["--dynamic", "x:0"], "E001"),
        (["--opset", "3"], "E001"),
        (["-O", "9"], "E001"),
        (["--engine", "magic"], "E001"),
    ],
)
def test_the_command_refuses(arguments: list[str], code: str, tmp_path: Path) -> None:
    onnx.save(GRAPHS["shape_chain"](), tmp_path / "in.onnx")
    result = invoke("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx", "--json", *arguments)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["code"] == code
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_difference_needs_two_files(tmp_path: Path) -> None:
    onnx.save(GRAPHS["shape_chain"](), tmp_path / "in.onnx")
    result = invoke("optimize", tmp_path / "in.onnx", tmp_path / "in.onnx", "--diff", "--json")
    assert result.exit_code == 2
    assert "--diff compares OUT with IN" in json.loads(result.stdout)["what"]


def test_sizes_and_axes_stay_in_the_file_whatever_is_asked(tmp_path: Path) -> None:
    body = "g (float[N, 4, 6] x) => (float[N, A, B] y) { r = Reshape (x, to) a = Add (r, c) y = Resize (a, , by) }"
    numbers = {"to": np.array([0, 6, 4]), "by": np.array([1, 2, 2], np.float32), "c": normal(6, 4)}
    result = fx2onnx.optimize_model(
        weights(text(body), **numbers), tmp_path / "out.onnx", external_data=True, external_data_bytes=0
    )
    assert result.verified is True, result.warnings
    outside = [
        each.name
        for each in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
        if each.external_data
    ]
    assert outside == ["c"]


def test_origins_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    model = text(
        "g (float[n, 4] x, bool c) => (float[n, 4] y) { y = If (c) <then_branch = a () => (float[n, 4] p) { p = Relu (x) }, else_branch = b () => (float[n, 4] q) { q = Neg (x) }> }"
    )
    inner = [attribute.g.node[0] for attribute in model.graph.node[0].attribute]
    for node in (*model.graph.node, *inner):
        node.doc_string = "the user's line"
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.stack_trace", "File /home/me/secret.py" * 40
    for key in ("pkg.torch.export.graph_signature", "mine"):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, "kept?"
    kept = fx2onnx.optimize_model(model, tmp_path / "kept.onnx")
    lean = fx2onnx.optimize_model(model, tmp_path / "lean.onnx", metadata="none")
    assert kept.verified
    assert lean.verified
    assert b"secret" in (tmp_path / "kept.onnx").read_bytes()
    content = (tmp_path / "lean.onnx").read_bytes()
    assert b"secret" not in content
    assert b"line" not in content
    assert [entry.key for entry in onnx.load(tmp_path / "lean.onnx").metadata_props] == ["mine"]
    with pytest.raises(UserError, match="metadata='all' is not known"):
        fx2onnx.optimize_model(model, metadata="all")
