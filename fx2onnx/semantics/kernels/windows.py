"""Arithmetic of sliding windows: pads, output sizes, strided window views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.types import Array, Shape

COLUMN_BLOCK_BYTES = 1 << 20
"""Columns are made and multiplied in blocks of about this size, so that they are still in the L2 cache when read."""


@dataclass(frozen=True, slots=True)
class Window:
    """Resolved geometry of a convolution or pooling over the spatial axes."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    after: Shape
    out: Shape

    @property
    def is_padded(self) -> bool:
        return any(self.before) or any(self.after)


def resolve_window(
    dims: Shape,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: bool = False,
    may_exceed: bool = False,
) -> Window:
    """The window over spatial ``dims``. ``may_exceed``: it may be larger than they are.

    Raises: ValueError for attributes of the wrong length or out of range.
    """
    n = len(dims)
    kernel = tuple(kernel)
    strides, dilations = ((1,) * n if each is None else tuple(each) for each in (strides, dilations))
    given = (0,) * 2 * n if pads is None else tuple(pads)
    if not len(kernel) == len(strides) == len(dilations) == n or len(given) != 2 * n:
        raise ValueError(f"kernel, strides, dilations or pads do not fit {n} spatial axes")
    if min((*kernel, *strides, *dilations, 1)) < 1:
        raise ValueError("kernel, strides and dilations must be positive")
    if min((*given, 0)) < 0:
        raise ValueError(f"pads are {list(given)}; they must not be negative")
    before, after = given[:n], given[n:]
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    mode = auto_pad.decode() if isinstance(auto_pad, bytes) else auto_pad
    if mode not in ("NOTSET", "") and any(given):
        raise ValueError(f"pads are {list(given)} and auto_pad is {mode}, which goes without pads")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = tuple(-(-dim // s) for dim, s in zip(dims, strides, strict=True))
        total = [max((o - 1) * s + e - dim, 0) for o, s, e, dim in zip(out, strides, spans, dims, strict=True)]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
        return Window(kernel, strides, dilations, before, after, out)
    if mode == "VALID":
        before = after = (0,) * n
    elif mode not in ("NOTSET", ""):
        raise ValueError(f"auto_pad is {mode!r}")
    sizes = []
    for dim, low, high, span, stride in zip(dims, before, after, spans, strides, strict=True):
        room = dim + low + high - span
        size = (-(-room // stride) if ceil_mode or (may_exceed and room < 0) else room // stride) + 1
        if ceil_mode and (size - 1) * stride >= dim + low:
            size -= 1
        if size < 0 or (room < 0 and not may_exceed and not (ceil_mode and size)):
            raise ValueError(f"a window of {span} does not fit into {dim} with pads {low} and {high}")
        sizes.append(size)
    return Window(kernel, strides, dilations, tuple(before), tuple(after), tuple(sizes))


def pad_spatial(x: Array, before: Sequence[int], after: Sequence[int], value: float = 0) -> Array:
    """x [N, C, *dims] with ``value`` around its spatial axes; negative pads cut."""
    if not any(before) and not any(after):
        return x
    cut = tuple(slice(max(-b, 0), d - max(-a, 0)) for d, b, a in zip(x.shape[2:], before, after, strict=True))
    x = x[(slice(None), slice(None), *cut)]
    low = [max(b, 0) for b in before]
    shape = (*x.shape[:2], *(d + b + max(a, 0) for d, b, a in zip(x.shape[2:], low, after, strict=True)))
    check_shape(shape, x.dtype, "a padded input")
    y = np.full(shape, value, x.dtype)
    y[(slice(None), slice(None), *(slice(b, b + d) for b, d in zip(low, x.shape[2:], strict=True)))] = x
    return y


def window_view(x: Array, window: Window) -> Array:
    """[N, C, *dims] (padded already) -> a view [N, C, *out, *kernel]; nothing is copied."""
    steps = x.strides[2:]
    shape = (*x.shape[:2], *window.out, *window.kernel)
    strides = (
        *x.strides[:2],
        *(step * s for step, s in zip(steps, window.strides, strict=True)),
        *(step * d for step, d in zip(steps, window.dilations, strict=True)),
    )
    if x.dtype.char in "fd" and x.size and x.flags.c_contiguous:  # as_strided takes ten times as long
        return np.ndarray(shape, x.dtype, x, 0, strides)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def required_after(dims: Shape, window: Window) -> Shape:
    """The padding behind each axis with which every window lies inside (ceil mode can exceed the pads)."""
    spans = tuple((k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True))
    return tuple(
        max(a, (o - 1) * s + e - dim - b)
        for a, o, s, e, dim, b in zip(window.after, window.out, window.strides, spans, dims, window.before, strict=True)
    )


def conv_window(x: Shape, w: Shape, attrs: Mapping[str, Any]) -> Window:
    """The geometry of a Conv of an input and weights of these shapes.

    Raises: ValueError where channels, groups or kernel do not fit.
    """
    if len(x) < 3 or len(w) != len(x):
        raise ValueError(f"the input has {len(x)} axes and the weight {len(w)}; both need 3 or more")
    group = attrs.get("group", 1)
    if group < 1 or x[1] != w[1] * group or w[0] % group:
        raise ValueError(f"{x[1]} channels, weight {list(w)} and group {group} do not fit")
    given = attrs.get("kernel_shape")
    if given is not None and tuple(given) != w[2:]:
        raise ValueError(f"kernel_shape is {list(given)}, the weight's {list(w[2:])}")
    strides, dilations, pads = attrs.get("strides"), attrs.get("dilations"), attrs.get("pads")
    return resolve_window(x[2:], w[2:], strides, dilations, pads, attrs.get("auto_pad", "NOTSET"))
