"""Who reads a value so that its last bit decides: there a rewrite must not move a rounding.

"The same up to float rounding" is no promise in front of ``Round``, a comparison or ``ArgMax``: a value beside a tie goes to
the other side of it, and the result is off by a whole step.
"""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.facts import ELEMENTWISE, MOVES, ROUNDS
from fx2onnx.irx.private_names import uses_of

MAX_VALUES = 1000
"""Of a larger neighbourhood, nothing is said: it counts as rounded."""


def is_rounded(value: ir.Value, main: ir.Graph) -> bool:
    """Return whether a reader of the floating-point ``value`` rounds it, compares it or orders it: directly, or after elementwise
    operators and such that move elements. Of what a nested graph gives out, nothing is known.
    """
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current.is_graph_output() and current.graph is not main:
            return True
        for node, _ in uses_of(current):
            if (node.op_type in ROUNDS or _cuts(node)) and not all(map(_is_unread, node.outputs)):
                return True
            if node.op_type in ELEMENTWISE or node.op_type in MOVES:
                pending += [result for result in node.outputs if result not in seen]
                seen.update(node.outputs)
        if len(seen) > MAX_VALUES:
            return True
    return False


def _is_unread(value: ir.Value) -> bool:
    """Return whether nobody wants it: indices beside the largest values, before dead nodes are removed."""
    return not value.uses() and not value.is_graph_output()


def _cuts(node: ir.Node) -> bool:
    """A Cast to integers."""
    return node.op_type == "Cast" and not ir.DataType(node.attributes["to"].as_int()).is_floating_point()
