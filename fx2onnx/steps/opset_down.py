"""What becomes of operators whose form the opset before has not: inputs as attributes, newer attributes left out.

Source: ONNX's changelog of operators, and its version converter.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.values import known_sizes
from fx2onnx.steps.opset_edit import Edit, NoForm
from fx2onnx.steps.opset_up import (
    GRID_MODES,
    MASK,
    REDUCTIONS,
    SOFT,
    Change,
    dtype,
    grid_mode,
    read_alone,
    refuse,
)


def _axes_to_attribute(edit: Edit) -> None:
    axes = edit.integers(1)
    if not axes and edit.attribute("noop_with_empty_axes", 0):
        source = edit.input(0)
        assert source is not None
        edit.become(edit.new("Identity", [source], edit.node.outputs[0]))
        return
    edit.drop("noop_with_empty_axes")
    edit.keep_inputs(1)
    if axes:
        edit.set("axes", axes)


def _split_to_attribute(edit: Edit) -> None:
    sizes = edit.integers(1)
    edit.keep_inputs(1)
    if sizes is not None:
        edit.set("split", sizes)


def _uncount_split(edit: Edit) -> None:
    """Before, parts without sizes were equal; from 18 on the last one may be smaller."""
    count = edit.attribute("num_outputs")
    edit.drop("num_outputs")
    if count is None:
        return
    source, axis = edit.input(0), edit.attribute("axis", 0)
    size = source.shape[axis] if source is not None and source.shape is not None else None
    if not isinstance(size, int):
        edit.give(1, _computed_parts(edit, axis, count))
        return
    part = -(-size // count)
    edit.give(1, edit.constant([min(part, size - part * index) for index in range(count)]))


def _computed_parts(edit: Edit, axis: int, count: int) -> ir.Value:
    """The sizes of ``count`` parts, where the size that is split is not known before the run."""
    size = edit.new("Gather", [edit.new("Shape", [edit.input(0)]), edit.constant([axis])], axis=0)
    more = edit.new("Add", [size, edit.constant([count - 1])])
    part = edit.new("Div", [more, edit.constant([count])])
    last = edit.new("Sub", [size, edit.new("Mul", [part, edit.constant([count - 1])])])
    return edit.new("Concat", [part] * (count - 1) + [last], axis=0)


def _slice_to_attributes(edit: Edit) -> None:
    starts, ends, axes, steps = (edit.integers(index) for index in range(1, 5))
    if steps is not None and any(step != 1 for step in steps):
        raise NoForm("it has steps")
    edit.keep_inputs(1)
    for name, numbers in (("starts", starts), ("ends", ends), ("axes", axes)):
        if numbers is not None:
            edit.set(name, numbers)


def _clip_to_attributes(edit: Edit) -> None:
    bounds = [edit.numbers(index) for index in (1, 2)]
    if dtype(edit).kind != "f":
        raise NoForm("it clips integers")
    edit.keep_inputs(1)
    for name, bound in zip(("min", "max"), bounds, strict=True):
        if bound is not None:
            edit.set(name, float(bound.reshape(-1)[0]))


def _pad_to_attributes(edit: Edit) -> None:
    pads, value = edit.integers(1), edit.numbers(2)
    edit.keep_inputs(1)
    edit.set("pads", pads)
    if value is not None:
        edit.set("value", float(value.reshape(-1)[0]))


def _pad_all_axes(edit: Edit) -> None:
    axes = edit.integers(3)
    if axes is None:
        return
    rank, pads = edit.rank(), edit.input(1)
    places = [axis % rank for axis in axes] + [axis % rank + rank for axis in axes]
    edit.keep_inputs(3)
    if pads is not None and pads.const_value is not None and not pads.is_graph_input():
        full = np.zeros(2 * rank, np.int64)
        full[places] = pads.const_value.numpy()
        edit.give(1, edit.constant(full))
    else:
        edit.give(1, edit.new("ScatterElements", [edit.constant([0] * (2 * rank)), edit.constant(places), pads]))


def _pad_without_wrap(edit: Edit) -> None:
    if edit.attribute("mode", "constant") == "wrap":
        raise NoForm("it pads by wrapping around")


def _dropout_to_attribute(edit: Edit) -> None:
    training = edit.numbers(2)
    if training is not None and training.any():
        raise NoForm("it drops numbers in training mode")
    value = edit.input(1)
    ratio = None if value is None or value.const_value is None else edit.numbers(1)
    read_alone(edit, MASK)
    edit.keep_inputs(1)
    edit.set("ratio", 0.5 if ratio is None else float(ratio.reshape(-1)[0]))
    edit.drop("seed")


def _no_training(edit: Edit) -> None:
    if edit.attribute("training_mode", 0):
        raise NoForm("it is in training mode")
    edit.drop("training_mode")


def _softmax_of_last_axes(edit: Edit) -> None:
    rank, axis = edit.rank(), edit.attribute("axis", -1)
    if axis not in (-1, rank - 1):
        raise NoForm(f"it goes over axis {axis} of {rank} alone")
    edit.set("axis", rank - 1)


def _k_to_attribute(edit: Edit) -> None:
    k = edit.integers(1)
    edit.keep_inputs(1)
    edit.set("k", (k or [1])[0])


def _scales_to_attribute(edit: Edit) -> None:
    scales = edit.numbers(1)
    edit.keep_inputs(1)
    edit.set("scales", [float(scale) for scale in (scales if scales is not None else [])])


def _resize_to_upsample(edit: Edit) -> None:
    scales = edit.numbers(1)
    if scales is None or (scales < 1).any():
        raise NoForm("it makes its input smaller")
    edit.rename("Upsample")


def _resize_without_coordinates(edit: Edit) -> None:
    mode = edit.attribute("mode", "nearest")
    is_old = edit.attribute("coordinate_transformation_mode", "half_pixel") == "asymmetric" and mode in (
        "nearest",
        "linear",
    )
    is_old &= mode != "nearest" or edit.attribute("nearest_mode", "round_prefer_floor") == "floor"
    if not is_old or edit.input(3) is not None or edit.attribute("exclude_outside", 0):
        raise NoForm("it places its samples in another way")
    scales = edit.input(2)
    edit.keep_inputs(1)
    edit.give(1, scales)
    edit.drop(
        "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"
    )


def _resize_with_all_inputs(edit: Edit) -> None:
    for index in (1, 2):
        if edit.input(index) is None:
            edit.give(index, edit.constant([], np.float32))


def _elements_to_scatter(edit: Edit) -> None:
    edit.rename("Scatter")


def _dft_axis_to_attribute(edit: Edit) -> None:
    axis = edit.integers(2)
    edit.keep_inputs(2)
    edit.set("axis", -2 if axis is None else axis[0])


def _half_pixel_only(edit: Edit) -> None:
    if edit.attribute("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise NoForm("it places its samples in another way")
    edit.drop("coordinate_transformation_mode")


def _reshape_copies_zero(edit: Edit) -> None:
    if edit.attribute("allowzero", 0):
        held = known_sizes(edit.input(1))
        if held is None or 0 in held:
            raise NoForm("it may make an axis of size 0")
    edit.drop("allowzero")


def _shape_of_all(edit: Edit) -> None:
    start, end = edit.attribute("start", 0), edit.attribute("end")
    edit.drop("start", "end")
    if not start and end is None:
        return
    whole = edit.new("Shape", [edit.input(0)])
    bounds = [edit.constant([start]), edit.constant([np.iinfo(np.int64).max if end is None else end])]
    edit.become(edit.new("Slice", [whole, *bounds, edit.constant([0])], edit.node.outputs[0]))


def _one_dtype(edit: Edit) -> None:
    base, exponent = edit.input(0), edit.input(1)
    if base is not None and exponent is not None and base.dtype is not None and base.dtype != exponent.dtype:
        edit.give(1, edit.new("Cast", [exponent], to=int(base.dtype)))


_AXES = (
    *("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "OneHot", "Split", "Squeeze", "TopK", "Unsqueeze"),
    *(f"Reduce{name}" for name in (*REDUCTIONS, "Sum")),
)
"""Operators whose axes may be counted from the end from opset 11 on."""


def _axes_from_front(edit: Edit) -> None:
    for name in ("axis", "axes"):
        given = edit.attribute(name)
        numbers = given if isinstance(given, list) else [] if given is None else [given]
        if any(number < 0 for number in numbers):
            rank = edit.rank() + {"Unsqueeze": len(numbers), "OneHot": 1}.get(edit.node.op_type, 0)
            counted = [number % rank for number in numbers]
            edit.set(name, counted if isinstance(given, list) else counted[0])


def _slice_from_front(edit: Edit) -> None:
    axes = edit.integers(3)
    if axes is not None and any(axis < 0 for axis in axes):
        rank = edit.rank()
        edit.give(3, edit.constant([axis % rank for axis in axes]))


def _add_nothing(edit: Edit) -> None:
    if edit.input(2) is None:
        edit.give(2, edit.constant([0], dtype(edit)))


DOWN: dict[tuple[str, int], Change] = {
    **{(f"Reduce{name}", 18): _axes_to_attribute for name in REDUCTIONS},
    **{(name, 13): _axes_to_attribute for name in ("ReduceSum", "Squeeze", "Unsqueeze")},
    **{(name, 13): _softmax_of_last_axes for name in SOFT},
    **{(name, 11): _axes_from_front for name in _AXES},
    ("Slice", 11): _slice_from_front,
    ("BatchNormalization", 14): _no_training,
    ("Clip", 11): _clip_to_attributes,
    ("DFT", 20): _dft_axis_to_attribute,
    ("Dropout", 12): _dropout_to_attribute,
    ("Gemm", 11): _add_nothing,
    ("GridSample", 20): grid_mode({new: old for old, new in GRID_MODES.items()}, "linear"),
    ("GroupNormalization", 21): refuse("its scales are those of channels, and were those of groups"),
    ("Pad", 11): _pad_to_attributes,
    ("Pad", 18): _pad_all_axes,
    ("Pad", 19): _pad_without_wrap,
    ("Pow", 12): _one_dtype,
    ("Reshape", 14): _reshape_copies_zero,
    ("Resize", 10): _resize_to_upsample,
    ("Resize", 11): _resize_without_coordinates,
    ("Resize", 13): _resize_with_all_inputs,
    ("RoiAlign", 16): _half_pixel_only,
    ("Scan", 9): refuse("it has no batch axis"),
    ("ScatterElements", 11): _elements_to_scatter,
    ("Shape", 15): _shape_of_all,
    ("Slice", 10): _slice_to_attributes,
    ("Split", 13): _split_to_attribute,
    ("Split", 18): _uncount_split,
    ("TopK", 10): _k_to_attribute,
    ("Upsample", 9): _scales_to_attribute,
}
"""(operator, opset): what becomes of it when the model leaves that opset for the one before."""
