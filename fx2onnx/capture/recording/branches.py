"""Python's branches on data as branches of the file: the module is run once for each outcome, and the programs joined.

A run notes its decisions. For each of them, from the last to the first, the module is run again with the other outcome; up to
the decision both programs are the same, and what follows becomes the two branches of an If. Such a run may have later
decisions of its own, so every run of the module is one path from the root of a tree.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.tracebacks import drop_frames
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Reason, Recorded
from fx2onnx.capture.recording.choices import Branches, Choice, NoScope
from fx2onnx.capture.recording.failed_branches import is_of_eager, sizes_of_branch, sizes_without_ones
from fx2onnx.capture.recording.joining import Join, Path, unjoined
from fx2onnx.capture.recording.size_checks import check_outputs
from fx2onnx.capture.shapes.shape_env import LOOP_IN_TENSORS
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import raises_in_eager
from fx2onnx.torchcompat.modules import ModuleTree

Node: TypeAlias = torch.fx.Node
MAX_PATHS = 16
"""Through decisions by data: a loop that Python leaves so has a path for each turn, and bodies nested as deeply."""
MAX_PATHS_BY_SIZES = 64
"""Through all decisions: each is a run of the module."""
MOST_NEEDED = 4
"""Decisions of a run that may be conditions instead, and have both branches in the file: each is a run of the module, at least."""
MOST_RUNS = 4
"""Of the module as a whole; where more are needed, paths are joined within the modules that decide by sizes, if possible."""
MOST_KINDS = 4
"""Sets of classes of modules that are tried for that."""
MAX_DECISIONS = 24
"""On one path: bodies of the file are nested as deeply."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that a statement, ``raise`` or ``assert``, ended: eager PyTorch ends there, too."""

    failed: Failed


Run: TypeAlias = Callable[[Attempt, Branches], Outcome]


def unlimited(attempt: Attempt) -> Branches:
    """No choices yet."""
    return Branches((), attempt.splits_by_sizes, MAX_DECISIONS, MOST_NEEDED if attempt.keeps_few else 0)


def joined_paths(run: Run, attempt: Attempt) -> Outcome:
    """The program of all paths. It fails with E104 where there are too many, or where two cannot be joined."""
    if attempt.scopes:
        found = _of_scopes(run, attempt)
        if isinstance(found, Recorded):
            return found
        attempt = replace(attempt, scopes=frozenset())
    branches = unlimited(attempt)
    exploration = Exploration(run, attempt)
    if attempt.strategy == "fake" and attempt.whole and not attempt.decides_at:
        exploration.most_runs = MOST_RUNS
    try:
        path = exploration.explored(branches)
    except _ManyPaths:
        scoped = _in_scopes(run, attempt, exploration.decided_in)
        if scoped is not None:
            return scoped
        branches = unlimited(attempt)
        path = Exploration(run, attempt).explored(branches)
    try:
        if isinstance(path, Path):
            return Recorded(attempt, path.captured, path.shape_env)
        return replace(path.failed if isinstance(path, Ended) else path, sizes=frozenset(branches.sizes))
    finally:
        del path  # this frame is behind the error's traceback


class _ManyPaths(Exception):
    """There are so many that they may be better joined within modules."""


def _in_scopes(run: Run, attempt: Attempt, decided_in: Collection[tuple[str, ...]]) -> Recorded | None:
    """The program with the branches of decisions within the modules that make them, if possible. ``decided_in``: the paths of the
    modules that ran, of each.
    """
    modules = {name: module for name, module in ModuleTree(attempt.root).named if module is not attempt.root}
    refused: set[type] = set()
    for _ in range(MOST_KINDS):
        kinds = _kinds(decided_in, modules, refused)
        found = _of_scopes(run, replace(attempt, scopes=frozenset(kinds))) if kinds else None
        if not isinstance(found, type):
            return found
        refused.add(found)
    return None


def _of_scopes(run: Run, attempt: Attempt) -> Recorded | type | None:
    """The program with the branches within the calls of modules of ``attempt.scopes``; the class of which that cannot be; or None."""
    path = Exploration(run, attempt).explored(unlimited(attempt))
    try:
        if isinstance(path, Path):
            return Recorded(attempt, path.captured, path.shape_env)
        failed = path.failed if isinstance(path, Ended) else path
        drop_frames(failed.error)
        return failed.error.kind if isinstance(failed.error, NoScope) else None
    finally:
        del path


