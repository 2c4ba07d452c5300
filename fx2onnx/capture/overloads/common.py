"""Rules of ordinary operators, and how a rule gives results of known types (``record_sized``).

The rules see to sizes that operators need in eager PyTorch and that torch's fake kernels do not check, such as places that an
index leads to and some elements to choose from, and to results that the fake kernels give otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from fx2onnx.capture.recording.meta_rules import window_count
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, load_family, register
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.fake_tensors import CPU

aten = torch.ops.aten
Shape: TypeAlias = Sequence[Scalar]
Size: TypeAlias = int | torch.SymInt


def record_sized(tracer: Tracer, call: Call, outputs: Sequence[tuple[torch.dtype, Shape]]) -> Any:
    """Add the node of ``call`` with outputs of the given types; new symbols among the sizes are tied to their axes."""
    device = next((arg.device for arg in call.args if isinstance(arg, torch.Tensor)), CPU)
    fakes = tuple(tracer.values.new_fake(shape, dtype, device) for dtype, shape in outputs)
    result = fakes[0] if len(fakes) == 1 else fakes
    tracer.finish(call.func, (), tracer.values.to_nodes(call.args, call.kwargs), result)
    for fake in fakes:
        tracer.values.tie_symbols(tracer.values.view_of(fake).node)
    return result


def note_places(tracer: Tracer, tensor: torch.Tensor, axis: int, index: torch.Tensor) -> None:
    """Make a condition of the size of ``axis`` that numbers of ``index``, where no input decides them, need."""
    if not tensor.dim() or index.dtype not in (torch.int64, torch.int32):
        return
    size, env = dims_of(tensor)[axis], tracer.sizes
    if size.symbols() & env.unbacked if isinstance(size, Dim) else not env.facts.supposed:
        return  # a size that is known everywhere was right at the example's sizes
    places = tracer.values.value_of(tracer.values.node_of(index))
    if places is None or not places.numel():
        return
    with no_dispatch():
        least = max(int(places.max()) + 1, -int(places.min()))
    needed = Relation("ge", (size, least))
    if not env.hint(needed):  # as eager PyTorch says
        raise IndexError(
            f"an index is out of bounds for dimension {axis} with size {env.hint(size)}: {needed} is needed"
        )
    if env.certain(needed.op, *needed.args) is None:
        env.check(needed)


@register(
    Kind.RECORD,
    aten.index_select.default,
    aten.gather.default,
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
)
def _along_an_axis(tracer: Tracer, call: Call, self: torch.Tensor, dim: int, index: torch.Tensor) -> object:
    note_places(tracer, self, dim, index)
    return NotImplemented


@register(Kind.RECORD, aten.embedding.default)
def _embedding(tracer: Tracer, call: Call, weight: torch.Tensor, indices: torch.Tensor) -> object:
    note_places(tracer, weight, 0, indices)
    return NotImplemented


@register(
    Kind.RECORD,
    aten.index_put.default,
    aten.index_put.hacked_twin,
    aten._unsafe_index_put.default,
    aten._unsafe_index_put.hacked_twin,
    aten._index_put_impl.default,
    aten.index.Tensor_hacked_twin,
    aten._unsafe_index.Tensor,
    aten._unsafe_index.Tensor_hacked_twin,
)
def _at_indices(tracer: Tracer, call: Call, self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> object:
    if "index_put" in call.func._schema.name:  # torch's fake kernels of others broadcast the indices
        places = [index for index in indices if index is not None and index.dtype not in _MASKS]
        if any(isinstance(size, Dim) for index in places for size in dims_of(index)):
            torch.broadcast_shapes(*(index.shape for index in places))  # type: ignore[no-untyped-call]
    note_places_of_all(tracer, self, indices)
    return NotImplemented


_MASKS = (torch.bool, torch.uint8)


def note_places_of_all(tracer: Tracer, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """``note_places`` for each index of the first axes; a mask among the indices takes as many as it has, of the same sizes."""
    taken = sum(index.dim() if index is not None and index.dtype in _MASKS else 1 for index in indices)
    taken = max(taken, len(indices))  # masks without axes count as one
    if taken > tensor.dim():  # as eager PyTorch says, here and below
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()} (got {taken})")
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
        elif index.dtype in _MASKS:
            for place, (size, wanted) in enumerate(zip(dims_of(index), dims_of(tensor)[axis:], strict=False)):
                tracer.sizes.expect_equal(size, wanted)
                if tracer.sizes.certain("ne", size, wanted):
                    raise IndexError(
                        f"The shape of the mask {[*index.shape]} at index {place} does not match the shape of the indexed "
                        f"tensor {[*tensor.shape]} at index {axis + place}"
                    )
            axis += index.dim()
        else:
            if dims_of(tensor)[axis] == 0 and _name_some(indices):
                raise IndexError("index is out of bounds for dimension with size 0")
            note_places(tracer, tensor, axis, index)
            axis += 1


def _name_some(indices: Sequence[torch.Tensor | None]) -> bool:
    """Return whether indices name an element whatever they hold: of known sizes, and along an axis that no mask without one empties."""
    places = [dims_of(index) for index in indices if index is not None and index.dtype not in _MASKS]
    if any(type(size) is not int or size == 0 for sizes in places for size in sizes):
        return False
    has_mask = any(index is not None and index.dtype in _MASKS for index in indices)
    return not has_mask or any(sizes[-1] != 1 for sizes in places if sizes)


@register(
    Kind.RECORD,
    *(aten.max.default, aten.max.dim, aten.amax.default, aten.argmax.default),
    *(aten.min.default, aten.min.dim, aten.amin.default, aten.argmin.default, aten.aminmax.default),
    *(aten.median.dim, aten.nanmedian.dim, aten.mode.default, aten.kthvalue.default),
)
def _one_of(tracer: Tracer, call: Call, self: torch.Tensor, dim: int | Sequence[int] | None = None) -> object:
    """One of the elements along ``dim``, or of all."""
    if self.dim():
        dims, axes = dims_of(self), [dim] if isinstance(dim, int) else dim
        tracer.sizes.check_some(dims[axis] for axis in axes or range(len(dims)))
    return NotImplemented


@register(Kind.RECORD, aten.instance_norm.default, aten.group_norm.default)
def _instance(tracer: Tracer, call: Call, input: torch.Tensor) -> object:
    """Group norm of no elements: onnxruntime's kernel ends the process there, so a check stands before it where data gives the size."""
    unbacked = tracer.sizes.unbacked
    tracer.sizes.check_some(size for size in dims_of(input)[2:] if isinstance(size, Dim) and size.symbols() & unbacked)
    return NotImplemented


