"""``Gather(x, 0), Gather(x, 1), ...`` -> ``Split(x)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dtype_of, known_ints
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    dims_or_none,
    first_reader,
    sole_reader,
    speaks_for_readers,
)


@dataclass(frozen=True, eq=False)
class GathersMatch(Match):
    x: ir.Value
    axis: int
    dims: Dims


class SplitGathers(Rewrite[GathersMatch]):
    """``Reshape(Gather(x, 0)), Reshape(Gather(x, 1)), ...`` -> ``Reshape`` of each part of one ``Split(x)``.

    Refuses:   numbers that do not cover the axis once each; a part that is read by other than one Reshape, which takes
               the axis of size 1 away for nothing.
    """

    roots: ClassVar = ("Gather",)
    since = 13

    def match(self, node: ir.Node) -> GathersMatch | Why:
        x = node.inputs[0]
        dims = dims_or_none(x)
        if x is None or dims is None or x.is_graph_output():
            return Why("the rank is unknown, or the operand is an output")
        if not speaks_for_readers(node, x):
            return Why("the first of the many Gathers that read the operand looks at the others")
        axis = attribute(node, "axis", 0) % max(len(dims), 1)
        parts: dict[int, ir.Node] = {}
        for user, index in x.uses():
            number = known_ints(user.inputs[1]) if user.op_type == "Gather" and index == 0 else None
            if number is None or dims_or_none(user.inputs[1]) != () or attribute(user, "axis", 0) % len(dims) != axis:
                return Why("it is read by other than a Gather of one number")
            if user.graph is not node.graph:
                return Why("a Gather lies in another graph")
            reader = sole_reader(user.outputs[0])
            if reader is None or reader.op_type != "Reshape" or dims_or_none(reader.outputs[0]) is None:
                return Why("a part is read by other than one Reshape")
            size = dims[axis]
            parts[number[0] % size if isinstance(size, int) and size else number[0]] = user
        if len(parts) < 2 or sorted(parts) != list(range(len(parts))) or dims[axis] != len(parts):
            return Why("the numbers do not cover the axis")
        users = [parts[number] for number in range(len(parts))]
        replaces = [user.outputs[0] for user in users]
        return GathersMatch(before=first_reader(users, x), replaces=replaces, x=x, axis=axis, dims=dims)

    def build(self, op: Emit, m: GathersMatch) -> Sequence[ir.Value]:
        count = len(m.replaces or ())
        part = (dtype_of(m.x), (*m.dims[: m.axis], 1, *m.dims[m.axis + 1 :]))
        values = op.Split(m.x, split=[1] * count, axis=m.axis, outputs=[part] * count)
        return [op.Squeeze(value, axes=[m.axis]) for value in values]
