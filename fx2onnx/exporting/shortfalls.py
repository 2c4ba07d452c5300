"""What was asked for and the file does not have, in lines for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.sets import EVERY, SizeSet


def require_outputs(captured: Captured, *, has_state: bool) -> None:
    """Raises UserError E107 for a module that gives nothing; ``has_state``: what it writes into is among the outputs."""
    if captured.outputs or (has_state and captured.mutations):
        return
    found = captured.restore([]) if captured.restore is not None else None
    steps = ["return tensors, numbers, or dicts, tuples, lists and dataclasses of them"]
    if captured.mutations:
        steps.append(f'or export with state="io": {captured.mutations[0].name} is then an input and an output')
    raise UserError("E107", "forward returns nothing that a file can hold", why=f"it returns {found!r:.80}", next=steps)


def renamed_outputs(captured: Captured, model: ir.Model) -> Iterator[str]:
    """A line for each output whose name an input or another output has."""
    for output, value in zip(captured.outputs, model.graph.outputs, strict=False):
        if value.name != output.name:
            yield f"the output {output.name} is called {value.name}: names in a file differ, and {output.name} is taken"


def import_versions(model: ir.Model, versions: Mapping[str, int]) -> Iterator[str]:
    """Import operator sets at the ``versions`` that are asked for. A line for each that no node is of."""
    if not versions:
        return
    used = {node.domain for node in model.graph.all_nodes()}
    for function in model.functions.values():
        used |= {node.domain for node in function.all_nodes()}
    for domain, version in versions.items():
        for imports in (model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())):
            if domain in imports:
                imports[domain] = version
        if domain not in used:
            yield f"custom_opsets has no effect for {domain!r}: no node is of it"


def limited_sizes(captured: Captured) -> Iterator[str]:
    """A line for each dynamic size of an input that holds for a short interval, or with gaps, unless it is declared so."""
    own = {name for name, symbol in captured.symbols.items() if symbol.node.op == "placeholder"}
    conditions = [each for each in captured.assumptions if isinstance(each, Condition) and each.name in own]
    declared = {each.name: each.sizes for each in conditions if each.where is None}
    for condition in conditions:
        sizes = condition.sizes
        if not _is_wide(sizes) and not declared.get(condition.name, EVERY).is_within(sizes):
            place = f"   ({condition.where})" if condition.where else ""
            yield f"the file is right for some sizes {condition.name} only: {condition.expression}{place}"


def _is_wide(sizes: SizeSet) -> bool:
    """Whether the sizes are all from a least one on, to twice that one at least: a table of positions has an end. 0 is nobody's
    case.
    """
    found = [size for size, holds in enumerate(sizes.array(len(sizes.members)).tolist()) if holds and size]
    rest = sizes.members[sizes.start :]
    has_gaps = bool(found) and found != list(range(found[0], found[-1] + 1))
    has_room = bool(found) and not any(rest) and found[-1] >= 2 * found[0]
    return not has_gaps and (all(rest) or has_room)
