"""Sizes that only the data tells, control flow as operators, autocast regions."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_along
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import fx2onnx
from fx2onnx.capture.driver import capture
from tests.support import check, run_engines

X = torch.tensor([[1.0, -2.0, 3.0, -4.0], [0.0, 5.0, -6.0, 7.0], [-1.0, 2.0, 0.0, 2.0]])
OTHERS = [(-X,), (X * 0,), (torch.ones(3, 4),)]

SIZED: dict[str, Any] = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: torch.nonzero(x > 1, as_tuple=True),
    "mask": lambda x: x[x > 0],
    "mask of rows": lambda x: x[x.sum(1) > 0],
    "mask and slice": lambda x: x[x[:, 0] > 0, 1:],
    "masked_select": lambda x: torch.masked_select(x, x > 0) * 2,
    "masked_select broadcast": lambda x: torch.masked_select(x, x[0] > 0),
    "then arithmetic": lambda x: (x[x > 0] + 1).sum(),
    "then shape": lambda x: torch.zeros(x[x > 0].shape[0], 2) + 1,
    "then cat": lambda x: torch.cat([x.flatten(), x[x > 0]]),
    "argwhere": lambda x: torch.argwhere(x > 1),
    "where of one argument": lambda x: torch.where(x > 1)[0],
    "min of a size": lambda x: x[x > 0].topk(min(4, x[x > 0].shape[0]))[0],
    "max of a size": lambda x: torch.zeros(max([3, x[x > 0].shape[0]])) + 1,
    "one mask twice": lambda x: (lambda mask: x[mask] + x.exp()[mask].topk(min(5, x[mask].shape[0]))[0].sum())(x > 0),
    "split by sizes from data": lambda x: torch.cat(
        [part * (i + 1) for i, part in enumerate(x.flatten().split([(x > 0).sum().item(), (x <= 0).sum().item()]))]
    ),
    "split by a list of sizes": lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x[x > 0].split((x > 0).sum(0).tolist()))]),
    "topk within a size": lambda x: x[x > 9].topk((x > 9).sum().item())[0],
    "unique": lambda x: torch.unique(x),
    "unique with counts": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, dim=0),
    "item as size": lambda x: torch.arange((x > 0).sum().item()) * 2,
    "one number as two sizes": lambda x: (lambda count: torch.ones(count.item()) + torch.arange(count.item()))((x > 0).sum()),
    "a number compared with a size": lambda x: (
        lambda count: torch.ones(count.item()) * (2 if torch.ones(count.item()).shape[0] == count else 3)
    )((x > 0).sum()),
    "arithmetic of numbers": lambda x: (lambda count: torch.ones((10 - count + 2).item()) + torch.arange(12 - count.item()))((x > 0).sum()),
    "narrow from a number": lambda x: (lambda count: x.flatten().narrow(0, count, 12 - count) * 2)((x > 0).sum()),
    "item in arithmetic": lambda x: x * (x > 0).sum().item(),
    "masked_scatter of what was chosen": lambda x: (x * 2).masked_scatter(x > 1, x[x > 1].exp()),
    "constant unique as sizes": lambda x: torch.cat(
        [part.sum(0, keepdim=True) for part in x.split(torch.unique_consecutive(torch.tensor([1, 1, 2])).tolist())]
    ),
    "constant mask": lambda x: x[torch.tensor([True, False, True])],
    "constant nonzero": lambda x: x[:, torch.tensor([0, 1, 1, 0]).nonzero().flatten()],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SIZED))
def test_sizes_from_data(name: str) -> None:
    check(SIZED[name], (X,), others=OTHERS)


def test_constant_masks_have_static_sizes() -> None:
    result = fx2onnx.export(SIZED["constant mask"], (X,))
    assert list(result.model.graph.outputs[0].shape) == [2, 4]


@pytest.mark.parametrize(
    ("left", "right", "has_offsets"),
    [((8, 4), (3, 4, 8), True), ((3, 8, 4), (3, 4, 8), False), ((4, 8), (8, 8), True), ((3, 8, 4), (4, 8), True)],
)
def test_grouped_products_of_float32_have_a_type(
    left: tuple[int, ...], right: tuple[int, ...], has_offsets: bool
) -> None:
    offsets = torch.tensor([1, 3, 8], dtype=torch.int32) if has_offsets else None
    args = (torch.randn(left), torch.randn(right), offsets)
    want = torch._grouped_mm(*args[:2], offs=offsets)
    captured = capture(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), args)
    found = captured.outputs[0].value.meta["val"]
    assert (found.dtype, found.dims) == (want.dtype, tuple(want.shape))


def test_a_comparison_of_an_unknown_size_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        return y if y.shape[0] > 2 else x.flatten()

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(forward, (X,), data_branches="error")
    assert caught.value.code == "E104"
    assert caught.value.where is not None


class Cond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.first(v).relu(), lambda v: self.second(v) - 1, (x,))


class Nested(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(v: torch.Tensor) -> torch.Tensor:
            return torch.cond(v.max() > 2, lambda w: w * 2, lambda w: w - 1, (v,))

        return torch.cond(x.sum() > 0, inner, lambda v: v + 10, (x,))


class CondOnSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 3, lambda v: v * 2, lambda v: v - 1, (x,))


class CondWithStructure(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        outer = x.mean()
        found = torch.cond(
            x[0, 0] > 0,
            lambda a, b: {"sum": a + b, "mean": outer + 0},
            lambda a, b: {"sum": a - b, "mean": outer * 2},
            (x, x * 2),
        )
        return found["sum"], found["mean"]


class CondOfNested(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda d: d["a"] + d["b"][0], lambda d: d["a"] - 1, ({"a": x, "b": [x[0]]},))


class CondInMap(nn.Module):
    """A branch in a body, with a weight from outside both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return map_along(
            lambda row: torch.cond(row.sum() > 0, lambda v: self.fc(v), lambda v: v - self.fc.bias, (row,)), x
        )


