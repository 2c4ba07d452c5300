"""Programs of two sizes: no file takes a pair of sizes at which it is wrong, and none refuses a pair that it could take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.capture.two_size_programs import TWO_SIZE_STEPS, drawn
from tests.capture.wide_programs import STEPS
from tests.support import check

Program = Callable[[torch.Tensor], torch.Tensor]
Size = tuple[int, int]
SIDES = [*range(1, 15), 16, 18, 20, 21, 24, 32]
PAIRS = random.Random(1).sample([(height, width) for height in SIDES for width in SIDES], 90)
FEW = [(height, width) for height in (1, 2, 3, 4, 6, 7, 9, 12) for width in (1, 2, 3, 5, 6, 8, 9)]


def image(size: Size) -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * size[0] * size[1]).reshape(1, 2, *size)


def eager(program: Program, size: Size) -> torch.Tensor | None:
    try:
        return program(image(size))
    except (RuntimeError, ValueError, IndexError, AssertionError, ZeroDivisionError):
        return None


def looked_at(program: Program, sample: Size, sizes: Iterable[Size]) -> tuple[list[Any], list[Size], Any]:
    """The sizes at which the file is wrong, those that it refuses and eager PyTorch takes, and the export."""
    result = fx2onnx.export(program, (image(sample),), dynamic_shapes=({2: "h", 3: "w"},))
    session = InferenceSession(result.model_proto.SerializeToString())
    (name,) = (value.name for value in session.get_inputs())
    wrong: list[Any] = []
    refused: list[Size] = []
    for size in sizes:
        want = eager(program, size)
        if want is not None and not want.numel():
            continue
        try:
            (got,) = session.run(None, {name: image(size).numpy()})
        except fx2onnx.UserError as error:
            if want is not None:
                (refused if error.code == "E401" else wrong).append(size)
            continue
        if want is None and not got.size:
            continue
        if want is None or got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-4, equal_nan=True):
            wrong.append(size)
    return wrong, refused, result


def rows_of(count: int) -> Program:
    return lambda x: TWO_SIZE_STEPS["rows of"](x, 1, count, 0)


def rows_if_tall(x: torch.Tensor) -> torch.Tensor:
    return rows_of(2)(x) if x.shape[-2] > x.shape[-1] else x


def pooled_if_even(x: torch.Tensor) -> torch.Tensor:
    return STEPS["scaled"](TWO_SIZE_STEPS["if both even"](x, 1, 1, 0), 1, 2, 0).softmax(-1) + 1


def halves_if_even(x: torch.Tensor) -> torch.Tensor:
    y = TWO_SIZE_STEPS["if both even"](x, 1, 1, 0)
    return STEPS["halves"](y.mean(-1, keepdim=True) * y.sum(-2, keepdim=True), 1, 1, 0)


def biased_if_small(most: int) -> Program:
    """In the branch that is nested, the shorter side has to be 3."""

    def program(x: torch.Tensor) -> torch.Tensor:
        side = min(x.shape[-2], x.shape[-1])
        if x.shape[-1] % 2 == 0:
            x = x + 1
            if side <= most:
                return x[..., :side, :side].flatten(2) + torch.ones(9)
        return x.flatten(2)

    return program


@pytest.mark.parametrize(
    ("program", "sample"),
    [
        (rows_of(2), (12, 7)),
        (rows_of(3), (5, 6)),
        (lambda x: rows_of(4)(x).flip(-1).reshape(x.shape) + x, (6, 8)),
        (rows_if_tall, (6, 8)),
        (rows_if_tall, (9, 8)),
        (pooled_if_even, (3, 9)),
        (halves_if_even, (6, 5)),
        (lambda x: STEPS["circular"](TWO_SIZE_STEPS["if both even"](x, 1, 1, 0), 4, 1, 0), (4, 9)),
        (lambda x: TWO_SIZE_STEPS["padded windows"](TWO_SIZE_STEPS["if wider"](x, 1, 1, 0), 1, 1, 0), (9, 20)),
        (lambda x: STEPS["window"](STEPS["transposed"](x, 2, 3, 0), 1, 1, 0), (4, 1)),
    ],
)
def test_every_size_that_eager_pytorch_takes(program: Program, sample: Size) -> None:
    wrong, refused, _ = looked_at(program, sample, FEW)
    assert not wrong
    assert not refused


@pytest.mark.parametrize("step", [TWO_SIZE_STEPS["resized"], STEPS["halves"]], ids=["resized", "halves"])
def test_a_branch_of_small_sizes_alone_pins_none(step: Callable[..., torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return step(TWO_SIZE_STEPS["if many"](x, 1, 1, 0), 2, 1, 2)

    wrong, refused, _ = looked_at(program, (9, 20), FEW)
    assert not wrong
    assert all(height * width <= 8 for height, width in refused)


@pytest.mark.parametrize(("most", "missed"), [(3, {1}), (4, {1, 3})])
def test_what_a_nested_branch_needs_is_needed_there_alone(most: int, missed: set[int]) -> None:
    """Sides of 1 are broadcast in eager PyTorch; the branch up to 4 ends at the sizes at which it is tried."""
    wrong, refused, _ = looked_at(biased_if_small(most), (8, 8), [*FEW, (8, 8), (3, 4), (4, 4), (9, 10)])
    assert not wrong
    assert {min(size) for size in refused} <= missed
    assert all(size[1] % 2 == 0 for size in refused)


CODE = """
def first(x):
    return x[:5] if x.shape[0] > 5 else x * 2
