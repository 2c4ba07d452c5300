"""A branch of a decision by sizes that captures and has no translation: a range to declare, a condition, or the sample's."""

from __future__ import annotations

import pytest
import torch

import fx2onnx
from fx2onnx.capture.shapes.dynamic import Proposed
from fx2onnx.sizes.assumptions import Condition, Guard
from tests.support import check


@torch.library.custom_op("size_branches::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def long(x: torch.Tensor) -> torch.Tensor:
    return unknown(x) if x.shape[0] > 6 else x * 2


def single(x: torch.Tensor) -> torch.Tensor:
    return unknown(x) if x.shape[0] == 1 else x * 2


def rows(size: int) -> tuple[torch.Tensor]:
    return (torch.randn(size, 3),)


@pytest.mark.long
def test_the_range_to_declare_is_named_with_what_is_missing() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(long, rows(4), dynamic_shapes=({0: "n"},))
    error = caught.value
    assert error.code == "E105"
    assert 'Dim("n", max=6)' in str(error)
    assert "size_branches" in error.why
    dims = ({0: torch.export.Dim("n", max=6)},)
    check(long, rows(4), others=[rows(6), rows(1)], dynamic_shapes=dims)


@pytest.mark.long
def test_a_sample_in_the_branch_that_has_no_translation_is_that_error() -> None:
    with pytest.raises(fx2onnx.UserError, match="E105"):
        fx2onnx.export(long, rows(9), dynamic_shapes=({0: "n"},))
    with pytest.raises(fx2onnx.UserError, match="E201"):
        fx2onnx.export(unknown, rows(9), dynamic_shapes=({0: "n"},))


@pytest.mark.long
def test_a_size_that_is_merely_proposed_goes_as_in_the_sample() -> None:
    result = check(long, rows(4), others=[rows(6)], dynamic_shapes=({0: Proposed("n")},))
    (guard,) = [found for found in result.report.assumptions if isinstance(found, Guard)]
    assert guard.expression == "n <= 6"


@pytest.mark.long
def test_a_branch_for_size_one_becomes_a_condition() -> None:
    result = check(single, rows(4), others=[rows(2), rows(9)], dynamic_shapes=({0: "n"},))
    (condition,) = [found for found in result.report.assumptions if isinstance(found, Condition)]
    assert condition.expression == "n != 1"
