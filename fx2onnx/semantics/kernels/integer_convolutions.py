"""Convolutions of quantized tensors: ConvInteger, QLinearConv. Their sums are exact, as those of ``integer_products.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.conv_first import window_products
from fx2onnx.semantics.kernels.conv_plan import depthwise_last, epilogue, first_form, is_small, taps_last
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.integer_products import (
    EXACT,
    INT32,
    centered,
    check_codes,
    kept_weights,
    magnitude,
    reach,
    requantize,
    to_int32,
)
from fx2onnx.semantics.kernels.windows import Window, conv_window, pad_spatial
from fx2onnx.semantics.registry import Calls, Facts, Prepared, bind, kernel, run_all
from fx2onnx.semantics.types import FLOAT32, Array, Dtype, Spec


class _IntegerConvolution:
    """The sums of a convolution of integers: in float32 where that is exact, by slices of channels, or in float64."""

    def __init__(
        self, shape: Sequence[int], weights: Array, window: Window, group: int, bound: int, most: float
    ) -> None:
        taps, step = math.prod(window.kernel), EXACT // max(bound, 1)
        ins = weights.shape[1]
        is_depthwise = group != 1 and group == shape[1] == weights.shape[0]
        self.window, self.group, self.weights, self.most = window, group, weights, most
        self.slices: list[tuple[slice, Prepared]] = []
        per = ins if ins * taps <= step or most <= EXACT else step // taps if group == 1 else 0
        for start in range(0, ins, per) if per and 0 not in (*shape, *window.out, *weights.shape) else ():
            stop = min(start + per, ins)
            cut = slice(None) if stop - start == ins else slice(start, stop)
            if is_depthwise and len(window.out) == 2 and is_small(window):
                bare = epilogue(np.zeros(1, FLOAT32), "", None)
                self.slices.append((slice(None), depthwise_last(shape, taps_last(weights, group), window, bare)))
                continue
            arrange, form = first_form(window, is_depthwise)
            part = (shape[0], shape[1] if cut == slice(None) else stop - start, *shape[2:])
            self.slices.append((cut, form(part, arrange(weights[:, start:stop], group), window)))

    def sums(self, x: Array, y: Array) -> Array:
        """The sums of x in float32; in ``y``, or in float64."""
        if not self.slices:
            window = self.window
            wide = np.empty(y.shape, np.float64)
            weights = self.weights.astype(np.float64).reshape(self.group, len(self.weights) // self.group, -1)
            padded = pad_spatial(x.astype(np.float64), window.before, window.after)
            run_all(window_products(padded, weights, window, wide))
            return wide
        total: Array | None = None
        y = self.in_its_order(y)
        for cut, form in self.slices:
            form.fn([y], [np.empty(shape, dtype) for shape, dtype in form.scratch], x[:, cut])
            if len(self.slices) > 1:
                total = y.astype(np.float64) if total is None else np.add(total, y, out=total)
        return y if total is None else total

    def in_its_order(self, y: Array) -> Array:
        """The memory of y as [N, *dims, C] where the sums come so."""
        if self.slices[0][1].channels_last:
            y = y.reshape(len(y), *y.shape[2:], y.shape[1]).transpose(0, 3, 1, 2)
        return y


def _convolution(
    x: Array,
    x_zero: Array | None,
    w: Array,
    w_zero: Array | None,
    attrs: Mapping[str, Any],
    weights: Array | None = None,
) -> _IntegerConvolution:
    if weights is None:
        weights = centered(w, w_zero, (-1, *(1,) * (w.ndim - 1)))
    window = conv_window(x.shape, w.shape, attrs)
    largest = magnitude(x.dtype, x_zero)
    most = largest * reach(weights, tuple(range(1, w.ndim)))
    bound = largest * magnitude(w.dtype, w_zero)
    return _IntegerConvolution(x.shape, weights, window, attrs.get("group", 1), bound, most)


def _conv_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, w = inputs[0], inputs[1]
    return (((x.shape[0], w.shape[0], *conv_window(x.shape, w.shape, attrs).out), INT32),)


def qconv_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Shape and dtype of QLinearConv's output."""
    x, w = inputs[0], inputs[3]
    return (((x.shape[0], w.shape[0], *conv_window(x.shape, w.shape, attrs).out), inputs[7].dtype),)


def _weight_axes(facts: Facts, place: int) -> tuple[int, ...]:
    spec = facts.inputs[place]
    return (-1, *(1,) * (len(spec[0]) - 1)) if spec is not None else ()


Finish = Callable[[Array, Sequence[Any], float, Array], None]
"""Writes the output from the sums, the node's inputs, and the largest sum that there can be."""


