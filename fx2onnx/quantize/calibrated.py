"""A plan whose weights of products are fitted to inputs (``gptq.py``, and AWQ here), as many at a time as memory is for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.memory import free_bytes
from fx2onnx.quantize.accuracy import operands_of
from fx2onnx.quantize.calibration import Data
from fx2onnx.quantize.gptq import Collector, Moments, Operand, gptq
from fx2onnx.quantize.options import Quantize
from fx2onnx.quantize.places import QuantizationPlan, WeightPlace
from fx2onnx.quantize.schemes import Array, Codes, Scheme, blocked, nearest, ranges

RATIOS = 20
"""Exponents that are tried, from 0 on in equal steps below 1."""
SEARCH_ROWS = 512
"""The most rows, at equal distances, that stand for all in the search of the exponent."""
WIDE_BLOCK = 512
"""Larger blocks are compared by the diagonal alone."""
_TILE_NUMBERS = 1 << 22


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight [rows, columns] and what its codes are."""

    rows: Array
    scheme: Scheme
    block: int
    dtype: np.dtype[Any]


def best_channels(layers: Sequence[Layer], gram: Array, sizes: Array) -> Array | None:
    """The factors for the columns of layers that read the same; None where nothing is better than 1.

    sizes: the mean magnitude of each input. Source: Lin et al.: AWQ (2023), 3.2; ``s = sizes ** a``, brought around 1.
    """
    few = [layer.rows[:: -(-len(layer.rows) // SEARCH_ROWS)] for layer in layers]
    best, channels = np.inf, None
    for step in range(RATIOS):
        scale = np.maximum(sizes.astype(np.float64), 1e-4 * max(float(sizes.max()), 1e-30)) ** (step / RATIOS)
        tried = (scale / np.sqrt(scale.max() * scale.min())).astype(np.float32)
        error = 0.0
        for layer, rows in zip(layers, few, strict=True):
            codes = nearest(rows, layer.scheme, layer.block, layer.dtype, channels=tried)
            error += error_of(codes.values(rows.shape[1]) - rows, gram)
        if error < best:
            best, channels = error, tried if step else None
    return channels


def with_ranges(layer: Layer, gram: Array, channels: Array | None) -> Codes:
    """The nearest codes with, for each block, the range that makes its part of the outputs change least.

    Source: the same, and its code (``auto_clip``).
    """
    columns, block = layer.rows.shape[1], layer.block
    within = _gram_of_blocks(gram, channels, columns, block)
    rows_of_tile = max(_TILE_NUMBERS // columns, 1)
    made = []
    for start in range(0, len(layer.rows), rows_of_tile):
        rows = layer.rows[start : start + rows_of_tile]
        blocks = blocked(rows if channels is None else rows * channels, block)
        made.append(ranges(blocks, layer.scheme, layer.dtype, functools.partial(_error, within))[2])
    return nearest(
        layer.rows, layer.scheme, block, layer.dtype, method="awq", channels=channels, shrink=np.concatenate(made)
    )


def error_of(off: Array, gram: Array) -> float:
    """The squares of ``off @ x``, summed over rows and inputs."""
    return float(np.einsum("rk,rk->", off @ gram, off, dtype=np.float64))


def _error(within: Array, off: Array) -> Array:
    if within.ndim == 2:
        return np.asarray(np.einsum("rbk,bk,rbk->rb", off, within, off))
    moved = np.matmul(off.transpose(1, 0, 2), within).transpose(1, 0, 2)
    return np.asarray(np.einsum("rbk,rbk->rb", moved, off))


def _gram_of_blocks(gram: Array, channels: Array | None, columns: int, block: int) -> Array:
    """[blocks, block, block] of the inputs that are divided by ``channels``; of wide blocks [blocks, block], the diagonal."""
    size = np.ones(columns, np.float32) if channels is None else 1 / channels
    if block > WIDE_BLOCK:
        return np.asarray(blocked((np.diagonal(gram) * size * size)[None], block)[0])
    blocks = -(-columns // block)
    found = np.zeros((blocks, block, block), np.float32)
    for index in range(blocks):
        part = slice(index * block, min((index + 1) * block, columns))
        count = part.stop - part.start
        found[index, :count, :count] = gram[part, part] * size[part] * size[part, None]
    return found


SHARE = 0.25
"""The share of the free memory for the sums of the inputs of layers that are fitted in one go."""
LEAST_BYTES = 64 << 20
DAMPINGS = (0.01, 0.1, 1.0, 10.0)
"""Dampings of GPTQ: the first is the usual one; the others are tried if it gives nothing better on the rows held
out."""
_BYTES = 4 * 2
"""The bytes for a pair of columns: one sum of the rows, one of those held out."""


@dataclass(frozen=True, eq=False)
class Unit:
    """Weights that read the same operands."""

    operands: tuple[Operand, ...]
    places: list[WeightPlace]

    @property
    def bytes(self) -> int:
        return _BYTES * len(self.operands) * self.places[0].weight.columns ** 2


@dataclass(frozen=True)
class CalibratedPlan:
    """The plan with its new codes, and by weight what they are worth: errors of the outputs, of their own size."""

    plan: QuantizationPlan
    layers: dict[str, dict[str, Any]]


def fitted(model: ir.Model, plan: QuantizationPlan, options: Quantize, data: Data) -> CalibratedPlan:
    """Weights of matrix products fitted to the calibration data; others are to be rounded to the nearest.

    Raises: UserError E401 for data that does not fit, E001 where no weight is one of a product.
    """
    units = _units(plan.places)
    if not units:
        raise UserError(
            "E001",
            f"there is no weight that {options.fitting} could fit",
            why="it fits weights of two axes that matrix products read",
            next="leave out the calibration data",
        )
    collector = Collector(data, model)
    made: dict[int, WeightPlace] = {}
    said: dict[str, dict[str, Any]] = {}
    for group in _groups(units, max(int(SHARE * free_bytes()), LEAST_BYTES)):
        wanted = {operand: unit.places[0].weight.columns for unit in group for operand in unit.operands}
        moments = collector.moments(wanted)
        for unit in group:
            whole = reduce(Moments.plus, [moments[operand] for operand in unit.operands])
            for place, codes, worth in _fit(unit, whole, options):
                made[id(place)] = replace(place, weight=replace(place.weight, given=codes))
                said[place.name] = worth
    return CalibratedPlan(QuantizationPlan([made.get(id(place), place) for place in plan.places], plan.kept), said)


def _units(places: Sequence[WeightPlace]) -> list[Unit]:
    found: dict[tuple[tuple[int, bool], ...], Unit] = {}
    for place in places:
        ways = {way for way, _ in place.readers}
        if len(place.weight.sizes) != 2 or ways & {"conv", "gather"} or place.weight.factor is not None:
            continue
        operands = dict.fromkeys(_operand(node, value) for node, value in operands_of(place))
        if not operands or any(operand.value.const_value is not None for operand in operands):
            continue
        key = tuple(sorted((id(operand.value), operand.is_turned) for operand in operands))
        found.setdefault(key, Unit(tuple(operands), [])).places.append(place)
    return list(found.values())


def _operand(node: ir.Node, value: ir.Value) -> Operand:
    turned = node.attributes.get("transA") if node.op_type == "Gemm" else None
    return Operand(value, turned is not None and bool(turned.as_int()))


def _groups(units: Sequence[Unit], most_bytes: int) -> Iterator[list[Unit]]:
    group: list[Unit] = []
    for unit in units:
        if group and sum(each.bytes for each in group) + unit.bytes > most_bytes:
            yield group
            group = []
        group.append(unit)
    if group:
        yield group


def _fit(unit: Unit, moments: Moments, options: Quantize) -> Iterator[tuple[WeightPlace, Codes | None, dict[str, Any]]]:
    """The quantized values of each weight, and how good they are; none where rounding to the nearest is as good."""
    layers = [
        Layer(
            place.weight.finite(place.weight.array(), 0, place.weight.rows),
            place.weight.scheme,
            place.weight.block,
            place.weight.source.dtype.numpy(),
        )
        for place in unit.places
    ]
    if not moments.rows:
        for place in unit.places:
            yield place, None, {"method": "nearest", "why": "the calibration data does not reach it"}
        return
    channels = None
    if options.fitting == "awq" and len(unit.operands) == 1 and not unit.operands[0].is_turned:
        channels = best_channels(layers, moments.gram, moments.magnitudes / moments.rows)
    if channels is not None and not _is_worth(layers, channels, moments):
        channels = None
    for place, layer in zip(unit.places, layers, strict=True):
        usual = nearest(layer.rows, layer.scheme, layer.block, layer.dtype)
        before = _errors(usual, layer, moments)
        if options.fitting == "awq":
            codes = _better_ranges(layer, moments, channels)
            found = _errors(codes, layer, moments)
        else:
            codes, found = _by_gptq(layer, moments, before, options)
        worth: dict[str, Any] = {
            "method": codes.method,
            **found,
            **{f"{name}_nearest": before[name] for name in before},
        }
        if channels is None and _judged(found) >= _judged(before):
            yield place, None, {"method": "nearest", "why": f"{options.fitting} was no better", **before}
            continue
        yield place, codes, worth


def _by_gptq(
    layer: Layer, moments: Moments, before: dict[str, float], options: Quantize
) -> tuple[Codes, dict[str, float]]:
    tried: list[tuple[Codes, dict[str, float]]] = []
    for damping in DAMPINGS:
        codes = gptq(
            layer.rows, moments.gram, layer.scheme, layer.block, layer.dtype,
            act_order=options.act_order, damping=damping,
        )  # fmt: skip
        tried.append((codes, _errors(codes, layer, moments)))
        if _judged(tried[-1][1]) < _judged(before):
            break
    return min(tried, key=lambda pair: _judged(pair[1]))


def _better_ranges(layer: Layer, moments: Moments, channels: Array | None) -> Codes:
    """AWQ's codes, with smaller ranges where these are better on the rows held out, too."""
    whole = nearest(layer.rows, layer.scheme, layer.block, layer.dtype, method="awq", channels=channels)
    fitted_to = with_ranges(layer, moments.gram, channels)
    return min((whole, fitted_to), key=lambda codes: _judged(_errors(codes, layer, moments)))


def _is_worth(layers: Sequence[Layer], channels: Array, moments: Moments) -> bool:
    """Return whether layers that share ``channels`` are better with them, together."""
    gram = moments.held if moments.held_rows else moments.gram
    sums = [
        sum(
            error_of(
                nearest(each.rows, each.scheme, each.block, each.dtype, channels=by).values(each.rows.shape[1])
                - each.rows,
                gram,
            )
            for each in layers
        )
        for by in (channels, None)
    ]
    return sums[0] < sums[1]


def _errors(codes: Codes, layer: Layer, moments: Moments) -> dict[str, float]:
    """The relative change of the outputs on the calibration data and on the rows held out."""
    off = codes.values(layer.rows.shape[1]) - layer.rows
    found = {"calibration": _share(off, layer.rows, moments.gram)}
    if moments.held_rows:
        found["held_out"] = _share(off, layer.rows, moments.held)
    return found


def _share(off: Array, rows: Array, gram: Array) -> float:
    size = error_of(rows, gram)
    return float(np.sqrt(max(error_of(off, gram), 0.0) / size)) if size > 0 else 0.0


def _judged(errors: dict[str, float]) -> float:
    return errors.get("held_out", errors["calibration"])
