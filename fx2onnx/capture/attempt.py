"""One attempt to capture a module and its outcome, as values: the driver changes one thing, and tries again.

An ``Attempt`` is what is asked for and, group by group, what remedies set; a group whose remedy was not needed has its defaults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.options import CaptureOptions, Patches, TracedCode
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.python.outside import OutsideState, outside_of
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording.decisions import Branching
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY
from fx2onnx.torchcompat.modules import ModuleTree


@dataclass
class Budget:
    """The runs of the module that one capture may take, and how long it may begin new ones; an operator's reruns are part of a run."""

    runs: int
    seconds: float
    spent: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def spend(self, change: str, runs: int = 1) -> None:
        """Take one run, which ``change`` made necessary, or none for a call of a submodule that is run alone.

        Raises UserError E105 where no run or no time is left; the first run may always be.
        """
        taken_s = time.monotonic() - self.began_s
        if self.spent and (self.spent + runs > self.runs or taken_s >= self.seconds):
            raise UserError(
                "E105",
                f"the module is not captured after {self.spent} runs of it in {taken_s:.0f} s",
                why=f"a capture may take {self.runs} runs and {self.seconds:.0f} s"
                + (f"; the last change was: {change}" if change else ""),
                next="export with fewer dynamic sizes: leave some out of dynamic_shapes",
            )
        self.spent += runs


@dataclass(frozen=True)
class Request:
    """The task of a capture, which is the same in all of its attempts."""

    root: torch.nn.Module
    tree: ModuleTree
    """The modules and weights of ``root``, which each run leaves as they were."""
    options: CaptureOptions
    keep: Callable[[Any], bool]
    """True for an overload that stays whole; others are split by PyTorch's decompositions."""
    patches: Patches
    """Patches of library functions, in place while the module runs."""
    optional: frozenset[str] = frozenset()
    """Sizes that may become static, since nobody asked for them by name."""
    declared: frozenset[str] = frozenset()
    """Sizes that are declared by a ``torch.export.Dim``."""
    relations: tuple[Relation, ...] = ()
    """Relations that the user declares between sizes."""
    untranslated: UserError | None = None
    """The error of a translation of both branches; this program is to have the example's only."""
    budget: Budget = field(default_factory=lambda: Budget(runs=MOST_RUNS, seconds=MOST_SECONDS))
    outside: OutsideState = field(default_factory=lambda: outside_of(()))
    """The tensors that forward keeps outside of the module."""


MOST_RUNS = 1_000
MOST_SECONDS = 3_600.0


@dataclass(frozen=True)
class RunProgram:
    """The program that is run: the module, or one in its place."""

    strategy: str = "fake"
    """The module itself (``fake``), a traced copy (``symbolic``) or torch.export's program (``export``)."""
    module: torch.nn.Module | None = None
    """The program that the strategy made of the module; None until it has."""
    own_failure: BaseException | None = None
    """The failure of the module's own run, where torch.export is tried in its place."""


@dataclass(frozen=True)
class RunSizes:
    """The sizes at which the module runs, and what is known of them before."""

    hints: Mapping[str, int] = field(default_factory=dict)
    """The size of each symbol at which comparisons are decided."""
    stand_in: int = 2
    """The size in the place of a sample's size of 0 or 1."""
    decides_at: Mapping[str, int] = field(default_factory=dict)
    """Sizes at which Python branches, whatever the hints are."""
    has_texts_of_sample: bool = False
    """True if ``str(size)`` gives the example's number."""
    next_unbacked: int = 0
    """The least number of a symbol for a data-dependent size."""
    ranges: tuple[Condition, ...] = ()
    """The declared ranges of sizes, such as ``Dim("n", min=6)``."""
    specializations: tuple[Specialization, ...] = ()
    """The sizes that became numbers, or other sizes, in earlier attempts."""


@dataclass(frozen=True)
class Enlarged:
    """Larger sizes in the place of hints at which a derived size is 1."""

    hints: Mapping[str, int] = field(default_factory=dict)
    baseline: Recorded | None = None
    """The result of the run without them."""


@dataclass(frozen=True)
class Numbers:
    """The files in which Python's plain numbers are sizes or data-dependent numbers."""

    files: frozenset[str] = frozenset()
    """Names of files in which ``int`` and ``float`` of a size stay sizes."""
    takes_indices: bool = False
    """Sizes may be indices of tensors; else they are only where there are ``files``."""
    may_add_files: bool = True
    """Further files may be added; else Python's ``int`` and ``float`` stay where they are."""
    baseline: Recorded | None = None
    """The result of the run without ``files``."""
    has_arrays: bool = False  # NumPy's arrays in forward are tensors of the run
    without_arrays: Recorded | Failed | None = None  # the result of the run in which they were not
    failure: Failed | None = None
    """The failure of the run in which ``int(x)`` was a plain number."""


