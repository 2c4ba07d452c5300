"""Short-time Fourier transforms, window functions, shifts of spectra, frequencies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.fourier import exactly_real, rescaled, resized, to_real, transform
from fx2onnx.aten_map.padding import padded
from fx2onnx.aten_map.repeating import _rolled as rolled
from fx2onnx.aten_map.table.axes import fixed, whole
from fx2onnx.aten_map.table.dtypes import TORCH_DTYPES
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
D = ir.DataType


def _shift(back: bool) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value, dim: Any) -> ir.Value:
        rank = op.rank(self) - op.is_complex(self)
        axes = list(range(rank)) if dim is None else [axis % rank for axis in ([dim] if isinstance(dim, int) else dim)]
        value = self
        for axis in axes:
            size = op.dims(value)[axis]
            value = rolled(op, value, axis, (size + 1) // 2 if back else size // 2)  # type: ignore[arg-type]
        return value

    return entry


for _name, _back in {"fft_fftshift": False, "fft_ifftshift": True}.items():
    register_shared(_shift(_back), "roll by half of each axis", *overloads_of(_name))
    register_shared(_shift(_back), "roll by half of each axis", *overloads_of(_name), is_complex=True)


def _frequencies(half: bool) -> Callable[..., ir.Value]:
    def entry(op: Emit, n: int, d: float) -> ir.Value:
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.arange(int(n / 2) + 1) if half else np.fft.ifftshift(np.arange(n) - n // 2)
            numbers = steps * (1.0 / np.float64(n * d))
        return op.const(numbers, op.result_dtype())

    return entry


register_shared(_frequencies(False), "a constant", *overloads_of("fft_fftfreq"))
register_shared(_frequencies(True), "a constant", *overloads_of("fft_rfftfreq"))


def window_of(op: Emit, window: ir.Value | None, length: int, n_fft: int, dtype: ir.DataType) -> ir.Value | None:
    """The window, zeros around it up to ``n_fft``; None for a rectangle of that length."""
    if window is not None and op.is_complex(window):
        raise UserError("E203", "a complex window of a short-time Fourier transform", next="use a real window")
    if window is None and length == n_fft:
        return None
    value = op.const(np.ones(length), dtype) if window is None else op.cast(window, dtype)
    left = (n_fft - length) // 2
    if length == n_fft:
        return value
    return op.Pad(value, pads=np.array([left, n_fft - length - left]))


def _stft(
    op: Emit,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: ir.Value | None,
    normalized: bool,
    onesided: bool | None,
    center: bool = False,
) -> ir.Value:
    """[*, L] -> [*, bins, frames, 2]: one STFT-17; before it (and of complex signals) frames by Gather, then a DFT."""
    if center:
        raise UserError("E203", "stft with center=True as one operator", next="call torch.stft, which pads first")
    hop = n_fft // 4 if hop_length is None else hop_length
    dtype, dims = op.result[0]
    whole = op.is_complex(self)
    self = op.cast(self, dtype)
    half = (not whole) if onesided is None else onesided
    rank = op.rank(self) - whole
    shape = window_of(op, window, n_fft if win_length is None else win_length, n_fft, dtype)
    bins, frames = dims[-3], dims[-2]
    if has_op("STFT", op.opset) and not whole:
        signal = op.Unsqueeze(self if rank == 2 else op.Unsqueeze(self, axes=[0]), axes=[2])
        batch = op.dims(signal)[0]
        shape = shape if shape is not None else op.const(np.ones(n_fft), dtype)
        typed = [(dtype, (batch, frames, bins, 2))]
        found = op.STFT(
            signal, op.const(np.int64(hop)), shape, op.const(np.int64(n_fft)), onesided=int(half), outputs=typed
        )
        found = op.Transpose(exactly_real(op, found, 2, n_fft), perm=[0, 2, 1, 3])
        found = found if rank == 2 else op.Squeeze(found, axes=[0])
    else:
        if isinstance(frames, Dim):
            raise UserError("E203", "stft of a dynamic length", next="export with opset_version=17 or newer")
        places = np.arange(frames)[:, None] * hop + np.arange(n_fft)[None, :]
        pieces = op.Gather(self, places, axis=rank - 1)
        pieces = pieces if whole else op.Unsqueeze(pieces, axes=[rank + 1])
        if shape is not None:
            pieces = op.Mul(pieces, op.Unsqueeze(shape, axes=[1]))
        found = transform(op, pieces, rank, False, half)
        found = found if whole else exactly_real(op, found, rank, n_fft)
        perm = [*range(rank - 1), rank, rank - 1, rank + 1]
        found = op.Transpose(found, perm=perm)
    found = rescaled(op, found, -0.5, n_fft) if normalized else found
    return found


register_shared(_stft, "STFT-17; Gather of frames and DFT before", *overloads_of("stft stft.center"), is_complex=True)
register_shared(_stft, "STFT-17; Gather of frames and DFT before", *overloads_of("stft stft.center"))


def _istft(
    op: Emit,
    self: ir.Value,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: ir.Value | None,
    center: bool,
    normalized: bool,
    onesided: bool | None,
    length: int | None,
    return_complex: bool,
) -> ir.Value:
    """[*, bins, frames, 2] -> [*, L]: inverse DFT of each frame's first half, times the window, added where frames overlap (one
    ConvTranspose with a unit kernel), over the same sum of squared windows.
    """
    if return_complex:
        raise UserError("E203", "istft with return_complex=True", next="use return_complex=False")
    hop = n_fft // 4 if hop_length is None else hop_length
    dtype = op.result_dtype()
    rank = op.rank(self) - 1
    value = self if rank == 3 else op.Unsqueeze(self, axes=[0])
    value = op.cast(value, dtype)
    frames = op.dims(value)[2]
    signal = rescaled(op, to_real(op, value, 1, n_fft), -0.5 if normalized else -1.0, n_fft)
    size = n_fft if win_length is None else win_length
    shape = window_of(op, window, size, n_fft, dtype)
    column = op.Unsqueeze(shape if shape is not None else op.const(np.ones(n_fft), dtype), axes=[1])
    kernel = op.const(np.eye(n_fft)[:, None, :], dtype)
    total: DimLike = (frames - 1) * hop + n_fft  # type: ignore[assignment]
    overlapped, envelope = (
        op.ConvTranspose(item, kernel, strides=[hop], outputs=[(dtype, (op.dims(item)[0], 1, total))])
        for item in (
            op.Mul(signal, column),
            op.expand(op.Unsqueeze(op.Mul(column, column), axes=[0]), (1, n_fft, frames)),
        )
    )
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else (total - n_fft // 2 if center else total)
    beside = [1] if rank == 3 else [0, 1]
    if isinstance(end, Dim) or isinstance(total, Dim):
        whole_signal = op.Squeeze(op.Div(overlapped, envelope), axes=beside)
        return padded(op, whole_signal, [-start, whole(end - total)], "constant")
    end, total = int(end), int(total)
    kept = min(end, total)
    found, weight = (
        op.Slice(item, starts=[start], ends=[kept], axes=[2]) if (start, kept) != (0, total) else item
        for item in (overlapped, envelope)
    )
    return op.Squeeze(resized(op, op.Div(found, weight), 2, end - start), axes=beside)


register_shared(_istft, "inverse DFT, ConvTranspose, Div", *overloads_of("istft"), is_complex=True)


NAMES = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


def _window(name: str) -> Callable[..., ir.Value]:
    function = getattr(torch, name)

    def entry(
        op: Emit, window_length: Any, periodic: bool = True, alpha: float | None = None, beta: float | None = None
    ) -> ir.Value:
        dtype = op.result_dtype()
        shape = {key: number for key, number in (("alpha", alpha), ("beta", beta)) if number is not None}
        length = fixed(window_length, "the length of a window")
        found = function(length, periodic, **shape, dtype=TORCH_DTYPES[dtype], device="cpu")
        return op.const(found.double().numpy(), dtype)

    return entry


for _name in NAMES:
    _overloads = " ".join(
        f"{_name}.{variant}" for variant in getattr(torch.ops.aten, _name).overloads() if "out" not in variant
    )
    register_shared(_window(_name), "a constant", *overloads_of(_overloads))
