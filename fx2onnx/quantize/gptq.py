"""GPTQ, and the moments of inputs that it needs: columns are rounded one after the other, and what is left of each is made up for by those that come later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.quantize.calibration import Data
from fx2onnx.quantize.schemes import Array, Codes, Scheme, blocked, ranges

STEP = 128
"""Columns whose error is put on the others in one product."""
_LEAST = 64
"""Triangles below this are inverted whole."""


def gptq(
    rows: Array,
    gram: Array,
    scheme: Scheme,
    block: int,
    dtype: np.dtype[Any],
    *,
    act_order: bool = False,
    damping: float = 0.01,
) -> Codes:
    """Codes of ``rows`` [rows, columns] that make ``rows @ x`` change little for inputs x with the products ``gram`` = sum(x x^T).

    act_order: columns with the largest inputs first; scales are then those of the weight as it is, else those of what is left of it
    where a block begins. damping: of the mean of the diagonal, which is added to it.

    Source: Frantar, Ashkboos, Hoefler, Alistarh: GPTQ (2022), algorithm 1; ranges of the least squares are ``mse`` of its code. A
    column without inputs is rounded to the nearest.
    """
    size = np.diagonal(gram).astype(np.float64)
    order = np.argsort(-size, kind="stable") if act_order else np.arange(len(size))
    factor = _inverse_factor(gram[np.ix_(order, order)] if act_order else gram, damping)
    left = np.ascontiguousarray(rows.T[order] if act_order else rows.T, np.float32)
    grid = _Grid(rows, scheme, block, dtype, is_static=act_order)
    codes = np.empty((len(left), len(rows)), scheme.held_as)
    for start, stop in _parts(len(left), block):
        part = left[start:stop]
        errors = np.empty_like(part)
        for place, column in enumerate(range(start, stop)):
            if not act_order and column % block == 0:
                grid.set(column // block, left[column : column + block])
            codes[column], numbers = grid.rounded(order[column] // block, part[place])
            errors[place] = (part[place] - numbers) / factor[column, column]
            part[place + 1 :] -= factor[column, column + 1 : stop, None] * errors[place]
        left[stop:] -= factor[start:stop, stop:].T @ errors
    found = np.empty_like(codes)
    found[order] = codes
    filled = _filled(found.T, grid, scheme, block)
    return Codes.of(scheme, "gptq", filled, grid.scales, grid.zeros)


def _parts(columns: int, block: int) -> Iterator[tuple[int, int]]:
    """Columns that are rounded before the others hear of it. A block begins in no part of others: its scale hangs on all before it."""
    span = block * max(STEP // block, 1)
    for first in range(0, columns, span):
        last = min(first + span, columns)
        for start in range(first, last, STEP if block > STEP else span):
            yield start, min(start + STEP, last) if block > STEP else last


class _Grid:
    """Scales and zero points, all known before or each set where its block begins."""

    def __init__(self, rows: Array, scheme: Scheme, block: int, dtype: np.dtype[Any], *, is_static: bool) -> None:
        self.scheme = scheme
        self.block = block
        count = -(-rows.shape[1] // block)
        if is_static:
            self.scales, self.zeros, _ = ranges(blocked(rows, block), scheme, dtype, squares)
        else:
            self.scales = np.ones((len(rows), count), dtype)
            self.zeros = np.zeros((len(rows), count), np.uint8) if scheme.has_zeros else None

    def set(self, index: int, columns: Array) -> None:
        """The scale of a block from its columns, [up to block, rows]."""
        scales, zeros, _ = ranges(blocked(columns.T, self.block), self.scheme, self.scales.dtype, squares)
        self.scales[:, index : index + 1] = scales
        if self.zeros is not None and zeros is not None:
            self.zeros[:, index : index + 1] = zeros

    def rounded(self, index: int, numbers: Array) -> tuple[Array, Array]:
        """The codes of one column, and what they stand for."""
        scales = self.scales[:, index]
        zeros = None if self.zeros is None else self.zeros[:, index]
        codes = self.scheme.codes(numbers[:, None], scales, zeros)
        return codes[:, 0], self.scheme.values(codes, scales, zeros)[:, 0].astype(np.float32)


def squares(off: Array) -> Array:
    """The sums over the last axis."""
    return np.asarray(np.einsum("rbk,rbk->rb", off, off))


def _filled(codes: Array, grid: _Grid, scheme: Scheme, block: int) -> Array:
    """[rows, columns] as [rows, blocks, block], with the code of 0 behind a short block."""
    rows, columns = codes.shape
    blocks = grid.scales.shape[1]
    whole = scheme.codes(np.zeros((rows, blocks, block), np.float32), grid.scales, grid.zeros)
    whole.reshape(rows, -1)[:, :columns] = codes
    return whole


def _inverse_factor(gram: Array, damping: float) -> Array:
    """The upper triangle U with ``U^T U`` the inverse of the damped ``gram``."""
    damped = gram.astype(np.float64)
    size = np.diagonal(damped).copy()
    damped[np.diag_indices_from(damped)] += damping * size.mean() + np.where(size == 0, size.mean() or 1.0, 0)
    # gram = R R^T with R an upper triangle, by the lower one of the gram turned round; U is R's inverse
    turned = np.linalg.cholesky(damped[::-1, ::-1])
    found: Array = _inverted(np.ascontiguousarray(turned[::-1, ::-1])).astype(np.float32)
    return found


def _inverted(upper: Array) -> Array:
    """The inverse of an upper triangle, by halves."""
    size = len(upper)
    if size <= _LEAST:
        return np.asarray(np.triu(np.linalg.inv(upper)))
    half = size // 2
    first, last = _inverted(upper[:half, :half]), _inverted(upper[half:, half:])
    whole = np.zeros_like(upper)
    whole[:half, :half], whole[half:, half:] = first, last
    whole[:half, half:] = -first @ (upper[:half, half:] @ last)
    return whole


HELD_OUT = 8
"""One run of so many, or one row of one run, is held out, and measures what is fitted."""


class Operand(NamedTuple):
    """The operand of a product beside its weight: a value, and whether its first axis is the reduced one."""

    value: ir.Value
    is_turned: bool


@dataclass(eq=False)
class Moments:
    """Sums over the rows that a product was given: x x^T, and the magnitudes."""

    gram: Array
    held: Array
    """The same sums of the rows held out, as ``gram``."""
    magnitudes: Array
    rows: int = 0
    held_rows: int = 0

    @classmethod
    def of(cls, columns: int) -> Moments:
        """The moments of no rows."""
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
