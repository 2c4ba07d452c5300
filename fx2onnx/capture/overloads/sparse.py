"""Sparse tensors that the module holds: dense constants where they meet other tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Values
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
def _of_dense(tracer: Tracer, call: Call) -> object:
    """The overload for dense operands: what stands for a sparse operand is dense."""
    return tracer.handle(DENSE[call.func], call.args, call.kwargs)


def dense_of(values: Values, tensor: torch.Tensor) -> torch.Tensor:
    """The dense tensor of the same numbers and the same name as a sparse one, a constant of the file."""
    known = values.dense.get(id(tensor))
    if known is None:
        values.holds_sparse = True
        with no_dispatch():
            known = values.dense[id(tensor)] = tensor, tensor.detach().to_dense()
        if id(tensor) in values.names:
            values.names[id(known[1])] = (values.names[id(tensor)][0], "constant")
    return known[1]


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def seen(tracer: Tracer, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A call with sparse operands; NotImplemented for one without. What only constants lead to is computed."""
    tensors = list(_tensors([*args, *kwargs.values()]))
    if not any(is_sparse(tensor) for tensor in tensors if not tracer.values.fake_mode.holds(tensor)):
        return NotImplemented
    if not func._schema.is_mutable and not any(map(tracer.values.fake_mode.holds, tensors)):
        with no_dispatch():
            found = func(*args, **kwargs)
        return _constants(tracer, found)
    dense = [_densified(tracer, arg) for arg in args]
    named = {name: _densified(tracer, arg) for name, arg in kwargs.items()}
    return tracer.handle(func, tuple(dense), named)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _constants(tracer: Tracer, value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value if is_sparse(value) else tracer.values.constant(value)
    return type(value)(_constants(tracer, each) for each in value) if isinstance(value, list | tuple) else value


def _densified(tracer: Tracer, value: object) -> object:
    if isinstance(value, torch.Tensor) and not tracer.values.fake_mode.holds(value) and is_sparse(value):
        return dense_of(tracer.values, value)
    if isinstance(value, list | tuple):
        return type(value)(_densified(tracer, each) for each in value)
    return value
