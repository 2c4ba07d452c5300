"""Overloads whose fake kernels give another type than PyTorch's kernels on the CPU, recorded with the kernels' type."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import Shape, record_sized
from fx2onnx.capture.recording.eager_refusals import not_tried
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import product

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
_NEED_A_WEIGHT = (aten._batch_norm_no_update.default, aten._batch_norm_with_update_functional.default)
"""Batch norms whose fake kernels choose a back end by the weight."""
_TAKE_STATISTICS = (aten._batch_norm_no_update.default, aten._native_batch_norm_legit_no_training.default)
"""Batch norms that normalize by stored statistics."""


@register(Kind.RECORD, aten.nansum.default, aten.nanmean.default)
def _over_all(tracer: Tracer, call: Call, self: torch.Tensor, dim: object, keepdim: bool, dtype: object) -> object:
    """nansum, nanmean: an empty list of dims means all of them."""
    if not isinstance(dim, Sequence) or len(dim):
        return NotImplemented
    with tracer.mode:
        return call.func(self, None, keepdim, dtype=dtype)


@register(Kind.RECORD, aten.randperm.default, aten.randperm.generator)
def _randperm(tracer: Tracer, call: Call, dtype: torch.dtype | None) -> object:
    """Integers, also where the dtype is given as None."""
    if dtype is not None or "dtype" not in call.kwargs:
        return NotImplemented
    with tracer.mode:
        return call.func(*call.args, **{**call.kwargs, "dtype": torch.int64})


@register(
    Kind.RECORD,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_no_update.default,
)
def _saved_statistics(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool = True,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
) -> object:
    """Statistics are saved in float32 where a parameter is wider than half precision; the new running ones are as the old.

    The fake kernels divide by the number of samples less one, and two of them take no call without a weight.
    """
    channels_of_input = dims_of(input)[1] if input.ndim > 1 else None
    for name, tensor in (("running_mean", running_mean), ("running_var", running_var)):
        sizes = (channels_of_input, None if tensor is None else product(dims_of(tensor)))
        if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
            raise not_tried(ValueError(f"{name} has {sizes[1]} elements, the input {sizes[0]} channels"))
    is_trained = training and call.func not in _TAKE_STATISTICS
    count = product([size for axis, size in enumerate(dims_of(input)) if axis != 1]) if is_trained else 0
    if input.dtype not in HALF and count != 1 and (weight is not None or call.func not in _NEED_A_WEIGHT):
        return NotImplemented
    given = [tensor for tensor in (weight, bias, running_mean, running_var) if tensor is not None]
    saved = input.dtype if all(tensor.dtype == input.dtype for tensor in given) else torch.float32
    kept, channels = [dims_of(input)[1] if is_trained else 0], [dims_of(input)[1]]
    running = [(tensor.dtype, channels) for tensor in (running_mean, running_var) if tensor is not None]
    returns = len(call.func._schema.returns)
    reserve = [(torch.uint8, [0])] if call.func in _NEED_A_WEIGHT else []
    outputs: list[tuple[torch.dtype, Shape]] = [
        (input.dtype, dims_of(input)),
        (saved, kept),
        (saved, kept),
        *reserve,
        *running,
    ]
    return record_sized(tracer, call, outputs[:returns])


@register(Kind.RECORD, aten.to.prim_dtype, aten.to.prim_Device)
def _to_number_of_dtype(tracer: Tracer, call: Call, self: torch.Tensor, dtype: object, copy: bool) -> object:
    """TorchScript's cast; of a copy without a dtype PyTorch reads a number that nobody wrote."""
    if dtype is not None or not copy:
        return NotImplemented
    raise not_tried(ValueError("unsupported scalarType"))


@register(Kind.RECORD, aten.normal.Tensor_Tensor)
def _normal(
    tracer: Tracer, call: Call, mean: torch.Tensor, std: torch.Tensor, generator: torch.Generator | None
) -> object:
    """The numbers have the dtype of the mean."""
    if mean.dtype == std.dtype or not mean.is_floating_point():
        return NotImplemented
    with tracer.mode:
        return call.func(mean, std.to(mean.dtype), generator=generator)


@register(Kind.RECORD, aten.native_group_norm.default)
def _native_group_norm(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: object,
    C: object,
    group: int,
) -> object:
    """The channels may be other axes than the input's second; statistics are in float32 where a parameter is wider than half precision."""
    is_mixed = any(each is not None and each.dtype != input.dtype for each in (weight, bias))
    leads = zip(dims_of(input)[:2], (unwrap(N), unwrap(C)), strict=False)
    if input.dim() > 1 and not is_mixed and all(tracer.sizes.certain("eq", *pair) for pair in leads):
        return NotImplemented
    groups = (torch.float32 if is_mixed else input.dtype, [unwrap(N), group])
    return record_sized(tracer, call, [(input.dtype, dims_of(input)), groups, groups])


