"""Numbers of the file that are no weights: indices, sizes, factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.sabotage.harms.registry import at, harm
from studies.sabotage.sketch import Site, Sketch


def _whole_constant(
    sketch: Sketch, op_types: tuple[str, ...], change: Callable[[Any, int, Any], Any], first: int = 1
) -> Site | None:
    found = sketch.pick(
        [
            (node, *entry)
            for node in sketch.nodes
            if node.op_type in op_types
            for entry in sketch.constants_of(node, first)
        ]
    )
    if found is None:
        return None
    node, place, array = found
    changed = change(node, place, array.copy())
    if changed is None or np.array_equal(changed, array):
        return None
    sketch.set_input(node, place, sketch.constant(changed))
    return at(node, f"input {place}: {array.tolist()} -> {changed.tolist()}")


@harm
def index_off_by_one(sketch: Sketch) -> Site | None:
    return _whole_constant(sketch, ("Gather", "GatherND", "GatherElements"), lambda node, place, array: array - 1)


@harm
def slice_begins_later(sketch: Sketch) -> Site | None:
    return _whole_constant(sketch, ("Slice",), lambda node, place, array: array + 1 if place == 1 else None)


@harm
def slice_ends_earlier(sketch: Sketch) -> Site | None:
    return _whole_constant(sketch, ("Slice",), lambda node, place, array: array - 1 if place == 2 else None)


@harm
def axes_of_a_reduction(sketch: Sketch) -> Site | None:
    kinds = tuple({node.op_type for node in sketch.nodes if node.op_type.startswith("Reduce")})
    return _whole_constant(sketch, kinds, lambda node, place, array: array - 1)


@harm
def reduction(sketch: Sketch) -> Site | None:
    return _other_reduction(sketch, {"ReduceMean": "ReduceSum", "ReduceSum": "ReduceMean", "ReduceMax": "ReduceMin"})


def _other_reduction(sketch: Sketch, values: dict[str, str]) -> Site | None:
    node = sketch.node_of(*values)
    if node is None:
        return None
    before, node.op_type = node.op_type, values[node.op_type]
    return at(node, f"was {before}")


@harm
def shape_swapped(sketch: Sketch) -> Site | None:
    def change(node: Any, place: int, array: Any) -> Any:
        if array.ndim != 1 or len(array) < 2:
            return None
        one, other = sketch.random.choice(len(array), 2, replace=False)
        array[[one, other]] = array[[other, one]]
        return array

    return _whole_constant(sketch, ("Reshape",), change)


@harm
def float_constant(sketch: Sketch) -> Site | None:
    found = [(name, array) for name, array in sketch.weights("f", 0) if array.size == 1 and np.isfinite(array).all()]
    chosen = sketch.pick([(n, a) for n, a in found if abs(float(a.reshape(-1)[0])) < 1e4])
    if chosen is None:
        return None
    name, array = chosen
    reader = sketch.readers(name)[0]
    sketch.set_input(
        reader, list(reader.input).index(name), sketch.constant((array * 1.05 + 0.001).astype(array.dtype))
    )
    return at(reader, f"{float(array.reshape(-1)[0])} times 1.05")


@harm
def weak_fill(sketch: Sketch) -> Site | None:
    """A mask value becomes a small number."""
    found = [(n, a) for n, a in sketch.weights("f", 0) if a.size and float(a.min()) <= -1e4]
    chosen = sketch.pick(found)
    if chosen is None:
        return None
    name, array = chosen
    reader = sketch.pick(sketch.readers(name))
    weak = np.where(array <= -1e4, np.float32(-2.0), array).astype(array.dtype)
    sketch.set_input(reader, list(reader.input).index(name), sketch.constant(weak))
    return at(reader, "masked with -2")


@harm
def whole_constant(sketch: Sketch) -> Site | None:
    return _whole_constant(
        sketch,
        ("Add", "Sub", "Mul", "Range", "Div", "Mod", "Equal", "Less", "Greater"),
        lambda node, place, array: array + 1,
        first=0,
    )
