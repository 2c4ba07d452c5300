"""Rows in which rounding decides whether a number is NaN, and rows in which a fault makes one."""

from __future__ import annotations

import numpy as np

from fx2onnx.judge.movements import Movements

WANT = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def with_nan(*rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    found = WANT.copy()
    found[list(rows), 2] = np.nan
    return found


def moved(*runs: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Movements:
    movements = Movements(WANT)
    for run in runs:
        movements.add(run)
    return movements


def test_nan_is_right_in_rows_in_which_some_run_has_it() -> None:
    movements = moved(WANT, with_nan(3), with_nan(3, 7))
    assert movements.judge(with_nan(3)).ok
    assert movements.judge(with_nan(7)).ok
    assert movements.judge(WANT).ok


def test_nan_is_wrong_in_other_rows() -> None:
    assert not moved(WANT, with_nan(3), with_nan(3, 7)).judge(with_nan(3, 8)).ok
    assert not moved(WANT, WANT).judge(with_nan(3)).ok
