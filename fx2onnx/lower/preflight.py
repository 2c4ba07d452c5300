"""Errors of lowering: all that cannot be translated, before any node is emitted, and what a table entry does wrong."""

from __future__ import annotations

import difflib
import operator
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
import torch.fx

from fx2onnx.aten_map.table.families import known_names
from fx2onnx.aten_map.table.registry import Table, TableEntry
from fx2onnx.base import plugins
from fx2onnx.base.errors import Fx2OnnxError, InternalError, UserError
from fx2onnx.capture.captured import Captured, GraphOutput, TensorInfo, describe, where_of
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.eager_refusals import refusal_of_node
from fx2onnx.irx.values import dtype_name
from fx2onnx.lower import torchlib
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.operators import OpOverload


def used_nodes(captured: Captured, extra: Iterable[torch.fx.Node] = ()) -> set[torch.fx.Node]:
    """The nodes that an output (or one of ``extra``) depends on, those of nested graphs among them."""
    symbols = captured.symbols
    pending = [output.value for output in captured.outputs if isinstance(output.value, torch.fx.Node)]
    pending += extra
    numbers = (output.value for output in captured.outputs if isinstance(output.value, Dim))
    pending += [symbols[name].node for number in numbers for name in number.symbols() & symbols.keys()]
    used: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in used:
            used.add(node)
            pending += node.all_input_nodes
            if symbols:
                pending += [symbols[name].node for name in symbols_in(node) if name in symbols]
            for nested in nested_graphs(node):
                pending += nested.outputs
    return used


def nested_graphs(node: torch.fx.Node) -> list[Nested]:
    """The graphs that a control-flow node holds."""
    if type(node.target) is OpOverload or node.target is operator.getitem or node.op != "call_function":
        return []
    args: tuple[Any, ...] = node.args
    return [arg for arg in args if isinstance(arg, Nested)]


def nodes_with_depth(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, int]]:
    """Each node of a graph and of the graphs nested in it, and in how many graphs its own graph lies."""
    pending = [(iter(graph.nodes), 0)]
    while pending:
        nodes, depth = pending[-1]
        for node in nodes:
            yield node, depth
            if inner := nested_graphs(node):
                pending += [(iter(nested.graph.nodes), depth + 1) for nested in reversed(inner)]
                break
        else:
            pending.pop()


MAX_DEPTH = 30
"""Graphs in graphs. protobuf reads 100 messages in each other: 2 around the nodes of the main graph, 3 for each graph in a
node, 5 for the type of an output; one graph is left for the form of an operator."""


Nodes: TypeAlias = Sequence[tuple[torch.fx.Node, int]]
"""The nodes that ``nodes_with_depth`` gives."""


def check_depth(nodes: Nodes, used: set[torch.fx.Node]) -> None:
    """Raises: UserError E203 where branches and loops are nested more deeply than a file can hold."""
    for node, depth in nodes:
        if depth > MAX_DEPTH and node in used and node.op == "call_function":
            raise UserError(
                "E203",
                f"branches and loops are nested more than {MAX_DEPTH} deep",
                where=where_of(node),
                module_path=node.meta.get("module", ""),
                why="protobuf, which reads ONNX files, stops at 100 messages inside each other",
                next=(
                    "torch.where where both values may be computed, which needs no graph inside another",
                    "or torch.while_loop for what is done again and again",
                ),
            )


def symbols_in(node: torch.fx.Node) -> frozenset[str]:
    """Symbols whose numbers the node's arguments need."""
    result: set[str] = set()

    def visit(value: object) -> None:
        if isinstance(value, Dim):
            result.update(value.symbols())
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item)
        elif isinstance(value, Relation):
            visit(value.args)

    visit(node.args)
    visit(tuple(node.kwargs.values()))
    values = node.meta.get("val")
    for info in values if isinstance(values, tuple) else (values,):
        if info is not None:
            visit(info.dims)
    return frozenset(result)


def touching_complex(nodes: Nodes) -> frozenset[torch.fx.Node]:
    """The nodes of which an operand or a result is complex."""
    made = {node for node, _ in nodes if _is_complex(node.meta.get("val"))}
    return (
        frozenset(node for node, _ in nodes if node in made or not made.isdisjoint(node.all_input_nodes))
        if made
        else frozenset()
    )


def _is_complex(values: Any) -> bool:
    if type(values) is TensorInfo:
        return values.dtype.is_complex
    return isinstance(values, tuple) and any(map(_is_complex, values))


