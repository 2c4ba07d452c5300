"""What cannot be asked of sizes: one clear error each, never an exception of Python or torch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes.assumptions import Condition
from tests.support import check

X, Y = torch.randn(4, 8), torch.randn(4, 8)


def one(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def scaled(x: torch.Tensor, scale: float = 2.0, name: str | None = None) -> torch.Tensor:
    return x * scale


def nested(d: Any) -> torch.Tensor:
    return d["a"] * 2, d["b"][0] + 1  # type: ignore[return-value]


def variadic(*xs: torch.Tensor, **named: torch.Tensor) -> Any:
    return [x * 2 for x in (*xs, *named.values())]


def halves(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2)], 1)


def sixteenths(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1] // 16, 16)


DEEP = ({"a": X, "b": [Y, 3]},)
B = Dim("b")
ONE: list[tuple[Any, str]] = [
    (5, "neither a dict nor a tuple"),
    ({"x"}, "neither a dict nor a tuple"),
    ("batch", "'batch' is not known"),
    ("", "the only word is \"auto\""),
    ([], "0 entries, forward gets 1"),
    (({0: "b"}, {0: "b"}), "2 entries, forward gets 1"),
    (("b",), "x is neither a dict nor a tuple"),
    ({"z": {0: "b"}}, "names 'z', which forward does not get"),
    ({"self": {0: "b"}}, "names 'self', which forward does not get"),
    ({0: {0: "b"}}, "names 0, which forward does not get"),
    ({None: {0: "b"}}, "names None, which forward does not get"),
    ({"x": 5}, "it is 5"),
    ({"x": "b"}, "it is 'b'"),
    ({"x": B}, "x is neither a dict nor a tuple"),
    ({"x": range(2)}, "range(0, 2)"),
    ({"x": ("b",)}, "has 1 entries, the example input is [4, 8]"),
    ({"x": ("b", None, None)}, "has 3 entries, the example input is [4, 8]"),
    ({"x": [["b"], None]}, "['b'] is no dynamic size"),
    ({"x": [{0: "b"}, None]}, "{0: 'b'} is no dynamic size"),
    ({"x": {2: "b"}}, "x has no axis 2"),
    ({"x": {-3: "b"}}, "x has no axis -3"),
    ({"x": {"0": "b"}}, "x has no axis '0'"),
    ({"x": {None: "b"}}, "x has no axis None"),
    ({"x": {True: "b"}}, "x has no axis True"),
    ({"x": {1.0: "b"}}, "x has no axis 1.0"),
    ({"x": {(0, 1): "b"}}, "x has no axis (0, 1)"),
    ({"x": {"a": {0: "b"}}}, "x has no axis 'a'"),
    ({"x": {10**30: "b"}}, "x has no axis 1000"),
    ({"x": {0: "b", -2: "c"}}, "axis 0 of x is named twice"),
    ({"x": {0: 5}}, "says 5 for axis 0 of x, the example input has 4"),
    ({"x": {0: -4}}, "says -4 for axis 0 of x"),
    ({"x": {0: True}}, "True is no dynamic size"),
    ({"x": {0: 5.5}}, "5.5 is no dynamic size"),
    ({"x": {0: b"n"}}, "b'n' is no dynamic size"),
    ({"x": {0: ["n"]}}, "['n'] is no dynamic size"),
    ({"x": {0: object()}}, "object object"),
    ({"x": {0: int}}, "<class 'int'> is no dynamic size"),
    ({"x": {0: Dim}}, "Dim'> is no dynamic size"),
    ({"x": {0: torch}}, "<module 'torch'"),
    ({"x": {0: one}}, "<function one"),
    ({"x": {0: torch.tensor(1)}}, "tensor(1) is no dynamic size"),
    ({"x": {0: slice(0, 3)}}, "slice(0, 3, None) is no dynamic size"),
    ({"x": {0: ""}}, "axis 0 of x is named ''"),
    ({"x": {0: "  "}}, "no name of a size"),
    ({"x": {0: "a b", 1: "a_b"}}, "'a b' and 'a_b' have one name in the file, a_b"),
    ({"x": {0: Dim("b", max=3)}}, "b is 4 in the example inputs, which its declaration excludes"),
    ({"x": {0: Dim("b", min=5)}}, "it is declared with b >= 5"),
    ({"x": {0: Dim("b", min=2, max=5), 1: Dim("b", min=2, max=9)}}, "b is declared twice"),
    ({"x": {0: Dim.DYNAMIC(min=5)}}, "x_dim_0 is 4 in the example inputs, which its declaration excludes"),
    ({"x": {0: Dim.DYNAMIC(min=4, max=4)}}, "the bounds of x_dim_0 leave one size, 4"),
    ({"x": {0: Dim.AUTO(min=2, max=3)}}, "x_dim_0 is 4 in the example inputs"),
    ({"x": {0: 3 * B}}, "axis 0 of x is said to be 3*b, its sample is 4"),
    ({"x": {0: B + 6}}, "axis 0 of x is said to be b + 6, its sample is 4"),
]  # fmt: skip
OTHERS: list[tuple[Any, tuple[Any, ...], Any, str]] = [
    (add, (X, Y), ({0: "b"}, {1: "b"}), "b has two sizes in the samples"),
    (add, (X, Y), ({0: 2 * B}, {0: B}), "b is 4"),
    (add, (X, Y), ({0: B}, {0: Dim("b", min=3)}), "b is declared twice"),
    (add, (X, Y), ({0: B}, {0: Dim("c")}), "b is declared as one of its own, and has to be equal to c"),
    (add, (X, torch.randn(8)), ({0: B, 1: Dim("c")}, {0: Dim("d")}), "c is declared as one of its own"),
    (add, (X, Y), {"x": {0: "b"}}, "b is used as the fixed number 4"),
    (add, (X, Y), {"x": {0: "b"}}, "name b in dynamic_shapes for axis 0 of y, too"),
    (scaled, (X, 2.0), {"scale": {0: "s"}}, "names scale, which holds no tensor"),
    (scaled, (X, 2.0), {"scale": ("s",)}, "it is 2.0"),
    (scaled, (X, 2.0), {"scale": "s"}, "names scale, which holds no tensor"),
    (scaled, (X, 2.0), ({0: "b"}, {0: "s"}), "give None for it"),
    (scaled, (X, 2.0), {"name": {0: "s"}}, "names 'name', which forward does not get"),
    (one, (torch.tensor(2.0),), {"x": {0: "b"}}, "a scalar has no axes"),
    (nested, DEEP, {"d": {"a": {0: "n"}}}, "it says nothing of d['b']"),
    (nested, DEEP, {"d": {"a": {0: "n"}, "b": {0: "n"}}}, "d['b'] is a list, not one tensor with axes"),
    (nested, DEEP, {"d": {"a": {0: "n"}, "c": {0: "n"}}}, "it says nothing of d['b']"),
    (nested, DEEP, {"d": {"a": None, "b": None, "c": {0: "n"}}}, "it has d['c']; there are d['a'], d['b']"),
    (nested, DEEP, {"d": {0: "n"}}, "it says nothing of d['a']"),
    (nested, DEEP, {"d": [{0: "n"}, {0: "n"}]}, "d is a dict, not a list or tuple"),
    (nested, DEEP, {"d": "n"}, "d is a dict, not 'n'"),
    (nested, DEEP, {"d": {"a": {0: "n"}, "b": [None, {0: "n"}]}}, "names d['b'][1], which holds no tensor"),
    (nested, DEEP, {"d": {"a": None, "b": [{0: "n"}, None, {0: "n"}]}}, "it has d['b'][2]"),
    (nested, DEEP, {"d": {"a": None, "b": [{3: "n"}]}}, "d['b'][0] has no axis 3"),
    (variadic, (X, Y), {"xs": ({0: "n"},)}, "1 entries for xs, forward gets 2"),
    (variadic, (X, Y), {"xs": ({0: "n"},) * 3}, "3 entries for xs, forward gets 2"),
    (variadic, (X, Y), {"xs": {0: "n"}}, "xs is {0: 'n'}, not a tuple"),
    (variadic, (X, Y), {"named": {"k": {0: "n"}}}, "names 'named', which forward does not get"),
    (sixteenths, (torch.randn(2, 12),), {"x": {1: Dim("h", min=9, max=15)}},
     "it is declared with h >= 9 and h <= 15, and h % 16 == 0 is needed there"),
    (sixteenths, (torch.randn(2, 16),), {"x": {1: Dim("h", min=9, max=31)}}, "where only 16 has h % 16 == 0"),
    (halves, (torch.randn(1, 3, 16, 8),), {"x": {2: Dim("h", min=15, max=17)}}, "where only 16 has h % 2 == 0"),
    (halves, (torch.randn(1, 3, 9, 8),), {"x": {2: "h"}}, "h is 9, needed is h % 2 == 0"),
    (sixteenths, (torch.randn(2, 20),), ({0: "n", 1: "h"},), "give a sample with h % 16 == 0"),
]  # fmt: skip
AXES: list[tuple[Any, str]] = [
    (5, "dynamic_axes is not a dict"),
    (["x"], "dynamic_axes is not a dict"),
    ({"x": 5}, "dynamic_axes for x is 5, no dict and no list"),
    ({"x": "b"}, "dynamic_axes for x is 'b', no dict and no list"),
    ({"x": None}, "dynamic_axes for x is None"),
    ({"x": {0: 5}}, "axis 0 of x is named 5"),
    ({"x": {0: None}}, "axis 0 of x is named None"),
    ({"x": {0: ["b"]}}, "axis 0 of x is named ['b']"),
    ({"x": {0: ""}}, "axis 0 of x is named ''"),
    ({"x": {0: int}}, "axis 0 of x is named <class 'int'>"),
    ({"x": {2: "b"}}, "x has no axis 2"),
    ({"x": {"0": "b"}}, "x has no axis '0'"),
    ({"x": [0, 5]}, "x has no axis 5"),
    ({"x": ["b"]}, "x has no axis 'b'"),
    ({"x": [0, -2]}, "axis 0 of x is named twice"),
    ({"x": {0: "b", -2: "c"}}, "axis 0 of x is named twice"),
    ({"x": {0: Dim("b", max=3)}}, "b is 4 in the example inputs, which its declaration excludes"),
]


def refusal(function: Any, args: tuple[Any, ...], **asked: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(function, args, **asked)
    assert caught.value.next
    assert caught.value.code in ("E105", "E101")
    return caught.value


@pytest.mark.parametrize(("shapes", "words"), ONE, ids=[f"{place}: {words}" for place, (_, words) in enumerate(ONE)])
def test_a_spec_of_one_tensor(shapes: Any, words: str) -> None:
    assert words in str(refusal(one, (X,), dynamic_shapes=shapes))


@pytest.mark.parametrize(
    ("function", "args", "shapes", "words"), OTHERS, ids=[f"{place}: {case[3]}" for place, case in enumerate(OTHERS)]
)
def test_a_spec_of_several(function: Any, args: tuple[Any, ...], shapes: Any, words: str) -> None:
    assert words in str(refusal(function, args, dynamic_shapes=shapes))


@pytest.mark.parametrize("by_operator", [True, False])
def test_an_error_about_something_else_names_no_size(by_operator: bool) -> None:
    """An operator that needed a multiple of 16 failed before, and forward went on."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            return sixteenths(x)
        if by_operator:
            return torch.zeros(3) + torch.zeros(4)
        raise ValueError("this is not about h")

    error = refusal(forward, (torch.randn(2, 20),), dynamic_shapes=({0: "n", 1: "h"},))
    assert "needed is" not in str(error)


