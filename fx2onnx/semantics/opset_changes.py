"""Changes of the form of operators between opsets: one table for both directions. All other changes only widened types.

Source: ONNX's changelog of operators, and its version converter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np


class NoForm(Exception):
    """The node cannot be expressed in the other opset; the text says why."""


class NodeForm(Protocol):
    """One node whose form changes, and what may be done with it. Values are those of the graph's library."""

    node: Any

    def input(self, index: int) -> Any:
        """Input ``index``, None where it is not given."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute's value; tuples as lists."""

    def numbers(self, index: int) -> Any:
        """The constant at an input; None where none is given. Raises NoForm where it is computed."""

    def integers(self, index: int) -> list[int] | None:
        """The same as a list of whole numbers."""

    def known_sizes(self, index: int) -> Sequence[Any] | None:
        """The numbers of an input that holds sizes, as far as they are known; None where they are not."""

    def rank(self) -> int:
        """The number of axes of the first input. Raises NoForm."""

    def drop(self, *names: str) -> None:
        """Remove attributes, where they are there."""

    def set(self, name: str, value: Any) -> None:
        """Give the node an attribute."""

    def give(self, index: int, value: Any) -> None:
        """Put a value at an input, new or not."""

    def keep_inputs(self, count: int) -> None:
        """Leave only the first inputs."""

    def constant(self, data: Any, dtype: Any = np.int64) -> Any:
        """A new weight."""

    def new(self, op_type: str, inputs: Sequence[Any], like: Any = None, **attributes: Any) -> Any:
        """A new node before this one; its output has the type of ``like``."""

    def become(self, value: Any) -> None:
        """The node goes; its readers read ``value``."""

    def rename(self, op_type: str) -> None:
        """The same node by another operator."""


Change: TypeAlias = Callable[[NodeForm], None]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_SOFT = ("Softmax", "LogSoftmax", "Hardmax")
_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_MASK = "its mask is read, which is another there"
_OTHER_PLACES = "it places its samples in another way"


def _dtype(edit: NodeForm) -> np.dtype[np.generic]:
    source = edit.input(0)
    return np.dtype(np.float32) if source is None or source.dtype is None else source.dtype.numpy()


def _read_alone(edit: NodeForm, why: str) -> None:
    """Refuse a node of which more than its first output is read."""
    if any(value.uses() or value.is_graph_output() for value in edit.node.outputs[1:]):
        raise NoForm(why)


def _refuse(why: str) -> Change:
    def change(edit: NodeForm) -> None:
        raise NoForm(why)

    return change


def _refuse_value(name: str, value: Any, why: str, default: Any = None, drops: bool = False) -> Change:
    """Refuse one value of an attribute, and ``drops`` the attribute that has no other effect."""

    def change(edit: NodeForm) -> None:
        if edit.attribute(name, default) == value:
            raise NoForm(why)
        if drops:
            edit.drop(name)

    return change


def _rename(op_type: str) -> Change:
    return lambda edit: edit.rename(op_type)


def _to_inputs(*names: str, dtype: type[np.generic] | None = np.int64) -> Change:
    """Attributes become the inputs from 1 on; ``dtype`` None: that of the first input."""

    def change(edit: NodeForm) -> None:
        given = [edit.attribute(name) for name in names]
        edit.drop(*names)
        for index, numbers in enumerate(given, 1):
            if numbers is not None:
                edit.give(index, edit.constant(numbers, _dtype(edit) if dtype is None else dtype))

    return change


_AXES_TO_INPUT = _to_inputs("axes")


def _grid_mode(names: dict[str, str], default: str) -> Change:
    def change(edit: NodeForm) -> None:
        mode = edit.attribute("mode", default)
        edit.set("mode", names.get(mode, mode))

    return change


def _count_split(edit: NodeForm) -> None:
    if edit.input(1) is None:
        edit.set("num_outputs", len(edit.node.outputs))


def _pad_to_inputs(edit: NodeForm) -> None:
    pads, value = edit.attribute("pads"), edit.attribute("value", 0.0)
    edit.drop("pads", "value")
    edit.give(1, edit.constant(pads))
    if value:
        edit.give(2, edit.constant(value, _dtype(edit)))


