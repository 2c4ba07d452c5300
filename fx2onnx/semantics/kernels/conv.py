"""Conv, ConvTranspose, Col2Im, FusedConv, CausalConvWithState."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.activation import swish
from fx2onnx.semantics.kernels.conv_first import window_products
from fx2onnx.semantics.kernels.conv_plan import prepare_conv
from fx2onnx.semantics.kernels.elementwise import Outs, check_same_dtype
from fx2onnx.semantics.kernels.threads import spread
from fx2onnx.semantics.kernels.windows import Window, conv_window, pad_spatial, resolve_window
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, find_kernel, kernel, run_all
from fx2onnx.semantics.types import NARROW_FLOATS, Array, Spec, narrowed, widen


def _conv_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_same_dtype([item for item in inputs if item is not None])
    return _out_spec(inputs, attrs)


def _out_spec(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, w = inputs[0], inputs[1]
    window = conv_window(x.shape, w.shape, attrs)
    return (((x.shape[0], w.shape[0], *window.out), x.dtype),)


@kernel("Conv", kind="into", infer=_conv_infer, prepare=prepare_conv)
def conv(out: Outs, x: Array, w: Array, bias: Array | None = None, **attrs: Any) -> None:
    """out[0][n, o] = bias[o] + sum over c, k of x[n, c, position + k] * w[o, c, k].

    Shapes:   x [N, C, *dims], w [O, C/group, *kernel], bias [O].
    Buffers:  a padded copy of x where there are pads; columns in blocks of ``COLUMN_BLOCK_BYTES``.
    """
    window = conv_window(x.shape, w.shape, attrs)
    if x.dtype in NARROW_FLOATS:
        wide = np.empty(out[0].shape, np.float32)
        convolve(widen(x), widen(w), window, attrs.get("group", 1), wide)
        if bias is not None:
            wide += widen(bias).reshape(-1, *(1,) * len(window.out))
        out[0][...] = wide.astype(x.dtype)
        return
    convolve(x, w, window, attrs.get("group", 1), out[0])
    if bias is not None:
        np.add(out[0], bias.reshape(-1, *(1,) * len(window.out)), out=out[0])


def convolve(x: Array, w: Array, window: Window, group: int, y: Array) -> None:
    """y = the convolution, without bias."""
    padded = pad_spatial(x, window.before, window.after)
    weight = np.ascontiguousarray(w).reshape(group, w.shape[0] // group, -1)
    if y.flags.c_contiguous:
        run_all(window_products(padded, weight, window, y))
    else:
        flat = np.empty(y.shape, y.dtype)
        run_all(window_products(padded, weight, window, flat))
        y[...] = flat


def transpose_geometry(
    dims: Sequence[int], kernel_dims: Sequence[int], attrs: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations, pads before, output dims of a ConvTranspose."""
    n = len(dims)
    strides, dilations = (tuple(attrs.get(name, (1,) * n)) for name in ("strides", "dilations"))
    extra, pads = tuple(attrs.get("output_padding", (0,) * n)), tuple(attrs.get("pads", (0,) * 2 * n))
    wanted = attrs.get("output_shape")
    mode = attrs.get("auto_pad", "NOTSET")
    if not len(strides) == len(dilations) == len(extra) == n or len(pads) != 2 * n:
        raise ValueError(f"strides, dilations, output_padding or pads do not fit {n} spatial axes")
    if min((*strides, *dilations, *kernel_dims)) < 1:
        raise ValueError("kernel, strides and dilations must be positive")
    if min((*extra, *pads)) < 0:
        raise ValueError(f"output_padding is {list(extra)} and pads {list(pads)}; they must not be negative")
    if any(each >= max(s, step) for each, s, step in zip(extra, strides, dilations, strict=True)):
        raise ValueError(f"output_padding is {list(extra)}; it must be less than the stride or the dilation")
    if tuple(attrs.get("kernel_shape", kernel_dims)) != tuple(kernel_dims):
        raise ValueError(f"kernel_shape is {list(attrs['kernel_shape'])}, the weight's {list(kernel_dims)}")
    if wanted is not None and len(wanted) not in (n, n + 2):
        raise ValueError(f"output_shape {list(wanted)} does not fit {n} spatial axes")
    if mode != "NOTSET" and any(pads):
        raise ValueError(f"pads are {list(pads)} and auto_pad is {mode}, which goes without pads")
    full = [
        s * (d - 1) + e + (k - 1) * step + 1
        for d, s, k, step, e in zip(dims, strides, kernel_dims, dilations, extra, strict=True)
    ]
    if wanted or mode in ("SAME_UPPER", "SAME_LOWER"):
        out = tuple(wanted)[-n:] if wanted else tuple(d * s for d, s in zip(dims, strides, strict=True))
        total = [
            max(f - o, 0) for f, o in zip(full, out, strict=True)
        ]  # what is beyond all of it stands at the end, as zeros
        most = [f + s - 1 for f, s in zip(full, strides, strict=True)]
        if wanted and (min(out) < 1 or any(o > m for o, m in zip(out, most, strict=True))):
            raise ValueError(f"output_shape is {list(out)}, of such an input it is positive and at most {most}")
        before = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
        return strides, dilations, before, out
    if mode == "VALID":
        pads = (0,) * 2 * n
    out = tuple(f - pads[i] - pads[n + i] for i, f in enumerate(full))
    if min(out) < 0:
        raise ValueError(f"the output would have the dims {list(out)}")
    return strides, dilations, pads[:n], out


