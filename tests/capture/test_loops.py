"""Python's loops over dynamic sizes as loops of the file, however they are written; and what cannot be one, and is refused."""

from __future__ import annotations

import collections
import logging
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import UserError
from tests.support import Engines, check

Forward = Callable[..., Any]
PROGRAMS: list[Forward] = []
LOG = logging.getLogger(__name__)
REFUSED: dict[str, tuple[Forward, str]] = {}


class Cells(nn.Module):
    """Cells for the programs, each of which is the ``forward`` of such a module."""

    def __init__(self, program: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.lstm, self.to_in, self.to_out = (
            nn.GRUCell(4, 5),
            nn.LSTMCell(4, 5),
            nn.Linear(5, 4),
            nn.Linear(4, 5),
        )
        self.stack = nn.ModuleList([nn.GRUCell(4, 5), nn.GRUCell(5, 5)])
        self.program = program
        self.chosen = self.squashed
        self.wiring, self.draws = np.ones((2, 3)), np.random.RandomState(0)

    def squashed(self, h: torch.Tensor) -> torch.Tensor:
        return h.tanh() * 2

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(self, x)


def program(forward: Forward) -> Forward:
    PROGRAMS.append(forward)
    return forward


def refused(why: str) -> Callable[[Forward], Forward]:
    def note(forward: Forward) -> Forward:
        REFUSED[forward.__name__] = forward, why
        return forward

    return note


def zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[0], 5)


@program
def states_in_a_list(m: Any, x: torch.Tensor) -> Any:
    h, out = zeros(x), []
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
        out.append(h)
    return torch.stack(out, 1), h


@program
def methods_in_variables_and_attributes(m: Any, x: torch.Tensor) -> Any:
    h, out, step = zeros(x), [], m.gru.forward
    for part in x.unbind(1):
        h = m.chosen(step(part, h))
        out.append(h)
    return torch.stack(out, 1)


@program
def last_state(m: Any, x: torch.Tensor) -> Any:
    h = zeros(x)
    for t in range(x.size(1)):
        h = m.gru(x[:, t], h)
    return h


@program
def parts_of_unbind(m: Any, x: torch.Tensor) -> Any:
    h, out = zeros(x), []
    for t, part in enumerate(x.unbind(1)):
        h = m.gru(part, h) * (t + 1)
        out.append(h)
    return torch.stack(out, 1)


@program
def zipped(m: Any, x: torch.Tensor) -> Any:
    h, out = zeros(x), []
    for a, b in zip(x.unbind(1), x.transpose(0, 1) * 2, strict=False):
        h = m.gru(a + b, h)
        out.append(h)
    return torch.stack(out, 1)


@program
def rows_of_a_tensor(m: Any, x: torch.Tensor) -> Any:
    h, out = zeros(x), []
    for part in x.transpose(0, 1):
        h = m.gru(part, h)
        out.append(h)
    return torch.stack(out)


@program
def parts_of_width_one(m: Any, x: torch.Tensor) -> Any:
    h, out = zeros(x), []
    for part in x.split(1, dim=1):
        h = m.gru(part.squeeze(1), h)
        out.append(h.unsqueeze(1))
    for part in x.chunk(x.size(1), dim=1):
        h = m.gru(part[:, 0], h)
    return torch.cat(out, dim=1), h


@program
def pair_of_states(m: Any, x: torch.Tensor) -> Any:
    state, out = (zeros(x), zeros(x)), []
    for t in range(x.size(1)):
        state = m.lstm(x[:, t], state)
        out += [state[0]]
    return torch.stack(out, 1), state


@program
def no_state_at_first(m: Any, x: torch.Tensor) -> Any:
    state, out = None, []
    for t in range(x.size(1)):
        state = m.lstm(x[:, t], state)
        out.append(state)
    hs, cs = zip(*out, strict=True)
    return torch.stack(hs, 1), torch.stack(cs, 1)


@program
def first_turn_differs(m: Any, x: torch.Tensor) -> Any:
    out = []
    for t in range(x.size(1)):
        h = m.to_out(x[:, t]) if t == 0 else m.gru(x[:, t], h)  # noqa: F821
        out.append(h)
    return torch.stack(out, 1)


@program
def last_turn_differs(m: Any, x: torch.Tensor) -> Any:
    h = zeros(x)
    for t in range(x.size(1)):
        h = m.gru(x[:, t], h)
        if t < x.size(1) - 1:
            h = h.relu()
    return h


