"""Weights in the blocks of GGUF: how each layout lies in its bytes, and a linear layer and an embedding on such blocks.

Source: ggml-quants.c, by the NumPy code of the ``gguf`` package. Numbers are ``(code - zero) * scale + offset`` in float32,
bit for bit what ``gguf.dequantize`` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fx2onnx.sources.hf.packed_linear import PackedModule

Array: TypeAlias = npt.NDArray[Any]
Reader: TypeAlias = Callable[[Array], Array]
"""A function of blocks [n, bytes] that gives the codes [n, elements] as uint8, or float32 numbers [n, groups]."""


@dataclass(frozen=True)
class Layout:
    """One layout: codes of 4 or 8 ``bits`` in groups of ``group`` that share a scale and, where there are such, an offset."""

    elements: int
    size_bytes: int
    bits: int
    group: int
    zero: int
    codes: Reader
    scales: Reader
    offsets: Reader | None = None
    low: int = 8
    """The offset of the low half of a code of 8 bits, so that halves cancel little; code and offset fit into 8 bits."""
    step: int = 16
    """The weight of the high half; 1 where the numbers are so small that a sum of two halves has them."""

    def halves(self, codes: Array) -> tuple[Array, Array]:
        """Two codes of 4 bits for each of 8: ``code - zero = step * (high - zeros[0]) + low - zeros[1]``."""
        if self.step == 1:
            steps = (codes - np.uint8(self.zero)).view(np.int8)
            high = np.clip(steps, -8, 7)
            return (high + 8).astype(np.uint8), (steps - high + 8).astype(np.uint8)
        codes = codes + np.uint8(self.low)
        return codes >> 4, codes & 15

    @property
    def zeros(self) -> tuple[int, int]:
        """The zero points of both halves."""
        return (8, 8) if self.step == 1 else (self.zero // 16, self.low)


def _half(start: int) -> Reader:
    """The float16 at a place of each block: [n, 1]."""
    return lambda blocks: blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def _fields(data: Array, shifts: tuple[int, ...], width: int, mask: int) -> Array:
    """Bit fields of ``width`` bytes after the other: all of the first shift, then those of the next."""
    parts = data.reshape(len(data), -1, 1, width) >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    return np.asarray((parts & np.uint8(mask)).reshape(len(data), -1))


def _nibbles(start: int) -> Reader:
    """32 codes of 4 bits: the low halves of 16 bytes, then the high ones."""
    return lambda blocks: _fields(blocks[:, start : start + 16], (0, 4), 16, 15)


def _five_bits(start: int) -> Reader:
    """32 codes of 5 bits: the high bits in 4 bytes, the low ones behind."""

    def codes(blocks: Array) -> Array:
        high = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
        return np.asarray(_nibbles(start + 4)(blocks) | high << 4)

    return codes


def _q3_k_codes(blocks: Array) -> Array:
    high = _fields(blocks[:, :32], tuple(range(8)), 32, 1)
    return np.asarray(_fields(blocks[:, 32:96], (0, 2, 4, 6), 32, 3) | high << 2)


def _q3_k_scales(blocks: Array) -> Array:
    low, high = _fields(blocks[:, 96:104], (0, 4), 8, 15), _fields(blocks[:, 104:108], (0, 2, 4, 6), 4, 3)
    return np.asarray(_half(108)(blocks) * ((low | high << 4).astype(np.float32) - 32))


def _k_steps(blocks: Array) -> tuple[Array, Array]:
    """Scales and minima of Q4_K and Q5_K, 6 bits each."""
    scale, minimum, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([scale & 63, high & 15 | scale >> 2 & 48], 1)
    return scales.astype(np.float32), np.concatenate([minimum & 63, high >> 4 | minimum >> 2 & 48], 1).astype(
        np.float32
    )


def _q5_k_codes(blocks: Array) -> Array:
    high = _fields(blocks[:, 16:48], tuple(range(8)), 32, 1)
    return np.asarray(_fields(blocks[:, 48:176], (0, 4), 32, 15) | high << 4)


def _q6_k_codes(blocks: Array) -> Array:
    high = _fields(blocks[:, 128:192], (0, 2, 4, 6), 32, 3)
    return np.asarray(_fields(blocks[:, :128], (0, 4), 64, 15) | high << 4)


def _q6_k_scales(blocks: Array) -> Array:
    return np.asarray(_half(208)(blocks) * blocks[:, 192:208].view(np.int8).astype(np.float32))


def _of_table(values: tuple[int, ...], codes: Reader) -> Reader:
    table = np.array([value + 128 for value in values], np.uint8)
    return lambda blocks: table[codes(blocks)]


def _iq4_xs_scales(blocks: Array) -> Array:
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], -1).reshape(len(blocks), 8)
    high = blocks[:, 2:4].copy().view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return np.asarray(_half(0)(blocks) * ((low | high << 4).astype(np.float32) - 32))


def _mxfp4_scales(blocks: Array) -> Array:
    """Half of 2 ** (e - 127), of a byte e. Source: ggml_e8m0_to_fp32_half."""
    power = blocks[:, :1].astype(np.uint32)
    return np.where(power < 2, np.uint32(0x200000) << power, (power - np.uint32(1)) << np.uint32(23)).view(np.float32)


def _tq1_0_codes(blocks: Array) -> Array:
    """Five codes of three values a byte, as a fraction of 243ths."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    places = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    parts = [(blocks[:, None, start:stop] * powers[:count]).reshape(len(blocks), -1) for start, stop, count in places]
    return np.asarray((np.concatenate(parts, 1).astype(np.uint16) * 3 >> 8).astype(np.uint8))


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(32, 18, 4, 32, 8, _nibbles(2), _half(0)),
    "Q4_1": Layout(32, 20, 4, 32, 0, _nibbles(4), _half(0), _half(2)),
    "Q5_0": Layout(32, 22, 8, 32, 16, _five_bits(2), _half(0)),
    "Q5_1": Layout(32, 24, 8, 32, 0, _five_bits(4), _half(0), _half(2)),
    "Q8_0": Layout(32, 34, 8, 32, 128, lambda blocks: blocks[:, 2:] ^ np.uint8(128), _half(0), low=0),
    "Q2_K": Layout(
        256, 84, 4, 16, 0,
        lambda blocks: _fields(blocks[:, 16:80], (0, 2, 4, 6), 32, 3),
        lambda blocks: _half(80)(blocks) * (blocks[:, :16] & 15).astype(np.float32),
        lambda blocks: -(_half(82)(blocks) * (blocks[:, :16] >> 4).astype(np.float32)),
    ),
    "Q3_K": Layout(256, 110, 4, 16, 4, _q3_k_codes, _q3_k_scales),
    "Q4_K": Layout(
        256, 144, 4, 32, 0,
        lambda blocks: _fields(blocks[:, 16:], (0, 4), 32, 15),
        lambda blocks: _half(0)(blocks) * _k_steps(blocks)[0],
        lambda blocks: -(_half(2)(blocks) * _k_steps(blocks)[1]),
    ),
    "Q5_K": Layout(
        256, 176, 8, 32, 0,
        _q5_k_codes,
        lambda blocks: _half(0)(blocks) * _k_steps(blocks)[0],
        lambda blocks: -(_half(2)(blocks) * _k_steps(blocks)[1]),
    ),
    "Q6_K": Layout(256, 210, 8, 16, 32, _q6_k_codes, _q6_k_scales),
    "TQ1_0": Layout(256, 54, 4, 256, 1, _tq1_0_codes, _half(52)),
    "TQ2_0": Layout(256, 66, 4, 256, 1, lambda blocks: _fields(blocks[:, :64], (0, 2, 4, 6), 32, 3), _half(64)),
    "IQ4_NL": Layout(32, 18, 8, 32, 128, _of_table(_IQ4, _nibbles(2)), _half(0)),
    "IQ4_XS": Layout(
        256, 136, 8, 32, 128,
        _of_table(_IQ4, lambda blocks: _fields(blocks[:, 8:], (0, 4), 16, 15)),
        _iq4_xs_scales,
    ),
    "MXFP4": Layout(32, 17, 8, 32, 128, _of_table(_E2M1, _nibbles(1)), _mxfp4_scales, step=1),
}  # fmt: skip
"""The layouts, by their names in GGUF."""


