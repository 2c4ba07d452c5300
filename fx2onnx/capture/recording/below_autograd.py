"""Recording below autograd: gradients that forward takes, and training graphs.

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

from fx2onnx.base.code_patch import THREAD
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import REPEAT, TensorInfo, where_of
from fx2onnx.capture.rare_roads import RunPlugin
from fx2onnx.capture.recording.control_flow import GraphCopy
from fx2onnx.capture.recording.meta_cache import TensorFacts
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, View
from fx2onnx.torchcompat.dispatch import no_dispatch, no_modes
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


def addresses_of(tensor: torch.Tensor) -> range:
    """The addresses from the first byte of a real tensor to its last; empty where it has no memory that Python can
    name."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return range(0)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        with no_dispatch():
            begin = tensor.data_ptr()
    except RuntimeError:  # a wrapper of torch.func
        return range(0)
    return range(begin, begin + (reach + 1) * tensor.element_size()) if begin else range(0)


def stand_for(real: torch.Tensor, fake: torch.Tensor) -> None:
    """Let the real tensor be the input that ``fake`` is, from now on, in the run of this thread: whoever holds it, in
    whatever way, has the input.
    """
    THREAD.tracer.plugin("below autograd").stand_for(real, fake)


def constants_read() -> list[tuple[torch.Tensor, SourceLocation | None]]:
    """The real tensors that the run of this thread read and that are no inputs, each with the line of its first reader."""
    if THREAD.tracer is None:
        return []
    weights = THREAD.tracer.values.weights.values()
    return [(weight.tensor, next(map(where_of, weight.node.users), None)) for weight in weights]


def is_one_of_several_paths() -> bool:
    """Return whether the run of this thread has taken a branch of Python's, whose other side another run follows."""
    return THREAD.tracer is not None and THREAD.tracer.trace is not None and bool(THREAD.tracer.trace.decisions)


def repeated(function: Function, key: object, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """``function(*tensors)``, where equal keys and types of tensors mean the same formula, which has no side effects. Of their
    types only reductions depend on more than the dtype.

    An optimizer updates every parameter by one formula. Running it for each takes longer than the rest of a capture, so the
    first call with its types is recorded, and the nodes that depend on its tensors are copied for the others. A formula that is
    elementwise is copied for tensors of other sizes, too.
    """
    if THREAD.tracer is None:
        return function(*tensors)
    results: Sequence[torch.Tensor] = THREAD.tracer.plugin("below autograd").called(function, key, tensors)
    return results


@dataclass(frozen=True)
class RecordedCall:
    """The recording of one call: the nodes that depend on its tensors, and its results."""

    number: int
    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node]
    results: list[tuple[torch.fx.Node, TensorFacts]]
    is_elementwise: bool
    """True if every node has the sizes that all tensors have."""


