"""What becomes of operators whose form the next opset changes; all other changes only widened types.

Source: ONNX's changelog of operators, and its version converter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fx2onnx.steps.opset_edit import Edit, NoForm

Change: TypeAlias = Callable[[Edit], None]

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


def _axes_to_input(edit: Edit) -> None:
    axes = edit.attribute("axes")
    edit.drop("axes")
    if axes is not None:
        edit.give(1, edit.constant(axes))


def _split_to_input(edit: Edit) -> None:
    sizes = edit.attribute("split")
    edit.drop("split")
    if sizes is not None:
        edit.give(1, edit.constant(sizes))


def _count_split(edit: Edit) -> None:
    if edit.input(1) is None:
        edit.set("num_outputs", len(edit.node.outputs))


def _slice_to_inputs(edit: Edit) -> None:
    given = [edit.attribute(name) for name in ("starts", "ends", "axes")]
    edit.drop("starts", "ends", "axes")
    for index, numbers in enumerate(given, 1):
        if numbers is not None:
            edit.give(index, edit.constant(numbers))


def dtype(edit: Edit) -> np.dtype[np.generic]:
    source = edit.input(0)
    return np.dtype(np.float32) if source is None or source.dtype is None else source.dtype.numpy()


def _clip_to_inputs(edit: Edit) -> None:
    bounds = [edit.attribute(name) for name in ("min", "max")]
    edit.drop("min", "max")
    for index, bound in enumerate(bounds, 1):
        if bound is not None:
            edit.give(index, edit.constant(bound, dtype(edit)))


def _pad_to_inputs(edit: Edit) -> None:
    pads, value = edit.attribute("pads"), edit.attribute("value", 0.0)
    edit.drop("pads", "value")
    edit.give(1, edit.constant(pads))
    if value:
        edit.give(2, edit.constant(value, dtype(edit)))


MASK = "its mask is read, which is another there"


def read_alone(edit: Edit, why: str) -> None:
    """Refuse a node of which more than its first output is read."""
    if any(value.uses() or value.is_graph_output() for value in edit.node.outputs[1:]):
        raise NoForm(why)


def _dropout_to_inputs(edit: Edit) -> None:
    read_alone(edit, MASK)
    ratio = edit.attribute("ratio", 0.5)
    edit.drop("ratio")
    edit.give(1, edit.constant(ratio, np.float32))


def _without_spatial(edit: Edit) -> None:
    if not edit.attribute("spatial", 1):
        raise NoForm("it normalises each place by itself (spatial=0)")
    edit.drop("spatial")


def _one_output(edit: Edit) -> None:
    read_alone(edit, "its statistics are read, which are others there")


def _softmax_of_one_axis(edit: Edit) -> None:
    """Up to 12 it goes over all axes from ``axis`` on, flattened."""
    rank = edit.rank()
    axis = edit.attribute("axis", 1)
    axis = axis + rank if axis < 0 else axis
    edit.set("axis", -1)
    if axis >= rank - 1:
        return
    source, result = edit.input(0), edit.node.outputs[0]
    shape = edit.new("Shape", [source])
    flat = edit.new("Flatten", [source], axis=axis)
    soft = edit.new(edit.node.op_type, [flat], axis=-1)
    edit.become(edit.new("Reshape", [soft, shape], result))


def _k_to_input(edit: Edit) -> None:
    k = edit.attribute("k")
    edit.drop("k")
    edit.give(1, edit.constant([k]))


def _scales_to_input(edit: Edit) -> None:
    scales = edit.attribute("scales")
    edit.drop("scales")
    edit.give(1, edit.constant(scales, np.float32))


def _upsample_to_resize(edit: Edit) -> None:
    edit.rename("Resize")


def _resize_with_coordinates(edit: Edit) -> None:
    scales = edit.input(1)
    edit.give(1, edit.constant([], np.float32))
    edit.give(2, scales)
    edit.set("coordinate_transformation_mode", "asymmetric")
    if edit.attribute("mode", "nearest") == "nearest":
        edit.set("nearest_mode", "floor")


def _resize_without_tf_half_pixel(edit: Edit) -> None:
    if edit.attribute("coordinate_transformation_mode", "") == "tf_half_pixel_for_nn":
        raise NoForm("tf_half_pixel_for_nn is gone")


def _scatter_to_elements(edit: Edit) -> None:
    edit.rename("ScatterElements")


GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def grid_mode(names: dict[str, str], default: str) -> Change:
    def change(edit: Edit) -> None:
        mode = edit.attribute("mode", default)
        edit.set("mode", names.get(mode, mode))

    return change


def _dft_axis_to_input(edit: Edit) -> None:
    axis = edit.attribute("axis", 1)
    edit.drop("axis")
    edit.give(2, edit.constant(axis))


def _half_pixel_off(edit: Edit) -> None:
    if edit.attribute("coordinate_transformation_mode") is None:
        edit.set("coordinate_transformation_mode", "output_half_pixel")


def _group_scales(edit: Edit) -> None:
    source = edit.input(0)
    channels = source.shape[1] if source is not None and source.shape is not None else None
    for index in (1, 2):
        numbers = edit.numbers(index)
        if numbers is None or not isinstance(channels, int):
            raise NoForm("the channels of its input are not known")
        edit.give(index, edit.constant(np.repeat(numbers, channels // max(numbers.size, 1)), numbers.dtype))


def refuse(why: str) -> Change:
    def change(edit: Edit) -> None:
        raise NoForm(why)

    return change


SOFT = ("Softmax", "LogSoftmax", "Hardmax")

UP: dict[tuple[str, int], Change] = {
    **{(f"Reduce{name}", 18): _axes_to_input for name in REDUCTIONS},
    **{(name, 13): _axes_to_input for name in ("ReduceSum", "Squeeze", "Unsqueeze")},
    **{(name, 13): _softmax_of_one_axis for name in SOFT},
    ("BatchNormalization", 9): _without_spatial,
    ("BatchNormalization", 14): _one_output,
    ("Clip", 11): _clip_to_inputs,
    ("DFT", 20): _dft_axis_to_input,
    ("Dropout", 12): _dropout_to_inputs,
    ("GridSample", 20): grid_mode(GRID_MODES, "bilinear"),
    ("GroupNormalization", 21): _group_scales,
    ("Pad", 11): _pad_to_inputs,
    ("Resize", 11): _resize_with_coordinates,
    ("Resize", 13): _resize_without_tf_half_pixel,
    ("RoiAlign", 16): _half_pixel_off,
    ("Scan", 9): refuse("its batch axis is gone"),
    ("Scatter", 11): _scatter_to_elements,
    ("Slice", 10): _slice_to_inputs,
    ("Split", 13): _split_to_input,
    ("Split", 18): _count_split,
    ("TopK", 10): _k_to_input,
    ("Upsample", 9): _scales_to_input,
    ("Upsample", 10): _upsample_to_resize,
}
"""(operator, opset): what becomes of it when the model gets that opset, from the one before."""
