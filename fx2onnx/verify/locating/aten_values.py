"""The captured ATen graph, run on real tensors node by node, on the CPU wherever the module lies; and its values under the names that they
have in the file.
"""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import psutil
import torch
import torch.fx

from fx2onnx.capture.captured import Captured, carried
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.judge.engines import Array
from fx2onnx.sizes.expr import Dim, evaluate
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.locating.program import Mapped, OnnxFile
from fx2onnx.verify.rounded_weights import narrowed

aten = torch.ops.aten

UNWRITTEN = frozenset(
    [
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    ]
)
"""Operators whose numbers are whatever the memory held: the file's are others, and neither reach an output."""


@dataclass(slots=True)
class AtenValues:
    """The values of one run of ``graph``. ``mapped`` has the names that are in the file."""

    graph: AtenGraph
    inputs: Mapping[torch.fx.Node, torch.Tensor]
    mapped: Mapped
    store: ValueStore
    names: dict[torch.fx.Node, dict[int, str]]
    narrow: OnnxFile | None = None
    """The file, where it computes in 16 bits and the module does not."""

    @classmethod
    def of(
        cls,
        graph: AtenGraph,
        inputs: Mapping[torch.fx.Node, torch.Tensor],
        mapped: Mapped,
        store: ValueStore,
        narrow: OnnxFile | None = None,
    ) -> AtenValues:
        names: dict[torch.fx.Node, dict[int, str]] = {}
        for name, (node, index) in mapped.items():
            names.setdefault(node, {}).setdefault(index, name)
        return cls(graph, inputs, mapped, store, names, narrow)

    def keep(self, node: torch.fx.Node, value: Any) -> None:
        """Note what a node gave, where the file has it, too, and it means something."""
        if node.target in UNWRITTEN:
            return
        for index, name in self.names.get(node, {}).items():
            part = value[index] if isinstance(value, tuple | list) else value
            if isinstance(part, torch.Tensor):
                self.store[name] = self.as_in_file(name, to_numpy(part))

    def as_in_file(self, name: str, array: Array) -> Array:
        """The value as a file in 16 bits has it where it computes everything right."""
        dtype = None if self.narrow is None else self.narrow.float_dtypes.get(name)
        return array if dtype is None else narrowed(array, dtype)

    def exact(self, name: str) -> Array | None:
        """The value in float64, from PyTorch's values before it that the file has, too; None where it cannot be had."""
        wide = AtenGraph(self.graph.captured, is_wide=True)
        wide.sizes = dict(self.graph.sizes)
        node, index = self.mapped[name]
        try:
            value = self._computed(wide, node)
            return to_numpy(value[index] if isinstance(value, tuple | list) else value)
        except Exception:  # operators without float64, and those of users
            return None

    def is_other_choice(self, name: str, got: Array) -> bool:
        """Return whether ``got`` are places of equal numbers, where PyTorch's are places of the same ones (``sort``, ``topk``)."""
        node, index = self.mapped[name]
        axis = axis_of_places(node, index)
        operand = node.args[0] if node.args else None
        if axis is None or not isinstance(operand, torch.fx.Node):
            return False
        wide = AtenGraph(self.graph.captured, is_wide=True)
        wide.sizes = dict(self.graph.sizes)
        stored = self._stored(operand)
        own = stored if stored is not None else self._computed(wide, operand)
        return isinstance(own, torch.Tensor) and takes_equal(got, self.store[name], to_numpy(own), axis)

    def calls_between(self, name: str) -> list[torch.fx.Node]:
        """The ATen calls from the values before it that the file has, too, to this one, in order."""
        last, _ = self.mapped[name]
        found, pending = {last}, [last]
        while pending:
            for operand in operands_of(pending.pop()):
                if operand.op == "call_function" and operand not in found and not self._is_kept(operand):
                    found.add(operand)
                    pending.append(operand)
        return [node for node in self.graph.captured.graph.nodes if node in found]

    def _is_kept(self, node: torch.fx.Node) -> bool:
        return any(name in self.store for name in self.names.get(node, {}).values())

    def _computed(self, wide: AtenGraph, last: torch.fx.Node) -> Any:
        values: dict[torch.fx.Node, Any] = {}
        pending = [last]
        while pending:
            node = pending[-1]
            stored = None if node is last or node in values else self._stored(node)
            if stored is not None:
                values[node] = stored
            missing = [] if node in values else [operand for operand in operands_of(node) if operand not in values]
            if missing:
                pending += missing
                continue
            if node not in values:
                values[node] = wide.compute(node, values, self.inputs)
            pending.pop()
        return values[last]

    def _stored(self, node: torch.fx.Node) -> torch.Tensor | None:
        """PyTorch's value as float64, where it was kept and is one real tensor."""
        name = self.names.get(node, {}).get(0)
        info = node.meta.get("val")
        if name is None or name not in self.store or info is None or isinstance(info, tuple) or info.dtype.is_complex:
            return None
        array = self.store[name]
        return torch.from_numpy(np.array(array, np.float64 if info.dtype.is_floating_point else array.dtype))


