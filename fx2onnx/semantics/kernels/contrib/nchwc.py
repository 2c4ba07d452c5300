"""Operators of ``com.microsoft.nchwc``, which onnxruntime writes into ``optimized_model_filepath`` at its highest levels.

There images lie in memory in blocks of channels, and so do the filters of a file. Here images lie as everywhere else:
``ReorderInput`` only fills channels up to a whole number of blocks, ``ReorderOutput`` cuts them off, and ``lay_out`` puts the
filters in plain order when the session is made.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels import pool
from fx2onnx.semantics.kernels.contrib import NCHWC
from fx2onnx.semantics.kernels.contrib.fused import fused_conv
from fx2onnx.semantics.kernels.resize import resize
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.reading.program import Program, Step, type_of_array
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array

_BLOCKS = (16, 8)

kernel("MaxPool", domain=NCHWC, kind="into", infer=pool.pool_infer)(pool.max_pool)
kernel("AveragePool", domain=NCHWC, kind="into", infer=pool.pool_infer)(pool.average_pool)
kernel("GlobalAveragePool", domain=NCHWC)(pool.global_average_pool)
kernel("GlobalMaxPool", domain=NCHWC)(pool.global_max_pool)


def block_of_this_machine() -> int:
    """The channels of a block as onnxruntime chooses them by the CPU."""
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    names = [*extensions["baseline"], *extensions["found"]]
    is_wide = any(name.startswith("AVX512") or name == "X86_V4" for name in names)
    return 16 if is_wide or platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686", "x86") else 8


def _steps(program: Program) -> Iterator[tuple[Program, Step]]:
    for step in program.steps:
        if step.kernel.domain == NCHWC:
            yield program, step
        for body in step.bodies.values() if step.bodies else ():
            yield from _steps(body)


def lay_out(program: Program, block: int = 0) -> bool:
    """Put all filters in plain order. Returns whether the file leaves open how long its blocks are.

    ``block``: channels of a block; 0 finds it by the filters' sizes, and by this machine where they allow several.
    Raises: ValueError for filters that do not lie in such blocks.
    """
    found = list(_steps(program))
    filters = [(inner, step) for inner, step in found if step.op_type == "Conv"]
    shapes = [
        inner.slots[step.inputs[1]].const.shape for inner, step in filters if inner.slots[step.inputs[1]].is_const
    ]
    fitting = [size for size in _BLOCKS if all(len(shape) == 4 and shape[0] % size == 0 for shape in shapes)]
    if len(shapes) < len(filters) or not fitting or (block and block not in fitting):
        raise ValueError("filters of com.microsoft.nchwc must be 4-D constants in whole blocks of channels")
    chosen = block or (block_of_this_machine() if len(fitting) > 1 else fitting[0])
    plain: dict[tuple[int, int], int] = {}
    for inner, step in filters:
        key = (id(inner), step.inputs[1])
        if key not in plain:
            slot = inner.slots[step.inputs[1]]
            array = plain_filter(slot.const, chosen)
            plain[key] = inner.new_constant(slot.name, array, type_of_array(array)).index
        step.inputs = (step.inputs[0], plain[key], *step.inputs[2:])
        step.attrs["block"] = chosen
    for inner, step in found:
        if step.op_type == "ReorderInput":
            step.attrs["block"] = chosen
        inner.link()
    return bool(filters) and len(fitting) > 1 and not block


def plain_filter(w: Array, block: int) -> Array:
    """A filter [O, I, kh, kw] in plain order; in memory it is [O/b, I/b, kh, kw, b of I, b of O] or [O/b, I, kh, kw, b of O]."""
    outs, ins, *kernel_dims = w.shape
    if ins % block:
        return np.ascontiguousarray(
            w.reshape(outs // block, ins, *kernel_dims, block).transpose(0, 4, 1, 2, 3).reshape(w.shape)
        )
    blocks = w.reshape(outs // block, ins // block, *kernel_dims, block, block)
    return np.ascontiguousarray(blocks.transpose(0, 5, 1, 4, 2, 3).reshape(w.shape))


@kernel("Conv", domain=NCHWC)
def conv_of_blocks(
    x: Array, w: Array, bias: Array | None = None, z: Array | None = None, *, block: int = 0, **attrs: Any
) -> Array:
    """activation(Conv(x, w, bias) + z); ``block`` says that ``lay_out`` has put w in plain order."""
    if not block:
        raise ValueError("the filter of a convolution in blocks must be a constant")
    return fused_conv(x, w, bias, z, **attrs)


@kernel("ReorderInput", domain=NCHWC)
def reorder_input(x: Array, *, channels_last: int = 0, block: int = 16) -> Array:
    """x with channels as its second axis, filled with zeros up to a whole number of blocks."""
    if x.ndim != 4:
        raise ValueError(f"the input has {x.ndim} axes, it must have 4")
    moved = np.moveaxis(x, -1, 1) if channels_last else x
    channels = moved.shape[1]
    shape = (moved.shape[0], -(-channels // block) * block, *moved.shape[2:])
    check_shape(shape, x.dtype)
    y = np.zeros(shape, x.dtype)
    y[:, :channels] = moved
    return y


@kernel("ReorderOutput", domain=NCHWC)
def reorder_output(x: Array, *, channels: int = 0, channels_last: int = 0) -> Array:
    """The first ``channels`` of x, as the last axis if asked to."""
    if x.ndim != 4 or not 0 < channels <= x.shape[1]:
        raise ValueError(f"{channels} channels of an input of shape {list(x.shape)}")
    y = x[:, :channels]
    return np.array(np.moveaxis(y, 1, -1) if channels_last else y, order="C")


@kernel("Upsample", domain=NCHWC)
def upsample_of_blocks(
    x: Array,
    *,
    scales: Sequence[int] | None = None,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> Array:
    """x enlarged by whole numbers."""
    factors = tuple(scales or (1,) * x.ndim)
    if len(factors) != x.ndim or min(factors) < 1:
        raise ValueError(f"scales are {list(factors)}")
    check_shape([size * factor for size, factor in zip(x.shape, factors, strict=True)], x.dtype)
    if mode == "nearest":
        for axis, factor in enumerate(factors):
            x = np.repeat(x, factor, axis=axis)
        return x.copy()
    return resize(
        x,
        None,
        np.asarray(factors, np.float32),
        mode=mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
    )
