"""What is recorded below autograd: gradients that forward takes, and training graphs.

The engine that calls autograd's nodes has no frame of the user's, so a call of the backward pass has the line of the forward
operation (``ForwardLines``). The running statistics of all batch norms are updated together (``RunningStatistics``). Tensors of a
module may be inputs of its graph (``stand_for``), and a formula that an optimizer applies to each parameter is recorded once and
copied (``repeated``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TypeAlias

import torch
import torch.fx
from torch.fx.node import Argument

from fx2onnx.base.code_patch import THREAD
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import REPEAT, TensorInfo, where_of
from fx2onnx.capture.recording.aliasing import Memory, View
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.meta_cache import TensorType
from fx2onnx.capture.recording.plugins import RunPlugin
from fx2onnx.torchcompat.frames import ENGINE_CODE, nodes_made, running_node, user_location
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.tensor_questions import requires_grad

aten = torch.ops.aten
Place: TypeAlias = tuple[SourceLocation | None, str]
"""A line, and the path of the module whose forward has it."""
Update: TypeAlias = tuple[torch.Tensor, torch.Tensor, SourceLocation | None]
"""A running statistic, the batch's own, and the line of the batch norm."""
Function = Callable[..., Sequence[torch.Tensor]]


# -- module tensors that are inputs ---------------------------------------------------------------------------------------
def stand_for(real: torch.Tensor, fake: torch.Tensor) -> None:
    """From now on the real tensor is the input that ``fake`` is, in the run of this thread: whoever holds it, in whatever way, has
    the input. A training graph takes parameters as inputs, and forward reaches them as it likes: by the module, a closure, a
    hook, a ``backward`` of the user's, a view that was made long before. So it is the recorder that knows them, by their memory.
    """
    THREAD.recorder.stand_for(real, fake)


def constants_read() -> list[tuple[torch.Tensor, SourceLocation | None]]:
    """The real tensors that the run of this thread read and that are no inputs, each with the line of its first reader."""
    if THREAD.recorder is None:
        return []
    weights = THREAD.recorder.weights.values()
    return [(weight.tensor, next(map(where_of, weight.node.users), None)) for weight in weights]


# -- formulas that repeat -------------------------------------------------------------------------------------------------
def repeated(function: Function, key: object, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """``function(*tensors)``, where equal keys and types of tensors mean the same formula, which has no side effects. Of their
    types only reductions depend on more than the dtype.

    An optimizer updates every parameter by one formula. Running it for each takes longer than the rest of a capture, so the
    first call with its types is recorded, and the nodes that depend on its tensors are copied for the others. A formula that is
    elementwise is copied for tensors of other sizes, too.
    """
    if THREAD.recorder is None:
        return function(*tensors)
    results: Sequence[torch.Tensor] = THREAD.recorder.plugin("below autograd").called(function, key, tensors)
    return results


@dataclass(frozen=True)
class Program:
    """What one call recorded: the nodes that depend on its tensors, and its results."""

    number: int
    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node]
    results: list[tuple[torch.fx.Node, TensorType]]
    is_elementwise: bool
    """Whether every node has the sizes that all tensors have."""