@dataclass(frozen=True)
class Operators:
    """The recording of operators and library functions."""

    pre_dispatch: bool = True
    """Composite operators are recorded whole, rather than as the operators that they consist of."""
    gradients: bool = False
    """Gradients are on, as ``forward`` takes some; else they are off, as in inference."""
    traced: TracedCode = frozenset()
    """Functions of libraries that take their branch for traced code."""
    compiling: SourceLocation | None = None
    """The line for which ``torch.compiler.is_compiling()`` is true, as in ``torch.export``; None: it is false."""


@dataclass(frozen=True)
class Baked:
    """Inputs whose sample values are constants of the graph."""

    names: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """A line about each that nobody asked to bake: why it had to be."""


@dataclass(frozen=True)
class Attempt:
    """A module, and how it is run on fake tensors."""

    request: Request
    arguments: Arguments
    program: RunProgram = RunProgram()
    sizes: RunSizes = RunSizes()
    enlarged: Enlarged = Enlarged()
    numbers: Numbers = Numbers()
    operators: Operators = Operators()
    branching: Branching = field(default_factory=Branching)
    baked: Baked = Baked()
    change: str = ""
    """The difference to the attempt before, in words."""

    @property
    def root(self) -> torch.nn.Module:
        return self.request.root

    @property
    def options(self) -> CaptureOptions:
        return self.request.options

    @property
    def is_own_run(self) -> bool:
        """True if the module itself runs."""
        return self.program.module is self.root

    def may_have_loops(self) -> frozenset[str]:
        """The sizes asked for by name, which must not become numbers; none once a run with loops was tried."""
        tried = self.branching.has_loops or self.branching.loop_failure or not self.operators.pre_dispatch
        return frozenset(self.sizes.hints.keys() - self.request.optional if self.is_own_run and not tried else ())

    def at_sample(self) -> Attempt:
        """The attempt at the example's sizes. 0 and 1 would hide what happens at all others. Raises UserError E105."""
        sizes, other = hints_of(self.arguments).items(), self.sizes.stand_in
        sets = {declared.name: declared.sizes for declared in self.sizes.ranges}
        general = {name: size if size > 1 or other not in sets.get(name, EVERY) else other for name, size in sizes}
        return replace(self, sizes=replace(self.sizes, hints=general))

    def shape_env(self) -> ShapeEnv:
        """The facts about sizes before the module runs."""
        hints = self.sizes.hints
        declared = [condition for condition in self.sizes.ranges if condition.name in hints]
        return ShapeEnv(
            hints={**hints, **self.enlarged.hints},
            facts=SizeFacts.declared(declared),
            guards={(relation, True): Guard(relation, by_user=True, ends_run=True) for relation in self._related()},
            decides_at=self.sizes.decides_at,
            has_texts_of_sample=self.sizes.has_texts_of_sample,
            keeps_numbers_in=self.numbers.files,
            next_unbacked=self.sizes.next_unbacked,
        )

    def _related(self) -> list[Relation]:
        """The relations that the user declares, of the sizes that are left."""
        found: list[Relation | bool] = list(self.request.relations)
        for done in self.sizes.specializations:
            value = {str(done.size.as_symbol()): done.value}
            found = [each.at(value) if isinstance(each, Relation) else each for each in found]
        return [each for each in found if isinstance(each, Relation) and each.symbols() <= self.sizes.hints.keys()]

    def range_of(self, name: str) -> Condition | None:
        """The range that the size is declared with."""
        return next((condition for condition in self.sizes.ranges if condition.name == name), None)

    def specialized(self, done: Specialization) -> Attempt:
        """The attempt with a number, or another size, for one that was a symbol; what depends on sizes starts afresh."""
        name = str(done.size.as_symbol())
        ranges = self._ranges_after(name, done.value)
        sizes = replace(self.sizes, ranges=ranges, specializations=(*self.sizes.specializations, done))
        return replace(
            self,
            arguments=self._arguments_at({name: done.value}),
            sizes=sizes,
            enlarged=Enlarged(),
            numbers=replace(self.numbers, baseline=None),
            operators=Operators(gradients=self.operators.gradients),
            change=str(done),
        ).at_sample()

    def at_sizes(self, sizes: Mapping[str, int]) -> Attempt:
        """The attempt with numbers for all sizes, as eager PyTorch has them."""
        return replace(
            self,
            arguments=self._arguments_at(sizes),
            sizes=replace(self.sizes, hints={}, ranges=()),
            enlarged=replace(self.enlarged, hints={}),
        )

    def _arguments_at(self, sizes: Mapping[str, DimLike]) -> Arguments:
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
        return replace(self.arguments, leaves=leaves)

    def _ranges_after(self, name: str, value: object) -> tuple[Condition, ...]:
        """A size that becomes another one hands its range on, unless that has one of its own."""
        other = value.as_symbol() if isinstance(value, Dim) else None
        declared = self.range_of(name)
        if declared is None or other is None or self.range_of(other) is not None:
            return self.sizes.ranges
        return (*self.sizes.ranges, road("other spellings of dynamic sizes").of_size(other, declared))

    def without_baselines(self) -> Attempt:
        """The attempt with no other result to fall back to."""
        enlarged, numbers = replace(self.enlarged, baseline=None), replace(self.numbers, baseline=None)
        return replace(self, enlarged=enlarged, numbers=numbers)

    def keeps_more_sizes(self, env: ShapeEnv) -> bool:
        """True if a run turned sizes into numbers in files where ``int`` and ``float`` can keep them sizes."""
        files = env.numbers_in - self.numbers.files
        may_be = self.numbers.may_add_files and self.program.strategy == "fake"
        return bool(files and env.specializations) and may_be

    def reason(self) -> str:
        """The reason why the graph comes from this strategy, for the report."""
        if self.program.own_failure is not None:
            return own_run_failed(self.program.own_failure)
        if self.options.strategy == "auto":
            return "the module ran on fake tensors as it is: its own Python, no traced copy to compare with"
        is_traced = self.program.strategy == "symbolic"
        return "asked for" + ("; checked against the module's own run" if is_traced else "")

    def __str__(self) -> str:
        return self.program.strategy + (f": {self.change}" if self.change else "")


