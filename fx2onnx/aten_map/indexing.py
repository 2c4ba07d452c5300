"""``x[...]`` with tensors: index, index_put, and their unsafe forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import nonzero_rows, where
from fx2onnx.aten_map.scattering import scattered, written_nd
from fx2onnx.aten_map.table.axes import INT64, as_plain, flat, flattened, inverse, is_empty, transpose, unsqueeze
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
BOOL = ir.DataType.BOOL
MASKS = frozenset([BOOL, ir.DataType.UINT8])
Indices = Sequence["ir.Value | None"]


@dataclass(slots=True)
class IndexPlan:
    """Integer indices by axis of the indexed tensor, and the dims they broadcast to."""

    axes: list[int]
    indices: list[ir.Value]
    common: Dims

    @property
    def is_adjacent(self) -> bool:
        """True if the indexed axes stand side by side: the result then has the index dims in their place."""
        return self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))

    def rest(self, rank: int) -> list[int]:
        return [axis for axis in range(rank) if axis not in self.axes]


def plan_of(op: Emit, indices: Indices) -> IndexPlan:
    """Masks become one vector of places an axis they cover."""
    axes: list[int] = []
    found: list[ir.Value] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
        elif op.dtype(index) in MASKS:
            rows = nonzero_rows(op, index)
            for place in range(op.rank(index)):
                axes.append(axis)
                found.append(op.Gather(rows, op.const(place), axis=0))
                axis += 1
        else:
            axes.append(axis)
            found.append(index)
            axis += 1
    return IndexPlan(axes, found, broadcast_dims(*(op.dims(index) for index in found)))


def coordinates(op: Emit, plan: IndexPlan) -> ir.Value:
    """[*common, number of indices]: what GatherND and ScatterND read."""
    parts = []
    for index in plan.indices:
        spread = op.expand(op.cast(index, INT64), plan.common)
        parts.append(unsqueeze(op, spread, len(plan.common)))
    if len(parts) == 1:
        return parts[0]
    return op.Concat(*parts, axis=-1)


def _linear(op: Emit, value: ir.Value, plan: IndexPlan) -> ir.Value:
    """Adjacent indices as one into the merged axis: no copy of ``value``, no expanded indices.

    A negative first index stays negative, which Gather allows; the others are made positive.
    """
    dims = op.dims(value)
    total = op.cast(plan.indices[0], INT64)
    for axis, index in zip(plan.axes[1:], plan.indices[1:], strict=True):
        known = op.integers(index)
        inner = op.cast(index, INT64)
        if known is None or min(known, default=0) < 0:
            inner = op.Mod(inner, op.size(dims[axis]))
        total = op.Add(op.Mul(total, op.size(dims[axis])), inner)
    merged = flattened(op, value, plan.axes[0], plan.axes[-1] + 1)
    return op.Gather(merged, total, axis=plan.axes[0], outputs=[op.result[0]])


def _compressed(op: Emit, value: ir.Value, mask: ir.Value, axis: int) -> ir.Value:
    """A single mask: ``Compress`` along the axes it covers, merged."""
    covered = op.rank(mask)
    merged = value if covered == 1 else flattened(op, value, axis, axis + covered)
    chosen = op.cast(mask, BOOL) if covered == 1 else flat(op, op.cast(mask, BOOL))
    return op.Compress(merged, chosen, axis=axis, outputs=[op.result[0]])


def indexed(op: Emit, value: ir.Value, indices: Indices) -> ir.Value:
    """``value[indices]`` as NumPy's advanced indexing has it."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if not given:
        return value
    if len(given) == 1:
        axis, index = given[0]
        if op.dtype(index) in MASKS:
            return _compressed(op, value, index, axis)
        return op.Gather(value, as_plain(op, index), axis=axis)
    plan = plan_of(op, indices)
    if len(plan.axes) == 1:
        return op.Gather(value, plan.indices[0], axis=plan.axes[0], outputs=[op.result[0]])
    if plan.is_adjacent and plan.axes[0] > 0:
        return _linear(op, value, plan)
    fronted = transpose(op, value, plan.axes + plan.rest(op.rank(value)))
    return op.GatherND(fronted, coordinates(op, plan), outputs=[op.result[0]])


@translates(aten._unsafe_masked_index.default)
def _unsafe_masked_index(op: Emit, self: ir.Value, mask: ir.Value, indices: Indices, fill: float) -> ir.Value:
    """_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor

    Indices that are masked out may be out of range: they are clamped first, to -size and size - 1.
    """
    if is_empty(op.dims(self)):
        raise UserError(
            "E203", "a masked look-up in a tensor without elements", next="leave the look-up out where there is none"
        )
    safe = _clamped(op, self, indices)
    return where(op, mask, indexed(op, self, safe), as_dtype(op, fill, op.dtype(self)))


