"""Graphs within the graph: what is recorded into one, and what was written since a moment, which a body or a path may not keep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.values import Memory, Values


class ValuesBefore:
    """The views and memories of a run at one moment: what was written since is seen, and what they showed comes back."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.graph = values.graph
        self._place = values.graph, values.where, values.module, values.path_graph
        self._views = [(view, view.node, view.version) for view in values.views.values()]
        self.memories = {
            id(view.memory): (view.memory, view.memory.node, view.memory.version) for view, _, _ in self._views
        }
        """The memories by their ids, with their nodes and versions."""
        self._sources = set(values.sources)

    def is_new(self, memory: Memory) -> bool:
        """Return whether the memory came to be since."""
        is_weight = any(view.memory is memory for view in self._values.sources.values())
        return id(memory) not in self.memories and not is_weight

    def written(self) -> list[tuple[Memory, torch.fx.Node]]:
        """Each memory that was written since, with the node of its value before; weights that were first met since are among them."""
        found = [(memory, node) for memory, node, version in self.memories.values() if memory.version != version]
        for source, view in self._values.sources.items():
            if id(view.memory) not in self.memories and view.memory.version:
                found.append((view.memory, source))
        return found

    def restore(self) -> None:
        """Record where the run was, with views that show what they showed; memories keep what was written."""
        values = self._values
        values.graph, values.where, values.module, values.path_graph = self._place
        for view, node, version in self._views:
            view.node, view.version = node, version


@contextlib.contextmanager
def nested(values: Values) -> Iterator[torch.fx.Graph]:
    """Nodes made inside go to a graph of their own. Writes to tensors of the outer graph are refused."""
    for plugin in [*values.plugins.values()]:
        plugin.before_nested()
    before, sizes = ValuesBefore(values), values.sizes
    unchecked, sizes.unchecked = sizes.unchecked, {}
    values.graph = torch.fx.Graph()
    try:
        yield values.graph
        if before.written():
            raise writes_outside(values)
    finally:
        sizes.unchecked = unchecked
        before.restore()


def writes_outside(values: Values) -> UserError:
    """The error of a body that writes into a tensor from outside it."""
    return values.refuse(
        "E103",
        "a branch or loop body writes into a tensor from outside it",
        next="return the new value from the function instead",
    )
