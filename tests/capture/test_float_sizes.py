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
from hypothesis import given, settings
from hypothesis import strategies as st

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import new_value
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes.expr import Dim
from tests.support import Engines, check, flat

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
    "n / 30 by a product": lambda n: int(30 * n * (1 / 30)) + int(n * (1 / 30)),
    "n / 49 by a product": lambda n: int(49 * n * (1 / 49)) + math.ceil(n * (1 / 49)),
    "160 of 441": lambda n: int(n * (160 / 441)) + math.ceil(n * (160 / 441)),
    "ceil(n * 0.1)": lambda n: math.ceil(n * 0.1),
    "ceil(n * 0.29)": lambda n: math.ceil(n * 0.29),
    "-(n * 0.3)": lambda n: 10_000 - math.floor(n * -0.3),
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
    "float(n - 1) / 2.0": lambda n: math.ceil(float(n - 1) / 2.0),
    "float(n) / 1.5": lambda n: math.ceil(float(n) / 1.5),
    "down to 1 - n": lambda n: math.ceil(float(1 - 2 * n) / -1.0),
    "(n + 0.5) / -0.375": lambda n: -math.floor((n + 0.5) / -0.375),
    "n / 2 + (n - 1) / 2": lambda n: math.ceil((n / 2 - -(n - 1) / 2) / 1.0),
    "n / 4 * n / 8": lambda n: int(n / 4 * (n / 8) + n / 3),
    "a convolution's padding": lambda n: math.ceil((n - 3) / 7 + 1.0) * 7 - n + 9,
    "a convolution's size": lambda n: math.floor((n + 19) / 20 - 1),
    "a third, and a part": lambda n: math.floor(n / 3 + 0.5) + math.ceil(n / 3 - 2.0) + 2,
    "trunc": lambda n: math.trunc(float(n + 3) / 3.0),
    "NumPy's floor": lambda n: int(np.floor(n * 0.29)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_real_numbers(name: str) -> None:
    formula = FORMULAS[name]
    wanted = np.array([formula(int(n)) for n in SIZES])
    for engine, found in _computed(_dim_of(formula)).items():
        np.testing.assert_array_equal(found, wanted, err_msg=engine)


def test_padding_to_whole_windows_is_no_branch() -> None:
    """As codecs of sound do it: ``ceil`` of a quotient and a whole number is an integer, which is known to be large enough."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        more = (math.ceil((x.shape[1] - 5) / 3 + 1.0) - 1) * 3 + 5 - x.shape[1]
        assert more >= 0
        return torch.nn.functional.pad(x, (0, more)).unfold(1, 5, 3).mean(2)

    result = check(padded, (torch.randn(2, 17),), others=[(torch.randn(2, 33),)], dynamic_shapes=({1: "n"},))
    assert [str(each) for each in result.report.assumptions if "ceil" in str(each) or "branch" in str(each)] == []


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


@pytest.mark.parametrize("factor", [12, 30, 441])
def test_resampled_to_a_part_and_back_it_is_as_long(factor: int) -> None:
    """The factor's reciprocal is no binary fraction, and the product with a multiple of the factor is exact at every length."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = torch.nn.functional.interpolate(x, scale_factor=float(factor))
        low = torch.nn.functional.interpolate(high, scale_factor=1 / factor, mode="linear")
        return low * x, torch.nn.functional.interpolate(low, scale_factor=factor, mode="linear") + high

    others = [(torch.rand(1, 2, n),) for n in (1, 4, 17)]
    result = check(program, (torch.rand(1, 2, 9),), others=others, dynamic_shapes=({2: "n"},))
    assert not result.report.assumptions


def test_a_power_of_one_number_is_rounded_as_in_c() -> None:
    module: Formula = lambda x: x.new_ones((int(x.shape[0] ** (1 / 3)),))  # noqa: E731
    others = [(torch.zeros(n),) for n in (8, 27, 64, 125, 216, 1000)]
    check(module, (torch.zeros(30),), others=others, dynamic_shapes=({0: "n"},))


THETA = torch.tensor([[[1.0, 0.2, 0.0], [0.1, 0.9, 0.3]]])
HANN, PLACES = torch.hann_window(16), torch.full((1, 1, 2), 0.37)
F = torch.nn.functional
OF_SIZES: dict[str, Formula] = {
    "roll": lambda x: x.roll(int(x.shape[2] * 0.3), 2),
    "roll back": lambda x: x.roll((-int(x.shape[2] / 3), 1), (2, 3)),
    "stft": lambda x: torch.stft(x[0, :, :, 0], 16, 5, window=HANN, return_complex=True).abs(),
    "stft without padding": lambda x: torch.stft(x[0, :, :, 0], 16, 7, window=HANN, center=False, return_complex=True).abs(),
    "fractional pooling": lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.3, 0.6), return_indices=True, _random_samples=PLACES),
    "fractional pooling to a size": lambda x: F.fractional_max_pool2d(x, 2, output_size=(5, 3), _random_samples=PLACES),
    "antialias to a part": lambda x: F.interpolate(x, (int(x.shape[2] * 0.3), 3), mode="bilinear", antialias=True),
    "antialias to a size": lambda x: F.interpolate(x, (7, 3), mode="bicubic", antialias=True),
    "antialias by a factor": lambda x: F.interpolate(x, scale_factor=(0.5, 1), mode="bilinear", antialias=True),
    "area": lambda x: F.interpolate(x, scale_factor=(0.29, 0.5), mode="area"),
    "affine_grid": lambda x: F.affine_grid(THETA, (1, 1, int(x.shape[2] * 0.3), 3), align_corners=False),
    "affine_grid of corners": lambda x: F.affine_grid(THETA, (1, 1, 3, x.shape[2]), align_corners=True),
    "means of adaptive windows": lambda x: F.adaptive_avg_pool2d(x, (int(x.shape[2] * 0.3), 3)),
    "largest of adaptive windows": lambda x: F.adaptive_max_pool2d(x, (7, 3), return_indices=True),
    "linspace": lambda x: torch.linspace(0, 1, int(x.shape[2] * 0.3)) + x[0, 0, 0, 0],
    "linspace to a size": lambda x: torch.linspace(-1, x.shape[2] * 0.1, x.shape[2]) + x[0, 0, 0, 0],
    "linspace of places": lambda x: torch.linspace(0, x.shape[2] - 1, 9).long() + x[0, 0, 0, 0],
    "arange by 0.3": lambda x: torch.arange(0, x.shape[2], 0.3) + x[0, 0, 0, 0],
    "arange to a part": lambda x: torch.arange(0, x.shape[2] * 0.1, 0.1) + x[0, 0, 0, 0],
    "arange of a part": lambda x: torch.arange(0, 1, 1 / x.shape[2]) + x[0, 0, 0, 0],
    "integers by 1.5": lambda x: torch.arange(0, x.shape[2], 1.5, dtype=torch.int64) + x[0, 0, 0, 0],
    "integers of 32 bits by 2.5": lambda x: torch.arange(0.5, x.shape[2], 2.5, dtype=torch.int32) + x[0, 0, 0, 0],
    "integers from a part": lambda x: torch.arange(x.shape[2] / 2, x.shape[2] + 1, dtype=torch.int64) + x[0, 0, 0, 0],
    "integers down": lambda x: torch.arange(x.shape[2], -1.5, -1.7, dtype=torch.int64) + x[0, 0, 0, 0],
    "arange down, written": lambda x: x.new_zeros(2 * x.shape[2] - 1) + torch.arange(x.shape[2] - 1, -x.shape[2], -1.0),
    "arange down": lambda x: torch.arange(x.shape[2], 0, -0.7, dtype=torch.float64) + x[0, 0, 0, 0],
    "bartlett_window": lambda x: torch.bartlett_window(int(x.shape[2] * 0.5) + 1) + x[0, 0, 0, 0],
    "kaiser_window": lambda x: torch.kaiser_window(x.shape[2]) + x[0, 0, 0, 0],
    "kaiser_window with both ends": lambda x: torch.kaiser_window(x.shape[2] + 1, periodic=False, beta=7.0) + x[0, 0, 0, 0],
    "tensor_split": lambda x: x.tensor_split([int(x.shape[2] * 0.3), int(x.shape[2] * 0.7)], 2)[1] * 2,
    "largest part": lambda x: x.topk(int(x.shape[2] * 0.3), 2)[0],
    "pooling of the ceiling": lambda x: F.avg_pool2d(x, (5, 1), (3, 1), (2, 0), ceil_mode=True),
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def _of_sizes(name: str) -> Engines:
    result = fx2onnx.export(OF_SIZES[name], (_rows(29),), dynamic_shapes=({2: "n"},))
    return Engines(result.model_proto)