def _kinds(
    decided_in: Collection[tuple[str, ...]], modules: Mapping[str, torch.nn.Module], refused: Collection[type]
) -> set[type]:
    """For each decision the class of the innermost module around it that was not refused; none where one has no such."""
    found = set()
    for names in decided_in:
        kinds = [type(modules[name]) for name in reversed(names) if name in modules]
        kind = next((kind for kind in kinds if kind not in refused), None)
        if kind is None:
            return set()
        found.add(kind)
    return found


class Exploration:
    """Of all paths through a module."""

    def __init__(self, run: Run, attempt: Attempt) -> None:
        self._run, self._attempt = run, attempt
        self._runs_left = MAX_PATHS_BY_SIZES
        self._by_data_left = MAX_PATHS - 1
        self.most_runs = 0
        """There may be no more, where it is not 0."""
        self.decided_in: dict[tuple[str, ...], None] = {}
        """The modules that ran where a size decided, outermost first."""

    def explored(self, branches: Branches) -> Path | Ended | Failed:
        """What a run with the choices gives, joined with those that decide otherwise where it had none."""
        given = len(branches.choices)
        path, branches = self._one(branches)
        try:
            self._runs_left -= 1
            self._count(branches)
            if isinstance(path, Path) and branches.decisions and self._attempt.mends_numbers(path.shape_env):
                error = branches.decisions[0].error
                return Failed(self._attempt, error, numbers_in=frozenset(path.shape_env.numbers_in))
            for depth in reversed(range(given, len(branches.decisions))):
                if isinstance(path, Failed):
                    return path
                if self._runs_left < depth - given + 1:
                    if branches.decisions[depth].is_needed and isinstance(path, Path):
                        path = _only(path, depth)
                        continue
                    return self._too_many(branches.decisions[-1].error, MAX_PATHS_BY_SIZES)
                path = self._with_other_way(path, branches, depth)
            return path
        finally:
            del path  # it may hold an error, behind whose traceback this frame is

    def _count(self, branches: Branches) -> None:
        """Raises _ManyPaths where there are more than that, or are sure to be."""
        decided_in = [decision.modules for decision in branches.decisions if decision.is_by_sizes]
        self.decided_in |= dict.fromkeys(decided_in)
        if (
            self.most_runs
            and MAX_PATHS_BY_SIZES - self._runs_left + len(decided_in) - len(branches.choices) > self.most_runs
        ):
            raise _ManyPaths

    def _one(self, branches: Branches) -> tuple[Path | Ended | Failed, Branches]:
        """One path: tests by data that there is no choice for hold."""
        while True:
            outcome = self._run(self._attempt, branches)
            try:
                if isinstance(outcome, Recorded):
                    return Path(outcome.captured, outcome.shape_env, branches.decisions), branches
                error, made = branches.undecided, len(branches.decisions)
                if error is None or error is not outcome.error or outcome.library_code is not None:
                    return (Ended(outcome) if _ends_by_raise(outcome) else outcome), branches
                drop_frames(error)
                if made >= MAX_DECISIONS:
                    return self._in_a_row(error, branches), branches
                if made >= min(self._runs_left - 1, self._by_data_left):
                    return self._too_many(error, MAX_PATHS), branches
                branches = branches.but(made, Choice(True))
            finally:
                del outcome
                error = None

    def _too_many(self, error: UserError, most: int, what: str = "paths") -> Failed:
        return Failed(self._attempt, unjoined(error, f"there are more than {most} {what} through forward"))

    def _in_a_row(self, error: UserError, branches: Branches) -> Failed:
        """Too many decisions of one run; where they are on one line, Python loops until a size is reached."""
        failed = self._too_many(error, MAX_DECISIONS, "decisions on a path")
        if {decision.where for decision in branches.decisions[1:]} != {error.where} or error.code != "E105":
            return failed
        refused = failed.error
        assert isinstance(refused, UserError)
        names = ", ".join(sorted(branches.sizes))
        ways = (LOOP_IN_TENSORS, f"or make the size static (leave {names} out of dynamic_shapes)")
        return Failed(self._attempt, UserError("E105", refused.what, where=refused.where, why=refused.why, next=ways))

    def _without_ones(self, other: Path, branches: Branches, depth: int) -> Path:
        """The way that was not taken at first, at sizes none of whose parts are 1, if there are such."""
        decision = branches.decisions[depth]
        sizes = sizes_without_ones(other.shape_env, decision)
        if sizes:
            again = self.explored(branches.but(depth, Choice(not decision.holds, other.shape_env.next_unknown, sizes)))
            if isinstance(again, Path) and not sizes_without_ones(again.shape_env, decision):
                return again
            if isinstance(again, Failed):
                drop_frames(again.error)
        other.shape_env.keeps_ones = True
        return other

    def _with_other_way(self, path: Path | Ended, branches: Branches, depth: int) -> Path | Ended | Failed:
        """``path``, and what there is where decision ``depth`` goes the other way."""
        decision = branches.decisions[depth]
        if not decision.is_by_sizes:
            if not self._by_data_left:
                return self._too_many(decision.error, MAX_PATHS)
            self._by_data_left -= 1
        first_unknown = path.shape_env.next_unknown if isinstance(path, Path) else 0
        other = self.explored(branches.but(depth, Choice(not decision.holds, first_unknown)))
        try:
            if isinstance(other, Failed) and other.reason is Reason.NO_BRANCH:
                return other
            if isinstance(path, Path) and isinstance(other, Failed) and decision.is_needed:
                drop_frames(other.error)
                return _only(path, depth)
            if isinstance(path, Path) and isinstance(other, Failed) and decision.is_by_sizes and is_of_eager(other):
                sizes = sizes_of_branch(self._run, other, path.shape_env, decision)
                if sizes is not None and not sizes:
                    return _only(path, depth)
                if sizes:
                    other = self.explored(branches.but(depth, Choice(not decision.holds, first_unknown, sizes)))
            if isinstance(path, Path) and isinstance(other, Path):
                other = self._without_ones(other, branches, depth)
                one, two = (path, other) if decision.holds else (other, path)
                join = Join(one, two, depth, decision.error)
                joined = join.path()
                self._runs_left += join.is_one_program
                return joined
            if isinstance(path, Path) and isinstance(other, Ended):
                return _only(path, depth)
            if isinstance(path, Ended) and isinstance(other, Path):
                return _only(other, depth)
            if isinstance(path, Path) and _is_of_several(path, depth):
                return _only(path, depth)
            return other
        except UserError as refusal:
            if isinstance(path, Path) and decision.is_needed:
                drop_frames(refusal)
                return _only(path, depth)
            return Failed(self._attempt, refusal)
        finally:
            del other, path


