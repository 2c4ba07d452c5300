"""Functions of torch that make a tensor of sizes, or that take no symbolic size where they take a plain number."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import starmap
from typing import TypeAlias

import torch
import torch.nn.functional as F

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.python.stand_ins import to_int
from fx2onnx.capture.shapes import size_literals
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.torchcompat.pytrees import pytree

Function: TypeAlias = Callable[..., Number]


@answers_for_caller
def _bytes(self: torch.Tensor) -> Number:
    return self.numel() * self.element_size()


METHODS: dict[str, object] = {**size_literals.METHODS, "nbytes": property(_bytes)}
"""The methods of ``torch.Tensor`` that take sizes."""


def _is_size(number: Number) -> bool:
    return type(number) is torch.SymInt


_MEMORY = {"layout", "pin_memory", "requires_grad"}
"""Keywords of functions that make tensors which say nothing of the numbers."""


@answers_for_caller
def _into(value: Number, out: Number) -> Number:
    """``out`` with the value and its size."""
    return torch.ops.aten.clone.out(value, out=out)


@answers_for_caller
def _linspace(original: Function) -> Function:
    """linspace(start, end, steps): start + i * (end - start) / (steps - 1), from the nearer end, as torch does it."""

    def linspace(start: Number, end: Number, steps: Number, **kwargs: Number) -> Number:
        steps = _number("steps", steps)
        if not _is_size(steps):
            return original(start, end, steps, **kwargs)
        if "out" in kwargs:
            return _into(linspace(start, end, steps, dtype=kwargs["out"].dtype), kwargs["out"])
        return _spaced(start, end, steps, **kwargs)

    return linspace


@answers_for_caller
def _spaced(
    start: Number, end: Number, steps: Number, *, base: Number = None, dtype: Number = None, **made: Number
) -> Number:
    """Numbers from ``start`` to ``end``, as exponents of a ``base``. Integers are what is left of those between whole ends, but
    for the one power of a ``start``.
    """
    dtype, first = dtype or torch.get_default_dtype(), start
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    if is_whole:
        start, end = (
            each.to(dtype).double() if isinstance(each, torch.Tensor) else to_int(each) for each in (start, end)
        )
    index = torch.arange(steps, dtype=torch.float64 if is_whole else dtype, device=made.get("device"))
    step = (end - start) / max(steps - 1, 1)
    found = torch.where(index * 2 < steps, start + step * index, end - step * (steps - 1 - index))
    if base is None:
        return found.to(dtype)
    return torch.pow(base, found + (first - start) * max(2 - steps, 0) if is_whole else found).to(dtype)


@answers_for_caller
def _logspace(
    start: Number, end: Number, steps: Number, base: float = 10.0, *, out: Number = None, **made: Number
) -> Number:
    """base ** linspace(start, end, steps)."""
    value = _spaced(start, end, steps, base=base, **({"dtype": out.dtype} if out is not None else made))
    return value if out is None else _into(value, out)


@answers_for_caller
def _without_generator(original: Function) -> Function:
    """Drop ``generator`` beside symbolic sizes, where torch takes none: a file draws numbers of its own."""

    def drawn(*args: Number, generator: Number = None, **kwargs: Number) -> Number:
        given = {} if any(map(_is_size, pytree.tree_leaves((args, kwargs)))) else {"generator": generator}
        return original(*args, **given, **kwargs)

    return drawn


@answers_for_caller
def _chosen(original: Function) -> Function:
    """``sym_ite(b, t, f)`` of plain numbers is a decision: torch's own wants sizes."""

    def chosen(b: Number, t: Number, f: Number) -> Number:
        return original(b, t, f) if _is_size(t) and _is_size(f) else t if b else f

    return chosen


_NUMBERS = frozenset({"num_classes", "output_size", "row", "col", "N", "length", "n", "window_length", "steps"})
"""Parameters that are plain numbers."""


@answers_for_caller
def _number(name: str, value: Number) -> Number:
    is_one = name in _NUMBERS and isinstance(value, torch.Tensor) and value.dim() == 0
    return value.item() if is_one and not value.is_floating_point() and THREAD.captures else value


