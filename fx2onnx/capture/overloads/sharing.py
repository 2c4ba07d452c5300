"""Memory that tensors share at some sizes only: what a call reads and writes, and copies that eager PyTorch leaves out.

``y.transpose(0, 1).reshape(-1, 4)`` is a copy, and a view of ``y`` where an axis is 1. That matters where one of both is written, and the
other one is read later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import GraphOutput
from fx2onnx.capture.overloads.reshapes import strides_of_view
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Copy, Memory, Values, Write
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.size_math import is_dense
from fx2onnx.capture.shapes.symnode import is_of_data, unwrap
from fx2onnx.sizes.assumptions import Guard
from fx2onnx.sizes.expr import Dim, product
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import HIGHER_ORDER, OpOverload

aten = torch.ops.aten

_SIZES = (*range(2, 13), 16, 24, 32, 64, 100)
"""Sizes at which memory may be shared, besides 1."""
_APART = [
    "index_add_",
    "index_copy_",
    "index_put_",
    "index_reduce_",
    "put_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
]
"""In-place operators that read no element of the tensor that they write, so that eager PyTorch refuses that tensor itself, too."""


def check_overlap(tracer: Tracer, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Compare what a call reads with what it writes, at the example's sizes and others: eager PyTorch refuses most calls that read some of the elements
    that they write, and of the others the result depends on the order in which elements are written.
    """
    values, views = tracer.values, tracer.values.views
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    is_apart = func._schema.name.removeprefix("aten::") in _APART
    is_filled = func._schema.arguments[-1].name == "value"  # with a number, which is read before
    for tensor in tensors[is_apart:]:
        written = tensors[-1 if "out" in kwargs else 0]
        view, other = views.get(id(written)), views.get(id(tensor))
        if view is None or other is None or other.memory is not view.memory or other.info.dtype != view.info.dtype:
            continue
        if (other is view and not is_apart) or (is_filled and not tensor.dim()):
            continue
        layouts = _overlapping(tracer, (written, tensor), is_apart, {})
        if layouts is None:
            at = _shared_at(tracer, (written, tensor), is_apart)
            if at is not None:
                _warn(tracer, f"{func} reads a part of the elements that it writes where {at}", _ORDER)
            continue
        is_refused = is_apart or torch.Tag.pointwise in func.tags or func is aten.copy_.default
        of_data = (is_of_data(size, tracer.sizes) for size in (*written.shape, *tensor.shape))
        if is_refused and all(map(_is_dense, layouts)) and not any(of_data):
            raise values.refuse(
                "E101",
                f"{func} reads a part of the elements that it writes",
                why="eager PyTorch refuses it: some elements of the input tensor and the written-to tensor refer to a single memory location",
                next="call .clone() on what is read",
            )
        _warn(tracer, f"{func} reads a part of the elements that it writes", _ORDER)


_ORDER = "so eager PyTorch's result is not defined; the file reads all of them before it writes. Call .clone() on what is read"


def _warn(tracer: Tracer, what: str, then: str) -> None:
    text = f"{what}, {then}   ({tracer.values.where})"
    tracer.warnings += {text}.difference(tracer.warnings)


_Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides and offset of a tensor in its memory."""


def _overlapping(
    tracer: Tracer, pair: Sequence[torch.Tensor], is_apart: bool, at: Mapping[str, int]
) -> list[_Layout] | None:
    """The layouts of what is written and of what is read where these share some elements at the sizes ``at``, and not all."""
    try:
        with tracer.sizes.tried_at(at):
            layouts = [_layout_in_numbers(tracer, each) for each in pair]
    except (KeyError, ZeroDivisionError):  # only the data tells
        return None
    return layouts if (is_apart or layouts[0] != layouts[1]) and _share_elements(*layouts) else None


def _shared_at(tracer: Tracer, pair: Sequence[torch.Tensor], is_apart: bool) -> str | None:
    """Sizes, in words, other than the example's at which elements that are written are read."""
    at = next((at for at in _other_sizes(tracer.sizes, *pair) if _overlapping(tracer, pair, is_apart, at)), None)
    return None if at is None else _in_words(at)


def _in_words(at: Mapping[str, int]) -> str:
    return " and ".join(f"{name} is {size}" for name, size in at.items())


