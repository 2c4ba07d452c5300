"""The plugins of a run for rare features: each is an object that is notified of events of the run, and dies with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from fx2onnx.sizes.assumptions import Assumed


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
