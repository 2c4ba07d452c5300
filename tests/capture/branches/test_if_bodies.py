"""Statements that a test by data guards, in a row: one branch of the file for each, not a path for each set of answers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.runner.trainer import StatefulSession
from tests.support import check

WIDTH, TOKENS = 6, 5


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError("rows of tokens are wanted")
        return self.down(nn.functional.silu(self.up(x)))


class Routed(nn.Module):
    """Each token goes to two of the experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        flat = x.reshape(-1, WIDTH)
        weight, top = self.gate(flat).softmax(-1).topk(2, -1)
        return flat, weight, top


class AddedByIndex(Routed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weight, top = self.routed(x)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows, slot = (top == e).nonzero(as_tuple=True)
            if rows.numel():
                out.index_add_(0, rows, expert(flat[rows]) * weight[rows, slot].unsqueeze(-1))
        return out.reshape(x.shape)


class LeftOut(Routed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weight, top = self.routed(x)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            idx = (top == e).nonzero()
            if idx.numel() == 0:
                continue
            rows, slot = idx[:, 0], idx[:, 1]
            y = expert(flat[rows])
            y *= weight[rows, slot, None]
            out.index_add_(0, rows, y)
        return out.reshape(x.shape)


class Masked(Routed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weight, top = self.routed(x)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            mask = (top == e).any(-1)
            if mask.any():
                out[mask] += expert(flat[mask]) * (weight * (top == e)).sum(-1)[mask][:, None]
        return out.reshape(x.shape)


class Summed(Routed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weight, top = self.routed(x)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            chosen = top == e
            if chosen.sum() > 0:
                out = out + expert(flat) * (weight * chosen).sum(-1, keepdim=True)
        return out.reshape(x.shape)


class ReturnedEarly(Routed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, weight, top = self.routed(x)
        out = torch.zeros_like(flat)
        for e in range(len(self.experts)):
            out = self.added(e, out, flat, (weight * (top == e)).sum(-1))
        return out.reshape(x.shape)

    def added(self, e: int, out: torch.Tensor, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = weight.nonzero().squeeze(-1)
        if not rows.numel():
            return out
        return out.index_add(0, rows, self.experts[e](flat[rows]) * weight[rows, None])


def ifs(result: Any) -> int:
    return sum(node.op_type == "If" for node in result.model.graph)


@pytest.mark.long_cases(but=["4-Summed", "8-Summed"])
@pytest.mark.parametrize("kind", [AddedByIndex, LeftOut, Masked, Summed, ReturnedEarly])
@pytest.mark.parametrize("experts", [4, 8])
def test_routed_experts(kind: type[Routed], experts: int) -> None:
    """With one token, and with equal ones, most experts get none."""
    torch.manual_seed(0)
    module = kind(experts).eval()
    x = torch.randn(2, TOKENS, WIDTH)
    others = [(torch.randn(sizes),) for sizes in ((1, 1, WIDTH), (1, 2, WIDTH), (3, 7, WIDTH), (7, 1, WIDTH))]
    others += [(torch.zeros(2, TOKENS, WIDTH),), (torch.ones(1, 3, WIDTH),)]
    result = check(module, (x,), others=others, dynamic_shapes=({0: "batch", 1: "tokens"},))
    assert ifs(result) == experts
    assert len(result.report.attempts) == 1
    if experts == 4:
        assert ifs(check(module, (x,), others=[(torch.zeros_like(x),), (torch.randn_like(x),)])) == experts


X = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]])
OTHERS = [(-X.abs(),), (X.abs(),), (X * 0,), (X * 3 + 1,), (X - 1,)]


def counts(x: torch.Tensor) -> torch.Tensor:
    used = 0
    for row in range(2):
        if x[row].sum() > 0:
            x = x + 1
            used += 1
    return x * 2 if used > 1 else x - used


def appends(x: torch.Tensor) -> torch.Tensor:
    kept = [x]
    for row in range(2):
        if x[row].sum() > 0:
            kept.append(x + row)
    return torch.stack(kept).sum(0)


def adds_to_a_list(x: torch.Tensor) -> torch.Tensor:
    kept = [x]
    for row in range(2):
        if x[row].sum() > 0:
            kept += [x + row]
    return torch.stack(kept).sum(0)


def writes_into_a_dict(x: torch.Tensor) -> torch.Tensor:
    kept = {"x": x}
    if x.sum() > 0:
        kept["x"] = x * 2
    return kept["x"] + 1


def keeps_for_the_next_turn(x: torch.Tensor) -> torch.Tensor:
    last = 0
    for turn in range(3):
        if x.sum() > turn:
            x = x - last
            last = turn + 1
    return x


def written_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = y = x * 1
    if x.sum() > 0:
        y = y * 2
    y += 1
    return first, y


def source_written_later(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = y = x * 1
    if x.sum() > 0:
        y = y * 2
    first += 1
    return first, y


def changes_the_rank(x: torch.Tensor) -> torch.Tensor:
    y = x
    if x.sum() > 0:
        y = x[:1]
    return y.sum() * y.shape[0]


def leaks_a_size(x: torch.Tensor) -> torch.Tensor:
    count = 7
    if x.sum() > 0:
        count = (x > 1).nonzero().shape[0]
    return x * count


def within_another(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    if x.sum() > 0:
        y[0] = y[0] + 1
        if x[0].sum() > 0:
            y[1] = y[0] * 2
        y = y - 1
    return y


def swaps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x * 2, x * 3
    if x.sum() > 0:
        a, b = b, a
    return a, b


def last_of_an_or(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    if x.max() > 5 or x.min() < -5:
        y = y * 2
    if x.max() > 1 and x.min() < 0:
        y = y + 1
    return y


def any_of_numbers(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    if any(x[0, 1:] > 2):
        y = y * 2
    if not all(x[1, 1:] > -1):
        y = y + 1
    return y


def view_written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone()
    row, rest = y[0], y[1:]
    if x.sum() > 0:
        row.mul_(2)
    if x.min() < -5:
        rest.copy_(row.unsqueeze(0))
    return y, row + rest[0]


def from_memory_of_another(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    row = y[1]
    if x.sum() > 0:
        row = y[0]
    y.add_(1)
    return row + 0 * y[0]


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def up(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x


def changes_an_object(x: torch.Tensor) -> torch.Tensor:
    counter = Counter()
    for row in range(2):
        if x[row].sum() > 0:
            x = counter.up(x) + 1
    return x * 2 if counter.count > 1 else x


def calls_what_was_bound(x: torch.Tensor) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    keep = kept.append
    for row in range(2):
        if x[row].sum() > 0:
            keep(x[row])
    return x + len(kept)


def goes_on_with_an_iterator(x: torch.Tensor) -> torch.Tensor:
    numbers = iter([1, 2, 3, 4])
    for row in range(2):
        if x[row].sum() > 0:
            for number in numbers:
                x = x + number
    return x + sum(numbers)


def loops_into_a_list(x: torch.Tensor) -> torch.Tensor:
    kept = [0]
    if x.sum() > 0:
        for kept[0] in range(3):
            x = x + 1
    return x + kept[0]


@pytest.mark.parametrize(
    "function",
    [
        goes_on_with_an_iterator, loops_into_a_list, counts, appends, adds_to_a_list, writes_into_a_dict, keeps_for_the_next_turn, written_later, source_written_later,
        changes_the_rank, leaks_a_size, within_another, swaps, last_of_an_or, any_of_numbers, view_written,
        from_memory_of_another, changes_an_object, calls_what_was_bound,
    ],
)  # fmt: skip
def test_what_else_a_body_does_is_seen(function: Any) -> None:
    check(function, (X,), others=OTHERS)


def unlike_a_branch(x: torch.Tensor) -> torch.Tensor:
    kept = {0}
    for row in range(6):
        if x[row % 2].sum() > row:
            kept.add(row)
        else:
            kept.discard(row - 1)
    return x + len(kept)


@pytest.mark.long
def test_the_log_says_why_a_body_is_no_branch() -> None:
    with pytest.raises(UserError, match="more than 16 paths"):
        fx2onnx.export(unlike_a_branch, (X,))
    result = fx2onnx.export(counts, (X,))
    assert any("every test by data is a decision: the variable used" in line for line in result.report.attempts)


def test_two_rows_of_statements_are_as_many_branches() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for turn in range(20):
            if x.sum() > turn:
                x = x - 0.5
        return x

    assert ifs(check(function, (X,), others=OTHERS)) == 20


def test_the_order_of_branches_is_kept_with_state() -> None:
    class Tally(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for row in range(2):
                if x[row].sum() > 0:
                    self.seen.add_(x[row])
            return x + self.seen

    module = Tally()
    result = fx2onnx.export(module, (X,), state="io")
    assert ifs(result) == 2
    session = StatefulSession(InferenceSession(result.model_proto.SerializeToString()), result.initial_state)
    for (x,) in OTHERS:
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).numpy(), rtol=1e-5)


def test_traces_of_others_are_put_back() -> None:
    def trace(frame: Any, event: str, arg: object) -> None:
        return None

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    try:
        fx2onnx.export(within_another, (X,))
        assert sys.gettrace() is trace
        fx2onnx.export(counts, (X,))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before[0])
    assert sys.getprofile() is before[1]


@pytest.mark.long
def test_a_body_may_ask_for_sizes() -> None:
    """What they are is found with NumPy, which a body itself may not call."""

    def selected(x: torch.Tensor) -> torch.Tensor:
        out = x * 1
        for turn in range(5):
            mask = x[:, 0] > turn
            if mask.any():
                out[mask] = x[mask] * 2 + out[mask]
        return out

    def asked(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x * 2 if x.shape[0] > 4 else x
        return x

    fx2onnx.export(asked, (X,), dynamic_shapes=({0: "n"},))  # an earlier export has filled what is kept
    others = [(torch.randn(rows, 3) * 3,) for rows in (1, 2, 7, 11)]
    assert ifs(check(selected, (X,), others=others, dynamic_shapes=({0: "n"},))) == 5
