"""What a verification compares, and how long its runs may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fx2onnx.judge.engines import Run
from fx2onnx.verify.eager import Eager
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.noise import RandomNodes
from fx2onnx.verify.work import WorkBudget

_LONGEST = 20.0
"""Seconds that a run on other inputs than the sample may take, or 40 times what it takes on the sample where that is more."""
_LONGEST_ON_SAMPLE = 600.0
"""Likewise of an engine on the sample, or 200 times what eager PyTorch takes."""
MOST_TIMEOUTS = 2


@dataclass(slots=True)
class Case:
    """What is compared with what, on every sample, and what that may cost."""

    eager: Eager
    names: Sequence[str | None]
    """The input of the file for each argument."""
    file: Interface
    runs: dict[str, Run]
    random: RandomNodes | None
    seconds: dict[str, float] = field(default_factory=dict)
    """What a run on the sample took of processor time: of eager PyTorch, and of each engine. Only ``longest`` hangs on it."""
    budget: WorkBudget = field(default_factory=WorkBudget)
    """What all runs may cost, and have."""
    finite: list[bool] = field(default_factory=list)
    """Whether each output of the sample has finite numbers alone."""
    says_nothing: frozenset[str] = frozenset()
    """Kinds of floats that are not tried."""
    random_outputs: set[int] = field(default_factory=set)
    """Those that depend on random numbers which cannot be fed, on inputs so far."""
    turns: int = 0
    """Turns of the loops on the sample."""
    timeouts: int = 0
    """Runs of eager PyTorch that were ended."""
    refuses_sizes: bool = False
    """Whether eager PyTorch fails at other sizes."""

    def longest(self, name: str, *, on_sample: bool) -> float:
        """Seconds after which a run of eager PyTorch or an engine is ended."""
        if on_sample:
            return max(_LONGEST_ON_SAMPLE, 200 * self.seconds.get("eager", 0.0))
        return max(_LONGEST, 40 * self.seconds.get(name, 0.0))