@dataclass(frozen=True)
class BlockRows:
    """Rows of blocks [rows, bytes] in memory; ``order`` says which of them each row is, where they are not in order."""

    layout: Layout
    memory: torch.Tensor
    order: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.memory)

    @property
    def columns(self) -> int:
        return self.memory.shape[1] // self.layout.size_bytes * self.layout.elements

    @property
    def groups(self) -> int:
        return self.columns // self.layout.group

    def read(self, reader: Reader, start: int, stop: int) -> Array:
        """The result of ``reader`` for some rows: [stop - start, ...]."""
        part = self.memory[start:stop] if self.order is None else self.memory[self.order[start:stop]]
        blocks: Array = part.numpy().reshape(-1, self.layout.size_bytes)
        return reader(blocks).reshape(stop - start, -1)

    def numbers(self, start: int, stop: int) -> Array:
        """The numbers of some rows, in float32."""
        layout = self.layout
        codes = self.read(layout.codes, start, stop).astype(np.float32) - np.float32(layout.zero)
        numbers = codes.reshape(stop - start, -1, layout.group) * self.read(layout.scales, start, stop)[..., None]
        if layout.offsets is not None:
            numbers += self.read(layout.offsets, start, stop)[..., None]
        return numbers.reshape(stop - start, -1)


class _Blocks(PackedModule):
    """``packed`` holds the blocks, so that a cast of the module leaves them, and two layers may share them."""

    packed: torch.Tensor

    def __init__(self, blocks: BlockRows, dtype: torch.dtype) -> None:
        super().__init__()
        self.blocks, self.dtype = blocks, dtype
        self.in_features, self.out_features = blocks.columns, blocks.rows
        self.register_buffer("packed", blocks.memory)

    def numbers(self) -> torch.Tensor:
        """All numbers [rows, columns], in float32."""
        return torch.from_numpy(self.blocks.numbers(0, self.blocks.rows))


class BlockLinear(_Blocks):
    """``x @ numbers.T + bias``, in float32."""

    def __init__(self, blocks: BlockRows, bias: nn.Parameter | None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(blocks, dtype)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computed in float32, given back in the dtype of ``x``."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(x.float(), self.numbers(), bias).to(x.dtype)

    def fx2onnx_shaped(self, x: torch.Tensor) -> torch.Tensor:
        """Sizes and dtype of what ``forward`` gives."""
        return x.new_empty((*x.shape[:-1], self.blocks.rows))


class BlockEmbedding(_Blocks):
    """``numbers[ids] * factor`` in ``dtype``."""

    def __init__(self, blocks: BlockRows, dtype: torch.dtype, factor: float | None = None) -> None:
        super().__init__(blocks, dtype)
        self.factor = factor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ``ids``; the numbers are rounded to ``dtype`` before they are multiplied."""
        found = nn.functional.embedding(ids, self.numbers()).to(self.dtype)
        return found if self.factor is None else found * self.factor

    def fx2onnx_shaped(self, ids: torch.Tensor) -> torch.Tensor:
        """Sizes and dtype of what ``forward`` gives."""
        return ids.new_empty((*ids.shape, self.blocks.columns), dtype=self.dtype)
