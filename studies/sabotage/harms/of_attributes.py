"""Attributes that are off."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.sabotage.harms.registry import at, attribute, harm
from studies.sabotage.sketch import Site, Sketch


@harm
def axis(sketch: Sketch) -> Site | None:
    return attribute(sketch, "axis", lambda node, axis: axis - 1 if axis else 1)


@harm
def epsilon(sketch: Sketch) -> Site | None:
    return attribute(sketch, "epsilon", lambda node, value: value * 1000)


@harm
def alpha(sketch: Sketch) -> Site | None:
    return attribute(sketch, "alpha", lambda node, value: value * 1.02 + 0.001)


@harm
def permutation(sketch: Sketch) -> Site | None:
    def change(node: Any, perm: list[int]) -> list[int]:
        one, other = sketch.random.choice(len(perm), 2, replace=False)
        perm = list(perm)
        perm[one], perm[other] = perm[other], perm[one]
        return perm

    return attribute(sketch, "perm", change)


@harm
def padding_moved(sketch: Sketch) -> Site | None:
    return attribute(
        sketch, "pads", lambda node, pads: [*[p + 1 for p in pads[: len(pads) // 2]], *[p - 1 for p in pads[len(pads) // 2 :]]] if min(pads) > 0 else None
    )  # fmt: skip


@harm
def dilation(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Conv", where=lambda node: min(sketch.attribute(node, "kernel_shape") or [1]) == 3)
    if node is None or sketch.attribute(node, "pads") is None:
        return None
    count = len(sketch.attribute(node, "kernel_shape"))
    sketch.set_attribute(node, "dilations", [2] * count)
    sketch.set_attribute(node, "pads", [pad + 1 for pad in sketch.attribute(node, "pads")])
    return at(node, "dilations 2")


@harm
def strides_of_one_axis(sketch: Sketch) -> Site | None:
    return attribute(sketch, "strides", lambda node, strides: [*strides[:-1], 1 if strides[-1] > 1 else 2])


@harm
def kept_dims(sketch: Sketch) -> Site | None:
    return attribute(sketch, "keepdims", lambda node, keep: 1 - keep)


@harm
def approximate_gelu(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Gelu")
    if node is None:
        return None
    is_tanh = sketch.attribute(node, "approximate") == b"tanh"
    sketch.set_attribute(node, "approximate", "none" if is_tanh else "tanh")
    return at(node, "approximate")


@harm
def resizing(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Resize")
    if node is None:
        return None
    name, values = sketch.pick(
        [
            ("coordinate_transformation_mode", ("asymmetric", "half_pixel", "align_corners")),
            ("nearest_mode", ("floor", "ceil", "round_prefer_ceil")),
            ("mode", ("nearest", "linear")),
        ]
    )
    before = (sketch.attribute(node, name) or b"").decode()
    sketch.set_attribute(node, name, sketch.pick([value for value in values if value != before]))
    return at(node, name)


@harm
def pad_mode(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Pad")
    if node is None:
        return None
    before = (sketch.attribute(node, "mode") or b"constant").decode()
    sketch.set_attribute(node, "mode", "edge" if before == "constant" else "constant")
    return at(node, f"mode was {before}")


@harm
def pad_of_averages(sketch: Sketch) -> Site | None:
    node = sketch.node_of("AveragePool")
    if node is None:
        return None
    sketch.set_attribute(node, "count_include_pad", 1 - (sketch.attribute(node, "count_include_pad") or 0))
    return at(node, "count_include_pad")


@harm
def cumulated_otherwise(sketch: Sketch) -> Site | None:
    node = sketch.node_of("CumSum")
    if node is None:
        return None
    name = sketch.pick(["exclusive", "reverse"])
    sketch.set_attribute(node, name, 1 - (sketch.attribute(node, name) or 0))
    return at(node, name)


@harm
def smallest_of_all(sketch: Sketch) -> Site | None:
    node = sketch.node_of("TopK")
    if node is None:
        return None
    sketch.set_attribute(
        node, "largest", 1 - (1 if sketch.attribute(node, "largest") is None else sketch.attribute(node, "largest"))
    )
    return at(node, "largest")


@harm
def scattered_otherwise(sketch: Sketch) -> Site | None:
    node = sketch.node_of("ScatterElements", "ScatterND")
    if node is None:
        return None
    before = (sketch.attribute(node, "reduction") or b"none").decode()
    sketch.set_attribute(node, "reduction", "add" if before == "none" else "none")
    return at(node, f"reduction was {before}")


@harm
def groups_of_weights(sketch: Sketch) -> Site | None:
    node = sketch.node_of(
        "Conv", where=lambda node: (sketch.attribute(node, "group") or 1) > 1 and sketch.is_weight(node.input[1])
    )
    if node is None:
        return None
    sketch.set_input(node, 1, sketch.constant(np.roll(sketch.array(node.input[1]), 1, axis=0)))
    return at(node, "groups rolled")


@harm
def recurrent_turned(sketch: Sketch) -> Site | None:
    node = sketch.node_of("LSTM", "GRU", "RNN")
    if node is None:
        return None
    place = sketch.pick([place for place in (1, 2, 3) if len(node.input) > place and node.input[place]])
    array = sketch.array(node.input[place])
    if array is None:
        return None
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type] * (2 if place == 3 else 1)
    split = np.split(array, gates, axis=1)
    sketch.set_input(node, place, sketch.constant(np.concatenate([*split[1:], split[0]], axis=1)))
    return at(node, f"gates of input {place} rolled")


@harm
def reset_after(sketch: Sketch) -> Site | None:
    return attribute(sketch, "linear_before_reset", lambda node, value: 1 - value)
