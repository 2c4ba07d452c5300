"""The state of a run around one path of a call: what the path may not change, and what of it the run takes over."""

from __future__ import annotations

from fx2onnx.capture.branches.watch import SideEffectWatch
from fx2onnx.capture.recording.decisions import DecisionTrace
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import ValuesBefore
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.graphs import RecordedGraph


def adopt(env: ShapeEnv, joined: ShapeEnv) -> None:
    """Take over the facts on sizes that all paths found together."""
    inner = joined.unbacked - env.unbacked
    env.know(unbacked=env.unbacked | inner)
    env.hints = {**env.hints, **{name: joined.hints[name] for name in inner}}
    env.next_unbacked = max(env.next_unbacked, joined.next_unbacked)
    for condition in joined.facts.conditions:
        if condition not in env.facts.conditions:
            env.narrow(condition.name, condition.sizes)
    env.know(conditions=joined.facts.conditions)
    env.guards = {**env.guards, **joined.guards}
    env.specializations = {**env.specializations, **joined.specializations}
    env.numbers_in |= joined.numbers_in
    env.assertions = {**env.assertions, **joined.assertions}
    env.asked_few |= joined.asked_few
    env.tried = {**env.tried, **joined.tried}


class RunBefore:
    """A run before a path: its parts as they were, to go back to."""

    def __init__(self, tracer: Tracer, trace: DecisionTrace, watch: SideEffectWatch) -> None:
        self._tracer = tracer
        self._values, self._sizes, self._types = ValuesBefore(tracer.values), tracer.sizes.kept(), tracer.types.kept()
        self.is_new = self._values.is_new
        self._symbols, self._scalars = dict(tracer.values.symbols), dict(tracer.unbacked_scalars)
        self._run = tracer.begin_path(RecordedGraph(), trace, watch)
        self._counts = self._noted()

    def _noted(self) -> tuple[int, ...]:
        tracer = self._tracer
        return len(tracer.numbers_read), len(tracer.quantized)

    def changed(self) -> str:
        """A text that names changes that others see."""
        if self._values.written():
            return "it writes into a tensor from outside it"
        if self._noted() != self._counts:
            return "it reads numbers of a tensor"
        return ""

    def restore(self) -> ShapeEnv:
        """Restore the state before; returns the sizes at the end of the path, with the guards of the path alone."""
        tracer, before = self._tracer, self._sizes.guards
        after = tracer.sizes.go_back(self._sizes)
        after.without_guards({key for key, guard in after.guards.items() if before.get(key) is guard})
        tracer.types.go_back(self._types)
        tracer.trace, tracer.has_if_bodies, tracer.watch = self._run
        self._values.restore()
        tracer.values.symbols, tracer.unbacked_scalars = self._symbols, self._scalars
        return after
