"""Certificates: right rewrites are proved or bounded, and no planted fault passes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.cli.support import invoke


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Written(nn.Module):
    """Norms and activations as exporters of the past wrote them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.rand(8))
        self.linear = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        x = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift
        return self.linear(x * 0.5 * (1 + torch.erf(x / 2**0.5))) * 2 + 1


def _convolutions() -> nn.Module:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.Flatten(),
    )
    for part in module:
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.running_mean, part.weight.data, part.bias.data):
                assert tensor is not None
                tensor.uniform_(-1, 1)
    return module


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_convolutions, (1, 3, 9, 9)),
    "encoder": (Encoder, (2, 3, 16)),
    "written": (Written, (2, 3, 8)),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Each model without rewrites, and as ``optimize`` leaves it."""
    folder, found = tmp_path_factory.mktemp("pairs"), {}
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        before, after = folder / f"{name}.onnx", folder / f"{name}_after.onnx"
        fx2onnx.export(make().eval(), (torch.randn(shape),), before, optimize=False, metadata="none")
        fx2onnx.optimize(before, after, verify=False)
        found[name] = before, after
    return found


@pytest.mark.parametrize("name", MODELS)
def test_right_rewrites_are_proved_or_bounded(pairs: dict[str, tuple[Path, Path]], name: str) -> None:
    found = fx2onnx.certify(*pairs[name])
    assert found.ok
    assert found.changed
    assert set(found.counts) <= {"proved", "bounded"}, found.changed
    assert set(found.outputs.values()) <= {"proved", "bounded"}
    assert found.roundings < 8


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_as_itself(pairs: dict[str, tuple[Path, Path]], name: str) -> None:
    found = fx2onnx.certify(pairs[name][1], pairs[name][1])
    assert (found.changed, set(found.outputs.values()), found.engine) == ([], {"proved"}, "")


def faults(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Copies of a model with one wrong thing each, as a wrong rewrite would leave it."""
    weights = {tensor.name: index for index, tensor in enumerate(model.graph.initializer)}

    def spoilt(edit: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
        made = copy.deepcopy(model)
        edit(made)
        return made

    def set_weight(change: Callable[[Any], Any], index: int) -> Callable[[onnx.ModelProto], None]:
        def edit(made: onnx.ModelProto) -> None:
            tensor = made.graph.initializer[index]
            array = change(numpy_helper.to_array(tensor).copy())
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))

        return edit

    def one_element(array: Any) -> Any:
        array.reshape(-1)[-1] *= 1.5
        return array

    for name, index in weights.items():
        array = numpy_helper.to_array(model.graph.initializer[index])
        if array.dtype == np.float32 and array.any():
            yield f"{name} with another sign", spoilt(set_weight(lambda array: -array, index))
            if array.reshape(-1)[-1]:
                yield f"{name} with one other element", spoilt(set_weight(one_element, index))
            if array.size > 1:
                yield f"{name} by another scale", spoilt(set_weight(lambda array: array * 1.01, index))
                yield f"{name} in another order", spoilt(set_weight(lambda array: np.roll(array, 1, axis=-1), index))
    kinds = {
        "Relu": "Sigmoid",
        "Erf": "Tanh",
        "Sqrt": "Exp",
        "Add": "Mul",
        "Mul": "Add",
        "Softmax": "LogSoftmax",
        "Gelu": "Relu",
    }
    for index, node in enumerate(model.graph.node):
        if node.op_type in kinds:

            def other(made: onnx.ModelProto, index: int = index, kind: str = kinds[node.op_type]) -> None:
                made.graph.node[index].op_type = kind

            yield f"{node.name} as another operator", spoilt(other)
        for place, attribute in enumerate(node.attribute):
            if attribute.name in ("epsilon", "alpha", "perm", "strides", "scale"):

                def change(made: onnx.ModelProto, index: int = index, place: int = place) -> None:
                    found = made.graph.node[index].attribute[place]
                    found.f *= 100
                    found.ints[:] = [*found.ints[1:], *found.ints[:1]]

                yield f"{node.name} with another {attribute.name}", spoilt(change)


