"""Rewrites of a Program that only the runner makes: Conv + BatchNormalization + activation in one step, MatMulInteger
with the Cast, Mul and Add that make its sums floats, and onnxruntime's own products of bytes in the steps of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT, NCHWC
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, Kernel, find_kernel
from fx2onnx.semantics.types import FLOAT32

_ACTIVATIONS = frozenset({"Relu", "HardSwish", "Sigmoid"})


def fuse(program: Program) -> int:
    """Fuse all bodies too; returns the number of steps that were removed."""
    op_types = {step.op_type for step in program.steps}
    count = fuse_conv(program) if op_types & {"Conv", "FusedConv"} else 0
    count += fuse_integer_product(program) if "MatMulInteger" in op_types else 0
    if not op_types.isdisjoint(PRODUCTS):
        _split_products(program)
    if "QLinearConv" in op_types:
        _adopt_quantized(program)
    for step in program.steps:
        if step.bodies:
            count += sum(fuse(body) for body in step.bodies.values())
    return count


def _adopt(program: Program, fused: Kernel) -> None:
    """onnxruntime's fused convolutions -> FusedConv of the runner, which has a planned form; a sum becomes steps of its own."""
    steps: list[Step] = []
    for step in program.steps:
        activation = step.attrs.get("activation", "")
        is_of_onnxruntime = (step.kernel.domain, step.op_type) in ((NCHWC, "Conv"), (MICROSOFT, "FusedConv"))
        addend = step.inputs[3] if len(step.inputs) > 3 else -1
        if not is_of_onnxruntime or activation not in ("", "Relu", "Sigmoid", *(() if addend >= 0 else ("Clip",))):
            steps.append(step)
            continue
        low, high = step.attrs.get("activation_params") or (-np.inf, np.inf)
        attrs = {key: value for key, value in step.attrs.items() if key not in ("activation_params", "block")}
        attrs["bounds"] = (float(low), float(high))
        if addend < 0:
            steps.append(_like(step, fused, step.inputs[:3], step.outputs[0], attrs))
            continue
        product = program.new_slot("").index
        steps.append(_like(step, fused, step.inputs[:3], product, {**attrs, "activation": ""}))
        total = program.new_slot("").index if activation else step.outputs[0]
        steps.append(_like(step, _standard("Add"), (product, addend), total, {}))
        if activation:
            steps.append(_like(step, _standard(activation), (total,), step.outputs[0], {}))
    program.steps = steps
    program.link()


def _adopt_quantized(program: Program) -> None:
    """onnxruntime's QLinearConv with constant weights -> ONNX's, which has a planned form, between two transpositions of channels."""
    steps: list[Step] = []
    for step in program.steps:
        weights = program.slots[step.inputs[3]].const if step.op_type == "QLinearConv" and step.inputs[3] >= 0 else None
        if step.kernel.domain != MICROSOFT or not isinstance(weights, np.ndarray) or weights.ndim < 3:
            steps.append(step)
            continue
        attrs = {key: value for key, value in step.attrs.items() if key != "channels_last"}
        (x, *others), y, axes = step.inputs, step.outputs[0], range(1, weights.ndim)
        is_last = bool(step.attrs.get("channels_last"))
        source, made = (program.new_slot("").index for _ in range(2)) if is_last else (x, y)
        turns = [{"perm": [0, weights.ndim - 1, *axes[:-1]]}, {"perm": [0, *axes[1:], 1]}]
        if is_last:
            steps.append(_like(step, _standard("Transpose"), (x,), source, turns[0]))
        steps.append(_like(step, _standard("QLinearConv"), (source, *others), made, attrs))
        if is_last:
            steps.append(_like(step, _standard("Transpose"), (made,), y, turns[1]))
    program.steps = steps
    program.link()


def _standard(op_type: str) -> Kernel:
    found = find_kernel("", op_type, 14)
    assert found is not None
    return found


def _like(step: Step, kernel: Kernel, inputs: tuple[int, ...], output: int, attrs: dict[str, Any]) -> Step:
    """A step that does part of ``step``, under its name."""
    return Step(
        step.index, kernel, kernel.since, inputs, (output,), attrs, step.name, step.origin, n_inputs=len(inputs)
    )


