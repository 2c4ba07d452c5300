"""One attempt to capture a module and its outcome, as values: the driver changes one thing, and tries again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import CodeType
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.patches import Patches, TracedCode
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.requested import of_size
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.facts import Facts
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY


@dataclass(frozen=True)
class Attempt:
    """A module, and how it is run on fake tensors."""

    root: torch.nn.Module
    arguments: Arguments
    options: CaptureOptions
    keep: Callable[[Any], bool]
    """Whether an overload stays whole; others are split by PyTorch's decompositions."""
    patches: Patches
    """Of library functions, in place while the module runs."""
    optional: frozenset[str] = frozenset()
    """Sizes that may become static, since nobody asked for them by name."""
    declared: frozenset[str] = frozenset()
    """Sizes that are declared by a ``torch.export.Dim``."""
    strategy: str = "fake"
    """What is run: the module itself (``fake``), a traced copy (``symbolic``) or torch.export's program (``export``)."""
    program: torch.nn.Module | None = None
    """What the strategy made of ``root``; None until it has."""
    hints: Mapping[str, int] = field(default_factory=dict)
    """The size of each symbol at which comparisons are decided."""
    for_one: int = 2
    """What stands for a sample's size of 0 or 1."""
    decides_at: Mapping[str, int] = field(default_factory=dict)
    """Sizes at which Python decides, whatever the hints are."""
    first_unknown: int = 0
    """The least number of a symbol for a size that only the data tells."""
    ranges: tuple[Condition, ...] = ()
    """What sizes are declared with, such as ``Dim("n", min=6)``."""
    relations: tuple[Relation, ...] = ()
    """Relations that the user declares between sizes."""
    bake: tuple[str, ...] = ()
    """Inputs whose sample values are constants of the graph."""
    baked_for: tuple[str, ...] = ()
    """Of each that nobody asked to bake, a line about why it had to be."""
    specializations: tuple[Specialization, ...] = ()
    """Of earlier attempts: the sizes that became numbers, or other sizes."""
    settling_runs: int = 0
    """The number of runs that these specializations took."""
    larger: Mapping[str, int] = field(default_factory=dict)
    """Sizes in the place of hints at which a derived size is 1."""
    without_larger: Recorded | None = None
    """What the run without ``larger`` gave."""
    first_failure: BaseException | None = None
    """Of the module's own run, where torch.export is tried in its place."""
    whole: bool = True
    """Whether composite operators are recorded whole, rather than as the operators that they consist of."""
    splits_by_sizes: bool = True
    """Whether both branches of Python's decisions by sizes are recorded, rather than the sample's."""
    runs_idle: bool = True
    """Whether a statement that does nothing where its test is false is run without asking."""
    has_bodies: bool = True
    """Whether statements that a test by data guards are a branch of the run, where they may be."""
    keeps_few: bool = True
    """Whether a number of a few, such as how many parts there are, is a decision by sizes rather than a condition."""
    scopes: frozenset[type] = frozenset()
    """Classes of submodules each call of which has the branches of its decisions by sizes to itself."""
    split_failure: BaseException | None = None
    """Why they are not."""
    untranslated: UserError | None = None
    """What of a program with both branches could not be translated: this one is to have the sample's only."""
    wants_number: Failed | None = None
    """What failed where ``int(x)`` was a plain number."""
    gradients: bool = False
    """Whether gradients are on, as ``forward`` takes some; else they are off, as in inference."""
    traced: TracedCode = frozenset()
    """Functions of libraries that take their branch for traced code."""
    numbers_in: frozenset[str] = frozenset()
    """Names of files in which ``int`` and ``float`` of a size stay sizes."""
    takes_indices: bool = False
    """Whether sizes may be indices of tensors; else they are where ``numbers_in`` has a file."""
    without_numbers: Recorded | None = None
    """What the run without ``numbers_in`` gave."""
    keeps_numbers: bool = True
    """Whether ``numbers_in`` may be tried."""
    change: str = ""
    """What makes this attempt differ from the one before."""

    def at_sample(self) -> Attempt:
        """With the sample's sizes. 0 and 1 would hide what happens at all others. Raises UserError E105."""
        sizes, other = hints_of(self.arguments).items(), self.for_one
        sets = {declared.name: declared.sizes for declared in self.ranges}
        general = {name: size if size > 1 or other not in sets.get(name, EVERY) else other for name, size in sizes}
        return replace(self, hints=general)

    def shape_env(self) -> ShapeEnv:
        """What is known of sizes before the module runs."""
        declared = [condition for condition in self.ranges if condition.name in self.hints]
        return ShapeEnv(
            hints={**self.hints, **self.larger},
            facts=Facts.declared(declared),
            guards={(relation, True): Guard(relation, by_user=True, ends_run=True) for relation in self._related()},
            decides_at=self.decides_at,
            keeps_numbers_in=self.numbers_in,
            next_unknown=self.first_unknown,
        )

    def _related(self) -> list[Relation]:
        """``relations``, of the sizes that are left."""
        found: list[Relation | bool] = list(self.relations)
        for done in self.specializations:
            value = {str(done.size.as_symbol()): done.value}
            found = [each.at(value) if isinstance(each, Relation) else each for each in found]
        return [each for each in found if isinstance(each, Relation) and each.symbols() <= self.hints.keys()]

    def range_of(self, name: str) -> Condition | None:
        """What the size is declared with."""
        return next((condition for condition in self.ranges if condition.name == name), None)

    def specialized(self, done: Specialization) -> Attempt:
        """With the number or the other size for one that was a symbol; everything else as in the first attempt."""
        name = str(done.size.as_symbol())
        leaves = [
            replace(
                leaf,
                axes={
                    axis: size.substitute({name: done.value}) if isinstance(size, Dim) else size  # type: ignore[misc]
                    for axis, size in leaf.axes.items()
                },
            )
            for leaf in self.arguments.leaves
        ]
        arguments = replace(self.arguments, leaves=leaves)
        return replace(
            self,
            arguments=arguments,
            ranges=self._ranges_after(name, done.value),
            specializations=(*self.specializations, done),
            larger={},
            without_larger=None,
            whole=True,
            traced=frozenset(),
            without_numbers=None,
            change=str(done),
        ).at_sample()

    def at_sizes(self, sizes: Mapping[str, int]) -> Attempt:
        """With numbers for all sizes, as eager PyTorch has them."""
        leaves = [
            replace(
                leaf,
                axes={
                    axis: size.substitute(sizes) if isinstance(size, Dim) else size  # type: ignore[misc]
                    for axis, size in leaf.axes.items()
                },
            )
            for leaf in self.arguments.leaves
        ]
        return replace(self, arguments=replace(self.arguments, leaves=leaves), hints={}, larger={}, ranges=())

    def _ranges_after(self, name: str, value: object) -> tuple[Condition, ...]:
        """A size that becomes another one hands its range on, unless that has one of its own."""
        other = value.as_symbol() if isinstance(value, Dim) else None
        declared = self.range_of(name)
        if declared is None or other is None or self.range_of(other) is not None:
            return self.ranges
        return (*self.ranges, of_size(other, declared))

    def mends_numbers(self, env: ShapeEnv) -> bool:
        """Whether a run turned sizes into numbers in files where ``int`` and ``float`` can keep them sizes."""
        files = env.numbers_in - self.numbers_in
        return bool(files and env.specializations) and self.keeps_numbers and self.strategy == "fake"

    def reason(self) -> str:
        """Why the graph comes from this strategy, for the report."""
        if self.first_failure is not None:
            return own_run_failed(self.first_failure)
        if self.options.rung == "auto":
            return "the module ran on fake tensors as it is: its own Python, no traced copy to compare with"
        return "asked for" + ("; checked against the module's own run" if self.strategy == "symbolic" else "")

    def __str__(self) -> str:
        return self.strategy + (f": {self.change}" if self.change else "")


