"""Nodes that read something else, in another order, or are left out; values that pass through something more."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from studies.sabotage.harms.registry import at, harm, wrapped
from studies.sabotage.sketch import Site, Sketch


@harm
def operands_swapped(sketch: Sketch) -> Site | None:
    node = sketch.node_of(
        "Sub", "Div", "Pow", "MatMul", "Less", "Greater", "Mod", "GreaterOrEqual",
        where=lambda node: sketch.rank(node.input[0]) == sketch.rank(node.input[1]),
    )  # fmt: skip
    if node is None:
        return None
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return at(node, "operands swapped")


@harm
def branches_swapped(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Where")
    if node is None:
        return None
    node.input[1], node.input[2] = node.input[2], node.input[1]
    return at(node, "branches swapped")


@harm
def parts_swapped(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Concat", where=lambda node: len(node.input) > 1 and node.input[0] != node.input[1])
    if node is None:
        return None
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return at(node, "parts swapped")


@harm
def halves_swapped(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Split", where=lambda node: len(node.output) > 1)
    if node is None:
        return None
    node.output[0], node.output[1] = node.output[1], node.output[0]
    return at(node, "outputs swapped")


@harm
def residual_dropped(sketch: Sketch) -> Site | None:
    def is_sum(node: Any) -> bool:
        return (
            not any(map(sketch.is_weight, node.input))
            and sketch.is_float(node.output[0])
            and sketch.types.get(node.input[0]) == sketch.types.get(node.input[1]) == sketch.types[node.output[0]]
        )

    node = sketch.node_of("Add", where=is_sum)
    if node is None:
        return None
    site = at(node, "one of its operands alone")
    sketch.bypass(node, sketch.pick(list(node.input)))
    return site


@harm
def bias_dropped(sketch: Sketch) -> Site | None:
    node = sketch.node_of("Conv", "Gemm", "LayerNormalization", where=lambda node: len(node.input) > 2)
    if node is None:
        return None
    del node.input[2]
    return at(node, "bias dropped")


@harm
def node_bypassed(sketch: Sketch) -> Site | None:
    def same(node: Any) -> bool:
        return (
            bool(node.input)
            and node.op_type not in ("Identity", "Cast")
            and sketch.types.get(node.input[0]) == sketch.types.get(node.output[0], 1)
        )

    node = sketch.pick([node for node in sketch.nodes if len(node.output) == 1 and same(node)])
    if node is None:
        return None
    site = at(node, "bypassed")
    sketch.bypass(node, node.input[0])
    return site


@harm
def other_value_read(sketch: Sketch) -> Site | None:
    """Reads another value of the same type and shape that is computed before."""
    nodes = sketch.nodes
    place = int(sketch.random.integers(1, len(nodes)))
    node = nodes[place]
    before = [name for each in nodes[:place] for name in each.output if name in sketch.types]
    for index, name in enumerate(node.input):
        alike = [
            other
            for other in before
            if other != name and sketch.types[other] == sketch.types.get(name) and sketch.rank(other)
        ]
        if alike:
            node.input[index] = sketch.pick(alike)
            return at(node, f"reads {node.input[index]} instead of {name}")
    return None


@harm
def mask_dropped(sketch: Sketch) -> Site | None:
    node = sketch.node_of("And")
    if node is None:
        return None
    site = at(node, "one side alone")
    node.op_type = "Or"
    node.input[1] = node.input[0] if sketch.types[node.input[0]] == sketch.types[node.output[0]] else node.input[1]
    return site


@harm
def mask_inverted(sketch: Sketch) -> Site | None:
    return wrapped(sketch, onnx.TensorProto.BOOL, "inverted", lambda name: sketch.insert("Not", [name]))


@harm
def in_half_precision(sketch: Sketch) -> Site | None:
    def make(name: str) -> str:
        half = sketch.insert("Cast", [name], to=onnx.TensorProto.FLOAT16)
        return sketch.insert("Cast", [half], to=onnx.TensorProto.FLOAT)

    return wrapped(sketch, onnx.TensorProto.FLOAT, "through float16", make, rank=1)


@harm
def in_brain_floats(sketch: Sketch) -> Site | None:
    def make(name: str) -> str:
        half = sketch.insert("Cast", [name], to=onnx.TensorProto.BFLOAT16)
        return sketch.insert("Cast", [half], to=onnx.TensorProto.FLOAT)

    return wrapped(sketch, onnx.TensorProto.FLOAT, "through bfloat16", make, rank=1)


@harm
def in_few_bits(sketch: Sketch) -> Site | None:
    def make(name: str) -> str:
        small = sketch.insert("Cast", [name], to=onnx.TensorProto.INT8)
        return sketch.insert("Cast", [small], to=onnx.TensorProto.INT64)

    return wrapped(sketch, onnx.TensorProto.INT64, "through int8", make)


@harm
def scaled_a_little(sketch: Sketch) -> Site | None:
    factor = sketch.constant(np.float32(1.003))
    return wrapped(
        sketch, onnx.TensorProto.FLOAT, "times 1.003", lambda name: sketch.insert("Mul", [name, factor]), rank=1
    )


@harm
def last_axis_turned(sketch: Sketch) -> Site | None:
    turn = [sketch.constant(np.array([value])) for value in (-1, -(1 << 62), -1, -1)]
    return wrapped(sketch, onnx.TensorProto.FLOAT, "turned", lambda name: sketch.insert("Slice", [name, *turn]), rank=2)


@harm
def first_of_the_batch(sketch: Sketch) -> Site | None:
    """Every row of the batch is the first: of a batch of one nobody sees it."""
    names = [name for name in sketch.types if len(sketch.types[name][1]) > 1 and sketch.types[name][1][0] == "batch"]
    node = sketch.pick([node for node in sketch.nodes if node.output[0] in names and sketch.is_float(node.output[0])])
    if node is None:
        return None

    def make(name: str) -> str:
        first = sketch.insert("Slice", [name, *[sketch.constant(np.array([value])) for value in (0, 1, 0)]])
        return sketch.insert("Expand", [first, sketch.insert("Shape", [name])])

    site = at(node, "first row for all")
    sketch.after(node, 0, make)
    return site