@program
def from_the_end(m: Any, x: torch.Tensor) -> Any:
    h, out, front = zeros(x), [], []
    for t in reversed(range(x.size(1))):
        h = m.gru(x[:, t], h)
        out.append(h)
    for t in range(x.size(1) - 1, -1, -1):
        h = m.gru(x[:, t], h)
        front.insert(0, h)
    out.reverse()
    return torch.stack(out, 1), torch.stack(out[::-1], 1), torch.stack(front, 1)


@program
def written_into(m: Any, x: torch.Tensor) -> Any:
    h, out, sums = zeros(x), torch.zeros(x.shape[0], x.shape[1], 5), torch.zeros(x.shape[0], 4)
    for t in range(x.size(1)):
        h = m.gru(x[:, t], h)
        out[:, t] = h
        sums += x[:, t]
    for t in range(1, x.size(1)):
        out[:, t] = 0.5 * out[:, t - 1] + out[:, t]
    return out, sums


@program
def states_of_layers(m: Any, x: torch.Tensor) -> Any:
    states, out = [zeros(x) for _ in range(2)], []
    for t in range(x.size(1)):
        y = x[:, t]
        for i, cell in enumerate(m.stack):
            states[i] = y = cell(y, states[i])
        out.append(y)
    return torch.stack(out, 1), states


@program
def states_in_a_dict_and_an_attribute(m: Any, x: torch.Tensor) -> Any:
    state = {"h": zeros(x), "c": zeros(x)}
    m.last, m.turns = zeros(x), 0
    for t in range(x.size(1)):
        state["h"], state["c"] = m.lstm(x[:, t], (state["h"], state["c"]))
        m.last = m.last * 0.5 + state["h"]
        m.turns += 2
    return state, m.last * m.turns


@program
def numbers_added(m: Any, x: torch.Tensor) -> Any:
    total, count, power = 0, 0, 1
    out = torch.zeros(x.shape[0], x.shape[1])
    for part in x.unbind(1):
        total = total + m.to_out(part)
        out[:, count] = part.sum(-1) * power
        count += 1
        power = power * 2
    return total / count, out


@program
def lists_of_comprehensions(m: Any, x: torch.Tensor) -> Any:
    one, h = torch.ones(3), zeros(x)
    out = [m.to_out(part) for part in x.unbind(1)]
    again = [m.to_in(each) for each in out]
    ones = torch.stack([one for _ in range(x.size(1))])
    return torch.stack(again, 1), out[-1], out[0], torch.stack([*out[1:-1], h]), sum(out) / len(out), ones


@program
def a_loop_over_its_list(m: Any, x: torch.Tensor) -> Any:
    h, out, back = zeros(x), [], []
    for t in range(x.size(1)):
        h = m.gru(x[:, t], h)
        out = out + [h]  # noqa: RUF005
    for each in reversed(out):
        h = m.stack[1](each, h)
        back.append(h)
    return torch.stack([torch.cat([a, b], -1) for a, b in zip(out, back[::-1], strict=False)], 1)


@program
def the_last_of_a_list(m: Any, x: torch.Tensor) -> Any:
    given, none = [m.to_out(x[:, 0])], []
    for t in range(1, x.size(1)):
        given.append(m.gru(x[:, t], given[-1]))
    for t in range(x.size(1)):
        none.append(m.gru(x[:, t], none[-1] if none else zeros(x)))
    return torch.stack(given, 1), torch.stack(none, 1)


@program
def growing(m: Any, x: torch.Tensor) -> Any:
    ys, sums = x[:, :1], []
    for t in range(x.size(1)):
        ys = torch.cat([ys, ys[:, -1:] * 0.5 + x[:, t : t + 1]], 1)
        sums.append(x[:, : t + 1].mean(1))
    return ys, torch.stack(sums, 1)


@program
def within_each_other(m: Any, x: torch.Tensor) -> Any:
    out = []
    for i in range(x.size(0)):
        h, row = torch.zeros(1, 5), []
        for t in range(x.size(1)):
            h = m.gru(x[i, t][None], h)
            row.append(h)
        out.append(torch.cat(row, 0))
    return torch.stack(out)


@program
def statements_by_data(m: Any, x: torch.Tensor) -> Any:
    h, g = zeros(x), zeros(x)
    for t in range(x.size(1)):
        if x[:, t].sum() > 0:
            h = m.gru(x[:, t], h)
    for t in range(x.size(1)):
        if x[:, t].sum() > 0:
            continue
        g = m.gru(x[:, t], g)
    return h, g


