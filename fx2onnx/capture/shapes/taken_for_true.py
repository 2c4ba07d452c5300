"""What eager PyTorch ends a run for where it is false, of sizes that only the data tells: a graph takes it for true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import user_location


class UnmetNeed(RuntimeError):
    """What an operator needs of sizes is not so at the sample."""


@dataclass
class TakenForTrue(SizeFacts):
    """Plain data, as ``ShapeEnv`` is."""

    takes_notes: bool = True
    """Off while a tensor of known type is made anew: what its constructor checks (is it empty? contiguous?) decides nothing."""
    during: str = ""
    """The overload that runs now."""
    assertions: dict[Assumption, bool] = field(default_factory=dict)
    """What eager PyTorch checks and the graph takes for true, in order, and whether anything is learnt of it."""
    unchecked: dict[Relation, SourceLocation | None] = field(default_factory=dict)
    """Those of sizes that no node of the graph checks so far."""

    def take_for_true(self, what: str | Relation, where: SourceLocation | None) -> None:
        """Take for true what ends the run where it is false."""
        is_learnt = self.equate(what) if isinstance(what, Relation) else True
        if not self.takes_notes:
            return
        self.assertions[Assumption(str(what), where, "assertion")] = is_learnt
        if isinstance(what, Relation):
            self.unchecked.setdefault(what, where)

    def are_sizes(self, dims: Sequence[object]) -> None:
        """Numbers of data among ``dims`` are sizes, and so not below 0: what else an operator makes of them is nothing that is in the
        graph.
        """
        for name in self.signed & set(map(str, dims)):
            self.signed.discard(name)
            if self.takes_notes:
                self.unchecked.setdefault(Relation("ge", (Dim.symbol(name), 0)), user_location())
