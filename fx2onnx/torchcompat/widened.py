"""A tensor of doubles that says that it is of another dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    """Its operators, which torch chooses by the dtype that a tensor has, take no doubles. The public setter is refused where a
    program froze torch's flags, and warns of other devices.
    """
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was)