class Reason(Enum):
    """What an attempt failed of, as far as another attempt may do better."""

    ERROR = "an error"
    COMPOSITE = "composite operators cannot be seen whole: the module transforms functions or takes gradients"
    WRITTEN = "a tensor is written in place that a statement, which was run without asking, may give as it is"
    NO_BRANCH = "statements that a test by data guards, which were recorded as a branch, do more than change tensors"
    GRADIENTS = "the module takes gradients, which are off"
    PLAIN_NUMBER = "Python turns a size that only the data gives into a plain number"
    INDEX = "brackets fail, in which torch wants plain numbers in the place of sizes"
    REAL_NUMBER = "Python turns a real number that only the data gives into a plain one"


@dataclass(frozen=True)
class Recorded:
    """An attempt that ran to its end."""

    attempt: Attempt
    captured: Captured
    shape_env: ShapeEnv


@dataclass(frozen=True)
class Failed:
    """An attempt that did not."""

    attempt: Attempt
    error: BaseException
    reason: Reason = Reason.ERROR
    library_code: CodeType | None = None
    """The function of a library that decides by data, where it has a branch for traced code that does not."""
    numbers_in: frozenset[str] = frozenset()
    """Names of files that turned sizes into numbers before."""
    sizes: frozenset[str] = frozenset()
    """By which Python decides, and of whose branches one or both cannot be in the file."""
    unmet: tuple[Relation, ...] = ()
    """Equalities of sizes that were asked for last, and did not hold."""


Outcome: TypeAlias = Recorded | Failed


def own_run_failed(error: BaseException) -> str:
    """One line about why torch.export takes the place of the module's own run."""
    text = f"{type(error).__name__}: {str(error)[:200]}"
    if isinstance(error, Fx2OnnxError):
        text = f"[{error.code}] {error.what}" + (f"   ({error.where})" if error.where else "")
    return f"the module's own run on fake tensors failed: {text}"
