"""A session's graph as text, its Program as text, and the dependencies of its steps as a picture."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import plain
from fx2onnx.base.targets import check_target
from fx2onnx.files.staging import replacing
from fx2onnx.runner.options import GraphOptimizationLevel, SessionOptions
from fx2onnx.runner.plan import Plan
from fx2onnx.semantics.reading.load import LoadedProto
from fx2onnx.semantics.reading.program import Program, Slot, Step
from fx2onnx.semantics.types import describe, type_name

ATTRIBUTE_CHARS = 60
"""Longer attribute values are cut: a dump is read line by line."""


def dump_graph(session: Any) -> str:
    """The ONNX view: names of values and operators, one line a node."""
    program: Program = session.program
    lines = [f"graph {program.name}"]
    lines += [f"  input  {arg.name}: {arg.type}{_dims(arg.shape)}" for arg in session.get_inputs()]
    lines += [f"  output {arg.name}: {arg.type}{_dims(arg.shape)}" for arg in session.get_outputs()]
    lines += _nodes(program, "  ")
    return "\n".join(lines) + "\n"


def _nodes(program: Program, indent: str) -> Iterable[str]:
    for step in program.steps:
        outputs = ", ".join(_name(program, index) for index in step.outputs)
        inputs = ", ".join(_name(program, index) for index in step.inputs[: step.n_inputs])
        yield f"{indent}{outputs} = {step.op_type}({inputs}){_attributes(step)}"
        for name, body in step.bodies.items():
            yield f"{indent}  {name} {body.name}({', '.join(_name(body, index) for index in body.inputs)})"
            yield from _nodes(body, indent + "    ")
            yield f"{indent}    -> {', '.join(_name(body, index) for index in body.outputs)}"


def _name(program: Program, index: int) -> str:
    return (program.slots[index].name or f"%{index}") if index >= 0 else "_"


def _attributes(step: Step) -> str:
    shown = [
        f"{key}={_short(value)}"
        for key, value in sorted(step.attrs.items())
        if key not in ("kept", "n_outputs", "version")
    ]
    return f" {{{', '.join(shown)}}}" if shown else ""


def _short(value: Any) -> str:
    text = describe(value) if hasattr(value, "dtype") else repr(value)
    return text if len(text) <= ATTRIBUTE_CHARS else text[: ATTRIBUTE_CHARS - 3] + "..."


def _dims(shape: Any) -> str:
    return "" if shape is None else "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def dump_ir(session: Any) -> str:
    """The Program: slots with sizes and users, steps over slots; then the newest plan's buffers, if one was made."""
    lines = list(_program_lines(session.program, ""))
    plans = [plan for plan in session.executor.plans.values() if isinstance(plan, Plan)]
    if plans:
        lines += list(_plan_lines(plans[-1]))
    return "\n".join(lines) + "\n"


def _program_lines(program: Program, indent: str) -> Iterable[str]:
    yield f"{indent}program {program.name}: {len(program.steps)} steps"
    used = {*program.inputs, *program.outputs}
    used.update(index for step in program.steps for index in (*step.inputs, *step.outputs) if index >= 0)
    for slot in program.slots:
        if slot.index in used:
            yield f"{indent}  %{slot.index:<4} {_slot_line(program, slot)}"
    for step in program.steps:
        outs = [f"@out %{index}" for index in step.outputs if index >= 0]
        ins = [f"@in %{index}" if index >= 0 else "@in _" for index in step.inputs]
        yield f"{indent}  {step.index:4} {step.op_type.lower()} {', '.join(outs + ins)}{_attributes(step)}"
        for body in step.bodies.values():
            yield from _program_lines(body, indent + "      ")


def _slot_line(program: Program, slot: Slot) -> str:
    kind = "const" if slot.is_const else "input" if slot.index in program.inputs else "value"
    size = describe(slot.const) if slot.is_const else f"{type_name(slot.type)}{_dims(slot.shape)}"
    users = ", ".join(map(str, slot.users)) or "none"
    return f"{kind} {slot.name or '-'}  {size}  users {users}"


def _plan_lines(plan: Plan) -> Iterable[str]:
    yield f"plan: {len(plan.actions)} steps, arena of {plan.arena_bytes} bytes, {len(plan.buffers)} buffers"
    for position, action in enumerate(plan.actions):
        places = []
        for index in action.outs:
            number = plan.buffer_of.get(index)
            if number is None:
                places.append(f"%{index} fresh")
                continue
            buffer = plan.buffers[number]
            layout = " channels-last" if index in plan.trace.channels_last else ""
            places.append(f"%{index} at {buffer.offset}+{buffer.size_bytes} for {buffer.start}..{buffer.end}{layout}")
        yield f"  {position:4} {action.kind:5} {action.step.op_type}  {'; '.join(places)}"