def _clamped(op: Emit, value: ir.Value, indices: Indices) -> list[ir.Value | None]:
    found: list[ir.Value | None] = []
    for axis, index in enumerate(indices):
        if index is None:
            found.append(None)
            continue
        wide = op.cast(index, INT64)
        size = op.dims(value)[axis]
        first, last = op.size(-size), op.size(size - 1)
        floor = op.Where(op.Less(wide, first), first, wide)
        found.append(op.Where(op.Greater(floor, last), last, floor))
    return found


def _masked_put(
    op: Emit, value: ir.Value, mask: ir.Value, axis: int, source: ir.Value, accumulate: bool
) -> ir.Value | None:
    """A single mask and a source that does not depend on how many elements it chooses: ``Where``; else None."""
    covered, rank = op.rank(mask), op.rank(value)
    rest = rank - axis - covered
    dims = op.dims(source)
    if len(dims) > rest and dims[len(dims) - rest - 1] != 1:
        return None
    if len(dims) > rest:
        lead, tail = dims[: len(dims) - rest - 1], dims[len(dims) - rest :]
        source = op.reshape(source, (*lead, *(1 for _ in range(covered)), *tail)) if lead or tail else source
    chosen = unsqueeze(op, op.cast(mask, BOOL), *range(covered, covered + rest))
    if not accumulate:
        return where(op, chosen, source, value)
    added = where(op, chosen, source, op.const(0, op.dtype(value)))
    return op.Or(value, added) if op.dtype(value) == BOOL else op.Add(value, added)


def index_written(op: Emit, value: ir.Value, indices: Indices, source: ir.Value, accumulate: bool) -> ir.Value:
    """``value`` with ``source`` written to (or added at) ``value[indices]``.

    ONNX:  Where for a mask and a source of one element; else ScatterND with the indexed axes in front.
    """
    source = op.cast(source, op.dtype(value))
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if not given:
        return op.Add(value, source) if accumulate else op.expand(source, op.dims(value))
    if len(given) == 1 and op.dtype(given[0][1]) in MASKS:
        found = _masked_put(op, value, given[0][1], given[0][0], source, accumulate)
        if found is not None:
            return found
    plan = plan_of(op, indices)
    rank, dims = op.rank(value), op.dims(value)
    rest = plan.rest(rank)
    lead = plan.axes[0] if plan.is_adjacent else 0
    target: list[DimLike] = [dims[axis] for axis in rest]
    target[lead:lead] = plan.common
    if _holds_as_is(op, source, target):
        spread = source
    else:
        spread = op.expand(source, target)
    middle = list(range(lead, lead + len(plan.common)))
    spread = transpose(op, spread, middle + [axis for axis in range(len(target)) if axis not in middle])
    perm = plan.axes + rest
    written = written_nd(op, transpose(op, value, perm), coordinates(op, plan), spread, "add" if accumulate else None)
    return transpose(op, written, inverse(perm))


def _holds_as_is(op: Emit, source: ir.Value, target: Sequence[DimLike]) -> bool:
    """Return whether a source of full rank can only have the target's dims: none of its sizes is 1 and it need not spread."""
    dims = op.dims(source)
    return len(dims) == len(target) and all(
        size == wanted or (isinstance(wanted, Dim) and size != 1) for size, wanted in zip(dims, target, strict=True)
    )


@translates(aten._unsafe_masked_index_put_accumulate.default)
def _unsafe_masked_index_put_accumulate(
    op: Emit, self: ir.Value, mask: ir.Value, indices: Indices, values: ir.Value
) -> ir.Value:
    """_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor"""
    kept = where(op, mask, values, op.const(0, op.dtype(values)))
    return index_written(op, self, _clamped(op, self, indices), kept, True)


@translates(aten.put.default)
def put(op: Emit, self: ir.Value, index: ir.Value, source: ir.Value, accumulate: bool) -> ir.Value:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor

    ONNX:  ScatterElements on the flattened tensor.
    """
    size = product(list(op.dims(self)))
    places = flat(op, op.cast(index, INT64))
    if accumulate and not isinstance(size, Dim):
        places = op.Mod(places, op.const(np.int64(size)))
    written = scattered(op, flat(op, self), 0, places, flat(op, source), "add" if accumulate else None)
    return op.reshape(written, op.dims(self))


register_shared(
    indexed,
    "Gather for one index, Compress for one mask, Gather of a merged axis or GatherND for several",
    *overloads_of("index.Tensor index.Tensor_hacked_twin _unsafe_index.Tensor _unsafe_index.Tensor_hacked_twin"),
)
register_shared(
    index_written,
    "Where for a mask and one element; else ScatterND",
    *overloads_of("index_put index_put.hacked_twin _unsafe_index_put _unsafe_index_put.hacked_twin _index_put_impl"),
)