@kernel("ConvTranspose")
def conv_transpose(x: Array, w: Array, bias: Array | None = None, *, group: int = 1, **attrs: Any) -> Array:
    """The gradient of Conv: every input element adds its weighted kernel to the output.

    Shapes: x [N, C, *dims], w [C, O/group, *kernel].
    """
    if group < 1 or w.shape[0] != x.shape[1] or x.shape[1] % group or w.ndim != x.ndim:
        raise ValueError(f"{x.shape[1]} channels, weight {list(w.shape)} and group {group} do not fit")
    batch, ins, outs = x.shape[0], x.shape[1] // group, w.shape[1]
    kernel_dims = w.shape[2:]
    strides, dilations, before, out_dims = transpose_geometry(x.shape[2:], kernel_dims, attrs)
    wide_x, wide_w = widen(x), widen(w)
    check_shape((batch, group * outs, *out_dims), wide_x.dtype, "the result of ConvTranspose")
    taps, points = math.prod(kernel_dims), math.prod(x.shape[2:])
    check_shape((batch, group, outs * taps, points), wide_x.dtype, "the columns of ConvTranspose")
    weight = wide_w.reshape(group, ins, outs * taps).transpose(0, 2, 1)
    y = np.zeros((batch, group * outs, *out_dims), wide_x.dtype)

    def do(sample: int) -> None:
        columns = np.matmul(weight, wide_x[sample].reshape(group, ins, points))
        columns = columns.reshape(1, group * outs, *kernel_dims, *x.shape[2:])
        add_columns(y[sample : sample + 1], columns, kernel_dims, strides, dilations, before)

    spread([functools.partial(do, sample) for sample in range(batch)])
    if bias is not None:
        y += widen(bias).reshape(-1, *(1,) * len(out_dims))
    return narrowed(y, x.dtype)


