"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: their functions become nested graphs.

A nested graph refers to nodes of the graph around it directly, as ONNX subgraphs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.torch_private.dispatch import PreDispatchMode, SplitMode
from fx2onnx.capture.torch_private.operators import HIGHER_ORDER
from fx2onnx.capture.torch_private.pytrees import flatten


@dataclass(slots=True, eq=False)
class Nested:
    """A nested graph: placeholders, and the nodes that it returns (its own or outer ones)."""

    graph: torch.fx.Graph
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]
    infos: tuple[TensorInfo, ...]

    def __str__(self) -> str:
        return f"graph of {len(self.graph.nodes)} nodes"


def record_nested(
    recorder: BaseRecorder, function: Callable[..., Any], operands: Sequence[torch.Tensor]
) -> tuple[Nested, Any]:
    """Run ``function`` on stand-ins of ``operands`` into a graph of its own. Returns it and what the function returned."""
    with recorder.nested() as graph:
        fakes, inputs = [], []
        for index, operand in enumerate(operands):
            info = recorder.info_of(operand)
            fake = recorder.fake_like(info, operand)
            inputs.append(recorder.nested_input(f"arg_{index}", fake))
            fakes.append(fake)
        with recorder.mode:
            result = function(*fakes)
        if any(recorder.view_of(fake).memory.version for fake in fakes):
            raise recorder.writes_outside()
        leaves, rebuild = flatten(result)
        values = [recorder.as_tensor(leaf.value) for leaf in leaves]
        nodes = [recorder.node_of(value) for value in values]
        infos = tuple(recorder.info_of(value) for value in values)
    return Nested(graph, inputs, nodes, infos), rebuild


def _results(
    recorder: BaseRecorder, target: Any, args: tuple[Any, ...], infos: Sequence[TensorInfo]
) -> list[torch.Tensor]:
    """Add the node of a control-flow operator; its results are new tensors."""
    fakes = [recorder.fake_like(info, None) for info in infos]
    recorder.finish(target, (), args, {}, tuple(fakes))
    return fakes


def cond(recorder: BaseRecorder, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """``torch.cond`` -> If. Both branches must return the same dtypes and shapes, as torch itself demands."""
    leaves, rebuild_operands = flatten(tuple(operands))
    tensors = [leaf.value for leaf in leaves]

    def on_flat(function: Any) -> Callable[..., Any]:
        return lambda *values: function(*rebuild_operands(list(values)))

    then, rebuild = record_nested(recorder, on_flat(true_fn), tensors)
    otherwise, _ = record_nested(recorder, on_flat(false_fn), tensors)
    if [(info.dtype, len(info.dims)) for info in then.infos] != [(i.dtype, len(i.dims)) for i in otherwise.infos]:
        raise recorder.refuse(
            "E107",
            "the branches of torch.cond return different types",
            why=f"{', '.join(map(str, then.infos))} and {', '.join(map(str, otherwise.infos))}",
            next="make both branches return tensors of the same dtype and shape",
        )
    infos = [_joined(recorder, one, two) for one, two in zip(then.infos, otherwise.infos, strict=True)]
    value = pred.node.value if isinstance(pred, torch.SymBool) else recorder.node_of(pred)
    nodes = [recorder.node_of(tensor) for tensor in tensors]
    results = _results(recorder, HIGHER_ORDER["cond"], (value, then, otherwise, nodes), infos)
    for result in results:
        recorder.tie_symbols(recorder.view_of(result).node)
    return rebuild(results)


def _joined(recorder: BaseRecorder, one: TensorInfo, two: TensorInfo) -> TensorInfo:
    """The type of a value that comes from either branch: a size in which they differ is known only at run time."""
    dims = tuple(
        left if left == right else recorder.unknown_size() for left, right in zip(one.dims, two.dims, strict=True)
    )
    return TensorInfo(one.dtype, dims)


def while_loop(
    recorder: BaseRecorder, cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = ()
) -> Any:
    """``torch.while_loop`` -> Loop."""
    carried = [recorder.as_tensor(value) for value in carried_inputs]
    extra = [recorder.as_tensor(value) for value in additional_inputs]
    test, _ = record_nested(recorder, cond_fn, [*carried, *extra])
    body, _ = record_nested(recorder, body_fn, [*carried, *extra])
    infos = [recorder.info_of(tensor) for tensor in carried]
    if [(i.dtype, i.dims) for i in body.infos] != [(i.dtype, i.dims) for i in infos]:
        raise recorder.refuse(
            "E107",
            "the body of torch.while_loop changes the type of what it carries",
            why=f"{', '.join(map(str, infos))} become {', '.join(map(str, body.infos))}",
            next="keep dtype and shape of every carried tensor",
        )
    nodes = [recorder.node_of(tensor) for tensor in carried]
    others = [recorder.node_of(tensor) for tensor in extra]
    return tuple(_results(recorder, HIGHER_ORDER["while_loop"], (test, body, nodes, others), infos))


def scan(recorder: BaseRecorder, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """``scan`` along axis 0 -> Scan: ``combine_fn(*carry, *slices, *additional)`` gives new carry and one output a step."""
    carry = [recorder.as_tensor(value) for value in init]
    extra = [recorder.as_tensor(value) for value in additional_inputs]
    slices = [_first_slice(recorder, tensor) for tensor in xs]
    body, _ = record_nested(recorder, combine_fn, [*carry, *slices, *extra])
    length = recorder.info_of(xs[0]).dims[0]
    infos = list(body.infos[: len(carry)])
    infos += [TensorInfo(info.dtype, (length, *info.dims)) for info in body.infos[len(carry) :]]
    args = tuple([recorder.node_of(tensor) for tensor in group] for group in (carry, xs, extra))
    return _results(recorder, HIGHER_ORDER["scan"], (body, *args), infos)


def map_along(recorder: BaseRecorder, function: Any, xs: Any, pos_args: Any = ()) -> Any:
    """``map`` along axis 0 -> Scan without carried values."""
    return scan(recorder, function, (), xs, tuple(pos_args))


def _first_slice(recorder: BaseRecorder, tensor: torch.Tensor) -> torch.Tensor:
    info = recorder.info_of(tensor)
    return recorder.fake_like(TensorInfo(info.dtype, info.dims[1:]), tensor)


_HANDLERS: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_along,
}


@lru_cache(maxsize=1)
def register() -> None:
    """Tell torch's higher-order operators what to do below our modes (once a process)."""
    for name, handler in _HANDLERS.items():

        def rule(mode: Any, *args: Any, _handler: Any = handler, **kwargs: Any) -> Any:
            recorder = mode._handler().__self__
            recorder.mark()
            return _handler(recorder, *args, **kwargs)

        for kind in (PreDispatchMode, SplitMode):
            HIGHER_ORDER[name].py_impl(kind)(rule)