def _xml(text: str) -> str:
    import html  # for pictures alone: its table of names takes a moment

    return html.escape(plain(text))


BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 150, 34, 24, 30
MAX_BOXES = 4000
"""Steps drawn at most; a browser still scrolls that many boxes."""


def dump_dag(session: Any) -> str:
    """The steps as boxes in layers, an arrow for each value that one step hands to another; an SVG document.

    Layers are the longest path from the inputs; within a layer, a step stands near the mean place of what it reads.
    """
    program: Program = session.program
    steps = program.steps[:MAX_BOXES]
    layer: dict[int, int] = {}
    place: dict[int, float] = {}
    rows: list[list[Step]] = []
    for step in steps:
        producers = [program.slots[i].producer for i in step.inputs if i >= 0 and program.slots[i].producer >= 0]
        layer[step.index] = 1 + max((layer[p] for p in producers), default=-1)
        while len(rows) <= layer[step.index]:
            rows.append([])
        rows[layer[step.index]].append(step)
    for row in rows:
        wanted = {}
        for position, step in enumerate(row):
            above = [place[p] for i in step.inputs if i >= 0 and (p := program.slots[i].producer) in place]
            wanted[step.index] = sum(above) / len(above) if above else float(position)
        row.sort(key=lambda step: wanted[step.index])
        left = -1.0
        for step in row:
            left = max(left + 1, wanted[step.index])
            place[step.index] = left
    width = int((max(place.values(), default=0) + 1) * (BOX_WIDTH + GAP_X) + GAP_X)
    height = len(rows) * (BOX_HEIGHT + GAP_Y) + GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        '<defs><marker id="a" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L6 3L0 6z" fill="#888"/></marker></defs>',
    ]
    corner = {
        index: (GAP_X + x * (BOX_WIDTH + GAP_X), GAP_Y / 2 + layer[index] * (BOX_HEIGHT + GAP_Y))
        for index, x in place.items()
    }
    for step in steps:
        x, y = corner[step.index]
        for source in {program.slots[i].producer for i in step.inputs if i >= 0}:
            if source in corner:
                sx, sy = corner[source]
                parts.append(
                    f'<line x1="{sx + BOX_WIDTH / 2:.0f}" y1="{sy + BOX_HEIGHT:.0f}" x2="{x + BOX_WIDTH / 2:.0f}"'
                    f' y2="{y:.0f}" stroke="#888" marker-end="url(#a)"/>'
                )
    for step in steps:
        x, y = corner[step.index]
        name = _name(program, step.outputs[0]) if step.outputs else ""
        parts.append(
            f'<g><title>{_xml(str(step.origin))}</title><rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}"'
            f' height="{BOX_HEIGHT}" rx="4" fill="#eef3fb" stroke="#456"/>'
            f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 14:.0f}" text-anchor="middle" font-weight="bold">'
            f"{_xml(step.op_type)}</text>"
            f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 27:.0f}" text-anchor="middle" fill="#555">'
            f"{_xml(name[-24:])}</text></g>"
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


OPTIMIZER_LEVELS = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: 0,
    GraphOptimizationLevel.ORT_ENABLE_BASIC: 1,
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: 2,
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: 2,
    GraphOptimizationLevel.ORT_ENABLE_ALL: 2,
}
"""The level of ``fx2onnx.optimize`` for ``optimized_model_filepath``, by onnxruntime's level."""


def save_optimized(loaded: LoadedProto, options: SessionOptions) -> None:
    """Write the model as ``fx2onnx.optimize`` rewrites it at the session's level."""
    import onnx_ir as ir

    import fx2onnx.irx  # noqa: F401  (before the first import of onnx_ir)
    from fx2onnx.optimize import pipelines

    path = check_target(options.optimized_model_filepath, inputs=[loaded.path] if loaded.path else [])
    model = ir.from_proto(loaded.proto)
    for name, tensor in loaded.held.items():
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        model.graph.register_initializer(value)
    if loaded.path:
        ir.external_data.set_base_dir(model.graph, os.path.dirname(loaded.path) or ".")
    pipelines.run(model, OPTIMIZER_LEVELS[options.graph_optimization_level], fold_weights=True)
    try:
        with replacing(path) as temporary:
            ir.save(model, temporary)
    except ValueError as error:
        raise UserError("E301", f"the optimized model {path!r} cannot be written", why=str(error)) from error
