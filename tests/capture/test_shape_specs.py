"""Dynamic shapes as torch.export's objects: ``ShapesSpec`` and its parts, ``ShapesCollection``, ``AdditionalInputs``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import AdditionalInputs, Dim, ShapesCollection

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.runner import InferenceSession
from tests.capture.spec_classes import (
    STATIC,
    DictSpec,
    IntVar,
    ObjectSpec,
    ParamsSpec,
    SeqSpec,
    ShapesSpec,
    ShapeVar,
    TensorSpec,
    dynamic_spec,
)
from tests.support import agree, flat

X, Y = torch.randn(4, 3), torch.randn(8, 3)


def sums(*tensors: torch.Tensor) -> torch.Tensor:
    return sum((tensor.sum(0) for tensor in tensors), torch.zeros(3))


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sums(x, y)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.repeat(2, 1) * y


class Any_(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor, state: Any, **more: torch.Tensor) -> torch.Tensor:
        return sums(x, *rest, state["a"], *state["b"], *more.values())


def dims(module: Any, args: Any, shapes: Any, kwargs: Any = None) -> dict[str, str]:
    """The dynamic inputs of a captured module as text."""
    captured = capture(module, args, kwargs, CaptureOptions(dynamic_shapes=shapes))
    rows = {each.name: ",".join(map(str, each.info.dims)) for each in captured.inputs}
    return {name: text for name, text in rows.items() if not text.replace(",", "").isdigit()}


def test_a_variable_is_a_size_with_its_bounds_and_expressions_are_derived() -> None:
    batch = ShapeVar("batch", min=2, max=64)
    shapes = ParamsSpec({"x": TensorSpec([batch, STATIC]), "y": TensorSpec([2 * batch, 3])})
    result = fx2onnx.export(Twice(), (X, Y), dynamic_shapes=shapes, verify=True)
    assert [str(assumed) for assumed in result.report.assumptions] == ["batch >= 2 and batch <= 64"]
    for rows in (2, 5):
        agree(Twice(), result.model_proto, (torch.randn(rows, 3), torch.randn(2 * rows, 3)))
    with pytest.raises(fx2onnx.Fx2OnnxError, match="batch <= 64"):
        InferenceSession(result.model_proto).run(
            None, {"x": flat(torch.randn(65, 3))[0], "y": flat(torch.randn(130, 3))[0]}
        )


def test_assumptions_are_conditions_of_the_file() -> None:
    one, other = ShapeVar("n", max=10), ShapeVar("n")
    shapes = ShapesSpec(
        {"x": TensorSpec([one, None]), "y": TensorSpec([other, None])}, assumptions=[one % 2 == 0, one < other]
    )
    result = fx2onnx.export(Two(), (X, Y), dynamic_shapes=shapes)
    session = InferenceSession(result.model_proto)
    rows = [str(value.shape[0].value) for value in result.model.graph.inputs]
    assert rows[0] == "n"
    assert rows[1] != "n"
    for x, y, broken in ((6, 7, ""), (5, 7, "n % 2"), (6, 6, "n < "), (12, 20, "n <= 10")):
        feeds = {"x": torch.randn(x, 3).numpy(), "y": torch.randn(y, 3).numpy()}
        if not broken:
            torch.testing.assert_close(
                torch.from_numpy(session.run(None, feeds)[0]), Two()(*map(torch.from_numpy, feeds.values()))
            )
            continue
        with pytest.raises(fx2onnx.Fx2OnnxError, match=broken):
            session.run(None, feeds)


def test_variables_without_names_and_members_of_every_kind() -> None:
    free, more = ShapeVar(), ShapeVar("more")
    state = DictSpec({"b": SeqSpec([TensorSpec([more, 3])])})
    shapes = ParamsSpec(
        {"*args": [TensorSpec([free, None])], "**kwargs": {"k": TensorSpec([free + 4, None])}, "state": state}
    )
    kwargs = {"state": {"a": X, "b": [Y, X]}, "k": Y}
    found = dims(Any_(), (X, X, Y), shapes, kwargs)
    assert found == {"rest_0": "rest_0_dim_0,3", "state_b_0": "more,3", "k": "rest_0_dim_0 + 4,3"}
    assert dims(Two(), (X, Y), ShapesSpec()) == {}


@dataclasses.dataclass
class State:
    h: torch.Tensor
    c: torch.Tensor


@pytest.mark.parametrize("state", [State(X, Y), SimpleNamespace(h=X, c=Y)])
def test_attributes_of_objects(state: Any) -> None:
    shapes = ParamsSpec({"state": ObjectSpec({"c": TensorSpec([ShapeVar("rows"), None])})})
    (found,) = dims(lambda state: sums(state.h, state.c), (state,), shapes).values()
    assert found == "rows,3"


def test_what_a_decorator_says_holds_where_the_call_says_nothing() -> None:
    @dynamic_spec({"x": TensorSpec([ShapeVar("rows"), STATIC])})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert dims(doubled, (X,), None) == {"x": "rows,3"}
    assert dims(doubled, (X,), {"x": {1: "columns"}}) == {"x": "4,columns"}


def test_a_number_is_static_where_it_is_the_arguments_own() -> None:
    assert dims(lambda x, n: x * n, (X, 3), ParamsSpec({"n": 3, "x": TensorSpec([ShapeVar("b"), 3])})) == {"x": "b,3"}


SIZE, OTHER = ShapeVar("size"), ShapeVar("other")


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (lambda: ParamsSpec({"z": TensorSpec([SIZE, None])}), "'z', which forward does not get"),
        (lambda: ParamsSpec({"x": TensorSpec([SIZE])}), "x has 1 entries, the example input is [4, 3]"),
        (lambda: ParamsSpec({"x": TensorSpec([SIZE, 5])}), "says 5 for axis 1 of x"),
        (lambda: ParamsSpec({"x": DictSpec({"a": TensorSpec([SIZE])})}), "x is one tensor"),
        (lambda: ParamsSpec({"x": TensorSpec([SIZE, None]), "y": TensorSpec([SIZE, None])}), "size has two sizes"),
        (lambda: ParamsSpec({"x": TensorSpec([ShapeVar("n", max=3), None])}), "n is 4 in the example inputs"),
        (
            lambda: ShapesSpec({"x": TensorSpec([SIZE, None])}, assumptions=[SIZE % 3 == 0]),
            "size is 4 in the example inputs",
        ),
        (lambda: ShapesSpec({"x": TensorSpec([SIZE, None])}, assumptions=[OTHER % 2 == 0]), "none about the sizes"),
        (
            lambda: ShapesSpec(
                {"x": TensorSpec([SIZE, None]), "y": TensorSpec([OTHER, None])}, assumptions=[SIZE > OTHER]
            ),
            "break what is declared",
        ),
        (lambda: ParamsSpec({"x": IntVar("n")}), "x is neither a dict nor a tuple"),
        (lambda: collection(torch.randn(4, 3)), "not among the tensors of the arguments"),
        (lambda: collection(X, {2: "n"}), "x has no axis 2"),
    ],
)
def test_what_contradicts_the_arguments_is_one_error(shapes: Callable[[], Any], said: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        dims(Two(), (X, Y), shapes())
    assert caught.value.code == "E105"
    assert said in str(caught.value)


def test_a_number_among_the_arguments_is_no_dynamic_size() -> None:
    for spec in (IntVar("n"), Dim.DYNAMIC):
        with pytest.raises(fx2onnx.UserError, match=r"n, which holds no tensor(.|\n)*torch.tensor") as caught:
            dims(lambda x, n: x * n, (X, 3), ParamsSpec({"n": spec}))
        assert caught.value.code == "E105"


def collection(tensor: torch.Tensor, sizes: Any = None) -> ShapesCollection:
    shapes = ShapesCollection()
    shapes[tensor] = {0: "n"} if sizes is None else sizes
    return shapes


def test_sizes_by_tensor() -> None:
    shapes = collection(X, {0: Dim("n", max=9)})
    shapes[Y] = (Dim.DYNAMIC, Dim.STATIC)
    kwargs = {"state": {"a": Y, "b": [X, torch.randn(2, 3)]}}
    found = dims(Any_(), (X,), shapes, kwargs)
    assert found == {"x": "n,3", "state_a": "state_a_dim_0,3", "state_b_0": "n,3"}


def test_sizes_of_additional_inputs() -> None:
    further = AdditionalInputs()
    further.add((torch.randn(7, 3), Y))
    further.add((X, Y))
    assert dims(Two(), (X, Y), further) == {"x": "x_dim_0,3"}
    further.add((X, Y.double()))
    with pytest.raises(fx2onnx.UserError, match="differ in dtypes of y") as caught:
        dims(Two(), (X, Y), further)
    assert "call 2 of AdditionalInputs" in caught.value.why
