"""Python's arithmetic with sizes and with numbers of data, where Python raises for some of them: no file gives a number there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from tests.capture.test_numbers_of_data import Program


def _or_zero(call: Callable[[], float], error: type[Exception]) -> float:
    try:
        return call()
    except error:
        return 0.0


SIZES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "quotient": (lambda n: 24 // (n - 4), "n != 4"),
    "remainder": (lambda n: 24 % (n // 3), "n >= 3"),
    "share": (lambda n: n / (n // 2 - 2), "n != 4 and n != 5"),
    "divmod": (lambda n: divmod(n, n - 4)[1], "n != 4"),
    "real": (lambda n: 7.5 // (n - 4) + 7.5 % (n - 4), "n != 4"),
    "corners": (lambda n: 2 / (n - 1), "n != 1"),
    "logarithm": (lambda n: math.log(n - 3) + math.log1p(n - 5), "n >= 5"),
    "base": (lambda n: math.log(n, n - 4), "n >= 6"),
    "root": (lambda n: math.sqrt(n - 4) + math.isqrt(n - 3), "n >= 4"),
    "shift": (lambda n: (1 << (n - 3)) + (64 >> (n - 4)), "n >= 4"),
    "power": (lambda n: math.pow(n - 4, -1) + math.pow(n - 3, 0.5), "n >= 3 and n != 4"),
    "subsets": (lambda n: math.comb(n - 4, 2), "n >= 4"),
    "behind a test": (lambda n: 24 // (n - 4) if n > 4 else 0, ""),
    "caught": (lambda n: _or_zero(lambda: 24 / (n - 4), ZeroDivisionError), ""),
    "caught logarithm": (lambda n: _or_zero(lambda: math.log(n - 4), ValueError), ""),
    "never 0": (lambda n: 24 // max(n - 4, 1) + 1 / n + n / (n + 2) + math.log(n), ""),
    "towards 0": (lambda n: int(9 / (n - 3.5)) + int(20 / (2 * n - 9)), ""),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_for_which_python_raises_is_none_of_the_file(name: str) -> None:
    function, said = SIZES[name]
    result = fx2onnx.export(lambda x: x.sum() + function(x.shape[0]), (torch.ones(7),), dynamic_shapes={"x": {0: "n"}})
    found = [str(each).partition("   ")[0] for each in result.report.assumptions]
    session = InferenceSession(result.model_proto)
    for n in range(1, 12):
        feeds = {"x": np.ones(n, np.float32)}
        try:
            expected = n + function(n)
        except (ArithmeticError, ValueError):
            with pytest.raises(UserError, match="E40"):
                session.run(None, feeds)
        else:
            assert float(session.run(None, feeds)[0]) == pytest.approx(expected, rel=1e-6), n
    assert said in found or not said, found


DATA: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda x, n: x + 24 // n.item() + 24 % n.item(),
    "share": lambda x, n: x + 24 / int(n),
    "logarithm": lambda x, n: x + math.log(n.item() + 1),
    "root and shift": lambda x, n: x + math.sqrt(n.item()) + (1 << n.item()),
    "towards 0": lambda x, n: x + int(n.item() * 0.3) + int(n.item() / 2),
    "real divisor": lambda x, n: x + 1 / x[0].item(),
    "real quotient": lambda x, n: x + 24 // x[0].item() + 24 % x[0].item(),
    "divided by a size": lambda x, n: x + x[0].item() / n.item(),
    "integer": lambda x, n: x[1:] + int(x[0]),
    "nearest": lambda x, n: x[1:] + round(x[0].item()) + math.ceil(x[0].item()),
}


@pytest.mark.parametrize("name", DATA)
def test_numbers_for_which_python_raises_fail_in_the_file(name: str) -> None:
    program = Program(DATA[name])
    result = fx2onnx.export(program, (torch.ones(3), torch.tensor(3)))
    engines = [
        kind(result.model_proto.SerializeToString()) for kind in (InferenceSession, onnxruntime.InferenceSession)
    ]
    cases = [(1.0, 3), (-2.5, 2), (2.5, -3), (2.0, -2), (0.0, 1), (3.0, 0), (math.nan, 2), (math.inf, 4), (1.0, -1)]
    for first, number in cases:
        x, n = torch.tensor([first, 1.0, 2.0]), torch.tensor(number)
        try:
            expected: Any = program(x, n).numpy()
        except (ArithmeticError, ValueError):
            expected = None
        for session in engines:
            feeds = {each.name: (x if each.name == "x" else n).numpy() for each in session.get_inputs()}
            if expected is None:
                with pytest.raises(Exception, match=r"Gather|Mod|E40"):
                    session.run(None, feeds)
            else:
                np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-6)


def test_the_example_itself_raises_as_in_eager_pytorch() -> None:
    for function, words in ((lambda n: 1 / (n - 7), "by zero"), (lambda n: math.log(n - 7), "log|positive|domain")):
        with pytest.raises(UserError, match=words):
            fx2onnx.export(
                lambda x, call=function: x * call(x.shape[0]), (torch.ones(7),), dynamic_shapes={"x": {0: "n"}}
            )