@program
def other_names_of_a_state(m: Any, x: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], 4)
    before, g = h, h
    for t in range(x.size(1)):
        before, h = h, h + x[:, t]
        g += x[:, t]
    return before, h, g


@program
def two_a_turn(m: Any, x: torch.Tensor) -> Any:
    out: list[torch.Tensor] = []
    for t in range(x.size(1)):
        out.extend([m.to_out(x[:, t]), m.to_out(x[:, t]) * 2])
        y = out[-1]
    return torch.stack(out, 1), y


@program
def rows_that_data_chooses(m: Any, x: torch.Tensor) -> Any:
    index = (x[:, :, 0] > -9).nonzero()
    sums, found, boxes = torch.zeros(x.shape[0], 4), [], torch.zeros(8, 8)
    for i in range(index.shape[0]):
        sums[index[i, 0]] += x[index[i, 0], index[i, 1]]
    for row in x[x.sum((1, 2)) > -99]:
        found.append(m.to_out(row).mean(0))
    for box in (x.reshape(-1, 4).abs() * 4).long().clamp(0, 7):
        boxes[box[0] : box[2] + 1, box[1] : box[3] + 1] = 1
    return sums, torch.stack(found), boxes


@program
def states_of_others(m: Any, x: torch.Tensor) -> Any:
    state, h, lists = types.SimpleNamespace(h=zeros(x), turns=0), zeros(x), collections.defaultdict(list)

    def step(part: torch.Tensor) -> None:
        nonlocal h
        h = m.gru(part, h)

    for t in range(x.size(1)):
        state.h = m.gru(x[:, t], state.h)
        state.turns += 1
        step(x[:, t])
        lists["h"].append(h)
    return state.h * state.turns, h, torch.stack(lists["h"], 1)


@program
def a_window_and_steps(m: Any, x: torch.Tensor) -> Any:
    window, out, is_first = [x[:, 0], x[:, 0]], [], True
    for t in range(x.size(1)):
        window.append(x[:, t] + window[0])
        window.pop(0)
    for t in range(0, x.size(1), 3):
        h = m.to_out(x[:, t : t + 3].mean(1)) if is_first else h * 0.5 + x[:, t].sum()  # noqa: F821
        is_first = False
        out.append(h)
    return torch.stack(window), torch.stack(out, 1)


@program
def rows_of_other_lengths(m: Any, x: torch.Tensor) -> Any:
    rows, turned, pairs = [row[row[:, 0] > -0.5] for row in x], [x[0, :1]], []
    for t, row in enumerate(rows):
        turned.insert(0, row.flip(0))
        pairs.append((row, row.sum(0) * t))
    parts, sums = zip(*pairs, strict=True)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)
    return padded, torch.cat(turned), torch.cat(parts), torch.stack(sums), rows[-1]


@program
def parts_of_a_split(m: Any, x: torch.Tensor) -> Any:
    return torch.cat([part.softmax(1) * k for k, part in enumerate(x.split(4, dim=1))], 1)


@program
def some_rows_of_other_lengths(m: Any, x: torch.Tensor) -> Any:
    out = [x[0, :1]]
    for t in range(x.size(1)):
        part = x[0, t:]
        if part.sum() > 0:
            out.append(part)
    return torch.cat(out)


@program
def numbers_by_data(m: Any, x: torch.Tensor) -> Any:
    best, place, count, run, most = -1e9, 0, 0, 0, 0
    for t in range(x.size(1)):
        score = x[:, t].sum()
        if score > best:
            best = score
            place = t
        if x[0, t, 0] > 0:
            count += 1
        if x[0, t, 1] > 0:
            run += 1
        else:
            run = 0
        most = max(most, run)
    return x[:, place], best, x[:, :count], most


@program
def truths_of_generators(m: Any, x: torch.Tensor) -> Any:
    y = x * 2 if any(x[:, t].sum() > 3 for t in range(x.size(1))) else x
    return y + 1 if all((row > -1.8).all() for row in x) else y


@program
def either_side_by_data(m: Any, x: torch.Tensor) -> Any:
    h, low, high, out = x[:, 0], x.min(), x.max(), []
    for t in range(x.size(1)):
        if x[0, t, 0] > 0:
            h = h + x[:, t]
            out.append(h * 2)
        else:
            h = h - x[:, t] * 2
            out.append(-h)
        middle = (low + high) / 2
        if (x < middle).float().mean() < 0.3:
            low = middle
        else:
            high = middle
    return h, torch.stack(out, 1), low, high


