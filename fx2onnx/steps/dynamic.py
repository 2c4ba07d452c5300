"""Fixed sizes of inputs made dynamic again: constants that hold them are changed where it is plain which size they
mean.

A ``Reshape`` to ``[4, 12, 64]`` of a batch of 4 becomes one to ``[0, 12, 64]``: the elements of an axis keep their order, so that the
place of the batch among the strides of the operand says at which axis of the result it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.schema import BROADCASTING
from fx2onnx.irx.shapes.table import as_dim
from fx2onnx.irx.values import dims_of, known_ints
from fx2onnx.optimize.rewrite import attribute, dims_or_none, is_constant, operand, produced_by, static_dims
from fx2onnx.sizes.expr import Dim, DimLike, product
from fx2onnx.sizes.text import parse_dim
from fx2onnx.steps.sizes import axis_of
from fx2onnx.steps.stages import rewrite, stages_of

MOST_BYTES = 64 << 20


def narrow_constants(model: ir.Model, node: ir.Node, sizes: Mapping[str, int]) -> bool:
    """Narrow the constant operands of a broadcasting node, and the constant indices of a Gather that it reads, along the axes at
    which another operand has a size that varies. Whether anything was done.
    """
    if node.domain or node.op_type not in BROADCASTING:
        return False
    all_dims = [dims_or_none(value) for value in node.inputs]
    for place, (value, dims) in enumerate(zip(node.inputs, all_dims, strict=True)):
        for back in range(1, len(dims or ()) + 1):
            size = (dims or ())[-back]
            others = [other[-back] for other in all_dims if other is not None and back <= len(other)]
            if not isinstance(size, int) or size == 1 or not any(_is_of_size(other, sizes, size) for other in others):
                continue
            gather = produced_by(value, "Gather")
            if _narrow(model, node, place, len(dims or ()) - back):
                return True
            is_row = gather is not None and attribute(gather, "axis", 0) == 0 and back == len(dims or ())
            if gather is not None and is_row and len(gather.outputs[0].uses()) == 1 and _narrow(model, gather, 1, 0):
                return True
    return False


def _is_of_size(dim: int | Dim, sizes: Mapping[str, int], size: int) -> bool:
    return isinstance(dim, Dim) and dim.symbols() <= set(sizes) and dim.evaluate(sizes) == size


def _narrow(model: ir.Model, node: ir.Node, place: int, axis: int) -> bool:
    """One row of a constant, or of what repeats a row, in the place of equal ones."""
    value = node.inputs[place]
    expand = produced_by(value, "Expand")
    if expand is not None and value is not None and len(value.uses()) == 1:
        return _narrow_target(model, expand, axis)
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.nbytes > MOST_BYTES:
        return False
    array = np.asarray(value.const_value.numpy())
    first = np.take(array, [0], axis)
    if not np.array_equal(np.broadcast_to(first, array.shape), array):
        return False
    _give(model, node, place, first)
    return True


def _narrow_target(model: ir.Model, expand: ir.Node, axis: int) -> bool:
    """Do not repeat along an axis along which the operand has one row."""
    source, shape = dims_or_none(expand.inputs[0]), expand.inputs[1]
    target = known_ints(shape) if is_constant(shape) else None
    if source is None or target is None or axis >= len(target) or target[axis] == 1:
        return False
    own = axis - (len(target) - len(source))
    if own >= 0 and source[own] != 1:
        return False
    _give(model, expand, 1, np.array([1 if place == axis else size for place, size in enumerate(target)], np.int64))
    return True


def _give(model: ir.Model, node: ir.Node, place: int, array: np.ndarray[Any, Any]) -> None:
    """Put a new weight at an input."""
    old = node.inputs[place]
    assert old is not None
    name = f"{old.name}_row"
    while name in model.graph.initializers:
        name += "_"
    dtype = ir.DataType.from_numpy(array.dtype) if old.const_value is None else old.const_value.dtype
    value = ir.Value(name=name, const_value=ir.Tensor(np.ascontiguousarray(array), dtype=dtype, name=name))
    model.graph.initializers[name] = value
    node.replace_input_with(place, value)


MOST_ROUNDS = 1000


def make_dynamic(model: ir.Model, wanted: Mapping[str, str]) -> dict[str, int]:
    """Let sizes of inputs vary, in place. Returns the number that each name had.

    Raises: UserError E001 for a place that is none, or is dynamic already; E105 for a node that has the size in it and
    cannot be changed.
    """
    sizes: dict[str, int] = {}
    for place, name in wanted.items():
        found = axis_of(model, place)
        if found is None:
            raise UserError("E001", f"--dynamic '{place}': there is no such input", next="write input:axis=NAME")
        value, axis = found
        size = value.shape[axis]  # type: ignore[index]
        if not isinstance(size, int):
            if str(size.value) == name:
                continue
            raise UserError("E001", f"axis {axis} of the input '{value.name}' is dynamic already: {size.value}")
        if sizes.setdefault(name, size) != size:
            raise UserError("E001", f"the dim '{name}' is {sizes[name]} at one input and {size} at '{value.name}'")
    infer_types(model)
    fixed = {value: static_dims(value) for graph in graphs_of(model) for node in graph for value in node.outputs}
    for place, name in wanted.items():
        found = axis_of(model, place)
        assert found is not None
        value, axis = found
        value.shape = ir.Shape([name if index == axis else dim for index, dim in enumerate(value.shape or ())])
    for output in model.graph.outputs:
        output.shape = None
    rewrite(model, stages_of(0, is_folding=True))  # sizes that vary are none any more: what is folded is constant
    _mend_all(model, sizes, fixed)
    for output in model.graph.outputs:
        if output.shape is not None:
            output.shape = ir.Shape([_plain(dim, sizes) for dim in dims_of(output)])
    return sizes


def _plain(dim: DimLike, sizes: Mapping[str, int]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return str(dim) if dim.symbols() <= set(sizes) else None


def _mend_all(model: ir.Model, sizes: Mapping[str, int], fixed: Mapping[ir.Value, tuple[int, ...] | None]) -> None:
    """Change one constant after the other in the order of the nodes: each changes the types behind it."""
    done: set[ir.Node] = set()
    for _ in range(MOST_ROUNDS):
        infer_types(model)
        if any(narrow_constants(model, node, sizes) for node in model.graph):
            continue
        node = next((node for node in model.graph if node not in done and _mend(model, node, sizes, fixed)), None)
        if node is None:
            break
        done.add(node)
    for node in model.graph:
        _require_open(node, sizes)


def _mend(
    model: ir.Model, node: ir.Node, sizes: Mapping[str, int], fixed: Mapping[ir.Value, tuple[int, ...] | None]
) -> bool:
    """Give the node another constant, if its own has a size in it that is to vary. Raises UserError E105."""
    if node.domain or node.op_type not in ("Reshape", "Expand"):
        return False
    source, shape = node.inputs[0], operand(node, 1)
    before = dims_or_none(source)
    if source is None or before is None or shape is None or not is_constant(shape) or not _varies(before, sizes):
        return False
    target, after = known_ints(shape), fixed.get(node.outputs[0])
    if target is None or after is None:
        return False
    new = _expanded(before, target) if node.op_type == "Expand" else _reshaped(node, before, target, after, sizes)
    if new == target:
        return False
    name = f"{node.outputs[0].name}_shape"
    taken = model.graph.initializers
    while name in taken:
        name += "_"
    value = ir.Value(name=name, const_value=ir.Tensor(np.array(new, np.int64), name=name))
    model.graph.initializers[name] = value
    node.replace_input_with(1, value)
    return True


def _varies(dims: Sequence[DimLike], sizes: Mapping[str, int]) -> bool:
    return any(isinstance(dim, Dim) and dim.symbols() & set(sizes) for dim in dims)


def _expanded(before: Sequence[DimLike], target: Sequence[int]) -> list[int]:
    """1 where the operand's own size varies."""
    new, shift = list(target), len(target) - len(before)
    for axis, dim in enumerate(before):
        if isinstance(dim, Dim) and axis + shift >= 0:
            new[axis + shift] = 1
    return new