SHARE_OF_MEMORY = 0.25
"""The share of the available memory for the values of one run."""


class ValueStore:
    """A mapping from keys to arrays. Those that do not fit in ``budget_bytes`` are mapped from files, which end with it."""

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = (
            int(psutil.virtual_memory().available * SHARE_OF_MEMORY) if budget_bytes is None else budget_bytes
        )
        self.held_bytes = 0
        self.spilled_bytes = 0
        self._arrays: dict[Any, Array] = {}
        self._paths: dict[Any, tuple[str, np.dtype[Any], tuple[int, ...]]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._arrays or key in self._paths

    def __setitem__(self, key: Any, array: Array) -> None:
        if self.held_bytes + array.nbytes <= self.budget_bytes or array.dtype.hasobject:
            self._arrays[key] = array
            self.held_bytes += array.nbytes
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fx2onnx-values-", ignore_cleanup_errors=True)
        path = os.path.join(self._folder.name, str(len(self._paths)))
        np.ascontiguousarray(array).tofile(path)
        self._paths[key] = (path, array.dtype, array.shape)
        self.spilled_bytes += array.nbytes

    def __getitem__(self, key: Any) -> Array:
        found = self._arrays.get(key)
        if found is not None:
            return found
        path, dtype, shape = self._paths[key]
        if not os.path.getsize(path):
            return np.empty(shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=shape or (1,)).reshape(shape)

    def nbytes(self, key: Any) -> int:
        """The size of an array, without a look at it."""
        if key in self._arrays:
            return self._arrays[key].nbytes
        path, _, _ = self._paths[key]
        return os.path.getsize(path)


_PLACES = {
    "aten::sort": 1, "aten::topk": 1, "aten::argsort": 0, "aten::kthvalue": 1, "aten::median": 1, "aten::mode": 1,
}  # fmt: skip
"""Operators, and which of their results are the places."""


def axis_of_places(node: torch.fx.Node, index: int) -> int | None:
    """The axis along which the node's result holds places of its operand that PyTorch leaves open; None where it does not."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or _PLACES.get(schema.name) != index:
        return None
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    default = next((argument.default_value for argument in schema.arguments if argument.name == "dim"), None)
    axis = given.get("dim", default)
    return axis if isinstance(axis, int) and not given.get("stable") else None


def takes_equal(got: Array, want: Array, own: Array, axis: int) -> bool:
    """Return whether ``got`` names other places than ``want`` of numbers of ``own`` that are as large, and none twice that ``want``
    does not.
    """
    if got.shape != want.shape or not own.ndim:
        return False
    if got.ndim == own.ndim - 1:
        got, want = np.expand_dims(got, axis), np.expand_dims(want, axis)
    size = own.shape[axis]
    if got.size and (int(got.min()) < 0 or int(got.max()) >= size):
        return False
    sorted_places = np.sort(got, axis)
    is_twice = np.any(np.diff(sorted_places, axis=axis) == 0)
    one, other = (np.take_along_axis(own, places, axis) for places in (got, want))
    return not is_twice and bool(np.array_equal(one, other, equal_nan=own.dtype.kind == "f"))


_CPU = torch.device("cpu")
Values: TypeAlias = dict[torch.fx.Node, Any]


class AtenGraph:
    """The node-by-node evaluation of a captured graph.

    ``is_wide``: weights, inputs and casts are float64 where the module has a smaller floating type, so that the values
    are what the module's are rounded from.
    """

    def __init__(self, captured: Captured, *, is_wide: bool = False) -> None:
        self.captured = captured
        self.is_wide = is_wide
        self.sizes: dict[str, int] = {}
        self._symbols: dict[torch.fx.Node, list[tuple[str, int | None]]] = {}
        for name, symbol in captured.symbols.items():
            self._symbols.setdefault(symbol.node, []).append((name, symbol.axis))

    def run(self, inputs: Mapping[torch.fx.Node, torch.Tensor]) -> Iterator[tuple[torch.fx.Node, Any]]:
        """Every node with its value, in the order of the graph. A value is kept until its last reader is done."""
        captured = self.captured
        values: Values = {}
        kept = {output.value for output in captured.outputs} | {mutation.node for mutation in carried(captured)}
        last = {operand: node for node in captured.graph.nodes for operand in operands_of(node)}
        done: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for operand, node in last.items():
            done.setdefault(node, []).append(operand)
        for node in captured.graph.nodes:
            values[node] = self.compute(node, values, inputs)
            yield node, values[node]
            for operand in done.get(node, ()):
                if operand not in kept:
                    values.pop(operand, None)
            if node not in last and node not in kept:
                del values[node]

    def compute(
        self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], inputs: Mapping[torch.fx.Node, torch.Tensor]
    ) -> Any:
        """The value of one node, from those of its operands."""
        value: Any
        if node.op == "placeholder":
            value = self._widened(inputs[node])
        elif node.op == "get_attr":
            value = self._widened(self.captured.weights[str(node.target)].tensor.detach())
        elif node.target is operator.getitem:
            value = values[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node.target in _CONTROL_FLOW:
            value = _CONTROL_FLOW[node.target](self, dict(values), *node.args)
        else:
            args, kwargs = self._argument(node.args, values), self._argument(node.kwargs, values)
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        for name, axis in self._symbols.get(node, ()):
            if isinstance(value, torch.Tensor):
                self.sizes[name] = int(value.item()) if axis is None else value.shape[axis]
        return value

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.cpu()
        return tensor.double() if self.is_wide and tensor.is_floating_point() else tensor

    def _argument(self, arg: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
        if isinstance(arg, torch.fx.Node):
            return values[arg]
        if isinstance(arg, Dim):
            return evaluate(arg, self.sizes)
        if isinstance(arg, Relation):
            return arg.holds(self.sizes)
        if isinstance(arg, torch.device):
            return _CPU
        if isinstance(arg, torch.dtype) and self.is_wide and arg.is_floating_point:
            return torch.float64
        if isinstance(arg, list | tuple):
            return type(arg)(self._argument(item, values) for item in arg)
        if isinstance(arg, dict):
            return {key: self._argument(item, values) for key, item in arg.items()}
        return arg

    def _nested(self, graph: Nested, values: Values, operands: Sequence[Any]) -> list[Any]:
        inner = values | dict(zip(graph.inputs, operands, strict=True))
        for node in graph.graph.nodes:
            if node not in inner:
                inner[node] = self.compute(node, inner, {})
        return [inner[node] for node in graph.outputs]

    def _cond(self, values: Values, pred: Any, then: Nested, otherwise: Nested, operands: Sequence[Any]) -> Any:
        chosen = then if bool(self._argument(pred, values)) else otherwise
        return tuple(self._nested(chosen, values, self._argument(list(operands), values)))

    def _while_loop(
        self, values: Values, test: Nested, body: Nested, carried: Sequence[Any], extra: Sequence[Any]
    ) -> Any:
        state, others = self._argument(list(carried), values), self._argument(list(extra), values)
        while bool(self._nested(test, values, [*state, *others])[0]):
            state = self._nested(body, values, [*state, *others])
        return tuple(state)

    def _scan(
        self,
        values: Values,
        body: Nested,
        carry: Sequence[Any],
        xs: Sequence[Any],
        extra: Sequence[Any],
        go_on: Any = None,
    ) -> Any:
        state, others = self._argument(list(carry), values), self._argument(list(extra), values)
        sequences = self._argument(list(xs), values)
        steps: list[list[Any]] = []
        goes_on = go_on is None or bool(self._argument(go_on, values))
        while goes_on and (not sequences or len(steps) < len(sequences[0])):
            slices = [each[len(steps)] for each in sequences] or [torch.tensor(len(steps))]
            given = self._nested(body, values, [*state, *slices, *others])
            goes_on = go_on is None or bool(given.pop())
            state = given[: len(state)]
            steps.append(given[len(state) :])
        return (*state, *(torch.stack(column) for column in zip(*steps, strict=True)))


_CONTROL_FLOW: dict[Any, Callable[..., Any]] = {
    HIGHER_ORDER["cond"]: AtenGraph._cond,
    HIGHER_ORDER["while_loop"]: AtenGraph._while_loop,
    HIGHER_ORDER["scan"]: AtenGraph._scan,
}


def operands_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that a node reads, in nested graphs as well, which may lie in graphs around theirs."""
    found = list(node.all_input_nodes)
    for arg in node.args:
        if isinstance(arg, Nested):
            found += [operand for inner in arg.graph.nodes for operand in operands_of(inner)]
            found += arg.outputs
    return found