def _symbols_of(*tensors: torch.Tensor) -> list[str]:
    sizes = [unwrap(each) for tensor in tensors for each in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    return sorted({name for size in sizes if isinstance(size, Dim) for name in size.symbols()})


def _other_sizes(env: ShapeEnv, *tensors: torch.Tensor) -> Iterator[dict[str, int]]:
    """Each symbol of the tensors with other sizes than 1, the others as in the example inputs."""
    for name, size in itertools.product(_symbols_of(*tensors), _SIZES):
        if size in env.facts.sets.get(name, EVERY):
            yield {name: size}


def _layout_in_numbers(tracer: Tracer, tensor: torch.Tensor) -> _Layout:
    fake = tracer.values.fake_of(tensor)
    sizes, strides, (offset,) = (
        tuple(int(tracer.sizes.hint(unwrap(each))) for each in found)
        for found in (fake.shape, fake.stride(), [fake.storage_offset()])
    )
    return sizes, tuple(0 if size == 1 else step for size, step in zip(sizes, strides, strict=True)), offset


def _is_dense(layout: _Layout) -> bool:
    """Return whether a tensor has each element of a stretch of memory once."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(*layout[:2], strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def _share_elements(one: _Layout, other: _Layout) -> bool:
    ends = [
        offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        for sizes, strides, offset in (one, other)
    ]
    if 0 in (*one[0], *other[0]) or one[2] > ends[1] or other[2] > ends[0]:
        return False
    with no_dispatch():
        marks = torch.zeros(max(ends) + 1, dtype=torch.bool)
        marks.as_strided(*one).fill_(True)
        return bool(marks.as_strided(*other).any())


def check_copies(tracer: Tracer, outputs: Sequence[GraphOutput]) -> None:
    """Ask, for each copy that is a view at some sizes, for the sizes at which that changes what forward computes: there is a
    shape-dependent branch then, as by ``n == 1``. Of others than 1 there is a warning.

    Raises: UserError E103 where it is a view at the sizes of this run.
    """
    values, env = tracer.values, tracer.sizes
    written = {id(write.memory) for write in values.writes}
    for copy in values.copies:
        source, made = (values.view_of(each).memory for each in (copy.source, copy.made))
        if not {id(source), id(made)} & written:
            continue
        symbols = _symbols_of(copy.source, copy.made)
        write = _read_later(values, copy, source, made, outputs)
        if write is None or not symbols:
            continue
        if _is_view(env, copy, env.decides_at):
            raise values.refuse(
                "E103",
                "an in-place write goes through a tensor that is a view at these sizes, and a copy at others",
                next="call .clone() before the write, or use the operator that returns a new tensor",
            )
        ones = [names for names in _at_one(env, symbols) if _is_view(env, copy, dict.fromkeys(names, 1))]
        for names in ones:
            if not any(other < names for other in ones):
                relation = Relation("ne", (product([Dim.symbol(name) for name in sorted(names)]), 1))
                env.note_guard(Guard(relation, write.where, by_user=True))
        at = next((at for at in _other_sizes(env, copy.source, copy.made) if _is_view(env, copy, at)), None)
        if at is not None:
            what = f"at {write.where}, a copy is written that is a view in eager PyTorch where {_in_words(at)}"
            _warn(tracer, what, "and what is viewed is read later. Call .clone() on what is written")


def _at_one(env: ShapeEnv, symbols: Sequence[str]) -> list[frozenset[str]]:
    """Names of sizes that may be 1 together, the fewest first."""
    names = [name for name in symbols if 1 in env.facts.sets.get(name, EVERY)]
    return [frozenset(each) for count in (1, 2) for each in itertools.combinations(names, count)]


def _is_view(env: ShapeEnv, copy: Copy, at: Mapping[str, int]) -> bool:
    """Return whether eager PyTorch makes no copy at these sizes."""
    with env.tried_at(at):
        groups = (map(unwrap, copy.source.shape), map(unwrap, copy.source.stride()), copy.target or [])
        dims, strides, target = ([int(env.hint(each)) for each in group] for group in groups)
        if 0 in dims:
            return False
        if copy.target is not None:
            return strides_of_view(env, dims, strides, target) is not None
        return is_dense(dims, strides, copy.order)


def _read_later(
    values: Values, copy: Copy, source: Memory, made: Memory, outputs: Sequence[GraphOutput]
) -> Write | None:
    """The first write into one of the two memories behind which the other one is read."""
    order: dict[torch.fx.Node, int] = {}
    starts: dict[torch.fx.Node, int] = {}
    _put_in_order(values.graph, order, starts, None)
    for memory, other in ((made, source), (source, made)):
        for write in values.writes:
            is_gone = not {copy.node, write.last} <= order.keys()  # with a branch or a turn that leaves nothing
            is_later = is_gone or order[write.last] > order[copy.node]
            since = -1 if is_gone else starts[write.last]
            if write.memory is memory and is_later and _is_read(values, other, order, since, outputs):
                return write
    return None


def _put_in_order(
    graph: torch.fx.Graph, order: dict[torch.fx.Node, int], starts: dict[torch.fx.Node, int], loop: int | None
) -> None:
    """Number the nodes, those of branches and turns before the node that has them. ``starts``: from which number on nodes may run behind
    each: turns follow turns.
    """
    for node in graph.nodes:
        for nested in (arg for arg in node.args if isinstance(arg, Nested)):
            is_turn = loop is None and node.target is not HIGHER_ORDER["cond"]
            _put_in_order(nested.graph, order, starts, len(order) if is_turn else loop)
        order[node] = len(order)
        starts[node] = order[node] if loop is None else loop


def _is_read(
    values: Values, memory: Memory, order: Mapping[torch.fx.Node, int], since: int, outputs: Sequence[GraphOutput]
) -> bool:
    """Return whether a node behind the first ``since`` of the graph, or who looks at the module later, reads ``memory``."""
    if any(view.memory is memory and view.node.op == "get_attr" for view in values.sources.values()):
        return True
    views = values.views.values()
    shown = {view.node for view in views if view.memory is memory}
    shown |= {node for write in values.writes if write.memory is memory for node in (write.before, write.after)}
    made = {write.after for write in values.writes if write.memory is memory and write.after is write.last}
    elsewhere = {view.node for view in views if view.memory is not memory}
    shown -= elsewhere - made  # copy_ gives a value that others have, too
    for node, place in order.items():
        if node in shown or shown.isdisjoint(node.all_input_nodes):
            continue
        if node.args[0] in shown and _shows(node):
            shown.add(node)
        elif place > since:
            return True
    return any(output.value in shown for output in outputs)


def _shows(node: torch.fx.Node) -> bool:
    """Return whether the node may be a view of its first operand."""
    if not isinstance(node.target, OpOverload):
        return True  # a part of a node with several results
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None
