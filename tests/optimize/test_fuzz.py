"""Random graphs at every level: the same numbers, a whole graph after each edit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.pipelines import LEVELS, run
from tests.optimize.support import model, same_results, weight

GRAPHS = 60
NODES = 25

Draw = np.random.Generator
Step = Callable[[Emit, ir.Value, Draw], ir.Value]


def sizes_of(value: ir.Value) -> list[int]:
    return [dim for dim in dims_of(value) if isinstance(dim, int)]


def _reshape(op: Emit, x: ir.Value, draw: Draw) -> ir.Value:
    sizes = sizes_of(x)
    where = int(draw.integers(0, len(sizes)))
    if draw.random() < 0.5 and len(sizes) > 1 and where + 1 < len(sizes):
        new = [*sizes[:where], sizes[where] * sizes[where + 1], *sizes[where + 2 :]]
    else:
        factor = next((f for f in (2, 3) if sizes[where] % f == 0), 1)
        new = [*sizes[:where], factor, sizes[where] // factor, *sizes[where + 1 :]]
    return op.Reshape(x, new)  # type: ignore[no-any-return]


def _squeeze(op: Emit, x: ir.Value, draw: Draw) -> ir.Value:
    ones = [axis for axis, size in enumerate(sizes_of(x)) if size == 1]
    return op.Squeeze(x, axes=[int(draw.choice(ones))]) if ones and len(sizes_of(x)) > 1 else x


def _matmul(op: Emit, x: ir.Value, draw: Draw) -> ir.Value:
    sizes = sizes_of(x)
    columns = int(draw.integers(1, 7))
    rows = columns if draw.random() < 0.5 else sizes[-1]
    array = (draw.standard_normal((sizes[-1], columns)) * 0.5).astype(np.float32)
    if rows == columns:
        w = op.Transpose(weight(op, "w", array.T.copy()), perm=[1, 0])
    else:
        w = weight(op, "w", array)
    y = op.MatMul(x, w)
    return op.Add(y, weight(op, "b", array[0])) if draw.random() < 0.6 else y


def _slice(op: Emit, x: ir.Value, draw: Draw) -> ir.Value:
    sizes = sizes_of(x)
    axis = int(draw.integers(0, len(sizes)))
    end = sizes[axis] if draw.random() < 0.5 else max(1, sizes[axis] - 1)
    return op.Slice(x, [0], [end], [axis])  # type: ignore[no-any-return]


def _gather(op: Emit, x: ir.Value, draw: Draw) -> ir.Value:
    sizes = sizes_of(x)
    axis = int(draw.integers(0, len(sizes)))
    parts = [op.Gather(x, np.array(i, np.int64), axis=axis) for i in range(sizes[axis])]
    total = int(np.prod(sizes)) // sizes[axis]
    flat = [op.Reshape(part, [total]) for part in parts]
    return op.Concat(*flat, axis=0) if len(flat) > 1 else flat[0]


STEPS: dict[str, Step] = {
    "relu": lambda op, x, draw: op.Relu(x),
    "tanh": lambda op, x, draw: op.Tanh(x),
    "negate": lambda op, x, draw: op.Neg(x),
    "identity": lambda op, x, draw: op.Identity(x),
    "neutral": lambda op, x, draw: op.Mul(x, 1.0) if draw.random() < 0.5 else op.Add(x, 0.0),
    "scale": lambda op, x, draw: op.Mul(x, float(draw.choice([0.5, 0.3]))),
    "divide": lambda op, x, draw: op.Mul(x, op.Reciprocal(op.Add(op.Mul(x, x), 1.0))),
    "transpose": lambda op, x, draw: op.Transpose(x, perm=[int(a) for a in draw.permutation(len(sizes_of(x)))]),
    "unsqueeze": lambda op, x, draw: op.Unsqueeze(x, axes=[int(draw.integers(0, len(sizes_of(x)) + 1))]),
    "squeeze": _squeeze,
    "reshape": _reshape,
    "matmul": _matmul,
    "slice": _slice,
    "gather": _gather,
    "concat": lambda op, x, draw: op.Concat(x, op.Concat(x, x, axis=-1), axis=-1),
    "expand": lambda op, x, draw: op.Add(x, op.Expand(op.const(2.0), np.array(sizes_of(x)))),
    "sizes": lambda op, x, draw: op.Reshape(x, op.Mul(op.Shape(x), np.ones(len(sizes_of(x)), np.int64)), outputs=[(x.dtype, dims_of(x))]),
}  # fmt: skip


def graph_of(seed: int) -> ir.Model:
    draw = np.random.default_rng(seed)

    def make(op: Emit, values: dict[str, ir.Value]) -> list[ir.Value]:
        pool = [values["x"]]
        while len(op.builder.nodes) < NODES:
            source = pool[int(draw.integers(max(0, len(pool) - 3), len(pool)))]
            made = STEPS[str(draw.choice(sorted(STEPS)))](op, source, draw)
            if made is not source and np.prod(sizes_of(made)) < 2000 and len(sizes_of(made)) < 6:
                pool.append(made)
        return [op.Sigmoid(pool[-1]), op.Abs(pool[len(pool) // 2])]

    return model(make, {"x": (2, 3, 4)})


@pytest.mark.long
@pytest.mark.parametrize("level", sorted(LEVELS))
def test_random_graphs_keep_their_numbers(level: int) -> None:
    edits = 0
    for seed in range(GRAPHS):
        graph = graph_of(seed)
        before = ir.to_proto(graph)
        nodes = len(graph.graph)
        edits += run(graph, level, check=True).total
        assert len(graph.graph) <= nodes
        same_results(before, ir.to_proto(graph), rtol=2e-5)
    assert edits > GRAPHS
