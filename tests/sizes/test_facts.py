"""Facts about the sizes of a run: what follows from those that were supposed, and that queries change none of them."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode
from fx2onnx.sizes.expr import Dim, apply
from fx2onnx.sizes.facts import SizeFacts, SizesOfRun
from fx2onnx.sizes.following import follows_from
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, where_true
from tests.support import check

H, W = map(Dim.symbol, ("h", "w"))
U = Dim.unbacked(0)
UNSEEN = ("facts", "tracer", "hinted", "hinted_for")
"""What is remembered of answers, and what no query touches."""
PATCHES = (H // 4) * (W // 4)


@pytest.mark.parametrize(
    ("supposed", "asked", "known"),
    [
        (Relation("eq", (PATCHES, 16)), Relation("gt", (PATCHES + 1, 1)), True),
        (Relation("eq", (PATCHES, 16)), Relation("eq", (PATCHES + 1, 17)), True),
        (Relation("eq", (PATCHES, 16)), Relation("lt", (PATCHES, 16)), False),
        (Relation("eq", (PATCHES, 16)), Relation("le", (20, PATCHES)), False),
        (Relation("gt", (PATCHES, 16)), Relation("gt", (PATCHES, 17)), None),
        (Relation("gt", (PATCHES, 16)), Relation("ge", (PATCHES, 17)), True),
        (Relation("gt", (PATCHES, 16)), Relation("eq", (PATCHES, 3)), False),
        (Relation("le", (PATCHES, 16)), Relation("lt", (PATCHES, 18)), True),
        (Relation("le", (PATCHES, 16)), Relation("lt", (PATCHES, 16)), None),
        (Relation("le", (PATCHES, 16)), Relation("ne", (17, PATCHES)), True),
        (Relation("ne", (PATCHES, 16)), Relation("eq", (PATCHES, 16)), False),
        (Relation("ne", (PATCHES, 16)), Relation("gt", (PATCHES, 15)), None),
        (Relation("ge", (PATCHES, 16)), Relation("gt", (H * W, 1)), None),
    ],
    ids=str,
)
def test_what_follows(supposed: Relation, asked: Relation, known: bool | None) -> None:
    facts = SizesOfRun(hints={"h": 16, "w": 16})
    facts.suppose(supposed)
    assert facts.facts.is_settled(asked) is known


A, B, C = (Dim.symbol(one) * Dim.symbol(other) for one, other in ("ab", "cd", "ef"))


@pytest.mark.parametrize(
    ("supposed", "asked", "known"),
    [
        ([("eq", A, B), ("eq", B, C)], ("eq", A, C), True),
        ([("eq", A, B), ("eq", C, B)], ("ne", C + 1, A + 1), False),
        ([("eq", A, B), ("eq", B, C)], ("eq", A // 2 + C, C // 2 + A), True),
        ([("eq", A, B), ("lt", B, C)], ("lt", A, C), True),
        ([("eq", A, B), ("ne", B, C)], ("eq", A, C), False),
        ([("eq", A, B + 2), ("eq", B, C + 3)], ("gt", A, C + 4), True),
        ([("eq", A, B), ("ne", B, C)], ("lt", A, C), None),
        ([("lt", A, B), ("lt", B, C)], ("eq", A, C), None),
    ],
    ids=str,
)
def test_what_follows_from_several(supposed: list[Any], asked: Any, known: bool | None) -> None:
    relations = [Relation(op, (one, other)) for op, one, other in supposed]
    assert follows_from(relations, Relation(asked[0], asked[1:])) is known


class _Blocks(torch.nn.Module):
    """Transforms of a length that is a power of two, of which the last one is used again where it has the same length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, found = -1, x.new_zeros(())
        for taps in (3, 5, 9):
            length = int(2 ** math.ceil(math.log2(x.shape[-1] + taps)))
            if length != before:
                transformed = torch.fft.rfft(x, length)
            before, kernel = length, torch.fft.rfft(x[:, :2], length)
            found = found + torch.fft.irfft(transformed * kernel, length)[:, : x.shape[-1]]
        return found