SmallSizes: TypeAlias = frozenset[tuple[str, int]]
"""Sizes that are 1 together, or one that is 0."""


def asked_of_small(env: ShapeEnv, attempt: Attempt) -> dict[SmallSizes, Guard]:
    """Sizes of 0 or 1, and the first of Python's decisions that goes another way there."""
    found: dict[SmallSizes, Guard] = {}
    for guard in env.guards.values():
        if guard.by_user and env.facts.is_settled(guard.relation) is None:
            for small in small_sizes(guard.relation):
                is_of_inputs = all(name in attempt.sizes.hints for name, _ in small)
                if is_of_inputs and all(size in env.facts.sets.get(name, EVERY) for name, size in small):
                    found.setdefault(small, guard)
    return found


def small_sizes(relation: Relation) -> list[SmallSizes]:
    """Sizes of 0 or 1 at which alone the relation, true at the example's sizes, is false."""
    names = relation.symbols()
    if _is_of_a_size(relation) and not relation.is_true_at(dict.fromkeys(names, 1)):
        return [frozenset((name, 1) for name in names)]
    return [frozenset([(name, 0)]) for name in sorted(relation.sizes_beside_none())]


def _is_of_a_size(relation: Relation) -> bool:
    """True if a size, or a product of sizes, is compared with 0 or 1, and no difference of some."""
    sides = [arg for arg in relation.args if isinstance(arg, Dim)]
    return relation.compares_with_zero_or_one() and [*sides[0].terms.values()] == [1]


@dataclass(frozen=True)
class Recorded:
    """An attempt that ran to its end."""

    attempt: Attempt
    captured: Captured
    shape_env: ShapeEnv


@dataclass(frozen=True)
class Failed:
    """An attempt that did not run to its end."""

    attempt: Attempt
    error: BaseException
    reason: Reason = Reason.ERROR
    library_code: CodeType | None = None
    """The function of a library that decides by data, where it has a branch for traced code that does not."""
    numbers_in: frozenset[str] = frozenset()
    """Names of files that turned sizes into numbers before."""
    sizes: frozenset[str] = frozenset()
    """The sizes on which Python branches where the file cannot have both branches."""
    unmet: tuple[Relation, ...] = ()
    """Equalities of sizes that were asked for last, and did not hold."""
    has_turns: bool = False
    """Python had looped as often as a named size says, so that the error may depend on the example inputs."""


Outcome: TypeAlias = Recorded | Failed


def own_run_failed(error: BaseException) -> str:
    """One line about why torch.export takes the place of the module's own run."""
    if not isinstance(error, Fx2OnnxError):
        return f"the module's own run on fake tensors failed: {type(error).__name__}: {str(error)[:200]}"
    where = f"   ({error.where})" if error.where else ""
    return f"the module's own run on fake tensors failed: [{error.code}] {error.what}{where}"
