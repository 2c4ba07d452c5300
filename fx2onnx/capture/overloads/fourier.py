"""Rules of Fourier transforms: how many points they need, and the sizes of their results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.common import record_sized
from fx2onnx.capture.recording.meta_cache import TensorFacts
from fx2onnx.capture.recording.meta_rules import NONE, Number, fresh
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, Scalar

aten = torch.ops.aten


@register(
    Kind.RECORD,
    *(
        getattr(aten, f"fft_{name}{axes}").default
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for axes in ("", "2", "n")
    ),
)
def _transform(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    dim: int | Sequence[int] | None,
    n: int | torch.SymInt | None = None,
    s: Sequence[int | torch.SymInt] | None = None,
    norm: str | None = None,
) -> object:
    """A Fourier transform of at least one point."""
    if not self.dim():
        return NotImplemented
    env, given = tracer.sizes, list(map(unwrap, [n] if n is not None else s or []))
    axes = [dim] if isinstance(dim, int) else dim or range(-(len(given) or self.dim()), 0)
    points: list[Scalar] = [*given] or [dims_of(self)[axis] for axis in axes]
    name = call.func._schema.name.removeprefix("aten::fft_").rstrip("2n")
    if not given and name in ("irfft", "hfft"):
        points[-1] = 2 * (points[-1] - 1)
    env.are_sizes(given)
    env.check_some(points)
    is_plain = (
        norm in (None, "backward", "ortho", "forward")
        and len(axes) == len(points)
        and all(not isinstance(each, int) or each > 0 for each in points)
    )
    is_plain &= len({axis % self.dim() for axis in axes}) == len(axes) and (
        not self.is_complex() or name not in ("rfft", "ihfft")
    )
    return _of_points(tracer, call, self, dict(zip(axes, points, strict=False)), name) if is_plain else NotImplemented


@register(Kind.RECORD, aten._fft_c2c.default, aten._fft_r2c.default)
def _forward_transform(
    tracer: Tracer, call: Call, self: torch.Tensor, dim: Sequence[int], onesided: bool = False
) -> object:
    return _of_points(tracer, call, self, {axis: dims_of(self)[axis] for axis in dim}, "rfft" if onesided else "fft")


@register(Kind.RECORD, aten._fft_c2r.default)
def _back_to_real(
    tracer: Tracer, call: Call, self: torch.Tensor, dim: Sequence[int], last_dim_size: int | torch.SymInt
) -> object:
    return _of_points(tracer, call, self, {dim[-1]: unwrap(last_dim_size)}, "irfft") if dim else NotImplemented


_WHOLE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _of_points(tracer: Tracer, call: Call, self: torch.Tensor, points: dict[int, Scalar], name: str) -> object:
    """The transform of so many points along its axes. The fake kernel compares sizes to choose the order of memory, as if the call
    needed the answers.
    """
    if self.dtype not in _WHOLE or all(isinstance(size, int) for size in dims_of(self)):
        return NotImplemented
    dims: list[Scalar] = list(dims_of(self))
    for axis, count in points.items():
        dims[axis] = count
    last = list(points)[-1]
    if name in ("rfft", "ihfft"):
        dims[last] = dims[last] // 2 + 1
    kind = torch.promote_types(self.dtype, torch.complex64)
    return record_sized(tracer, call, [(kind.to_real() if name in ("irfft", "hfft") else kind, dims)])


@register(Kind.RESULT_TYPE, aten.istft.default)
def _istft(
    kind: TensorFacts,
    n_fft: Number,
    hop_length: Number | Dim = NONE,
    win_length: object = None,
    window: object = None,
    center: tuple[type, bool] = (bool, True),
    normalized: object = None,
    onesided: tuple[type, bool | None] = NONE,
    length: Number | Dim = NONE,
    return_complex: tuple[type, bool] = (bool, False),
) -> TensorFacts | None:
    """The type of an inverse STFT from spectra with as many bins as the transform has; torch goes through the frames
    one by one.
    """
    size = n_fft[1]
    fits = kind.dtype.is_complex and len(kind.sizes) in (2, 3) and kind.sizes[-2] == size // 2 + 1
    if not fits or return_complex[1] or onesided[1] is False or isinstance(hop_length, Dim):
        return None
    if isinstance(length, Dim) or length[1] is not None:
        count: Scalar = length if isinstance(length, Dim) else length[1]
    else:
        hop = size // 4 if hop_length[1] is None else hop_length[1]
        count = size + hop * (kind.sizes[-1] - 1) - (size // 2 * 2 if center[1] else 0)
    return fresh(kind._replace(dtype=kind.dtype.to_real()), (*kind.sizes[:-2], count))
