"""Operators in float64 as the forms that stand for them: the numbers of onnxruntime are those that the runner gives for the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

import fx2onnx
from fx2onnx import runner
from fx2onnx.targets.fit import fit
from fx2onnx.targets.form import find

TYPES = {np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): 6}
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape)


def model_of(
    op_type: str,
    arrays: list[Any],
    attributes: dict[str, Any],
    opset: int,
    outputs: int,
    free: tuple[int, ...] | None,
    weights: tuple[int, ...],
) -> onnx.ModelProto:
    """One node; ``free``: axes of the first input of any size; ``weights``: inputs that are initializers."""
    inputs, stored, names = [], [], []
    for index, array in enumerate(arrays):
        names.append("" if array is None else f"in{index}")
        if array is None:
            continue
        if index in weights:
            stored.append(onnx.numpy_helper.from_array(array, f"in{index}"))
            continue
        dims: list[Any] = list(array.shape)
        for axis in (free or ()) if index == 0 else ():
            dims[axis] = f"d{axis}"
        inputs.append(helper.make_tensor_value_info(f"in{index}", TYPES[array.dtype], dims))
    made = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, made, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info(m, 0, None) for m in made], stored)
    for value in graph.output:
        value.ClearField("type")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def check(
    op_type: str,
    arrays: list[Any],
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = 20,
    outputs: int = 1,
    free: tuple[int, ...] | None = None,
    others: tuple[tuple[int, ...], ...] = (),
    weights: tuple[int, ...] = (),
    rtol: float = 1e-12,
) -> None:
    """``others``: further shapes of the first input."""
    proto = model_of(op_type, arrays, attributes or {}, opset, outputs, free, weights)
    model = ir.serde.deserialize_model(proto)
    found = fit(model, find("onnxruntime"))
    assert not found.casts
    assert not found.left
    formed = ir.serde.serialize_model(model)
    assert op_type not in {node.op_type for node in formed.graph.node} - {"NonZero", "OneHot", "Resize"}
    onnx.checker.check_model(formed, full_check=True)
    session = onnxruntime.InferenceSession(formed.SerializeToString(), providers=["CPUExecutionProvider"])
    plain, own = runner.InferenceSession(proto), runner.InferenceSession(formed)
    for shape in (None, *others):
        given = [numbers(*shape) if shape and index == 0 else array for index, array in enumerate(arrays)]
        feeds = {f"in{i}": array for i, array in enumerate(given) if array is not None and i not in weights}
        with np.errstate(all="ignore"):
            expected = plain.run(None, feeds)
            for results in (session.run(None, feeds), own.run(None, feeds)):
                for result, wanted in zip(results, expected, strict=True):
                    assert result.shape == wanted.shape
                    assert result.dtype == wanted.dtype
                    np.testing.assert_allclose(result, wanted, rtol=rtol, atol=1e-13)


SAMPLES = np.array([-800.0, -40.5, -3, -1.25, -1e-9, -0.0, 0, 1e-9, 0.5, 1, 3, 6, 30.5, 800, np.inf, -np.inf, np.nan])
ACTIVATIONS: dict[str, list[dict[str, Any]]] = {
    "Elu": [{}, {"alpha": 0.5}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "HardSigmoid": [{}, {"alpha": 0.5, "beta": 0.25}],
    "HardSwish": [{}],
    "LeakyRelu": [{}, {"alpha": -0.5}],
    "Mish": [{}],
    "NonZero": [{}],
    "Selu": [{}, {"alpha": 0.5, "gamma": 2.0}],
    "Softplus": [{}],
    "Softsign": [{}],
    "ThresholdedRelu": [{}, {"alpha": 0.5}],
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation(name: str) -> None:
    without_nan = name in ("ThresholdedRelu", "NonZero")
    for attributes in ACTIVATIONS[name]:
        check(name, [SAMPLES[:-1] if without_nan else SAMPLES], attributes, rtol=1e-14)


@pytest.mark.parametrize("opset", [9, 20])
def test_slopes_and_means(opset: int) -> None:
    check("PRelu", [numbers(2, 3, 4), numbers(3, 1)], opset=opset)
    check("Mean", [numbers(2, 3), numbers(3), numbers(2, 1)], opset=opset)


def test_one_hot() -> None:
    check("OneHot", [np.array([[0, 2], [-1, 7]]), np.array(4), np.array([0.1, 2.3])], weights=(1,))
    check("OneHot", [np.array([0, 2]), np.array([3]), np.array([0.1, 2.3])], {"axis": 0}, weights=(1,))


WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pads": {"pads": [1, 0, 1, 1]},
    "strides": {"strides": [2, 1], "pads": [1, 1, 0, 1], "dilations": [1, 2]},
    "same upper": {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
    "same lower": {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
    "valid": {"auto_pad": "VALID", "strides": [1, 2]},
}
SHAPES = ((1, 4, 8, 7), (3, 4, 5, 11), (0, 4, 7, 6))


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(name: str, is_free: bool) -> None:
    free, others = ((0, 2, 3), SHAPES) if is_free else (None, ())
    for groups, channels in ((1, 4), (2, 2), (4, 1)):
        attributes = {**WINDOWS[name], "group": groups}
        for x in (numbers(2, 4, 7, 9), numbers(0, 4, 7, 9)):
            check("Conv", [x, numbers(8, channels, 3, 2), numbers(8)], attributes, free=free, others=others)


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("name", [*WINDOWS, "output padding", "output shape"])
def test_transposed_convolutions(name: str, is_free: bool) -> None:
    own = {
        "output padding": {"strides": [3, 2], "output_padding": [2, 1], "pads": [1, 1, 0, 0]},
        "output shape": {"strides": [2, 2], "output_shape": [14, 18]},
    }
    free, others = ((0, 2, 3), SHAPES) if is_free and name != "output shape" else (None, ())
    for groups, channels in ((1, 5), (2, 3), (4, 2)):
        attributes = {**WINDOWS.get(name, own.get(name, {})), "group": groups}
        check("ConvTranspose", [numbers(2, 4, 7, 9), numbers(4, channels, 3, 3)], attributes, free=free, others=others)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(rank: int) -> None:
    x, kernel = numbers(2, 3, *(5, 6, 4)[:rank]), (3, 2, 2)[:rank]
    check("Conv", [x, numbers(4, 3, *kernel)], {"pads": [1] * 2 * rank}, weights=(1,))
    check("ConvTranspose", [x, numbers(3, 4, *kernel)], {"strides": [2] * rank}, opset=11, free=(0, 2))


def test_a_large_kernel_is_few_nodes() -> None:
    x, weight = numbers(1, 2, 20, 20), numbers(3, 2, 25, 23)
    proto = model_of("Conv", [x, weight], {"pads": [12] * 4}, 20, 1, None, (1,))
    model = ir.serde.deserialize_model(proto)
    fit(model, find("onnxruntime"))
    assert len(list(model.graph)) < 20
    check("Conv", [x, weight], {"pads": [12] * 4})


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("name", [*WINDOWS, "ceil"])
def test_pools(name: str, is_free: bool) -> None:
    free, others = ((0, 2, 3), SHAPES) if is_free else (None, ())
    own = {"strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1}
    attributes = {"kernel_shape": [3, 2], **WINDOWS.get(name, own)}
    for counts in (0, 1):
        each = {**attributes, "count_include_pad": counts}
        check("AveragePool", [numbers(2, 4, 7, 9)], each, free=free, others=others)
    for p in (1, 2, 3):
        check("LpPool", [numbers(2, 4, 7, 9)], {**attributes, "p": p}, free=free, others=others)


def test_an_older_pool() -> None:
    check("AveragePool", [numbers(2, 4, 9)], {"kernel_shape": [3], "pads": [1, 1]}, opset=9, free=(0, 2))


@pytest.mark.parametrize("opset", [9, 17, 20])
def test_whole_images(opset: int) -> None:
    x = numbers(2, 4, 5, 3)
    for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        check(name, [x], opset=opset, free=(0, 2, 3), others=((1, 4, 3, 3),))
    check("GlobalLpPool", [x], {"p": 3}, opset=opset)
    check("InstanceNormalization", [x, numbers(4), numbers(4)], {"epsilon": 0.25}, opset=opset, free=(0, 1, 2, 3))
    check("LRN", [x], {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 2.0}, opset=opset, free=(0, 1, 3))
    check("LRN", [x], {"size": 2}, opset=opset)


CELLS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "LSTM": (4, 2, {}),
    "GRU": (3, 1, {"linear_before_reset": 0}),
    "GRU after": (3, 1, {"linear_before_reset": 1}),
    "RNN": (1, 1, {}),
    "RNN relu": (1, 1, {"activations": ["Relu"]}),
}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells(name: str, direction: str) -> None:
    """With and without biases, lengths, first states and peepholes."""
    gates, states, attributes = CELLS[name]
    count, size, x = 2 if direction == "bidirectional" else 1, 3, numbers(5, 2, 4)
    both = {**attributes, "direction": direction, "hidden_size": size}
    both |= {"activations": attributes["activations"] * count} if "activations" in attributes else {}
    fixed = [x, numbers(count, gates * size, 4), numbers(count, gates * size, size)]
    start = [numbers(count, 2, size) for _ in range(states)]
    free = {"free": (0, 1), "others": ((3, 1, 4), (1, 7, 4)), "outputs": 1 + states}
    op_type = name.split()[0]
    check(op_type, fixed, both, weights=(1, 2), **free)
    bias, lengths = numbers(count, 2 * gates * size), np.array([5, 2], np.int32)
    check(op_type, [*fixed, bias, lengths, *start], both, outputs=1 + states)
    if op_type == "LSTM":
        check(op_type, [*fixed, bias, None, None, start[1], numbers(count, 3 * size)], both, opset=13, outputs=3)


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("opset", [11, 20])
def test_nearest_elements(coordinates: str, opset: int) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates}
    x, roi = numbers(2, 3, 7, 5) * 1e300, np.zeros(0, np.float32)
    scales = np.array([1, 1, 1.7, 0.6], np.float32)
    if coordinates != "align_corners":  # onnxruntime takes other places with scales
        check("Resize", [x, roi, scales], {**attributes, "nearest_mode": "floor"}, opset=opset, weights=(1, 2))
    sizes = [x, roi, roi, np.array([2, 3, 4, 9])]
    check("Resize", sizes, attributes, opset=opset, weights=(1, 2, 3), free=(2, 3), others=((2, 3, 5, 8),))


@pytest.mark.parametrize("options", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 0]}, {"dilations": [2, 1]}])
def test_blocks_added_up(options: dict[str, Any]) -> None:
    given, reach = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], **options}, (2, 1)
    wide = [
        (8 + 2 * given["pads"][i] - given["dilations"][i] * reach[i] - 1) // given["strides"][i] + 1 for i in (0, 1)
    ]
    for batch in (2, 0):
        x = numbers(batch, 3 * 6, wide[0] * wide[1])
        check("Col2Im", [x, np.array([8, 8]), np.array([3, 2])], options, weights=(1, 2), free=(0,) if batch else None)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampled_at_a_grid(mode: str, padding: str, tmp_path: Path) -> None:
    class Sample(nn.Module):
        def forward(self, x: Tensor, grid: Tensor) -> Tensor:
            found = [functional.grid_sample(x, grid, mode, padding, align_corners=each) for each in (False, True)]
            return torch.cat(found, 1)

    torch.manual_seed(0)
    path = tmp_path / "model.onnx"
    args = (torch.randn(2, 3, 4, 5).double(), torch.rand(2, 6, 3, 2).double() * 5 - 2.5)
    dims = {"x": {2: "height", 3: "width"}, "grid": {1: "rows"}}
    result = fx2onnx.export(Sample(), args, path, opset_version=16, dynamic_shapes=dims)
    assert not result.report.casts
    for x, grid in (args, (torch.randn(2, 3, 1, 7).double(), torch.rand(2, 2, 3, 2).double() * 5 - 2.5)):
        feeds = {"x": x.numpy(), "grid": grid.numpy()}
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for found in (session.run(None, feeds)[0], runner.InferenceSession(path).run(None, feeds)[0]):
            np.testing.assert_allclose(found, Sample()(x, grid).numpy(), rtol=1e-12, atol=1e-13)


def test_numbers_that_no_attribute_holds(tmp_path: Path) -> None:
    """Attributes are float32 in a file: 0.01 in float64 becomes a constant."""
    torch.manual_seed(0)
    modules = (
        nn.LeakyReLU(0.01), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.ELU(0.3), nn.GroupNorm(2, 4), nn.RMSNorm(4, 1e-5),
    )  # fmt: skip
    x = torch.randn(3, 4).double() * 1e-3
    for opset, target in ((13, None), (23, None), (17, "onnx")):
        for module in modules:
            path = tmp_path / "model.onnx"
            fx2onnx.export(module.double().eval(), (x,), path, opset_version=opset, target=target)
            session = runner.InferenceSession(path)
            found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
            np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-13)
