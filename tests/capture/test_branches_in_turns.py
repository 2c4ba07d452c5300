"""Loops of the file whose turns have branches by data: each path through a turn is a branch of the body; against eager PyTorch at sizes and
data that take each path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from tests.capture.test_while_loops import rows, start
from tests.support import check

Program = Callable[..., Any]
PROGRAMS: list[Program] = []
FIXED: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def fixed(function: Program) -> Program:
    FIXED.append(function)
    return function


@program
def adds_in_mid_turn(x: torch.Tensor) -> Any:
    out, h = [x[0]], start(x)
    for row in x:
        if row.sum() > 0:
            out.append(row)
        h = h * 0.5 + row
    return torch.stack(out), h


@program
def statements_on_a_line(x: torch.Tensor) -> Any:
    out, h, count = [x[0]], start(x), 0
    for row in x:
        # fmt: off
        if row.sum() > 0: h = h + row; out.append(h); count += 1  # noqa: E701, E702
        # fmt: on
        h = h * 0.9
    return torch.stack(out), count


@program
def chain_of_elif(x: torch.Tensor) -> Any:
    large, small, others = [x[0]], [x[0]], [x[0]]
    for row in x:
        if row.sum() > 1:
            large.append(row)
        elif row.sum() < -1:
            small.append(row)
        else:
            others.append(row * 2)
    return torch.stack(large), torch.stack(small), torch.stack(others)


@program
def adds_up_to_two(x: torch.Tensor) -> Any:
    out, h = [x[0]], start(x)
    for row in x:
        if row.sum() > 0:
            out.append(row)
        if row[0] > -0.5:
            out.append(row * 2)
        h = h + row
    return torch.stack(out), h


@program
def parts_between_marks(x: torch.Tensor) -> Any:
    parts, begin = [], 0
    for i in range(1, x.shape[0]):
        if x[i, 0] > 0:
            parts.append(x[begin:i])
            begin = i
    parts.append(x[begin:])
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


@program
def states_of_numbers(x: torch.Tensor) -> Any:
    is_inside, begin, spans = False, 0, [torch.tensor([0, 0])]
    for i in range(x.shape[0]):
        if x[i].sum() > 0 and not is_inside:
            is_inside, begin = True, i
        elif x[i].sum() <= 0 and is_inside:
            is_inside = False
            spans.append(torch.tensor([begin, i]))
    return torch.stack(spans)


@program
def greatest_number(x: torch.Tensor) -> Any:
    best, place = float("-inf"), -1
    for i in range(x.shape[0]):
        value = x[i].sum().item()
        if value > best:
            best, place = value, i
    return place, best


@program
def real_numbers(x: torch.Tensor) -> Any:
    factor, total, out = 1.0, 0.0, []
    for row in x:
        factor = factor * 0.9
        total += row.sum().item()
        out.append(row * factor)
    return torch.stack(out), total


@program
def left_on_one_path(x: torch.Tensor) -> Any:
    h, count = start(x), 0
    for row in x:
        if row[0] > 0:
            h = h + row
            if h.sum() > 4:
                break
        else:
            count += 1
    return h, count


@program
def steps_by_data(x: torch.Tensor) -> Any:
    i, out = 0, [x[0]]
    while i < x.shape[0]:
        if x[i].sum() > 0:
            out.append(x[i])
            i += 2
        else:
            i += 1
    return torch.stack(out)


@program
def writes_on_one_path(x: torch.Tensor) -> Any:
    found = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if x[i].sum() > 0:
            found[i] = x[i] * 2
        elif x[i, 0] < -0.5:
            found[i, 0] = 1
    return found


@program
def best_path(x: torch.Tensor) -> Any:
    moves = torch.linspace(-1, 1, 9).reshape(3, 3)
    score, back = x[0], []
    for t in range(1, x.shape[0]):
        scores, places = [], []
        for j in range(3):
            all_scores = score + moves[:, j]
            place = all_scores.argmax()
            places.append(place)
            scores.append(all_scores[place] + x[t, j])
        back.append(torch.stack(places))
        score = torch.stack(scores)
    last = score.argmax()
    path = [last]
    for places in back[::-1]:
        last = places[last]
        path.insert(0, last)
    return torch.stack(path), score.max()


@fixed
def steps_of_adapted_size(x: torch.Tensor) -> Any:
    t, step, y, taken = torch.zeros(()), torch.tensor(0.1), x.mean(0), 0
    for _ in range(30):
        change = torch.sin(y) * step
        if change.abs().max() > 0.05:
            step = step * 0.5
        else:
            y, t, step = y + change, t + step, step * 1.2
            taken += 1
    return y, t, taken


@fixed
def rows_of_a_fixed_number(x: torch.Tensor) -> Any:
    out, h = [x[0]], start(x)
    for row in x:
        if row.sum() > 0:
            out.append(h + row)
        h = h * 0.9 + row
    return torch.stack(out), h


@fixed
def greedy_search(x: torch.Tensor) -> Any:
    table = torch.linspace(-2, 2, 15).reshape(5, 3).sin()
    c, token, tokens, total = x.mean(0), 1, [], torch.zeros(())
    for _ in range(12):
        scores = (table @ (c + table[token])).log_softmax(0)
        best = scores.argmax()
        total = total + scores[best]
        token = int(best)
        if token == 0:
            break
        tokens.append(best + 1)
        c = c.roll(1) * 1.1
    return torch.stack([torch.tensor(-1), *tokens]) if not tokens else torch.stack(tokens), total


def rows_that_pass(x: torch.Tensor) -> Any:
    out: list[torch.Tensor] = []
    h = start(x)
    for t in range(x.shape[0]):
        h = h * 0.5 + x[t]
        if h.sum() > 0:
            out.append(h)
    return torch.stack(out)


def parts_of_rows(x: torch.Tensor) -> Any:
    lengths = x.argmax(1) + (x.sum(1) > 0)
    return torch.cat([x[i, : lengths[i]] for i in range(x.shape[0]) if x[i, 0] > 0])


@pytest.mark.parametrize(
    ("program", "count"), [(rows_that_pass, 1), (rows_that_pass, 2), (rows_that_pass, 3), (parts_of_rows, 2)]
)
@pytest.mark.long
def test_few_turns_in_the_example(program: Program, count: int) -> None:
    """The path on which no row passes fails at each size: few rows have few paths, many have a loop of the file."""
    others = [(rows(number, *large),) for number, large in ((1, (0,)), (2, (1,)), (9, (0, 4, 5)))]
    check(program, (rows(count, 0),), others=others, dynamic_shapes={"x": {0: "n"}})


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.long_cases(but=["real_numbers"])
def test_turns_with_branches(program: Program) -> None:
    others = [(rows(count, *large),) for count, large in ((1, ()), (2, (1,)), (9, (4,)), (7, (0, 6)), (30, (2, 5)))]
    result = check(program, (rows(12, 3),), others=others, dynamic_shapes={"x": {0: "n"}})
    file = result.model_proto.SerializeToString()
    assert b"Loop" in file or b"Scan" in file  # behind an If, where a first turn is run by itself


@program
def flags_in_a_list(x: torch.Tensor) -> Any:
    is_on, was, found = False, True, []
    for row in x:
        if is_on:
            if row[0] < -0.35:
                is_on = False
        elif row[0] > 0.6:
            is_on = True
        if row[1] > 0:
            was = not was
        found.append(is_on)
        found.append(was)
    return torch.tensor(found), is_on


@program
def means_of_clusters(x: torch.Tensor) -> Any:
    c = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    for _ in range(4):
        a = torch.cdist(x, c).argmin(1)
        c = torch.stack([x[a == k].mean(0) if (a == k).any() else c[k] for k in range(2)])
    return c


@fixed
def steps_of_a_size_by_data(x: torch.Tensor) -> Any:
    t, h, y = torch.tensor(0.0), torch.tensor(0.3), x
    while t < 1.0:
        d = torch.tanh(y)
        if (d * h).abs().max() > 0.25:
            h = h / 2
        else:
            y = y + h * d
            t = t + h
    return y, t


@pytest.mark.parametrize("program", FIXED, ids=lambda program: program.__name__)
@pytest.mark.long
def test_loops_of_a_fixed_length(program: Program) -> None:
    others = [(rows(12, *large),) for large in ((), (0,), (4, 7), (11,))]
    result = check(program, (rows(12, 3),), others=others)
    file = result.model_proto.SerializeToString()
    assert b"Loop" in file or b"Scan" in file  # behind an If, where a first turn is run by itself


@pytest.mark.long
def test_a_while_by_plain_numbers_says_what_to_make_a_tensor() -> None:
    def forward(x: torch.Tensor) -> Any:
        i = 0
        while i < 12:
            if x.sum() > 0:
                x = x * 0.5 - 0.1
            else:
                x = x + 0.3
            i += 1
        return x

    with pytest.raises(fx2onnx.UserError, match="plain numbers decide how often a while loops") as caught:
        fx2onnx.export(forward, (rows(12, 3),))
    assert "torch.tensor(0.0)" in caught.value.next[0]


def many_tensors(x: torch.Tensor) -> Any:
    a, b, c, d, y = torch.zeros(()), start(x), torch.ones(()), torch.zeros(()), torch.zeros(2)
    for row in x:
        if row[0] > 0:
            a = a + row[0]
        else:
            a = a * 0.5
            b = b + row
        if row[1] > 0:
            b = b.tanh()
        elif row[2] > 0:
            b = b - row
        else:
            b, c = b * 0.9, c + 1
        if a > 1:
            d = d + a
        else:
            d = d - 0.1
        if d > c:
            c, d = d, c
        else:
            y[0] += row[1]
        if row.sum() > 0:
            y[1] = d
        else:
            y[1] += row[2]
        if not b.sum() > 0:
            a = a + b.sum() * 2
    return a, b, c, d, y


def many_numbers(x: torch.Tensor) -> Any:
    n, m, k, s, is_on, out = 0, 0, 1, 0.0, False, []
    for row in x:
        if row[0] > 0:
            n += 1
        else:
            m += 1
        if row[1] > 0:
            k = n
        else:
            k = m + 2
        if row[2] > 0:
            s = s + 0.5
        else:
            s = s * 0.5
        if s > 0.7:
            is_on = True
        else:
            is_on = k > 2
        if is_on:
            n -= 1
        if row.sum() > 0:
            out.append(row * s)
    return torch.tensor([n, m, k]), x * s, torch.stack([start(x), *out])


@pytest.mark.parametrize("program", [many_tensors, many_numbers], ids=lambda program: program.__name__)
@pytest.mark.long
def test_many_branches_cost_their_sum(program: Program) -> None:
    others = [(torch.randn(count, 3),) for count in (1, 2, 9, 40)]
    result = check(program, (torch.randn(12, 3),), others=others, dynamic_shapes={"x": {0: "n"}})
    assert result.model_proto.SerializeToString().count(b"\x22\x02If") < 16  # of 128 paths