def _reshaped(
    node: ir.Node, before: Sequence[DimLike], target: Sequence[int], after: tuple[int, ...], sizes: Mapping[str, int]
) -> list[int]:
    dims: list[DimLike] = list(after)
    at_sample = [int(dim.evaluate(sizes)) if isinstance(dim, Dim) else dim for dim in before]
    for axis, dim in enumerate(before):
        if not isinstance(dim, Dim) or not dim.symbols() <= set(sizes):
            continue
        stride, extent = math.prod(at_sample[axis + 1 :]), at_sample[axis]
        name = next(iter(dim.symbols()))
        times = extent // sizes[name] if sizes[name] else 0
        if times and dim == times * Dim.symbol(name):  # the size is the outermost part of the axis
            stride, extent, dim = stride * times, sizes[name], Dim.symbol(name)
        place = _axis_at(after, stride, extent)
        held = 0 if place is None else dims[place]
        if place is None or not isinstance(held, int) or not extent or held % extent:
            raise _refused(node, f"[{', '.join(map(str, target))}] has no axis of its own for {dim}")
        dims[place] = as_dim(held // extent * dim)
    if product(list(dims)) != product(list(before)):
        raise _refused(node, f"the target {list(target)} holds the size")
    new = [0 if i < len(before) and isinstance(dim, Dim) and before[i] == dim else dim for i, dim in enumerate(dims)]
    open_axes = [axis for axis, dim in enumerate(new) if isinstance(dim, Dim)]
    if len(open_axes) > 1:
        raise _refused(node, "two sizes of its target would have to be computed")
    for axis in open_axes:
        new[axis] = -1
    return [int(dim) for dim in new]  # type: ignore[arg-type]


def _axis_at(dims: Sequence[int], stride: int, extent: int) -> int | None:
    """The axis of a result that holds an operand's axis of that stride: one of its own, or that whose outermost part it is."""
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    for axis, (size, own) in enumerate(zip(dims, strides, strict=True)):
        if own == stride and size == extent:
            return axis
    for axis, (size, own) in enumerate(zip(dims, strides, strict=True)):
        if own * size == stride * extent and own <= stride:
            return axis
    for axis, (size, own) in enumerate(zip(dims, strides, strict=True)):
        if own <= stride and stride * extent <= own * size:
            return axis
    return None


def _require_open(node: ir.Node, sizes: Mapping[str, int]) -> None:
    """Raises UserError E105 where a size that varies meets a constant of the same size."""
    if node.domain or node.op_type not in BROADCASTING:
        return
    all_dims = [dims for value in node.inputs if (dims := dims_or_none(value)) is not None]
    for axis in range(1, max(map(len, all_dims), default=0) + 1):
        met = [dims[-axis] for dims in all_dims if axis <= len(dims)]
        if any(isinstance(dim, int) and dim != 1 for dim in met) and _varies(met, sizes):
            raise _refused(node, f"a size that varies meets {next(d for d in met if isinstance(d, int) and d != 1)}")


def _refused(node: ir.Node, why: str) -> UserError:
    return UserError(
        "E105", "the size is fixed inside the file", node=f"{node.op_type} {node.name or node.outputs[0].name}", why=why,
        next="export the model with this size dynamic",
    )  # fmt: skip


def depends_on(dim: int | ir.SymbolicDim, names: set[str]) -> bool:
    """Return whether a size is made of one of these names."""
    if isinstance(dim, int) or dim.value is None:
        return False
    read = parse_dim(str(dim.value))
    return str(dim.value) in names or (isinstance(read, Dim) and bool(read.symbols() & names))
