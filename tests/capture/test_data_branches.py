"""data_branches="if": both branches of a Python decision by data are in the file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.capture.branches import explore
from tests.support import check, run_engines

X = torch.tensor([[1.0, -2.0, 3.0, -4.0], [0.0, 5.0, -6.0, 7.0], [-1.0, 2.0, 0.0, 2.0]])
OTHERS = [(-X.abs(),), (X.abs(),), (X * 0,), (X * 3 + 1,)]


def one_decision(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if (y > 0).any():
        return y.relu() + torch.tensor([1.0, 2.0, 3.0, 4.0])
    return -y + torch.tensor([5.0, 6.0, 7.0, 8.0])


def chain(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 20:
        return x + 1
    if x.sum() < -20:
        return x - torch.ones(4)
    return x * x.amax() if x.max() > 0 else x.exp()


def loop_left_by_data(x: torch.Tensor) -> torch.Tensor:
    steps = []
    for turn in range(5):
        x = x.cos() + turn * 0.3
        steps.append(x.sum(-1))
        if x.sum() > 4:
            break
    return torch.stack(steps, 1)


def stacks_what_was_kept(x: torch.Tensor) -> torch.Tensor:
    """Where no row is kept, eager PyTorch ends by the empty list."""
    kept, spent = [], x.new_zeros(())
    for row in x.abs().sum(1).argsort():
        if spent + x[row].abs().sum() > 30 + 2 * x.abs().sum():
            break
        kept.append(x[row])
        spent = spent + x[row].abs().sum()
    return torch.stack(kept)


def unknown_sizes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = x[x > 0]
    if chosen.shape[0] > 3:
        return chosen[chosen > 1] + 1, x
    return x[x < 0].exp(), x


def number(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() else x - 1


def untouched(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if x.sum() > 0:
        x = x * 2
    return y


def branch_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 3, lambda x: x + 1, lambda x: x - 1, (x,))
    if y.max() > 6:
        return torch.cond(y.min() > 0, lambda y: y * 2, lambda y: y * 3, (y,))
    return y


@pytest.mark.long_cases("branch_in_a_branch")
@pytest.mark.parametrize(
    "function",
    [
        one_decision,
        chain,
        loop_left_by_data,
        stacks_what_was_kept,
        unknown_sizes,
        number,
        untouched,
        branch_in_a_branch,
    ],
)
def test_every_path(function: Any) -> None:
    result = check(function, (X,), others=OTHERS, data_branches="if")
    notes = [str(line) for line in result.report.assumptions]
    assert any("both branches of a decision by data" in note for note in notes) == (function is not untouched)


@pytest.mark.parametrize("function", [one_decision, chain, unknown_sizes])
def test_dynamic_sizes(function: Any) -> None:
    torch.manual_seed(0)
    others = [*OTHERS, (torch.randn(7, 4),), (-torch.rand(2, 4),), (torch.rand(9, 4),)]
    check(function, (X,), others=others, data_branches="if", dynamic_shapes={"x": {0: "rows"}})


def test_without_a_decision_the_file_is_the_same() -> None:
    module = nn.Linear(4, 4)
    plain, both = (fx2onnx.export(module, (X,), data_branches=how) for how in ("error", "if"))
    assert [node.op_type for node in plain.model.graph] == [node.op_type for node in both.model.graph]


def raises_on_one(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1000:
        raise ValueError("too much")
    if not (x > -1000).all():
        return 1 / torch.jit.this_is_no_name  # type: ignore[attr-defined, no-any-return]
    return x + 1


def raises_on_both(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1000:
        raise ValueError("too much")
    raise TypeError("too little")


def raised_statement(x: torch.Tensor) -> torch.Tensor:
    if x.isnan().any():
        raise ValueError("not a number")
    return x + 1


def test_a_branch_that_raises_is_left_out() -> None:
    result = check(raised_statement, (X,), others=OTHERS, data_branches="if")
    assert any("asserted: %any_default is false" in str(line) for line in result.report.assumptions)
    assert [node.op_type for node in result.model.graph] == ["Add"]


def test_a_branch_that_fails_otherwise_is_an_error() -> None:
    with pytest.raises(UserError, match="this_is_no_name"):
        fx2onnx.export(raises_on_one, (X,), data_branches="if")
    with pytest.raises(UserError, match="too much"):
        fx2onnx.export(raises_on_both, (X,), data_branches="if")


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.sum() > 0:
            self.count += 1
            return {"a": self.one(x)}
        if x.mean() > -1:
            return {"a": self.two(self.one(x))}
        return {"a": self.two(x) + self.count[0]}


def test_state_changed_on_one_path() -> None:
    torch.manual_seed(0)
    module = Stateful().eval()
    result = fx2onnx.export(module, (X,), data_branches="if", state="io")
    for inputs in (X.abs(), -X.abs() * 0.1, -X.abs()):
        for outputs in run_engines(result.model_proto, [inputs, torch.full((2,), 5.0)]).values():
            module.count.fill_(5.0)
            with torch.no_grad():
                want = module(inputs)["a"]
            torch.testing.assert_close(torch.as_tensor(outputs[0]), want)
            torch.testing.assert_close(torch.as_tensor(outputs[1]), module.count)


def test_a_refusal_names_the_way() -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(one_decision, (X,), data_branches="error")
    assert caught.value.code == "E104"
    assert any("data_branches" in way for way in caught.value.next)


def structures(x: torch.Tensor) -> Any:
    return (x, x + 1) if x.sum() > 0 else x


def dtypes(x: torch.Tensor) -> torch.Tensor:
    return x > 1 if x.sum() > 0 else x


def numbers(x: torch.Tensor) -> Any:
    return (x, 1) if x.sum() > 0 else (x, 2.5)


def table(x: torch.Tensor) -> torch.Tensor:
    return {0: torch.relu, 1: torch.tanh}[(x.long().sum() % 2).item()](x)


def listed(x: torch.Tensor) -> Any:
    return [row * 2 for row in x.nonzero()]


def a_value(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(float(x.sum()))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (structures, "different structures"),
        (table, "only when"),
        (listed, "list of a dynamic length"),
        (dtypes, "different types"),
        (numbers, "numbers"),
        (a_value, "only when"),
    ],
)
def test_what_cannot_be_joined_is_refused(function: Any, why: str) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(function, (X,), data_branches="if")
    assert caught.value.code == "E104"
    assert why in caught.value.why
    step = {structures: "one padded or concatenated", table: "key of a dict", listed: "torch.stack(out)"}.get(function)
    assert step is None or step in caught.value.next[0]


def many_returns(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        return x
    if x.sum() > 50:
        return x * 2
    if x.sum() > 20:
        return x * 3
    if x.sum() > 10:
        return x * 4
    return x * 5


def test_too_many_paths_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MAX_PATHS", 4)
    with pytest.raises(UserError, match="more than 4 paths") as caught:
        fx2onnx.export(many_returns, (X,), data_branches="if")
    assert not any("data_branches" in step for step in caught.value.next)  # it is what was asked for


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(UserError, match="data_branches='both'"):
        fx2onnx.export(one_decision, (X,), data_branches="both")


def integers(x: torch.Tensor) -> Any:
    found = (x > 0).nonzero()[:, 0]
    if found.shape[0] == 0:
        return x.new_full((1,), -1, dtype=torch.int32), x
    return found, x + 1


def test_integers_of_two_widths_are_of_the_wider_one() -> None:
    result = fx2onnx.export(integers, (X,), data_branches="if")
    assert any("int64 from either branch" in str(note) for note in result.report.assumptions)
    for inputs in (X, X.abs(), -X.abs()):
        want = integers(inputs)
        for outputs in run_engines(result.model_proto, [inputs]).values():
            first, second = map(torch.as_tensor, outputs)
            assert first.dtype == torch.int64
            torch.testing.assert_close(first, want[0].long())
            torch.testing.assert_close(second, want[1])


NUMBERS = {
    "float": lambda x: x * 2 if float(x.sum()) > 3.5 else x + 1,
    "item": lambda x: x * 2 if x.sum().item() > 3.5 else x + 1,
    "between": lambda x: x * 2 if 3.5 < x.sum().item() < 20 else x + 1,
    "equal to float32's own": lambda x: x * 2 if x.flatten()[2].item() == 0.1 else x + 1,
    "int": lambda x: x * 2 if int(x.sum()) == 3 else x + 1,
    "int of item": lambda x: x * 2 if int(x.sum().item()) == -3 else x + 1,
    "float of an integer": lambda x: x * 2 if float(x.long().sum()) > 3.5 else x + 1,
    "truth": lambda x: x * 2 if x.sum().item() else x + 1,
    "not": lambda x: x * 2 if not float(x.sum()) > 3.5 else x + 1,
    "isnan": lambda x: x * 2 if math.isnan(float(x.sum())) else x + 1,
    "isinf": lambda x: x * 2 if math.isinf(x.sum().item()) else x + 1,
    "isfinite": lambda x: x * 2 if math.isfinite(x.sum()) else x + 1,
    "computed": lambda x: x * 2 if abs(float(x.sum()) * 2 - 1) / 3 > 4 else x + 1,
    "turned": lambda x: x * 2 if 3 - x.sum().item() > 1 else x + 1,
    "two": lambda x: x * 2 if x.sum().item() > x.max().item() * 2 else x + 1,
    "max": lambda x: x * 2 if max(x.sum().item(), x.max().item()) > 5 else x + 1,
    "tolist": lambda x: x * 2 if x.flatten().tolist()[1] > 0 else x + 1,
    "float is a float": lambda x: x * 2 if isinstance(x.sum().item(), float) else x + 1,
    "equal to text": lambda x: x * 2 if x.sum().item() == "3" else x + 1,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_data_that_python_compares(name: str) -> None:
    x = torch.tensor([[1.0, -2.0, 0.1, 4.0], [0.0, 0.5, -0.6, 0.7]])
    inputs = [-x.abs(), x.abs() * 5, x * 0, x * 0 + 0.4, x * 0 - 0.4]
    if not name.startswith("int"):  # which ends the run there
        inputs += [x / 0, torch.full_like(x, torch.inf)]
    check(NUMBERS[name], (x,), others=[(other,) for other in inputs], capture="fake")


@pytest.mark.parametrize(
    "use",
    [
        lambda number, x: x * len(str(number)),
        lambda number, x: x * len(f"{number:.3f}"),
        lambda number, x: x * round(number, 1),
        lambda number, x: {number: x}[number],
        lambda number, x: x * math.sqrt(number),
        lambda number, x: x * number**2,
    ],
)
def test_a_number_of_data_that_python_needs_is_refused_with_its_line(use: Any) -> None:
    with pytest.raises(UserError, match="E104") as caught:
        fx2onnx.export(lambda x: use(x.sum().item(), x), (X,))
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize(
    "use",
    [
        lambda number, x: x * number,
        lambda number, x: (number - x) / 2 + x.clamp(min=number),
        lambda number, x: x.masked_fill(x > number, number / 2),
        lambda number, x: torch.where(x > 0, x, -number),
        lambda number, x: {"number": number, "both": [number * 2 + 1, x + 1], "whole": int(number * 3)},
        lambda number, x: (x, x.tolist()[0], abs(number)),
        lambda number, x: x * sum(x.tolist()) * float(x.double().sum()),
        lambda number, x: (x, bool(x.sum() > 0), 2 if number > 1 else 3),
        lambda number, x: (torch.tensor(number), torch.tensor([number, 2, -number]) + x, torch.as_tensor([x.tolist()])),
    ],
)
def test_a_number_of_data_beside_tensors_and_as_a_result(use: Any, dtype: torch.dtype) -> None:
    x, other = torch.tensor([1, 3, -2]).to(dtype), torch.tensor([5, -7, 1]).to(dtype)
    check(lambda x: use((x * 0.5).sum().item(), x), (x,), others=[(other,), (other * 3,)])


class WithAMistakeBehind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 3:
            x = x * 2
        return self.layer(x)


LAYER = nn.Linear(5, 2)


def in_a_loop(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    for _ in range(int(count)):
        x = x * 2
    return LAYER(x)


def in_a_list(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return torch.stack([x + place for place in range(1, count.item() + 1)]) @ torch.ones(5, 2)


def in_a_while(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    place = 0
    while place < int(count):
        x, place = x + 1, place + 1
    return x.view(3, 100)


def in_rows(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    for row in x[: int(count)]:
        x = x + row
    return x + torch.ones(7)


def in_parts(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    total = sum(part.sum() for part in x[x > 0].split(1))
    return F.conv1d(x + total, torch.ones(2, 2, 9))


@pytest.mark.parametrize("axes", [None, {"x": {0: "rows"}, "count": None}])
@pytest.mark.parametrize("program", [in_a_loop, in_a_list, in_a_while, in_rows, in_parts])
def test_a_mistake_behind_as_many_turns_as_data_tells_is_named(program: Callable[..., torch.Tensor], axes: Any) -> None:
    inputs = (torch.ones(3, 4), torch.tensor(2))
    with pytest.raises(RuntimeError) as raised:
        program(*inputs)
    with pytest.raises(UserError) as caught:
        fx2onnx.export(program, inputs, dynamic_shapes=axes)
    assert caught.value.code == "E101"
    assert str(raised.value).splitlines()[0] in caught.value.why
    assert caught.value.where is not None
    assert caught.value.where.function == program.__name__


def test_turns_without_a_mistake_stay_what_is_refused() -> None:
    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return torch.stack([*{turn: x * turn for turn in range(int(count))}.values()])

    with pytest.raises(UserError, match="E104"):
        fx2onnx.export(program, (X, torch.tensor(2)))


def test_a_mistake_behind_a_number_of_data_is_named() -> None:
    with pytest.raises(UserError, match=r"E101.*(?s:.)*\(3x4 and 5x2\)") as caught:
        fx2onnx.export(WithAMistakeBehind(), (X,))
    assert "self.layer(x)" in str(caught.value)


def whether_equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.equal(x, y) else x * 2


def whether_close(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.allclose(x, y, rtol=0.5) else x * 2


def both_returned(x: torch.Tensor, y: torch.Tensor) -> tuple[bool, bool]:
    return torch.equal(x, y), torch.allclose(x, y, atol=0.25)


@pytest.mark.parametrize("axes", [None, {"x": {0: "rows"}, "y": {0: "rows"}}])
@pytest.mark.parametrize("program", [whether_equal, whether_close, both_returned])
def test_a_comparison_of_whole_tensors_decides_as_its_numbers_do(program: Callable[..., Any], axes: Any) -> None:
    ones = torch.ones(2, 3)
    check(program, (ones, ones), others=[(ones, ones * y) for y in (1.0, 1.2, 5.0, math.nan)], dynamic_shapes=axes)


def test_tensors_of_other_sizes_are_not_equal() -> None:
    check(whether_equal, (torch.ones(2, 3), torch.ones(4)))
