"""Shape and dtype errors that can be known before anything runs.

Kernels' own ``infer`` functions run over stand-ins: arrays of stride 0 that have a shape and dtype and no memory. ONNX's
C++ shape inference is not used, because a malformed model can make it crash the process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.runner.execute import KERNEL_FAULTS, check_dtypes, node_line
from fx2onnx.runner.limits import MAX_RANK, memory_limit
from fx2onnx.runner.program import Program, Step
from fx2onnx.runner.registry import outputs_of
from fx2onnx.runner.types import Array, Dtype, Spec, Value, as_value, is_tensor_type, numpy_dtype

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


TRIAL_SIZES = (61, 89)
"""What unknown sizes are taken to be, once each: dims that differ between the two follow from unknown sizes."""

MAX_TRIALS = 2000
"""Assignments of sizes to the unknown dims of one step that are tried before its operands are said not to fit."""

_ONLY_SHAPES_MATTER = frozenset({"MatMul", "Gemm", "Concat", "Where", "Conv", "LayerNormalization"})
"""Operators beside the elementwise ones whose operands fit or not by equality of dims."""


class World:
    """Known values and stand-ins for unknown ones, by slot, where each unknown size is one number."""

    def __init__(self, program: Program, fixed: Mapping[str, int], unknown_size: int) -> None:
        self.known: dict[int, Value] = {slot.index: slot.const for slot in program.slots if slot.is_const}
        self.ghosts: dict[int, Array] = {}
        self.has_unknown = False
        for index in program.inputs:
            slot = program.slots[index]
            if is_tensor_type(slot.type) and slot.shape is not None and slot.type.dtype is not ir.DataType.UNDEFINED:
                dims = [fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in slot.shape]
                sizes = [dim if isinstance(dim, int) else unknown_size for dim in dims]
                self.has_unknown |= sizes != dims
                if len(sizes) <= MAX_RANK and all(0 <= dim < 1 << 31 for dim in sizes):
                    self.ghosts[index] = stand_in(tuple(sizes), numpy_dtype(slot.type.dtype))

    def operands(self, step: Step) -> list[Value] | None:
        """What the step reads, or None where something of it is not known at all."""
        args: list[Value] = []
        for index in step.inputs:
            if index < 0:
                args.append(None)
            elif index in self.known:
                args.append(self.known[index])
            elif index in self.ghosts:
                args.append(self.ghosts[index])
            else:
                return None
        return args

    def forget(self, step: Step) -> None:
        for index in step.outputs:
            self.known.pop(index, None)
            self.ghosts.pop(index, None)


def check_static_shapes(program: Program, fixed: Mapping[str, int]) -> None:
    """Raises: UserError E303 for a step whose operands cannot fit, whatever the sizes that are not known yet."""
    worlds = [World(program, fixed, TRIAL_SIZES[0])]
    if worlds[0].has_unknown:
        worlds.append(World(program, fixed, TRIAL_SIZES[1]))
    for step in program.steps:
        if step.bodies:
            continue
        operands = [world.operands(step) for world in worlds]
        if operands[0] is None or operands[-1] is None:
            continue
        for world, args in zip(worlds, operands, strict=True):
            assert args is not None
            error = _visit(step, args, world.known, world.ghosts)
            if error is not None:
                if len(worlds) == 1 or _can_never_fit(step, operands):
                    raise error
                for each in worlds:
                    each.forget(step)
                break


def _visit(step: Step, args: list[Value], known: dict[int, Value], ghosts: dict[int, Array]) -> UserError | None:
    """Note what follows of the step's outputs; the error where the operands do not fit."""
    kernel = step.kernel
    try:
        check_dtypes(step, args, "E303")
        if kernel.op_type in ("Shape", "Size") and not kernel.domain:
            known[step.outputs[0]] = kernel.fn(*args, **step.attrs)
        elif kernel.infer is not None:
            specs = kernel.infer(args, step.attrs)
            is_size = specs[0][1].kind in "iub" and _are_known(step, known) and _are_small(args)
            if is_size and _compute_small(step, args, specs, known):
                return None
            for index, (shape, dtype) in zip(step.outputs, specs, strict=False):
                if max(shape, default=0) < 1 << 31:
                    ghosts[index] = stand_in(tuple(shape), dtype)
        elif kernel.shape_inputs is None or kernel.is_random:
            return None
        elif kernel.kind == "view":
            deciding = [step.inputs[p] for p in kernel.shape_inputs if p < len(step.inputs)]
            if all(index < 0 or index in known for index in deciding):
                _record(step, kernel.fn(*args, **step.attrs), _are_known(step, known), known, ghosts)
        elif _are_known(step, known) and _are_small(args):
            with memory_limit(MAX_COMPUTED_BYTES):
                _record(step, kernel.fn(*args, **step.attrs), True, known, ghosts)
    except UserError as error:
        if error.code == "E404":
            return None  # large, but perhaps within the limit: the run decides
        node = error.node or node_line(step, args)
        return UserError(error.code, error.what, node=node, why=error.why, next=error.next)
    except KERNEL_FAULTS as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        fault = UserError(
            "E303",
            f"the operands of {step.op_type} do not fit",
            node=node_line(step, args),
            why=f"{text} (known before anything ran)",
        )
        fault.__cause__ = error
        return fault
    return None


