"""Files that are wrong far from the sample alone: behind numbers that stand in them, and for integers that they narrow."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.verify.file_bounds import FileBounds, Turned
from fx2onnx.verify.samples import other_sizes
from tests.verify.given import Forward, Given

GENERATOR = torch.Generator().manual_seed(3)
TIMES = torch.randint(100, 1000, (3, 8), generator=GENERATOR)
X = torch.randn(2, 6, 4, generator=GENERATOR)
TABLE = torch.randn(40, 4, generator=GENERATOR)
LONG = torch.randn(1000, 4, generator=GENERATOR)


def distances(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1])
    return places[:, None] - places[None]


INTEGERS: dict[str, tuple[torch.Tensor, Forward, Forward]] = {
    "a remainder in 32 bits": (TIMES, lambda t: t % 40, lambda t: (t.int() % 40).long()),
    "ids that were floats": (TIMES, lambda t: TABLE[(t * 7 + 1) % 40], lambda t: TABLE[(t.float().long() * 7 + 1) % 40]),
    "floats before the difference": (TIMES, lambda t: (t[:, 1:] - t[:, :-1]).float() * 0.1, lambda t: (t[:, 1:].float() - t[:, :-1].float()) * 0.1),
    "a difference of doubles": (TIMES, lambda t: (t - t[:, :1]) // 3, lambda t: (t.double() - t[:, :1].double()).long() // 3),
    "neighbours compared as floats": (TIMES, lambda t: t[:, 1:] == t[:, :-1], lambda t: t[:, 1:].float() == t[:, :-1].float()),
    "a sum in 32 bits": (TIMES, lambda t: t.cumsum(-1), lambda t: t.int().cumsum(-1)),
    "the largest as a float": (TIMES.int(), lambda t: t.amax(-1), lambda t: t.float().amax(-1).int()),
    "a single one": (torch.tensor(7), lambda t: t * 3, lambda t: (t.float() * 3).long()),
    "beside floats of the module": (TIMES, lambda t: (t % 40, t * 0.1), lambda t: ((t.float() % 40).long(), t * 0.1)),
}  # fmt: skip

SIZES: dict[str, tuple[Forward, Forward]] = {
    "a slice": (lambda x: x * 2, lambda x: torch.cat([x[:, :200] * 2, x[:, 200:] * 0], 1)),
    "a window": (lambda x: (distances(x) >= 0).float() @ x[0], lambda x: ((distances(x) >= 0) & (distances(x) < 200)).float() @ x[0]),
    "a table": (
        lambda x: x + nn.functional.embedding(torch.arange(x.shape[1]), LONG),
        lambda x: x + nn.functional.embedding(torch.arange(x.shape[1]).clamp(max=199), LONG[:200]),
    ),
    "a bound": (lambda x: x * x.shape[1], lambda x: x * torch.arange(x.shape[1] + 1)[-1:].clamp(max=200)),
    "a period": (lambda x: x + torch.arange(x.shape[1])[:, None], lambda x: x + (torch.arange(x.shape[1]) % 300)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("what", INTEGERS)
def test_integers_that_the_file_has_no_room_for(what: str) -> None:
    sample, right, wrong = INTEGERS[what]
    verdict = verify(fx2onnx.export(Given(right), (sample,)), Given(right), (sample,))
    assert verdict.ok, verdict.describe()
    harmed = fx2onnx.export(Given(wrong), (sample,))
    assert not verify(harmed, Given(right), (sample,)).ok
    assert verify(harmed, Given(wrong), (sample,)).ok


@pytest.mark.long_cases("a period")
@pytest.mark.parametrize("what", SIZES)
def test_numbers_of_the_file_that_bound_a_size(what: str) -> None:
    right, wrong = SIZES[what]
    verdict = verify(fx2onnx.export(Given(right), (X,), dynamic_shapes=({1: "n"},)), Given(right), (X,))
    assert verdict.ok, verdict.describe()
    assert not verify(fx2onnx.export(Given(wrong), (X,), dynamic_shapes=({1: "n"},)), Given(right), (X,)).ok


@pytest.mark.long
def test_what_is_weighed_among_one_is_not_tried_alone() -> None:
    assert {"n": 33, "m": 2} in other_sizes({"n": 16, "m": 12}, [])

    def right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.transpose(1, 2)).softmax(-1)

    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y.transpose(1, 2) * (torch.arange(x.shape[1]) < 12)[:, None]).softmax(-1)

    args, sizes = (X, X[:, :5]), ({1: "n"}, {1: "m"})
    assert verify(fx2onnx.export(Given(right), args, dynamic_shapes=sizes), Given(right), args).ok
    assert not verify(fx2onnx.export(Given(wrong), args, dynamic_shapes=sizes), Given(right), args).ok


def test_no_large_integers_where_python_reads_them() -> None:
    """As a size they would take all memory."""
    module, count = Given(lambda n: torch.arange(8) * n.item()), torch.tensor(3)
    verdict = verify(fx2onnx.export(Given(lambda n: (torch.arange(8) * n.int()).long()), (count,)), module, (count,))
    assert "wide" not in [each.values for each in verdict.tried]


def test_what_counts_as_less_room() -> None:
    assert Turned(bits={32}).more_than(Turned(floats=True))
    assert not Turned(bits={32}).more_than(Turned(bits={32}))
    assert not Turned(bits={32}).more_than(Turned(is_read=True))
    assert not Turned(floats=True, raw=True).more_than(Turned(floats=True, raw=True))
    assert Turned(floats=True, whole_again=True).more_than(Turned(floats=True))


def test_bounds_that_stand_in_a_file() -> None:
    ends = {"from": [0], "to": [300], "one": [1], "hidden": [768], "two": [2]}
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "one"], ["rows"]),
        helper.make_node("Slice", ["x", "from", "hidden", "two"], ["columns"]),
        helper.make_node("Min", ["ids", "far"], ["bounded"]),
        helper.make_node("Cast", ["bounded"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Called", ["ids"], ["float"], domain="own"),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["table", "sizes"], ["picked"]),  # the end of a table is no bound
    ]
    whole = helper.make_opsetid("", 18)
    body = [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n", 1536]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)],
        [
            *(helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in ends.items()),
            helper.make_tensor("far", TensorProto.INT64, [], [70_000]),
            helper.make_tensor("table", TensorProto.FLOAT, [128], [0.5] * 128),
        ],
    )
    function = helper.make_function("own", "Called", ["a"], ["b"], body, [whole])
    model = helper.make_model(graph, opset_imports=[whole, helper.make_opsetid("own", 1)], functions=[function])
    found = FileBounds.of(onnx.ModelProto.FromString(model.SerializeToString()))
    assert (list(found.sizes), list(found.whole)) == ([300], [70_000])
    assert found.turned == Turned(floats=True, raw=True, bits={32})


def test_sizes_behind_bounds() -> None:
    assert {"n": 302} in other_sizes({"n": 16}, [], bounds=(3, 300, 100_000))
    assert other_sizes({"n": 16}, [], marks=(512,), bounds=(3, 300)) == other_sizes({"n": 16}, [], marks=(512,))
