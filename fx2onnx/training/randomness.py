"""Dropout in training graphs: off, or from masks that follow from a seed by standard operators alone.

A mask is a hash of the seed, the number of the call and the place of the element, so that every runtime draws the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.training.recurrent import looped

_LOW = 0xFFFFFFFF
"""Products of two numbers of 32 bits fit into the 64 of the tensors."""


def _mixed(number: torch.Tensor) -> torch.Tensor:
    """A permutation of 32 bits. Source: Wellons, "Prospecting for Hash Functions", lowbias32."""
    number = ((number ^ (number >> 16)) * 0x7FEB352D) & _LOW
    number = ((number ^ (number >> 15)) * 0x846CA68B) & _LOW
    return number ^ (number >> 16)


@dataclass
class Draws:
    """Random numbers of one run: the n-th call draws other ones than those before."""

    seed: torch.Tensor
    calls: int = 0

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers in [0, 1) of the shape of ``like``, in float32."""
        self.calls += 1
        key = _mixed((self.seed + self.calls * 0x9E3779B9) & _LOW)
        places = torch.arange(like.numel(), dtype=torch.int64)
        return ((_mixed(places ^ key) >> 8).to(torch.float32) * 2**-24).reshape(like.shape)

    def kept(self, like: torch.Tensor, p: float) -> torch.Tensor:
        """False with probability ``p``."""
        return self.uniform(like) >= p


@contextlib.contextmanager
def without_dropout() -> Iterator[None]:
    """The dropouts of ``torch.nn.functional`` keep everything."""
    kept = (functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d)
    plain_attention = functional.scaled_dot_product_attention

    def attention(*args: Any, dropout_p: float = 0.0, **kwargs: Any) -> torch.Tensor:
        return plain_attention(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **kwargs)

    with Changes():
        for function in (*kept, functional.alpha_dropout, functional.feature_alpha_dropout):
            CodePatch(function, lambda original: lambda input, *_, **__: input, _DRAWS).put_in()
        CodePatch(functional.rrelu, lambda original: _leaky, _DRAWS).put_in()
        put_name(functional, "scaled_dot_product_attention", attention, _DRAWS)
        yield


_DRAWS = "it draws random numbers: none, or those of the file"


def _leaky(
    input: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    return functional.leaky_relu(input, (lower + upper) / 2)


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """While a module is captured whose dropout is off, ``rrelu`` takes the slope between the two; layers keep everything."""
    with Changes():
        CodePatch(functional.rrelu, lambda original: _leaky, _DRAWS).put_in()
        with looped(lambda value, p: value):
            yield


def is_drop_path(part: torch.nn.Module) -> bool:
    """Return whether the module leaves out a whole branch for some rows: torchvision's, timm's, and those of transformers."""
    name = type(part).__name__
    return name == "StochasticDepth" or name.endswith("DropPath")


@contextlib.contextmanager
def seeded(seed: torch.Tensor, module: torch.nn.Module) -> Iterator[None]:
    """While a module is captured, the dropouts of ``torch.nn.functional`` and of its parts draw their masks from ``seed``."""
    draws = Draws(seed)

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return _dropped(draws, input, input, p) if training and p > 0 else input

    def alpha(input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> torch.Tensor:
        return _alpha_dropped(draws, input, input, p) if training and p > 0 else input

    def alpha_channels(
        input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> torch.Tensor:
        return _alpha_dropped(draws, input, _planes(input), p) if training and p > 0 else input

    def leaky(
        input: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
    ) -> torch.Tensor:
        if not training:
            return functional.leaky_relu(input, (lower + upper) / 2)
        slope = draws.uniform(input) * (upper - lower) + lower
        return torch.where(input >= 0, input, input * slope.to(input.dtype))

    def channels(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return _dropped(draws, input, _planes(input), p) if training and p > 0 else input

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if not dropout_p:
            return plain_attention(
                query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        weights = _attention_weights(query, key, attn_mask, is_causal, scale, enable_gqa)
        if enable_gqa:
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        return _dropped(draws, weights, weights, dropout_p) @ value

    plain_attention = functional.scaled_dot_product_attention
    replacements = {functional.dropout: dropout} | dict.fromkeys(
        (functional.dropout1d, functional.dropout2d, functional.dropout3d), channels
    )
    replacements |= {functional.alpha_dropout: alpha, functional.feature_alpha_dropout: alpha_channels}
    with Changes():
        for function, instead in [*replacements.items(), (functional.rrelu, leaky)]:
            CodePatch(function, lambda original, instead=instead: instead, _DRAWS).put_in()  # type: ignore[misc, arg-type]
        put_name(functional, "scaled_dot_product_attention", attention, _DRAWS)
        for part in module.modules():
            if is_drop_path(part):
                put_name(part, "forward", partial(_branch_dropped, draws, part))
        with looped(lambda value, p: _dropped(draws, value, value, p)):
            yield


def _planes(input: torch.Tensor) -> torch.Tensor:
    """One number for each row and channel, with the rank of ``input``."""
    return input.flatten(2).select(2, 0)[(...,) + (None,) * (input.dim() - 2)] if input.dim() > 2 else input


def _branch_dropped(draws: Draws, part: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
    """Source: torchvision.ops.stochastic_depth, timm.layers.drop_path."""
    p = float(getattr(part, "p", getattr(part, "drop_prob", 0.0)) or 0.0)
    if not part.training or p <= 0:
        return input
    rows = input.flatten(1)[:, 0][(...,) + (None,) * (input.dim() - 1)]
    like = rows[:1] if getattr(part, "mode", "row") == "batch" else rows
    kept = draws.kept(like, p).to(input.dtype)
    return input * kept * (1 / (1 - p) if getattr(part, "scale_by_keep", True) and p < 1 else 1.0)


def _alpha_dropped(draws: Draws, input: torch.Tensor, like: torch.Tensor, p: float) -> torch.Tensor:
    """Source: aten/src/ATen/native/Dropout.cpp, _dropout_impl. What is left out becomes SELU's least number."""
    least = -1.7580993408473766
    if p >= 1:
        return torch.zeros_like(input)
    scale = 1 / math.sqrt((least * least * p + 1) * (1 - p))
    kept = draws.kept(like, p).to(input.dtype)
    return input * kept * scale + (kept - 1) * (-least * scale) - least * scale * p


def _dropped(draws: Draws, value: torch.Tensor, like: torch.Tensor, p: float) -> torch.Tensor:
    """``value`` where kept, scaled so that the mean stays; one draw for each element of ``like``."""
    return value * draws.kept(like, p).to(value.dtype) * (0.0 if p >= 1 else 1 / (1 - p))


def _attention_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Source: the reference in torch.nn.functional.scaled_dot_product_attention's documentation."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)
