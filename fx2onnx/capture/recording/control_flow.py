"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: their functions become nested graphs.

A nested graph refers to nodes of the graph around it directly, as ONNX subgraphs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.branch_conditions import Noted, note_checked, taken_out
from fx2onnx.capture.recording.size_checks import with_checks
from fx2onnx.capture.recording.tensor_tracker import NeedsDecomposition, dims_of, tensor_info
from fx2onnx.sizes.assumptions import Guard
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.dispatch import PreDispatchMode, SplitMode
from fx2onnx.torchcompat.operators import CUSTOM_FUNCTION, HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import flatten

Function: TypeAlias = Callable[..., object]
"""What is given to a control-flow operator."""


@dataclass(slots=True, eq=False)
class Nested:
    """A nested graph: placeholders, and the nodes that it returns (its own or outer ones)."""

    graph: torch.fx.Graph
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]
    infos: tuple[TensorInfo, ...]
    sizes: dict[str, int] | None = None
    """Sizes at which this branch is taken, where the sample's are not such."""

    def __str__(self) -> str:
        return f"graph of {len(self.graph.nodes)} nodes"


def record_nested(
    recorder: BaseRecorder, function: Function, operands: Sequence[torch.Tensor]
) -> tuple[Nested, Callable[[list[Any]], Any]]:
    """Run ``function`` on fakes of the operands' types into a graph of its own. Returns it, and what rebuilds the function's
    result from a flat list.
    """
    with recorder.nested() as graph:
        fakes = [recorder.new_fake(dims_of(operand), operand.dtype, operand.device) for operand in operands]
        inputs = [recorder.add_input(f"arg_{index}", fake) for index, fake in enumerate(fakes)]
        with recorder.mode:
            result = function(*fakes)
        if any(recorder.view_of(fake).memory.version for fake in fakes):
            raise recorder.writes_outside()
        leaves, rebuild = flatten(result)
        values = [recorder.as_tensor(leaf.value) for leaf in leaves]
        nodes = [recorder.node_of(value) for value in values]
        infos = tuple(map(tensor_info, values))
    return Nested(graph, inputs, nodes, infos), rebuild


def _results(
    recorder: BaseRecorder, name: str, args: tuple[object, ...], infos: Sequence[TensorInfo]
) -> list[torch.Tensor]:
    """Add the node of a control-flow operator; its results are new tensors."""
    fakes = [recorder.new_fake(info.dims, info.dtype) for info in infos]
    recorder.finish(HIGHER_ORDER[name], (), (args, {}), tuple(fakes))
    return fakes


def _branch(
    recorder: BaseRecorder, function: Function, operands: Sequence[torch.Tensor], test: object, *, is_then: bool = True
) -> tuple[Nested, Callable[[list[Any]], Any]]:
    """One side of ``torch.cond``. What only it needs of sizes holds where they lead to it, or is checked in it."""
    env = recorder.shape_env
    before = Noted.by(env)
    nested, rebuild = record_nested(recorder, function, operands)
    needed = taken_out(env, before)
    if isinstance(test, Relation) and not test.symbols() & env.unbacked:
        for relation, where in needed.items():
            unless = Relation("or", (test.negated() if is_then else test, relation))
            env.guards[unless, True] = Guard(unless, where, by_user=True, ends_run=True)
    elif nested.outputs:
        nested.outputs[0] = with_checks(nested.graph, nested.outputs[0], recorder.symbols, needed)
        note_checked(env, needed)
    return nested, rebuild


def cond(
    recorder: BaseRecorder,
    pred: torch.Tensor | torch.SymBool,
    true_fn: Function,
    false_fn: Function,
    operands: Sequence[object] = (),
) -> object:
    """``torch.cond`` -> If. Both branches must return the same dtypes and shapes, as torch itself demands."""
    leaves, rebuild_operands = flatten(tuple(operands))
    tensors = [leaf.value for leaf in leaves]

    def on_flat(function: Function) -> Function:
        return lambda *values: function(*rebuild_operands(list(values)))

    test = pred.node.value if isinstance(pred, torch.SymBool) else recorder.node_of(pred)
    then, rebuild = _branch(recorder, on_flat(true_fn), tensors, test)
    otherwise, _ = _branch(recorder, on_flat(false_fn), tensors, test, is_then=False)
    if [(info.dtype, len(info.dims)) for info in then.infos] != [(i.dtype, len(i.dims)) for i in otherwise.infos]:
        raise recorder.refuse(
            "E107",
            "the branches of torch.cond return different types",
            why=f"{', '.join(map(str, then.infos))} and {', '.join(map(str, otherwise.infos))}",
            next="make both branches return tensors of the same dtype and shape",
        )
    pairs = zip(then.infos, otherwise.infos, strict=True)
    infos = [TensorInfo(one.dtype, joined_dims(one, two, recorder.unknown_size)) for one, two in pairs]
    nodes = [recorder.node_of(tensor) for tensor in tensors]
    results = _results(recorder, "cond", (test, then, otherwise, nodes), infos)
    for result in results:
        recorder.tie_symbols(recorder.view_of(result).node)
    return rebuild(results)