@pytest.mark.parametrize(("axes", "words"), AXES, ids=[f"{place}: {words}" for place, (_, words) in enumerate(AXES)])
def test_dynamic_axes(axes: Any, words: str) -> None:
    assert words in str(refusal(one, (X,), dynamic_axes=axes))


def test_two_declared_sizes_that_are_one_name_the_line() -> None:
    error = refusal(add, (X, Y), dynamic_shapes=({0: Dim("b")}, {0: Dim("c")}))
    assert error.where is not None
    assert "return x + y" in str(error)
    assert "torch.export.Dim c" in error.next[0]
    halved = refusal(
        lambda x, y: x.view(-1, 2, 8).sum(1) + y, (X, Y[:2]), dynamic_shapes=({0: Dim("b")}, {0: Dim("c")})
    )
    assert "declared as one of its own, and has to be equal to" in halved.what


def test_a_feed_is_told_the_size_behind_a_multiple() -> None:
    def eights(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] // 8, 8)

    rows = [(torch.randn(size),) for size in (16, 8, 40)]
    result = check(eights, rows[0], others=rows[1:], dynamic_shapes={"x": {0: 2 * Dim("h")}})
    session = InferenceSession(result.model_proto.SerializeToString())
    with pytest.raises(UserError, match=r"E401.*h % 4 == 0") as caught:
        session.run(None, {"x": torch.zeros(12).numpy()})
    assert caught.value.why.startswith("h is 6 (dim 0 of 'x' is 2*h)")
    assert "test_bad_sizes.py" in caught.value.why


