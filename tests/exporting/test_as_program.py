"""An export's result is used as PyTorch's tutorials use ``torch.onnx.ONNXProgram``."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import fx2onnx
import fx2onnx.runner
from fx2onnx.base.errors import UserError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, *, shift: torch.Tensor | None = None) -> Any:
        y = self.second(torch.relu(self.first(x))) * scale
        return {"y": y if shift is None else y + shift, "sum": (y.sum(), x.bfloat16())}


X, SCALE, SHIFT = torch.randn(5, 4), torch.tensor(2.0), torch.randn(3)
SHAPES: Any = {"x": {0: "batch"}, "scale": None, "shift": None}


def flat(outputs: Any) -> list[torch.Tensor]:
    return [outputs["y"], *outputs["sum"]]


def exported(net: nn.Module, **options: Any) -> fx2onnx.ExportResult:
    return fx2onnx.export(net, (X[:2], SCALE), kwargs={"shift": SHIFT}, dynamic_shapes=SHAPES, **options)


def test_a_result_is_called_as_its_module() -> None:
    net = Net().eval()
    program = exported(net)
    for arguments, keywords in (((X, SCALE), {"shift": SHIFT}), ((X,), {"scale": SCALE, "shift": SHIFT})):
        wanted = flat(net(*arguments, **keywords))
        found = program(*arguments, **keywords)
        assert isinstance(found, tuple)
        torch.testing.assert_close(list(found), [each.detach() for each in wanted])
    program.release()
    torch.testing.assert_close(program(X, SCALE, shift=SHIFT)[0], net(X, SCALE, shift=SHIFT)["y"].detach())
    with pytest.raises(UserError, match="the arguments have 2 tensors, the model has 3 inputs") as caught:
        program(X, SCALE)
    assert caught.value.code == "E401"
    assert "x, scale, shift" in caught.value.why


def test_a_result_opens_as_a_session() -> None:
    net = Net().eval()
    program = exported(net)
    feeds = {"x": X.numpy(), "scale": SCALE.numpy(), "shift": SHIFT.numpy()}
    wanted = net(X, SCALE, shift=SHIFT)["y"].detach()
    for initializer in (None, fx2onnx.runner.InferenceSession):
        session = program.initialize_inference_session(initializer)
        assert [each.name for each in session.get_inputs()] == ["x", "scale", "shift"]
        torch.testing.assert_close(torch.from_numpy(session.run(["y"], feeds)[0]), wanted)
        torch.testing.assert_close(program(X, SCALE, shift=SHIFT)[0], wanted)


@pytest.mark.parametrize(
    "verb",
    [
        fx2onnx.lint,
        fx2onnx.inspect,
        lambda it: fx2onnx.diff(it, it),
        lambda it: fx2onnx.optimize(it, verify=False).after.nodes,
        fx2onnx.runner.InferenceSession,
    ],
)
def test_a_result_is_taken_as_a_model(verb: Any) -> None:
    program = exported(Net().eval())
    found, wanted = verb(program), verb(program.model_proto)
    assert type(found) is type(wanted)


def test_state_that_is_an_input_has_its_first_value() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    program = fx2onnx.export(Counting(), (X,), state="io")
    torch.testing.assert_close(program(X)[0], X)


def test_weights_are_replaced() -> None:
    net, other = Net().eval(), Net().eval()
    program = exported(net)
    program.apply_weights(other.state_dict())
    wanted = other(X, SCALE, shift=SHIFT)["y"].detach()
    torch.testing.assert_close(program(X, SCALE, shift=SHIFT)[0], wanted)
    with pytest.raises(UserError, match=r"first\.bias"):
        program.apply_weights({"first.bias": torch.zeros(7)})
    with pytest.warns(fx2onnx.ExportWarning, match="no weight nothing"):
        program.apply_weights({"nothing": torch.zeros(7)})
    with pytest.raises(UserError, match="coarser"):
        exported(net, dtype="float16").apply_weights(other.state_dict())


def test_a_module_without_numbers_gets_them() -> None:
    with torch.device("meta"):
        net = Net().eval()
    program = fx2onnx.export(net, (X.to("meta"), SCALE.to("meta")), kwargs={"shift": SHIFT.to("meta")})
    own = Net().eval()
    program.apply_weights(own.state_dict())
    torch.testing.assert_close(program(X, SCALE, shift=SHIFT)[0], own(X, SCALE, shift=SHIFT)["y"].detach())


def test_sizes_are_renamed() -> None:
    program = exported(Net().eval())
    program.rename_axes({"batch": "n"})
    assert [dim.dim_param for dim in program.model_proto.graph.input[0].type.tensor_type.shape.dim] == ["n", ""]
    assert program.model_proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "n"
    program.rename_axes({program.model.graph.inputs[0].shape[0]: "rows"})  # type: ignore[index]
    assert program.model_proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    with pytest.raises(UserError, match="no size 'nothing'"):
        program.rename_axes({"nothing": "n"})


@pytest.mark.parametrize("keeps", [True, False])
def test_weights_as_inputs_of_the_file(tmp_path: Path, keeps: bool) -> None:
    net = Net().eval()
    program = exported(net)
    program.save(tmp_path / "out.onnx", include_initializers=keeps, keep_initializers_as_inputs=keeps)
    model = onnx.load(tmp_path / "out.onnx")
    weights = {value.name for value in model.graph.input} - {"x", "scale", "shift"}
    assert len(weights) == 4
    assert {tensor.name for tensor in model.graph.initializer} == (weights if keeps else set())
    assert len(program.model_proto.graph.input) == 3


def test_a_result_is_pickled() -> None:
    net = Net().eval()
    program = pickle.loads(pickle.dumps(exported(net)))
    torch.testing.assert_close(program(X, SCALE, shift=SHIFT)[0], net(X, SCALE, shift=SHIFT)["y"].detach())
    assert program.report.input_names == ["x", "scale", "shift"]
    file = io.BytesIO()
    with pytest.warns(DeprecationWarning, match="destination"):
        program.save(path=file)
    with pytest.raises(UserError, match="destination"):
        program.save()
    assert len(file.getvalue()) == program.report.file_bytes


def test_the_program_that_was_exported_is_kept() -> None:
    program = torch.export.export(Net().eval(), (X, SCALE), kwargs={"shift": SHIFT})
    assert fx2onnx.export(program).exported_program is program
    assert exported(Net().eval()).exported_program is None
