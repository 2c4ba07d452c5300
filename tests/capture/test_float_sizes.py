"""Sizes that Python computes with real numbers are eager's at every size up to 10,000."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from fx2onnx.base.dims import Dim
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import new_value
from fx2onnx.runner import InferenceSession
from tests.support import check

SIZES = np.arange(1, 10_001, dtype=np.int64)
Formula = Callable[[Any], Any]


def _computed(dim: Dim) -> dict[str, npt.NDArray[Any]]:
    """What the emitted nodes give for all sizes at once: each of them works element by element."""
    builder = Builder(18)
    op, sizes = Emit(builder), new_value("n", ir.DataType.INT64, (len(SIZES),))
    builder.inputs, builder.symbols = [sizes], {"n": (sizes, None)}
    result = op.Identity(op.size(dim))
    graph = ir.Graph(
        [sizes],
        [result],
        nodes=builder.nodes,
        initializers=[*builder.initializers.values()],
        opset_imports={"": 18},
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    feed = {"n": SIZES}
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return {"onnxruntime": session.run(None, feed)[0], "runner": InferenceSession(proto).run(None, feed)[0]}


def _dim_of(formula: Formula) -> Dim:
    captured = capture(
        lambda x: x.new_zeros((formula(x.shape[0]),)),
        (torch.zeros(17),),
        options=CaptureOptions(dynamic_shapes=({0: "n"},)),
    )
    node: Any = captured.outputs[0].value
    (dim,) = node.meta["val"].dims
    assert isinstance(dim, Dim)
    return dim


FORMULAS: dict[str, Formula] = {
    "int(n * 4.2)": lambda n: int(n * 4.2),
    "int(n * 0.3)": lambda n: int(n * 0.3),
    "int(n / 0.3)": lambda n: int(n / 0.3),
    "ceil(n / 0.7)": lambda n: math.ceil(n / 0.7),
    "round(n * 0.35)": lambda n: round(n * 0.35),
    "n // 0.1": lambda n: int(n // 0.1),
    "n // 4.2": lambda n: int(n // 4.2),
    "1e4 // (n * 0.1)": lambda n: int(1e4 // (n * 0.1)),
    "divmod": lambda n: int(divmod(n, 0.7)[0] + 10 * divmod(n, 0.7)[1]),
    "n % 4.2": lambda n: int(n % 4.2 * 10),
    "n % -0.7": lambda n: int(n % -0.7 * -10),
    "n * 0.57 * 100": lambda n: int(float(n) * 0.57 * 100),
    "n * 0.29 * 100": lambda n: int(n * 0.29 * 100),
    "(n * 0.57) * (n * 0.3)": lambda n: int((n * 0.57) * (n * 0.3)),
    "n * 0.57 + 8": lambda n: int(n * 0.57 + 8),
    "(n + 1) * 0.29": lambda n: int((n + 1) * 0.29),
    "n * 0.1 + n * 0.2": lambda n: int(n * 0.1 + n * 0.2),
    "1.5 + n * 0.1 + n * 0.7": lambda n: int(1.5 + n * 0.1 + n * 0.7),
    "sum of three": lambda n: int(sum([n * 0.1, n * 0.1, n * 0.1]) * 10),
    "n * 0.57 - n * 0.57": lambda n: int(n * 0.57 - n * 0.57 + n),
    "n * 0.1 / 0.3 * 7.7": lambda n: int(n * 0.1 / 0.3 * 7.7),
    "n * 0.5 * 3 * 0.5": lambda n: int(n * 0.5 * 3 * 0.5),
    "n * 1.5 // 1": lambda n: int(n * 1.5 // 1),
    "radians": lambda n: int(math.radians(n + 1) * 1000),
    "sqrt": lambda n: math.ceil(math.sqrt(n)),
    "n ** 1.5": lambda n: int(n**1.5),
    "resampled": lambda n: math.ceil(16000 * n / 44100),
    "NumPy's floor": lambda n: int(np.floor(n * 0.29)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_real_numbers(name: str) -> None:
    formula = FORMULAS[name]
    wanted = np.array([formula(int(n)) for n in SIZES])
    for engine, found in _computed(_dim_of(formula)).items():
        np.testing.assert_array_equal(found, wanted, err_msg=engine)


@pytest.mark.parametrize("scale", [0.1, 0.29, 0.3, 0.7, 1 / 3, 1.1, 1.37, 2.0, 2.3, 4.2])
def test_sizes_of_interpolation(scale: float) -> None:
    formula = functools.partial(torch.nn.functional.interpolate, scale_factor=scale, mode="linear")
    captured = capture(formula, (torch.zeros(1, 1, 17),), options=CaptureOptions(dynamic_shapes=({2: "n"},)))
    node: Any = captured.outputs[0].value
    dim = node.meta["val"].dims[2]
    sizes = [int(n) for n in SIZES if int(int(n) * scale)]
    wanted = [int(n * scale) for n in sizes]
    for n in (*sizes[:30], 9_999):
        assert formula(torch.empty(1, 1, n)).shape[2] == int(n * scale)
    for engine, found in _computed(dim).items():
        np.testing.assert_array_equal(found[-len(sizes) :], wanted, err_msg=engine)


def test_a_power_of_one_number_is_rounded_as_in_c() -> None:
    module: Formula = lambda x: x.new_ones((int(x.shape[0] ** (1 / 3)),))  # noqa: E731
    others = [(torch.zeros(n),) for n in (8, 27, 64, 125, 216, 1000)]
    check(module, (torch.zeros(30),), others=others, dynamic_shapes=({0: "n"},))
