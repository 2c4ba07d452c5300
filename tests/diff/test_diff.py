"""``fx2onnx.diff``: what is no difference, and every kind of difference found where it was made."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.diff import Difference, diff
from tests.diff.disguise import disguised


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(8, 8) for _ in range(4))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        return self.norm(x + self.out(mixed))


class Net(torch.nn.Module):
    def __init__(self, blocks: int = 3, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.cond(x.sum() > 0, lambda x: self.head(x), lambda x: self.head(-x), (x,))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diff") / "plain.onnx"
    fx2onnx.export(Net().eval(), (torch.randn(2, 4, 8),), path, dynamic_axes={"x": {0: "batch"}})
    return path


Edit = Callable[[onnx.ModelProto], None]


@pytest.fixture
def edited(plain: Path, tmp_path: Path) -> Callable[[Edit], Difference]:
    """The difference that an edit makes; the same is found, the other way round, from the other side."""

    def made(edit: Edit) -> Difference:
        model = onnx.load(plain)
        edit(model)
        onnx.save(model, tmp_path / "edited.onnx")
        found, turned = diff(plain, tmp_path / "edited.onnx"), diff(tmp_path / "edited.onnx", plain)
        assert found.equal == turned.equal
        assert [len(found.nodes.added), len(found.nodes.removed)] == [
            len(turned.nodes.removed),
            len(turned.nodes.added),
        ]
        assert len(found.nodes.changed) == len(turned.nodes.changed)
        assert len(found.weights.changed) == len(turned.weights.changed)
        return found

    return made


def weight(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def node(model: onnx.ModelProto, op_type: str, number: int = 0) -> onnx.NodeProto:
    return [each for each in model.graph.node if each.op_type == op_type][number]


def count(path: Path) -> int:
    return sum(1 + sum(len(a.g.node) for a in each.attribute) for each in onnx.load(path).graph.node)


def test_a_file_is_equal_to_itself(plain: Path) -> None:
    found = diff(plain, plain)
    assert found.equal
    assert (found.nodes.matched, found.nodes.renamed, found.nodes.moved) == (count(plain), 0, 0)
    assert found.weights.equal == len(onnx.load(plain).graph.initializer)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keeps_origin", [True, False], ids=["origin", "nameless"])
def test_names_and_order_are_no_difference(plain: Path, tmp_path: Path, seed: int, keeps_origin: bool) -> None:
    onnx.save(disguised(onnx.load(plain), seed, keeps_origin=keeps_origin), tmp_path / "other.onnx")
    found = diff(plain, tmp_path / "other.onnx")
    assert found.equal, found.as_dict()
    assert found.nodes.matched == count(plain)
    assert found.nodes.moved > 0
    assert (found.nodes.renamed == 0) is keeps_origin
    assert len(found.weights.renamed) == len(onnx.load(plain).graph.initializer)


def test_other_weights_of_one_structure(plain: Path, tmp_path: Path) -> None:
    """Trained further, and nothing has its name: the structure alone says what is what."""
    fx2onnx.export(Net(seed=1).eval(), (torch.randn(2, 4, 8),), tmp_path / "b.onnx", dynamic_axes={"x": {0: "batch"}})
    onnx.save(disguised(onnx.load(tmp_path / "b.onnx"), 3), tmp_path / "c.onnx")
    for name in ("b.onnx", "c.onnx"):
        found = diff(plain, tmp_path / name)
        assert (found.nodes.added, found.nodes.removed, found.nodes.changed) == ([], [], [])
        changed = {each.name.removesuffix(".T") for each in found.weights.changed}
        wanted = {key for key, _ in Net().named_parameters() if ".norm." not in key}
        assert changed == wanted
        assert (found.weights.added, found.weights.removed) == ([], [])


def test_an_attribute(edited: Any) -> None:
    found = edited(lambda model: setattr(node(model, "Softmax", 1).attribute[0], "i", 1))
    (changed,) = found.nodes.changed
    assert changed.node.op_type == "Softmax"
    assert changed.node.scope == "blocks.1"
    assert changed.node.source.startswith("tests/diff/test_diff.py:")
    assert [(c.what, c.name, c.before, c.after) for c in changed.changes] == [("attribute", "axis", -1, 1)]
    assert (found.nodes.added, found.nodes.removed, found.weights.changed) == ([], [], [])


def test_what_holds_anyway_may_be_left_out(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        softmax = node(model, "Softmax")
        assert softmax.attribute[0].i == -1
        del softmax.attribute[:]
        node(model, "LayerNormalization").attribute.append(helper.make_attribute("stash_type", 1))

    assert edited(edit).equal


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_node_put_in_between(edited: Any, number: int) -> None:
    def edit(model: onnx.ModelProto) -> None:
        softmax = node(model, "Softmax", number)
        place = list(model.graph.node).index(softmax)
        wanted = softmax.input[0]
        softmax.input[0] = "between"
        model.graph.node.insert(place, helper.make_node("Relu", [wanted], ["between"], "blocks.between/Relu"))

    found = edited(edit)
    (added,) = found.nodes.added
    assert (added.name, added.op_type) == ("blocks.between/Relu", "Relu")
    assert found.nodes.removed == []
    (changed,) = found.nodes.changed
    assert [(c.what, c.name) for c in changed.changes] == [("input", "0")]
    assert changed.changes[0].after == "blocks.between/Relu"


def chain(op_types: str, weights: list[np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """Operators one behind the other; MatMul takes the next of the weights."""
    left, nodes = list(weights), []
    for index, op_type in enumerate(op_types.split()):
        inputs = [f"v{index}"] + ([f"w{len(weights) - len(left)}"] if op_type == "MatMul" else [])
        left = left[1:] if op_type == "MatMul" else left
        nodes.append(helper.make_node(op_type, inputs, [f"v{index + 1}"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("v0", nodes[-1].output[0]))
    nodes.append(helper.make_node("Identity", [y.name], ["y"]))
    y.name = "y"
    tensors = [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors))


def numbered(*seeds: int) -> list[np.ndarray[Any, Any]]:
    return [np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32) for seed in seeds]


def found_between(one: onnx.ModelProto, other: onnx.ModelProto, folder: Path) -> Difference:
    onnx.save(one, folder / "one.onnx")
    onnx.save(disguised(other, 5), folder / "other.onnx")
    return diff(folder / "one.onnx", folder / "other.onnx")


def test_a_layer_put_in_between_is_told_by_the_weights_of_the_others(tmp_path: Path) -> None:
    """It has the operator and the shapes of the layer behind it."""
    one, other = (chain("MatMul " * len(seeds), numbered(*seeds)) for seeds in ((1, 2, 3, 4), (1, 2, 9, 3, 4)))
    found = found_between(one, other, tmp_path)
    assert (len(found.nodes.added), found.nodes.removed) == (1, [])
    assert (len(found.weights.added), found.weights.changed, found.weights.removed) == (1, [], [])


def test_a_change_in_every_layer_of_a_model_trained_anew(tmp_path: Path) -> None:
    """No name, no weight, and no whole way from an input or to an output is the same."""
    one = chain("MatMul Tanh " * 6, numbered(*range(6)))
    other = chain("MatMul Relu Tanh " * 6, numbered(*range(10, 16)))
    found = found_between(one, other, tmp_path)
    assert [node.op_type for node in found.nodes.added] == ["Relu"] * 6
    assert found.nodes.removed == []
    assert [(weight.name, weight.shape) for weight in found.weights.changed] == [
        (f"w{index}", [4, 4]) for index in range(6)
    ]


def test_neighbours_tell_what_is_what(tmp_path: Path) -> None:
    """All that stands around two products is replaced but for one input of each; they come in another order."""

    def model(first: str, last: str, order: tuple[int, int]) -> onnx.ModelProto:
        rows = [
            [
                helper.make_node(first, ["x"], [f"a{index}"]),
                helper.make_node("Sub", [f"a{index}", f"z{index}"], [f"b{index}"]),
                helper.make_node(last, [f"b{index}"], [f"y{index}"]),
            ]
            for index in order
        ]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
            for names in (("x", "z0", "z1"), ("y0", "y1"))
        )
        return helper.make_model(helper.make_graph([node for row in rows for node in row], "g", inputs, outputs))

    onnx.save(model("Relu", "Tanh", (0, 1)), tmp_path / "one.onnx")
    onnx.save(model("Sigmoid", "Abs", (1, 0)), tmp_path / "other.onnx")
    found = diff(tmp_path / "one.onnx", tmp_path / "other.onnx")
    assert found.nodes.matched == 2
    assert [[(c.what, c.name) for c in each.changes] for each in found.nodes.changed] == [[("input", "0")]] * 2


def test_a_layer_less(plain: Path, tmp_path: Path) -> None:
    fx2onnx.export(Net(2).eval(), (torch.randn(2, 4, 8),), tmp_path / "b.onnx", dynamic_axes={"x": {0: "batch"}})
    found = diff(plain, tmp_path / "b.onnx")
    assert {each.scope for each in found.nodes.removed} <= {
        "blocks.2",
        "blocks.2.q",
        "blocks.2.k",
        "blocks.2.v",
        "blocks.2.out",
        "blocks.2.norm",
    }
    assert found.nodes.added == []
    removed = {each.name.removesuffix(".T") for each in found.weights.removed}
    assert removed == {key for key, _ in Net().named_parameters() if key.startswith("blocks.2")}


def test_swapped_inputs(edited: Any) -> None:
    def swap(op_type: str) -> Edit:
        def edit(model: onnx.ModelProto) -> None:
            found = node(model, op_type, 0)
            found.input[:2] = [found.input[1], found.input[0]]

        return edit

    assert edited(swap("Add")).equal, "a sum is one in either order"
    (changed,) = edited(swap("Greater")).nodes.changed
    assert [(c.what, c.name) for c in changed.changes] == [("input", "0"), ("input", "1")]


def test_swapped_weights_are_a_difference(edited: Any) -> None:
    """All contents are in both files, and both compute something else."""

    def edit(model: onnx.ModelProto) -> None:
        one, two = (weight(model, f"blocks.{index}.out.bias") for index in (0, 1))
        one.raw_data, two.raw_data = two.raw_data, one.raw_data

    assert not edited(edit).equal


def test_a_changed_weight(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        bias = weight(model, "head.bias")
        values = numpy_helper.to_array(bias).copy()
        values[3] += 0.25
        bias.raw_data = values.tobytes()

    found = edited(edit)
    (changed,) = found.weights.changed
    assert (changed.name, changed.shape, changed.perm) == ("head.bias", [5], None)
    assert changed.largest == pytest.approx(0.25, rel=1e-6)
    assert changed.scale == pytest.approx(float(Net().head.bias.detach().abs().max()))
    assert found.nodes.changed == []


def test_a_transposed_weight(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if list(t.dims) in ([5, 8], [8, 5]))
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array.T), tensor.name))

    found = edited(edit)
    (changed,) = found.weights.changed
    assert changed.perm == [1, 0]
    assert changed.shape == changed.other_shape[::-1]
    assert changed.largest is None


def test_a_weight_of_another_dtype(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        bias = weight(model, "head.bias")
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias).astype(np.float16), bias.name))
        for branch in node(model, "If").attribute:
            for reader in branch.g.node:
                reader.input[:] = ["wide" if name == bias.name else name for name in reader.input]
        model.graph.node.insert(0, helper.make_node("Cast", [bias.name], ["wide"], to=TensorProto.FLOAT))

    (changed,) = edited(edit).weights.changed
    assert (changed.dtype, changed.other_dtype) == ("float32", "float16")
    assert 0 < changed.largest < 1e-3


def test_inputs_outputs_opset_and_metadata(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
        output = model.graph.output[0]
        output.type.tensor_type.elem_type = TensorProto.FLOAT16
        node(model, "If").output[0] = "float32"
        model.graph.node.append(helper.make_node("Cast", ["float32"], [output.name], to=TensorProto.FLOAT16))
        model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.INT64, [2]))
        model.opset_import[0].version += 1
        model.ir_version += 1
        model.producer_version = "7"
        helper.set_model_props(model, {"author": "someone"})

    found = edited(edit)
    interface = {(c.what, c.name, str(c.before), str(c.after)) for c in found.interface}
    output = onnx.load(found.files[0]).graph.output[0].name
    assert interface == {
        ("input shape", "x", "['batch', 4, 8]", "['batch', 'length', 8]"),
        ("output dtype", output, "float32", "float16"),
        ("input", "more", "None", "int64 [2]"),
    }
    assert [c.what for c in found.model if c.name != "fx2onnx.conditions"] == ["opset", "IR version", "metadata"]
    assert [(c.what, c.name) for c in found.info] == [("model", "producer")]


def test_inside_a_branch(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        branch = next(a.g for a in node(model, "If").attribute if a.name == "else_branch")
        neg = next(each for each in branch.node if each.op_type == "Neg")
        neg.op_type = "Abs"

    found = edited(edit)
    (added,), (removed,) = found.nodes.added, found.nodes.removed
    assert (added.op_type, removed.op_type) == ("Abs", "Neg")
    assert removed.graph.startswith("else_branch of ")


def test_a_constant_is_a_weight_wherever_it_stands(edited: Any) -> None:
    def edit(model: onnx.ModelProto) -> None:
        tensor = weight(model, "head.bias")
        model.graph.node.insert(0, helper.make_node("Constant", [], ["head.bias"], value=tensor))
        model.graph.initializer.remove(tensor)

    assert edited(edit).equal


def test_weights_in_another_file(plain: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(plain), tmp_path / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=0)
    assert diff(plain, tmp_path / "b.onnx").equal
    (tmp_path / "b.data").unlink()
    with pytest.raises(UserError, match=r"b\.data"):
        diff(plain, tmp_path / "b.onnx")


def with_functions(op_type: str = "Add", name: str = "Twice") -> onnx.ModelProto:
    body = [helper.make_node(op_type, ["a", "a"], ["b"])]
    function = helper.make_function("local", name, ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [2]) for each in ("x", "y"))
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"], domain="local")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function])


def test_functions(tmp_path: Path) -> None:
    for name, model in (("a", with_functions()), ("b", with_functions("Mul")), ("c", with_functions(name="Double"))):
        onnx.save(model, tmp_path / f"{name}.onnx")
    assert diff(tmp_path / "a.onnx", tmp_path / "a.onnx").equal
    body = diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert [(each.op_type, each.graph) for each in body.nodes.added] == [("Mul", "function local::Twice")]
    other = diff(tmp_path / "a.onnx", tmp_path / "c.onnx")
    assert [(c.name, c.before, c.after) for c in other.functions] == [
        ("local::Twice", "1 nodes", None),
        ("local::Double", None, "1 nodes"),
    ]


def test_what_is_no_model(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    with pytest.raises(UserError, match="E303"):
        diff(plain, tmp_path / "bad.onnx")
    with pytest.raises(UserError, match="E302"):
        diff(tmp_path / "missing.onnx", plain)
    cycle = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
        "g", [helper.make_tensor_value_info("x", 1, [2])], [helper.make_tensor_value_info("b", 1, [2])],
    )  # fmt: skip
    onnx.save(helper.make_model(cycle), tmp_path / "cycle.onnx")
    with pytest.raises(UserError, match=r"cycle\.onnx"):
        diff(plain, tmp_path / "cycle.onnx")


@pytest.mark.slow
def test_weights_of_more_than_2_gib_are_mapped(tmp_path: Path) -> None:
    """A hole in each file reads as zeros; one number of the second is another."""
    rows, columns = 66_000, 8192
    for name in ("a", "b"):
        with (tmp_path / f"{name}.data").open("wb") as file:
            file.truncate(4 * rows * columns)
            if name == "b":
                file.seek(4 * (50_000 * columns + 7))
                file.write(np.float32(1.5).tobytes())
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, columns])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=f"{name}.data")
        x, y = (
            helper.make_tensor_value_info(each, TensorProto.FLOAT, [1, size])
            for each, size in (("x", rows), ("y", columns))
        )
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
        (tmp_path / f"{name}.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    tracemalloc.start()
    found = diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (changed,) = found.weights.changed
    assert (changed.largest, changed.scale, changed.shape) == (1.5, 0.0, [rows, columns])
    assert peak_bytes < 300_000_000
