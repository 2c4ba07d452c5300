"""What a run is like before one of the paths through a call, and as before afterwards."""

from __future__ import annotations

import copy
import dataclasses

from fx2onnx.capture.recording.aliasing import Memory
from fx2onnx.capture.recording.recorder import Recorder
from fx2onnx.capture.shapes.shape_env import ShapeEnv

_CACHES = ("_specs", "_templates")
"""Of ``MetaCache``: they hold for what is known of sizes on the path."""
_OF_RUN = ("graph", "scope", "branches", "bodies", "watch", "_where", "_module")
"""Of ``Recorder``."""


class BeforePath:
    """What a run was like before a path, which gets copies of it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._views = [(view, view.node, view.version) for view in recorder.views.values()]
        self._memories = {id(view.memory): (view.memory, view.memory.version) for view, _, _ in self._views}
        self._sources = set(recorder.sources)
        self._env = _fields(recorder.shape_env)
        self._guards = recorder.shape_env.guards
        self._caches = {name: getattr(recorder.meta_cache, name) for name in _CACHES}
        self._run = {name: vars(recorder)[name] for name in _OF_RUN}
        self._counts = self._noted()
        for name, value in self._env.items():
            setattr(recorder.shape_env, name, _copy(value))
        for name, value in self._caches.items():
            setattr(recorder.meta_cache, name, dict(value))

    def _noted(self) -> tuple[int, ...]:
        recorder = self._recorder
        return len(recorder.symbols), len(recorder.numbers_read), len(recorder.quantized)

    def is_new(self, memory: Memory) -> bool:
        """Whether it came to be since."""
        is_weight = any(view.memory is memory for view in self._recorder.sources.values())
        return id(memory) not in self._memories and not is_weight

    def changed(self) -> str:
        """What was changed that others see."""
        recorder = self._recorder
        written = any(memory.version != version for memory, version in self._memories.values())
        written |= any(view.memory.version for node, view in recorder.sources.items() if node not in self._sources)
        if written:
            return "it writes into a tensor from outside it"
        if recorder.shape_env.unbacked or self._noted() != self._counts:
            return "it decides by data"
        return ""

    def restore(self) -> ShapeEnv:
        """As before; what is known of sizes at the end of the path."""
        recorder = self._recorder
        after = copy.copy(recorder.shape_env)
        before = self._guards
        after.guards = {key: guard for key, guard in after.guards.items() if before.get(key) is not guard}
        for holder, values in (
            (recorder.shape_env, self._env),
            (recorder.meta_cache, self._caches),
            (recorder, self._run),
        ):
            for name, value in values.items():
                setattr(holder, name, value)
        for view, node, version in self._views:
            view.node, view.version = node, version
        return after


def _fields(env: ShapeEnv) -> dict[str, object]:
    return {field.name: getattr(env, field.name) for field in dataclasses.fields(env)}


def _copy(value: object) -> object:
    return value.copy() if hasattr(value, "copy") else value
