"""Runs of eager PyTorch whose operators round otherwise, and the distance of their results.

An engine adds in another order and has other approximations of ``erf`` or ``exp``: each result is off by some units in the
last place. Where a program chooses (``topk`` among nearly equal scores, ``argmax``, a comparison, ``round``), that decides
what comes out. So the module runs with such errors put on what its operators give, where they arise.

Equal scores are chosen among otherwise, too, where PyTorch does not say which of them it takes (``topk``, ``sort``); ONNX
says it: the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fx2onnx.capture.quantized.operands import state_of
from fx2onnx.capture.quantized.recurrent import (
    States,
    Step,
    gru_step,
    lstm_step,
    reduces_range,
    through_layers,
)
from fx2onnx.judge.constants import TRANSFORM_UNITS_PER_POINT
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.verify.wide import TERMS, axis_of, is_conditioned, is_of_matrices, is_singular, largest_of

aten = torch.ops.aten

_SUMS = frozenset(
    [
        "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "_convolution",
        "mkldnn_rnn_layer", "lstm", "gru", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_attention_math", "scaled_dot_product_attention",
        "_scaled_dot_product_fused_attention_overrideable", "_grouped_mm", "_scaled_mm", "_trilinear", "sum", "mean", "var",
        "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "cumprod", "prod", "logsumexp",
        "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training",
        "_fused_rms_norm", "rms_norm", "_softmax", "_log_softmax", "gelu", "gelu_", "erf", "erf_", "erfc",
        "tanh", "tanh_", "sigmoid", "sigmoid_", "silu", "silu_", "mish", "softplus", "elu", "selu",
        "celu", "celu_", "selu_", "elu_", "erfc_", "hardswish", "hardswish_", "glu", "log_sigmoid_forward", "log_sigmoid",
        "expm1", "log1p", "sin", "sin_", "cos", "cos_", "tan",
        "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa",
        "grid_sampler_2d", "grid_sampler_3d", "avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
        "adaptive_avg_pool1d", "affine_grid_generator", "_cdist_forward", "_euclidean_dist",
        "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
    ]
)  # fmt: skip
"""Operators whose errors are as large as those of the largest numbers beside: sums of terms that cancel."""
_TRANSFORMS = frozenset(["_fft_r2c", "_fft_c2c", "_fft_c2r", "stft", "istft"])
"""Fourier transforms."""
_NEAR_ONE = frozenset(
    [
        "sigmoid", "sigmoid_", "elu", "elu_", "celu", "celu_", "selu", "selu_", "erfc", "erfc_", "mkldnn_rnn_layer",
        "lstm", "gru", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    ]
)  # fmt: skip
"""Operators that onnxruntime computes as a difference of numbers near one, such as ``exp(x) - 1``: what is nearly nothing
is off by units of one.
"""
_NEAR_ONE_IN_RECURRENT = frozenset(["tanh", "tanh_"])
"""Operators that onnxruntime's recurrent operators, too, compute as a difference of numbers near one."""
_CENTRING = frozenset(
    [
        "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
        "var", "std", "var_mean", "std_mean",
    ]
)  # fmt: skip
"""Operators that take a mean off: of rows of equal numbers its rounding is all that is left, and is divided by nearly nothing."""
_AT_PLACES = frozenset(["grid_sampler_2d", "grid_sampler_3d"])
"""Operators that are given places, from -1 to 1 over an image, and turn them into pixels."""
_PLAIN = frozenset(
    [
        "add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "addcmul", "addcmul_", "addcdiv",
        "addcdiv_", "sqrt", "sqrt_", "rsqrt", "rsqrt_", "reciprocal", "reciprocal_", "pow", "pow_", "exp",
        "exp_", "exp2", "log", "log_", "log2", "log10", "lerp", "lerp_", "hypot", "atan", "atan2", "asin",
        "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "erfinv", "lgamma", "digamma", "_to_copy", "fmod",
        "remainder",
    ]
)  # fmt: skip
"""Operators whose errors are units in the last place of each number."""
_QUANTIZING = frozenset(
    [
        "quantize_per_tensor",
        "quantize_per_channel",
        "quantize_per_token",
        "quantize_per_channel_group",
        "quantize_affine",
    ]
)
"""Operators that round to codes; those of ``quantized::`` do, too. A number near the middle between two becomes either."""
_STEPPED = 1 / 32
"""The share of codes that are a step higher, and of those that are a step lower."""
_INNER_CODES = frozenset(
    [
        "linear_dynamic", "linear_relu_dynamic", "conv1d_dynamic", "conv2d_dynamic", "conv3d_dynamic",
        "conv_transpose1d_dynamic", "conv_transpose2d_dynamic", "conv_transpose3d_dynamic", "quantized_lstm_cell_dynamic",
        "quantized_gru_cell_dynamic", "quantized_rnn_relu_cell_dynamic", "quantized_rnn_tanh_cell_dynamic",
        "quantized_lstm", "quantized_gru",
    ]
)  # fmt: skip
"""Operators of floats that round what they are given to codes by its own range."""
CHOICES = frozenset(["topk", "sort", "kthvalue", "median"])
"""Operators that may take any of equal numbers along an axis."""
_ONE_PLACE = ("kthvalue", "median")
_MOST_FREQUENT = "mode"
"""Gives a place of the most frequent number of an axis, any of its places."""


