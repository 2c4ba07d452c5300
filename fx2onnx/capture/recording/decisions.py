"""Python's branches by data and by sizes in one run of a module: the choices that it is given, and those that it
made."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.values import Values
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import user_depth
from fx2onnx.torchcompat.modules import PATHS

Test: TypeAlias = torch.fx.Node | Relation
MAX_DECISIONS = 24
"""Decisions on one path: bodies of the file are nested as deeply."""
MOST_TURNS = 10
"""Turns of a ``while`` that are shape-dependent branches: each one's sizes are longer formulas, and such loops may be loops of the file."""
MOST_BEFORE_RECURSION = 8
"""Runs after which no function may call itself more often than in the first of them."""
MOST_NEEDED = 4
"""Decisions of a run that may be conditions instead, and have both branches in the file: each is a run of the module, at least."""

ONE_BRANCH = "the file has only the branch without the error"
"""The end of a warning about a ``try`` of which both branches cannot be in the file."""


class WrittenLater(BaseException):
    """A tensor is written that may share memory with another one at other sizes. Not an Exception, so that no ``except Exception``
    of the module swallows it.
    """


class IsNoBranch(BaseException):
    """Raised where a body changes more than a branch of the graph may. Not an Exception, so that no ``except Exception`` of the
    module swallows it.
    """


class FirstTurnDiffers(BaseException):
    """The first turn of the loop at ``where`` has to be run by itself. Not an Exception, so that no ``except Exception`` of the module
    swallows it.
    """

    def __init__(self, where: SourceLocation | None) -> None:
        super().__init__(f"the first turn of the loop at {where} is run by itself")
        self.where = where


class NoPathsPerCall(BaseException):
    """Calls of modules of ``kind`` cannot be joined by themselves. Not an Exception, so that no ``except Exception`` of the module
    swallows it.
    """

    def __init__(self, kind: type, why: str) -> None:
        super().__init__(f"{kind.__name__}: {why}")
        self.kind = kind


@dataclass(frozen=True)
class Branching:
    """The recording of Python's decisions."""

    by_sizes: bool = True
    """Both branches of shape-dependent decisions are recorded, rather than the example's."""
    failure: BaseException | None = None
    """The reason why they are not."""
    has_noop_guards: bool = True
    """A statement that does nothing where its test is false is run without asking."""
    has_bodies: bool = True
    """Statements that a test by data guards are a branch within the run, where they may be."""
    by_counts: bool = True
    """A count that is one of a few numbers, as of chunks, is a shape-dependent decision rather than a condition."""
    has_loops: bool = False
    """Loops that run as often as a size says are loops of the file."""
    has_exits: bool = False  # so are loops of a fixed length in which data decides
    joins_branches: bool = False  # both ways of a decision in a turn are run one after the other, since there are many
    branches: frozenset[SourceLocation | None] = frozenset()
    """The places of decisions of which there were too many in a run."""
    first_turns: frozenset[SourceLocation | None] = frozenset()
    """The lines of such loops whose first turn is run by itself."""
    unrolled: Any = None
    """The outcome of the run without them, while they are tried."""
    loop_failure: BaseException | None = None
    """The reason why they are not."""
    per_call: frozenset[type] = frozenset()
    """Classes of submodules each call of which has the branches of its shape-dependent decisions to itself."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a decision in one run."""

    holds: bool
    first_unbacked: int = 0
    """The least number of a new symbol from here on, so that no two paths give one name to two sizes."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes at which the run goes on; empty for sizes near the example's."""


@dataclass(slots=True)
class Decision:
    """A decision that a run made, and how far its program was."""

    test: Test
    holds: bool
    is_by_sizes: bool
    """True if sizes decide, False if data does."""
    calls: int
    weights: int
    error: UserError
    """The error if the file cannot have both branches."""
    sizes: dict[str, int]
    """The sizes of symbols before it."""
    is_needed: bool = False
    """True if the decision is a condition of the file where it cannot have both branches."""
    modules: tuple[str, ...] = ()
    """The paths of the modules that ran, outermost first."""
    nested: int = 1
    """The number of calls, one within another, of the function that decides."""

    @property
    def where(self) -> SourceLocation | None:
        return self.error.where

    def is_as_sample(self) -> bool:
        """True if it is by sizes, and goes as it does at the sizes with which the run came to it."""
        return self.is_by_sizes and isinstance(self.test, Relation) and self.test.is_true_at(self.sizes) is self.holds