class Repeats(RunPlugin):
    """The repeated calls that one run has recorded."""

    def __init__(self, recorder: BaseRecorder) -> None:
        super().__init__(recorder)
        self._known: dict[object, Program | None] = {}
        self._elementwise: dict[object, Program] = {}
        """By what of a kind is left without sizes."""
        self._copies = count()

    def called(self, function: Function, key: object, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """See ``repeated``."""
        recorder = self.recorder
        nodes = [recorder.node_of(tensor) for tensor in tensors]
        try:
            types = tuple(recorder.meta_cache.type_of(tensor) for tensor in tensors)
        except TypeError:
            return function(*tensors)
        kind = (key, types, tuple(map(nodes.index, nodes)), torch.is_grad_enabled())
        if kind in self._known:
            program = self._known[kind]
            return function(*tensors) if program is None else self._copied(program, nodes)
        common = _in_rows(types)
        general = (*kind[:1], common and tuple(each.dtype for each in types), *kind[2:])
        if common is not None and general in self._elementwise:
            return self._copied(self._elementwise[general], nodes, common)
        before, last = self._facts(), next(iter(reversed(recorder.graph.nodes)), None)
        results = function(*tensors)
        made = [*takewhile(lambda node: node is not last, reversed(recorder.graph.nodes))][::-1]
        is_alone = before == self._facts() and not any(map(requires_grad, (*tensors, *results)))
        program = self._known[kind] = self._program(made, nodes, results) if is_alone else None
        if common is not None and program is not None and program.is_elementwise:
            self._elementwise[general] = program
        return results

    def _facts(self) -> tuple[object, ...]:
        """What a call changes that is more than its nodes."""
        recorder = self.recorder
        env = recorder.shape_env
        counts = (len(recorder.writes), len(recorder.symbols), len(recorder.warnings), len(env.asked))
        return id(recorder.graph), recorder.graph is recorder.root, *counts

    def _program(
        self, made: list[torch.fx.Node], inputs: list[torch.fx.Node], results: Sequence[torch.Tensor]
    ) -> Program | None:
        """None where a copy of the nodes would not do."""
        recorder = self.recorder
        number = len(self._known)
        own = set(inputs)
        nodes = []
        for node in made:
            if not own.isdisjoint(node.all_input_nodes):
                own.add(node)
                nodes.append(node)
        views = [recorder.views.get(id(result)) for result in results]
        found: list[tuple[torch.fx.Node, TensorType]] = []
        for result, view in zip(results, views, strict=True):
            is_fresh = view is not None and not view.steps and not view.memory.version and view.node in own
            if view is None or not is_fresh or view.node in inputs:
                return None
            found.append((view.node, recorder.meta_cache.type_of(result)))
        if len({node for node, _ in found}) < len(found) or any(node.op != "call_function" for node in nodes):
            return None
        _mark(nodes, (number, next(self._copies)))
        return Program(number, nodes, inputs, found, _is_elementwise(nodes, inputs))

    def _copied(
        self, program: Program, inputs: list[torch.fx.Node], common: TensorType | None = None
    ) -> list[torch.Tensor]:
        """The results of the same nodes with other inputs, which are all as ``common`` where their sizes are others."""
        recorder = self.recorder
        new = dict(zip(program.inputs, inputs, strict=True))

        def part(arg: Argument) -> Argument:
            if isinstance(arg, torch.fx.Node):
                return new.get(arg, arg)
            return type(arg)(map(part, arg)) if isinstance(arg, list | tuple) else arg

        copies = []
        for old in program.nodes:
            kwargs = {name: part(arg) for name, arg in old.kwargs.items()} if old.kwargs else {}
            node = recorder.graph.create_node(old.op, old.target, tuple([part(arg) for arg in old.args]), kwargs)
            node.meta.update(old.meta)
            if common is not None:
                node.meta["val"] = TensorInfo(old.meta["val"].dtype, common.sizes)
            if old in recorder.without_grad:
                recorder.without_grad.add(node)
            new[old] = node
            copies.append(node)
        _mark(copies, (program.number, next(self._copies)))
        kinds = [kind if common is None else common._replace(dtype=kind.dtype) for _, kind in program.results]
        return [self._tensor(new[node], kind) for (node, _), kind in zip(program.results, kinds, strict=True)]

    def _tensor(self, node: torch.fx.Node, kind: TensorType) -> torch.Tensor:
        recorder = self.recorder
        tensor: torch.Tensor = recorder.meta_cache.fresh(kind)
        info = node.meta["val"]
        recorder.add_view(View(Memory(node, info), (), node, info, 0, tensor))
        return tensor


def _mark(nodes: Sequence[torch.fx.Node], copy: tuple[int, int]) -> None:
    for node in nodes:
        node.meta[REPEAT] = copy


def _in_rows(types: Sequence[TensorType]) -> TensorType | None:
    """The first of ``types`` where all have its sizes, which are numbers, and lie in memory in order; else None."""
    first = types[0]
    step, steps = 1, []
    for size in reversed(first.sizes):
        if not isinstance(size, int) or size == 0:
            return None
        steps.append(step)
        step *= size
    is_one = all(each._replace(dtype=first.dtype) == first for each in types)
    return first if is_one and first.strides == tuple(reversed(steps)) and first.offset == 0 else None


def _is_elementwise(nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node]) -> bool:
    """Whether all nodes have the sizes of the inputs, and whatever else they read is a number."""
    own = {*nodes, *inputs}
    sizes = inputs[0].meta["val"].dims
    return all(
        isinstance(node.target, OpOverload)
        and torch.Tag.pointwise in node.target.tags
        and isinstance(node.meta["val"], TensorInfo)
        and node.meta["val"].dims == sizes
        and all(arg in own or arg.meta["val"].dims == () for arg in node.all_input_nodes)
        for node in nodes
    )