second = lambda x: x[:5] if x.shape[0] > 5 else x * 2
"""


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_program_on_the_command_line_decides_as_one_in_a_file(name: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CODE, "<string>", "exec"), space)  # as ``python -c`` does
    result = fx2onnx.export(space[name], (torch.ones(8, 2),), dynamic_shapes=({0: "n"},))
    session = InferenceSession(result.model_proto.SerializeToString())
    assert session.run(None, {"x": torch.ones(3, 2).numpy()})[0].sum() == 12


MOST_REFUSED = 2
"""The largest number of E105 among fifty programs."""
MOST_TIGHT = 3
"""That refuse a pair of sizes that eager PyTorch takes."""


@pytest.mark.slow
@pytest.mark.parametrize("group", range(3))
def test_random_programs(group: int) -> None:
    wrong, refused, tight = [], [], []
    for seed in range(group * 50, group * 50 + 50):
        draw = random.Random(seed)
        while True:
            program, steps = drawn(draw)
            fitting = [size for size in PAIRS if (want := eager(program, size)) is not None and want.numel()]
            if len(fitting) > 5 and all(len({size[axis] for size in fitting}) > 2 for axis in (0, 1)):
                break
        try:
            faults, missed, _ = looked_at(program, draw.choice(fitting), PAIRS)
        except fx2onnx.UserError as error:
            refused.append((seed, steps, str(error)))
            continue
        wrong += [(seed, steps, faults)] if faults else []
        tight += [(seed, steps, missed)] if missed else []
    assert not wrong
    assert len(refused) <= MOST_REFUSED, refused
    assert len(tight) <= MOST_TIGHT, tight


def _written(x: torch.Tensor, reshaped: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What is written to a reshaped tensor is written to its own one if it is a view."""
    x = x.clone()
    y = reshaped(x)
    y.mul_(3)
    return x, y + y.transpose(0, -1).contiguous().transpose(0, -1)


RESHAPED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows in front": lambda x: x.reshape(-1, x.shape[1], 4),
    "rows viewed": lambda x: x.view(-1, x.shape[1], 4),
    "rows behind": lambda x: x.reshape(4, x.shape[1], -1),
    "by both": lambda x: x.reshape(x.shape[1], -1, x.shape[0]),
    "turned": lambda x: x.permute(1, 2, 0).reshape(x.shape[0], 2, -1, 1, 1),
    "turned in front": lambda x: x.permute(2, 1, 0).reshape(-1, x.shape[0] * 2, 4),
    "turned and split": lambda x: x.transpose(0, 1).reshape(x.shape[0], 2, x.shape[1], 4),
    "a view of turned": lambda x: x.transpose(0, 1).view(x.shape[1], x.shape[0], -1, 4),
    "every second": lambda x: x[:, :, ::2].reshape(x.shape[0], -1),
    "a row": lambda x: x[:, 0].reshape(x.shape[0], 2, -1),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_reshape_to_as_many_elements_needs_no_condition(name: str) -> None:
    sample, *others = [(torch.randn(*sizes, 8),) for sizes in ((3, 7), (2, 6), (5, 2), (4, 4), (5, 1), (1, 9))]
    for program in (partial(_written, reshaped=RESHAPED[name]), RESHAPED[name]):
        result = check(program, sample, others=others, dynamic_shapes=({0: "b", 1: "t"},))
        assert not [each for each in result.report.assumptions if each.kind != "note"]
