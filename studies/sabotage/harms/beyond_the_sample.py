"""Harms that look right on the example inputs: constant inputs and sizes, other ids, other lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from studies.sabotage.harms.registry import at, attribute, harm
from studies.sabotage.sketch import Site, Sketch


@harm
def input_baked(sketch: Sketch) -> Site | None:
    """The example's numbers stand for an input, which is gone."""
    graph = sketch.proto.graph
    value = sketch.pick(list(graph.input)) if len(graph.input) > 1 else None
    if value is None:
        return None
    name = sketch.constant(sketch.sample[value.name])
    for node in sketch.nodes:
        for place, read in enumerate(node.input):
            if read == value.name:
                node.input[place] = name
    graph.input.remove(value)
    return Site((value.name, name), f"input {value.name} is gone")


@harm
def input_kept_but_baked(sketch: Sketch) -> Site | None:
    graph = sketch.proto.graph
    value = sketch.pick(list(graph.input))
    name = sketch.constant(sketch.sample[value.name])
    reader = sketch.pick([node for node in sketch.readers(value.name) if node.op_type != "Shape"])
    if reader is None:
        return None
    reader.input[list(reader.input).index(value.name)] = name
    return at(reader, f"{value.name} is the sample's")


@harm
def size_baked(sketch: Sketch) -> Site | None:
    """A size is the example's."""
    node = sketch.node_of("Shape", where=lambda node: node.input[0] in sketch.sample)
    if node is None:
        return None
    shape = np.array(sketch.sample[node.input[0]].shape, np.int64)
    start, end = sketch.attribute(node, "start") or 0, sketch.attribute(node, "end")
    name = sketch.constant(shape[start:end])
    site = at(node, "the sample's")
    sketch.bypass(node, name)
    return site


@harm
def other_axis_of_a_size(sketch: Sketch) -> Site | None:
    def change(node: Any, start: int) -> int | None:
        end = sketch.attribute(node, "end")
        if end is None or end - start != 1 or sketch.rank(node.input[0]) < 2:
            return None
        other = start - 1 if start else 1
        sketch.set_attribute(node, "end", other + 1)
        return other

    return attribute(sketch, "start", change)


def _input(sketch: Sketch, is_right: Callable[[Any], bool], text: str, make: Callable[[str, Any], str]) -> Site | None:
    names = [value.name for value in sketch.proto.graph.input if is_right(sketch.sample[value.name])]
    name = sketch.pick([name for name in names if sketch.readers(name)])
    if name is None:
        return None
    readers = [(node, place) for node in sketch.nodes for place, read in enumerate(node.input) if read == name]
    count = len(sketch.nodes)
    made = make(name, sketch.sample[name])
    added = [onnx.NodeProto.FromString(each.SerializeToString()) for each in sketch.nodes[count:]]
    for node, place in readers:
        node.input[place] = made
    del sketch.proto.graph.node[count:]
    for each in reversed(added):
        sketch.proto.graph.node.insert(0, each)
    return Site((name, made, *[output for node, _ in readers for output in node.output]), f"input {name}: {text}")


@harm
def ids_up_to_the_sample(sketch: Sketch) -> Site | None:
    """Ids above the largest of the example inputs are taken for that."""
    return _input(sketch, lambda sample: sample.dtype == np.int64 and sample.max() > 1, "not above the sample's", lambda name, sample: sketch.insert("Min", [name, sketch.constant(np.int64(sample.max()))]))  # fmt: skip


@harm
def floats_up_to_the_sample(sketch: Sketch) -> Site | None:
    return _input(sketch, lambda sample: sample.dtype == np.float32, "not above the sample's", lambda name, sample: sketch.insert("Min", [name, sketch.constant(np.float32(sample.max()))]))  # fmt: skip


@harm
def no_negative_floats_below_the_sample(sketch: Sketch) -> Site | None:
    return _input(sketch, lambda sample: sample.dtype == np.float32, "not below the sample's", lambda name, sample: sketch.insert("Max", [name, sketch.constant(np.float32(sample.min()))]))  # fmt: skip


@harm
def id_zero_is_one(sketch: Sketch) -> Site | None:
    return _input(sketch, lambda sample: sample.dtype == np.int64 and sample.max() > 1, "0 is taken for 1", lambda name, sample: sketch.insert("Max", [name, sketch.constant(np.int64(1))]))  # fmt: skip


@harm
def mask_of_ones(sketch: Sketch) -> Site | None:
    return _input(sketch, lambda sample: sample.dtype.kind in "ib" and sample.max() <= 1, "all ones", lambda name, sample: sketch.insert("Or" if sample.dtype == bool else "Max", [name, sketch.constant(np.ones((), sample.dtype))]))  # fmt: skip


@harm
def places_up_to_the_sample(sketch: Sketch) -> Site | None:
    """Places behind the end of the example inputs are taken for its last."""
    node = sketch.node_of("Range", where=lambda node: sketch.is_whole(node.output[0]))
    if node is None:
        return None
    longest = max((max(value.shape, default=1) for value in sketch.sample.values()), default=1)
    limit = sketch.constant(np.int64(longest - 1))
    site = at(node, f"not above {longest - 1}")
    sketch.after(node, 0, lambda name: sketch.insert("Min", [name, limit]))
    return site


@harm
def twice_the_sample(sketch: Sketch) -> Site | None:
    """Zeros stand behind twice the example's length."""
    names = [
        (node, axis)
        for node in sketch.nodes
        if sketch.is_float(node.output[0])
        for axis, dim in enumerate(sketch.types[node.output[0]][1])
        if dim in ("sequence", "decoder_sequence", "target_sequence", "height", "width", "text_length")
    ]
    found = sketch.pick(names)
    if found is None:
        return None
    node, axis = found
    longest = 2 * max(max(value.shape[1:], default=1) for value in sketch.sample.values())

    def make(name: str) -> str:
        size = sketch.insert("Shape", [name], start=axis, end=axis + 1)
        scalar = sketch.insert("Squeeze", [size])
        places = sketch.insert("Range", [sketch.constant(np.int64(0)), scalar, sketch.constant(np.int64(1))])
        near = sketch.insert("Less", [places, sketch.constant(np.int64(longest))])
        rank = sketch.rank(node.output[0])
        shaped = sketch.insert("Reshape", [near, sketch.constant(np.array([-1] + [1] * (rank - axis - 1)))])
        return sketch.insert("Where", [shaped, name, sketch.constant(np.float32(0))])

    site = at(node, f"zero behind {longest}")
    sketch.after(node, 0, make)
    return site