def _dropout_to_inputs(edit: NodeForm) -> None:
    _read_alone(edit, _MASK)
    ratio = edit.attribute("ratio", 0.5)
    edit.drop("ratio")
    edit.give(1, edit.constant(ratio, np.float32))


def _softmax_of_one_axis(edit: NodeForm) -> None:
    """Softmax up to opset 12, which goes over all axes from ``axis`` on, flattened, with one axis."""
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


def _k_to_input(edit: NodeForm) -> None:
    k = edit.attribute("k")
    edit.drop("k")
    edit.give(1, edit.constant([k]))


def _resize_with_coordinates(edit: NodeForm) -> None:
    scales = edit.input(1)
    edit.give(1, edit.constant([], np.float32))
    edit.give(2, scales)
    edit.set("coordinate_transformation_mode", "asymmetric")
    if edit.attribute("mode", "nearest") == "nearest":
        edit.set("nearest_mode", "floor")


def _dft_axis_to_input(edit: NodeForm) -> None:
    axis = edit.attribute("axis", 1)
    edit.drop("axis")
    edit.give(2, edit.constant(axis))


def _half_pixel_off(edit: NodeForm) -> None:
    if edit.attribute("coordinate_transformation_mode") is None:
        edit.set("coordinate_transformation_mode", "output_half_pixel")