PLUGIN = Repeats


# -- running statistics ----------------------------------------------------------------------------------------------------
class RunningStatistics:
    """The updates of one run that are not recorded yet: all are, when one is read or the run ends. The update of each takes three
    operators on a short vector; a network has a hundred of them.
    """

    def __init__(self, recorder: BaseRecorder) -> None:
        self._recorder = weakref.proxy(recorder)
        self._waiting: dict[tuple[float, torch.dtype], list[Update]] = {}

    def may_wait(self, running: torch.Tensor) -> bool:
        """Whether an update need not be recorded where it stands."""
        recorder = self._recorder
        return running.dim() == 1 and not recorder.view_of(running).steps and recorder.graph is recorder.root

    def take(self, running: torch.Tensor, fresh: torch.Tensor, momentum: float) -> None:
        """``running`` becomes ``(1 - momentum) * running + momentum * fresh`` later. A second batch norm over it has read it, so that nothing
        waits for it.
        """
        recorder = self._recorder
        view = recorder.view_of(running)
        self._waiting.setdefault((momentum, running.dtype), []).append((running, fresh, recorder.place_of_call()))
        recorder.written.setdefault(id(view.memory), recorder.place_of_call())
        view.memory.version += 1
        view.memory.late = self.settle

    def settle(self) -> None:
        """Record what is waiting."""
        recorder, waiting, self._waiting = self._recorder, self._waiting, {}
        for updates in waiting.values():
            for running, _, _ in updates:
                recorder.view_of(running).memory.late = None
        with torch.no_grad():
            for (momentum, _), updates in waiting.items():
                with recorder.at(updates[0][2]):
                    old = recorder.record(aten.cat.default, ([running for running, _, _ in updates],), {})
                    new = recorder.record(aten.cat.default, ([fresh for _, fresh, _ in updates],), {})
                    old = recorder.record(aten.mul.Tensor, (old, 1 - momentum), {})
                    new = recorder.record(aten.mul.Tensor, (new, momentum), {})
                    total = recorder.record(aten.add.Tensor, (old, new), {})
                    sizes = [running.shape[0] for running, _, _ in updates]
                    parts = recorder.record(aten.split_with_sizes.default, (total, sizes), {})
                    for (running, _, _), part in zip(updates, parts, strict=True):
                        recorder.write(running, recorder.node_of(part))


# -- lines of the backward pass ---------------------------------------------------------------------------------------------
class ForwardLines:
    """The places of one run's forward operations, by the numbers of their autograd nodes.

    Autograd makes a node before the operator that it differentiates is recorded, so each recorded call notes the numbers of the
    nodes made since the last one.
    """

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._noted = nodes_made()

    def place(self) -> Place:
        """The place of the call that is being recorded. What a user's own ``backward`` calls has its own line."""
        node = running_node()
        if node is None:
            place = user_location(), PATHS.current
        else:
            own = user_location(ENGINE_CODE)
            place = self._places.get(node) or (user_location(), PATHS.current)
            place = place if own is None else (own, PATHS.current or place[1])
        made = nodes_made()
        for number in range(self._noted, made):
            self._places[number] = place
        self._noted = made
        return place
