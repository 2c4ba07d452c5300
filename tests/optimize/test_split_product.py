"""A product of which one part is wanted of some rows alone, taken apart so that ``PickEarly`` reaches it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrites.heads import SplitProduct
from fx2onnx.optimize.rewrites.pick_early import PickEarly
from fx2onnx.sizes.expr import Dim
from tests.optimize.support import model, random, refused, rewritten, weight

BATCH, LENGTH = Dim.symbol("batch"), Dim.symbol("length")
SIZES = {"batch": 2, "length": 5}
V = dict[str, ir.Value]


def parts_of(op: Emit, x: ir.Value, sizes: list[int], *, bias: bool = False, channels_first: bool = False) -> list[Any]:
    """Columns of a product, as a layer takes a gate or queries, keys and values from it."""
    width = sum(sizes)
    product = op.MatMul(x, weight(op, "w", random(8, width)))
    if bias:
        product = op.Add(weight(op, "b", random(width, seed=1)), product)
    if channels_first:
        product = op.Transpose(product, perm=[0, 2, 1])
    return list(op.Split(product, split=sizes, axis=1 if channels_first else 2, outputs=len(sizes)))


def last_of(op: Emit, part: ir.Value, axis: int = 1) -> ir.Value:
    assert part.dtype is not None
    assert part.shape is not None
    dims: list[Any] = list(part.shape)
    dims[axis] = 1
    found: ir.Value = op.Slice(part, [-1], [2**62], [axis], outputs=[(part.dtype, tuple(dims))])
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_a_gate_that_the_last_position_alone_needs(bias: bool) -> None:
    def make(op: Emit, v: V) -> Any:
        whole, gate = parts_of(op, v["x"], [6, 10], bias=bias, channels_first=True)
        return op.Relu(whole), op.Sigmoid(last_of(op, gate, axis=2))

    add = ["Add"] if bias else []
    slices = ["Slice", "MatMul", *(["Slice", *add] if bias else []), "Transpose"]
    graph = model(make, {"x": (BATCH, LENGTH, 8)})
    rewritten(graph, SplitProduct(), to=[*slices, *slices, "Relu", "Slice", "Sigmoid"], sizes=SIZES, rtol=1e-5)
    assert [list(node.outputs[0].shape or ())[1] for node in graph.graph if node.op_type == "Transpose"] == [6, 10]


def test_the_rows_are_picked_before_the_product() -> None:
    def make(op: Emit, v: V) -> Any:
        whole, gate = parts_of(op, v["x"], [6, 10])
        return op.Relu(whole), op.Sigmoid(last_of(op, gate))

    graph = model(make, {"x": (BATCH, LENGTH, 8)})
    ops = ["Slice", "MatMul", "Slice", "Relu", "Slice", "MatMul", "Sigmoid"]
    rewritten(graph, SplitProduct(), PickEarly(), to=ops, sizes=SIZES, rtol=1e-5)
    products = [node for node in graph.graph if node.op_type == "MatMul"]
    assert [str(list(node.outputs[0].shape or ())[1]) for node in products] == ["length", "1"]


def test_parts_side_by_side_that_are_wanted_whole_stay_one_product() -> None:
    def make(op: Emit, v: V) -> Any:
        query, key, value = parts_of(op, v["x"], [8, 4, 4], bias=True)
        return last_of(op, query), op.Relu(key), op.Relu(value)

    ops = [*["Slice", "MatMul", "Slice", "Add"] * 2, "Split", "Slice", "Relu", "Relu"]
    rewritten(model(make, {"x": (BATCH, LENGTH, 8)}), SplitProduct(), to=ops, sizes=SIZES, rtol=1e-5)


def test_refusals() -> None:
    def refuse(make: Any, why: str) -> None:
        refused(model(make, {"x": (BATCH, LENGTH, 8), "y": (8, 16)}), SplitProduct(), why)

    def all_picked(op: Emit, v: V) -> Any:
        return [last_of(op, part) for part in parts_of(op, v["x"], [6, 10])]

    def none_picked(op: Emit, v: V) -> Any:
        return [op.Relu(part) for part in parts_of(op, v["x"], [6, 10])]

    def picked_and_read(op: Emit, v: V) -> Any:
        whole, gate = parts_of(op, v["x"], [6, 10])
        return op.Relu(whole), last_of(op, gate), op.Relu(gate)

    def picked_columns(op: Emit, v: V) -> Any:
        whole, gate = parts_of(op, v["x"], [6, 10])
        return op.Relu(whole), last_of(op, gate, axis=2)

    def rows(op: Emit, v: V) -> Any:
        product = op.MatMul(v["x"], weight(op, "w", random(8, 16)))
        first, second = op.Split(op.Transpose(product, perm=[0, 2, 1]), split=[4, 12], axis=1, outputs=2)
        other, third = op.Split(op.MatMul(weight(op, "u", random(9, 8)), v["y"]), split=[4, 5], axis=0, outputs=2)
        return op.Relu(first), op.Relu(second), op.Relu(other), last_of(op, third)

    def read_elsewhere(op: Emit, v: V) -> Any:
        product = op.MatMul(v["x"], weight(op, "w", random(8, 16)))
        whole, gate = op.Split(product, split=[6, 10], axis=2, outputs=2)
        return op.Relu(whole), last_of(op, gate), op.Relu(product)

    def fed(op: Emit, v: V) -> Any:
        whole, gate = op.Split(op.MatMul(v["x"], v["y"]), split=[6, 10], axis=2, outputs=2)
        return op.Relu(whole), last_of(op, gate)

    for make in (all_picked, none_picked, picked_and_read, picked_columns):
        refuse(make, "all parts are wanted alike")
    refuse(rows, "the weight is no constant matrix")
    refuse(read_elsewhere, "no product that the Split alone reads")
    refuse(fed, "the weight is no constant matrix")
