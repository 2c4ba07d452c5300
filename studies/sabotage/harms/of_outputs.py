"""Outputs that are off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from studies.sabotage.harms.registry import at, harm, wrapped
from studies.sabotage.sketch import Site, Sketch


@harm
def outputs_swapped(sketch: Sketch) -> Site | None:
    outputs = sketch.proto.graph.output
    if len(outputs) < 2:
        return None
    one, other = (onnx.ValueInfoProto.FromString(outputs[place].SerializeToString()) for place in (0, 1))
    outputs[0].CopyFrom(other)
    outputs[1].CopyFrom(one)
    return Site((one.name, other.name), "outputs swapped")


def _last(sketch: Sketch, text: str, make: Callable[[str], str | None]) -> Site | None:
    output = sketch.pick([value for value in sketch.proto.graph.output if sketch.is_float(value.name)])
    node = None if output is None else next((each for each in sketch.nodes if output.name in each.output), None)
    if output is None or node is None:
        return None
    site = at(node, text)
    sketch.after(node, list(node.output).index(output.name), make)  # type: ignore[arg-type]
    return site


@harm
def output_of_two_rows_swapped(sketch: Sketch) -> Site | None:
    """The last two of each row change places."""
    turned = [sketch.constant(np.array(v)) for v in ([0], [-2], [-1], [-2], [-1], [1 << 60])]

    def make(name: str) -> str:
        axis = turned[2]
        head = sketch.insert("Slice", [name, turned[0], turned[1], axis])
        one = sketch.insert("Slice", [name, turned[3], turned[4], axis])
        other = sketch.insert("Slice", [name, turned[4], turned[5], axis])
        return sketch.insert("Concat", [head, other, one], axis=-1)

    return _last(sketch, "last two of each row swapped", make)


@harm
def output_rounded(sketch: Sketch) -> Site | None:
    scale = sketch.constant(np.float32(256))

    def make(name: str) -> str:
        return sketch.insert("Div", [sketch.insert("Round", [sketch.insert("Mul", [name, scale])]), scale])

    return _last(sketch, "rounded to 1/256", make)


@harm
def small_numbers_lost(sketch: Sketch) -> Site | None:
    """Numbers of little size are zero, beside larger ones."""
    return _last(sketch, "small numbers are 0", lambda name: sketch.insert("Shrink", [name], lambd=0.02, bias=0.0))


@harm
def noise(sketch: Sketch) -> Site | None:
    def make(name: str) -> str:
        drawn = sketch.insert("RandomNormalLike", [name], scale=0.01)
        return sketch.insert("Add", [name, drawn])

    return wrapped(sketch, onnx.TensorProto.FLOAT, "with noise", make, rank=1)
