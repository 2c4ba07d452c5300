"""Arrays beside arrays that a user has: how far apart they are, and whether they are as close as he wants."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError, first_line, no_such_file

Array: TypeAlias = np.ndarray[Any, Any]
BLOCK_ELEMENTS = 1 << 18
"""Elements that are compared at a time, as float64: of mapped weights no more than that is in memory."""


_UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error)


def read_npz(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of a .npz file by name. Raises: UserError E302."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise no_such_file(path) from error
    except _UNREADABLE as error:
        raise UserError("E302", f"cannot read '{path}' as a .npz file", why=first_line(error)) from error


def first_problem(given: Any, wanted: Any, problem_of: Callable[[Array, Array], str]) -> str:
    """The problem with the first array, also in sequences and maps, in which they differ; empty where they agree."""
    if wanted is None or given is None:
        return "" if wanted is given else f"{type(given).__name__} instead of {type(wanted).__name__}"
    if isinstance(wanted, dict):
        if not isinstance(given, dict) or list(given) != list(wanted):
            return "other keys"
        pairs = zip(given.values(), wanted.values(), strict=True)
    elif isinstance(wanted, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(wanted):
            return (
                f"{len(given)} items instead of {len(wanted)}" if isinstance(given, list | tuple) else "not a sequence"
            )
        pairs = zip(given, wanted, strict=True)
    else:
        return problem_of(np.asarray(given), np.asarray(wanted))
    return next(filter(None, (first_problem(one, other, problem_of) for one, other in pairs)), "")


def close_problem(one: Array, other: Array, rtol: float, atol: float) -> str:
    """The difference between two arrays, in words; empty where they agree within tolerances as ``numpy.isclose`` has
    them. NaN agrees with NaN."""
    if one.shape != other.shape:
        return f"shape {list(one.shape)} instead of {list(other.shape)}"
    if other.dtype.kind in "OUST" and one.dtype.kind in "OUST":
        wrong = int((one.astype(str) != other.astype(str)).sum())
        return f"{wrong} of {other.size} strings" if wrong else ""
    if other.dtype.kind == "V" and one.dtype.itemsize == other.dtype.itemsize:
        other = other.view(one.dtype)  # how numpy.savez spells bfloat16 and its like
    if one.dtype != other.dtype:
        return f"{one.dtype} instead of {other.dtype}"
    if one.dtype.kind not in "fiubc":
        one, other = one.astype(np.float64), other.astype(np.float64)
    close = np.isclose(one, other, rtol, atol, equal_nan=True) if one.dtype.kind in "fc" else one == other
    if close.all():
        return ""
    at = np.unravel_index(int(np.argmin(close)), close.shape)
    where = f"[{', '.join(map(str, at))}]"
    return f"{int((~close).sum())} of {close.size} values, first at {where}: {one[at]} instead of {other[at]}"


def bits_of(array: Array) -> Array:
    """Floats as integers of their bits: NaN is NaN."""
    return np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}")) if array.dtype.kind in "fV" else array


def largest_difference(before: Array, after: Array) -> tuple[float | None, float | None]:
    """The largest difference and the largest magnitude before, over what is a number on both sides; infinite where one
    side alone is none.
    """
    if "O" in (before.dtype.kind, after.dtype.kind):
        return None, None
    largest, scale = 0.0, 0.0
    for same, other in zip(_blocks(before), _blocks(after), strict=True):
        one, two = (block.astype(np.complex128 if block.dtype.kind == "c" else np.float64) for block in (same, other))
        scale = max(scale, float(np.abs(one[np.isfinite(one)]).max(initial=0)))
        if same.dtype == other.dtype and np.array_equal(bits_of(same), bits_of(other)):
            continue
        with np.errstate(invalid="ignore"):
            gap = np.abs(one - two)
        gap[(one == two) | (np.isnan(one) & np.isnan(two))] = 0
        largest = max(largest, float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max(initial=0)))
    return largest, scale


def _blocks(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for start in range(0, max(1, flat.size), BLOCK_ELEMENTS):
        yield flat[start : start + BLOCK_ELEMENTS]