@pytest.mark.parametrize("forward", PROGRAMS, ids=lambda forward: forward.__name__)
@pytest.mark.long_cases(
    but=["states_in_a_list", "no_state_at_first", "written_into", "lists_of_comprehensions", "parts_of_a_split"]
)
def test_a_loop_over_a_dynamic_size_is_a_loop_of_the_file(forward: Forward) -> None:
    torch.manual_seed(1)
    shapes = [(3, 2, 4), (1, 9, 4), (5, 3, 4)]
    others = [(torch.randn(shape),) for shape in shapes]
    result = check(Cells(forward), (torch.randn(2, 6, 4),), others=others, dynamic_shapes={"x": {0: "b", 1: "n"}})
    assert any(node.op_type == "Loop" for node in result.model.graph)


def test_a_loop_runs_once_where_the_size_is_one() -> None:
    check(
        Cells(no_state_at_first),
        (torch.randn(2, 6, 4),),
        others=[(torch.randn(3, 1, 4),)],
        dynamic_shapes={"x": {0: "b", 1: "n"}},
    )


def test_elements_that_differ_in_size_do_not_stack() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row[row > 0] for row in x])

    result = check(
        forward,
        (torch.tensor([[1.0, -1.0], [-1.0, 1.0]]),),
        others=[(torch.rand(3, 4) + 0.1,)],
        dynamic_shapes={"x": {0: "b", 1: "n"}},
    )
    for session in Engines(result.model_proto).sessions.values():
        with pytest.raises(Exception, match=r"Gather|E40"):
            session.run(None, {"x": np.array([[1, -1, 1], [-1, 1, -1]], np.float32)})


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_runs_as_often_as_data_says(count: int) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4)
        for row in x[x[:, 0] > 0]:
            total = total * 0.5 + row.tanh()
        return total

    x = torch.randn(6, 4)
    other = torch.cat([torch.rand(count, 4) + 0.1, -torch.rand(6 - count, 4)])
    check(forward, (x,), others=[(other,)])


def decoded(m: Any, x: torch.Tensor) -> Any:
    ys, h = torch.ones(x.shape[0], 1, dtype=torch.long), x.mean(1)
    for _ in range(30):
        scores = m.to_out(h) + ys.sum(1, keepdim=True) * 0.1
        chosen = scores.argmax(-1)
        ys = torch.cat([ys, chosen[:, None]], 1)
        h = h * 0.9 + m.to_in(scores)
        if (chosen == 2).all():
            break
    return ys


def until_done(m: Any, x: torch.Tensor) -> Any:
    out, h, y, done = [], zeros(x), x[:, 0], torch.zeros(x.shape[0], dtype=torch.bool)
    for _turn in range(25):
        h = m.gru(y, h)
        y = m.to_in(h)
        out.append(y)
        done = done | (y.sum(-1) > 0.3)
        if not (~done).any():
            break
    return torch.stack(out, 1), done, h


def without_a_state_at_first(m: Any, x: torch.Tensor) -> Any:
    h = None
    for _ in range(20):
        h = m.gru(x[:, 0], h)
        if h.abs().sum() > 3:
            break
    return h


@pytest.mark.parametrize(
    "forward", [decoded, until_done, without_a_state_at_first], ids=lambda forward: forward.__name__
)
@pytest.mark.long_cases(but=["until_done"])
def test_a_loop_of_a_fixed_length_that_data_ends_is_a_loop_of_the_file(forward: Forward) -> None:
    torch.manual_seed(2)
    others = [(torch.randn(shape),) for shape in ((3, 2, 4), (1, 9, 4), (2, 6, 4))] + [(torch.zeros(2, 6, 4),)]
    result = check(Cells(forward), (torch.randn(2, 6, 4),), others=others, dynamic_shapes={"x": {0: "b", 1: "n"}})
    assert b"Loop" in result.model_proto.SerializeToString()  # behind an If, where a first turn is run by itself


@program
def lists_of_generators_and_maps(m: Any, x: torch.Tensor) -> Any:
    one = torch.stack(list(m.to_out(x[:, t]) for t in range(x.size(1))), 1)  # noqa: C400
    two = torch.stack(tuple(map(torch.exp, x.unbind(1))), 1)
    three = list(x.unbind(1))
    return one, two, torch.stack(three), sum(part * 2 for part in x.unbind(1)), len(three), len(list(map(abs, three)))