def _prepare(facts: Facts, place: int, zeros: tuple[int, int], finish: Finish) -> Prepared | None:
    """The convolution by constant weights; where the zero points, at these places, are constant and all sums exact in float32, its
    calls are bound once.
    """
    kept, spec = kept_weights(facts, place, zeros[1], _weight_axes(facts, place)), facts.inputs[0]
    if kept is None or spec is None:
        return None
    weights, most = kept
    shape, group = spec[0], facts.attrs.get("group", 1)
    window = conv_window(shape, weights.shape, facts.attrs)
    forms: dict[tuple[int, int], _IntegerConvolution] = {}

    def form(x_zero: Array | None, w_zero: Array | None, w: Dtype) -> _IntegerConvolution:
        key = largest, _ = magnitude(spec[1], x_zero), magnitude(w, w_zero)
        if key not in forms:
            forms[key] = _IntegerConvolution(shape, weights, window, group, math.prod(key), largest * most)
        return forms[key]

    def call(out: Outs, room: list[Array], *inputs: Any) -> None:
        x_zero, w_zero = (inputs[one] if len(inputs) > one else None for one in zeros)
        made = form(x_zero, w_zero, inputs[place].dtype)
        finish(made.sums(centered(inputs[0], x_zero, (), room[0]), room[1]), inputs, made.most, out[0])

    scratch: tuple[Spec, ...] = (shape, FLOAT32), (facts.outputs[0][0], FLOAT32)
    given = facts.inputs[zeros[0]] if len(facts.inputs) > zeros[0] else None
    x_zero, w_zero = (facts.consts[one] if len(facts.inputs) > one else None for one in zeros)
    w = facts.consts[place]
    if w is not None and (given is None) == (x_zero is None):
        fixed = form(x_zero, w_zero, w.dtype)
        if len(fixed.slices) == 1:
            (_, inner), zero = fixed.slices[0], None if x_zero is None or not x_zero.any() else x_zero.astype(FLOAT32)

            def calls(out: Outs, room: list[Array], *inputs: Any) -> list[Call]:
                wide, y = room[0], fixed.in_its_order(room[1])
                made: list[Call] = [partial(np.copyto, wide, inputs[0], "unsafe")]
                made += [] if zero is None else [partial(np.subtract, wide, zero.reshape(()), wide)]
                made += bind(inner.fn, [y], room[2:], wide)
                return [*made, partial(finish, y, inputs, fixed.most, out[0])]

            return Prepared(Calls(calls), (*scratch, *inner.scratch), inplace=())
    return Prepared(call, scratch, inplace=())


def _finish_sums(sums: Array, _: Sequence[Any], __: float, out: Array) -> None:
    to_int32(sums, out)


def _prepare_conv_integer(facts: Facts) -> Prepared | None:
    return _prepare(facts, 1, (2, 3), _finish_sums)


@kernel("ConvInteger", 10, kind="into", infer=_conv_infer, prepare=_prepare_conv_integer)
def conv_integer(
    out: Outs, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **attrs: Any
) -> None:
    """out[0] = Conv of int8 or uint8 with zero points, summed in int32."""
    check_codes(x, w)
    sums = np.empty(out[0].shape, FLOAT32)
    to_int32(_convolution(x, x_zero, w, w_zero, attrs).sums(centered(x, x_zero), sums), out[0])


def _finish_qconv(sums: Array, inputs: Sequence[Any], most: float, out: Array) -> None:
    """Bias, scale and zero point. A bias that float32 might round goes through float64."""
    x_scale, w_scale, y_scale, y_zero = inputs[1], inputs[4], inputs[6], inputs[7]
    bias = inputs[8] if len(inputs) > 8 else None
    if bias is not None:
        channels = bias.reshape(-1, *(1,) * (sums.ndim - 2))
        is_exact = most + (int(np.abs(bias.astype(np.int64)).max()) if bias.size else 0) <= EXACT
        sums = np.add(sums, channels.astype(FLOAT32), out=sums) if is_exact else sums + channels.astype(np.float64)
    factor = np.asarray(x_scale * w_scale / y_scale, FLOAT32)
    factor = factor.reshape(-1, *(1,) * (sums.ndim - 2)) if factor.size > 1 else factor.reshape(())
    if sums.ndim == 4 and not sums.flags.c_contiguous:  # channels-last, from a depthwise form
        lines = np.empty(sums.transpose(0, 2, 3, 1).shape, out.dtype)
        for sample, line, target in zip(sums, lines, out, strict=True):
            requantize(sample.transpose(1, 2, 0), factor.reshape(-1) if factor.ndim else factor, y_zero, line)
            _turn(line.reshape(-1, len(target)).view(np.uint8), target.reshape(len(target), -1).view(np.uint8))
        return
    for sample, target in zip(sums, out, strict=True):
        requantize(sample, factor, y_zero, target)


def _turn(lines: Array, out: Array) -> None:
    """out = the bytes [positions, channels] transposed, four positions at a time as one word: NumPy takes as long for a byte."""
    whole = len(lines) - len(lines) % 4
    quads = lines[:whole].reshape(-1, 4, lines.shape[1])
    words = quads[:, 3].astype("<u4")
    for place in (2, 1, 0):
        np.left_shift(words, 8, out=words)
        np.bitwise_or(words, quads[:, place], out=words)
    out[:, :whole] = np.ascontiguousarray(words.T).view(np.uint8)
    out[:, whole:] = lines[whole:].T


def _prepare_qlinear_conv(facts: Facts) -> Prepared | None:
    return _prepare(facts, 3, (2, 5), _finish_qconv)


@kernel("QLinearConv", 10, kind="into", infer=qconv_infer, prepare=_prepare_qlinear_conv)
def qlinear_conv(
    out: Outs,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    **attrs: Any,
) -> None:
    """out[0] = the convolution of dequantized x and w, quantized again."""
    check_codes(x, w, y_zero)
    form = _convolution(x, x_zero, w, w_zero, attrs)
    sums = form.sums(centered(x, x_zero), np.empty(out[0].shape, FLOAT32))
    inputs = (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    _finish_qconv(sums, inputs, form.most, out[0])
