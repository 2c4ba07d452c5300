"""The parts of torch that a reference run of a module needs: doubles that say that they are of another dtype, and GPU operators in
full precision.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fx2onnx.torchcompat.dispatch import no_dispatch


class Widened(torch.Tensor):
    """Holds ``wide`` and has ``dtype``, so that Python that decides by the dtype (``torch.finfo(x.dtype).min``) decides as it
    does without. Operators on it are those of a mode that knows it.
    """

    wide: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, wide: torch.Tensor, dtype: torch.dtype) -> Widened:
        self: Widened = torch.Tensor._make_wrapper_subclass(
            cls,
            wide.shape,
            strides=wide.stride(),
            storage_offset=wide.storage_offset(),
            dtype=dtype,
            device=wide.device,
        )
        self.wide = wide
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a widened tensor outside of its mode")


def narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is of the dtype that it has."""
    with no_dispatch():
        return tensor.wide.to(tensor.dtype) if isinstance(tensor, Widened) else tensor.detach()


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """A block without mkldnn: its operators, which torch chooses by the dtype that a tensor has, take no doubles. The public setter is refused where a
    program froze torch's flags, and warns of other devices.
    """
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was)


_ATTENTION = ("flash", "mem_efficient", "cudnn")


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """A block in which a GPU computes without cuDNN (whose convolutions round to TF32 by default), fused attention and TF32: of what
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
    """The switches: how each is asked for, how it is set, and its value inside."""
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
