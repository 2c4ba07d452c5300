"""Several observed calls: sizes that differ among them are dynamic, and what one file cannot have for all of them is an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import agree


class Masked(nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None = None, power: int = 2
    ) -> torch.Tensor:
        total = x**power + y.sum(0)
        return total if mask is None else total * mask


X, Y = torch.randn(3, 4), torch.randn(5, 4)
LONGER, MASK = torch.randn(7, 4), torch.rand(7, 4)


def sizes(result: Any) -> dict[str, list[str]]:
    return {
        value.name: [str(getattr(size, "value", size)) for size in value.shape] for value in result.model.graph.inputs
    }


def check(result: Any, *args: torch.Tensor) -> None:
    agree(Masked(), result.model_proto, args)


@pytest.mark.parametrize(
    ("args", "samples"),
    [
        ((X, Y), [(LONGER, Y)]),
        ((X, Y), [((LONGER,), {"y": Y})]),
        ({"x": X, "y": Y}, [{"x": LONGER, "y": Y}]),
        ((), [(X, Y), (LONGER, Y)]),
        (None, [(X, Y), {"y": Y, "x": LONGER}]),
        ((X, Y), ([LONGER, {"y": Y}],)),
    ],
)
def test_what_differs_is_dynamic_in_every_way_to_write_a_call(args: Any, samples: Any) -> None:
    result = fx2onnx.export(Masked(), args, samples=samples)
    assert sizes(result) == {"x": ["x_dim_0", "4"], "y": ["5", "4"]}
    for rows in (1, 3, 12):
        check(result, torch.randn(rows, 4), Y)


def test_names_that_are_given_stay_and_further_axes_are_learnt() -> None:
    result = fx2onnx.export(Masked(), (X, Y), dynamic_shapes={"x": {0: "batch"}}, samples=[(X, torch.randn(9, 4))])
    assert sizes(result) == {"x": ["batch", "4"], "y": ["y_dim_0", "4"]}
    check(result, LONGER, torch.randn(2, 4))


def test_an_input_that_some_calls_leave_out_is_one_and_that_is_said() -> None:
    result = fx2onnx.export(Masked(), samples=[(X, Y), (LONGER, torch.randn(2, 4), MASK), (X, Y, None)], verify=True)
    assert list(sizes(result)) == ["x", "y", "mask"]
    (warning,) = result.report.warnings
    assert warning.startswith("samples[0], samples[2]: mask is left out")
    check(result, X, Y, torch.rand(3, 4))


def test_a_sample_that_stands_for_the_arguments_of_a_program() -> None:
    program = torch.export.export(Masked(), (X, Y), dynamic_shapes=({0: torch.export.Dim("n")}, None))
    for args in (None, ()):
        check(fx2onnx.export(program, args), LONGER, Y)


@pytest.mark.parametrize(
    ("samples", "code", "said"),
    [
        ([(X, Y[None])], "E105", "differ in ranks of y"),
        ([(X, Y.double())], "E105", "differ in dtypes of y"),
        ([(X, Y), (X.int(), Y)], "E105", "int32 [3, 4] in samples[1], float32 [3, 4]"),
        ([(LONGER, Y, MASK)], "E105", "samples[0] has the tensor mask, which the example arguments leave out"),
        ([(X, Y, None, 3)], "E105", "power is 3 in samples[0], 2 in the example arguments"),
        ([(X,)], "E101", "samples[0]: the arguments do not fit"),
        ([(X, Y), {"q": X}], "E101", "samples[1]: the arguments do not fit"),
        ([(X, torch.randn(5, 1))], "E105", "y_dim_1 is used as the fixed number 4"),
        ([(5, Y)], "E105", "x is 5 in samples[0], a tensor in the example"),
        (X, "E001", "samples is a Tensor"),
        ({"x": X}, "E001", "samples is a dict"),
    ],
)
def test_what_the_calls_disagree_in_is_one_error(samples: Any, code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Masked(), (X, Y, None, 2), tmp_path / "m.onnx", samples=samples, verify=True)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert not os.listdir(tmp_path)


def test_calls_that_none_covers() -> None:
    def either(x: torch.Tensor, a: Any = None, b: Any = None) -> torch.Tensor:
        return x + (a if b is None else b)

    with pytest.raises(fx2onnx.UserError, match=r"no call has all of them"):
        fx2onnx.export(either, samples=[(X, X), {"x": X, "b": X}])


def test_a_call_that_the_conditions_of_the_file_exclude() -> None:
    def few(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            raise ValueError("too many")
        return x * 2

    with pytest.raises(fx2onnx.UserError, match=r"would not be for samples\[0\]: x_dim_0 <= 8") as caught:
        fx2onnx.export(few, (X,), samples=[(torch.randn(12, 4),)])
    assert caught.value.code == "E105"
    assert caught.value.where is not None


def test_a_training_export_learns_nothing_from_samples() -> None:
    training = fx2onnx.Training(loss=nn.functional.mse_loss, targets=(torch.randn(3, 2),))
    with pytest.raises(fx2onnx.UserError, match="samples="):
        fx2onnx.export(nn.Linear(4, 2), (X,), training=training, samples=[(LONGER,)])
    further = torch.export.AdditionalInputs()
    further.add((LONGER,))
    with pytest.raises(fx2onnx.UserError, match="further calls"):
        fx2onnx.export(nn.Linear(4, 2), (X,), training=training, dynamic_shapes=further)