@answers_for_caller
def _computed(formula: Function, original: Function) -> Function:
    """``formula`` where one of the numbers is a size, or a tensor of one integer, which is a data-dependent size."""
    names = tuple(inspect.signature(formula).parameters)

    def computed(*args: Number, **kwargs: Number) -> Number:
        args = tuple(starmap(_number, zip(names, args, strict=False))) + args[len(names) :]
        kwargs = {name: _number(name, value) for name, value in kwargs.items()}
        parts = [
            part for each in (*args, *kwargs.values()) for part in (each if isinstance(each, tuple | list) else [each])
        ]
        if not any(map(_is_size, parts)) or ("out" in kwargs and "out" not in names):
            return original(*args, **kwargs)
        return formula(*args, **{name: value for name, value in kwargs.items() if name not in _MEMORY})

    return computed


@answers_for_caller
def _one_hot(tensor: Number, num_classes: Number = -1) -> Number:
    return (tensor[..., None] == torch.arange(num_classes)).long()


@answers_for_caller
def _indices(part: Function) -> Function:
    def indices(
        row: Number, col: Number, offset: int = 0, *, dtype: Number = torch.int64, device: Number = None
    ) -> Number:
        return part(torch.ones(row, col, device=device), offset).nonzero().t().to(dtype)

    return indices


