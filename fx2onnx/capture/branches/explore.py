"""Python's branches on data as branches of the file: the module is run once for each outcome, and the programs joined.

A run notes its decisions. For each of them, from the last to the first, the module is run again with the other outcome; up to
the decision both programs are the same, and what follows becomes the two branches of an If. Such a run may have later
decisions of its own, so every run of the module is one path from the root of a tree.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import drop_frames
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.branches.branch_sizes import Run, is_of_eager, sizes_of_branch, sizes_without_ones
from fx2onnx.capture.branches.merge import Merge, Path, on_one_way, unjoined
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording.decisions import ONE_BRANCH, Choice, DecisionTrace, NoPathsPerCall, no_choices
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.shapes.deciding import LOOP_IN_TENSORS, has_turns
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.asked_code import raises_in_eager
from fx2onnx.torchcompat.modules import ModuleTree

MAX_PATHS = 16
"""Paths through data-dependent decisions: a loop that Python leaves so has a path, and a nested body, for each turn."""
MAX_PATHS_BY_SIZES = 64
"""Paths through all decisions: each is a run of the module."""
MOST_RUNS = 4
"""Runs of the module as a whole; where more are needed, paths are joined within the modules that decide by sizes, if possible."""
MOST_KINDS = 4
"""Sets of classes of modules that are tried for that."""
First: TypeAlias = tuple[Outcome, DecisionTrace]
"""A run that was made already, and what it decided."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """A run that a statement, ``raise`` or ``assert``, ended: eager PyTorch ends there, too."""

    failed: Failed


def joined_paths(run: Run, attempt: Attempt, first: First | None = None) -> Outcome:
    """The program of all paths, of which ``first`` was run already. It fails with E104 where there are too many, or where two cannot
    be joined.
    """
    if attempt.branching.per_call:
        found = _joined_per_call(run, attempt)
        if isinstance(found, Recorded):
            return found
        attempt = _with_paths_per_call(attempt, frozenset())
    trace = undecided(attempt) if first is None else first[1]
    exploration = Exploration(run, attempt, first)
    first = None
    may_join_in_calls = (
        attempt.program.strategy == "fake" and attempt.operators.pre_dispatch and not attempt.sizes.decides_at
    )
    if may_join_in_calls:
        exploration.most_runs = MOST_RUNS
    try:
        path = exploration.explored(trace)
    except _ManyPaths:
        joined = _joined_in_deciding_modules(run, attempt, exploration.decided_in)
        if joined is not None:
            return joined
        trace = undecided(attempt)
        exploration = Exploration(run, attempt)
        path = exploration.explored(trace)
    try:
        if isinstance(path, Path):
            return Recorded(attempt, path.captured, path.shape_env)
        if (
            may_join_in_calls
            and isinstance(path, Failed)
            and path.reason is Reason.PATHS
            and exploration.decided_by_data
        ):
            decided_in = {**exploration.decided_in, **exploration.decided_by_data}
            joined = _joined_in_deciding_modules(run, attempt, decided_in)
            if joined is not None:
                return joined
        return replace(path.failed if isinstance(path, Aborted) else path, sizes=frozenset(trace.sizes))
    finally:
        del path  # this frame is behind the error's traceback


def undecided(attempt: Attempt) -> DecisionTrace:
    """The trace of a run that has no choices yet."""
    return no_choices(attempt.branching.by_sizes, attempt.branching.by_counts)


def _with_paths_per_call(attempt: Attempt, kinds: frozenset[type]) -> Attempt:
    return replace(attempt, branching=replace(attempt.branching, per_call=kinds))


class _ManyPaths(Exception):
    """Too many paths: they may be better joined within modules."""


def _joined_in_deciding_modules(run: Run, attempt: Attempt, decided_in: Collection[tuple[str, ...]]) -> Recorded | None:
    """The program with the branches of decisions within the modules that make them, if possible. ``decided_in``: the paths of the
    modules that ran, of each.
    """
    modules = {name: module for name, module in ModuleTree(attempt.root).named if module is not attempt.root}
    refused: set[type] = set()
    for _ in range(MOST_KINDS):
        kinds = _kinds(decided_in, modules, refused)
        found = _joined_per_call(run, _with_paths_per_call(attempt, frozenset(kinds))) if kinds else None
        if not isinstance(found, type):
            return found
        refused.add(found)
    return None


def _joined_per_call(run: Run, attempt: Attempt) -> Recorded | type | None:
    """The program with the branches within the calls of modules of ``attempt.branching.per_call``; the class of which that cannot be; or None."""
    path = Exploration(run, attempt).explored(undecided(attempt))
    try:
        if isinstance(path, Path):
            return Recorded(attempt, path.captured, path.shape_env)
        failed = path.failed if isinstance(path, Aborted) else path
        drop_frames(failed.error)
        return failed.error.kind if isinstance(failed.error, NoPathsPerCall) else None
    finally:
        del path


def _kinds(
    decided_in: Collection[tuple[str, ...]], modules: Mapping[str, torch.nn.Module], refused: Collection[type]
) -> set[type]:
    """For each decision the class of the innermost module around it that was not refused, if there is one."""
    around = ([type(modules[name]) for name in reversed(names) if name in modules] for names in decided_in)
    found = {next((kind for kind in kinds if kind not in refused), None) for kinds in around}
    return {kind for kind in found if kind is not None}


class Exploration:
    """The runs that follow all paths through a module, or through one call of a module. ``first``: one that was made already."""

    def __init__(self, run: Run, attempt: Attempt, first: First | None = None) -> None:
        self._run, self._attempt, self._first = run, attempt, first
        self._runs_left, self._by_data_left = MAX_PATHS_BY_SIZES, MAX_PATHS - 1
        self.most_runs = 0
        """The largest number of runs; 0 for no limit."""
        self.decided_in: dict[tuple[str, ...], None] = {}
        """The modules that ran where a size decided, outermost first."""
        self.decided_by_data: dict[tuple[str, ...], None] = {}
        """The modules that ran where data decided."""

    def explored(self, trace: DecisionTrace) -> Path | Aborted | Failed:
        """Run the module with these choices, run it again for the other outcomes of each further decision, and merge the results."""
        given = len(trace.choices)
        path, trace = self._one(trace)
        try:
            self._runs_left -= 1
            self._count(trace)
            if error := trace.recursion(MAX_PATHS_BY_SIZES - self._runs_left):
                return Failed(self._attempt, error, Reason.CALLS_ITSELF)
            if isinstance(path, Path) and trace.decisions and self._attempt.keeps_more_sizes(path.shape_env):
                error = trace.decisions[0].error
                return Failed(self._attempt, error, numbers_in=frozenset(path.shape_env.numbers_in))
            for depth in reversed(range(given, len(trace.decisions))):
                if isinstance(path, Failed):
                    return path
                if self._runs_left < depth - given + 1:
                    if trace.decisions[depth].is_needed and isinstance(path, Path):
                        path = _only(path, depth, is_alone=True)
                        continue
                    return self._too_many(trace.decisions[-1].error, MAX_PATHS_BY_SIZES)
                path = self._with_other_way(path, trace, depth)
            return path
        finally:
            del path  # it may hold an error, behind whose traceback this frame is

    def _count(self, trace: DecisionTrace) -> None:
        """Raises _ManyPaths where there are more than that, or are sure to be."""
        decided_in = [decision.modules for decision in trace.decisions if decision.is_by_sizes]
        self.decided_in |= dict.fromkeys(decided_in)
        self.decided_by_data |= dict.fromkeys(each.modules for each in trace.decisions if not each.is_by_sizes)
        runs = MAX_PATHS_BY_SIZES - self._runs_left + len(decided_in) - len(trace.choices)
        if self.most_runs and self.decided_in and runs > self.most_runs:
            raise _ManyPaths

    def _one(self, trace: DecisionTrace) -> tuple[Path | Aborted | Failed, DecisionTrace]:
        """One path: tests by data that there is no choice for hold."""
        while True:
            outcome = self._run(self._attempt, trace) if self._first is None else self._first[0]
            self._first = None
            try:
                if isinstance(outcome, Recorded):
                    return Path(outcome.captured, outcome.shape_env, trace.decisions), trace
                error, made = trace.undecided, len(trace.decisions)
                if error is None or error is not outcome.error or outcome.library_code is not None:
                    if _ends_by_raise(outcome):
                        return Aborted(outcome), trace
                    return replace(outcome, error=on_one_way(outcome.error, trace.decisions)), trace
                drop_frames(error)
                if made >= trace.most or trace.is_loop(error):
                    return self._in_a_row(error, trace), trace
                if made >= min(self._runs_left - 1, self._by_data_left):
                    return self._too_many(error, MAX_PATHS), trace
                trace = trace.but(made, Choice(True))
            finally:
                del outcome
                error = None

    def _too_many(self, error: UserError, most: int, what: str = "paths") -> Failed:
        reason = Reason.PATHS if error.code == "E104" else Reason.ERROR
        return Failed(self._attempt, unjoined(error, f"there are more than {most} {what} through forward"), reason)

    def _in_a_row(self, error: UserError, trace: DecisionTrace) -> Failed:
        """Too many decisions of one run; where they are on one line, Python loops until a size is reached."""
        failed = self._too_many(error, trace.most, "decisions on a path")
        is_loop = trace.is_loop(error) or {each.where for each in trace.decisions[1:]} == {error.where}
        if error.code != "E105" or not is_loop:
            return failed
        next = f"or make the size static (leave {', '.join(sorted(trace.sizes))} out of dynamic_shapes)"
        error = UserError("E105", error.what, where=error.where, why=failed.error.why, next=(LOOP_IN_TENSORS, next))  # type: ignore[attr-defined]
        return Failed(self._attempt, error, Reason.PATHS)

    def _without_ones(self, other: Path, trace: DecisionTrace, depth: int) -> Path:
        """The way that was not taken at first, at sizes none of whose parts are 1, if there are such."""
        decision = trace.decisions[depth]
        sizes = sizes_without_ones(other.shape_env, decision)
        if sizes:
            again = self.explored(trace.but(depth, Choice(not decision.holds, other.shape_env.next_unbacked, sizes)))
            if isinstance(again, Path) and not sizes_without_ones(again.shape_env, decision):
                return again
            if isinstance(again, Failed):
                drop_frames(again.error)
        other.shape_env.has_size_one_kernels = True
        return other

    def _with_other_way(self, path: Path | Aborted, trace: DecisionTrace, depth: int) -> Path | Aborted | Failed:
        """``path``, and what there is where decision ``depth`` goes the other way."""
        decision = trace.decisions[depth]
        if not decision.is_by_sizes:
            if not self._by_data_left:
                return self._too_many(decision.error, MAX_PATHS)
            self._by_data_left -= 1
        first_unbacked = path.shape_env.next_unbacked if isinstance(path, Path) else 0
        other = self.explored(trace.but(depth, Choice(not decision.holds, first_unbacked)))
        try:
            if isinstance(other, Failed) and other.reason in (Reason.NO_BRANCH, Reason.CALLS_ITSELF):
                return other
            if isinstance(path, Path) and isinstance(other, Failed) and decision.is_needed:
                drop_frames(other.error)
                return _only(path, depth, is_alone=True)
            if isinstance(path, Path) and isinstance(other, Failed) and decision.is_by_sizes and is_of_eager(other):
                sizes = sizes_of_branch(self._run, other, path.shape_env, decision)
                if sizes is not None and not sizes:
                    return _only(path, depth)
                if sizes:
                    other = self.explored(trace.but(depth, Choice(not decision.holds, first_unbacked, sizes)))
            if isinstance(path, Path) and isinstance(other, Path):
                other = self._without_ones(other, trace, depth)
                one, two = (path, other) if decision.holds else (other, path)
                merge = Merge(one, two, depth, decision.error)
                merged = merge.path()
                self._runs_left += merge.is_one_program
                return merged
            if isinstance(path, Path) and isinstance(other, Aborted):
                return _only(path, depth)
            if isinstance(path, Aborted) and isinstance(other, Path):
                return _only(other, depth)
            if isinstance(path, Path) and _is_of_several(path, depth):
                return _only(path, depth)
            return other
        except UserError as refusal:
            if isinstance(path, Path) and decision.is_needed:
                drop_frames(refusal)
                return _only(path, depth, is_alone=True)
            names = self._attempt.may_have_loops()
            return Failed(self._attempt, refusal, has_turns=isinstance(path, Path) and has_turns(path.shape_env, names))
        finally:
            del other, path


def _only(path: Path, depth: int, is_alone: bool = False) -> Path:
    """The path of one choice, since eager PyTorch ends with the other one, or, where it ``is_alone``, that cannot be in the file."""
    decision, env, test = path.decisions[depth], path.shape_env, path.decisions[depth].test
    if isinstance(test, Relation) and not test.symbols() & env.unbacked:
        taken = test if decision.holds else test.negated()
        supposed = {each: None for each in env.facts.supposed if each != taken}
        env.know(supposed=supposed)  # from here on it is said of the file
        env.note(taken, decision.where)
        return path
    if isinstance(test, Relation):
        taken, captured = test if decision.holds else test.negated(), path.captured
        env.assume(taken, decision.where)
        check_outputs(captured.graph, captured.outputs, captured.symbols, {taken: decision.where})
        return path
    if is_alone:
        path.captured.warnings.append(f"forward catches an error; {ONE_BRANCH}   ({decision.where})")
    env.assume(f"%{test.name} is {str(decision.holds).lower()}", decision.where)
    return path


def _is_of_several(path: Path, depth: int) -> bool:
    """True if the decision compares a size with 0 or 1, as in ``if n > 0``, and the size is larger on this path."""
    decision, test = path.decisions[depth], path.decisions[depth].test
    if not decision.is_by_sizes or not isinstance(test, Relation):
        return False
    return (test if decision.holds else test.negated()).tells_several()


def _ends_by_raise(failed: Failed) -> bool:
    """True if a ``raise`` or an ``assert`` in forward's own code, or in ``torch.nn``, ended the run."""
    cause = failed.error.__cause__
    traceback = cause.__traceback__ if cause is not None else None
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not raises_in_eager(traceback.tb_frame):
        return False
    names = {item.offset: item.opname for item in dis.get_instructions(traceback.tb_frame.f_code)}
    ended = names.get(traceback.tb_lasti) == "RAISE_VARARGS"
    if ended:
        drop_frames(failed.error)
    return ended