def decides_by_sizes(graph: torch.fx.Graph) -> bool:
    """Whether it holds a branch by a comparison of sizes."""
    return any(
        isinstance(arg, Relation) or (isinstance(arg, Nested) and decides_by_sizes(arg.graph))
        for node in graph.nodes
        if node.target in HIGHER_ORDER.values()
        for arg in node.args
    )


def joined_dims(one: TensorInfo, two: TensorInfo, unknown_size: Callable[[], Dim]) -> tuple[DimLike, ...]:
    """The sizes of a value that comes from either branch: one in which they differ is known only at run time."""
    return tuple(left if left == right else unknown_size() for left, right in zip(one.dims, two.dims, strict=True))


def while_loop(
    recorder: BaseRecorder,
    cond_fn: Function,
    body_fn: Function,
    carried_inputs: Sequence[object],
    additional_inputs: Sequence[object] = (),
) -> tuple[torch.Tensor, ...]:
    """``torch.while_loop`` -> Loop."""
    carried = [recorder.as_tensor(value) for value in carried_inputs]
    extra = [recorder.as_tensor(value) for value in additional_inputs]
    test, _ = record_nested(recorder, cond_fn, [*carried, *extra])
    body, _ = record_nested(recorder, body_fn, [*carried, *extra])
    infos = tuple(map(tensor_info, carried))
    if body.infos != infos:
        raise recorder.refuse(
            "E107",
            "the body of torch.while_loop changes the type of what it carries",
            why=f"{', '.join(map(str, infos))} become {', '.join(map(str, body.infos))}",
            next="keep dtype and shape of every carried tensor",
        )
    nodes = [recorder.node_of(tensor) for tensor in carried]
    others = [recorder.node_of(tensor) for tensor in extra]
    return tuple(_results(recorder, "while_loop", (test, body, nodes, others), infos))


def scan(
    recorder: BaseRecorder,
    combine_fn: Function,
    init: Sequence[object],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[object] = (),
) -> list[torch.Tensor]:
    """``scan`` along axis 0 -> Scan: ``combine_fn(*carry, *slices, *additional)`` gives new carry and one output a step. ``map``
    carries nothing.
    """
    carry = [recorder.as_tensor(value) for value in init]
    extra = [recorder.as_tensor(value) for value in additional_inputs]
    slices = [recorder.new_fake(dims_of(tensor)[1:], tensor.dtype, tensor.device) for tensor in xs]
    body, _ = record_nested(recorder, combine_fn, [*carry, *slices, *extra])
    length = dims_of(xs[0])[0]
    infos = list(body.infos[: len(carry)])
    infos += [TensorInfo(info.dtype, (length, *info.dims)) for info in body.infos[len(carry) :]]
    args = tuple([recorder.node_of(tensor) for tensor in group] for group in (carry, xs, extra))
    return _results(recorder, "scan", (body, *args), infos)


_HANDLERS: dict[str, Function] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": lambda recorder, function, xs, pos_args=(), **_: scan(recorder, function, (), xs, pos_args),
}


@lru_cache(maxsize=1)
def register() -> None:
    """Give torch's higher-order operators their implementations under our modes, once in a process."""
    for name, handler in _HANDLERS.items():

        def rule(
            mode: PreDispatchMode | SplitMode, *args: object, _handler: Function = handler, **kwargs: object
        ) -> object:
            recorder = mode._handler().__self__
            recorder.mark()
            return _handler(recorder, *args, **kwargs)

        for kind in (PreDispatchMode, SplitMode):
            HIGHER_ORDER[name].py_impl(kind)(rule)
    CUSTOM_FUNCTION.py_impl(PreDispatchMode)(_refuse_whole)


def _refuse_whole(*_: object, **__: object) -> object:
    raise NeedsDecomposition