@program
def a_generator_function(m: Any, x: torch.Tensor) -> Any:
    def states() -> Any:
        h = zeros(x)
        for part in x.unbind(1):
            h = m.gru(part, h)
            yield h, part

    pairs = list(states())
    return torch.stack([h for h, _ in pairs], 1), pairs[-1][0], pairs[0][1]


@program
def numbers_in_a_list(m: Any, x: torch.Tensor) -> Any:
    n, steps = x.shape[1], []
    for t in range(n):
        steps.append(t * t + len(steps))
    weights = torch.tensor([0.5 for _ in range(n)]) * torch.tensor([2.0] * n)
    places = torch.tensor([[t, n] for t in range(n)])
    return x * weights[:, None], torch.tensor(steps), places, sum(steps), steps[-1], torch.tensor(range(n))


@refused("leaves the loop")
def left_early(m: Any, x: torch.Tensor) -> Any:
    h = zeros(x)
    for t in range(x.size(1)):
        h = m.gru(x[:, t], h)
        break
    return h


@refused("later turns write into")
def list_of_one_tensor(m: Any, x: torch.Tensor) -> Any:
    h, out = torch.zeros(x.shape[0], 4), []
    for t in range(x.size(1)):
        h.add_(x[:, t])
        out.append(h)
    return torch.stack(out, 1)


@refused("writes into a tensor that later ones do not|later turns write into")
def list_of_tensors_written_later(m: Any, x: torch.Tensor) -> Any:
    h, out = torch.zeros(x.shape[0], 4), []
    for t in range(x.size(1)):
        h.add_(x[:, t])
        h = h * 1.5
        out.append(h)
    return torch.stack(out, 1)


@refused("forward returns a list of a dynamic length")
def list_as_a_result(m: Any, x: torch.Tensor) -> Any:
    out = []
    for t in range(x.size(1)):
        out.append(m.to_out(x[:, t]))
    return out


@refused("is written that a turn gave on")
def written_behind_the_loop(m: Any, x: torch.Tensor) -> Any:
    h = torch.zeros(x.shape[0], 4)
    g = h
    for t in range(x.size(1)):
        g = h = h + x[:, t]
    h += 1
    return h, g


_turns = 0


@refused("global variable _turns")
def global_variable(m: Any, x: torch.Tensor) -> Any:
    global _turns
    _turns = 0
    for _ in range(x.size(1)):
        _turns += 1
    return x * _turns


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.long_cases(but=["left_early", "list_of_one_tensor"])
def test_what_is_no_loop_of_the_file_is_refused(name: str) -> None:
    forward, why = REFUSED[name]
    with pytest.raises(UserError, match=why) as caught:
        fx2onnx.export(Cells(forward), (torch.randn(2, 6, 4),), dynamic_shapes={"x": {1: "n"}})
    assert caught.value.code == "E105"
    assert any("torch.while_loop" in step for step in caught.value.next)


def _recurrent(x: torch.Tensor) -> torch.Tensor:
    h, out = x[:, 0] * 0, []
    for part in x.unbind(1):
        LOG.debug("turn")
        h = torch.tanh(h + part)
        out.append(h)
    return torch.stack(out, 1)


def _in_place(x: torch.Tensor) -> torch.Tensor:
    out = x * 0
    for index, part in enumerate(x.permute(1, 0, 2)):
        LOG.debug("turn")
        out[:, index] = torch.tanh(part + out[:, index - 1])
    return out


def _decaying(x: torch.Tensor) -> torch.Tensor:
    h, factor = x[:, 0] * 0, 1.0
    for part in x.unbind(1):
        LOG.debug("turn")
        h, factor = torch.tanh(h + part * factor), factor * 0.5
    return h


@pytest.mark.long
@pytest.mark.parametrize(("function", "is_right"), [(_recurrent, True), (_in_place, True), (_decaying, True)])
def test_a_loop_of_many_turns_is_not_unrolled(function: Any, is_right: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=__name__)
    x, given = torch.randn(2, 200, 3), ({1: "n"},)
    if is_right:
        fx2onnx.export(function, (x,), dynamic_shapes=given)
    else:
        with pytest.raises(UserError, match="factor") as caught:
            fx2onnx.export(function, (x,), dynamic_shapes=given)
        assert caught.value.code == "E105"
    assert len(caplog.records) < 20
    if is_right:
        check(function, (x[:, :150],), others=[(x[:, :3],)], dynamic_shapes=given)