def add_columns(
    y: Array,
    columns: Array,
    kernel_dims: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
) -> None:
    """y [N, C, *out] += columns [N, C, *kernel, *dims], each tap at its offset; what falls outside is dropped."""
    dims = columns.shape[2 + len(kernel_dims) :]
    if len(dims) == 1 and dilations[0] == 1 and strides[0] > 1 and y.size and columns.size:
        _add_row_columns(y, columns, strides[0], before[0])
        return
    for tap in np.ndindex(*kernel_dims):
        target: list[slice] = []
        source: list[slice] = []
        for t, d, s, b, dim, size in zip(tap, dilations, strides, before, dims, y.shape[2:], strict=True):
            offset = t * d - b
            low = max(-(offset // s), 0)
            high = min(dim, (size - 1 - offset) // s + 1)
            source.append(slice(low, high))
            target.append(slice(offset + low * s, offset + (high - 1) * s + 1, s))
        if all(cut.stop > cut.start for cut in source):
            y[(slice(None), slice(None), *target)] += columns[(slice(None), slice(None), *tap, *source)]


def _add_row_columns(y: Array, columns: Array, stride: int, before: int) -> None:
    """y [N, C, size] += columns [N, C, kernel, dim], as many taps at a time as the stride has positions."""
    batch, channels, taps, dim = columns.shape
    parts = -(-taps // stride)
    whole = np.zeros((batch, channels, dim + parts - 1, stride), y.dtype)
    for part in range(parts):
        cut = columns[:, :, part * stride : (part + 1) * stride].transpose(0, 1, 3, 2)
        whole[:, :, part : part + dim, : cut.shape[3]] += cut
    line = whole.reshape(batch, channels, (dim + parts - 1) * stride)[
        :, :, max(before, 0) : before + y.shape[2] if before + y.shape[2] > 0 else 0
    ]
    y[:, :, max(-before, 0) : max(-before, 0) + line.shape[2]] += line


@kernel("Col2Im", 18, shape_inputs=(1, 2))
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Blocks in columns, summed into an image."""
    if x.ndim != 3:
        raise ValueError(f"the input has {x.ndim} axes, it must have 3")
    image, block = image_shape.tolist(), block_shape.tolist()
    n = len(image)
    window = resolve_window(tuple(image), block, strides, dilations, pads, "NOTSET")
    check_shape((x.shape[0], x.shape[1], *image), x.dtype, "the result of Col2Im")
    channels = x.shape[1] // math.prod(block)
    columns = x.reshape(x.shape[0], channels, *block, *window.out)
    y = np.zeros((x.shape[0], channels, *image), x.dtype)
    add_columns(y, columns, block, window.strides, window.dilations, window.before[:n])
    return y


@kernel("FusedConv", domain=PRIVATE_DOMAIN, kind="into", infer=_out_spec, prepare=prepare_conv)
def fused_conv(
    out: Outs,
    x: Array,
    w: Array,
    bias: Array | None = None,
    scale: Array | None = None,
    beta: Array | None = None,
    mean: Array | None = None,
    var: Array | None = None,
    *,
    activation: str = "",
    bounds: tuple[float, float] | None = None,
    epsilon: float = 1e-5,
    **attrs: Any,
) -> None:
    """Conv, then BatchNormalization where its four parameters are given, then an activation."""
    conv(out, x, w, bias, **attrs)
    y = out[0]
    if scale is not None and beta is not None and mean is not None and var is not None:
        axes = (-1, *(1,) * (y.ndim - 2))
        factor = scale / np.sqrt(var + np.asarray(epsilon, var.dtype))
        np.multiply(y, factor.reshape(axes), out=y)
        np.add(y, (beta - mean * factor).reshape(axes), out=y)
    if activation == "Clip" and bounds is not None:
        np.clip(y, *(np.asarray(bound, y.dtype) for bound in bounds), out=y)
    elif activation:
        known = find_kernel("", activation, 22)
        assert known is not None
        known.fn([y], y.copy())


@kernel("CausalConvWithState", 27)
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> tuple[Array, Array]:
    """A depthwise convolution that sees only the past; the last k - 1 positions are handed on.

    Shapes: x [B, C, L], weight [C, 1, k], state [B, C, k - 1].
    """
    if activation not in ("none", "silu", "swish"):
        raise ValueError(f"the activation is {activation!r}")
    width = weight.shape[2]
    past = np.zeros((*x.shape[:2], width - 1), x.dtype) if past_state is None else past_state
    padded = np.concatenate([past, x], axis=2)
    wide = widen(padded)
    total = np.zeros(x.shape, wide.dtype)
    for tap in range(width):
        total += wide[:, :, tap : tap + x.shape[2]] * widen(weight)[:, 0, tap, None]
    if bias is not None:
        total += widen(bias)[:, None]
    y = total.astype(x.dtype)
    if activation != "none":
        y = swish(y)
    return y, padded[:, :, padded.shape[2] - (width - 1) :].copy()
