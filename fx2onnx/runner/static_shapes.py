"""Shape and dtype errors that can be known before anything runs.

Kernels' own ``infer`` functions run over stand-ins: arrays of stride 0 that have a shape and dtype and no memory. ONNX's
C++ shape inference is not used, because a malformed model can make it crash the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.runner.execute import KERNEL_FAULTS, node_line
from fx2onnx.runner.limits import MAX_RANK, memory_limit
from fx2onnx.runner.program import Program, Step
from fx2onnx.runner.registry import outputs_of
from fx2onnx.runner.types import Array, Dtype, Value, as_value, is_tensor_type, numpy_dtype

MAX_KNOWN = 1024
"""Values of up to this many elements are computed: they are shapes, axes and pads."""


MAX_COMPUTED_BYTES = 1 << 20
"""What a computed value may take; larger ones are left to the run."""


_ZEROS = bytes(16)
"""One element of the widest dtype: every element of a stand-in lies there."""


def stand_in(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """A read-only array without memory."""
    if dtype.kind == "O":
        return np.broadcast_to(np.zeros((), dtype), shape)
    return np.ndarray(shape, dtype, _ZEROS, 0, (0,) * len(shape))


def check_static_shapes(program: Program, fixed: Mapping[str, int]) -> None:
    """Raises: UserError E303 for a step whose operands, of shapes known now, cannot fit."""
    known: dict[int, Value] = {}
    ghosts: dict[int, Array] = {}
    for slot in program.slots:
        if slot.is_const:
            known[slot.index] = slot.const
    for index in program.inputs:
        slot = program.slots[index]
        if is_tensor_type(slot.type) and slot.shape is not None and slot.type.dtype.name != "UNDEFINED":
            dims = [fixed.get(dim, -1) if isinstance(dim, str) else -1 if dim is None else dim for dim in slot.shape]
            if len(dims) <= MAX_RANK and all(0 <= dim < 1 << 31 for dim in dims):
                ghosts[index] = stand_in(tuple(dims), numpy_dtype(slot.type.dtype))
    for step in program.steps:
        if not step.bodies and all(i < 0 or i in known or i in ghosts for i in step.inputs):
            _visit(step, known, ghosts)


def _visit(step: Step, known: dict[int, Value], ghosts: dict[int, Array]) -> None:
    kernel = step.kernel
    args = [None if i < 0 else known[i] if i in known else ghosts[i] for i in step.inputs]
    is_known = [i < 0 or i in known for i in step.inputs]
    try:
        if kernel.op_type in ("Shape", "Size") and not kernel.domain:
            known[step.outputs[0]] = kernel.fn(*args, **step.attrs)
        elif kernel.infer is not None:
            specs = kernel.infer(args, step.attrs)
            for index, (shape, dtype) in zip(step.outputs, specs, strict=False):
                if max(shape, default=0) < 1 << 31:
                    ghosts[index] = stand_in(tuple(shape), dtype)
        elif kernel.kind == "view" and kernel.shape_inputs is not None and not kernel.is_random:
            if all(is_known[p] for p in kernel.shape_inputs if p < len(is_known)):
                _record(step, kernel.fn(*args, **step.attrs), all(is_known), known, ghosts)
        elif all(is_known) and not kernel.is_random and kernel.shape_inputs is not None and _are_small(args):
            with memory_limit(MAX_COMPUTED_BYTES):
                _record(step, kernel.fn(*args, **step.attrs), True, known, ghosts)
    except UserError as error:
        if error.code == "E404":
            return  # large, but perhaps within the limit: the run decides
        raise UserError(error.code, error.what, node=node_line(step, args), why=error.why, next=error.next) from error
    except KERNEL_FAULTS as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        raise UserError(
            "E303",
            f"the operands of {step.op_type} do not fit",
            node=node_line(step, args),
            why=f"{text} (known before anything ran)",
        ) from error


def _are_small(args: list[Any]) -> bool:
    return all(arg is None or (isinstance(arg, np.ndarray) and arg.size <= MAX_KNOWN) for arg in args)


def _record(step: Step, result: Any, is_known: bool, known: dict[int, Value], ghosts: dict[int, Array]) -> None:
    for index, value in zip(step.outputs, outputs_of(result), strict=False):
        array = as_value(value)
        if index < 0 or not isinstance(array, np.ndarray):
            continue
        if is_known:
            known[index] = array
        else:
            ghosts[index] = array
