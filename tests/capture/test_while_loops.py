"""``while`` loops, and loops that Python leaves in the middle of a turn, as loops of the file; against eager PyTorch at sizes and data
with which they end in each way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import check

Program = Callable[..., Any]
BY_SIZES: list[Program] = []
BY_DATA: list[Program] = []
CHOSEN: list[Program] = []


def by_sizes(program: Program) -> Program:
    BY_SIZES.append(program)
    return program


def by_data(program: Program) -> Program:
    BY_DATA.append(program)
    return program


def chosen(program: Program) -> Program:
    CHOSEN.append(program)
    return program


def start(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[1])


@by_sizes
def counted(x: torch.Tensor) -> Any:
    t, h, out = 0, start(x), []
    while t < x.shape[0]:
        h = torch.tanh(h + x[t])
        out.append(h)
        t += 1
    return torch.stack(out), h, t


@by_sizes
def by_length_of_the_list(x: torch.Tensor) -> Any:
    out: list[torch.Tensor] = []
    while len(out) < x.shape[0]:
        out.append(x[len(out)] * 2)
    return torch.stack(out)


@by_sizes
def in_steps(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while t <= x.shape[0] - 1:
        h = torch.tanh(h + x[t : t + 3].sum(0))
        t += 3
    return h, t


@by_sizes
def downwards(x: torch.Tensor) -> Any:
    t, h = x.shape[0] - 1, start(x)
    while t >= 0:
        h = torch.tanh(h + x[t])
        t -= 1
    return h


@by_sizes
def until_equal(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while t != x.shape[0]:
        h = torch.tanh(h * 0.5 + x[t])
        t = t + 1
    return h


@by_sizes
def left_by_break(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while True:
        if t >= x.shape[0]:
            break
        h = torch.tanh(h + x[t])
        t += 1
    return h


@by_sizes
def left_by_return(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while True:
        if t >= x.shape[0]:
            return h * 2, t
        h = torch.tanh(h + x[t])
        t += 1


@by_sizes
def two_ends(x: torch.Tensor) -> Any:
    low, high, h = 0, x.shape[0] - 1, start(x)
    while low < high:
        h = torch.tanh(h + x[low] - x[high])
        low, high = low + 1, high - 1
    return h, low


@by_sizes
def up_to_the_length(x: torch.Tensor) -> Any:
    h = start(x)
    for t in range(100):
        if t >= x.shape[0]:
            break
        h = torch.tanh(h + x[t])
    return h


@by_sizes
def one_of_two_lengths(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while t < x.shape[0] - 1 or not t >= 4:
        h = torch.tanh(h + x[min(t, x.shape[0] - 1)])
        t += 1
    return h, t


@by_sizes
def returned_by_number(x: torch.Tensor) -> Any:
    h = start(x)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        if t > 3:
            return h * 2, t
    return h, -1


@by_sizes
def halved(x: torch.Tensor) -> Any:
    n = x.shape[0]
    while n > 1:
        x, n = x[: n // 2], n // 2
    return x


@by_sizes
def pooled(x: torch.Tensor) -> Any:
    y, n = x.T, 0
    while y.size(1) >= 4:
        y, n = torch.nn.functional.avg_pool1d(y[None], 2)[0], n + 1
    return y, n


@by_data
def searched(x: torch.Tensor) -> Any:
    low, high, sums = 0, x.shape[0], x[:, 0].sort().values
    while low < high:
        middle = (low + high) // 2
        if sums[middle] < 0.1:
            low = middle + 1
        else:
            high = middle
    return low


@by_data
def merged(x: torch.Tensor) -> Any:
    one, two = x[:, 0].sort().values, x.mean(1).sort().values[:3]
    i, j, out = 0, 0, []
    while i < one.shape[0] and j < two.shape[0]:
        if one[i] < two[j]:
            out.append(one[i])
            i += 1
        else:
            out.append(two[j])
            j += 1
    return torch.cat([torch.stack(out), one[i:], two[j:]])


@by_data
def kept_apart(x: torch.Tensor) -> Any:
    left, order, kept = x * 2, torch.arange(x.shape[0]), []
    while len(order):
        first = order[0]
        kept.append(first)
        if order.numel() == 1:
            break
        is_far = (x[order] - x[first]).abs().amax(1) > 0.2
        left, order = left[is_far], order[is_far]
    return torch.stack(kept), left


@by_data
def without_the_largest(x: torch.Tensor) -> Any:
    total = torch.zeros(3)
    while x.shape[0] > 0:
        total = total + x.sum(0)
        x = x[x[:, 0] < x[:, 0].max()]
    return total


@by_data
def until_large(x: torch.Tensor) -> Any:
    h, t = start(x), 0
    while h.sum() < 40 and t < 60:
        h = h + x[0].abs()
        t += 1
    return h, t


@by_data
def while_rows_are_small(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while t < x.shape[0] and x[t].sum() < 1:
        h = h + x[t]
        t += 1
    return h, t


@by_data
def until_done(x: torch.Tensor) -> Any:
    done = x.sum(1) > 2
    while not done.all():
        x = x + 0.5
        done = x.sum(1) > 2
    return x


@by_data
def by_item(x: torch.Tensor) -> Any:
    steps = 0
    while x.abs().max().item() > 0.01:
        x = x * 0.5
        steps += 1
    return x, steps


@by_data
def left_before_the_change(x: torch.Tensor) -> Any:
    h, t = start(x), 0
    for row in x:
        if row.sum() > 1:
            break
        h = h + row
        t += 1
    return h, t


@by_data
def left_in_two_places(x: torch.Tensor) -> Any:
    h, out = start(x), []
    for row in x:
        if row.sum() > 1:
            break
        h = h + row
        out.append(h)
        if h.sum() > 100:
            break
    return h


@by_data
def kept_up_to_there(x: torch.Tensor) -> Any:
    out = [x[0] * 0]
    for row in x:
        if row.sum() > 1 or row.max() > 3:
            break
        out.append(row * 2)
    return torch.stack(out)


@by_data
def kept_with_the_last(x: torch.Tensor) -> Any:
    out = []
    for row in x:
        out.append(row * 2)
        if not row.sum() < 1:
            break
        x = x + 0
    return torch.stack(out)


@by_data
def converging(x: torch.Tensor) -> Any:
    for _turn in range(30):
        y = x * 0.7
        if (y - x).abs().max() < 0.01:
            break
        x = y
    return x, y


@by_data
def written_in_place(x: torch.Tensor) -> Any:
    h = start(x).clone()
    for row in x:
        h.add_(row)
        if h.sum() > 1:
            break
        h.mul_(0.5)
    return h


@by_data
def one_of_two_tests(x: torch.Tensor) -> Any:
    t, h = 0, start(x)
    while t < x.shape[0] and (not -1 < h.sum() < 1 or t < 2):
        h = h + x[t]
        t += 1
    return h, t


@by_data
def both_of_two_tests(x: torch.Tensor) -> Any:
    h = start(x)
    for i in range(x.shape[0]):
        h = h + x[i]
        if i + 1 < x.shape[0] and x[i + 1].sum() > 1:
            break
        if (h.sum() > 1 and i > 1) or h.max() > 3:
            break
    return h


@by_data
def returned(x: torch.Tensor) -> Any:
    h = start(x)
    for t, row in enumerate(x):
        h = h + row
        if h.sum() > 1:
            return h * 2, t
        if h.min() < -4:
            h = h - 1
            return h, -t
    return h, x.shape[0]


@by_data
def returned_from_a_loop_within(x: torch.Tensor) -> Any:
    h = start(x)
    for one in x:
        for other in x:
            h = h + one * other
            if h.sum() > 9:
                return h * 2
        h = h * 0.5
    return h


@by_data
def returned_from_a_while(x: torch.Tensor) -> Any:
    t, h, out = 0, start(x), []
    while t < x.shape[0]:
        h = h + x[t]
        out.append(h)
        if h.sum() < 1:
            t += 1
        else:
            return torch.stack(out)
    return torch.stack(out) * 2


@by_data
def place_of_the_first(x: torch.Tensor) -> Any:
    def place(rows: Any) -> Any:
        for t in range(rows.shape[0]):
            if rows[t].sum() > 1:
                return t
        return -1

    return x * place(x)


@by_data
def without_a_break(x: torch.Tensor) -> Any:
    for t, row in enumerate(x):
        if row.sum() > 1:
            last = row * t
            break
    else:
        last = start(x) - 1
    return last


@by_data
def left_at_once(x: torch.Tensor) -> Any:
    h = x + 1
    while True:
        new = h * 0.5
        if new.abs().max() < 1.5:
            break
        h = new
    return h


@by_data
def replaced_where_there_is_a_turn(x: torch.Tensor) -> Any:
    h, count, most, last = x + 1, 3, x.max(), x[0] + 1
    for row in x[x[:, 0] > 2]:
        h, count = row * x, 5
    while most > 2:
        new = x * most
        most = most * 0.5
        h = h + new.sum()
        new = h
    for i in range(1, x.shape[0]):
        last = x[i] * 2
    return h, count, last


@chosen
def by_number(x: torch.Tensor) -> Any:
    return torch.stack([row * i for i, row in enumerate(x) if i % 3 != 1]), x[[i for i in range(x.shape[0]) if i % 2]]


@chosen
def that_have_a_following(x: torch.Tensor) -> Any:
    return torch.stack([x[0]] + [x[i + 1] - x[i] for i in range(x.shape[0]) if i + 1 < x.shape[0]])


@chosen
def by_two_tests(x: torch.Tensor) -> Any:
    large = x[:, 0] > -0.5
    some = [x[i] for i in range(x.shape[0]) if large[i]]
    both = sum((row for row in x if row.sum() > -2 and not row.max() > 1), start(x))
    return sum(some, start(x)) + both


@chosen
def by_an_if(x: torch.Tensor) -> Any:
    out, places, last, h = [x[0]], [], 0, start(x)
    for i, row in enumerate(x):
        h = h + row
        if (row - out[-1]).abs().sum() > 0.3:
            out.append(row * len(out))
            places.append(i)
            last += i
    return torch.stack(out), x[places], len(out), last, h


@chosen
def and_the_rest_left_out(x: torch.Tensor) -> Any:
    t, out, pairs = 0, [x[0]], []
    while t < x.shape[0]:
        row = x[t]
        t += 1
        pairs.append(row)
        if row.sum() < -1 or row.max() > 2:
            continue
        out.extend([row, row * t])
    return torch.stack(out), torch.stack(pairs)


@chosen
def up_to_a_break(x: torch.Tensor) -> Any:
    out, h = [x[0]], start(x)
    for row in x:
        if row.sum() < -1:
            continue
        h = h + row
        if h.sum() > 2:
            break
        out.append(h)
    return torch.stack(out), h


@chosen
def up_to_a_return(x: torch.Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() < -1:
            continue
        if row.sum() > 3:
            return torch.stack(out)
        out.append(row)
    return torch.stack(out) + 1


@chosen
def within_a_loop(x: torch.Tensor) -> Any:
    h, total = start(x), start(x)
    for one in x:
        h = h * 0.5 + sum([other for other in x if (one * other).sum() > 1], start(x))
        if h.sum() > 0:
            h *= 0.5
        total += h
    return h, total


@chosen
def from_the_front(x: torch.Tensor) -> Any:
    h = start(x)
    while x.shape[0] >= 2:
        h = h + x[0] * x[1]
        x = x[2:]
    return h, x


def rows(count: int, *large: int) -> torch.Tensor:
    """Rows whose sums are below 1, but for some."""
    x = torch.linspace(-1, 0.3, count * 3).reshape(count, 3)
    x[list(large)] = 2.5
    return x


def filled_up_to_a_sum(x: torch.Tensor) -> Any:
    found, used = [x[0]], 0.0
    for i in range(x.shape[0]):
        cost = float(x[i].abs().sum())
        if used + cost > 9.0:
            break
        used += cost
        found.append(x[i])
    return torch.stack(found), used


def chosen_or_last(x: torch.Tensor) -> Any:
    found = -1.0
    for row in x:
        if row.sum() > 3:
            found = 7.5
            break
        found = row[:1].item() + float(row[1:2])
    return x * found


def halved_where_it_ends(x: torch.Tensor) -> Any:
    number, is_large = 1.0, False
    for row in x:
        if row.sum() > 3:
            number, is_large = number / 2, True
            break
        number = number * 1.5
    return x * number, torch.tensor(is_large)


def returned_with_a_sum(x: torch.Tensor) -> Any:
    used = 0.0
    for row in x:
        used += row.abs().sum().item()
        if used > 9:
            return row * used
    return x[0] * used


def set_before_it_ends(x: torch.Tensor) -> Any:
    found = 0.5
    for i in range(x.shape[0]):
        found = 0.25
        if x[i].sum() > 3:
            break
        found = x[i].sum().item() * 2
    return x * found


def one_of_two_constants(x: torch.Tensor) -> Any:
    found = 0.5
    for i in range(x.shape[0]):
        found = 1.5
        if x[i].sum() > 3:
            break
        found = 2.5
    return x * found


REALS = [
    filled_up_to_a_sum,
    chosen_or_last,
    halved_where_it_ends,
    returned_with_a_sum,
    set_before_it_ends,
    one_of_two_constants,
]


@pytest.mark.parametrize("program", BY_SIZES, ids=lambda program: program.__name__)
@pytest.mark.long_cases(but=["counted", "left_by_return", "one_of_two_lengths"])
def test_while_loops_by_sizes(program: Program) -> None:
    others = [(rows(count),) for count in (1, 2, 9, 40)]
    result = check(program, (rows(5),), others=others, dynamic_shapes={"x": {0: "n"}})
    assert "Loop" in {node.op_type for node in result.model.graph}


@pytest.mark.parametrize("program", [*BY_DATA, *REALS], ids=lambda program: program.__name__)
@pytest.mark.long_cases(
    but=["while_rows_are_small", "left_before_the_change", "one_of_two_tests", "filled_up_to_a_sum"]
)
def test_loops_that_data_ends(program: Program) -> None:
    others = [
        (rows(count, *large),) for count, large in ((1, ()), (1, (0,)), (9, (4,)), (7, (6,)), (30, (0, 5)), (4, ()))
    ]
    result = check(program, (rows(20, 3),), others=others, dynamic_shapes={"x": {0: "n"}})
    assert "Loop" in {node.op_type for node in result.model.graph}


@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.__name__)
@pytest.mark.long_cases(but=["by_number", "by_an_if"])
def test_lists_that_take_some_elements(program: Program) -> None:
    others = [(rows(count, *large),) for count, large in ((1, ()), (2, (1,)), (9, (4,)), (7, (0, 6)), (30, (2, 5)))]
    result = check(program, (rows(12, 3),), others=others, dynamic_shapes={"x": {0: "n"}})
    assert "Loop" in {node.op_type for node in result.model.graph}


def rounded_until_infinite(x: torch.Tensor) -> Any:
    total = 0
    for row in x:
        if row.isinf().any():
            break
        total += int(row.sum())
    return x * total


def returned_before_rounding(x: torch.Tensor) -> Any:
    for row in x:
        if row.isinf().any():
            return row.abs()
        x = x + int(row.sum())
    return x[0]


def rounded_in_a_branch(x: torch.Tensor) -> Any:
    count = 0
    for row in x:
        if row.sum() < 0:
            if row.isinf().any():
                break
            count += round(row.sum().item())
        else:
            count += 1
    return x * count


def divided_until_infinite(x: torch.Tensor) -> Any:
    total = 0.0
    for row in x:
        if row[0] == -math.inf:
            break
        total += 1 / row.isfinite().all().float().item()
    return x[0, 1] * total


@pytest.mark.parametrize(
    "program",
    [rounded_until_infinite, returned_before_rounding, rounded_in_a_branch, divided_until_infinite],
    ids=lambda program: program.__name__,
)
def test_what_a_turn_needs_behind_a_break_is_needed_where_python_stays(program: Program) -> None:
    x, ends, ends_at_once = rows(5), rows(6), rows(3)
    ends[2, 0] = ends_at_once[0, 0] = -math.inf
    check(program, (x,), others=[(rows(9),), (ends,), (ends_at_once,)], dynamic_shapes={"x": {0: "n"}})


def rounded_before_the_break(x: torch.Tensor) -> Any:
    total = 0
    for row in x:
        total += int(row.sum())
        if row[0] > 1e9:
            break
    return x * total


def test_what_a_turn_needs_before_its_break_is_needed() -> None:
    x = rows(4)
    model = fx2onnx.export(rounded_before_the_break, (x,), dynamic_shapes={"x": {0: "n"}}).model_proto
    x[1, 0] = math.inf
    for session in (
        InferenceSession(model.SerializeToString()),
        onnxruntime.InferenceSession(model.SerializeToString()),
    ):
        with pytest.raises(Exception, match=r"has to be true|is finite"):
            session.run(None, {"x": x.numpy()})
