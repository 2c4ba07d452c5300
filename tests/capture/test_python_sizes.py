"""Python around symbolic sizes: what it makes of them is right at every size, or the line that needs a number is named."""

from __future__ import annotations

import contextlib
import io
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from tests.capture import size_programs
from tests.capture.size_programs import NEEDS_A_NUMBER, NUMBERS, PROGRAMS, SIZES
from tests.support import check

SAMPLE, OTHERS = 6, (1, 3, 5, 8, 13)
PINNED = {
    "round to digits": "Python rounds decimal digits",
    "fsum": "a sum without rounding errors on the way",
    "percent": "a text made by C code",
    "in a set": "a key",
    "looked up": "a key",
    "complex": "a complex number of Python's",
    "operator.index": "asks for the plain number",
    "text times a size": "a text of that length",
    "interpolated by a factor": "the factor is an attribute of the operator",
}
"""The reason why a size is refused as E105."""


def samples(name: str) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(size, 4),) for size in (SAMPLE, *OTHERS)]


def holds(program: Any, name: str) -> None:
    sample, *others = samples(name)
    if name in PINNED:
        refused(program)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        check(program, sample, others=others, dynamic_shapes=({0: "n"},))


def refused(program: Any) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(program, (torch.randn(SAMPLE, 4),), dynamic_shapes=({0: "n"},))
    assert caught.value.code == "E105", caught.value
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("size_programs.py")


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_numbers_made_of_a_size(name: str) -> None:
    number = NUMBERS[name]
    holds(lambda x: x * number(x.shape[0]), name)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_sizes_made_of_a_size(name: str) -> None:
    size = SIZES[name]
    holds(lambda x: torch.ones(size(x.shape[0]), 2), name)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_of_sizes(name: str) -> None:
    holds(PROGRAMS[name], name)


@pytest.mark.parametrize("name", sorted(NEEDS_A_NUMBER))
def test_what_needs_the_number_names_its_line(name: str) -> None:
    refused(NEEDS_A_NUMBER[name])


@pytest.mark.parametrize("factor", [0.7, 0.1, 1.1, 0.25, 2.5])
def test_a_product_is_rounded_as_python_rounds_it(factor: float) -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        return x[: int(x.shape[0] * factor)] * round(x.shape[0] * factor)

    others = [(torch.ones(size, 2),) for size in range(1, 60)]
    check(part, (torch.ones(12, 2),), others=others, dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize("opset", [11, 13, 17, 20, 26])
def test_the_least_and_the_largest_opset(opset: int) -> None:
    def many(x: torch.Tensor) -> torch.Tensor:
        numbers = [NUMBERS[name](x.shape[0]) for name in size_programs.OF_EVERY_OPSET]
        return x * torch.tensor(numbers).sum()

    sample, *others = samples("")
    check(many, sample, others=others, dynamic_shapes=({0: "n"},), opset_version=opset)


def of_a_shape(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape.numel() + x.size().numel()


def of_a_part(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[:2].numel(), *x.shape[2:]) / x.shape[1:].numel()


def of_a_variable(x: torch.Tensor) -> torch.Tensor:
    shape = x.shape
    return x * 2 if shape.numel() > 40 else x.reshape(shape[:-1].numel(), -1).sum() + x


@pytest.mark.parametrize("program", [of_a_shape, of_a_part, of_a_variable])
def test_a_shape_counts_its_elements(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    sizes = {"x": {0: "batch", 1: "rows", 2: "columns"}}
    check(
        program, (torch.rand(2, 3, 4),), others=[(torch.rand(3, 5, 6),), (torch.rand(1, 2, 2),)], dynamic_shapes=sizes
    )


@pytest.mark.long_cases("affine_grid")
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.nn.functional.affine_grid(torch.ones(x.shape[0], 2, 3), x.shape, align_corners=False),
        lambda x: x.new_ones(max(x.shape[1:]), min(x.size())),
    ],
    ids=["affine_grid", "new_ones"],
)
def test_extremes_of_a_shape_compare_no_sizes(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """``min(x.shape)`` is an expression, also in torch's own code, where a comparison of two sizes is a condition of the file."""
    result = check(
        program,
        (torch.ones(2, 3, 5, 4),),
        others=[(torch.ones(4, 1, 2, 7),)],
        dynamic_shapes=(dict(enumerate("bchw")),),
    )
    assert not result.report.assumptions


@pytest.mark.parametrize("mode", ["zero", "symmetric", "periodization", "per"])
@pytest.mark.parametrize("taps", [4, types.SimpleNamespace(dec_len=6)])
def test_lengths_of_wavelet_transforms(monkeypatch: pytest.MonkeyPatch, mode: str, taps: Any) -> None:
    """``pywt`` computes them in C, of plain numbers."""

    def dwt_coeff_len(data_len: int, filter_len: Any, mode: str) -> int:
        size = operator.index(data_len)
        return (
            (size + 1) // 2 if mode.startswith("per") else (size + getattr(filter_len, "dec_len", filter_len) - 1) // 2
        )

    package = types.ModuleType("pywt")
    package.dwt_coeff_len = dwt_coeff_len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pywt", package)

    def padded(x: torch.Tensor) -> torch.Tensor:
        missing = 2 * (package.dwt_coeff_len(x.shape[0], taps, mode=mode) - 1) - x.shape[0] + 6
        return torch.nn.functional.pad(x, (0, 0, missing // 2, missing - missing // 2))

    sample, *others = samples("")
    check(padded, sample, others=others, dynamic_shapes=({0: "n"},))
