"""Value ranges of an ONNX file over declared ranges of its inputs: bounds of its outputs and of their rounding, and what may go wrong.

Bounds follow node by node (``walk.py``), so that they hold for all inputs in the ranges, at the sizes that were taken. They may be far
wider than what inputs give: a finding is *shown* where one of a few inputs of the ranges has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.stack_frames import public
from fx2onnx.irx.given import as_file
from fx2onnx.irx.inference import without_maps
from fx2onnx.judge.engines import ENGINES, Run
from fx2onnx.judge.feeds import conditions_of, inputs_of, taken_feeds
from fx2onnx.proof.domains import ValueRanges
from fx2onnx.proof.nodes import Array, OpenedFile
from fx2onnx.proof.spans import Interval, limits_of, unit_of
from fx2onnx.proof.walk import Walk, widened

SAMPLES = 4
"""Inputs of the ranges that are run: both ends, and random ones."""


def parse_ranges(text: str) -> dict[str, tuple[float, float]]:
    """``x=0:1,y=-1:1`` as numbers by input. Raises UserError E001."""
    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, told = part.rpartition("=")
        ends = told.split(":")
        if name in found or not name or not _is_range(ends):
            what = f"gives two ranges for {name!r}" if name in found else f"{part!r} is no range"
            raise UserError("E001", f"--ranges {what}", next="write INPUT=LOW:HIGH, such as --ranges x=0:1")
        found[name] = float(ends[0]), float(ends[1])
    return found


def _is_range(given: Any) -> bool:
    """Return whether something is two numbers, the lower one first."""
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        return False
    return not isinstance(given, str) and low <= high


@public
def value_ranges(
    model: Any, ranges: Mapping[str, tuple[float, float]], *, sizes: Mapping[str, int] | None = None
) -> ValueRanges:
    """Bound every value of an ONNX file, and its rounding, for all inputs in ``ranges``: ``{"x": (0, 1)}``.

    An input that ``ranges`` leaves out may be any number of its dtype. sizes: numbers for dynamic sizes; default: small ones.

    Raises: UserError E001 for a name that is no input, or a range of none; E302, E303 for a file that cannot be read.
    """
    with as_file(model) as path:
        file = OpenedFile(path)
    ranges = dict(ranges)
    for name, given in ranges.items():
        if name not in file.inputs:
            raise UserError(
                "E001", f"ranges: the file has no input {name!r}", next=f"its inputs: {', '.join(file.inputs)}"
            )
        if not _is_range(given):
            what = f"ranges: {name}={given!r} is no range"
            raise UserError("E001", what, next="give (low, high): two numbers with low <= high")
    with np.errstate(all="ignore"):
        return start(file, ranges, sizes or {}).run()


def start(file: OpenedFile, ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, int]) -> Walk:
    """A pass over a file: spans of its inputs, and what a few inputs give at each node."""
    names = list(dict.fromkeys(name for node in file.proto.graph.node for name in node.output if name))
    run = ENGINES["runner"](file.with_outputs(names))
    outputs = list(dict.fromkeys([*file.outputs, *names]))
    model = ir.from_proto(without_maps(file.proto))
    taken = next(iter(taken_feeds(inputs_of(model), partial(_run_within, run, ranges), conditions_of(model), sizes)))
    samples = [{**taken.feeds, **dict(zip(outputs, taken.results, strict=True))}]
    feeds: list[dict[str, Array]] = [{} for _ in range(SAMPLES)]
    generator = np.random.default_rng(0)
    spans: dict[str, Interval] = {}
    for name in file.inputs:
        like = np.asarray(taken.feeds[name])
        if like.dtype.kind in "OUS":
            for each in feeds:
                each[name] = taken.feeds[name]
            continue
        least, most = limits_of(like.dtype)
        low, high = map(float, ranges.get(name, (least, most)))
        if not least <= low <= high <= most:
            what = f"ranges: {name}={low:g}:{high:g} is not within {like.dtype}"
            raise UserError("E001", what, next=f"its numbers are from {least:g} to {most:g}")
        if like.dtype.kind in "iub" and math.ceil(low) > math.floor(high):
            what = f"ranges: {name}={low:g}:{high:g} has no number of {like.dtype}"
            raise UserError("E001", what, next="give a range that holds an integer")
        spans[name] = _on_grid(np.full(like.shape, low), np.full(like.shape, high), like.dtype)
        ends = [np.full(like.shape, end) for end in (low, high)]
        drawn = [_drawn(generator, low, high, like.shape) for _ in range(SAMPLES - 2)]
        for each, array in zip(feeds, ends + drawn, strict=True):
            each[name] = _fed(array, like.dtype)
    wide, failed = [], False
    for each in feeds:
        try:
            samples.append({**each, **dict(zip(outputs, run(each), strict=True))})
            wide.append({name: widened(array) for name, array in each.items()})
        except (Fx2OnnxError, ValueError, IndexError):
            failed = True
    found = ValueRanges({name: samples[0][name].shape for name in file.inputs})
    return Walk(file, spans, samples, wide, found, failed=failed)


def _run_within(run: Run, ranges: Mapping[str, tuple[float, float]], feeds: dict[str, Array]) -> list[Any]:
    """The outputs on ``feeds``; where they are none that the file runs on, such as divisors of 0, on numbers of the ranges in their place."""
    generator = np.random.default_rng(0)
    for shares in ((0, 1), (1, 1), (0, 0), (0.5, 0.5)):
        try:
            return run(feeds)
        except (Fx2OnnxError, ValueError, IndexError):
            for name in sorted(ranges.keys() & feeds.keys()):
                low, high = np.clip(ranges[name], *limits_of(feeds[name].dtype))
                ends = (float(low * (1 - share) + high * share) for share in shares)
                feeds[name] = _fed(_drawn(generator, next(ends), next(ends), feeds[name].shape), feeds[name].dtype)
    return run(feeds)


def _drawn(generator: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> Array:
    return np.asarray(generator.uniform(low / 2, high / 2, shape)) * 2  # high - low may overflow


def _fed(array: Array, dtype: np.dtype[Any]) -> Array:
    return (np.rint(array) if dtype.kind in "iub" else array).astype(dtype)


def _on_grid(low: Array, high: Array, dtype: np.dtype[Any]) -> Interval:
    """Numbers of the dtype: an end that integers lack is the next one inside, and floats are rounded as they are fed."""
    if unit_of(dtype):
        low, high = (each.astype(dtype).astype(np.float64) for each in (low, high))
    else:
        low, high = np.ceil(low), np.floor(high)
    return Interval(low, high, np.zeros(low.shape))
