"""What a sound file does otherwise than eager PyTorch without being wrong, and beside it what is wrong in the same program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fx2onnx
from fx2onnx import Verdict, verify
from studies.alarm_programs import PROGRAMS
from tests.verify.given import Forward, Given

AMONG_NAN = [
    "nearest rows", "nearest rows by distance", "values beside the best", "experts", "best of what is not masked",
    "mean of the largest rows", "distinct", "distinct and counted",
]  # fmt: skip
SYSTEMS = {
    "solve": 3, "inverse": 2, "logarithm of the determinant": 3, "least squares of an exact solution": 1,
    "residual of a solution": 3, "warped by an inverse": 1,
}  # fmt: skip
"""With seeds of which some inputs are singular or nearly so."""
BUCKETS = ["buckets of an input", "buckets of a scaled input", "buckets of steps"]
COUNTED = ["chebyshev_polynomial_t", "laguerre_polynomial_l", "shifted_chebyshev_polynomial_w"]


def verified(name: str, exported: Forward, seed: int = 1) -> Verdict:
    program = PROGRAMS[name]
    args = program.inputs(torch.Generator().manual_seed(seed))
    result = fx2onnx.export(Given(exported), args, dynamic_shapes=tuple(program.axes) or None)
    return verify(result, Given(program.right), args, seeds=(seed,))


@pytest.mark.long_cases("nearest rows", "nearest rows by distance")
@pytest.mark.parametrize("name", [*AMONG_NAN, *COUNTED, *BUCKETS, "Beta"])
def test_a_sound_file_is_right(name: str) -> None:
    verdict = verified(name, PROGRAMS[name].right)
    assert verdict.ok, verdict.describe()


@pytest.mark.long_cases(
    "nearest rows",
    "nearest rows by distance",
    "values beside the best",
    "experts",
    "mean of the largest rows",
    "laguerre_polynomial_l",
    "buckets of a scaled input",
    "buckets of steps",
)
@pytest.mark.parametrize("name", [*AMONG_NAN, *COUNTED, *BUCKETS, "Beta"])
def test_a_fault_in_the_same_program_is_found(name: str) -> None:
    assert not verified(name, PROGRAMS[name].wrong).ok


@pytest.mark.long_cases(but=["inverse"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_verdict_is_drawn_from_a_singular_system(name: str) -> None:
    verdict = verified(name, PROGRAMS[name].right, SYSTEMS[name])
    assert verdict.ok, verdict.describe()
    assert not verified(name, PROGRAMS[name].wrong, SYSTEMS[name]).ok


def test_what_a_singular_matrix_does_not_reach_is_compared() -> None:
    def forward(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.slogdet(a)[1].clamp(-9, 9), a.sum(-1)

    args = (torch.tensor([[1.0, 2.0], [2.0, 4.0 + 1e-7]]) / 3,)
    exported = fx2onnx.export(Given(lambda a: (forward(a)[0] + 1, forward(a)[1] + 1e-3)), args)
    verdict = verify(exported, Given(forward), args, seeds=())
    assert {row.output for row in verdict.rows if not row.ok} == {"output_1"}
    assert any("a singular matrix decides what output_0 is" in text for text in verdict.left_out)


def test_what_is_chosen_among_nan_is_noted() -> None:
    verdict = verified("nearest rows", PROGRAMS["nearest rows"].right)
    assert any("ONNX says nothing of either" in note for note in verdict.notes)
    assert "nan" in {each.values for each in verdict.tried}


READ = {
    "copysign": torch.copysign,
    "signbit": lambda x, y: torch.signbit(y) & (x == x),
    "in place": lambda x, y: x.clone().copysign_(y),
}
"""Forms that read the sign of the second tensor."""


@pytest.mark.long_cases(but=["signbit"])
@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_the_sign_of_nan_is_no_fault_and_that_of_numbers_is(read: Callable[..., torch.Tensor]) -> None:
    x, y = torch.tensor([[1.0, 2.0], [-3.0, 4.0]]), torch.tensor([[-torch.nan, torch.nan], [-0.0, -2.0]])
    exported = fx2onnx.export(Given(read), (x, y))
    assert verify(exported, Given(read), (x, y)).ok
    assert not verify(exported, Given(lambda x, y: read(x, torch.where(y == y, -y, y))), (x, y)).ok


def test_rows_without_nan_still_count_beside_rows_with_nan() -> None:
    """A file that takes other rows only where some are NaN elsewhere."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        right = x.gather(1, x.topk(2, -1)[1])
        return right + torch.isnan(x).any() * 0.5

    args = (torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),)
    module = Given(lambda x: x.gather(1, x.topk(2, -1)[1]))
    assert verify(fx2onnx.export(module, args), module, args).ok
    verdict = verify(fx2onnx.export(Given(wrong), args), module, args)
    assert {row.inputs for row in verdict.rows if not row.ok} == {"nan"}


def test_counts_of_loops_stay_small() -> None:
    args = (torch.rand(6), torch.arange(6))
    module = Given(torch.special.hermite_polynomial_he)
    verdict = verify(fx2onnx.export(module, args), module, args)
    assert verdict.ok, verdict.describe()
    assert verdict.ranges["args_1"].largest < 100