class WhileInCondInWhile(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        def inner(v: torch.Tensor) -> torch.Tensor:
            return while_loop(lambda i, u: i < 2, lambda i, u: (i + 1, u * 2), (torch.tensor(0), v))[1]

        def body(i: torch.Tensor, v: torch.Tensor) -> Any:
            return i + 1, torch.cond(v.sum() > 1, lambda u: u - 1.0, inner, (v + 0.25,))

        return while_loop(lambda i, v: i < 3, body, (torch.tensor(0), x))


class While(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        limit = x.abs().sum()
        return while_loop(
            lambda i, v: (v.sum() < limit) & (i < 20), lambda i, v: (i + 1, v + 0.5), (torch.tensor(0), x)
        )


class Scan(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry * 0.5 + row, carry + 1), x[0] * 0, x, dim=0)


class ScanReversed(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row, carry * 2), x[:, 0] * 0, x, dim=1, reverse=True)


class Map(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return map_along(lambda row, other: row.cumsum(0) + other, x, x[0] * 2)


@pytest.mark.long_cases("Cond", "WhileInCondInWhile")
@pytest.mark.parametrize(
    "kind",
    [Cond, Nested, CondWithStructure, CondOfNested, CondInMap, WhileInCondInWhile, While, Scan, ScanReversed, Map],
)
def test_control_flow(kind: type[nn.Module]) -> None:
    result = check(kind(), (X,), others=OTHERS)
    operators = {node.op_type for node in result.model.graph}
    assert operators & {"If", "Loop", "Scan"}


class ScanChosen(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (carry + row, (row * 2).long()), x[0] * 0, x[x[:, 0] > 0], dim=0)


class MapChosen(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return map_along(lambda row: (row.long(), row[:2].sum()), x[x[:, 0] > 0])


@pytest.mark.long
@pytest.mark.parametrize("kind", [ScanChosen, MapChosen])
def test_no_step_at_run_time(kind: type[nn.Module]) -> None:
    """Stacked outputs of no step have the dtype and the other sizes of those of many. (PyTorch itself refuses.)"""
    result = check(kind(), (X,), others=[(X.abs() + 1,)])
    for engine, outputs in run_engines(result.model_proto, [-X.abs()]).items():
        last = [output for output in outputs if output.ndim and output.shape[0] == 0]
        types = [(output.dtype.name, output.shape) for output in last]
        assert types == ([("int64", (0, 4)), ("float32", (0,))] if kind is MapChosen else [("int64", (0, 4))]), engine


def test_a_branch_on_a_dynamic_size_stays_a_branch() -> None:
    result = check(CondOnSize(), (torch.randn(5, 2),), others=[(torch.randn(2, 2),)], dynamic_shapes={"x": {0: "n"}})
    assert "If" in {node.op_type for node in result.model.graph}


def test_a_write_to_the_outside_is_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 1

        def write(v: torch.Tensor) -> torch.Tensor:
            y.add_(1)
            return v + 1

        return torch.cond(x.sum() > 0, write, lambda v: v - 1, (x,)) + y

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(forward, (X,))
    assert caught.value.code == "E103"


class CountsInBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: v + self.count.add_(1), lambda v: v - 1, (x,))


def _writes_operand(x: torch.Tensor) -> Any:
    y = x * 1
    return torch.cond(x.sum() > 0, lambda v: v.add_(1), lambda v: v - 1, (y,)), y


@pytest.mark.parametrize("made", [CountsInBranch(), _writes_operand])
def test_a_write_of_a_branch_to_a_buffer_or_an_operand_is_refused(made: Any) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(made, (X,), capture="fake")
    assert caught.value.code == "E103"


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.fc(x)
            z = y.softmax(-1)
            with torch.autocast("cpu", enabled=False):
                w = self.fc(x)
        return y.float(), z.float(), w, self.fc(x)


def test_autocast_regions() -> None:
    with torch.no_grad():
        want = [value.dtype for value in Autocast()(X)]
    result = check(Autocast(), (X,), rtol=2e-2, atol=2e-2)
    assert [str(value.dtype) for value in result.model.graph.outputs] == ["FLOAT"] * len(want)
    casts = [node for node in result.model.graph if node.op_type == "Cast"]
    assert any(node.outputs[0].dtype.name == "FLOAT16" for node in casts)


ASSERTS = """
rows = x[x[:, 0] > -50]
assert rows.shape[0] <= 40, "so many rows"
assert (x < 100).all()
assert x.sum() < 1000 and x.min() > -100
torch._check_tensor_all(x > -100)
return rows * 2
"""


def function_of(body: str) -> Any:
    """``def forward(x): body``, out of pytest's sight, which writes assertions anew."""
    space: dict[str, Any] = {"torch": torch}
    exec(compile("def forward(x):\n" + textwrap.indent(body, "    "), "user.py", "exec"), space)
    return space["forward"]


def test_assertions_on_data_are_taken_for_true_and_reported() -> None:
    report = check(function_of(ASSERTS), (X,), others=OTHERS).report
    assert report.strategy == "fake"
    assert sum(str(line).startswith("asserted: ") for line in report.assumptions) == 5


@pytest.mark.parametrize(
    "body",
    [
        "return x if x.sum() > 0 else -x",
        "if not (x > 0).all():\n    raise ValueError\nreturn x",
        "y = x if (x > 0).all() else -x\nassert True\nreturn y",
        "rows = x[x > 0]\nassert x.ndim == 2\nreturn rows if rows.shape[0] > 2 else x",
    ],
)
def test_only_assertions_are_taken_for_true(body: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(function_of(body), (X.abs() + 1,), capture="fake", data_branches="error")
    assert caught.value.code == "E104"


def test_slices_by_numbers_of_either_sign() -> None:
    def forward(x: torch.Tensor, count: torch.Tensor) -> Any:
        n = count.item()
        return x[:, 5 - n + 1 : 5 + n] * 2, x[:, n - 8 :], x[:, -n:], x[:, : n - 2 : 2]

    x = torch.randn(2, 11)
    others = [(x, torch.tensor(count)) for count in (1, 0, 6, 8, 20)]
    check(forward, (x, torch.tensor(3)), others=others)


def test_a_list_of_floats_may_be_empty() -> None:
    """``torch.tensor([])`` is of the dtype that it has with elements."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        found = []
        for number in x[x > 0].tolist():
            found.append(number * 2)
        return torch.tensor(found)

    x = torch.tensor([1.5, -2.0, 3.0])
    result = check(doubled, (x,), others=[(-x.abs(),), (x.abs(),)])
    assert not any("has to be true" in line or "asserted" in line for line in map(str, result.report.assumptions))


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (lambda kind: int(kind[0]), "a number from data (test_data_dependent.py:"),
        (lambda kind: kind.sum().item(), "a number from data (test_data_dependent.py:"),
        (lambda kind: kind.nonzero().shape[0], "the size of axis 0 of nonzero's result (test_data_dependent.py:"),
        (
            lambda kind: kind.shape[0] + int(kind.sum()),
            "u0 + 1 is known only when the model runs; u0 is a number from data (",
        ),
        (lambda kind: int(kind), "the value of the input kind is known only when the model runs"),
    ],
)
def test_a_number_that_python_needs_has_the_name_that_its_user_knows(key: Any, why: str) -> None:
    def forward(x: torch.Tensor, kind: torch.Tensor) -> Any:
        return x * {1: 1.0, 2: 2.0}[key(kind)]

    with pytest.raises(fx2onnx.UserError, match="E104") as caught:
        fx2onnx.export(forward, (torch.ones(3), torch.tensor([1])))
    assert str(caught.value.why).replace("tests/capture/", "").startswith(why)
