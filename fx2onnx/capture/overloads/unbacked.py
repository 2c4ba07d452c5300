"""Results whose size only the data tells: each unknown size becomes a symbol that stands for that axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.base.dims import DimLike
from fx2onnx.capture.python.constants import evaluate
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.capture.torch_private import fake_from_meta, no_dispatch

if TYPE_CHECKING:
    from fx2onnx.capture.recording.recorder import Recorder

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload
Shape = Sequence[DimLike]


def record_sized(
    recorder: Recorder,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: Sequence[tuple[torch.dtype, Shape]],
) -> Any:
    """Add the node of ``func`` with outputs of the given types; new symbols among the sizes are tied to their axes."""
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
    env = recorder.shape_env
    fakes = [
        fake_from_meta(recorder.fake_mode, [sym_int(env, size) for size in shape], dtype, device)
        for dtype, shape in outputs
    ]
    result: Any = fakes[0] if len(fakes) == 1 else tuple(fakes)
    node_args, node_kwargs = recorder.to_nodes(args, kwargs)
    recorder.finish(func, (), node_args, node_kwargs, result)
    for fake in fakes:
        recorder.tie_symbols(recorder.view_of(fake).node)
    return result


def _known(recorder: Recorder, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """The real values of tensors that only constants lead to."""
    values = [evaluate(recorder.node_of(tensor), recorder.weights, recorder.known) for tensor in tensors]
    return None if any(value is None for value in values) else values  # type: ignore[return-value]


def _nonzero(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The indices of a constant are a constant; any other has an unknown number of rows."""
    (tensor,) = args
    known = _known(recorder, [tensor])
    if known is not None:
        with no_dispatch():
            found = known[0].nonzero()
        return recorder.constant(found)
    key = (recorder.graph, recorder.node_of(tensor))
    rows = recorder.nonzero_rows.get(key)
    if rows is None:
        rows = recorder.nonzero_rows[key] = recorder.unknown_size()
    return record_sized(recorder, func, args, kwargs, [(torch.int64, (rows, tensor.dim()))])


def _nonzero_numpy(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with recorder.mode:
        return list(args[0].nonzero().unbind(1))


def _argwhere(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with recorder.mode:
        return args[0].nonzero()


def _masked_select(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """masked_select(self, mask): both broadcast, then indexed."""
    with recorder.mode:
        tensor, mask = aten.broadcast_tensors.default(list(args))
        if mask.dim() == 0:  # PyTorch would ask for the mask's number
            tensor, mask = tensor.reshape(1), mask.reshape(1)
        return tensor[mask]


def _index(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A bool mask among the indices stands for the indices of its true elements."""
    tensor, indices = args
    if not any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return NotImplemented
    plain: list[Any] = []
    with recorder.mode:
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                plain += index.nonzero().unbind(1)
            else:
                plain.append(index)
        return aten.index.Tensor(tensor, plain)


def _unique(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_unique2, unique_dim, unique_consecutive and their kin: values, inverse, counts."""
    names = [argument.name for argument in func._schema.arguments]
    given: dict[str, Any] = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    given |= dict(zip(names, args, strict=False)) | kwargs
    tensor = given["self"]
    known = _known(recorder, [tensor])
    if known is not None:
        with no_dispatch():
            found = func(*known, *args[1:], **{name: value for name, value in kwargs.items() if name != "self"})
        return tuple(recorder.constant(part) for part in found)
    size = recorder.unknown_size()
    axis, shape = given.get("dim"), [unwrap(length) for length in tensor.shape]
    values: list[DimLike] = [size]
    inverse: list[DimLike] = shape
    if axis is not None:
        values = [size if place == axis % len(shape) else length for place, length in enumerate(shape)]
        inverse = [shape[axis]]
    wants_inverse = given.get("return_inverse", False)
    wants_counts = given.get("return_counts", False)
    outputs: list[tuple[torch.dtype, Shape]] = [
        (tensor.dtype, values),
        (torch.int64, inverse if wants_inverse else (0,)),
        (torch.int64, (size,) if wants_counts else (0,)),
    ]
    return record_sized(recorder, func, args, kwargs, outputs[: len(func._schema.returns)])


def _repeat_interleave(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """repeat_interleave(repeats, output_size): as many rows as the repeats add up to."""
    size = kwargs.get("output_size")
    if size is None:
        known = _known(recorder, args[:1])
        if known is not None:
            with no_dispatch():
                rows_of = torch.repeat_interleave(known[0])
            return recorder.constant(rows_of)
    rows = recorder.unknown_size() if size is None else unwrap(size)
    return record_sized(recorder, func, args, kwargs, [(args[0].dtype, (rows,))])


def _repeat_interleave_self(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, repeats = args[:2]
    axis = args[2] if len(args) > 2 else kwargs.get("dim")
    with recorder.mode:
        if axis is None:
            tensor, axis = tensor.flatten(), 0
        if repeats.dim() == 0 or repeats.shape[0] == 1:
            repeats = repeats.reshape(1).expand(tensor.shape[axis])
        index = aten.repeat_interleave.Tensor(repeats, output_size=kwargs.get("output_size"))
        return tensor.index_select(axis, index)


def _narrow(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """narrow(self, dim, start, length) where the data tells the start: PyTorch takes its number."""
    tensor, axis, start, length = args
    with recorder.mode:
        return aten.narrow.default(tensor, axis, start.item(), length)


def _bincount(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return record_sized(recorder, func, args, kwargs, [(dtype, (recorder.unknown_size(),))])


def _nms(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return record_sized(recorder, func, args, kwargs, [(torch.int64, (recorder.unknown_size(),))])


def _grouped_mm(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_grouped_mm(self, mat2, offs, bias, out_dtype): torch's fake takes bfloat16 only, its CPU kernel any float.

    Shapes:  self [M, K] or [G, M, K], mat2 [G, K, N] or [K, N], offs [G] where the groups are along M, N or K.
    """
    left, right = args[:2]
    given = dict(zip(("offs", "bias", "out_dtype"), args[2:], strict=False)) | kwargs
    rows, columns = unwrap(left.shape[-2]), unwrap(right.shape[-1])
    offsets = given.get("offs")
    is_stacked = left.dim() == right.dim()  # [G, M, N]; else the groups are ranges of the rows or of the columns
    groups = left.shape[0] if left.dim() == 3 or offsets is None else offsets.shape[0]
    shape: Shape = (unwrap(groups), rows, columns) if is_stacked else (rows, columns)
    return record_sized(recorder, func, args, kwargs, [(given.get("out_dtype") or left.dtype, shape)])


Special = Callable[["Recorder", OpOverload, tuple[Any, ...], dict[str, Any]], Any]

SPECIAL: dict[OpOverload, Special] = {
    aten.nonzero.default: _nonzero,
    aten.nonzero_numpy.default: _nonzero_numpy,
    aten.where.default: _nonzero_numpy,
    aten.argwhere.default: _argwhere,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique.default: _unique,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.unique_dim_consecutive.default: _unique,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.repeat_interleave.self_Tensor: _repeat_interleave_self,
    aten.bincount.default: _bincount,
    aten.narrow.Tensor: _narrow,
    aten._grouped_mm.default: _grouped_mm,
}

SPECIAL_BY_NAME: dict[str, Special] = {"torchvision::nms": _nms}
"""Overloads of packages that may not be there."""