def _only(path: Path, depth: int) -> Path:
    """The path of one choice, since eager PyTorch ends with the other one."""
    decision, env = path.decisions[depth], path.shape_env
    test = decision.test
    if isinstance(test, Relation) and not test.symbols() & env.unbacked:
        taken = test if decision.holds else test.negated()
        supposed = {each: None for each in env.facts.supposed if each != taken}
        env.know(supposed=supposed)  # from here on it is said of the file
        env.note(taken, decision.where)
        return path
    if isinstance(test, Relation):
        taken, captured = test if decision.holds else test.negated(), path.captured
        env.take_for_true(taken, decision.where)
        check_outputs(captured.graph, captured.outputs, captured.symbols, {taken: decision.where})
        return path
    env.take_for_true(f"%{test.name} is {str(decision.holds).lower()}", decision.where)
    return path


def _is_of_several(path: Path, depth: int) -> bool:
    """Whether a decision by sizes asks if there are some of something, or more than one, and there are."""
    decision = path.decisions[depth]
    test = decision.test
    if not decision.is_by_sizes or not isinstance(test, Relation):
        return False
    return (test if decision.holds else test.negated()).tells_several()


def _ends_by_raise(failed: Failed) -> bool:
    """Whether a statement of forward's own code, or of ``torch.nn``, ended the run."""
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
