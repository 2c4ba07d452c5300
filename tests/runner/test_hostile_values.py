"""Operands from a stranger: sizes that add up, indices outside, values that NumPy would take in silence."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from test_hostile import LIMIT_BYTES, options, value
from torch.nn.functional import grid_sample

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

node = helper.make_node
MANY = range(100)
FILL = node("ConstantOfShape", ["large"], ["a"])
SIZES = {"large": np.array([LIMIT_BYTES // 40]), "huge": np.array([LIMIT_BYTES // 4]), "count": np.array(1000)}


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def body(nodes: list[Any], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    infos = [helper.make_empty_tensor_value_info(each) for each in inputs]
    return helper.make_graph(nodes, "b", infos, [helper.make_empty_tensor_value_info(each) for each in outputs])


def model(nodes: list[Any], constants: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    held = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", [], infos, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


WITHOUT_ELEMENTS = body([node("Identity", ["a"], ["o"])], ["row"], ["o"])
INSERT = body([node("SequenceInsert", ["q", "a"], ["q2"])], ["i", "c", "q"], ["c", "q2"])
ADD_UP: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "values_alive_together": (
        [
            *(node("ConstantOfShape", ["large"], [f"a{i}"]) for i in MANY),
            *(node("ReduceMax", [f"a{i}"], [f"m{i}"]) for i in MANY),
            node("Concat", [f"m{i}" for i in MANY], ["y"], axis=0),
        ],
        ("y",),
    ),
    "one_output_many_times": ([node("ConstantOfShape", ["large"], ["y"])], ("y",) * 500),
    "a_sequence_of_one_value": ([FILL, node("SequenceConstruct", ["a"] * 500, ["y"])], ("y",)),
    "a_sequence_that_grows": ([FILL, node("SequenceEmpty", [], ["q0"]), node("Loop", ["count", "", "q0"], ["y"], body=INSERT)], ("y",)),
    "what_a_scan_collects": ([FILL, node("Scan", ["rows"], ["y"], body=WITHOUT_ELEMENTS, num_scan_inputs=1)], ("y",)),
    "what_a_map_over_a_sequence_collects": (
        [FILL, node("SplitToSequence", ["rows"], ["q"]), node("SequenceMap", ["q"], ["y"], body=WITHOUT_ELEMENTS)], ("y",),
    ),
    "parts_of_one_element": ([node("ConstantOfShape", ["parts"], ["a"]), node("SplitToSequence", ["a"], ["y"])], ("y",)),
    "a_grid": ([node("GridSample", ["image", "grid"], ["y"])], ("y",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ADD_UP)
def test_sizes_that_add_up(name: str) -> None:
    nodes, outputs = ADD_UP[name]
    used = {name for each in nodes for name in each.input}
    constants = SIZES | {
        "rows": f32(1000, 1),
        "parts": i64(LIMIT_BYTES // 128),
        "image": f32(1, 2000, 2, 2),
        "grid": f32(1, 100, 100, 2),
    }
    held = {name: array for name, array in constants.items() if name in used}
    session = ort.InferenceSession(model(nodes, held, outputs), options())
    with pytest.raises(UserError) as caught:
        session.run(None, {})
    assert caught.value.code == "E404"


@pytest.mark.long
def test_what_is_dead_does_not_count() -> None:
    """A hundred values one after the other fit into the room of a few, in the first run and by plan."""
    steps = [
        (node("RandomUniform", [], [f"a{i}"], shape=[1 << 18]), node("ReduceMax", [f"a{i}"], [f"m{i}"])) for i in MANY
    ]
    nodes = [each for pair in steps for each in pair]
    session = ort.InferenceSession(
        model([*nodes, node("Concat", [f"m{i}" for i in MANY], ["y"], axis=0)], {}), options()
    )
    for _ in range(3):
        tracemalloc.start()
        (result,) = session.run(None, {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.shape == (100,)
        assert peak_bytes < 10 * (4 << 18)


REFUSED: dict[str, tuple[Any, dict[str, np.ndarray], str]] = {
    "an_axis_cut_twice": (node("Slice", ["x", "s", "e", "a"], ["y"]), {"x": f32(5, 5), "s": i64(0, 1), "e": i64(3, 2), "a": i64(0, -2)}, "twice"),
    "more_cut_than_there_is": (node("Pad", ["x", "p"], ["y"]), {"x": f32(3), "p": i64(-5, 0)}, "negative dim -2"),
    "a_crop_to_less_than_nothing": (node("CenterCropPad", ["x", "p"], ["y"]), {"x": f32(3), "p": i64(-1)}, "negative dim"),
    "unpooling_before_the_start": (
        node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2]), {"x": f32(1, 1, 2), "i": i64(-1, 1).reshape(1, 1, 2)}, "negative",
    ),
    "a_region_of_no_sample": (node("RoiAlign", ["x", "r", "i"], ["y"]), {"x": f32(1, 1, 4, 4), "r": f32(1, 4), "i": i64(-1)}, "negative"),
    "a_scale_for_fewer_channels": (node("InstanceNormalization", ["x", "s", "s"], ["y"]), {"x": f32(1, 3, 2), "s": f32(1)}, "do not fit"),
    "a_norm_of_no_kind": (node("LpNormalization", ["x"], ["y"], p=-1), {"x": f32(3)}, "not 1 or 2"),
    "scores_of_fewer_batches": (node("NonMaxSuppression", ["b", "s"], ["y"]), {"b": f32(2, 3, 4), "s": f32(1, 1, 3)}, "do not fit"),
    "offsets_for_another_output": (
        node("DeformConv", ["x", "w", "o"], ["y"]), {"x": f32(1, 1, 4, 4), "w": f32(1, 1, 2, 2), "o": f32(1, 8, 3, 2)}, "do not fit",
    ),
    "caches_that_differ": (
        node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"]),
        {"x": f32(1, 1, 2, 4), "c": f32(5, 2), "s": f32(4, 2), "p": i64(0, 1).reshape(1, 2)},
        "differ in shape",
    ),
    "time_along_another_axis": (node("ReverseSequence", ["x", "n"], ["y"], time_axis=-2), {"x": f32(3, 2), "n": i64(1, 1)}, "not 0 and 1"),
    "a_split_said_twice": (node("Split", ["x", "s"], ["y", "z"], num_outputs=2), {"x": f32(4), "s": i64(1, 3)}, "both given"),
    "statistics_of_no_training": (
        node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"]), {"x": f32(1, 2, 3), "s": f32(2)}, "without training_mode",
    ),
    "a_sequence_of_two_dtypes": (node("SequenceConstruct", ["x", "i"], ["y"]), {"x": f32(1), "i": i64(1)}, "wants one type"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    step, constants, text = REFUSED[name]
    with pytest.raises(UserError, match=text) as caught:
        ort.InferenceSession(model([step], constants), options()).run(None, {})
    assert caught.value.code in ("E303", "E403")


def test_two_versions_of_one_opset_are_refused() -> None:
    proto = model([node("Neg", ["x"], ["y"])], {"x": f32(1)})
    proto.opset_import.add(domain="ai.onnx", version=7)
    with pytest.raises(UserError, match="two versions of the opset"):
        ort.InferenceSession(proto)
    del proto.opset_import[-1]
    proto.opset_import.add(domain="ai.onnx", version=23)
    assert ort.InferenceSession(proto).run(None, {})[0].tolist() == [-1]


@pytest.mark.parametrize(
    ("mode", "padding_mode", "expected"),
    [
        ("linear", "zeros", [np.nan, np.nan, np.nan, 0]),
        ("nearest", "zeros", [0, 0, 0, 0]),
        ("linear", "border", [4, 6, 4, 6]),
        ("nearest", "border", [4, 6, 4, 6]),
        ("nearest", "reflection", [4, 4, 4, 4]),
        ("cubic", "zeros", [np.nan, np.nan, np.nan, 0]),
    ],
)
def test_a_grid_of_no_numbers(mode: str, padding_mode: str, expected: list[float]) -> None:
    """As ``torch.nn.functional.grid_sample`` has it: a projection may divide by zero."""
    places = np.array([[[[np.nan, 0], [np.inf, 0], [-np.inf, 0], [1e30, 0]]]], np.float32)
    constants = {"x": np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3), "grid": places}
    step = node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding_mode)
    (found,) = ort.InferenceSession(model([step], constants)).run(None, {})
    np.testing.assert_array_equal(found.ravel(), expected)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_pixels_of_no_numbers_reach_only_where_pytorch_reads_them(
    mode: str, padding_mode: str, align_corners: int
) -> None:
    """The gradient of a pixel that lies outside or has no weight, too."""
    along = np.array([0, 0.3, 1, 1.4, -1.7, 30, -1e9, 1e20, np.inf, np.nan], np.float32)
    places = np.stack(np.meshgrid(along, along), -1)[None].astype(np.float32)
    image = np.where(np.arange(12) % 3 == 0, np.inf, np.where(np.arange(12) == 7, np.nan, 1)).astype(np.float32)
    constants = {"x": image.reshape(1, 1, 3, 4), "grid": places}
    settings = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    (found,) = ort.InferenceSession(model([node("GridSample", ["x", "grid"], ["y"], **settings)], constants)).run(
        None, {}
    )
    names = {"linear": "bilinear", "cubic": "bicubic"}
    operands = [torch.from_numpy(each) for each in constants.values()]
    expected = grid_sample(*operands, names.get(mode, mode), padding_mode, bool(align_corners))
    np.testing.assert_allclose(found, expected.numpy(), 1e-5, 1e-5)


@pytest.mark.long
def test_a_name_that_occurs_twice_among_many_is_found_at_once() -> None:
    """By comparing each with all before it, these would take minutes."""
    infos = [value(f"x{place}", [1]) for place in range(100_000)]
    graph = helper.make_graph([node("Neg", ["x0"], ["y"])], "g", [*infos, infos[-1]], [value("y", [1])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(UserError, match="'x99999' occurs twice"):
        ort.InferenceSession(proto)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "MeanVarianceNormalization", "InstanceNormalization"])
@pytest.mark.filterwarnings("error")
def test_rows_of_nothing_give_no_warning(op_type: str) -> None:
    operands = {"x": f32(2, 3, 0, 0), "s": f32(3) if op_type == "InstanceNormalization" else f32(0)}
    inputs = {"LayerNormalization": ["x", "s"], "InstanceNormalization": ["x", "s", "s"]}.get(op_type, ["x"])
    held = {name: operands[name] for name in dict.fromkeys(inputs)}
    (y,) = ort.InferenceSession(model([node(op_type, inputs, ["y"])], held)).run(None, {})
    assert y.shape == (2, 3, 0, 0)


NO_SAMPLES: dict[str, tuple[list[str], dict[str, Any], tuple[int, ...]]] = {
    "GlobalAveragePool": (["x"], {}, (0, 4, 1, 1)),
    "GlobalMaxPool": (["x"], {}, (0, 4, 1, 1)),
    "GlobalLpPool": (["x"], {}, (0, 4, 1, 1)),
    "InstanceNormalization": (["x", "s", "s"], {}, (0, 4, 2, 2)),
    "GroupNormalization": (["x", "s", "s"], {"num_groups": 2}, (0, 4, 2, 2)),
}


@pytest.mark.parametrize("op_type", NO_SAMPLES)
@pytest.mark.filterwarnings("error")
def test_no_samples_at_all(op_type: str) -> None:
    inputs, attrs, shape = NO_SAMPLES[op_type]
    operands = {"x": f32(0, 4, 2, 2), "s": f32(4)}
    held = {name: operands[name] for name in dict.fromkeys(inputs)}
    (y,) = ort.InferenceSession(model([node(op_type, inputs, ["y"], **attrs)], held)).run(None, {})
    assert y.shape == shape


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_an_empty_region_has_the_mean_of_nothing(mode: str, ratio: int) -> None:
    regions = np.array([[2, 2, 2, 2], [5, 5, 1, 1], [0, 0, 7, 0], [1, 1, 3, 3]], np.float32)
    aligned = node("RoiAlign", ["x", "r", "i"], ["y"], mode=mode, sampling_ratio=ratio)
    proto = model([aligned], {"x": f32(1, 2, 9, 9), "r": regions, "i": i64(0, 0, 0, 0)})
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(None, {})
    assert [bool(row.any()) for row in y] == [ratio > 0, ratio > 0, ratio > 0, True]


def test_the_largest_of_nothing_is_nothing() -> None:
    proto = model([node("Hardmax", ["x"], ["y"])], {"x": f32(2, 0)})
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(None, {})
    assert (y.shape, y.dtype) == ((2, 0), np.float32)
