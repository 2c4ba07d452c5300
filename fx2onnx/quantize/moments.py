"""The moments of the inputs of products on the calibration data: sums of squares, taken while the model runs; no value is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.quantize.calibration import Data
from fx2onnx.quantize.schemes import Array

HELD_OUT = 8
"""One run of so many, or one row of one run, is held out: what is fitted is judged by it."""


class Operand(NamedTuple):
    """The operand of a product beside its weight: a value, and whether its first axis is the reduced one."""

    value: ir.Value
    is_turned: bool


@dataclass(eq=False)
class Moments:
    """Sums over the rows that a product was given: x x^T, and the magnitudes."""

    gram: Array
    held: Array
    """Of the rows held out."""
    magnitudes: Array
    rows: int = 0
    held_rows: int = 0

    @classmethod
    def of(cls, columns: int) -> Moments:
        """Those of no rows."""
        gram = np.zeros((columns, columns), np.float32)
        return cls(gram, np.zeros_like(gram), np.zeros(columns, np.float64))

    def add(self, rows: Array, run: int, runs: int) -> None:
        """Rows [n, columns] of one run."""
        if runs == 1:
            cut = len(rows) - len(rows) // HELD_OUT
            self._add(rows[:cut])
            self._hold(rows[cut:])
        elif run % HELD_OUT == min(HELD_OUT, runs) - 1:
            self._hold(rows)
        else:
            self._add(rows)

    def _add(self, rows: Array) -> None:
        self.gram += rows.T @ rows
        self.magnitudes += np.abs(rows).sum(0, dtype=np.float64)
        self.rows += len(rows)

    def _hold(self, rows: Array) -> None:
        if len(rows):
            self.held += rows.T @ rows
            self.held_rows += len(rows)

    def plus(self, other: Moments) -> Moments:
        """The moments of the rows of both."""
        return Moments(
            self.gram + other.gram,
            self.held + other.held,
            self.magnitudes + other.magnitudes,
            self.rows + other.rows,
            self.held_rows + other.held_rows,
        )


@dataclass
class Collector:
    """Runs a model on the data, as often as it is asked for some of its values."""

    data: Data
    session: Any = field(init=False)
    model: ir.Model

    def __post_init__(self) -> None:
        from fx2onnx.runner import GraphOptimizationLevel, InferenceSession, SessionOptions

        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL  # values keep their names
        self.session = InferenceSession(self.model, options)
        self.data.check(self.session)

    def moments(self, wanted: Mapping[Operand, int]) -> dict[Operand, Moments]:
        """The moments of each operand with its number of columns. Raises UserError E401 for data that the model does not run on."""
        found = {operand: Moments.of(columns) for operand, columns in wanted.items()}
        by_name: dict[str, list[Operand]] = {}
        for operand in wanted:
            by_name.setdefault(operand.value.name or "", []).append(operand)
        count = len(self.data.runs)
        for run, feeds in enumerate(self.data.runs):

            def take(name: str, result: Any, run: int = run) -> None:
                for operand in by_name.get(name, ()):
                    rows = _rows(result, operand)
                    if not np.isfinite(rows).all():
                        raise self.data.unfit(
                            run, f"{name} becomes infinite or NaN in the model", next="smaller inputs, or other samples"
                        )
                    found[operand].add(rows, run, count)

            def observe(program: Any, step: Any, start_ns: int, end_ns: int, results: Sequence[Any]) -> None:
                del start_ns, end_ns
                for index, result in zip(step.outputs, results, strict=False):
                    if index >= 0:
                        take(program.slots[index].name, result)

            for name, array in feeds.items():
                take(name, array)
            try:
                with np.errstate(all="ignore"):
                    self.session.executor.run(self.session.check_feeds(feeds), observe)
            except UserError as error:
                if error.code == "E401":
                    raise
                raise self.data.unfit(run, error.what, error.why, error.next) from error
        return found


def _rows(result: Any, operand: Operand) -> Array:
    array = np.asarray(result)
    if operand.is_turned:
        array = array.T
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]), np.float32)