_KNOWN = frozenset(["aten", "prims", "quantized", "quantized_decomposed", "torchao", "mkldnn", "mkldnn_prepacked"])
"""Namespaces whose operators are in these tables, or only move numbers. Another's are as well-conditioned as they show: what they
are given and what they give is off by rounding, since nobody sees the sums inside.
"""
_DRAWN = 999_983
"""Numbers drawn at once; a prime, so that rows do not get the same ones."""
_SPREADING = 2_654_435_761
"""Brings the bits of a number far from those of its neighbours (Knuth, The Art of Computer Programming 3, 6.4)."""


class Unmoved(EagerMode):
    """All is as it is without."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Moved(EagerMode):
    """Results are off by at most ``units`` in the last place, by a seed of its own; without units they are as they are, and
    of equal scores the first is chosen. ``keeps_equal``: equal results are off by the same, as those of a function of one number
    are in any engine, so that equal scores stay equal, and the first is chosen.
    """

    def __init__(
        self,
        seed: int,
        units: float,
        transform_units: float = 0.0,
        least_epsilon: float = 0.0,
        *,
        is_recurrent: bool = False,
        keeps_equal: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keeps_equal = keeps_equal
        self._generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(_DRAWN, generator=self._generator, dtype=torch.float32) * 2 - 1
        self._drawn = {drawn.device: drawn}
        self._units = units
        self._least_epsilon = least_epsilon
        self._near_one = _NEAR_ONE | _NEAR_ONE_IN_RECURRENT if is_recurrent else _NEAR_ONE
        self._transform_units = transform_units
        self.has_transforms = False
        """True if the run had a Fourier transform: sums over a whole frame, of which some results are nearly
        nothing."""
        self.has_inner_codes = False
        """True if the run had an operator that rounds to codes by the range of its input."""
        self.has_singular = False
        """True if the run had a singular matrix, of which a factor, an inverse or a solution is asked for. Looked at
        where nothing moves."""

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        is_foreign = func.namespace not in _KNOWN and not func._schema.is_mutable
        name = func._schema.name if is_foreign else func._schema.name.rpartition("::")[2]
        if name in CHOICES and not kwargs.get("stable") and len(func._schema.returns) == 2:
            return self._chosen(name, func, args, kwargs)
        if name == _MOST_FREQUENT:
            return self._place_of_equal(func, args, kwargs)
        if self._units and name in _INNER_CODES:
            self.has_inner_codes = True
            if func in STEPS and state_of(args[2][0])[0] == "quantized_dynamic":
                return by_steps(func, args, self._moved)
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._moved, (args, kwargs))
            if len(func._schema.returns) == 1 and func._schema.arguments[-1].name == "reduce_range":
                reduce_range = args[2] if len(args) > 2 else kwargs.get("reduce_range", False)
                args = (self._across(args[0], reduce_range), *args[1:])
        if self._units and name in _CENTRING and isinstance(args[0], torch.Tensor) and not args[0].is_complex():
            args = (self._jittered(args[0]), *args[1:])
        if self._units and name in _AT_PLACES:
            args = (args[0], args[1] + self._jittered(args[1].abs() + 1) - (args[1].abs() + 1), *args[2:])
        if not self._units:
            self.has_singular = self.has_singular or is_singular(name, args)
        elif is_conditioned(name) or is_foreign:
            off = functools.partial(self._off, name)
            args, kwargs = pytree.tree_map_only(torch.Tensor, off, (tuple(args), kwargs))
        beside = TERMS[name](func, args, kwargs) if self._units and name in TERMS else None
        units = self._units_of_transform(name, args) if name in _TRANSFORMS else self._units
        result = func(*args, **kwargs)
        if not self._units:
            return result
        if name == "cumsum" and isinstance(result, torch.Tensor) and result.is_floating_point():
            return result + torch.cumsum(self._jittered(result) - result, axis_of(func, args, kwargs))
        if name in _INNER_CODES and isinstance(result, torch.Tensor) and result.is_floating_point():
            return self._moved(result, name)
        if name in _QUANTIZING or func.namespace == "quantized":
            return self._stepped(result)
        if name in _PLAIN or name in _SUMS or name in _TRANSFORMS or is_conditioned(name) or is_foreign:
            for value in pytree.tree_leaves(result):
                if (
                    isinstance(value, torch.Tensor)
                    and value.numel()
                    and not value.is_meta
                    and not value._is_zerotensor()
                    and (value.is_floating_point() or value.is_complex())
                ):
                    self._move(value, name, beside, units)
        return result

    def _units_of_transform(self, name: str, args: Sequence[Any]) -> float:
        """The error of a Fourier transform in units of the last place: more where its length is no power of two, for some engines."""
        self.has_transforms = True
        if not self._transform_units or not name.startswith("_fft"):
            return self._transform_units or self._units
        lengths = [args[0].shape[axis] for axis in args[1]]
        lengths[-1] = args[3] if name == "_fft_c2r" else lengths[-1]
        uneven = max((length for length in lengths if length & (length - 1)), default=0)
        return max(self._transform_units, TRANSFORM_UNITS_PER_POINT * uneven)

    def _stepped(self, result: Any) -> Any:
        """Codes of which some are one more or one less, within the range that they have."""
        if not isinstance(result, torch.Tensor) or not result.numel():
            return result
        is_own = result.is_quantized
        if result.qscheme() != torch.per_tensor_affine if is_own else result.is_floating_point():
            return result
        codes = result.int_repr() if is_own else result
        noise = self._noise(codes.float())
        wide = codes.long() + (noise > 1 - 2 * _STEPPED) - (noise < 2 * _STEPPED - 1).long()
        moved = wide.clamp(int(codes.min()), int(codes.max())).to(codes.dtype)
        if not is_own:
            return moved
        scale, zero = result.q_scale(), result.q_zero_point()
        return torch.quantize_per_tensor((moved.double() - zero).float() * scale, scale, zero, result.dtype)

    def _across(self, value: torch.Tensor, reduce_range: bool) -> torch.Tensor:
        """Numbers that lie in the middle between two codes, beyond what rounding may move: PyTorch multiplies by 1 / scale, ONNX divides
        by it, and each takes another code.
        """
        if not value.numel() or not bool(torch.isfinite(value.sum())):
            return value
        low, high = float(value.min().clamp(max=0)), float(value.max().clamp(min=0))
        scale = (high - low) / (127 if reduce_range else 255)
        if not scale:
            return value
        places = value.double() / scale
        beyond = places - places.floor() - 0.5
        error = 255 * self._units * torch.finfo(torch.float32).eps
        other = value - ((beyond + torch.where(beyond < 0, -error, error)) * scale * 2).to(value.dtype)
        return torch.where(beyond.abs() < error, other, value)

    def _jittered(self, value: torch.Tensor) -> torch.Tensor:
        """Each number off by units in its last place, whole ones, too."""
        if not value.is_floating_point() or not value.numel():
            return value
        step = self._units * max(torch.finfo(value.dtype).eps, self._least_epsilon)
        return value + value * self._noise(value) * step

    def _off(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An operand off by units in the last place: of each number, or of the largest of its matrix."""
        if not value.numel() or not (value.is_floating_point() or value.is_complex()) or value.is_meta:
            return value
        step = self._units * max(torch.finfo(value.dtype).eps, self._least_epsilon)
        real = torch.view_as_real(value) if value.is_complex() else value
        noise = self._noise(real)
        if not is_of_matrices(name):
            return value + value * noise * step if not value.is_complex() else value
        noise = torch.view_as_complex(noise) if value.is_complex() else noise
        return value + largest_of(value) * noise * step

    def _moved(self, value: torch.Tensor, name: str = "") -> torch.Tensor:
        if not value.is_floating_point() or not value.numel():
            return value
        moved = value.clone()
        self._move(moved, name)
        return moved

    def _move(self, value: torch.Tensor, name: str, beside: torch.Tensor | None = None, units: float = 0.0) -> None:
        """``beside``: the numbers beside, by which it may be off, too; those of its row where they are not given."""
        real = torch.view_as_real(value) if value.is_complex() else value
        step = (units or self._units) * max(torch.finfo(real.dtype).eps, self._least_epsilon)
        if name in _PLAIN or is_conditioned(name):
            is_whole = real == real.round()  # whole numbers are exact in any engine, and infinity stays what it is
            real.add_((real * self._noise(real)).masked_fill_(is_whole, -0.0), alpha=step)  # a zero's sign stays, too
            return
        wide = real.float()
        if not bool(torch.isfinite(wide.sum())):
            wide = torch.nan_to_num(wide, 0.0, 0.0, 0.0)
        frame = tuple(range(max(real.dim() - 2, 0), real.dim()))
        if beside is None:
            beside = wide.abs().amax(frame, keepdim=True) if name in _TRANSFORMS else _rms(wide)
        if name in self._near_one:
            beside = torch.ones_like(beside)
        error = wide.abs().add_(beside).mul_(self._noise(wide))
        sign = real.sign() if name in self._near_one else None
        real.add_(error.to(real.dtype), alpha=step)
        if sign is not None:  # less than a unit of one is nothing, of which there is no logarithm
            real.masked_fill_(real * sign < 0, 0.0)

    def _noise(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers between -1 and 1: a part of those that were drawn once, which costs less than to draw as many."""
        start = int(torch.randint(_DRAWN, (1,), generator=self._generator))
        drawn = self._drawn.get(like.device)
        if drawn is None:
            drawn = self._drawn[like.device] = next(iter(self._drawn.values())).to(like.device)
        if self._keeps_equal:
            bits = like.float().contiguous().view(torch.int32).long()
            return drawn[(bits * _SPREADING + start) % _DRAWN].to(like.dtype)
        count = like.numel()
        rest = count - (_DRAWN - start)
        parts = [drawn[start : start + count], *[drawn] * (rest // _DRAWN), drawn[: max(rest, 0) % _DRAWN]]
        noise = torch.cat(parts) if rest > 0 else parts[0]
        return noise.reshape(like.shape).to(like.dtype)

    def _chosen(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The choice of the operator among numbers that differ by less than rounding: places of these, numbers as they are."""
        own = args[0]
        if not isinstance(own, torch.Tensor) or not own.dim() or not own.numel() or own.dtype == torch.bool:
            return func(*args, **kwargs)
        axis = axis_of(func, args, kwargs)
        if not self._units or self._keeps_equal:
            return _stable(name, func, args, kwargs, axis)
        wide = own.double()
        tiny = wide.abs().clamp(min=torch.finfo(torch.float32).tiny) * 2.0**-40
        finite = torch.isfinite(wide)
        moved = torch.where(finite, wide + tiny * self._noise(own.float()).double(), wide)
        places = func(moved, *args[1:], **kwargs)[1]
        if places.dim() == own.dim():
            return own.gather(axis, places), places
        return own.gather(axis, places.unsqueeze(axis)).squeeze(axis), places

    def _place_of_equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's numbers, each with another place of the axis that has it; with the last one where nothing moves."""
        own, (values, places) = args[0], func(*args, **kwargs)
        if not own.dim() or not own.numel() or bool((own != own).any()):
            return values, places
        axis = axis_of(func, args, kwargs)
        shown = values if values.dim() == own.dim() else values.unsqueeze(axis)
        order = torch.arange(own.shape[axis], dtype=torch.float32, device=own.device)
        order = order.reshape([-1 if place == axis % own.dim() else 1 for place in range(own.dim())]).expand(own.shape)
        if self._units and not self._keeps_equal:
            order = self._noise(order)
        return values, torch.where(own == shown, order, -2.0).argmax(axis, keepdim=values.dim() == own.dim())


def _stable(name: str, func: Any, args: Any, kwargs: Any, axis: int) -> Any:
    """The operator's result where the first of equal numbers comes first."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    own = args[0]
    is_falling = given.get("largest", True) if name == "topk" else given.get("descending", False)
    numbers, places = torch.sort(own, dim=axis, descending=is_falling, stable=True)
    if name in _ONE_PLACE:
        if bool(torch.isnan(own.sum())):  # of several, which PyTorch puts first
            return func(*args, **kwargs)
        place = given["k"] - 1 if name == "kthvalue" else (own.shape[axis] - 1) // 2
        taken = (numbers.narrow(axis, place, 1), places.narrow(axis, place, 1))
        return taken if given.get("keepdim", False) else tuple(value.squeeze(axis) for value in taken)
    count = given["k"] if name == "topk" else own.shape[axis]
    return numbers.narrow(axis, 0, count), places.narrow(axis, 0, count)


def _rms(wide: torch.Tensor) -> torch.Tensor:
    if not wide.dim():
        return wide.abs()
    norm: torch.Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return norm.div_(max(wide.shape[-1], 1) ** 0.5)


STEPS: dict[Any, Step] = {aten.quantized_lstm.input: lstm_step, aten.quantized_gru.input: gru_step}
Move = Callable[[torch.Tensor, str], torch.Tensor]
"""Moves a value as what an operator of that name gives."""


def by_steps(func: Any, args: Sequence[Any], move: Move) -> tuple[torch.Tensor, ...]:
    """The outputs of the layer where each operand is moved before it is rounded, and each state when it is made."""
    linear, step, params = torch.ops.quantized.linear_dynamic, STEPS[func], args[2]

    def direction(number: int, x: torch.Tensor, states: States) -> tuple[torch.Tensor, States]:
        (first, second), reduce_range = state_of(params[number])[4], reduces_range(params[number])
        outputs = []
        for product in linear(move(x, ""), first, reduce_range):
            after = step(product, linear(move(states[0], ""), second, reduce_range), states)
            states = [move(state, "sigmoid") for state in after]
            outputs.append(states[0])
        return torch.stack(outputs), states

    return through_layers(args[0], args[1], len(params), args[7], args[8], direction)