@register(Kind.RECORD, aten.linalg_vector_norm.default)
def _largest(tracer: Tracer, call: Call, self: torch.Tensor, ord: float, dim: Sequence[int] | None) -> object:
    """The norms that an empty vector has not: the largest and least element, and negative powers."""
    return _one_of(tracer, call, self, dim) if ord < 0 or ord == math.inf else NotImplemented


@register(
    Kind.RECORD,
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.grid_sampler.default,
    aten.grid_sampler_2d.default,
    aten.grid_sampler_3d.default,
)
def _some_of_each_axis(
    tracer: Tracer, call: Call, self: torch.Tensor | None = None, input: torch.Tensor | None = None
) -> object:
    tensor = input if self is None else self
    if tensor is not None:
        tracer.sizes.check_some(dims_of(tensor)[1:])
    return NotImplemented


@register(
    Kind.RECORD,
    *(getattr(aten, f"avg_pool{spatial}d").default for spatial in (1, 2, 3)),
    *(getattr(aten, f"max_pool{spatial}d").default for spatial in (1, 2, 3)),
    *(getattr(aten, f"max_pool{spatial}d_with_indices").default for spatial in (1, 2, 3)),
)
def _pooled(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    dilation: Sequence[int] = (1,),
) -> object:
    """Pooling over symbolic sizes where PyTorch compares or takes plain sizes only: (size + 2 pad + more - reach) // stride + 1.

    In ceil_mode a last window may begin in the input or the padding before it and end beyond the padding after it: ``more``
    is stride - 1, at most what a window that begins at the input's last element needs.
    """
    spatial = int(call.func._schema.name.split("pool")[1][0])
    sizes: list[Scalar] = [*dims_of(self)]
    is_by_formula = ceil_mode or call.func is aten.max_pool1d.default
    if not is_by_formula or not any(isinstance(size, Dim) for size in sizes[-spatial:]):
        return NotImplemented

    def each(numbers: int | Sequence[int]) -> list[int]:
        values = [numbers] if isinstance(numbers, int) else list(numbers)
        return values * (spatial if len(values) == 1 else 1)

    kernel, padding, dilation = each(kernel_size), each(padding), each(dilation)
    stride = each(stride) or kernel
    for axis in range(spatial):
        more = min(stride[axis] - 1, dilation[axis] * (kernel[axis] - 1) - padding[axis]) if ceil_mode else 0
        place = len(sizes) - spatial + axis
        sizes[place] = window_count(sizes[place], kernel[axis], stride[axis], padding[axis], dilation[axis], more)
    tracer.sizes.check_some((*dims_of(self)[-spatial:], *sizes[-spatial:]))
    outputs = [(self.dtype, sizes), (torch.int64, sizes)]
    return record_sized(tracer, call, outputs[: len(call.func._schema.returns)])


@register(Kind.RECORD, aten.scaled_dot_product_attention.default)
def _attention(tracer: Tracer, call: Call, key: torch.Tensor, value: torch.Tensor, dropout_p: float) -> object:
    """scaled_dot_product_attention: one node. As many values as keys, which newer versions of torch do not ask for."""
    check_probability(dropout_p)
    is_alike: object = key.shape[-2] == value.shape[-2]
    if isinstance(is_alike, torch.SymBool) and not is_alike.node.expect_true("", 0):
        raise RuntimeError(f"attention needs as many values as keys, which are {value.shape[-2]} and {key.shape[-2]}")
    return NotImplemented


