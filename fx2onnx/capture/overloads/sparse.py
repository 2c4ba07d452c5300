"""Sparse tensors that the module holds: dense constants where they meet other tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

DENSE: dict[OpOverload, OpOverload] = {
    aten._sparse_mm.default: aten.mm.default,
    aten._sparse_addmm.default: aten.addmm.default,
    aten.hspmm.default: aten.mm.default,
    aten.smm.default: aten.mm.default,
    aten.sspaddmm.default: aten.addmm.default,
}
"""Overloads for sparse operands, and what they are for dense ones."""


@register(Kind.RECORD, *DENSE)
def _of_dense(recorder: BaseRecorder, call: Call) -> object:
    """The overload for dense operands: what stands for a sparse operand is dense."""
    return recorder.handle(DENSE[call.func], call.args, call.kwargs)


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def seen(recorder: BaseRecorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A call with sparse operands; NotImplemented for one without. What only constants lead to is computed."""
    tensors = list(_tensors([*args, *kwargs.values()]))
    if not any(is_sparse(tensor) for tensor in tensors if not recorder.fake_mode.holds(tensor)):
        return NotImplemented
    if not func._schema.is_mutable and not any(map(recorder.fake_mode.holds, tensors)):
        with no_dispatch():
            found = func(*args, **kwargs)
        return _constants(recorder, found)
    dense = [_densified(recorder, arg) for arg in args]
    named = {name: _densified(recorder, arg) for name, arg in kwargs.items()}
    return recorder.handle(func, tuple(dense), named)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _constants(recorder: BaseRecorder, value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value if is_sparse(value) else recorder.constant(value)
    return type(value)(_constants(recorder, each) for each in value) if isinstance(value, list | tuple) else value


def _densified(recorder: BaseRecorder, value: object) -> object:
    if isinstance(value, torch.Tensor) and not recorder.fake_mode.holds(value) and is_sparse(value):
        return recorder.dense_of(value)
    if isinstance(value, list | tuple):
        return type(value)(_densified(recorder, each) for each in value)
    return value