def check_numbers_read(captured: Captured, lifted: Set[str]) -> None:
    """``lifted`` are the buffers that are inputs of the graph.

    Raises: UserError E104 where Python took a number that follows from one of them.
    """
    for node, where in captured.numbers_read if lifted else ():
        for source in _sources(node):
            name = captured.weights[str(source.target)].name
            if name in lifted:
                raise UserError(
                    "E104",
                    f"Python reads the number of a buffer that forward changes: {name}",
                    where=where,
                    why="the graph takes the buffer as an input, and what Python makes of its number would be a constant",
                    next="keep the computation in tensors",
                )


def _sources(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The weights that a node follows from."""
    seen, pending = {node}, [node]
    while pending:
        current = pending.pop()
        if current.op == "get_attr":
            yield current
        pending += [operand for operand in current.all_input_nodes if operand not in seen]
        seen.update(pending)


def check(
    nodes: Nodes, used: set[torch.fx.Node], touching: frozenset[torch.fx.Node], table: Table, opset: int
) -> dict[torch.fx.Node, TableEntry]:
    """The entry of each call that the table has. ``touching`` are the nodes that touch complex numbers.

    Raises: UserError E201 (no entry) or E202 (needs a newer opset) that lists every overload concerned.
    """
    missing: Counter[object] = Counter()
    too_old: Counter[object] = Counter()
    first: dict[object, torch.fx.Node] = {}
    needs: dict[object, int] = {}
    entries: dict[torch.fx.Node, TableEntry] = {}
    found: dict[tuple[int, bool], TableEntry | None] = {}
    for node, _ in nodes:
        if node.op != "call_function" or node not in used or node.target is operator.getitem:
            continue
        if nested_graphs(node):
            continue
        is_complex = node in touching
        key = id(node.target), is_complex  # overloads hash in Python
        entry = found[key] if key in found else found.setdefault(key, table.find(node.target, opset, is_complex))
        if entry is not None:
            entries[node] = entry
        else:
            if node.target not in table and torchlib.find(node.target, is_complex) is not None:
                continue
            known = table.forms(node.target, is_complex)
            (too_old if known else missing)[node.target] += 1
            if known:
                needs[node.target] = min(entry.since for entry in known)
            first.setdefault(node.target, node)
    if missing:
        raise _missing_error(missing, first, touching, table, opset)
    if too_old:
        node = next(iter(first.values()))
        raise UserError(
            "E202",
            f"{len(too_old)} operator{'s' * (len(too_old) > 1)} cannot be expressed in opset {opset}",
            where=where_of(node),
            module_path=node.meta.get("module", ""),
            node=describe(node),
            why=", ".join(f"{name} needs opset {since} ({too_old[name]} uses)" for name, since in needs.items()),
            next=f"export with opset_version={max(needs.values())}",
        )
    return entries


def combined(refusals: Sequence[tuple[torch.fx.Node, Fx2OnnxError]], opset: int) -> Fx2OnnxError:
    """One error for all refusals: the only one as it is; of several the first, with what the others say."""
    first = refusals[0][1]
    distinct: dict[tuple[str, str], list[torch.fx.Node]] = {}
    for other, error in refusals:
        distinct.setdefault((f"{other.target}: {error.what}", error.why), []).append(other)
    if len(distinct) == 1:
        return first
    reasons = [
        f"{what} ({len(nodes)} use{'s' * (len(nodes) > 1)}, first at {where_of(nodes[0]) or nodes[0].name})"
        for (what, _), nodes in distinct.items()
    ]
    lines = ([error.next] if isinstance(error.next, str) else error.next for _, error in refusals)
    return type(first)(
        first.code,
        f"{len(distinct)} kinds of call cannot be expressed in opset {opset}",
        where=first.where,
        module_path=first.module_path,
        node=first.node,
        why="; ".join(reasons),
        next=tuple(dict.fromkeys(chain.from_iterable(lines))),
    )


def _missing_error(
    missing: Counter[object],
    first: dict[object, torch.fx.Node],
    touching: frozenset[torch.fx.Node],
    table: Table,
    opset: int,
) -> UserError:
    names = sorted(known_names() | {str(overload) for overload in table.entries})
    target, count = missing.most_common(1)[0]
    node = first[target]
    own, name = str(target).partition(".")[0], str(target).rpartition(".")[0]
    closest = [each for each in names if each.rpartition(".")[0] == name] or difflib.get_close_matches(
        str(target), [each for each in names if each.startswith(f"{own}.")], n=1, cutoff=0.6
    )
    others = "; ".join(
        f"{other} ({times}, first at {where_of(first[other])})"
        for other, times in missing.items()
        if other is not target
    )
    why = "no entry for this overload in fx2onnx.aten_map, no decomposition in PyTorch, no function in torchlib"
    if target in table:
        why = "fx2onnx.aten_map has an entry for " + ("real numbers only" if node in touching else "complex ones only")
    elif closest:
        why += f"; closest: {closest[0]}"
    if count > 1:
        why += f"; used {count} times"
    if others:
        why += f"; also missing: {others}"
    why = "; ".join([why, *plugins.import_all(plugins.TRANSLATIONS)])
    what = (
        f"cannot translate {target} to ONNX (opset {opset})"
        if len(missing) == 1
        else f"cannot translate {len(missing)} ATen overloads to ONNX (opset {opset}), first {target}"
    )
    advice = "express the line with operators that ONNX has"
    if target in table and node in touching:
        advice = "compute with the real and the imaginary parts: torch.view_as_real, x.real, x.imag"
    return UserError(
        "E201",
        what,
        where=where_of(node),
        module_path=node.meta.get("module", ""),
        node=describe(node),
        why=why,
        next=(
            f"write it: @fx2onnx.translates(torch.ops.{target})   (docs/adding_an_op.md)",
            f"or {advice}",
        ),
    )


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder of this package's table entries; entries from other folders are users'."""


def is_ours(entry: TableEntry) -> bool:
    """True if the entry is this package's own, not a user's."""
    return entry.place.startswith(_PACKAGE)


def shown(given: Any) -> str:
    """The words of messages for a result that is not one value."""
    if not isinstance(given, tuple | list | None):
        return f"a {type(given).__name__}"
    number = sum(value is not None for value in given or ())
    return f"{number} value" if number == 1 else f"{number} values"


def shown_type(dtype: ir.DataType, dims: Iterable[object]) -> str:
    """The words of messages for a type: ``float32[2, n]``."""
    return f"{dtype_name(dtype)}[{', '.join(map(str, dims))}]"


def located(error: Fx2OnnxError, node: torch.fx.Node) -> Fx2OnnxError:
    """The same error with the user's line and the node."""
    kind = type(error)
    return kind(
        error.code,
        error.what,
        where=error.where or where_of(node),
        module_path=error.module_path or node.meta.get("module", ""),
        node=error.node or describe(node),
        why=error.why,
        next=error.next,
    )


def _refused(node: torch.fx.Node, sizes: Mapping[str, int]) -> UserError | None:
    """The user's error, where eager PyTorch refuses the call of which an entry made nothing that fits."""
    error = refusal_of_node(node, sizes)
    if error is None:
        return None
    return UserError(
        "E101",
        f"eager PyTorch refuses the operands of {node.target}",
        where=where_of(node),
        module_path=node.meta.get("module", ""),
        node=describe(node),
        why=f"{type(error).__name__}: {str(error).splitlines()[0][:300]}",
        next="check that the module runs in eager PyTorch with the example inputs",
    )


def failed(node: torch.fx.Node, entry: TableEntry, cause: Exception, sizes: Mapping[str, int]) -> Fx2OnnxError:
    """An entry raised something of its own: a bug in fx2onnx, in the user's entry, or in the call."""
    ours = is_ours(entry)
    why, step = f"{type(cause).__name__}: {cause}", "correct the translation"
    if isinstance(cause, Fx2OnnxError):
        why = f"{cause.what}: {cause.why}" if cause.why else cause.what
        step = cause.next[0] if cause.next else step
    elif "magic handler" in why:  # onnx_ir's word for the operators of Python
        why, step = "a value has no operators of Python, such as a + b", "call the ONNX operator: op.Add(a, b)"
    return _refused(node, sizes) or (InternalError if ours else UserError)(
        "E900" if ours else "E001",
        f"the translation of {node.target} failed",
        where=where_of(node),
        module_path=node.meta.get("module", ""),
        node=describe(node),
        why=f"{why} (at {entry.place})",
        next="report it with the line above" if ours else step,
    )


def mistaken(node: torch.fx.Node, entry: TableEntry, given: str, wanted: str, sizes: Mapping[str, int]) -> Fx2OnnxError:
    """An entry gave something else than PyTorch does."""
    ours = is_ours(entry)
    return _refused(node, sizes) or (InternalError if ours else UserError)(
        "E900" if ours else "E001",
        f"the translation of {node.target} gives {given}, PyTorch {wanted}",
        where=where_of(node),
        node=describe(node),
        why=f"at {entry.place}",
        next="report it with the line above" if ours else "return values of the dtypes and sizes of op.result",
    )


def not_computed(output: GraphOutput) -> UserError:
    """An entry gives none of what an operator keeps for its backward pass."""
    return UserError(
        "E203",
        f"the output {output.name} has no form in ONNX",
        where=where_of(output.value) if isinstance(output.value, torch.fx.Node) else None,
        why="the operator keeps it for its own backward pass",
        next="leave it out of what forward returns",
    )