@answers_for_caller
def _range(
    start: Number,
    end: Number = None,
    step: Number = 1,
    *,
    dtype: Number = None,
    device: Number = None,
    out: Number = None,
) -> Number:
    start, end = (0, start) if end is None else (start, end)
    dtype = dtype or (torch.get_default_dtype() if out is None else out.dtype)
    made = torch.arange((end - start) // step + 1, dtype=dtype, device=device) * step + start
    return made if out is None else _into(made, out)


@answers_for_caller
def _vander(x: Number, N: Number = None, increasing: bool = False) -> Number:
    powers = torch.arange(N)
    return x[:, None] ** (powers if increasing else N - 1 - powers)


@answers_for_caller
def _fftfreq(n: Number, d: float = 1.0, *, dtype: Number = None, device: Number = None) -> Number:
    places = (torch.arange(n, device=device) + n // 2) % n - n // 2
    return places.to(dtype or torch.get_default_dtype()) / (n * d)


@answers_for_caller
def _rfftfreq(n: Number, d: float = 1.0, *, dtype: Number = None, device: Number = None) -> Number:
    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) / (n * d)


@answers_for_caller
def _cosine_window(*factors: float) -> Function:
    """The sum of ``factor[k] * cos(2 pi k i / steps)``, from the last one, as torch adds them: at the ends they cancel."""

    def window(window_length: Number, periodic: bool = True, *, dtype: Number = None, device: Number = None) -> Number:
        step = 2 * torch.pi / max(window_length if periodic else window_length - 1, 1)
        angle = torch.arange(window_length, dtype=dtype or torch.get_default_dtype(), device=device) * step
        waves = [torch.cos(angle * place) * factors[place] for place in range(len(factors) - 1, 0, -1)]
        return torch.where(torch.scalar_tensor(window_length) == 1, 1.0, sum(waves[1:], waves[0]) + factors[0])

    return window


@answers_for_caller
def _hamming_window(
    window_length: Number, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **made: Number
) -> Number:
    return _cosine_window(alpha, -beta)(window_length, periodic, **made)


@answers_for_caller
def _across_window(window_length: Number, periodic: bool, dtype: Number, device: Number) -> Number:
    """Places of a window's numbers, from -1 to 1 (which a periodic window leaves out)."""
    length = window_length + 1 if periodic else window_length
    places = torch.arange(window_length, dtype=dtype or torch.get_default_dtype(), device=device)
    return places * (2.0 / max(length - 1, 1)) - 1


@answers_for_caller
def _bartlett_window(
    window_length: Number, periodic: bool = True, *, dtype: Number = None, device: Number = None
) -> Number:
    """1 in the middle, and 0 at the ends."""
    wave = 1 - _across_window(window_length, periodic, dtype, device).abs()
    return torch.where(torch.scalar_tensor(window_length) == 1, 1.0, wave)


@answers_for_caller
def _kaiser_window(
    window_length: Number, periodic: bool = True, beta: float = 12.0, *, dtype: Number = None, device: Number = None
) -> Number:
    """I0(beta sqrt(1 - (2 i / (n - 1) - 1)^2)) / I0(beta)"""
    place = _across_window(window_length, periodic, dtype, device)
    wave = torch.i0(beta * (1 - place * place).clamp(min=0).sqrt()) / torch.i0(torch.full_like(place[:1], beta))
    return torch.where(torch.scalar_tensor(window_length) == 1, 1.0, wave)


@answers_for_caller
def _adaptive(original: Function) -> Function:
    """torch's pools of one axis take a plain number, also as a list of one, those of two a size."""

    def pool(input: torch.Tensor, output_size: Number) -> Number:
        (count,) = output_size if isinstance(output_size, list | tuple) else (output_size,)
        count = _number("output_size", count)
        if not _is_size(count):
            return original(input, output_size)
        return F.adaptive_avg_pool2d(input.unsqueeze(-2), (1, count)).squeeze(-2)

    return pool


@answers_for_caller
def _istft(
    input: Number,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Number = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Number = None,
    return_complex: bool = False,
) -> Number:
    """With ``length`` a size: frames added where they overlap over the sum of their squared windows, both cut or filled before
    they are divided: what is left out has no window at all, and its gradient would be NaN.
    """
    if return_complex:
        return torch.istft(input, n_fft, hop_length, win_length, window, center, return_complex=True)
    width = n_fft if win_length is None else win_length
    shape = torch.ones(width, dtype=input.real.dtype, device=input.device) if window is None else window
    shape = F.pad(shape, ((n_fft - width) // 2, n_fft - width - (n_fft - width) // 2))
    norm = "ortho" if normalized else "backward"
    spectra = input.transpose(-1, -2)[..., : n_fft // 2 + 1]
    frames = (torch.fft.irfft(spectra, n_fft, norm=norm) * shape).transpose(-1, -2)
    squares = shape.square()[:, None].expand(n_fft, frames.shape[-1])
    kernel = torch.eye(n_fft, dtype=frames.dtype, device=frames.device)[:, None]
    hop, start = n_fft // 4 if hop_length is None else hop_length, n_fft // 2 if center else 0
    added, weights = (F.conv_transpose1d(each, kernel, stride=hop).squeeze(-2) for each in (frames, squares))
    beside = (-start, start + length - added.shape[-1])
    return F.pad(added, beside) / F.pad(weights, beside, value=1.0)


@answers_for_caller
def _sparse_coo(indices: Number, values: Number, size: Number, **_: Number) -> Number:
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    rank, how = indices.shape[0], {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    return make(rank, len(size) - rank, size, indices, values, **how)


_FORMULAS: tuple[tuple[object, str, Function], ...] = (
    (F, "one_hot", _one_hot),
    (torch, "tril_indices", _indices(torch.tril)),
    (torch, "triu_indices", _indices(torch.triu)),
    (torch, "vander", _vander),
    (torch, "range", _range),
    (torch, "logspace", _logspace),
    (torch, "istft", _istft),
    (torch, "sparse_coo_tensor", _sparse_coo),
    (torch.fft, "fftfreq", _fftfreq),
    (torch.fft, "rfftfreq", _rfftfreq),
    (torch, "hann_window", _cosine_window(0.5, -0.5)),
    (torch, "hamming_window", _hamming_window),
    (torch, "blackman_window", _cosine_window(0.42, -0.5, 0.08)),
    (torch, "bartlett_window", _bartlett_window),
    (torch, "kaiser_window", _kaiser_window),
)
WRAPPED: tuple[tuple[object, str, Callable[[Function], Function]], ...] = (
    (torch, "linspace", _linspace),
    *size_literals.WRAPPED,
    *((torch, name, _without_generator) for name in ("rand", "randn", "randint", "randperm")),
    (F, "adaptive_avg_pool1d", _adaptive),
    (torch, "sym_ite", _chosen),
    *((space, name, functools.partial(_computed, formula)) for space, name, formula in _FORMULAS),
)