def _group_scales(edit: NodeForm) -> None:
    source = edit.input(0)
    channels = source.shape[1] if source is not None and source.shape is not None else None
    for index in (1, 2):
        numbers = edit.numbers(index)
        if numbers is None or not isinstance(channels, int):
            raise NoForm("the channels of its input are not known")
        edit.give(index, edit.constant(np.repeat(numbers, channels // max(numbers.size, 1)), numbers.dtype))


def _axes_to_attribute(edit: NodeForm) -> None:
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


def _split_to_attribute(edit: NodeForm) -> None:
    sizes = edit.integers(1)
    edit.keep_inputs(1)
    if sizes is not None:
        edit.set("split", sizes)


def _uncount_split(edit: NodeForm) -> None:
    """Drop the number of parts of Split: up to opset 17 parts without sizes are equal; from 18 on the last one may be
    smaller."""
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


def _computed_parts(edit: NodeForm, axis: int, count: int) -> Any:
    """The sizes of ``count`` parts, where the size that is split is not known before the run."""
    size = edit.new("Gather", [edit.new("Shape", [edit.input(0)]), edit.constant([axis])], axis=0)
    more = edit.new("Add", [size, edit.constant([count - 1])])
    part = edit.new("Div", [more, edit.constant([count])])
    last = edit.new("Sub", [size, edit.new("Mul", [part, edit.constant([count - 1])])])
    return edit.new("Concat", [part] * (count - 1) + [last], axis=0)


def _slice_to_attributes(edit: NodeForm) -> None:
    starts, ends, axes, steps = (edit.integers(index) for index in range(1, 5))
    if steps is not None and any(step != 1 for step in steps):
        raise NoForm("it has steps")
    edit.keep_inputs(1)
    for name, numbers in (("starts", starts), ("ends", ends), ("axes", axes)):
        if numbers is not None:
            edit.set(name, numbers)


def _clip_to_attributes(edit: NodeForm) -> None:
    bounds = [edit.numbers(index) for index in (1, 2)]
    if _dtype(edit).kind != "f":
        raise NoForm("it clips integers")
    edit.keep_inputs(1)
    for name, bound in zip(("min", "max"), bounds, strict=True):
        if bound is not None:
            edit.set(name, float(bound.reshape(-1)[0]))


def _pad_to_attributes(edit: NodeForm) -> None:
    pads, value = edit.integers(1), edit.numbers(2)
    edit.keep_inputs(1)
    edit.set("pads", pads)
    if value is not None:
        edit.set("value", float(value.reshape(-1)[0]))


def _pad_all_axes(edit: NodeForm) -> None:
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


def _dropout_to_attribute(edit: NodeForm) -> None:
    training = edit.numbers(2)
    if training is not None and training.any():
        raise NoForm("it drops numbers in training mode")
    value = edit.input(1)
    ratio = None if value is None or value.const_value is None else edit.numbers(1)
    _read_alone(edit, _MASK)
    edit.keep_inputs(1)
    edit.set("ratio", 0.5 if ratio is None else float(ratio.reshape(-1)[0]))
    edit.drop("seed")


def _no_training(edit: NodeForm) -> None:
    if edit.attribute("training_mode", 0):
        raise NoForm("it is in training mode")
    edit.drop("training_mode")


def _softmax_of_last_axes(edit: NodeForm) -> None:
    rank, axis = edit.rank(), edit.attribute("axis", -1)
    if axis not in (-1, rank - 1):
        raise NoForm(f"it goes over axis {axis} of {rank} alone")
    edit.set("axis", rank - 1)


def _k_to_attribute(edit: NodeForm) -> None:
    k = edit.integers(1)
    edit.keep_inputs(1)
    edit.set("k", (k or [1])[0])


def _scales_to_attribute(edit: NodeForm) -> None:
    scales = edit.numbers(1)
    edit.keep_inputs(1)
    edit.set("scales", [float(scale) for scale in (scales if scales is not None else [])])


def _resize_to_upsample(edit: NodeForm) -> None:
    scales = edit.numbers(1)
    if scales is None or (scales < 1).any():
        raise NoForm("it makes its input smaller")
    edit.rename("Upsample")


def _resize_without_coordinates(edit: NodeForm) -> None:
    mode = edit.attribute("mode", "nearest")
    is_old = edit.attribute("coordinate_transformation_mode", "half_pixel") == "asymmetric" and mode in (
        "nearest",
        "linear",
    )
    is_old &= mode != "nearest" or edit.attribute("nearest_mode", "round_prefer_floor") == "floor"
    if not is_old or edit.input(3) is not None or edit.attribute("exclude_outside", 0):
        raise NoForm(_OTHER_PLACES)
    scales = edit.input(2)
    edit.keep_inputs(1)
    edit.give(1, scales)
    edit.drop(
        "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"
    )


def _resize_with_all_inputs(edit: NodeForm) -> None:
    for index in (1, 2):
        if edit.input(index) is None:
            edit.give(index, edit.constant([], np.float32))


def _dft_axis_to_attribute(edit: NodeForm) -> None:
    axis = edit.integers(2)
    edit.keep_inputs(2)
    edit.set("axis", -2 if axis is None else axis[0])


def _reshape_copies_zero(edit: NodeForm) -> None:
    if edit.attribute("allowzero", 0):
        held = edit.known_sizes(1)
        if held is None or 0 in held:
            raise NoForm("it may make an axis of size 0")
    edit.drop("allowzero")


def _shape_of_all(edit: NodeForm) -> None:
    start, end = edit.attribute("start", 0), edit.attribute("end")
    edit.drop("start", "end")
    if not start and end is None:
        return
    whole = edit.new("Shape", [edit.input(0)])
    bounds = [edit.constant([start]), edit.constant([np.iinfo(np.int64).max if end is None else end])]
    edit.become(edit.new("Slice", [whole, *bounds, edit.constant([0])], edit.node.outputs[0]))


def _one_dtype(edit: NodeForm) -> None:
    base, exponent = edit.input(0), edit.input(1)
    if base is not None and exponent is not None and base.dtype is not None and base.dtype != exponent.dtype:
        edit.give(1, edit.new("Cast", [exponent], to=int(base.dtype)))


def _axes_from_front(edit: NodeForm) -> None:
    for name in ("axis", "axes"):
        given = edit.attribute(name)
        numbers = given if isinstance(given, list) else [] if given is None else [given]
        if any(number < 0 for number in numbers):
            rank = edit.rank() + {"Unsqueeze": len(numbers), "OneHot": 1}.get(edit.node.op_type, 0)
            counted = [number % rank for number in numbers]
            edit.set(name, counted if isinstance(given, list) else counted[0])


def _slice_from_front(edit: NodeForm) -> None:
    axes = edit.integers(3)
    if axes is not None and any(axis < 0 for axis in axes):
        rank = edit.rank()
        edit.give(3, edit.constant([axis % rank for axis in axes]))


def _add_nothing(edit: NodeForm) -> None:
    if edit.input(2) is None:
        edit.give(2, edit.constant([0], _dtype(edit)))


_AXES = (
    *("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "OneHot", "Split", "Squeeze", "TopK", "Unsqueeze"),
    *(f"Reduce{name}" for name in (*_REDUCTIONS, "Sum")),
)
"""Operators whose axes may be counted from the end from opset 11 on."""

CHANGES: dict[tuple[str, int], tuple[Change | None, Change | None]] = {
    **{(name, 11): (None, _axes_from_front) for name in _AXES},
    **{(f"Reduce{name}", 18): (_AXES_TO_INPUT, _axes_to_attribute) for name in _REDUCTIONS},
    **{(name, 13): (_AXES_TO_INPUT, _axes_to_attribute) for name in ("ReduceSum", "Squeeze", "Unsqueeze")},
    **{(name, 13): (_softmax_of_one_axis, _softmax_of_last_axes) for name in _SOFT},
    ("BatchNormalization", 9): (
        _refuse_value("spatial", 0, "it normalises each place by itself (spatial=0)", drops=True),
        None,
    ),
    ("BatchNormalization", 14): (
        lambda edit: _read_alone(edit, "its statistics are read, which are others there"),
        _no_training,
    ),
    ("Clip", 11): (_to_inputs("min", "max", dtype=None), _clip_to_attributes),
    ("DFT", 20): (_dft_axis_to_input, _dft_axis_to_attribute),
    ("Dropout", 12): (_dropout_to_inputs, _dropout_to_attribute),
    ("Gemm", 11): (None, _add_nothing),
    ("GridSample", 20): (
        _grid_mode(_GRID_MODES, "bilinear"),
        _grid_mode({new: old for old, new in _GRID_MODES.items()}, "linear"),
    ),
    ("GroupNormalization", 21): (_group_scales, _refuse("its scales are those of channels, and were those of groups")),
    ("Pad", 11): (_pad_to_inputs, _pad_to_attributes),
    ("Pad", 18): (None, _pad_all_axes),
    ("Pad", 19): (None, _refuse_value("mode", "wrap", "it pads by wrapping around")),
    ("Pow", 12): (None, _one_dtype),
    ("Reshape", 14): (None, _reshape_copies_zero),
    ("Resize", 10): (None, _resize_to_upsample),
    ("Resize", 11): (_resize_with_coordinates, _resize_without_coordinates),
    ("Resize", 13): (
        _refuse_value("coordinate_transformation_mode", "tf_half_pixel_for_nn", "tf_half_pixel_for_nn is gone"),
        _resize_with_all_inputs,
    ),
    ("RoiAlign", 16): (
        _half_pixel_off,
        _refuse_value("coordinate_transformation_mode", "half_pixel", _OTHER_PLACES, default="half_pixel", drops=True),
    ),
    ("Scan", 9): (_refuse("its batch axis is gone"), _refuse("it has no batch axis")),
    ("Scatter", 11): (_rename("ScatterElements"), None),
    ("ScatterElements", 11): (None, _rename("Scatter")),
    ("Shape", 15): (None, _shape_of_all),
    ("Slice", 10): (_to_inputs("starts", "ends", "axes"), _slice_to_attributes),
    ("Slice", 11): (None, _slice_from_front),
    ("Split", 13): (_to_inputs("split"), _split_to_attribute),
    ("Split", 18): (_count_split, _uncount_split),
    ("TopK", 10): (_k_to_input, _k_to_attribute),
    ("Upsample", 9): (_to_inputs("scales", dtype=np.float32), _scales_to_attribute),
    ("Upsample", 10): (_rename("Resize"), None),
}
"""(operator, opset): what becomes of a node when the model gets that opset from the one before, and when it leaves it for that one."""