def fuse_conv(program: Program) -> int:
    """Conv (+ BatchNormalization) (+ Relu, Clip, HardSwish, Sigmoid), each read only by the next -> FusedConv."""
    fused = find_kernel("fx2onnx", "FusedConv", 1)
    assert fused is not None
    if any(step.kernel.domain in (NCHWC, MICROSOFT) for step in program.steps):
        _adopt(program, fused)
    dropped: set[int] = set()
    for step in program.steps:
        if step.op_type != "Conv" or step.kernel.domain or len(step.inputs) < 2 or step.inputs[1] < 0:
            continue
        if not _is_const(program, step.inputs[1:]):
            continue
        if program.slots[step.inputs[1]].const.dtype != FLOAT32:
            continue
        attrs: dict[str, Any] = dict(step.attrs)
        inputs = [*step.inputs, -1][:3]
        last = step
        follower = _only_reader(program, last)
        if follower is not None and _is_inference_norm(program, follower, last):
            inputs += list(follower.inputs[1:])
            attrs["epsilon"] = follower.attrs.get("epsilon", 1e-5)
            dropped.add(last.index)
            last = follower
            follower = _only_reader(program, last)
        if follower is not None and follower.inputs[0] == last.outputs[0]:
            activation = _activation(program, follower)
            if activation is not None:
                attrs.update(activation)
                dropped.add(last.index)
                last = follower
        if last is step:
            continue
        new = Step(last.index, fused, 1, tuple(inputs), last.outputs, attrs)
        new.n_inputs, new.name, new.origin = len(inputs), step.name, step.origin
        program.steps[last.index] = new
    program.steps = [step for step in program.steps if step.index not in dropped]
    program.link()
    return len(dropped)


PRODUCTS = {
    "DynamicQuantizeMatMul": (0, 0, 2, 3, 4), "MatMulIntegerToFloat": (2, 4, 3, 5, 6), "QAttention": (3, 6, 4, 7, 2),
}  # fmt: skip
"""onnxruntime's products of bytes, with the places of the input's scale and zero point, the weights' scale and zero point, the bias."""


def _split_products(program: Program) -> None:
    """onnxruntime's products of bytes -> ScaledMatMulInteger with constant weights, after DynamicQuantizeLinear where they quantize."""
    fused = find_kernel(PRIVATE_DOMAIN, "ScaledMatMulInteger", 1)
    projected = find_kernel(PRIVATE_DOMAIN, "ProjectedAttention", 1)
    assert fused is not None
    assert projected is not None
    steps: list[Step] = []
    single = {slot.index for slot in program.slots if isinstance(slot.const, np.ndarray) and slot.const.size == 1}
    single.update(step.outputs[1] for step in program.steps if step.op_type == "DynamicQuantizeLinear")
    for step in program.steps:
        given = [*step.inputs, *[-1] * (9 - len(step.inputs))]
        places = PRODUCTS.get(step.op_type) if step.kernel.domain == MICROSOFT else None
        if places is None:
            steps.append(step)
            continue
        is_dynamic = not places[0]
        x, weights = given[:2]
        by, zero, bias = (given[place] for place in places[2:])
        x_scale, x_zero = (-1, -1) if is_dynamic else (given[place] for place in places[:2])
        if not _is_scaled_product(program, weights, by, zero, bias) or not (is_dynamic or x_scale in single):
            steps.append(step)
            continue
        if is_dynamic:
            source, (x, x_scale, x_zero) = x, (program.new_slot("").index for _ in range(3))
            quantize = _like(step, _standard("DynamicQuantizeLinear"), (source,), x, {})
            quantize.outputs = (x, x_scale, x_zero)
            steps.append(quantize)
        factor = program.new_slot("").index
        steps.append(_like(step, _standard("Mul"), (x_scale, by), factor, {}))
        operands = x, weights, x_zero, zero, factor, *(() if bias < 0 else (bias,))
        if step.op_type != "QAttention":
            steps.append(_like(step, fused, operands, step.outputs[0], {}))
            continue
        product = program.new_slot("").index
        attend = _like(step, projected, (product, given[5], given[8]), step.outputs[0], dict(step.attrs))
        attend.outputs = step.outputs
        steps += [_like(step, fused, operands, product, {}), attend]
    program.steps = steps
    program.link()


def _is_scaled_product(program: Program, weights: int, by: int, zero: int, bias: int) -> bool:
    """Return whether the weights are a constant matrix of bytes, and their scales, zero points and bias constants that fit it."""
    known = [program.slots[index].const if index >= 0 else None for index in (weights, by, zero, bias)]
    if any(
        index >= 0 and not isinstance(one, np.ndarray)
        for index, one in zip((weights, by, zero, bias), known, strict=True)
    ):
        return False
    w, scale, shift, added = known
    if w is None or w.ndim != 2 or len(w) > MAX_INNER or scale is None or scale.dtype != FLOAT32:
        return False
    forms = (), (1,), (w.shape[1],)
    if scale.shape not in forms or (shift is not None and (shift.shape not in forms or shift.dtype != w.dtype)):
        return False
    return added is None or (added.dtype == FLOAT32 and added.shape == (w.shape[1],))