@register(Kind.RECORD, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal_of_none(tracer: Tracer, call: Call, mean: object, std: object) -> object:
    """normal of an empty tensor has the dtype of that tensor, whatever it is."""
    given = mean if isinstance(mean, torch.Tensor) else std
    if not isinstance(given, torch.Tensor) or 0 not in dims_of(given):
        return NotImplemented
    with tracer.mode:
        return given.clone()


_OF_INPUT = (
    aten.huber_loss.default, aten.soft_margin_loss.default, aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default, aten.soft_margin_loss_backward.default, aten.mish_backward.default,
)  # fmt: skip
"""Overloads whose result has the dtype of the input, whatever the others have."""


@register(
    Kind.RECORD,
    *_OF_INPUT,
    aten.hardshrink_backward.default,
    aten.softshrink_backward.default,
    aten.threshold_backward.default,
)
def _of_several_dtypes(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """Operands of several dtypes are promoted."""
    dtypes = {arg.dtype for arg in (*call.args, *call.kwargs.values()) if isinstance(arg, torch.Tensor)}
    if len(dtypes) == 1:
        return NotImplemented
    wide = functools.reduce(torch.promote_types, dtypes)

    def promoted(arg: object) -> object:
        return arg.to(wide) if isinstance(arg, torch.Tensor) else arg

    with tracer.mode:
        found: torch.Tensor = call.func(
            *map(promoted, call.args), **{name: promoted(arg) for name, arg in call.kwargs.items()}
        )
        return found.to(self.dtype) if call.func in _OF_INPUT else found


@register(Kind.RECORD, aten.rrelu_with_noise_backward.default)
def _random_slopes_backward(
    tracer: Tracer,
    call: Call,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> object:
    """The noise holds the slopes that were drawn; without any the slope is the mean of the bounds."""
    with tracer.mode:
        if training and upper - lower > 1e-6:
            return grad_output * noise
        return aten.leaky_relu_backward.default(grad_output, self, (lower + upper) / 2, self_is_result)


@register(Kind.RECORD, aten.sigmoid_backward.default)
def _sigmoid_backward(tracer: Tracer, call: Call, grad_output: torch.Tensor, output: torch.Tensor) -> object:
    """The factors in the kernel's order, which leave no range on the way where the result does not."""
    if output.dtype not in (torch.float32, torch.float64) or grad_output.dtype != output.dtype:
        return NotImplemented
    with tracer.mode:
        return grad_output * (1 - output) * output


@register(Kind.RECORD, aten.ldexp.Tensor)
def _ldexp(tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    """A power that is a real number is promoted; one that is an integer leaves the dtype of real numbers as it is."""
    wide = torch.result_type(self, other)
    if other.is_floating_point() and not self.dtype == other.dtype == wide:
        with tracer.mode:
            return call.func(self.to(wide), other.to(wide))
    if self.dtype in HALF and not other.is_floating_point():
        with tracer.mode:
            return call.func(self.float(), other).to(self.dtype)
    return NotImplemented


@register(Kind.RECORD, aten.fill.Tensor)
def _fill(tracer: Tracer, call: Call, self: torch.Tensor, value: torch.Tensor) -> object:
    """Real numbers are filled with the real part of a complex one."""
    if self.is_complex() or not value.is_complex():
        return NotImplemented
    with tracer.mode:
        return call.func(self, torch.real(value).to(self.dtype))


@register(Kind.RECORD, aten._weight_norm_interface.default)
def _weight_norm_interface(tracer: Tracer, call: Call, v: torch.Tensor, g: torch.Tensor) -> object:
    """The norms have the shape of the gain."""
    norms = torch.float32 if g.dtype in HALF else g.dtype
    return record_sized(tracer, call, [(v.dtype, dims_of(v)), (norms, dims_of(g))])


@register(Kind.RECORD, aten._weight_norm_interface_backward.default)
def _weight_norm_interface_backward(tracer: Tracer, call: Call, saved_v: torch.Tensor, saved_g: torch.Tensor) -> object:
    return record_sized(tracer, call, [(saved_v.dtype, dims_of(saved_v)), (saved_g.dtype, dims_of(saved_g))])


@register(Kind.RECORD, aten.binary_cross_entropy.default)
def _binary_cross_entropy(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> object:
    """The loss has the dtype of the probabilities, whatever the weight's, and their sizes, if they are empty."""
    if reduction == 0 and 0 in dims_of(self) and dims_of(target) != dims_of(self):
        with tracer.mode:
            return self.clone()
    if weight is None or weight.dtype == self.dtype or not weight.is_floating_point():
        return NotImplemented
    with tracer.mode:
        return call.func(self, target, weight.to(self.dtype), reduction)


@register(Kind.RECORD, aten.native_layer_norm.default)
def _native_layer_norm(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    normalized_shape: Sequence[object],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> object:
    """The statistics of half precision are in float32 beside parameters in float32."""
    given = weight if bias is None else bias
    if input.dtype not in HALF or given is None or given.dtype == input.dtype:
        return NotImplemented
    sizes, count = dims_of(input), len(normalized_shape)
    statistics = (torch.float32, [*sizes[: len(sizes) - count], *[1] * count])
    return record_sized(tracer, call, [(input.dtype, sizes), statistics, statistics])


@register(Kind.RECORD, aten._weight_norm.default)
def _weight_norm(tracer: Tracer, call: Call, v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> object:
    """Along the first or the last axis the result has the shape of the vectors, whatever axes the gain has."""
    if g.dim() <= v.dim() or dim not in (0, v.dim() - 1):
        return NotImplemented
    return record_sized(tracer, call, [(torch.promote_types(v.dtype, g.dtype), dims_of(v))])


@register(Kind.RECORD, aten.multilabel_margin_loss_forward.default)
def _multilabel_margin_loss(
    tracer: Tracer, call: Call, self: torch.Tensor, target: torch.Tensor, reduction: int
) -> object:
    """The loss of one sample has no axes, whatever the reduction."""
    loss = [dims_of(self)[0]] if self.dim() > 1 and reduction == 0 else []
    return record_sized(tracer, call, [(self.dtype, loss), (self.dtype, dims_of(target))])


@register(
    Kind.RECORD, aten._embedding_bag_forward_only.default, aten.embedding_bag.default, aten.embedding_bag.padding_idx
)
def _bags_with_last_offset(
    tracer: Tracer,
    call: Call,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None = None,
) -> object:
    """embedding_bag: with the last offset given, a sum has a size for each offset, the other modes one for each bag; the padding index of the
    public overload counts from the end where it is negative.
    """
    _check_bags(tracer, indices)
    if indices.dtype != offsets.dtype:
        return _of_one_integer(tracer, call, indices, offsets)
    padding = -1 if padding_idx is None else padding_idx
    if call.func is aten.embedding_bag.padding_idx and padding_idx is not None and padding < 0:
        padding += weight.shape[0]
    elif not include_last_offset and not (weight.dtype == torch.bfloat16 and mode == 0 and padding < 0):
        return NotImplemented
    with tracer.mode:
        output, bags, sizes, best = aten._embedding_bag.default(
            weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding
        )
        if not include_last_offset:
            return output, bags, sizes, best
        if mode == 0 and (call.func is aten._embedding_bag_forward_only.default or not weight.requires_grad):
            sizes, best = (torch.zeros(offsets.shape[0], dtype=offsets.dtype, device=offsets.device) for _ in range(2))
    return output, bags, sizes, best


@register(Kind.RECORD, aten.multi_margin_loss.default)
def _multi_margin_loss(tracer: Tracer, call: Call, self: torch.Tensor, target: torch.Tensor, reduction: int) -> object:
    """A loss for each target, with as many axes."""
    return record_sized(tracer, call, [(self.dtype, dims_of(target) if reduction == 0 else [])])


@register(Kind.RECORD, aten.native_dropout.default)
def _native_dropout(tracer: Tracer, call: Call, input: torch.Tensor, p: float, train: bool | None) -> object:
    """native_dropout: without ``train`` elements are dropped; the mask of no elements has the dtype of the input."""
    if train is None:
        with tracer.mode:
            return call.func(input, p, True)
    if 0 not in dims_of(input):
        return NotImplemented
    return record_sized(tracer, call, [(input.dtype, dims_of(input))] * 2)


@register(Kind.RECORD, aten._embedding_bag.default)
def _bags_of_bfloat16(
    tracer: Tracer,
    call: Call,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    mode: int,
    include_last_offset: bool,
    padding_idx: int,
) -> object:
    """A sum of all that is looked up needs no number of the bag for each index."""
    _check_bags(tracer, indices)
    if indices.dtype != offsets.dtype:
        return _of_one_integer(tracer, call, indices, offsets)
    if weight.dtype != torch.bfloat16 or mode != 0 or padding_idx >= 0:
        return NotImplemented
    bags = dims_of(offsets)[0] - int(include_last_offset)
    numbers = [(offsets.dtype, [size]) for size in (0, bags, bags)]
    return record_sized(tracer, call, [(weight.dtype, [bags, dims_of(weight)[1]]), *numbers])


def _check_bags(tracer: Tracer, indices: torch.Tensor) -> None:
    """Raises: UserError E203 for indices beyond which PyTorch's kernel of the maximum writes."""
    if indices.dim() != 1:
        raise tracer.values.refuse(
            "E203", f"the indices of bags have {indices.dim()} axes", next="flatten them, as offsets count them"
        )


def _of_one_integer(tracer: Tracer, call: Call, indices: torch.Tensor, offsets: torch.Tensor) -> object:
    """The bags of indices and offsets in the wider of their dtypes."""
    wide = torch.promote_types(indices.dtype, offsets.dtype)

    def cast(arg: object) -> object:
        return arg.to(wide) if isinstance(arg, torch.Tensor) and (arg is indices or arg is offsets) else arg

    with tracer.mode:
        return call.func(*map(cast, call.args), **{name: cast(arg) for name, arg in call.kwargs.items()})
