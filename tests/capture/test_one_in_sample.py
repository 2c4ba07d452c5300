"""Axes whose sample size is 1 and that nobody named: dynamic where the program takes other sizes, else they stay 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check

R, AUTO = torch.randn, torch.export.Dim.AUTO
PLACES = torch.tensor([0, 2])

# A program, the shapes of its sample, those of another call, and which first axes of the inputs are dynamic.
PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], Sequence[Any], Sequence[Any], Sequence[bool]]] = {
    "product": (lambda x, y: x * y, [R(3, 4), R(1, 4)], [R(5, 4), R(1, 4)], [True, False]),
    "product of the other": (lambda x, y: x * y, [R(1, 4), R(3, 4)], [R(1, 4), R(5, 4)], [False, True]),
    "product of two of 1": (lambda x, y: x * y, [R(1, 4), R(1, 4)], [R(5, 4), R(5, 4)], [True, True]),
    "comparison": (lambda x, y: x > y, [R(3, 4), R(1, 4)], [R(2, 4), R(1, 4)], [True, False]),
    "choice": (lambda x, y: torch.where(x > 0, x, y), [R(1, 4), R(3, 4)], [R(1, 4), R(6, 4)], [False, True]),
    "mask": (lambda x, y: x.masked_fill(y > 0, 1.0), [R(3, 4), R(1, 4)], [R(6, 4), R(1, 4)], [True, False]),
    "matrix product": (lambda x, y: x @ y, [R(3, 1), R(1, 4)], [R(5, 1), R(1, 4)], [True, False]),
    "bias": (lambda b, x: torch.addmm(b, x, torch.ones(2, 4)), [R(1, 4), R(3, 2)], [R(1, 4), R(7, 2)], [False, True]),
    "expansion": (lambda x: x.expand(4), [R(1)], [R(1)], [False]),
    "expansion of rows": (lambda x, y: x.expand(3, 4) + y, [R(1, 4), R(3, 4)], [R(1, 4), R(3, 4)], [False, False]),
    "written values": (lambda x, i, v: x.index_put((i,), v), [R(5, 6), PLACES, R(1)], [R(7, 6), PLACES.repeat(2), R(1)], [True, True, False]),
    "written places": (
        lambda x, i, j, v: x.index_put((i, j), v),
        [R(3, 2), PLACES[:1], PLACES[:1].repeat(2), R(2)],
        [R(4, 2), PLACES[:1], PLACES[:1].repeat(3), R(3)],
        [True, False, True, True],
    ),
    "several of one channel": (
        lambda x, mean, var: torch.nn.functional.batch_norm(x, mean, var, training=True),
        [R(6, 1, 3), R(1), R(1).abs()],
        [R(9, 1, 3), R(1), R(1).abs()],
        [True, False, False],
    ),
    "number of the view": (lambda x: x.view(1, -1, 5, 2).flip(0), [R(10, 2, 1, 5)], [R(20, 2, 1, 5)], [True]),
    "rows of a batch": (lambda x: torch.relu(x) + x.sum(1, keepdim=True), [R(1, 4)], [R(9, 4)], [True]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_of_one_is_fixed_where_no_other_may_take_its_place(name: str) -> None:
    program, sample, other, is_dynamic = PROGRAMS[name]
    result = check(program, tuple(sample), others=[tuple(other)], dynamic_shapes=tuple({0: AUTO} for _ in sample))
    found = [not isinstance(value.shape[0], int) for value in result.model.graph.inputs]
    assert found == list(is_dynamic)


def test_every_axis_of_a_view() -> None:
    axes = (dict.fromkeys(range(4), AUTO),)
    report = check(lambda x: x.view(1, -1, 5, 2), (R(10, 2, 1, 5),), dynamic_shapes=axes).report
    assert all(
        assumed.relation.is_true_at({f"x_dim_{axis}": n for axis, n in enumerate((10, 2, 1, 5))})
        for assumed in report.assumptions
        if hasattr(assumed, "relation")
    )


@pytest.mark.parametrize("rows", [0, 1, 5, 30])
@pytest.mark.parametrize("name", ["product", "comparison", "mask", "written places"])
def test_a_named_size_of_one_is_refused_by_its_name(name: str, rows: int) -> None:
    """``rows`` more of the other operand, so that no size that stands for 1 is that of the other."""
    program, sample, _, is_dynamic = PROGRAMS[name]
    if name != "written places":
        sample = [value.repeat(rows + 1, 1) if value.shape[0] > 1 else value for value in sample]
    shapes = tuple({0: f"n{place}"} for place in range(len(sample)))
    with pytest.raises(fx2onnx.UserError, match=f"n{is_dynamic.index(False)} is used as the fixed number 1") as caught:
        fx2onnx.export(program, tuple(sample), dynamic_shapes=shapes)
    assert caught.value.code == "E105"


def test_a_mistake_at_a_named_size_of_one_is_an_error_of_the_module() -> None:
    """Each size that stands for 1 is tried with sizes and with plain numbers, and none a second time."""

    def mistaken(x: torch.Tensor) -> torch.Tensor:
        rows = int(x.shape[0] * 2)
        return torch.ones(rows, 3) @ torch.ones(rows, 40)

    with pytest.raises(fx2onnx.UserError, match="E101"):
        fx2onnx.export(mistaken, (torch.ones(1),), dynamic_shapes={"x": {0: "n"}})


def test_attempts_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.capture.driver.diagnosed", lambda outcome, start: start)
    monkeypatch.setattr("fx2onnx.capture.attempt.MOST_RUNS", 20)
    with pytest.raises(fx2onnx.UserError, match="not captured after 20 runs") as caught:
        fx2onnx.export(torch.relu, (R(2, 3),), dynamic_shapes=({0: "n"},))
    assert caught.value.code == "E105"
    assert "20 runs and 3600 s" in caught.value.why


def test_the_seconds_of_a_capture_are_limited_but_not_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.capture.attempt.MOST_SECONDS", 0.0)
    fx2onnx.export(torch.relu, (R(2, 3),), dynamic_shapes=({0: "n"},))
    with pytest.raises(fx2onnx.UserError, match="not captured after 1 runs") as caught:
        fx2onnx.export(lambda x: x if x.shape[0] > 8 else -x, (R(6, 3),), dynamic_shapes=({0: "n"},))
    assert caught.value.code == "E105"


@pytest.mark.parametrize("stride", [3, 4])
def test_a_part_of_a_size_that_is_1_in_the_sample(stride: int) -> None:
    """The sizes tried in its place are multiples, where the program takes no others."""
    weight, between = R(4, 3, 3, 3), R(2, 2, 3, 3)

    def pyramid(x: torch.Tensor) -> torch.Tensor:
        one, two = torch.nn.functional.conv2d(x, weight, stride=stride, padding=1).chunk(2, 1)
        one = one + torch.nn.functional.conv2d(one, between, padding=1)
        wide = torch.nn.functional.interpolate(torch.cat([one, two], 1), scale_factor=float(stride))
        return torch.cat([wide, x], 1)

    def image(rows: int) -> tuple[torch.Tensor]:
        return (R(2, 3, rows * stride, 2 * stride),)

    check(pyramid, image(1), others=[image(3), image(6)], dynamic_shapes=({0: "b", 2: "h", 3: "w"},), atol=1e-4)