def _rows(count: int) -> torch.Tensor:
    return torch.linspace(-1, 1, count * 4).sin().reshape(1, 1, count, 4)


@pytest.mark.parametrize("name", OF_SIZES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(size=st.one_of(st.integers(1, 64), st.integers(1, 10_000)))
def test_operators_at_every_size(name: str, size: int) -> None:
    """Where eager PyTorch raises, the runner does."""
    engines, x = _of_sizes(name), _rows(size)
    try:
        wanted = flat(OF_SIZES[name](x))
    except (RuntimeError, ValueError):
        with pytest.raises(fx2onnx.UserError):
            engines.sessions["runner"].run(None, {engines.names[0]: x.numpy()})
        return
    for engine, found in engines.run((x,)).items():
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape, engine
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=3e-5, err_msg=f"{engine} {size}")


def test_a_number_with_a_fraction_that_forward_returns_keeps_it() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        rows, columns = x.shape
        return rows / 2, rows**0.5, float(columns), (rows + 1) / columns, x.sum().item() * 1.5, rows * 2, -1.5

    given = {"x": {0: "rows", 1: "columns"}}
    result = fx2onnx.export(program, (torch.ones(5, 4),), dynamic_shapes=given, verify=True)
    assert [output.dtype for output in result.model.graph.outputs] == [
        *[ir.DataType.DOUBLE] * 5,
        ir.DataType.INT64,
        ir.DataType.DOUBLE,
    ]
    for x in (torch.ones(5, 4), torch.ones(3, 7)):
        for outputs in Engines(result.model_proto).run([x]).values():
            np.testing.assert_allclose(outputs, flat(program(x)), rtol=1e-12)