@dataclass(slots=True)
class DecisionTrace:
    """The choices that one run is given, and the decisions that it made.

    A shape-dependent decision without a choice goes as at the example's sizes. One by data ends the run: code of
    libraries may have a branch for traced code, which asks nothing.
    """

    choices: tuple[Choice, ...]
    by_sizes: bool = True
    """True if shape-dependent decisions have branches, too."""
    most: int = MAX_DECISIONS
    """The largest number of decisions in a run."""
    most_needed: int = 0
    """The largest number of decisions in a run that may be conditions instead."""
    sizes: set[str] = field(default_factory=set)
    """The sizes on which there were such decisions, in any run."""
    nested: int = 0
    """The largest number of calls of a function, one within another, in which the first run decided."""
    decisions: list[Decision] = field(default_factory=list)
    undecided: UserError | None = None
    """The error of a decision that ended the run."""

    def but(self, depth: int, choice: Choice) -> DecisionTrace:
        """For another run, which goes as this one up to its decision ``depth``, and there as ``choice`` says."""
        made = (Choice(decision.holds) for decision in self.decisions[len(self.choices) : depth])
        return replace(self, choices=(*self.choices[:depth], *made, choice), decisions=[], undecided=None)

    def is_full(self) -> bool:
        """Return whether a run came to as many decisions as may be conditions instead as are kept."""
        return sum(decision.is_needed for decision in self.decisions) >= self.most_needed

    def is_loop(self, error: UserError) -> bool:
        """Return whether the last decisions were those of a ``while`` that asks once more, each by sizes."""
        last, where = self.decisions[-MOST_TURNS:], error.where
        if len(last) < MOST_TURNS or where is None or any(not one.is_by_sizes or one.where != where for one in last):
            return False
        return linecache.getline(where.file, where.line).lstrip().startswith("while ")

    def choose(self, values: Values, env: ShapeEnv, test: Test, error: UserError, is_needed: bool = False) -> bool:
        """The outcome of the next decision. Raises ``error`` where there is no choice or are too many of them, or within
        the body of an operator's branch or loop.
        """
        if not values.is_outermost():
            raise error
        depth = len(self.decisions)
        is_by_sizes = isinstance(test, Relation) and not test.symbols() & env.unbacked
        if isinstance(test, Relation) and is_by_sizes:
            self.sizes |= test.symbols()
        if depth < len(self.choices):
            choice = self.choices[depth]
        elif is_by_sizes and depth < self.most and not self.is_loop(error):
            choice = Choice(bool(env.hint(test)))
        else:
            self.undecided = error
            raise error
        calls = sum(node.op == "call_function" for node in values.graph.nodes)
        weights = len(values.weights) if values.graph is values.root else 0  # a path of a call has them by name
        modules, nested = tuple(PATHS.stack), user_depth()
        self.nested = self.nested if self.choices else max(self.nested, nested)
        self.decisions.append(
            Decision(test, choice.holds, is_by_sizes, calls, weights, error, env.sizes(), is_needed, modules, nested)
        )
        env.chosen = choice.sizes
        env.next_unbacked = max(env.next_unbacked, choice.first_unbacked)
        return choice.holds

    def recursion(self, runs: int) -> UserError | None:
        """The error of a function that calls itself as often as a size says, more often than in the first of several ``runs``; None where
        none does.
        """
        last = max((one for one in self.decisions if one.is_by_sizes), key=lambda one: one.nested, default=None)
        if last is None or last.nested <= max(self.nested, 1) or runs <= MOST_BEFORE_RECURSION:
            return None
        names = ", ".join(sorted(self.sizes))
        return UserError(
            "E105",
            last.error.what,
            where=last.where,
            why=f"the function calls itself as often as {names} says, which a file cannot",
            next=(
                "write the recursion as a loop: step = 1; while step < x.shape[0]: ...; step *= 2; or as "
                "associative_scan(f, x, dim=0, combine_mode='generic') of torch._higher_order_ops.associative_scan",
                "or take an example whose sizes need all calls, where their number is limited",
                f"or make the size static (leave {names} out of dynamic_shapes)",
            ),
        )


def no_choices(by_sizes: bool, by_counts: bool) -> DecisionTrace:
    """The trace of a first run. ``by_counts``: a number of a few is a shape-dependent decision rather than a
    condition."""
    return DecisionTrace((), by_sizes, MAX_DECISIONS, MOST_NEEDED if by_counts else 0)
