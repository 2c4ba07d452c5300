"""What a verification compares, and what its runs cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fx2onnx.judge.engines import Run
from fx2onnx.verify.eager import Eager
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.noise import RandomNodes

LEAST_SHARE = 0.2
"""Of the time of a run on the sample: what small inputs take, too, since all weights are read; until it was measured."""
JUDGE_RUNS = 6
"""Runs of eager PyTorch that judging may take, if what differs is not settled at once: larger inputs than the sample are
tried only where the time is enough for these, too."""
_OUTGROWN = 8.0
"""A run that takes so many times what its inputs let expect has sizes or counts of loops that their numbers decide."""
_LEAST_EXPECTED = 1e-3
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
    start: float
    """Processor time at which it began."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What a run on the sample takes: of eager PyTorch, and of each engine."""
    last_seconds: dict[str, float] = field(default_factory=dict)
    """Likewise on the inputs that were tried last."""
    small_share: float = 1.0
    """How large the smallest inputs so far were, as a share of the sample's numbers."""
    small_seconds: dict[str, float] = field(default_factory=dict)
    """What a run on them takes."""
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

    def cost(self, engines: Sequence[str], share: float) -> float:
        """Seconds of a run of eager PyTorch and of the engines, on inputs with such a share of the sample's numbers."""
        return sum(self._cost(name, share) for name in ("eager", *engines))

    def _cost(self, name: str, share: float) -> float:
        """Of one of them: as much for each further number as between the smallest inputs so far and the sample."""
        whole, small = self.seconds.get(name, 0.0), self.small_seconds.get(name)
        if small is None:
            return max(share, LEAST_SHARE) * whole
        slope = max(whole - small, 0.0) / (1.0 - self.small_share)
        return small + slope * max(share - self.small_share, 0.0)

    def longest(self, name: str, *, on_sample: bool) -> float:
        """Seconds after which a run of eager PyTorch or an engine is ended."""
        if on_sample:
            return max(_LONGEST_ON_SAMPLE, 200 * self.seconds.get("eager", 0.0))
        return max(_LONGEST, 40 * self.seconds.get(name, 0.0))

    def outgrows(self, engines: Sequence[str], share: float, most: float) -> bool:
        """Whether eager PyTorch's last run shows that the engines and judging would take far longer than inputs of such a share
        of the sample's numbers should, and longer than ``most`` seconds.
        """
        growth = self.last_seconds["eager"] / max(self._cost("eager", share), _LEAST_EXPECTED)
        judging = JUDGE_RUNS * self.last_seconds["eager"]
        return growth > _OUTGROWN and judging + growth * sum(self._cost(name, share) for name in engines) > most

    def note_cost(self, share: float) -> None:
        """The inputs that were tried last have such a share of the sample's numbers."""
        if share < self.small_share and len(self.last_seconds) > 1:
            self.small_share, self.small_seconds = share, dict(self.last_seconds)