def check_probability(dropout: float) -> None:
    """Raises what eager PyTorch does, where a call by formula has no kernel that would."""
    if not 0 <= dropout <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout}")


@register(Kind.RECORD, aten.pow.Tensor_Scalar)
def _power_of_bools(tracer: Tracer, call: Call, self: torch.Tensor, exponent: object) -> object:
    """pow: bools to a bool power are bools."""
    if self.dtype != torch.bool or not isinstance(exponent, bool):
        return NotImplemented
    with tracer.mode:
        return self.clone() if exponent else torch.ones_like(self)


@register(Kind.RECORD, aten.batch_norm.default, aten._native_batch_norm_legit.default)
def _batch_norm(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """batch_norm in training mode updates the running statistics, which are both given or neither."""
    is_one_result = call.func is aten.batch_norm.default
    if is_one_result and (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    if is_one_result and not (training and running_mean is not None and running_var is not None):
        return NotImplemented
    if is_one_result and 0 in dims_of(input):  # nothing is updated by nothing
        with tracer.mode:
            return input.clone()
    below: Any = tracer.plugins.get("below autograd") if training else None
    late = None if below is None else below.statistics
    if late is not None and not all(
        tensor is not None and late.may_wait(tensor) for tensor in (running_mean, running_var)
    ):
        late = None
    with tracer.mode:
        *results, mean, var = aten._native_batch_norm_legit_functional.default(
            input, weight, bias, running_mean, running_var, training, momentum if late is None else 1.0, eps
        )
    if training:
        for statistic, value in ((running_mean, mean), (running_var, var)):
            assert statistic is not None
            if late is None:
                load_family("recording.functionalize").store(tracer, call.func, statistic, value)
            else:
                late.take(statistic, value, momentum)
    return results[0] if is_one_result else tuple(results)


@register(Kind.RECORD, aten.detach.default)
def _detach(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """Below autograd, which detaches each result that it keeps, only another object for the same memory."""
    if tracer.pre_dispatch:
        return NotImplemented
    try:
        made = tracer.types.alias(self)
    except TypeError:
        return NotImplemented
    tracer.values.same_view(made, tracer.values.view_of(self))
    return made


@register(Kind.RECORD, aten._to_copy.default)
def _to_copy(tracer: Tracer, call: Call, self: object, dtype: torch.dtype | None) -> object:
    """Nested function transforms copy a plain number as if it were a tensor."""
    if isinstance(self, torch.Tensor):
        return NotImplemented
    with tracer.mode:
        return aten.scalar_tensor.default(self, dtype=dtype or torch.tensor(self).dtype)


@register(Kind.RECORD, aten.linalg_matrix_norm.default)
def _largest_sum(
    tracer: Tracer, call: Call, self: torch.Tensor, ord: float, dim: Sequence[int], keepdim: bool, dtype: object
) -> object:
    """The norms by sums of rows or columns, in which torch's kernel makes plain numbers of dynamic sizes."""
    rows, columns = (axis % self.dim() for axis in dim)
    if not _is_dynamic(self) or abs(ord) not in (1, math.inf):
        return NotImplemented
    summed, chosen = (rows, columns) if abs(ord) == 1 else (columns, rows)
    with tracer.mode:
        whole = self if dtype is None else self.to(dtype)  # type: ignore[call-overload]
        sums = whole.abs().sum(summed, keepdim=True)
        none = torch.zeros_like(sums.sum(chosen, keepdim=True))  # what there is of an empty matrix
        result = torch.cat([sums, none], chosen).amax(chosen, True) if ord > 0 else sums.amin(chosen, True)
        return result if keepdim else result.squeeze((rows, columns))


@register(Kind.RECORD, aten.linalg_cond.default, aten.linalg_cond.p_str)
def _condition_number(tracer: Tracer, call: Call, self: torch.Tensor, p: float | str | None) -> object:
    """The norm of a matrix times that of its inverse, or the ratio of its singular values; of dynamic sizes."""
    if not _is_dynamic(self):
        return NotImplemented
    with tracer.mode:
        if p in (None, 2, -2):
            _note_some(tracer, dims_of(self)[-2:])
            values = torch.linalg.svdvals(self)
            largest, least = values.amax(-1), values.amin(-1)
            return least / largest if p == -2 else largest / least
        inverse, info = torch.linalg.inv_ex(self)
        inverse = inverse.masked_fill((info > 0)[..., None, None], math.inf)
        return torch.linalg.matrix_norm(self, p) * torch.linalg.matrix_norm(inverse, p)


def _note_some(tracer: Tracer, dims: Shape) -> None:
    """Make conditions of sizes that are not 0, where the result is another one."""
    env = tracer.sizes
    for some in (Relation("ge", (size, 1)) for size in dims if isinstance(size, Dim)):
        if env.facts.is_settled(some) is None:
            (env.assume if some.symbols() & env.unbacked else env.note)(some, tracer.values.where)


def _is_dynamic(matrix: torch.Tensor) -> bool:
    """Return whether a size of a real matrix is dynamic."""
    return not matrix.is_complex() and any(isinstance(size, Dim) for size in dims_of(matrix))