def fuse_integer_product(program: Program) -> int:
    """MatMulInteger -> Cast to float -> Mul (-> Add of a row), each read only by the next -> ScaledMatMulInteger."""
    fused = find_kernel(PRIVATE_DOMAIN, "ScaledMatMulInteger", 1)
    assert fused is not None
    dropped: set[int] = set()
    for step in list(program.steps):
        weights = program.slots[step.inputs[1]].const if step.op_type == "MatMulInteger" else None
        if step.kernel.domain or not isinstance(weights, np.ndarray) or len(weights) > MAX_INNER or weights.ndim != 2:
            continue
        cast = _only_reader(program, step)
        if cast is None or cast.op_type != "Cast" or cast.attrs.get("to") != FLOAT:
            continue
        scaled = _only_reader(program, cast)
        factor = _other(program, scaled, cast, "Mul")
        if scaled is None or factor is None:
            continue
        last, inputs = scaled, [*[*step.inputs, -1, -1][:4], factor]
        bias = _other(program, _only_reader(program, scaled), scaled, "Add")
        if bias is not None and _is_row(program, bias, weights.shape[1]):
            last, inputs = program.steps[program.slots[scaled.outputs[0]].users[0]], [*inputs, bias]
        new = _like(step, fused, tuple(inputs), last.outputs[0], {})
        new.index = last.index
        program.steps[last.index] = new
        dropped.update({step.index, cast.index, scaled.index} - {last.index})
    program.steps = [step for step in program.steps if step.index not in dropped]
    program.link()
    return len(dropped)


FLOAT = 1
"""onnx.TensorProto.FLOAT, without the import."""
MAX_INNER = 1 << 16
"""Sums of more products of 8 bits could wrap around in 32 bits, which floats do not."""


def _other(program: Program, step: Step | None, source: Step, op_type: str) -> int | None:
    """The slot that ``step``, of two operands, takes beside what ``source`` gives."""
    if step is None or step.op_type != op_type or step.kernel.domain or len(step.inputs) != 2:
        return None
    others = [index for index in step.inputs if index != source.outputs[0]]
    return others[0] if len(others) == 1 else None


def _is_row(program: Program, slot: int, columns: int) -> bool:
    const = program.slots[slot].const
    return isinstance(const, np.ndarray) and const.dtype == FLOAT32 and const.shape == (columns,)


def _is_const(program: Program, slots: tuple[int, ...]) -> bool:
    return all(index < 0 or program.slots[index].is_const for index in slots)


def _only_reader(program: Program, step: Step) -> Step | None:
    """The one step that reads the first output, if nothing else does."""
    if len(step.outputs) < 1 or step.outputs[0] < 0 or any(index >= 0 for index in step.outputs[1:]):
        return None
    target = step.outputs[0]
    users = program.slots[target].users
    if target in program.outputs or len(users) != 1:
        return None
    return program.steps[users[0]]


def _is_inference_norm(program: Program, step: Step, source: Step) -> bool:
    if step.op_type != "BatchNormalization" or step.kernel.domain or step.inputs[0] != source.outputs[0]:
        return False
    if step.attrs.get("training_mode") or not step.attrs.get("spatial", 1) or any(i >= 0 for i in step.outputs[1:]):
        return False
    return _is_const(program, step.inputs[1:]) and all(
        program.slots[index].const.dtype == FLOAT32 for index in step.inputs[1:]
    )


def _activation(program: Program, step: Step) -> dict[str, Any] | None:
    if step.kernel.domain:
        return None
    if step.op_type in _ACTIVATIONS:
        return {"activation": step.op_type}
    if step.op_type != "Clip" or step.kernel.since < 11 or not _is_const(program, step.inputs[1:]):
        return None
    bounds = [-np.inf, np.inf]
    for place, index in enumerate(step.inputs[1:]):
        if index >= 0:
            const = program.slots[index].const
            if const.size != 1 or const.dtype != FLOAT32:
                return None
            bounds[place] = float(const.reshape(()))
    return {"activation": "Clip", "bounds": (bounds[0], bounds[1])}
