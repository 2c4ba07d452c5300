"""The symbolic strategy: ``torch.fx``'s tracing with proxies, used only where it gives the same program as the module itself.

Tracing with proxies proves that no Python decision depends on a size or on data. What it cannot prove is that Python
took the branch that it takes with tensors (``type(x)``, ``isinstance``), so the traced copy and the module are both run
on fake tensors and their programs compared, operator by operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.fx

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.capture.captured import Captured, describe, where_of
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.torchcompat.frames import user_location_of
from fx2onnx.torchcompat.tracing import trace

Result = TypeVar("Result")

RUN_INSTEAD = 'export with capture="auto", which runs the module on fake tensors'
ANOTHER_PROGRAM = "symbolic tracing gives another program than the module itself"


def made(root: torch.nn.Module, arguments: Arguments) -> torch.fx.GraphModule:
    """The traced copy of ``root``; its weights are the module's own. Raises UserError E102."""
    args, kwargs = arguments.rebuilt([leaf.tensor for leaf in arguments.leaves])
    nested = [leaf.path for leaf in arguments.leaves if len(leaf.keys) > 1]
    if nested:
        raise UserError(
            "E102",
            "the symbolic strategy takes tensors only as plain arguments",
            why=f"{nested[0]} sits inside another argument",
            next='export with capture="fake"',
        )
    bound = inspect.signature(root.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    constants = {name: value for name, value in bound.arguments.items() if not isinstance(value, torch.Tensor)}
    target = root.forward if "forward" in vars(root) else root
    try:
        traced_root, graph = trace(target, constants)
    except Exception as cause:  # forward is the user's code, run on proxies
        where, why = user_location_of(cause), first_line(cause)[:300]
        raise UserError(
            "E102", "the module cannot be traced symbolically", where=where, why=why, next=RUN_INSTEAD
        ) from cause
    return torch.fx.GraphModule(traced_root, graph)


def as_traced(run: Callable[[], Result]) -> Result:
    """Run the traced copy; where only it fails, say that it is another program. Raises UserError E102."""
    try:
        return run()
    except UserError as error:
        if error.code != "E101":
            raise
        why = f"the traced copy fails: {error.why}"
        raise UserError("E102", ANOTHER_PROGRAM, where=error.where, why=why, next=RUN_INSTEAD) from error


def check_same_program(traced_run: Captured, own_run: Captured) -> None:
    """Raises UserError E102 at the first operator in which the two programs differ."""
    left, right = _program(traced_run), _program(own_run)
    for (one, node), (two, own) in zip(left, right, strict=False):
        if one != two:
            raise _difference(own, f"the module calls {describe(own)}, the traced copy {describe(node)}")
    if len(left) != len(right):
        longer = (left if len(left) > len(right) else right)[min(len(left), len(right))][1]
        raise _difference(longer, f"the module calls {len(right)} operators, the traced copy {len(left)}")


def _difference(node: torch.fx.Node, why: str) -> UserError:
    path = node.meta.get("module", "")
    return UserError("E102", ANOTHER_PROGRAM, where=where_of(node), module_path=path, why=why, next=RUN_INSTEAD)


def _spelled(operand: Any) -> Any:
    """``operand``; for a nested program the text of its calls."""
    if not isinstance(operand, Nested):
        return operand
    calls = [(node.target, tuple(map(_spelled, node.args)), node.meta.get("val")) for node in operand.graph.nodes]
    return str((calls, operand.inputs, operand.outputs))


def _program(captured: Captured) -> list[tuple[object, torch.fx.Node]]:
    """Every call as (overload, arguments), with operands as the position of their node."""
    index: dict[torch.fx.Node, Any] = {}
    calls: list[tuple[object, torch.fx.Node]] = []
    for node in captured.graph.nodes:
        if node.op == "call_function":
            index[node] = len(calls)
            operands = torch.fx.map_arg((tuple(map(_spelled, node.args)), node.kwargs), lambda operand: index[operand])
            calls.append(((node.target, operands, str(node.meta["val"])), node))
        else:
            weight = captured.weights.get(str(node.target)) if node.op == "get_attr" else None
            index[node] = "constant" if weight is not None and weight.kind == "constant" else str(node.target)
    outputs = [index.get(o.value, o.value) if isinstance(o.value, torch.fx.Node) else o.value for o in captured.outputs]
    if index:
        calls.append((outputs, calls[-1][1] if calls else next(iter(index))))
    return calls
