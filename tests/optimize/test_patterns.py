"""Decomposed formulas -> one operator; identities; what is exact stays exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrites.fuse_norm import FuseLayerNorm, FuseLayerNormBias, FuseRMSNorm
from fx2onnx.optimize.rewrites.gelu import FuseGelu
from fx2onnx.optimize.rewrites.neutral import CancelInvolution, DivideByRoot, DropNeutralOperand, RemoveNoop
from fx2onnx.sizes.expr import Dim
from tests.optimize.support import model, random, refused, rewritten, weight
from tests.support import check

V = dict[str, ir.Value]
BATCH = Dim.symbol("batch")
ROOT = math.sqrt(2 / math.pi)

GELUS: dict[str, Callable[[Emit, ir.Value], ir.Value]] = {
    "erf of a quotient": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Div(x, math.sqrt(2))), 1.0)),
    "erf of a product": lambda op, x: op.Mul(op.Mul(op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0), x), 0.5),
    "half last": lambda op, x: op.Div(op.Mul(x, op.Add(op.const(1.0), op.Erf(op.Mul(x, math.sqrt(0.5))))), 2.0),
    "tanh, cube": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), 0.044715)), ROOT)), 1.0)),
    "tanh, products": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), ROOT)), 1.0)),
    "tanh, x taken out": lambda op, x: op.Mul(
        op.Mul(x, 0.5),
        op.Add(op.Tanh(op.Mul(op.Mul(x, ROOT), op.Add(op.Mul(op.Mul(x, x), 0.044715), 1.0))), 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", GELUS)
def test_gelu(form: str) -> None:
    after = rewritten(model(lambda op, v: GELUS[form](op, v["x"]), {"x": (4, 33)}), FuseGelu(), to=["Gelu"], rtol=2e-6)
    assert ("tanh" if "tanh" in form else "none") == after.graph.node(0).attributes["approximate"].as_string()


def test_gelu_refuses() -> None:
    def quick(op: Emit, v: V) -> ir.Value:
        return op.Mul(op.Mul(v["x"], 0.5), op.Add(op.Erf(op.Mul(v["x"], 0.7)), 1.0))  # type: ignore[no-any-return]

    def of_two(op: Emit, v: V) -> ir.Value:
        return op.Mul(op.Mul(v["x"], 0.5), op.Add(op.Erf(op.Mul(v["y"], math.sqrt(0.5))), 1.0))  # type: ignore[no-any-return]

    for make in (quick, of_two):
        refused(model(make, {"x": (4,), "y": (4,)}), FuseGelu(), "no factor is 1 + erf")


def test_gelu_is_left_alone_where_the_opset_has_none() -> None:
    from fx2onnx.optimize.driver import apply

    graph = model(lambda op, v: GELUS["half last"](op, v["x"]), {"x": (4,)}, opset=19)
    assert apply(graph, FuseGelu()).total == 0


def layer_norm(op: Emit, x: ir.Value, dims: int, *, axes: list[int], with_power: bool = False) -> ir.Value:
    centred = op.Sub(x, op.ReduceMean(x, axes=axes))
    square = op.Pow(centred, 2.0) if with_power else op.Mul(centred, centred)
    root = op.Sqrt(op.Add(op.ReduceMean(square, axes=axes), 1e-5))
    scaled = op.Mul(op.Div(centred, root), weight(op, "w", random(dims, seed=1)))
    return op.Add(scaled, weight(op, "b", random(dims, seed=2)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("with_power", [False, True])
def test_layer_norm(with_power: bool) -> None:
    graph = model(lambda op, v: layer_norm(op, v["x"], 16, axes=[2], with_power=with_power), {"x": (BATCH, 3, 16)})
    rewritten(graph, FuseLayerNorm(), FuseLayerNormBias(), to=["LayerNormalization"], rtol=2e-6, sizes={"batch": 2})


def test_layer_norm_over_other_axes_is_refused() -> None:
    graph = model(lambda op, v: layer_norm(op, v["x"], 16, axes=[1]), {"x": (2, 3, 16)})
    refused(graph, FuseLayerNorm(), "does not have the dims")


def rms_norm(op: Emit, x: ir.Value) -> ir.Value:
    root = op.Sqrt(op.Add(op.ReduceMean(op.Mul(x, x), axes=[-1]), 1e-6))
    return op.Mul(weight(op, "w", random(16)), op.Mul(x, op.Reciprocal(root)))  # type: ignore[no-any-return]


def test_rms_norm() -> None:
    graph = model(lambda op, v: rms_norm(op, v["x"]), {"x": (2, 3, 16)}, opset=23)
    rewritten(graph, FuseRMSNorm(), to=["RMSNormalization"], rtol=2e-6)


def test_rms_norm_divides_below_opset_23() -> None:
    graph = model(lambda op, v: rms_norm(op, v["x"]), {"x": (2, 3, 16)})
    rewritten(graph, FuseRMSNorm(), DivideByRoot(), to=["Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul"], rtol=2e-6)


IDENTITIES: dict[str, tuple[Callable[[Emit, ir.Value], ir.Value], ir.DataType]] = {
    "x * 1": (lambda op, x: op.Mul(x, 1.0), ir.DataType.FLOAT),
    "1 * x": (lambda op, x: op.Mul(op.const(1.0), x), ir.DataType.FLOAT),
    "x / 1": (lambda op, x: op.Div(x, 1.0), ir.DataType.FLOAT),
    "x ** 1": (lambda op, x: op.Pow(x, 1.0), ir.DataType.FLOAT),
    "x - 0": (lambda op, x: op.Sub(x, 0.0), ir.DataType.FLOAT),
    "x + -0": (lambda op, x: op.Add(x, -0.0), ir.DataType.FLOAT),
    "integer x + 0": (lambda op, x: op.Add(x, 0), ir.DataType.INT64),
    "integer x * 1": (lambda op, x: op.Mul(x, 1), ir.DataType.INT32),
    "x and True": (lambda op, x: op.And(x, True), ir.DataType.BOOL),
    "False or x": (lambda op, x: op.Or(op.const(False), x), ir.DataType.BOOL),
    "x xor False": (lambda op, x: op.Xor(x, False), ir.DataType.BOOL),
    "splat of ones": (lambda op, x: op.Mul(x, np.ones((1, 4), np.float32)), ir.DataType.FLOAT),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name: str) -> None:
    make, dtype = IDENTITIES[name]
    copy = "Not" if dtype == ir.DataType.BOOL else "Abs"
    graph = model(lambda op, v: op.node(copy, make(op, v["x"])), {"x": (3, 4)}, dtypes={"x": dtype})
    rewritten(graph, DropNeutralOperand(), to=[copy])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda op, v: op.Add(v["x"], 0.0), "sign of zeros"),
        (lambda op, v: op.Sub(v["x"], -0.0), "sign of zeros"),
        (lambda op, v: op.Mul(v["x"], 2.0), "no operand is the neutral number"),
        (lambda op, v: op.Mul(v["x"], np.ones((2, 1, 4), np.float32)), "widens"),
        (lambda op, v: op.Div(op.const(1.0), v["x"]), "no operand"),
        (lambda op, v: op.Mul(v["x"], 1.0), "graph output"),
    ],
)
def test_what_is_no_identity(make: Callable[[Emit, V], ir.Value], why: str) -> None:
    refused(model(make, {"x": (3, 4)}), DropNeutralOperand(), why)


def test_negating_twice() -> None:
    graph = model(lambda op, v: op.Relu(op.Neg(op.Neg(v["x"]))), {"x": (3,)})
    rewritten(graph, CancelInvolution(), to=["Relu"])


def test_a_shared_reciprocal_stays() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        inverse = op.Reciprocal(v["y"])
        return [op.Mul(v["x"], inverse), op.Relu(inverse)]

    refused(model(make, {"x": (3,), "y": (3,)}), DivideByRoot(), "read elsewhere")


NOOPS: dict[str, Callable[[Emit, ir.Value], ir.Value]] = {
    "Identity": lambda op, x: op.Identity(x),
    "Cast": lambda op, x: op.Cast(x, to=ir.DataType.FLOAT),
    "Reshape": lambda op, x: op.Reshape(x, [0, -1]),
    "Expand": lambda op, x: op.Expand(x, [1, 4]),
    "Tile": lambda op, x: op.Tile(x, [1, 1]),
    "Slice": lambda op, x: op.Slice(x, [0], [2**63 - 1], [1]),
    "Transpose": lambda op, x: op.Transpose(x, perm=[0, 1]),
    "Concat": lambda op, x: op.Concat(x, axis=0),
    "Sum": lambda op, x: op.Sum(x),
    "Pad": lambda op, x: op.Pad(x, [0, 0, 0, 0]),
    "Flatten": lambda op, x: op.Flatten(x),
    "Dropout": lambda op, x: op.Dropout(x, 0.5),
}


@pytest.mark.parametrize("name", NOOPS)
def test_noops(name: str) -> None:
    graph = model(lambda op, v: op.Relu(NOOPS[name](op, op.Relu(v["x"]))), {"x": (3, 4)})
    rewritten(graph, RemoveNoop(), to=["Relu", "Relu"])


def test_a_noop_before_an_output_keeps_the_output_name() -> None:
    graph = model(lambda op, v: op.Identity(op.Relu(v["x"])), {"x": (3, 4)})
    after = rewritten(graph, RemoveNoop(), to=["Relu"])
    assert [value.name for value in after.graph.outputs] == ["out0"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda op, v: op.Relu(op.Slice(v["x"], [-1], [-9], [1], [-1])), "steps"),
        (lambda op, v: op.Relu(op.Pad(v["x"], [1, 0, -1, 0])), "pads"),
        (lambda op, v: op.Relu(op.Dropout(v["x"], 0.5, op.const(np.bool_(True)))), "training"),
        (lambda op, v: op.Relu(op.Transpose(v["x"], perm=[1, 0])), "change places"),
        (lambda op, v: op.Relu(op.Cast(op.Cast(v["x"], to=ir.DataType.FLOAT16), to=ir.DataType.FLOAT)), "dtype"),
        (lambda op, v: op.Identity(v["x"]), "graph output"),
    ],
)
def test_what_is_no_noop(make: Callable[[Emit, V], ir.Value], why: str) -> None:
    refused(model(make, {"x": (4, 4)}), RemoveNoop(), why)


class FakeQuantised(torch.nn.Module):
    """What quantisation-aware training computes, with the scale as a reciprocal."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.1, 0.3, 0.7, 1 / 3]))
        self.zero_point = torch.nn.Parameter(torch.tensor([0.0, 1.0, -2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.round(x * self.scale.reciprocal() + self.zero_point)
        return (steps.clamp(-128, 127) - self.zero_point) * self.scale


def test_no_step_of_a_quantised_module_is_off() -> None:
    """At ties, where the last bit decides."""
    module = FakeQuantised()
    halves = torch.arange(320)[:, None] / 2 - 80
    check(module, (halves * module.scale.detach(),), others=[(torch.randn(320, 4),)], rtol=1e-6)