def _runs(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    try:
        return fx2onnx.runner.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    except fx2onnx.Fx2OnnxError:  # an edit may leave a file that no engine runs
        return None


@pytest.mark.long
def test_planted_faults_are_refuted(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """A fault that the runner sees on other inputs than the certificate's is refuted; none is proved or bounded."""
    count, passed = 0, []
    for name, (before, after) in pairs.items():
        shape = MODELS[name][1]
        model = onnx.load(after)
        feeds = {model.graph.input[0].name: np.random.default_rng(5).standard_normal(shape).astype(np.float32)}
        right = _runs(onnx.load(before), feeds)
        for what, made in faults(model):
            wrong = _runs(made, feeds)
            if wrong is None or wrong.shape != right.shape or np.allclose(wrong, right, rtol=1e-3, atol=1e-3):
                continue  # the file is none, or the fault is none
            onnx.save(made, tmp_path / "wrong.onnx")
            found = fx2onnx.certify(before, tmp_path / "wrong.onnx", derivation=False)
            count += 1
            if found.ok or "refuted" not in found.outputs.values():
                passed.append(f"{name}: {what}: {found.outputs}")
    assert passed == []
    assert count >= 60


def test_the_command_shows_what_is_known(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    before, after = map(str, pairs["convolutions"])
    done = invoke("certify", before, after)
    assert done.exit_code == 0
    assert "bounded" in done.output
    assert "roundings apart" in done.output
    found = json.loads(invoke("certify", before, after, "--json").stdout)
    assert found["ok"]
    _, wrong = next(iter(faults(onnx.load(after))))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    done = invoke("certify", before, str(tmp_path / "wrong.onnx"))
    assert done.exit_code == 1
    assert "refuted" in done.output


def test_other_files_cannot_be_compared(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    model = onnx.load(pairs["written"][0])
    model.graph.output.append(model.graph.output[0])
    with pytest.raises(UserError) as raised:
        fx2onnx.certify(pairs["written"][0], "nothing.onnx")
    assert raised.value.code == "E302"
    fx2onnx.export(nn.Linear(2, 2), (torch.ones(2, 2),), tmp_path / "other.onnx", input_names=["other"])
    with pytest.raises(UserError, match="different inputs or outputs"):
        fx2onnx.certify(pairs["written"][0], tmp_path / "other.onnx")


def _scaled(
    kind: int, sizes: list[Any], nodes: list[onnx.NodeProto], *given: str, weight: float = 2
) -> onnx.ModelProto:
    value = onnx.helper.make_tensor_value_info
    inputs = [value("x", kind, sizes), *(value(name, onnx.TensorProto.FLOAT, [3]) for name in given)]
    tensors = [
        numpy_helper.from_array(np.full(3, number, np.float32), name) for name, number in (("w", weight), ("v", 3))
    ]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


TWICE = [onnx.helper.make_node("Mul", ["w", "v"], ["k"]), onnx.helper.make_node("Mul", ["x", "k"], ["y"])]
ONCE = [onnx.helper.make_node("Mul", ["x", "w"], ["y"])]
FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


@pytest.mark.parametrize(("kind", "sizes"), [(DOUBLE, [2, 3]), (FLOAT, [3, 3]), (FLOAT, [3]), (DOUBLE, ["n", 3])])
def test_inputs_of_other_types_or_sizes_are_no_pair(kind: int, sizes: list[Any]) -> None:
    nodes = [onnx.helper.make_node("Tanh", ["x"], ["y"])]
    with pytest.raises(UserError, match="different inputs or outputs"):
        fx2onnx.certify(_scaled(FLOAT, [2, 3], nodes), _scaled(kind, sizes, nodes))
    assert fx2onnx.certify(_scaled(FLOAT, [2, 3], nodes), _scaled(FLOAT, ["n", 3], nodes)).ok


def test_a_weight_that_is_an_input_too_is_no_constant() -> None:
    before, after = _scaled(FLOAT, ["n", 3], TWICE, "w"), _scaled(FLOAT, ["n", 3], ONCE, "w", weight=5)
    assert fx2onnx.certify(before, after).outputs["y"] == "refuted"  # its default is another
    folded = copy.deepcopy(before)
    del folded.graph.node[0]
    folded.graph.initializer.append(numpy_helper.from_array(np.full(3, 6, np.float32), "k"))
    assert fx2onnx.certify(before, folded).outputs["y"] == "sampled"
    del folded.graph.input[1]
    found = fx2onnx.certify(before, folded)
    assert (found.outputs["y"], found.fixed) == ("proved", ["w"])


@pytest.mark.parametrize("op", ["Floor", "Greater", "ArgMax", "Relu", "If"])
def test_a_rounding_that_may_become_a_step_is_named(op: str) -> None:
    made = onnx.helper.make_node
    steps = {
        "Greater": made("Greater", ["s", "x"], ["y"], name="here"),
        "If": made("If", ["c"], ["y"], name="here", then_branch=onnx.helper.make_graph(
            [made("Sign", ["s"], ["t"])], "t", [], [onnx.ValueInfoProto(name="t")]), else_branch=onnx.helper.make_graph(
            [made("Neg", ["s"], ["e"])], "e", [], [onnx.ValueInfoProto(name="e")])),
    }  # fmt: skip
    last = [made("Not", ["b"], ["c"]), steps.get(op) or made(op, ["s"], ["y"], name="here")]
    nodes = [
        made("Mul", ["x", "w"], ["s"]),
        made("Greater", ["x", "one"], ["g"]),
        made("ReduceMax", ["g"], ["b"], keepdims=0),
    ]
    files = [
        _scaled(FLOAT, [3], [*nodes, *last], weight=float(each))
        for each in (2, np.nextafter(np.float32(2), np.float32(3)))
    ]
    for each in files:
        each.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    found = fx2onnx.certify(*files)
    assert found.outputs == {"y": "bounded"}
    assert found.steps == ({} if op == "Relu" else {"y": f"here ({op})"})


def test_nothing_comes_from_the_optimizer() -> None:
    folder = Path(fx2onnx.__file__).parent / "proof"
    texts = [
        (folder / f"{name}.py").read_text()
        for name in ("terms", "real", "exact", "products", "moves", "sizes", "shapes", "rules", "certify")
    ]
    assert not any("fx2onnx.optimize" in text or "fx2onnx.irx.shapes" in text for text in texts)
