"""Weights that are off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.sabotage.harms.registry import at, harm
from studies.sabotage.sketch import Site, Sketch


def _weight(sketch: Sketch, text: str, change: Callable[[Any], Any], rank: int = 1) -> Site | None:
    chosen = sketch.pick([(n, a) for n, a in sketch.weights("f", rank) if a.size > 1 and np.ptp(a) > 0])
    if chosen is None:
        return None
    name, array = chosen
    changed = change(array.copy())
    if changed is None or changed.shape != array.shape or np.array_equal(changed, array):
        return None
    sketch.set_weight(name, changed.astype(array.dtype))
    outputs = tuple(name for reader in sketch.readers(name) for name in reader.output)
    return Site((name, *outputs), f"{name}: {text}")


@harm
def weight_scaled(sketch: Sketch) -> Site | None:
    return _weight(sketch, "times 1.01", lambda array: array * 1.01)


@harm
def sign_of_one_weight(sketch: Sketch) -> Site | None:
    def change(array: Any) -> Any:
        array.reshape(-1)[np.abs(array).argmax()] *= -1
        return array

    return _weight(sketch, "sign of the largest", change)


@harm
def rows_swapped(sketch: Sketch) -> Site | None:
    def change(array: Any) -> Any:
        one, other = sketch.random.choice(len(array), 2, replace=False) if len(array) > 1 else (0, 0)
        array[[one, other]] = array[[other, one]]
        return array

    return _weight(sketch, "two rows swapped", change)


@harm
def weight_transposed(sketch: Sketch) -> Site | None:
    return _weight(
        sketch, "transposed", lambda array: array.T if array.ndim == 2 and array.shape[0] == array.shape[1] else None, 2
    )


@harm
def weight_turned(sketch: Sketch) -> Site | None:
    return _weight(sketch, "last axis turned", lambda array: array[..., ::-1])


@harm
def weight_rounded(sketch: Sketch) -> Site | None:
    def change(array: Any) -> Any:
        return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if array.dtype == np.float32 else None

    return _weight(sketch, "cut to 16 bits", change)


@harm
def weight_in_bytes(sketch: Sketch) -> Site | None:
    def change(array: Any) -> Any:
        step = np.abs(array).max() / 127
        return np.round(array / step) * step

    return _weight(sketch, "rounded to 8 bits", change, 2)


@harm
def weights_exchanged(sketch: Sketch) -> Site | None:
    weights = sketch.weights("f", 1)
    chosen = sketch.pick([(one, other) for i, one in enumerate(weights) for other in weights[i + 1 :] if one[1].shape == other[1].shape and not np.array_equal(one[1], other[1])])  # fmt: skip
    if chosen is None:
        return None
    (one, first), (other, second) = chosen
    sketch.set_weight(one, second)
    sketch.set_weight(other, first)
    outputs = tuple(name for each in (one, other) for reader in sketch.readers(each) for name in reader.output)
    return Site((one, other, *outputs), f"{one} and {other} exchanged")


@harm
def weight_zero(sketch: Sketch) -> Site | None:
    return _weight(
        sketch,
        "one row is zeros",
        lambda array: np.where(
            (np.arange(len(array)) == len(array) // 2).reshape(-1, *[1] * (array.ndim - 1)), 0, array
        ),
    )


@harm
def end_of_a_table(sketch: Sketch) -> Site | None:
    """The last rows of a table that is read by ids or places are its first."""
    node = sketch.node_of(
        "Gather",
        where=lambda node: (
            (array := sketch.array(node.input[0])) is not None and array.dtype.kind == "f" and len(array) > 8
        ),
    )
    if node is None:
        return None
    array = sketch.array(node.input[0])
    count = max(len(array) // 16, 1)
    array[-count:] = array[:count]
    sketch.set_input(node, 0, sketch.constant(array))
    return at(node, f"last {count} rows of the table")
