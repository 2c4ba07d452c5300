"""xformers' attention, and its masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.kernels.attention import attention, outside
from fx2onnx.model_patches.missing_packages import offered_by
from fx2onnx.model_patches.patching import patches

_IN_MASKS = offered_by("xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias")


@offered_by("xformers.ops", "xformers.ops.fmha.attn_bias")
class AttentionBias:
    """A mask: ``materialize`` gives the numbers that are added to the scores."""

    def materialize(self, shape: Sequence[Any], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensor:
        """Shapes:  -> ``shape``, whose last two are queries and keys; -inf where a query does not see a key."""
        rows, columns = (torch.arange(size, device=device) for size in shape[-2:])
        hidden = self.hidden(rows[:, None], columns, shape[-2:])
        zeros = torch.zeros(hidden.shape, dtype=dtype, device=device)
        return zeros.masked_fill(hidden, -torch.inf).expand(*shape)

    def hidden(self, rows: Tensor, columns: Tensor, sizes: Sequence[Any]) -> Tensor:
        """Shapes:  rows [M, 1], columns [N] -> bool [M, N]."""
        raise NotImplementedError


@_IN_MASKS
class LowerTriangularMask(AttentionBias):
    """Query i sees the keys up to i."""

    def hidden(self, rows: Tensor, columns: Tensor, sizes: Sequence[Any]) -> Tensor:
        return columns > rows

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


@_IN_MASKS
class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """A causal mask, and numbers that are added."""

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias

    def materialize(self, shape: Sequence[Any], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensor:
        return super().materialize(shape, dtype, device) + self._bias


@_IN_MASKS
class LocalAttentionFromBottomRightMask(AttentionBias):
    """A window around each query, the last query beside the last key; -1: no bound."""

    def __init__(self, window_left: int, window_right: int) -> None:
        self.window_left, self.window_right = window_left, window_right

    def hidden(self, rows: Tensor, columns: Tensor, sizes: Sequence[Any]) -> Tensor:
        queries, keys = sizes
        found = outside(rows + (keys - queries), columns, False, (self.window_left, self.window_right))
        return torch.zeros_like(columns > rows) if found is None else found


@_IN_MASKS
class LowerTriangularFromBottomRightMask(LocalAttentionFromBottomRightMask):
    """The last query sees all keys, each one before it a key less."""

    def __init__(self) -> None:
        super().__init__(-1, 0)

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


@_IN_MASKS
class LowerTriangularFromBottomRightLocalAttentionMask(LocalAttentionFromBottomRightMask):
    """The same for the last ``_window_size`` keys that a query sees."""

    def __init__(self, _window_size: int) -> None:
        super().__init__(_window_size - 1, 0)


@_IN_MASKS
class BlockDiagonalMask(AttentionBias):
    """Sequences one behind the other, each sees itself alone."""

    bounds: tuple[Any, Any] = (-1, -1)
    """The window in a block."""
    is_from_the_end = False
    """True if masks are aligned to the last query and key of a block, False if to the first."""

    def __init__(self, q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
        self.q_seqlen, self.kv_seqlen = list(q_seqlen), list(kv_seqlen)
        self.shapes: list[tuple[int, ...]] = []

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **_: Any) -> Any:
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> Any:
        """The mask of tensors [batch, M, ...], and all as one [1, tokens, ...]."""
        mask = cls.from_seqlens([size for one in tensors for size in [one.shape[1]] * one.shape[0]])
        mask.shapes = [tuple(one.shape[:2]) for one in tensors]
        return mask, torch.cat([one.flatten(0, 1) for one in tensors])[None]

    def split(self, tensor: Tensor) -> list[Tensor]:
        """The inverse of ``from_tensor_list``."""
        parts = torch.split(tensor.squeeze(0), [batch * length for batch, length in self.shapes])
        return [torch.unflatten(part, 0, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def make_causal(self) -> Any:
        return self._bounded(-1, False)

    def make_causal_from_bottomright(self) -> Any:
        return self._bounded(-1, True)

    def make_local_attention(self, window_size: int) -> Any:
        return self._bounded(window_size - 1, False)

    def _bounded(self, left: int, is_from_the_end: bool) -> Any:
        made = type(self)(self.q_seqlen, self.kv_seqlen)
        made.bounds, made.is_from_the_end, made.shapes = (left, 0), is_from_the_end, self.shapes
        return made

    def hidden(self, rows: Tensor, columns: Tensor, sizes: Sequence[Any]) -> Tensor:
        numbers = []
        places = []
        for lengths, device in ((self.q_seqlen, rows.device), (self.kv_seqlen, columns.device)):
            numbers.append(torch.cat([torch.full((size,), at, device=device) for at, size in enumerate(lengths)]))
            places.append(torch.cat([torch.arange(size, device=device) for size in lengths]))
        moved = [keys - queries for queries, keys in zip(self.q_seqlen, self.kv_seqlen, strict=True)]
        if self.is_from_the_end:
            places[0] = places[0] + torch.tensor(moved, device=rows.device)[numbers[0]]
        hidden = numbers[0][:, None] != numbers[1]
        beyond = outside(places[0][:, None], places[1], False, self.bounds)
        return hidden if beyond is None else hidden | beyond


@patches("xformers.ops.fmha:memory_efficient_attention", stands_in=("xformers.ops",))
def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """softmax(query key scale + attn_bias) value.

    Shapes:  query [batch, M, heads, d], key and value [batch, N, heads, d or e], each also without heads or with groups before
        them; attn_bias a mask or [batch, heads, M, N] -> [batch, M, heads, e].
    """
    groups = query.shape[2:-1]
    query, key, value = (part.unsqueeze(2) if part.dim() == 3 else part.flatten(2, -2) for part in (query, key, value))
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    bias = attn_bias
    if bias is not None and not isinstance(bias, Tensor):
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        bias = bias.materialize(shape, dtype=torch.float32, device=query.device)
    elif bias is not None:
        bias = bias.unsqueeze(1) if bias.dim() == 3 else bias.flatten(1, -3)
    output, _ = attention(query, key, value, scale=scale, bias=bias, dropout=p)
    output = output.transpose(1, 2)
    output = output.squeeze(2) if not groups else torch.unflatten(output, 2, groups)
    return output if output_dtype is None else output.to(output_dtype)