class BelowAutograd(RunPlugin):
    """The repeated calls that one run has recorded, its lines, its running statistics, and the real tensors that are inputs."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._known: dict[object, RecordedCall | None] = {}
        self._elementwise: dict[object, RecordedCall] = {}
        """The elementwise programs, by what of a kind is left without sizes."""
        self._copies = count()
        self._given: list[tuple[range, torch.Tensor, torch.Tensor]] = []
        """Real tensors that are inputs: their addresses, they themselves, the fakes of the inputs."""
        self.statistics = None if tracer.pre_dispatch else RunningStatistics(tracer)
        self.place = ForwardLines().place

    def before_nested(self) -> None:
        if self.statistics is not None:
            self.statistics.settle()

    def end(self) -> None:
        self.tracer.values.shown_by_input = None

    def stand_for(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """See ``stand_for``."""
        values = self.tracer.values
        values.add_view(values.same_view(real, values.view_of(fake)))
        values.has_fake(real, fake)
        if addresses := addresses_of(real):
            self._given.append((addresses, real, fake))
            values.shown_by_input = self._part_of_given

    def given_at(self, addresses: range) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The real tensor, and its fake, that is an input and has some of these addresses."""
        for own, real, fake in self._given:
            if addresses.start < own.stop and own.start < addresses.stop:
                return real, fake
        return None

    def _part_of_given(self, tensor: torch.Tensor) -> View | None:
        """The view of a real tensor over the memory of one that is an input."""
        values, addresses = self.tracer.values, addresses_of(tensor)
        found = self.given_at(addresses) if addresses else None
        if found is None:
            return None
        real, fake = found
        begin = tensor.data_ptr() - real.data_ptr()
        is_within = addresses.start >= real.data_ptr() and addresses.stop <= addresses_of(real).stop
        if tensor.dtype != real.dtype or begin % tensor.element_size() or not is_within:
            name = next(
                (str(node.target) for node, view in values.sources.items() if view.tensor is fake), "a parameter"
            )
            raise values.refuse(
                "E103",
                f"a tensor shows the memory of {name} in another way than {name} itself does",
                why=f"it is of {tensor.dtype} with the sizes {list(tensor.shape)}, {name} is an input of the graph",
                next=f"compute it from {name} inside forward",
            )
        with torch.no_grad():
            place = begin // tensor.element_size()
            args = (fake, list(tensor.shape), list(tensor.stride()), place)
            part = self.tracer.record(aten.as_strided.default, args, {})
        assert isinstance(part, torch.Tensor)
        values.has_fake(tensor, part)
        found_view: View = values.view_of(part)
        return found_view

    def called(self, function: Function, key: object, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """See ``repeated``."""
        tracer = self.tracer
        nodes = [tracer.values.node_of(tensor) for tensor in tensors]
        try:
            types = tuple(tracer.types.type_of(tensor) for tensor in tensors)
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
        before, last = self._facts(), next(iter(reversed(tracer.values.graph.nodes)), None)
        results = function(*tensors)
        made = [*takewhile(lambda node: node is not last, reversed(tracer.values.graph.nodes))][::-1]
        is_alone = before == self._facts() and not any(map(requires_grad, (*tensors, *results)))
        program = self._known[kind] = self._program(made, nodes, results) if is_alone else None
        if common is not None and program is not None and program.is_elementwise:
            self._elementwise[general] = program
        return results

    def _facts(self) -> tuple[object, ...]:
        """The changes of a call that are more than its nodes."""
        tracer = self.tracer
        env = tracer.sizes
        counts = (len(tracer.values.writes), len(tracer.values.symbols), len(tracer.warnings), len(env.asked))
        return id(tracer.values.graph), tracer.values.graph is tracer.values.root, *counts

    def _program(
        self, made: list[torch.fx.Node], inputs: list[torch.fx.Node], results: Sequence[torch.Tensor]
    ) -> RecordedCall | None:
        """None where a copy of the nodes would not do."""
        tracer = self.tracer
        number = len(self._known)
        own = set(inputs)
        nodes = []
        for node in made:
            if not own.isdisjoint(node.all_input_nodes):
                own.add(node)
                nodes.append(node)
        views = [tracer.values.views.get(id(result)) for result in results]
        found: list[tuple[torch.fx.Node, TensorFacts]] = []
        for result, view in zip(results, views, strict=True):
            is_fresh = view is not None and not view.steps and not view.memory.version and view.node in own
            if view is None or not is_fresh or view.node in inputs:
                return None
            found.append((view.node, tracer.types.type_of(result)))
        if len({node for node, _ in found}) < len(found) or any(node.op != "call_function" for node in nodes):
            return None
        _mark(nodes, (number, next(self._copies)))
        return RecordedCall(number, nodes, inputs, found, _is_elementwise(nodes, inputs))

    def _copied(
        self, program: RecordedCall, inputs: list[torch.fx.Node], common: TensorFacts | None = None
    ) -> list[torch.Tensor]:
        """The results of the same nodes with other inputs, which are all as ``common`` where their sizes are others."""
        values = self.tracer.values
        copy = GraphCopy(values.graph)
        copy.shares_others = True
        copy.seen |= zip(program.inputs, inputs, strict=True)
        copy.add(program.nodes)
        for old in program.nodes:
            node = copy.seen[old]
            if common is not None:
                node.meta["val"] = TensorInfo(old.meta["val"].dtype, common.sizes)
            if old in values.without_grad:
                values.without_grad.add(node)
        copies, new = [copy.seen[old] for old in program.nodes], copy.seen
        _mark(copies, (program.number, next(self._copies)))
        kinds = [kind if common is None else common._replace(dtype=kind.dtype) for _, kind in program.results]
        return [self._tensor(new[node], kind) for (node, _), kind in zip(program.results, kinds, strict=True)]

    def _tensor(self, node: torch.fx.Node, kind: TensorFacts) -> torch.Tensor:
        tracer = self.tracer
        tensor: torch.Tensor = tracer.types.fresh(kind)
        info = node.meta["val"]
        tracer.values.add_view(View(Memory(node, info), (), node, info, 0, tensor))
        return tensor


def _mark(nodes: Sequence[torch.fx.Node], copy: tuple[int, int]) -> None:
    for node in nodes:
        node.meta[REPEAT] = copy


def _in_rows(types: Sequence[TensorFacts]) -> TensorFacts | None:
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
    """Return whether all nodes have the sizes of the inputs, and whatever else they read is a number."""
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


PLUGIN = BelowAutograd


class RunningStatistics:
    """The updates of one run that are not recorded yet: all are, when one is read or the run ends. The update of each takes three
    operators on a short vector; a network has a hundred of them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = weakref.proxy(tracer)
        self._waiting: dict[tuple[float, torch.dtype], list[Update]] = {}

    def may_wait(self, running: torch.Tensor) -> bool:
        """Return whether an update need not be recorded where it stands."""
        tracer = self._tracer
        return (
            running.dim() == 1
            and not tracer.values.view_of(running).steps
            and tracer.values.graph is tracer.values.root
        )

    def take(self, running: torch.Tensor, fresh: torch.Tensor, momentum: float) -> None:
        """``running`` becomes ``(1 - momentum) * running + momentum * fresh`` later. A second batch norm over it has read it, so that nothing
        waits for it.
        """
        tracer = self._tracer
        view = tracer.values.view_of(running)
        self._waiting.setdefault((momentum, running.dtype), []).append((running, fresh, tracer.values.where))
        tracer.values.written.setdefault(id(view.memory), tracer.values.where)
        view.memory.version += 1
        view.memory.late = self.settle

    def settle(self) -> None:
        """Record what is waiting."""
        tracer, waiting, self._waiting = self._tracer, self._waiting, {}
        for updates in waiting.values():
            for running, _, _ in updates:
                tracer.values.view_of(running).memory.late = None
        with no_modes(), tracer.values.fake_mode, torch.no_grad():  # also where forward has ended, outside of any call
            for (momentum, _), updates in waiting.items():
                with tracer.values.at(updates[0][2]):
                    old = tracer.record(aten.cat.default, ([running for running, _, _ in updates],), {})
                    new = tracer.record(aten.cat.default, ([fresh for _, fresh, _ in updates],), {})
                    old = tracer.record(aten.mul.Tensor, (old, 1 - momentum), {})
                    new = tracer.record(aten.mul.Tensor, (new, momentum), {})
                    total = tracer.record(aten.add.Tensor, (old, new), {})
                    sizes = [running.shape[0] for running, _, _ in updates]
                    parts = tracer.record(aten.split_with_sizes.default, (total, sizes), {})
                    for (running, _, _), part in zip(updates, parts, strict=True):
                        tracer.values.write(running, tracer.values.node_of(part))


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
