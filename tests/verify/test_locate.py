"""The first wrong node: mutated files, faults planted in each stage, engines that disagree."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import fx2onnx
from fx2onnx import FirstWrong, locate
from fx2onnx.capture.recording import aliasing
from fx2onnx.optimize import pipelines
from fx2onnx.optimize.rewrites.linear_layers import FuseMatMulAdd
from fx2onnx.semantics import registry
from fx2onnx.sources import resolve
from fx2onnx.verify.locating.program import OnnxFile
from tests.verify.mutating import KINDS, Mutant, mutants

aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores = torch.softmax(x @ x.transpose(-1, -2), -1)
        return self.head((scores @ x).mean(1))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    made = Net().eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


def exported(module: nn.Module, path: Path, *args: torch.Tensor, **options: Any) -> onnx.ModelProto:
    fx2onnx.export(module, args or (X,), path, external_data=False, **options)
    return onnx.load(path)


def node_of(proto: onnx.ModelProto, op_type: str, index: int = 0) -> onnx.NodeProto:
    return [node for node in proto.graph.node if node.op_type == op_type][index]


def located(proto: onnx.ModelProto, path: Path, module: nn.Module, *args: torch.Tensor, **options: Any) -> FirstWrong:
    onnx.save(proto, path)
    found = locate(path, module, args or (X,), **options)
    assert found is not None
    return found


def edit(proto: onnx.ModelProto, name: str, change: Any) -> None:
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(numpy_helper.to_array(tensor).copy()), np.float32), name))


@pytest.mark.long
def test_nothing_is_found_in_a_right_file(net: Net, tmp_path: Path) -> None:
    result = fx2onnx.export(net, (X,), tmp_path / "net.onnx", dynamic_shapes={"x": {0: "batch", 1: "sequence"}})
    assert locate(result, net, (X,)) is None
    assert locate(tmp_path / "net.onnx", net, (X,)) is None
    assert locate(fx2onnx.export(net, (X,)), net, (X,)) is None, "not written"


def test_a_changed_attribute_is_found_with_its_line(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx", dynamic_shapes={"x": {0: "batch", 1: "sequence"}})
    node = node_of(proto, "LayerNormalization", 1)
    next(each for each in node.attribute if each.name == "epsilon").f = 0.5
    found = located(proto, tmp_path / "wrong.onnx", net)
    assert (found.stage, found.nodes[0], found.op_types[0]) == ("file", node.name, "LayerNormalization")
    assert found.module_path == "blocks.1.norm"
    assert found.where is not None
    assert found.where.file == __file__
    assert found.aten == ("aten.layer_norm.default (%layer_norm_default_1)",)
    assert found.shape == (2, 5, 8)
    assert found.dtype == "float32"
    assert sum(found.difference.counts) == found.difference.differing
    assert found.blame == "the file"
    assert "a new export" in found.why
    assert "custom_translations=, pass the ExportResult" in found.why
    text = found.describe()
    for part in (node.name, "test_locate.py", "layer_norm", "1e-0", "numbers differ", "blame"):
        assert part in text
    assert found.as_dict()["difference"]["differing"] == found.difference.differing


@pytest.mark.long
def test_weights_that_the_module_did_not_have_are_named(net: Net, tmp_path: Path) -> None:
    """Under the name of the module's; a weight of the file that is none of the module's is a change of the file."""
    proto = exported(net, tmp_path / "net.onnx")
    with torch.no_grad():
        net.blocks[1].up.weight.mul_(1.5)
    found = locate(tmp_path / "net.onnx", net, (X,))
    assert found is not None
    assert found.stage == "weights"
    assert found.blame == "blocks.1.up.weight.T"
    assert "were changed since" in found.why
    assert "export the module again" in found.describe()
    node = next(node for node in proto.graph.node if "blocks.1.up.weight.T" in node.input)
    assert found.nodes[0] == node.name
    proto.graph.initializer.append(numpy_helper.from_array(np.full((8, 16), 3.0, np.float32), "other"))
    node.input[1] = "other"
    assert located(proto, tmp_path / "wrong.onnx", net).stage == "file"


def test_a_node_that_only_hands_on_an_error_is_not_named(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx")
    weight = node_of(proto, "MatMul").input[1]
    edit(proto, weight, lambda array: array + np.eye(*array.shape) * 1e-3)
    found = located(proto, tmp_path / "wrong.onnx", net)
    assert found.nodes[0] == node_of(proto, "MatMul").name
    assert found.module_path == "blocks.0.up"


def test_what_is_wrong_and_reaches_no_output_is_not_named(net: Net, tmp_path: Path) -> None:
    """A wrong branch that is multiplied by 0 comes first in the file."""
    proto = exported(net, tmp_path / "net.onnx")
    late = node_of(proto, "Softmax")
    next(each for each in late.attribute if each.name == "axis").i = 1
    assert located(proto, tmp_path / "wrong.onnx", net).nodes[0] == late.name


def test_values_that_do_not_fit_in_memory_are_compared_too(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx")
    node = node_of(proto, "Gelu", 2)
    node.op_type = "Relu"
    found = located(proto, tmp_path / "wrong.onnx", net, memory_bytes=0)
    assert found.nodes[0] == node.name
    assert found == located(proto, tmp_path / "wrong.onnx", net)


def test_a_file_that_an_engine_cannot_run_names_the_node(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx")
    node = node_of(proto, "MatMul", 2)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    with pytest.raises(fx2onnx.UserError, match="E303") as caught:
        located(proto, tmp_path / "wrong.onnx", net)
    assert caught.value.node is not None
    assert node.name in caught.value.render()


def test_the_module_that_a_file_is_not_of_is_refused(net: Net, tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    exported(Two(), tmp_path / "two.onnx", X, X)
    with pytest.raises(fx2onnx.UserError, match="2 inputs"):
        locate(tmp_path / "two.onnx", net, (X,))
    (tmp_path / "none.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(fx2onnx.UserError) as caught:
        locate(tmp_path / "none.onnx", net, (X,))
    assert caught.value.code == "E303"
    with pytest.raises(fx2onnx.UserError, match="engine"):
        locate(tmp_path / "two.onnx", Two(), (X, X), engines=["nonesuch"])


def test_a_branch_is_looked_into(tmp_path: Path) -> None:
    class Chooses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y * 2.0, lambda y: y - 1.0, (x,)) + 1.0

    proto = exported(Chooses(), tmp_path / "net.onnx", torch.ones(3))
    branch = next(each.g for each in node_of(proto, "If").attribute if each.name == "then_branch")
    next(node for node in branch.node if node.op_type == "Mul").op_type = "Add"
    found = located(proto, tmp_path / "wrong.onnx", Chooses(), torch.ones(3))
    assert found.op_types[0] == "If"
    assert locate(tmp_path / "net.onnx", Chooses(), (torch.ones(3),)) is None


@pytest.mark.long
def test_a_loop_is_run(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.while_loop(lambda y: y.sum() < 50, lambda y: (y * 2,), (x,))[0] + 1

    exported(Counts(), tmp_path / "net.onnx", torch.ones(3))
    assert locate(tmp_path / "net.onnx", Counts(), (torch.ones(3),)) is None


@pytest.mark.long
def test_draws_of_the_file_are_no_fault(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x + torch.rand_like(x)) * 2

    proto = exported(Noisy(), tmp_path / "net.onnx")
    assert locate(tmp_path / "net.onnx", Noisy(), (X,)) is None
    node_of(proto, "Tanh").op_type = "Sigmoid"
    assert located(proto, tmp_path / "wrong.onnx", Noisy()).op_types[0] == "Sigmoid"


def test_state_that_a_file_takes_is_fed(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            return x * self.seen

    module, x = Counter(), torch.randn(2, 5)
    result = fx2onnx.export(module, (x,), tmp_path / "net.onnx", state="io")
    assert locate(tmp_path / "net.onnx", module, (x,)) is None
    assert locate(result, module, (x,)) is None
    assert torch.equal(module.seen, torch.ones(5)), "buffers are as before"


@pytest.mark.long
def test_nodes_of_another_exporter_are_found_by_their_values(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx", optimize=False)
    proto.producer_name = "another"
    renamed = {name: f"value{index}" for index, name in enumerate(n for node in proto.graph.node for n in node.output)}
    renamed[proto.graph.output[0].name] = proto.graph.output[0].name
    for index, node in enumerate(proto.graph.node):
        node.name = f"node{index}"
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed[name] for name in node.output]
    onnx.save(proto, tmp_path / "foreign.onnx")
    assert locate(tmp_path / "foreign.onnx", net, (X,)) is None
    node = node_of(proto, "Gelu", 1)
    node.op_type = "Relu"
    found = located(proto, tmp_path / "wrong.onnx", net)
    assert found.nodes[0] == node.name
    assert found.module_path == "blocks.1"
    assert found.aten == ("aten.gelu.default (%gelu_default_1)",)
    assert found.blame.startswith("another")


def test_a_wrong_translation_is_blamed(net: Net) -> None:
    def wrong_gelu(op: Any, self: Any, approximate: str = "none") -> Any:
        return op.Mul(op.Relu(self), op.const(1.5, op.dtype(self)))

    result = fx2onnx.export(net, (X,), custom_translations={aten.gelu.default: wrong_gelu})
    found = locate(result, net, (X,))
    assert found is not None
    assert found.stage == "translation"
    assert found.module_path == "blocks.0"
    assert f"{Path(__file__).name}:{wrong_gelu.__code__.co_firstlineno}" in found.blame
    assert sorted(found.op_types) == ["Mul", "Relu"]


def test_a_wrong_rewrite_is_blamed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))
            self.bias = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.sin(x) @ self.weight + self.bias)

    def build(self: Any, op: Any, m: Any) -> Any:
        return op.Gemm(*m.product.inputs, m.bias, beta=2.0)

    monkeypatch.setattr(FuseMatMulAdd, "build", build)
    module = Flat()
    result = fx2onnx.export(module, (X[0],))
    found = locate(result, module, (X[0],))
    assert found is not None
    assert (found.stage, found.op_types) == ("rewrite", ("Gemm",))
    assert found.blame.startswith("FuseMatMulAdd at ")
    assert "optimize/rewrites/linear_layers.py" in found.blame
    assert "edit 1 is FuseMatMulAdd" in found.why


def test_a_wrong_pass_is_blamed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(model: Any) -> int:
        node = next(node for node in model.graph if node.op_type == "Softmax")
        node.attributes["axis"] = ir.AttrInt64("axis", 1)
        return 1

    monkeypatch.setitem(pipelines.LEVELS, 2, (*pipelines.LEVELS[2], pipelines.Pass("spoil", spoiled)))
    found = locate(fx2onnx.export(net, (X,)), net, (X,))
    assert found is not None
    assert (found.stage, found.op_types) == ("rewrite", ("Softmax",))
    assert found.blame.startswith("spoil at ")


def test_a_wrong_kernel_is_blamed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = registry._table["", "Softmax"]
    kernel = versions[max(versions)]

    def wrong(out: Any, x: Any, **attributes: Any) -> None:
        kernel.fn(out, x, **attributes)
        out[0][...] *= 2

    monkeypatch.setitem(versions, max(versions), dataclasses.replace(kernel, fn=wrong, prepare=None))
    registry._count_change()
    found = locate(fx2onnx.export(net, (X,)), net, (X,))
    assert found is not None
    assert (found.stage, found.op_types) == ("engine", ("Softmax",))
    assert found.engines["onnxruntime"] == "agrees with PyTorch"
    assert "numbers differ" in found.engines["runner"]
    assert "Softmax at " in found.blame
    assert "onnxruntime" in found.why
    assert "agrees" in found.why
    registry._count_change()


def test_a_wrong_view_in_capture_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x) + 1
            y.unbind(1)[2].mul_(3)
            return torch.sin(y)

    part = aliasing._part

    def wrong(step: Any) -> Any:
        view, scatter, (axis, _) = part(step)
        return view, scatter, (axis, 1)

    monkeypatch.setattr(aliasing, "_part", wrong)
    module = Writes()
    found = locate(fx2onnx.export(module, (X,)), module, (X,))
    assert found is not None
    assert found.stage == "capture"
    assert found.aten[0].startswith("aten.select_scatter.default")
    assert "capture/recording/aliasing.py" in found.blame
    assert found.where is not None
    assert "mul_" in "\n".join(found.where.excerpt())


def test_what_adds_up_over_many_right_nodes_is_rounding(tmp_path: Path) -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ParameterList(torch.full((4,), 1.0 + i / 64) for i in range(40))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for step in self.steps:
                x = x * step + 0.1
            return x

    x = torch.linspace(0.1, 0.2, 4).reshape(1, 4)
    proto = exported(Chain(), tmp_path / "net.onnx", x)
    for each in list(proto.graph.initializer):
        if each.name.startswith("steps."):
            edit(proto, each.name, lambda array: array * np.float32(1 + 3e-6))
    found = located(proto, tmp_path / "wrong.onnx", Chain(), x)
    assert found.stage == "rounding"
    assert found.value in {name for node in proto.graph.node for name in node.output}


@pytest.mark.long
def test_the_error_of_a_verification_carries_the_node(net: Net) -> None:
    def wrong_gelu(op: Any, self: Any, approximate: str = "none") -> Any:
        return op.Relu(self)

    with pytest.raises(fx2onnx.VerificationError, match="first_wrong") as caught:
        fx2onnx.export(net, (X,), custom_translations={aten.gelu.default: wrong_gelu}, verify=True)
    assert caught.value.first_wrong.op_types == ("Relu",)
    assert fx2onnx.VerificationError("E501", "alone").first_wrong is None


def test_a_search_that_fails_hides_no_error() -> None:
    error = fx2onnx.VerificationError("E501", "wrong")
    error.locate = lambda: 1 / 0
    assert error.first_wrong is None


def test_a_case_runs_alone(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx")
    node_of(proto, "Gelu", 1).op_type = "Relu"
    found = located(proto, tmp_path / "wrong.onnx", net)
    found.write_case(tmp_path / "case")
    model, data = tmp_path / "case" / "model.onnx", tmp_path / "case" / "test_data_set_0"
    onnx.checker.check_model(onnx.load(model), full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = [numpy_helper.to_array(onnx.load_tensor(path)) for path in sorted(data.glob("input_*.pb"))]
    (got,) = session.run(None, dict(zip([each.name for each in session.get_inputs()], feeds, strict=True)))
    want = numpy_helper.to_array(onnx.load_tensor(data / "output_0.pb"))
    assert [node.op_type for node in onnx.load(model).graph.node] == ["Relu"]
    assert np.abs(got - want).max() > 0.01
    assert np.allclose(torch.nn.functional.gelu(torch.tensor(feeds[0])).numpy(), want, atol=1e-6)


def values_of(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Every value of the file."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    given = {value.name for value in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for node in whole.graph.node
        for name in node.output
        if name and name not in given
    )
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


def is_harmful(mutant: Mutant, feeds: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether onnxruntime runs the mutant to other outputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        content = mutant.proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        results = session.run(None, feeds)
    except Exception:  # onnxruntime has classes of its own
        return False
    pairs = [(got, right[each.name]) for each, got in zip(session.get_outputs(), results, strict=True)]
    return any(
        got.shape != want.shape or not np.allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max(), equal_nan=True)
        for got, want in pairs
    )


def shares_found(
    module: nn.Module, args: Any, kwargs: Any, proto: onnx.ModelProto, feeds: Any, count: int, path: Path
) -> tuple[int, list[str]]:
    """The number of harmful mutants, and those of which another node than the mutated or its reader is named first."""
    right = values_of(proto, feeds)
    missed, total = [], 0
    for mutant in mutants(proto, {name: value.shape for name, value in right.items()}, count):
        if is_harmful(mutant, feeds, right):
            onnx.save(mutant.proto, path)
            found, total = locate(path, module, args, kwargs), total + 1
            is_hit = found is not None and found.nodes[:1] and found.nodes[0] in mutant.guilty
            if not is_hit or found.stage not in ("file", "rewrite", "weights"):
                missed.append(f"{mutant.kind}: {mutant.what}: {None if found is None else (found.stage, found.nodes)}")
    return total, missed


@pytest.mark.long
def test_mutated_nodes_are_named(net: Net, tmp_path: Path) -> None:
    proto = exported(net, tmp_path / "net.onnx")
    total, missed = shares_found(net, (X,), {}, proto, {"x": X.numpy()}, 1, tmp_path / "mutant.onnx")
    assert missed == []
    assert total >= len(KINDS) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_cnn", "bert_tiny", "lstm_tagger", "llama_tiny"])
def test_mutated_nodes_of_models_are_named(name: str, tmp_path: Path) -> None:
    source = resolve(f"zoo:{name}")
    options = {"kwargs": source.kwargs, "dynamic_shapes": source.dynamic_shapes, "external_data": False}
    fx2onnx.export(source.module, source.args, tmp_path / "net.onnx", **options)
    proto = onnx.load(tmp_path / "net.onnx")
    names = OnnxFile.of(proto).inputs
    given = [*source.args, *source.kwargs.values()]
    feeds = dict(zip(names, [tensor.numpy() for tensor in given if isinstance(tensor, torch.Tensor)], strict=False))
    total, missed = shares_found(source.module, source.args, source.kwargs, proto, feeds, 4, tmp_path / "mutant.onnx")
    assert total >= 20
    assert len(missed) <= 0.05 * total, missed
