"""The changes of forward beside its outputs: those that the file has as inputs and outputs, and those that are an error or a
warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import OF_CALLER, Captured, Mutation
from fx2onnx.exporting.options import ExportOptions


def texts(mutations: Iterable[Mutation]) -> list[str]:
    """A line for each change."""
    return [f"{m.kind} {m.name}" + (f"   ({m.where})" if m.where else "") for m in mutations]


def _may_be_carried(mutation: Mutation) -> bool:
    """Return whether the file can have an input and an output for the change."""
    return mutation.node is not None and (mutation.before is not None or mutation.kind in OF_CALLER)


def _refuse_shared(captured: Captured) -> None:
    """Raise UserError E106 where two places that forward gives tensors of their own hold one tensor before."""
    seen: dict[int, str] = {}
    for mutation in captured.mutations:
        if mutation.before is None or mutation.kind == "input":
            continue
        if id(mutation.before) in seen:
            raise UserError(
                "E106",
                f"{seen[id(mutation.before)]} and {mutation.name} are one tensor before the call",
                where=mutation.where,
                why="forward gives each a value of its own, which the file has an input for",
                next=f"give each a tensor of its own before the export, such as {mutation.name} = {mutation.name}.clone()",
            )
        seen[id(mutation.before)] = mutation.name


def left_out(captured: Captured, state: str) -> list[str]:
    """The changes of forward that the file lacks; with state as inputs and outputs those that cannot be a tensor there."""
    found: list[str] = []
    if state == "warn":
        lost = [each for each in captured.mutations if each.kind != "argument" or each.node is None]
        return [
            f"forward changes the {text}; the file does not" + ', unless state="io"' * _may_be_carried(each)
            for each, text in zip(lost, texts(lost), strict=True)
        ]
    if state != "io":
        return found
    for mutation, text in zip(captured.mutations, texts(captured.mutations), strict=True):
        if mutation.node is None and mutation.kind == "argument":
            why = "return it, or pass a plain object that holds it, for the file to have it as an output"
            found.append(f"forward changes the {text}; the file does not: {why}")
        elif mutation.node is None:
            why = "it holds no tensor afterwards; make it a tensor, such as a buffer, for the file to carry it"
            found.append(f"forward changes the {text}; the file does not: {why}")
        elif not _may_be_carried(mutation):
            why = (
                "it holds no tensor before; call the module once before the export, or set it, for the file to carry it"
            )
            found.append(
                f"forward changes the {text}; the file has its new value, and does what the first call does: {why}"
            )
        elif mutation.also is not None:
            why = (
                "they are one tensor before the call; give each a tensor of its own before the export, such as a clone"
            )
            found.append(f"the file's input {mutation.name} is {mutation.also}, too: {why}")
    return found


def check_state(captured: Captured, state: str) -> None:
    """Raises UserError E106, E107 where the file cannot have its state so, or has nothing to give."""
    _require_outputs(captured, has_state=state == "io")
    if state == "error":
        _refuse_mutations(captured)
    elif state == "io":
        _refuse_shared(captured)
        _refuse_names(captured)


def initial_state(captured: Captured, model: ir.Model, options: ExportOptions) -> dict[str, Any]:
    """The values of state inputs before the first run. With gradients also buffers that are only written: evaluation may read
    them.
    """
    inputs = {value.name for value in model.graph.inputs}
    if options.capture.gradients:
        inputs |= {mutation.name for mutation in captured.mutations}
    return {
        mutation.name: mutation.before.detach()
        for mutation in captured.mutations
        if mutation.before is not None and mutation.name in inputs and mutation.kind != "input"
    }


def _refuse_mutations(captured: Captured) -> None:
    """Raise UserError E106 where forward changes something that stays."""
    lost = [each for each in captured.mutations if each.kind != "argument" or each.node is None]
    if not lost:
        return
    first, others = lost[0], texts(lost)[1:]
    raise UserError(
        "E106",
        f"forward changes the {first.kind} {first.name}",
        where=first.where,
        why="an ONNX model keeps nothing between runs" + (f"; also: {', '.join(others)}" if others else ""),
        next=('state="io" makes it an input and an output', 'or state="warn" leaves the change out of the file'),
    )


def _refuse_names(captured: Captured) -> None:
    """Raises UserError E001 where a tensor that becomes an input is called as an argument."""
    arguments = {each.name for each in captured.inputs}
    for each in captured.mutations:
        if each.kind not in OF_CALLER and each.name in arguments:
            raise UserError(
                "E001",
                f"the {each.kind} {each.name} that forward changes is called as an argument",
                where=each.where,
                why='with state="io" both are inputs',
                next=("rename one of them", f"or call the argument otherwise: input_names=['{each.name}_in', ...]"),
            )


def _require_outputs(captured: Captured, *, has_state: bool) -> None:
    """Raises UserError E107 for a module that gives nothing; ``has_state``: what it writes into is among the outputs."""
    if captured.outputs or (has_state and captured.mutations):
        return
    found = captured.restore([]) if captured.restore is not None else None
    steps = ["return tensors, numbers, or dicts, tuples, lists and dataclasses of them"]
    if captured.mutations:
        steps.append(f'or export with state="io": {captured.mutations[0].name} is then an input and an output')
    raise UserError("E107", "forward returns nothing that a file can hold", why=f"it returns {found!r:.80}", next=steps)
