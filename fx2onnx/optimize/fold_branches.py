"""``If`` with a constant condition -> the nodes of the branch that is taken."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import can_replace, graphs_of, remove_unread, replace
from fx2onnx.optimize.rewrite import is_constant


def fold_branches(model: ir.Model) -> int:
    """Inline the branch of every If whose condition is an initializer. Returns how many.

    Requires:  names that are unique in the whole model, weights in the main graph.
    """
    folded, again = 0, True
    while again:
        again = False
        for graph in list(graphs_of(model)):
            for node in list(graph):
                if node.op_type == "If" and not node.domain and _inline(graph, node):
                    folded, again = folded + 1, True
    return folded


def _inline(graph: ir.Graph, node: ir.Node) -> bool:
    condition = node.inputs[0]
    if condition is None or not is_constant(condition) or condition.const_value is None:
        return False
    chosen = "then_branch" if bool(np.asarray(condition.const_value.numpy()).reshape(-1)[0]) else "else_branch"
    branch = node.attributes[chosen].as_graph()
    if branch.initializers:
        return False
    results = list(branch.outputs)
    inner = list(branch)
    branch.outputs.clear()
    branch.remove(inner)
    graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=True):
        if not can_replace(old, new):
            kept = ir.Node("", "Identity", [new], name=f"{node.name}/{old.name}")
            kept.outputs[0].name = f"{old.name}.taken"
            kept.outputs[0].type, kept.outputs[0].shape = old.type, old.shape
            graph.insert_before(node, kept)
            new = kept.outputs[0]
        replace(old, new)
    remove_unread([node])
    return True
