"""Which way Python's decisions by data and by sizes go in one run of a module, and which of them it came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.relations import Relation
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.base_recorder import BaseRecorder

Test: TypeAlias = torch.fx.Node | Relation


@dataclass(frozen=True, slots=True)
class Choice:
    """How a decision goes in one run."""

    holds: bool
    first_unknown: int = 0
    """The least number of a new symbol from here on, so that no two paths give one name to two sizes."""


@dataclass(slots=True)
class Decision:
    """A decision that a run made, and how far its program was."""

    test: Test
    calls: int
    weights: int
    where: SourceLocation | None
    sizes: dict[str, int]
    """The sizes of symbols before it."""


@dataclass(slots=True)
class Branches:
    """The choices that one run is given, and the decisions that it made."""

    choices: tuple[Choice, ...]
    by_sizes: bool = True
    """Whether decisions by sizes have branches, too."""
    sizes: set[str] = field(default_factory=set)
    """By which sizes there were such decisions, in any run."""
    decisions: list[Decision] = field(default_factory=list)
    undecided: UserError | None = None
    """The error of the first decision without a choice."""

    def then(self, choice: Choice) -> Branches:
        """For the next run, with one choice more."""
        return Branches((*self.choices, choice), self.by_sizes, self.sizes)

    def choose(self, recorder: BaseRecorder, test: Test, error: UserError) -> bool:
        """The next choice. Raises ``error`` where there is none, or within the body of an operator's branch or loop."""
        if recorder.graph is not recorder.root:
            raise error
        if len(self.decisions) == len(self.choices):
            self.undecided = error
            if isinstance(test, Relation) and not test.symbols() & recorder.shape_env.unbacked:
                self.sizes |= test.symbols()
            raise error
        choice = self.choices[len(self.decisions)]
        calls = sum(node.op == "call_function" for node in recorder.root.nodes)
        env = recorder.shape_env
        self.decisions.append(Decision(test, calls, len(recorder.weights), error.where, env.sizes()))
        env.next_unknown = max(env.next_unknown, choice.first_unknown)
        return choice.holds