def _are_known(step: Step, known: Mapping[int, Value]) -> bool:
    return all(index < 0 or index in known for index in step.inputs)


def _compute_small(step: Step, args: list[Value], specs: Sequence[Spec], known: dict[int, Value]) -> bool:
    """The value of an operator with ``infer`` on small known integers, as sizes and axes are; False where it is large."""
    if sum(math.prod(shape) for shape, _ in specs) > MAX_KNOWN:
        return False
    out = [np.empty(shape, dtype) for shape, dtype in specs]
    step.kernel.fn(out, *args, **step.attrs)
    known.update((index, value) for index, value in zip(step.outputs, out, strict=False) if index >= 0)
    return True


def _can_never_fit(step: Step, operands: Sequence[list[Value] | None]) -> bool:
    """Whether the step fails for every size of its unknown dims: each is tried as all sizes beside it, and some others."""
    first, second = operands[0], operands[-1]
    assert first is not None
    assert second is not None
    kernel = step.kernel
    shapes = [getattr(arg, "shape", None) for arg in first]
    others = [getattr(arg, "shape", None) for arg in second]
    if shapes == others:
        return all(one is other or not _holds_values(one) for one, other in zip(first, second, strict=True))
    if kernel.infer is None or not (kernel.elementwise or kernel.op_type in _ONLY_SHAPES_MATTER):
        return False
    free: list[tuple[int, int]] = []
    for place, (one, other) in enumerate(zip(shapes, others, strict=True)):
        if one is None or other is None:
            continue
        if len(one) != len(other):
            return False
        free += [(place, axis) for axis, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if step.op_type == "Conv" and (0, 1) in free:
        return False  # channels may be a multiple of the weight's
    sizes = {1, *TRIAL_SIZES, *(dim for one in shapes if one is not None for dim in one)}
    if len(sizes) ** len(free) > MAX_TRIALS:
        return False
    for chosen in itertools.product(sizes, repeat=len(free)):
        trial = [list(one) if one is not None else None for one in shapes]
        for (place, axis), size in zip(free, chosen, strict=True):
            dims = trial[place]
            assert dims is not None
            dims[axis] = size
        args = [
            arg if dims is None or dims == list(arg.shape) else stand_in(tuple(dims), arg.dtype)
            for arg, dims in zip(first, trial, strict=True)
        ]
        try:
            kernel.infer(args, step.attrs)
        except (UserError, *KERNEL_FAULTS):
            continue
        return False
    return True


def _holds_values(arg: Value) -> bool:
    """Whether the operand is more than a stand-in, so that its elements may decide."""
    return isinstance(arg, np.ndarray) and bool(arg.size) and (arg.ndim == 0 or any(arg.strides))


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
