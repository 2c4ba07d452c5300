"""Rules of ordinary operators, and how a rule gives results of known types (``record_sized``).

The rules see to sizes that operators need in eager PyTorch and that torch's fake kernels do not check, such as places that an
index leads to and some elements to choose from, and to results that the fake kernels give otherwise.
"""

from __future__ import annotations

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


@register(Kind.RECORD, aten.embedding.default)
def _embedding(tracer: Tracer, call: Call, weight: torch.Tensor, indices: torch.Tensor) -> object:
    note_places(tracer, weight, 0, indices)
    return NotImplemented


@register(Kind.RECORD, aten.instance_norm.default, aten.group_norm.default)
def _instance(tracer: Tracer, call: Call, input: torch.Tensor) -> object:
    """Group norm of no elements: onnxruntime's kernel ends the process there, so a check stands before it where data gives the size."""
    unbacked = tracer.sizes.unbacked
    tracer.sizes.check_some(size for size in dims_of(input)[2:] if isinstance(size, Dim) and size.symbols() & unbacked)
    return NotImplemented


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
