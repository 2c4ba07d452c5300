"""Rare roads: rooms of capture that an ordinary export never enters, each imported when something of it is first met; and the plugins that
they are in one run.

They are named in one table, so that what every export runs does not import them. A module may be run on fake tensors while one is
imported, with functions of ``math`` and ``builtins`` patched for its thread: no room may keep one of these as it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch.fx

from fx2onnx.sizes.assumptions import Assumed
from fx2onnx.torchcompat.dispatch import real_kernels

RARE_ROADS = {
    "all paths": "branches.explore",
    "if bodies": "branches.if_bodies",
    "loops": "loops.plugin",
    "no-op guards": "branches.noop_guards",
    "paths of calls": "branches.per_call",
    "writes": "recording.aliasing",
    "shared memory": "overloads.sharing",
    "below autograd": "recording.below_autograd",
    "autograd's answers": "recording.gradients",
    "autocast": "recording.autocast",
    "names of what is held": "python.held_names",
    "tensors kept outside": "python.kept_outside",
    "what goes on as it is used": "python.advancing",
    "other spellings of dynamic sizes": "shapes.dynamic_spellings",
    "members of arguments": "shapes.dynamic_members",
    "decisions by sizes": "shapes.deciding",
    "sizes of data": "recording.unknown_sizes",
    "what Python asks": "recording.questions",
    "changed state": "recording.changed_state",
    "quantised operands": "quantized.operands",
    "sparse operands": "overloads.sparse",
    "NumPy in tensors": "shapes.numpy_arrays",
    "random draws": "python.random_draws",
    "arguments that do not fit": "python.misfits",
    "a failed attempt": "remedies",
    "a failed run": "failures",
    "errors that forward catches": "caught",
    "sizes that not every number fits": "specializing",
    "a size of 0 or 1": "at_one",
    "texts of sizes": "at_one",
    "the example inputs": "at_sample",
    "several calls": "observed",
    "torch.export": "strategies.exported",
    "symbolic trace": "strategies.symbolic",
}
"""The module for each rare feature, by the name of the feature; it is imported when a module first needs it."""

_PACKAGE = __name__.rpartition(".")[0]
_loaded: dict[str, Any] = {}


def road(name: str) -> Any:
    """The module of a rare road."""
    found = _loaded.get(name)
    if found is None:
        with real_kernels():
            found = _loaded[name] = importlib.import_module(f"{_PACKAGE}.{RARE_ROADS[name]}")
    return found


class RunPlugin:
    """A plugin for a rare feature in one run. It is made when the run first needs it, and hears of what the run does
    from then on.
    """

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.notes: list[Assumed] = []
        """The plugin's lines for the report."""

    def saw_call(self, node: torch.fx.Node) -> None:
        """A call was added to the graph."""

    def before_write(self, memory: Any) -> None:
        """The run writes into a tensor of this ``Memory``."""

    def before_nested(self) -> None:
        """Calls are to be recorded into a graph within the graph."""

    def failed(self, error: Exception) -> None:
        """The module's forward raised ``error``. May raise something else in its place."""

    def gave(self, values: Sequence[object]) -> None:
        """The outputs of the run."""

    def end(self) -> None:
        """The run is over."""
