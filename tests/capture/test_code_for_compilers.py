"""Libraries have code for torch.compile and torch.export: it is taken where their other code decides by what is not known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fx2onnx
from tests.support import check

X, Y = torch.randn(6, 4), torch.randn(9, 4)


def by_a_number(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return x.clamp(min=0.0)
    return x.clamp(min=float(format(x.min().clamp(min=0.0).item(), "f")))


def by_data(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return x[(x > 100).any(1)].sum(0)
    return (
        torch.zeros(4) if int((x > 100).sum()) == len(str(x.sum() * 0)) else (x * (x > 100).any(1, keepdim=True)).sum(0)
    )


@pytest.mark.parametrize("program", [by_a_number, by_data])
def test_a_library_takes_its_code_for_compilers(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result = check(program, (X,), others=[(Y,)], dynamic_shapes={"x": {0: "n"}})
    assert any("is_compiling() is true" in str(each) for each in result.report.assumptions)
    assert not torch.compiler.is_compiling()


def test_it_is_not_taken_where_there_is_no_need() -> None:
    result = fx2onnx.export(
        lambda x: x + 1 if torch.compiler.is_compiling() else x - 1, (X,), dynamic_shapes=({0: "n"},)
    )
    assert [node.op_type for node in result.model.graph] == ["Sub"]