DECISIONS: dict[str, Callable[[int, int], Any]] = {
    "h / w > 1.0": lambda h, w: h / w > 1.0,
    "h / w >= 1.75": lambda h, w: h / w >= 1.75,
    "h / w == 1.5": lambda h, w: h / w == 1.5,
    "h / w != 0.5": lambda h, w: h / w != 0.5,
    "0.5 < h / w < 1.6": lambda h, w: 0.5 < h / w < 1.6,
    "h * 0.3 > w": lambda h, w: h * 0.3 > w,
    "h / 3 > w / 2.5": lambda h, w: h / 3 > w / 2.5,
    "sqrt": lambda h, w: math.sqrt(h) < w / 2,
    "remainder": lambda h, w: (h + w) % 2.5 < 1.2,
    "absolute": lambda h, w: abs(h / w - 1) < 0.3,
    "neither": lambda h, w: not (h / w > 0.5 and w / h < 3),
    "of one size": lambda h, w: h / 2 - h // 2 > 0.2,
}


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_by_real_numbers(name: str, opset: int) -> None:
    """Both ways are in the file, and the real number that decides is not rounded to an integer."""
    decides = DECISIONS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        h, w = x.shape
        return x.new_ones(int(w * 1.7), 3) if decides(h, w) else x.new_zeros(h, 2)

    result = fx2onnx.export(program, (torch.ones(4, 5),), dynamic_shapes=({0: "h", 1: "w"},), opset_version=opset)
    session = InferenceSession(result.model_proto)
    sizes = [(h, w) for h in range(1, 9) for w in range(1, 9)]
    assert len({decides(*size) for size in sizes}) == 2
    for size in sizes:
        (found,) = session.run(None, {"x": np.ones(size, np.float32)})
        np.testing.assert_array_equal(found, program(torch.ones(size)).numpy(), err_msg=str(size))
