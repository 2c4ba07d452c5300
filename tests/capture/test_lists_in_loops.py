"""Lists of a dynamic length that Python changes at will, in the loops that fill them and behind them; against eager PyTorch at other lengths
and data.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check

Program = Callable[..., Any]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


@program
def taken_and_put_back(x: torch.Tensor) -> Any:
    out = [row.relu() for row in x]
    first, last = out.pop(0), out.pop()
    out.insert(1, first)
    out[-1] = out[-1] + last
    return torch.stack(out), len(out)


@program
def deleted(x: torch.Tensor) -> Any:
    out = [row * 2 for row in x] + [x.sum(0)]
    del out[0]
    del out[1:2]
    return torch.stack(out)


@program
def numbers_found(x: torch.Tensor) -> Any:
    numbers = [i * i for i in range(x.shape[0])]
    numbers.append(4)
    place, count = numbers.index(4), numbers.count(4)
    numbers.remove(0)
    return torch.tensor(numbers), place, count, 9 in numbers


@program
def last_replaced(x: torch.Tensor) -> Any:
    out = [x[0]]
    for row in x[1:]:
        if row.sum() > 0:
            out.append(row)
        else:
            out[-1] = out[-1] + row
    return torch.stack(out)


@program
def shift_and_reduce(x: torch.Tensor) -> Any:
    stack: list[torch.Tensor] = []
    for row in x:
        stack.append(row)
        if len(stack) >= 2 and row[0] > 0:
            right, left = stack.pop(), stack.pop()
            stack.append(torch.tanh(left + right))
    return torch.stack(stack)


@program
def attention_to_former(x: torch.Tensor) -> Any:
    states = [x[0]]
    for row in x[1:]:
        former = torch.stack(states)
        states.append(torch.tanh(row + (former @ row).softmax(0) @ former))
    return torch.stack(states)


@program
def sums_of_former(x: torch.Tensor) -> Any:
    out: list[torch.Tensor] = []
    for row in x:
        out.append(row + sum(out, torch.zeros(3)))
    return torch.stack(out)


@program
def distinct(x: torch.Tensor) -> Any:
    seen: list[int] = []
    for row in x:
        place = int(row.argmax())
        if place not in seen:
            seen.append(place)
    return torch.tensor(seen)


@program
def kept_boxes(x: torch.Tensor) -> Any:
    keep: list[int] = []
    for i in range(x.shape[0]):
        if all((x[i] - x[j]).abs().sum() > 0.5 for j in keep):
            keep.append(i)
    return torch.tensor(keep)


@program
def labels_that_may_be_none(x: torch.Tensor) -> Any:
    """Small inputs often have no label; with a dtype, the tensor of an empty list is known."""
    labels: list[int] = []
    last = 0
    for row in x:
        place = int((row > 1.2).sum())
        if place not in (0, last):
            labels.append(place)
        last = place
    return torch.tensor(labels, dtype=torch.int32), x.new_tensor(labels)


@program
def left_with_a_list(x: torch.Tensor) -> Any:
    rows = [x[0]]
    for row in x:
        rows.append(row)
        if row.sum() > 2.5:
            break
        if row[0] > 0:
            rows.pop(0)
    return torch.stack(rows), len(rows)


@program
def records(x: torch.Tensor) -> Any:
    best: list[torch.Tensor] = []
    for row in x:
        value = row.sum()
        if len(best) == 0 or value > max(best):
            best.append(value)
    return torch.stack(best)


@program
def of_two_sizes(x: torch.Tensor) -> Any:
    blocks = []
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            blocks.append(x[: i + 1, None] * x[None, i:])
        else:
            blocks.append(x[i:, None] + x[None, : i + 1])
    total = torch.zeros(())
    for block in blocks:
        total = torch.tanh(total + block.mean())
    return total, blocks[-1], torch.cat([block.flatten() for block in blocks])


@program
def halved(x: torch.Tensor) -> Any:
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        x = torch.cat([x[:half] + x[half : 2 * half], x[2 * half :]])
    return x[0]


@program
def symbols_of_frames(x: torch.Tensor) -> Any:
    found, h = [0], torch.zeros(3)
    for frame in x:
        is_blank, count = False, 0
        while not is_blank and count < 3:
            symbol = int((frame + h).argmax())
            if symbol == 2:
                is_blank = True
            else:
                found.append(symbol)
                h = torch.tanh(h * 0.5 - frame)
            count += 1
    return torch.tensor(found)


@program
def differences_of_pairs(x: torch.Tensor) -> Any:
    out = []
    for i in range(x.shape[0]):
        for j in range(i + 1):
            out.append(x[i] - x[j])
    return torch.stack(out)


@program
def comprehension_over_pairs(x: torch.Tensor) -> Any:
    n = x.shape[0]
    flat = torch.stack([(a * b).sum() for a in x for b in x])
    return flat, torch.tensor([[abs(i - j) for j in range(n)] for i in range(n)])


@program
def reduced_in_pairs(x: torch.Tensor) -> Any:
    xs = list(x.unbind(0))
    while len(xs) > 1:
        xs = [xs[i] + xs[i + 1] if i + 1 < len(xs) else xs[i] for i in range(0, len(xs), 2)]
    return xs[0]


@program
def reduced_as_a_queue(x: torch.Tensor) -> Any:
    xs = [row for row in x]  # noqa: C416
    while len(xs) > 1:
        first, second = xs.pop(0), xs.pop(0)
        xs.append(torch.tanh(first - second))
    return xs[0]


@program
def accumulated(x: torch.Tensor) -> Any:
    sums = itertools.accumulate(x, lambda h, row: torch.tanh(0.5 * h + row))
    from_zero = itertools.accumulate(x, initial=torch.zeros(3))
    largest = functools.reduce(torch.maximum, (row * 2 for row in x))
    return torch.stack(list(sums)), torch.stack(list(from_zero)), largest, functools.reduce(torch.add, x, x.sum(0))


@program
def in_pairs(x: torch.Tensor) -> Any:
    steps = [after - before for before, after in pairwise(itertools.chain(x, x))]
    scaled = [row * factor for row, factor in itertools.product(x, [1.0, 2.0])]
    dots = [one @ other for one, other in itertools.product(x, repeat=2)]
    return torch.stack(steps), torch.stack(scaled), torch.stack(dots)


@program
def chained(x: torch.Tensor) -> Any:
    out = [torch.zeros(3)]
    out.extend(x)
    out += x[1:]
    rows = [row * 2 for row in itertools.chain([x.sum(0)], x, x.flip(0))]
    some = [a * b for a, b in zip(itertools.islice(x, 0, None, 2), [1.0, 3.0], strict=False)]
    return (
        torch.stack(out),
        torch.stack(rows),
        torch.stack(some),
        torch.stack(list(itertools.starmap(torch.mul, zip(x, x, strict=True)))),
    )


def _states(rows: Any) -> Any:
    h = torch.zeros(3)
    for row in rows:
        h = torch.tanh(h + row)
        yield h
    yield h * 2


@program
def generators_of_generators(x: torch.Tensor) -> Any:
    scaled, total, found = (row * 2 for row in x), torch.zeros(3), []
    for h in _states(row + 1 for row in x):
        total = total + h
        found.append(h)
    largest = max(h.sum() for h in _states(x))
    return (
        torch.stack([row.exp() for row in scaled]),
        total,
        torch.stack(found),
        sum(h * 2 for h in _states(x)),
        largest,
    )


@program
def sorted_by_keys(x: torch.Tensor) -> Any:
    rows, numbers = list(x), [row[0].item() for row in x]
    rows.sort(key=lambda row: float(row.sum()), reverse=True)
    numbers.sort()
    pairs = sorted((row[1], i) for i, row in enumerate(x))
    signs = sorted(((row > 0).sum().item(), i, row) for i, row in enumerate(x))
    order = sorted(range(x.shape[0]), key=lambda i: x[i, 0].item())
    last = max((i % 3, -i) for i in range(x.shape[0]))
    return (
        torch.stack(rows),
        torch.tensor(numbers),
        pairs[0][1],
        torch.stack([r for *_, r in signs]),
        x[order],
        last,
    )


@program
def at_both_ends(x: torch.Tensor) -> Any:
    out: list[torch.Tensor] = []
    around = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)
            around.insert(0, row)
        else:
            out.insert(0, row)
            around.append(row * 2)
    return torch.stack(out), torch.stack(around)


@program
def tuples_in_parts(x: torch.Tensor) -> Any:
    pairs = [(0, x[0])]
    for i, row in enumerate(x):
        pairs.append((i + 1, row * 2))
    pairs.append((-1, x[-1]))
    first, last = pairs.pop(0), pairs[-1][0]
    pairs.reverse()
    del pairs[:1]
    later = pairs[1:]
    numbers = [i * 2 for i in range(x.shape[0])]
    numbers.reverse()
    rows = [torch.stack([row for _, row in part]) for part in (pairs, [*reversed(pairs)])]
    return rows, torch.tensor([i for i, _ in pairs]), len(later), first, last, numbers[0] + 1


@program
def read_by_the_number_of_a_turn(x: torch.Tensor) -> Any:
    former, sums = torch.arange(x.shape[0] + 1.0), [x[0], x[0] * 0.5]
    for i in range(x.shape[0]):
        now = [former[0] + 1]
        for j in range(x.shape[0]):
            now.append(torch.minimum(now[j] + 1, former[j] + x[i, 0]))
        former = torch.stack(now)
        sums.append(0.5 * (sums[i] + sums[i + 1]) + x[i])
    return former, torch.stack(sums)


@program
def taken_all(x: torch.Tensor) -> Any:
    rows, numbers, more = [*x], [*x[:, 0]], [x[0]]
    numbers.sort()
    rows.reverse()
    rows.insert(1, x[0] * 2)
    more += rows[1:]
    more.extend(x)
    more *= 2
    return torch.stack(rows), torch.stack(numbers), torch.cat((*x, x[0])), torch.stack(more), len(more), rows[-1]


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.long_cases(but=["taken_and_put_back", "sums_of_former"])
def test_lists(program: Program) -> None:
    least = 3 if program in PROGRAMS[:3] else 1
    others = [(drawn(count, seed),) for seed, count in enumerate((least, 3, 4, 9, 13, 30))]
    result = check(program, (drawn(12),), others=others, dynamic_shapes={"x": {0: "n"}})
    assert {"Loop", "Scan"} & {node.op_type for node in result.model.graph} or program in (PROGRAMS[0], taken_all)


def _sum_of_some(x: torch.Tensor) -> Any:
    return sum(row.mean() for row in x if row.mean() > 0.3)


def _number_at_first(x: torch.Tensor) -> Any:
    h: Any = 0.0
    for i in (x[:, 0] > 0).nonzero()[:, 0]:
        h = h + x[i]
    return h * 2


@pytest.mark.long
@pytest.mark.parametrize("forward", [_sum_of_some, _number_at_first], ids=lambda forward: forward.__name__)
def test_a_result_that_is_a_number_without_turns_is_warned_of(forward: Program) -> None:
    with pytest.warns(fx2onnx.ExportWarning, match="a number of Python's where no turn"):
        fx2onnx.export(forward, (drawn(12),), dynamic_shapes={"x": {0: "n"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error", fx2onnx.ExportWarning)
        fx2onnx.export(lambda x: x + forward(x), (drawn(12),), dynamic_shapes={"x": {0: "n"}})


@pytest.mark.long
def test_a_dict_by_sizes_is_refused() -> None:
    def forward(x: torch.Tensor) -> Any:
        found = {}
        for i in range(x.shape[0]):
            found[i] = x[i] * 2
        return torch.stack([*found.values()])

    with pytest.raises(fx2onnx.UserError, match=r"(?s)E105.*is the key of a dict") as caught:
        fx2onnx.export(forward, (drawn(12),), dynamic_shapes={"x": {0: "n"}})
    assert "found.append(h)" in caught.value.next[0]


def _last_two(x: torch.Tensor) -> Any:
    return torch.stack(list(deque(x, maxlen=2)))


def _some(x: torch.Tensor) -> Any:
    return torch.stack(list(itertools.compress(x, [1, 0])))


def _written_rows(x: torch.Tensor) -> Any:
    grid = [[0.0] * 3 for _ in range(x.shape[0])]
    for i in range(x.shape[0]):
        for j in range(3):
            grid[i][j] = x[i, j].item() * 2
    return torch.tensor(grid)


def _changed_rows(x: torch.Tensor) -> Any:
    rows = [(row, [row, row * 2]) for row in x]
    for _, pair in rows:
        pair.reverse()
    return torch.stack([pair[0] for _, pair in rows])


def _tuple_of_rows(x: torch.Tensor) -> Any:
    rows = (*x, x[0])
    return torch.stack(rows[1:])


def _arguments(x: torch.Tensor) -> Any:
    def joined(*rows: torch.Tensor) -> Any:
        return torch.stack(rows), len(rows)

    return joined(*x)


@pytest.mark.parametrize(
    "forward",
    [_last_two, _some, _written_rows, _changed_rows, _tuple_of_rows, _arguments],
    ids=lambda forward: forward.__name__,
)
@pytest.mark.long
def test_what_would_be_lost_is_refused(forward: Program) -> None:
    """The file had all elements where Python left some out, and lists as they were before Python changed them."""
    with pytest.raises(
        fx2onnx.UserError, match=r"an iterator of Python's|changes a list that is an element|makes a tuple"
    ):
        fx2onnx.export(forward, (drawn(12),), dynamic_shapes={"x": {0: "n"}})


def _accumulated(x: torch.Tensor) -> torch.Tensor:
    return list(itertools.accumulate(x.unbind(0)))[-1]


def _appended(x: torch.Tensor) -> torch.Tensor:
    found = [x[0]]
    for row in x.unbind(0)[1:]:
        found.append(found[-1] * 0.5 + row)
    return found[-1]


def _before_the_last(x: torch.Tensor) -> torch.Tensor:
    found = [x[0], x[0] * 2]
    for row in x.unbind(0)[1:]:
        found.append(found[-1] * 0.5 + row)
    return found[-2]


@pytest.mark.parametrize("forward", [_accumulated, _appended, _before_the_last])
def test_an_element_from_the_end_is_one_before_the_loop_where_it_has_few_turns(
    forward: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    others = [(torch.randn(size, 3),) for size in (1, 2, 3, 9)]
    check(forward, (torch.randn(5, 3),), others=others, dynamic_shapes=({0: "n"},))
