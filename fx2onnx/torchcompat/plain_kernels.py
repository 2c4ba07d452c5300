"""GPU operators as torch computes them by itself and in full precision, for numbers to compare with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch

_ATTENTION = ("flash", "mem_efficient", "cudnn")


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, a GPU computes without cuDNN (whose convolutions round to TF32 by default), fused attention and TF32: of what
    torch computes itself, each operator is one that takes float64, too. The public setters are refused where a program froze
    torch's flags. Nothing changes where no GPU is in use.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    changed = [(set_, get(), plain) for get, set_, plain in _switches()]
    try:
        for set_, _, plain in changed:
            set_(plain)
        yield
    finally:
        for set_, was, _ in changed:
            set_(was)


def _switches() -> Iterator[tuple[Callable[[], object], Callable[[object], object], object]]:
    """How each is asked for, set, and what it is inside."""
    own = vars(torch._C)
    yield own["_get_cudnn_enabled"], own["_set_cudnn_enabled"], False
    for name in _ATTENTION:
        yield own[f"_get_{name}_sdp_enabled"], own[f"_set_sdp_use_{name}"], False
    yield own["_get_math_sdp_enabled"], own["_set_sdp_use_math"], True
    if "_get_fp32_precision_getter" in own:  # since torch 2.9
        asked = functools.partial(own["_get_fp32_precision_getter"], "cuda", "matmul")
        yield asked, functools.partial(own["_set_fp32_precision_setter"], "cuda", "matmul"), "ieee"
    else:
        yield own["_get_cublas_allow_tf32"], own["_set_cublas_allow_tf32"], False
