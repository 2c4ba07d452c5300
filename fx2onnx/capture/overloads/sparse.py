"""Sparse tensors: those that the module holds are dense constants where they meet other tensors, those that it makes are dense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fx2onnx.base.errors import UserError
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


@register(Kind.RECORD, aten._sparse_coo_tensor_with_dims_and_tensors.default)
def _made(tracer: Tracer, call: Call, size: Sequence[int], indices: torch.Tensor, values: torch.Tensor) -> object:
    """_sparse_coo_tensor_with_dims_and_tensors(int sparse_dim, int dense_dim, SymInt[] size, Tensor indices, Tensor values): zeros with
    the sums of the values at their places.
    """
    with tracer.mode:
        places = tuple(indices.select(0, axis) for axis in range(call.args[0]))
        made = torch.zeros(size, dtype=values.dtype, device=values.device).index_put(places, values, accumulate=True)
        entries = torch.zeros(size[: len(places)], dtype=torch.bool).index_put(places, torch.tensor(True))
    return _with_entries(tracer, made, entries)


_TO_SPARSE = (
    aten._to_sparse.default,
    aten._to_sparse.sparse_dim,
    aten._to_sparse_csr.default,
    aten._to_sparse_csc.default,
)


@register(Kind.RECORD, *_TO_SPARSE)
def _to_sparse(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """_to_sparse(Tensor self): as it is"""
    with tracer.mode:
        return _with_entries(tracer, self.clone(), self != 0)


@register(Kind.RECORD, aten.coalesce.default, aten._coalesce.default)
def _coalesced(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """coalesce(Tensor self): as it is"""
    with tracer.mode:
        return _with_entries(tracer, self.clone(), _entries(tracer, call, self))


@register(Kind.RECORD, aten.values.default)
def _values(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """values(Tensor self): the numbers of the entries, in the order of their places"""
    with tracer.mode:
        return self[_entries(tracer, call, self)]


@register(Kind.RECORD, aten.indices.default)
def _indices(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """indices(Tensor self): the places of the entries, in order, one a column"""
    with tracer.mode:
        return _entries(tracer, call, self).nonzero().t()


@register(Kind.RECORD, aten._sparse_softmax.default, aten._sparse_log_softmax.default)
def _softmax(tracer: Tracer, call: Call, self: torch.Tensor, dim: int) -> object:
    """_sparse_softmax(Tensor self, int dim, bool half_to_float): of the entries alone"""
    entries = _entries(tracer, call, self)
    function = torch.softmax if call.func is aten._sparse_softmax.default else torch.log_softmax
    with tracer.mode:
        found = function(self.masked_fill(~entries, float("-inf")), dim).masked_fill(~entries, 0.0)
    return _with_entries(tracer, found, entries)


@register(Kind.RECORD, aten._sparse_sum.default, aten._sparse_sum.dim)
def _sum(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """_sparse_sum(Tensor self), or over some axes"""
    with tracer.mode:
        return self.sum(*call.args[1:])


@register(Kind.RECORD, aten._values.default, aten._indices.default, aten._nnz.default)
def _of_order(tracer: Tracer, call: Call) -> object:
    """Overloads whose results depend on how often and in which order a sparse tensor has its entries."""
    raise _refused(tracer, call)


_ENTRIES = "_fx2onnx_entries"


def _with_entries(tracer: Tracer, dense: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """The dense tensor, which knows where the sparse one that it stands for has entries."""
    note = "a sparse tensor that forward makes is dense in the file, with all its zeros"
    if note not in tracer.warnings:
        tracer.warnings.append(note)
    setattr(dense, _ENTRIES, entries)
    return dense


def _entries(tracer: Tracer, call: Call, tensor: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor | None = getattr(tensor, _ENTRIES, None)
    if found is None or found.dim() != tensor.dim():
        raise _refused(tracer, call)
    return found


def _refused(tracer: Tracer, call: Call) -> UserError:
    return tracer.values.refuse(
        "E203",
        f"{call.func} asks for the entries of a sparse tensor",
        why="a sparse tensor that forward makes is dense in the file",
        next="compute with the indices and values that the tensor was made of",
    )


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
