"""The outputs of all engines on one set of inputs, compared with eager PyTorch's. float64 and other roundings run once,
and only where asked for."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fx2onnx.base.errors import first_line
from fx2onnx.judge import tolerance
from fx2onnx.judge.constants import EQUAL_STAGES, FEWER_STAGES, STAGES, TRANSFORM_RUNS, TRANSFORM_UNITS
from fx2onnx.judge.engines import Array
from fx2onnx.judge.movements import INEXACT_TRANSFORMS, Movements, larger_units
from fx2onnx.judge.tolerance import Grain, Judged, Scale
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.verify.eager import Eager
from fx2onnx.verify.float_values import SPOILING, WITHOUT_NUMBERS
from fx2onnx.verify.interface import Interface, contradiction
from fx2onnx.verify.module_state import Unsteady, draws_of_python, other_draws
from fx2onnx.verify.noise import Recording
from fx2onnx.verify.rounded_weights import as_module_has_it
from fx2onnx.verify.rounding import Moved, Unmoved
from fx2onnx.verify.samples import TriedSample
from fx2onnx.verify.unordered import open_places, without_open
from fx2onnx.verify.wide import Regular

HABIT = "{} differs from eager PyTorch on the inputs {}, and another engine agrees with it: ONNX says nothing of such numbers"
"""A note of the verdict."""
FROM_ONE_ON = "{}: of {} {}, as eager PyTorch does: the sizes that a file declares hold where no size is 0"
"""A note of the verdict."""
CUT_SHORT = "{}: to judge {} takes too long"
"""A line for what was left out: a comparison that takes too long."""
UNDEFINED = "{}: eager PyTorch gives something else each time for {}"
"""A line for what was left out: outputs without a fixed value."""
SINGULAR = "{}: a singular matrix decides what {} is"
"""A line for what was left out: outputs that depend on a singular matrix."""
WITHOUT_ORDER = (
    "{}: on {} the module chooses among NaN or equal infinities, or reads the sign of NaN: ONNX says nothing of either"
)
"""A line for what was left out: outputs that ONNX does not define."""


class ComparedOutputs:
    """The outputs of eager PyTorch, and the facts that a comparison with them needs."""

    def __init__(
        self,
        eager: Eager,
        file: Interface,
        tensors: Sequence[torch.Tensor],
        recording: Recording,
        expected: Sequence[Array],
        unknown: frozenset[int],
        verdict: Verdict,
        sample: TriedSample,
        longest: float = math.inf,
    ) -> None:
        """``recording``: of eager PyTorch's run on these inputs; ``longest``: seconds that one more may take."""
        self._eager, self._file = eager, file
        self._verdict, self._sample = verdict, sample
        self._tensors, self._draws, self._longest = tensors, recording.draws, longest
        self._expected, self._unknown = expected, unknown
        self._scales: dict[int, Scale] = {}
        self._grain = file.grain
        self._exact: Sequence[Array] | None = None
        self._tried_float64 = False
        self._open: Sequence[Array | bool] | None = None
        self._tried_order = not recording.has_no_order
        self.runs = 0
        """The cost of the comparisons in runs of eager PyTorch: a run in float64, or with other rounding, counts
        twice."""
        self._is_cut_short = False
        """True if a run for a comparison was ended early."""
        self._is_unsteady = False
        """True if eager PyTorch gives something else each time on these inputs."""

    def judge(self, results: Mapping[str, Sequence[Any]]) -> None:
        """A row for each output of each engine."""
        verdict, sample = self._verdict, self._sample
        found: list[Row] = []
        open_rows: list[tuple[Row, int, Array]] = []
        for engine, result in results.items():
            for index, name in enumerate(self._file.outputs[: len(self._expected)]):
                if index >= len(result):
                    break
                got = np.asarray(result[index])
                others = [
                    np.asarray(other[index]) for key, other in results.items() if key != engine and len(other) > index
                ]
                declared = contradiction(self._file.declared[name], got.shape, got.dtype, sample.sizes)
                if declared and sample.is_empty and not tolerance.structure_problem(got, self._expected[index]):
                    verdict.note(FROM_ONE_ON.format(sample.name, name, declared))
                    declared = ""
                row = Row(engine, name, 0.0, 0.0, True, sample.name)
                row, got, is_open = self._judged(row, index, got, others, declared)
                if is_open:
                    open_rows.append((row, index, got))
                else:
                    found.append(row)
            if len(self._expected) != len(result):
                problem = f"{len(result)} outputs, eager PyTorch has {len(self._expected)}"
                found.append(Row.failed(engine, "(all)", sample.name, problem))
        is_lenient = sample.values in self._file.by_any_engine
        if is_lenient:
            kept = _without_habits([*found, *(row for row, _, _ in open_rows)], verdict)
            found = [row for row in found if row in kept]
            open_rows = [each for each in open_rows if each[0] in kept]
        before = len(verdict.rows)
        verdict.rows += found
        if open_rows:
            verdict.rows += self._judged_by_movements(open_rows)
        if is_lenient:
            verdict.rows[before:] = _without_habits(verdict.rows[before:], verdict)
        if draws_of_python(self._eager.root) and not all(row.ok for row in verdict.rows[before:]):
            with contextlib.suppress(TimeoutError), other_draws(self._eager.root):
                self._compare_again()
        why = UNDEFINED if self._is_unsteady else CUT_SHORT
        if (self._is_cut_short or self._is_unsteady) and sample.name != "sample":
            texts = [why.format(sample.name, row.output) for row in verdict.rows[before:] if not row.ok]
            verdict.left_out += texts
            if texts and not self._is_unsteady:
                verdict.incomplete = verdict.incomplete or texts[0]
            verdict.rows[before:] = [row for row in verdict.rows[before:] if row.ok]

    def _judged(
        self, row: Row, index: int, got: Array, others: Sequence[Array], declared: str
    ) -> tuple[Row, Array, bool]:
        """The row by the cheapest rule, the output as it is compared, and whether another rule may settle it."""
        want = self._expected[index]
        if self._grain.epsilon:
            got = as_module_has_it(got, want)
        row, got, is_open = self._by_first_judges(row, index, got, others)
        if not row.ok and index not in self._unknown:
            is_without_order = self._without_order()
            closed = without_open(got, want, is_without_order[index]) if is_without_order else got
            if closed is not got:
                self._verdict.note(WITHOUT_ORDER.format(row.output, row.inputs))
                row, got, is_open = self._by_first_judges(replace(row, ok=True, problem=""), index, closed, others)
        if declared and not row.problem:
            return Row.failed(row.engine, row.output, row.inputs, declared), got, False
        return row, got, is_open and not declared

    def _by_first_judges(self, row: Row, index: int, got: Array, others: Sequence[Array]) -> tuple[Row, Array, bool]:
        want = self._expected[index]
        problem = self._problem(index, got, want)
        if problem:
            failed = Row.failed(row.engine, row.output, row.inputs, problem)
            return failed, got, self._may_have_other_rows(index, got)
        if index in self._unknown:
            return row, got, False
        if self._sample.values in WITHOUT_NUMBERS:
            got = tolerance.where_it_says_something(got, want, places=self._sample.values not in SPOILING)
        row = self._settled(row, index, got, want, others)
        return row, got, not row.ok

    def _without_order(self) -> Sequence[Array | bool] | None:
        """The numbers of each output that depend on the order of NaN; None where none does."""
        if not self._tried_order:
            self._tried_order = True
            try:
                self._open = open_places(self._run, self._expected)
            except Exception as cause:  # forward is the user's code
                self._verdict.note(
                    f"the module does not run where NaN is ordered otherwise ({first_line(cause)[:120]})"
                )
        return self._open

    def _run(self, mode: EagerMode) -> list[Array]:
        """Eager PyTorch as the mode has it."""
        self.runs += 2
        try:
            return self._eager.moved(self._tensors, self._draws, mode, self._longest)
        except TimeoutError:
            self._is_cut_short = True
            raise

    def _problem(self, index: int, got: Array, want: Array) -> str:
        """The problem beyond numbers; for an output whose numbers, and sizes perhaps, are random, dtype and rank count."""
        if index in self._unknown:
            if got.ndim != want.ndim:
                return f"shape {list(got.shape)}, eager PyTorch has {list(want.shape)}"
            want = np.empty(got.shape, want.dtype)
        return tolerance.structure_problem(got, want)

    def _may_have_other_rows(self, index: int, got: Array) -> bool:
        """Return whether all that is wrong is the number of rows where the file leaves it open: rounding may decide it."""
        if index in self._unknown or self._sample.values in WITHOUT_NUMBERS:
            return False
        want = self._expected[index]
        is_of_its_kind = not tolerance.structure_problem(got, np.empty(got.shape, want.dtype))
        return is_of_its_kind and got.ndim == want.ndim and got.shape != want.shape

    def _settled(self, row: Row, index: int, got: Array, want: Array, others: Sequence[Array]) -> Row:
        """The row by the first three rules."""
        scale = None
        if not tolerance.is_exact(want) and got.shape == want.shape:
            scale = self._scales.get(index) or self._scales.setdefault(index, Scale.of(want, self._grain))
        return _filled(row, tolerance.judged(got, want, scale, others, lambda: self._exact_of(index)))

    def _exact_of(self, index: int) -> Array | None:
        exact = self._in_float64()
        return None if exact is None or index >= len(exact) else exact[index]

    def _in_float64(self) -> Sequence[Array] | None:
        if not self._tried_float64:
            self._tried_float64 = True
            self.runs += 2
            try:
                self._exact = self._eager.in_float64(self._tensors, self._draws, self._longest)
            except TimeoutError:
                self._is_cut_short = True
            except Exception as cause:  # forward is the user's code, on tensors of a kind that it may not know
                self._verdict.note(f"no float64 judge: the module does not run in float64 ({first_line(cause)[:120]})")
        return self._exact

    def _judged_by_movements(self, rows: Sequence[tuple[Row, int, Array]]) -> list[Row]:
        """The rows by the last rule, which runs until each is right, or known to stay wrong."""
        judged = [row for row, _, _ in rows]
        left = {place for place, (row, _, _) in enumerate(rows) if not row.problem.startswith(tolerance.NAN_PLACES)}
        movements = {index: Movements(self._expected[index], self._grain) for _, index, _ in rows}
        seeds = itertools.count(1)
        has_transforms = has_singular = False
        is_known = any(not row.ok for row in self._verdict.rows)  # then it is not worth as many runs
        larger = 1.0
        for place, (count, units) in enumerate(STAGES[: FEWER_STAGES if is_known else None]):
            if larger > 1 and units == STAGES[1][1]:
                continue
            is_due = bool(left) or not units or has_singular
            modes = [self._moved(next(seeds), larger * units) for _ in range(count if is_due else 0)]
            moved = self._settle(judged, rows, left, movements, modes)
            has_transforms |= any(mode.has_transforms for mode in modes)
            has_singular |= any(mode.has_singular for mode in modes)
            if not units:
                self._require_steady(moved)
            if place == 1 and left and not is_known:
                larger = self._larger_units(moved)
            if count > 1:
                left -= {place for place in left if self._is_beyond_rounding(rows[place], movements)}
        for count, units in () if is_known else EQUAL_STAGES:
            is_open = any(movements[rows[place][1]].changes_shape for place in left)
            modes = [self._moved(next(seeds), units, keeps_equal=True) for _ in range(count if is_open else 0)]
            self._settle(judged, rows, left, movements, modes)
        for place in left:
            row, index, got = rows[place]
            has_no_run = not movements[index].runs and got.shape == self._expected[index].shape
            if has_no_run and not row.problem and index in self._scales and self._exact is None:
                judged[place] = _filled(row, tolerance.by_scale(got, self._expected[index], self._scales[index]))
        inexact = {place for place in left if rows[place][0].engine in INEXACT_TRANSFORMS}
        if has_transforms and inexact:
            movements = {index: Movements(self._expected[index], self._grain) for index in movements}
            modes = [self._moved(next(seeds), STAGES[1][1], TRANSFORM_UNITS) for _ in range(TRANSFORM_RUNS)]
            self._settle(judged, rows, inexact, movements, modes)
        return self._without_singular(judged, rows) if has_singular else judged

    def _without_singular(self, judged: list[Row], rows: Sequence[tuple[Row, int, Array]]) -> list[Row]:
        """The rows without those that are off where a singular matrix decides what comes out."""
        given: Sequence[Array] = ()
        with contextlib.suppress(Exception):  # of what has no solution for any solver
            given = self._run(Regular())
        depends = {
            index for _, index, _ in rows if index >= len(given) or not _is_same(given[index], self._expected[index])
        }
        kept = [row for row, (_, index, _) in zip(judged, rows, strict=True) if row.ok or index not in depends]
        for name in dict.fromkeys(row.output for row in judged if row not in kept):
            self._verdict.left_out.append(SINGULAR.format(self._sample.name, name))
        return kept

    def _is_beyond_rounding(self, given: tuple[Row, int, Array], movements: Mapping[int, Movements]) -> bool:
        """Return whether it has another number of rows than eager PyTorch, whose own number rounding does not change."""
        _, index, got = given
        return got.shape != self._expected[index].shape and not movements[index].changes_shape

    def _moved(self, seed: int, units: float, transform_units: float = 0.0, *, keeps_equal: bool = False) -> Moved:
        is_recurrent, epsilon = self._file.is_recurrent, self._grain.epsilon
        return Moved(seed, units, transform_units, epsilon, is_recurrent=is_recurrent, keeps_equal=keeps_equal)

    def _settle(
        self,
        judged: list[Row],
        rows: Sequence[tuple[Row, int, Array]],
        left: set[int],
        movements: Mapping[int, Movements],
        modes: Sequence[Moved],
    ) -> Sequence[Array]:
        """Some more runs, and what they settle. Gives the last one's outputs; none where the module does not run so."""
        moved: Sequence[Array] = ()
        for mode in modes:
            try:
                moved = self._run(mode)
            except Exception as cause:  # forward is the user's code
                self._verdict.note(
                    f"the module does not run where its numbers move by rounding ({first_line(cause)[:120]})"
                )
                return ()
            for index, movement in movements.items():
                if index < len(moved):
                    movement.add(moved[index])
                    movement.is_by_rows &= not mode.has_inner_codes
        for place in sorted(left) if modes else ():
            row, index, got = rows[place]
            found = movements[index].judge(got)
            if found.ok:
                self._verdict.note(_explanation(row, got, self._expected[index], movements[index]))
                judged[place] = _filled(row, found)
                left.discard(place)
        return moved

    def _require_steady(self, again: Sequence[Array]) -> None:
        """Note where eager PyTorch gives something else than before: on some inputs kernels read what nobody wrote.
        ``again``: what it gave where at most equal numbers were chosen among otherwise.
        """
        if again and not self._is_as_before(again):
            self._compare_again()

    def _compare_again(self) -> None:
        """Note whether a further run gives something else. Raises: Unsteady on the example inputs."""
        self._is_unsteady = not self._is_as_before(self._run(Unmoved()))
        if self._is_unsteady and self._sample.name == "sample":
            raise Unsteady(self._eager.root, self._eager.arguments.objects())

    def _is_as_before(self, again: Sequence[Array]) -> bool:
        pairs = zip(self._expected, again, strict=False)
        return all(
            index in self._unknown or _is_alike(one, other, self._grain) for index, (one, other) in enumerate(pairs)
        )

    def _larger_units(self, moved: Sequence[Array]) -> float:
        """The factor by which eager PyTorch itself is off from float64 in units of the later stages, seen at the output
        that says most of it; ``moved``: a run with the units of the first one.
        """
        if not moved or all(map(tolerance.is_exact, self._expected)):
            return 1.0
        each = zip(self._expected, self._in_float64() or (), moved, strict=False)
        known = [larger_units(*three, self._grain) for index, three in enumerate(each) if index not in self._unknown]
        return max(known, default=1.0)