@pytest.mark.parametrize("shapes", [({0: Dim("b", max=9)}, {0: "c"}), ({0: "b"}, {0: Dim("c", max=9)})], ids=str)
def test_one_of_two_names_hands_its_range_on(shapes: Any) -> None:
    result = check(add, (X, Y), others=[(X[:2], Y[:2])], dynamic_shapes=shapes)
    (kept,) = (found for found in result.report.assumptions if isinstance(found, Condition))
    assert kept.expression.endswith("<= 9")
    feeds = {name: torch.zeros(10, 8).numpy() for name in ("x", "y")}
    with pytest.raises(UserError, match="<= 9"):
        InferenceSession(result.model_proto.SerializeToString()).run(None, feeds)


def test_what_is_no_mistake() -> None:
    """The positive twins: what torch.export takes, too."""
    good: list[tuple[Any, tuple[Any, ...], Any, list[Any]]] = [
        (scaled, (X, 2.0), {"x": {0: "b"}, "scale": None}, ["b", 8]),
        (scaled, (X, 2.0), ({0: "b"}, None), ["b", 8]),
        (scaled, (X, 2.0), {"x": {-2: "b"}, "scale": {}}, ["b", 8]),
        (nested, DEEP, {"d": {"a": {0: "b"}, "b": [{0: "c"}, None]}}, ["b", 8]),
        (nested, DEEP, {"d": {"a": ("b", None), "b": ({0: "c"},)}}, ["b", 8]),
        (variadic, (X, Y), {"xs": ({0: "b"}, None)}, ["b", 8]),
        (variadic, (X, Y), (({0: "b"}, None),), ["b", 8]),
        (variadic, (X, Y), ({0: "b"}, None), ["b", 8]),
        (variadic, (X,), (({0: "b"},),), ["b", 8]),
        (variadic, (X,), (("b", None),), ["b", 8]),
        (variadic, (X,), [[["b", None]]], ["b", 8]),
        (one, (X,), {"x": {0: Dim.AUTO(min=4, max=4), 1: Dim.DYNAMIC(max=20)}}, [4, "x_dim_1"]),
        (one, (X,), {"x": {0: Dim("b", max=1_000_000_000), 1: 8}}, ["b", 8]),
        (one, (X,), {"x": {0: 2 * B}}, ["2*b", 8]),
    ]
    for function, args, shapes, expected in good:
        shape = fx2onnx.export(function, args, dynamic_shapes=shapes).model.graph.inputs[0].shape
        assert [str(dim) for dim in shape] == [str(dim) for dim in expected], shapes
    for axes in ({"x": {0: Dim("b")}}, {"x": {0: "b"}, "output": {0: "b"}}, {"x": {0: "b"}, "output": [0]}):
        shape = fx2onnx.export(one, (X,), dynamic_axes=axes).model.graph.inputs[0].shape
        assert str(shape[0]) == "b"
