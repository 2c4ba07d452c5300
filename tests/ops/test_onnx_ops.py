"""``torch.onnx.ops``: operators of ONNX that forward calls by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx import runner


class Named(torch.nn.Module):
    """``torch.onnx.ops.symbolic`` with its arguments."""

    def __init__(self, name: str, attrs: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__()
        self.name, self.attrs, self.more = name, attrs or {}, more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.onnx.ops.symbolic(self.name, (x,), self.attrs, dtype=x.dtype, shape=x.shape, **self.more)


def ran(result: fx2onnx.ExportResult, *feeds: torch.Tensor) -> list[Any]:
    session = runner.InferenceSession(result.model_proto.SerializeToString())
    return session.run(None, dict(zip(result.report.input_names, (each.numpy() for each in feeds), strict=True)))


@pytest.mark.parametrize("more", [{}, {"version": 18}, {"version": 20}])
def test_symbolic_is_the_operator_at_every_size(more: dict[str, Any]) -> None:
    x = torch.randn(3, 4)
    result = fx2onnx.export(Named("LeakyRelu", {"alpha": 0.5}, **more), (x,), dynamic_shapes={"x": {0: "rows"}})
    assert [node.op_type for node in result.model.graph] == ["LeakyRelu"]
    for rows in (3, 1, 6):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(torch.from_numpy(ran(result, x)[0]), torch.nn.functional.leaky_relu(x, 0.5))


def test_symbolic_of_another_domain_with_every_kind_of_attribute() -> None:
    attrs = {"a": 1, "b": "s", "c": [1, 2], "d": 1.5, "e": [0.5, 2.0], "f": ["p", "q"], "g": True}
    module = Named("mine::Blend", attrs, version=3, metadata_props={"key": "value"})
    result = fx2onnx.export(module, (torch.randn(2),))
    node = result.model.graph.node(0)
    assert (node.domain, node.op_type, result.model.opset_imports["mine"]) == ("mine", "Blend", 3)
    assert {name: node.attributes[name].value for name in attrs} == attrs | {
        "c": (1, 2),
        "e": (0.5, 2.0),
        "f": ("p", "q"),
    }
    assert node.metadata_props["key"] == "value"


def test_symbolic_with_several_outputs_and_an_input_left_out() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            shapes = [(x.shape[0] // 2, *x.shape[1:])] * 2
            first, last = torch.onnx.ops.symbolic_multi_out(
                "Split", (x, None), {"num_outputs": 2}, dtypes=[x.dtype] * 2, shapes=shapes
            )
            return first + 1, last

    x = torch.arange(8.0).reshape(4, 2)
    result = fx2onnx.export(Halves(), (x,))
    assert [node.op_type for node in result.model.graph] == ["Split", "Add"]
    first, last = ran(result, x)
    assert (first == x[:2].numpy() + 1).all()
    assert (last == x[2:].numpy()).all()


@pytest.mark.parametrize(
    ("module", "options", "code"),
    [
        (Named("LeakyRelu", version=6), {}, "E202"),
        (Named("NoSuchOperator"), {}, "E001"),
        (Named("LeakyRelu", {"beta": 1.0}), {}, "E001"),
        (Named("Gelu"), {"opset_version": 19}, "E202"),
        (torch.nn.Sequential(Named("mine::A", version=1), Named("mine::B", version=2)), {}, "E203"),
    ],
)
def test_what_the_file_cannot_have_is_refused(module: torch.nn.Module, options: dict[str, Any], code: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=code) as caught:
        fx2onnx.export(module, (torch.randn(2),), **options)
    assert caught.value.next


def test_verification_says_that_there_is_nothing_to_compare() -> None:
    with pytest.raises(fx2onnx.VerificationError, match="E502") as caught:
        fx2onnx.export(Named("Relu"), (torch.randn(2),), verify=True)
    assert "gives zeros in eager PyTorch" in str(caught.value)
    assert "memory" not in str(caught.value)


class Attends(torch.nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.onnx.ops.attention(q, k, k, **self.more)[0]


class Rotates(torch.nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.onnx.ops.rotary_embedding(x, cos, sin, at, **self.more)


HEADS = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4)
ANGLES = torch.linspace(0, 1, 20).reshape(10, 2)
PLACES = torch.arange(5).expand(2, 5)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (Attends(), HEADS),
        (Attends(is_causal=True, scale=0.3), HEADS),
        (Attends(q_num_heads=2, kv_num_heads=2), (torch.randn(2, 5, 8), torch.randn(2, 6, 8))),
        (Rotates(), (HEADS[0], ANGLES.cos(), ANGLES.sin(), PLACES)),
        (Rotates(interleaved=True), (HEADS[0], ANGLES.cos(), ANGLES.sin(), PLACES)),
        (Rotates(num_heads=3), (torch.randn(2, 5, 12), ANGLES.cos(), ANGLES.sin(), PLACES)),
    ],
)
def test_attention_and_rotary_embedding_are_those_of_onnx(module: torch.nn.Module, args: Any) -> None:
    result = fx2onnx.export(module, args, opset_version=23)
    assert {node.op_type for node in result.model.graph} <= {"Attention", "RotaryEmbedding"}
    torch.testing.assert_close(torch.from_numpy(ran(result, *args)[0]), module(*args), rtol=1e-5, atol=1e-5)
    with pytest.raises(fx2onnx.UserError, match="E202"):
        fx2onnx.export(module, args)