def _without_habits(rows: Sequence[Row], verdict: Verdict) -> list[Row]:
    """The rows without those that are wrong of outputs that another engine has right."""
    right = {row.output for row in rows if row.ok}
    habits = [row for row in rows if not row.ok and row.output in right]
    for row in habits:
        verdict.note(HABIT.format(row.engine, row.inputs))
    return [row for row in rows if row not in habits]


def _is_same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=not tolerance.is_exact(other))


def _is_alike(want: Array, again: Array, grain: Grain) -> bool:
    if want.shape != again.shape or tolerance.is_exact(want):
        return _is_same(again, want)
    return not tolerance.wrong_places(again, want) and tolerance.by_difference(again, want, Scale.of(want, grain)).ok


def _filled(row: Row, found: Judged) -> Row:
    scale = found.scale or row.scale
    return replace(
        row,
        max_abs_error=found.error,
        allowed=found.allowed,
        ok=found.ok,
        problem=found.problem,
        scale=scale,
        by=found.by,
    )


def _explanation(row: Row, got: Array, want: Array, movement: Movements) -> str:
    if got.shape != want.shape:
        shapes = f"shape {list(want.shape)} or {list(got.shape)}"
        return f"{row.output}: eager PyTorch has {shapes}, by how float32's numbers are rounded"
    what = (
        f"{movement.largest:.0f} numbers differ"
        if tolerance.is_exact(want)
        else f"the numbers differ by up to {movement.largest:.2g}"
    )
    return f"{row.output}: {what} where rounding in the module is done in another way, in eager PyTorch, too"