class _Tokens(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        of_x, of_y, of_z = (each.shape[0] * each.shape[1] for each in (x, y, z))
        if of_x == of_y and of_y == of_z:
            return x.flatten() + z.flatten()
        return x.sum().reshape(1) - z.sum()


@pytest.mark.long
def test_equal_to_the_same() -> None:
    samples = [(torch.randn(2, size),) for size in (20, 8, 13, 5, 29, 57, 60)]
    check(_Blocks(), samples[0], others=samples[1:], dynamic_shapes=[{0: "batch", 1: "n"}], atol=1e-4)
    shapes = (((2, 6), (3, 4), (4, 3)), ((2, 6), (3, 5), (4, 3)), ((5, 2), (1, 10), (2, 5)), ((5, 2), (1, 10), (3, 5)))
    tokens = [tuple(torch.randn(*shape) for shape in each) for each in shapes]
    axes = [{0: "a", 1: "b"}, {0: "c", 1: "d"}, {0: "e", 1: "f"}]
    result = check(_Tokens(), tokens[0], others=tokens[1:], dynamic_shapes=axes)
    assert not [each for each in result.report.assumptions if each.kind == "guard"]


def test_sizes_hold_beside_what_was_supposed() -> None:
    facts = SizesOfRun(hints={"h": 16, "w": 16})
    facts.suppose(Relation("eq", (PATCHES, 16)))
    facts.suppose(Relation("ne", (H, W)))
    assert facts.hints["h"] != facts.hints["w"]
    assert facts.hint(PATCHES) == 16


class _Positions(torch.nn.Module):
    """As vision transformers ask whether there are as many patches as positions, and for a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 4, 4, 4)
        self.positions = torch.nn.Parameter(torch.randn(1, 4, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        found = self.patches(x)
        tokens = found.flatten(2).transpose(1, 2)
        if tokens.shape[1] == 16 and height == width:
            positions = self.positions
        else:
            positions = F.interpolate(self.positions, (height // 4, width // 4), mode="bilinear")
        tokens = tokens + positions.flatten(2).transpose(1, 2)
        return tokens * 2 if tokens.shape[1] + 1 > 1 else tokens


@pytest.mark.long
def test_a_decision_by_several_sizes() -> None:
    samples = [
        (torch.randn(2, 3, *sizes),) for sizes in ((16, 16), (8, 32), (17, 17), (20, 8), (17, 19), (4, 5), (32, 33))
    ]
    axes = {0: "batch", 2: "height", 3: "width"}
    result = check(_Positions(), samples[0], others=samples[1:], dynamic_shapes=[axes])
    found = {each.expression for each in result.report.assumptions if each.kind == "condition"}
    assert found == {"height >= 4", "width >= 4"}  # a window of the pooling


def test_values_at_the_samples_sizes_follow_these() -> None:
    facts = SizesOfRun(hints={"h": 9, "w": 4})
    asked = (H // 4, Relation("gt", (H, W)), 2 * H, 2.0 * H)
    assert [facts.hint(each) for each in asked] == [2, True, 18, 18.0]
    assert [type(facts.hint(each)) for each in (2 * H, 2.0 * H, 2 * H)] == [int, float, int]
    facts.hints["h"] = 3
    assert [facts.hint(each) for each in asked] == [0, False, 6, 6.0]
    facts.hints |= {"h": 5}
    assert [facts.hint(each) for each in asked] == [1, True, 10, 10.0]


@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
def test_real_numbers_stay_real_beside_equal_integers(operation: str) -> None:
    env = ShapeEnv(hints={"h": 9})
    whole, real = (DimNode(env, value, kind) for value, kind in ((2 * H, int), (2.0 * H, float)))
    five = DimNode(env, 5, int)
    for left, kind in ((whole, int), (real, float), (whole, int)):
        assert getattr(left, operation)(five).pytype is kind


QUERIES: dict[str, Callable[[ShapeEnv], object]] = {
    "certain": lambda env: env.certain("gt", H, 3),
    "certain, by equalities": lambda env: env.certain("eq", U, H),
    "holds": lambda env: env.facts.holds("ne", H, W),
    "settled": lambda env: env.facts.is_settled(Relation("gt", (H * W, 3))),
    "about": lambda env: env.facts.about(frozenset("h")),
    "simplified": lambda env: env.facts.simplified(2 * (H // 2)),  # type: ignore[arg-type, operator]
    "hint": lambda env: env.hint(H * W),
    "sizes where": lambda env: env.sizes_where(Relation("eq", (H, 12))),
    "sizes against": lambda env: env.facts.sizes_against(Relation("lt", (H, 20))),
    "as one": lambda env: env.facts.as_one(Relation("eq", (apply("min", U, 1), 1))),
    "ordinary sizes": lambda env: env.holds_at_ordinary_sizes(Relation("gt", (H, W))),
    "no multiple": lambda env: env.is_no_multiple(H, 4),
    "noted conditions": lambda env: env.facts.noted_conditions(),
}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_change_nothing(query: str) -> None:
    env = ShapeEnv({"h": 8, "w": 6, "u0": 11}, SizeFacts(unbacked=frozenset(["u0"]), signed=frozenset(["u0"])))
    env.narrow("h", where_true(Relation("eq", (H % 2, 0))) or EVERY)
    env.suppose(Relation("gt", (H, W)))
    env.equate(Relation("eq", (U, 2 * H)))
    known, noted = env.facts, pickle.dumps({name: value for name, value in vars(env).items() if name not in UNSEEN})
    first = QUERIES[query](env)
    assert QUERIES[query](env) == first
    assert env.facts is known
    assert env.facts == SizeFacts(**{each.name: getattr(known, each.name) for each in fields(SizeFacts) if each.init})
    assert pickle.dumps({name: value for name, value in vars(env).items() if name not in UNSEEN}) == noted


def test_facts_that_are_kept_stay_as_they_were() -> None:
    env = ShapeEnv({"h": 8, "w": 6})
    kept = env.facts
    env.narrow("h", where_true(Relation("ge", (H, 4))) or EVERY)
    env.suppose(Relation("gt", (H, W)))
    assert env.certain("ge", H, 4)
    env.facts = kept
    assert env.certain("ge", H, 4) is None
    assert kept == SizeFacts()
