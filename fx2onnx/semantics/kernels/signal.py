"""DFT, STFT, windows, mel weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, narrowed, numpy_dtype_of_code, widen


def _complex(x: Array) -> Array:
    if x.shape[-1] not in (1, 2):
        raise ValueError(f"the last axis has {x.shape[-1]} entries, not 1 (real) or 2 (complex)")
    wide = widen(x)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]


def _real_pair(x: Array, like: Array) -> Array:
    return narrowed(np.stack([x.real, x.imag], axis=-1), like.dtype)


def _dft(x: Array, length: Array | None, axis: int, inverse: int, onesided: int) -> Array:
    axis = check_axis(axis, x.ndim)
    if axis == x.ndim - 1:
        raise ValueError("the last axis holds the real and imaginary parts")
    if onesided and x.shape[-1] != (2 if inverse else 1):
        raise ValueError("a one-sided transform is of real numbers, its inverse of complex ones")
    full = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    size = full if length is None else int(length.reshape(()))
    if size < 1:
        raise ValueError(f"the length is {size}")
    check_shape((*x.shape[:axis], size, *x.shape[axis + 1 : -1], 4), widen(x).dtype, "the result of DFT")
    signal = _complex(x)
    if inverse and onesided:
        return narrowed(np.fft.irfft(signal, n=size, axis=axis)[..., None], x.dtype)
    spectrum = np.fft.ifft(signal, n=size, axis=axis) if inverse else np.fft.fft(signal, n=size, axis=axis)
    if onesided:
        spectrum = np.take(spectrum, np.arange(size // 2 + 1), axis=axis)
    return _real_pair(spectrum, x)


@kernel("DFT", 20, shape_inputs=(1, 2))
def dft(
    x: Array, length: Array | None = None, axis: Array | None = None, *, inverse: int = 0, onesided: int = 0
) -> Array:
    """The discrete Fourier transform along an axis; complex numbers are pairs in the last axis."""
    return _dft(x, length, -2 if axis is None else int(axis.reshape(())), inverse, onesided)


@kernel("DFT", 17, shape_inputs=(1,))
def dft_17(x: Array, length: Array | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Array:
    """DFT of opsets 17-19: the axis is an attribute."""
    return _dft(x, length, axis, inverse, onesided)


@kernel("STFT", 17, shape_inputs=(1, 3))
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    """The DFT of windowed frames. Shapes: [B, L, 1 or 2] -> [B, frames, bins, 2]."""
    step = int(frame_step.reshape(()))
    if frame_length is not None:
        length = int(frame_length.reshape(()))
    elif window is not None:
        length = window.shape[0]
    else:
        raise ValueError("neither window nor frame_length is given")
    if step < 1 or not 0 < length <= signal.shape[1]:
        raise ValueError(f"frames of {length} every {step} do not fit a signal of {signal.shape[1]}")
    values = _complex(signal)
    frames = (signal.shape[1] - length) // step + 1
    check_shape((signal.shape[0], frames, length, 4), widen(signal).dtype, "the result of STFT")
    places = np.arange(frames)[:, None] * step + np.arange(length)
    cut = values[:, places]
    if window is not None:
        cut = cut * widen(window)
    spectrum = np.fft.fft(cut, axis=-1)
    return _real_pair(spectrum[..., : length // 2 + 1] if onesided else spectrum, signal)


WINDOWS = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -(1 - 25 / 46)),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Weights of cos(0), cos(angle), cos(2 angle)."""


def _register_window(op_type: str, weights: Sequence[float]) -> None:
    def window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        length = int(size.reshape(()))
        check_shape((length,), np.dtype(np.float64), "a window")
        angle = 2 * math.pi * np.arange(length, dtype=np.float64) / max(length if periodic else length - 1, 1)
        values = sum(weight * np.cos(order * angle) for order, weight in enumerate(weights))
        return cast_array(np.asarray(values), numpy_dtype_of_code(output_datatype))

    window.__doc__ = f"{op_type}: a sum of cosines over one period."
    kernel(op_type, 17, shape_inputs=(0,))(window)


for _op_type, _weights in WINDOWS.items():
    _register_window(_op_type, _weights)


@kernel("MelWeightMatrix", 17, shape_inputs=(0, 1))
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    """Triangles, evenly spaced in mel, over the bins of a spectrogram. Shapes: -> [dft_length // 2 + 1, num_mel_bins]."""
    bins, length, rate = (int(item.reshape(())) for item in (num_mel_bins, dft_length, sample_rate))
    if bins < 1 or length < 1 or rate < 1:
        raise ValueError(f"{bins} mel bins, DFT length {length} and sample rate {rate} must be positive")
    check_shape((length // 2 + 1, bins), np.dtype(np.float64), "the mel weights")
    low, high = (2595 * math.log10(1 + float(item.reshape(())) / 700) for item in (lower_edge_hertz, upper_edge_hertz))
    points = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700 * (10 ** (points / 2595) - 1)
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    if edges.min() < 0 or edges.max() > length // 2:
        raise ValueError("an edge lies outside the spectrogram")
    weights = np.zeros((length // 2 + 1, bins))
    for number in range(bins):
        left, centre, right = (int(edge) for edge in edges[number : number + 3])
        if centre == left:
            weights[centre, number] = 1
        else:
            rising = np.arange(left, centre + 1)
            weights[rising, number] = (rising - left) / (centre - left)
        if right > centre:
            falling = np.arange(centre, right)
            weights[falling, number] = (right - falling) / (right - centre)
    return cast_array(weights, numpy_dtype_of_code(output_datatype))
