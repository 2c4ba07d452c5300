"""The first node of the captured graph that eager PyTorch never computes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.source import PACKAGE_FOLDER
from fx2onnx.torchcompat.dispatch import EagerMode
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.verify.locating.aten_graph import AtenGraph, operands_of
from fx2onnx.verify.locating.sketches import Sketches


class Seen(EagerMode):
    """Remembers every tensor that operators take and give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sketches = Sketches()

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._add(args)
        result = func(*args, **kwargs)
        self._add(result)
        return result

    def __contains__(self, value: object) -> bool:
        if isinstance(value, torch.Tensor):
            return self._sketches.find(value) is not None
        return isinstance(value, tuple | list) and all(part is None or part in self for part in value)

    def _add(self, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._sketches.add(value, None)
        elif isinstance(value, tuple | list):
            for part in value:
                self._add(part)


def first_unseen(
    graph: AtenGraph,
    inputs: Mapping[torch.fx.Node, torch.Tensor],
    seen: Seen,
    wrong: Sequence[torch.fx.Node],
) -> tuple[torch.fx.Node, Any] | None:
    """The first node on the way to ``wrong`` outputs of which eager PyTorch has no such value, and this value.

    Nodes that a decomposition or a patch computes otherwise do not count where what follows from them is seen again.
    """
    unseen: dict[torch.fx.Node, Any] = {}
    for node, value in graph.run(inputs):
        if node.op == "call_function" and value not in seen:
            unseen[node] = None
    on_the_way, pending = set[torch.fx.Node](), [node for node in wrong if node in unseen]
    while pending:
        node = pending.pop()
        if node not in on_the_way:
            on_the_way.add(node)
            pending += [operand for operand in operands_of(node) if operand in unseen]
    first = next((node for node in unseen if node in on_the_way), None)
    if first is None:
        return (wrong[0], None) if wrong else None
    value = next(value for node, value in graph.run(inputs) if node is first)
    return first, value


@contextlib.contextmanager
def places_noted() -> Iterator[dict[str, str]]:
    """Which code of capture makes each node, by the node's name, while graphs are recorded in here."""
    places: dict[str, str] = {}
    create_node = RecordedGraph.create_node

    def noted(graph: RecordedGraph, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = create_node(graph, *args, **kwargs)
        places.setdefault(node.name, _place())
        return node

    RecordedGraph.create_node = noted  # type: ignore[assignment, method-assign]
    try:
        yield places
    finally:
        RecordedGraph.create_node = create_node  # type: ignore[method-assign]


_CORE = tuple(
    os.path.join(PACKAGE_FOLDER, *parts)
    for parts in (
        ("capture", "recording", "tracer.py"),
        ("capture", "recording", "values.py"),
        ("torchcompat", "dispatch.py"),
    )
)
"""Through these every node comes."""

MOST_PLACES = 4


def _place() -> str:
    """The innermost lines of capture, but for those through which every node comes."""
    found: list[str] = []
    frame = sys._getframe(2)
    folders = tuple(os.path.join(PACKAGE_FOLDER, room) + os.sep for room in ("capture", "torchcompat"))
    while frame is not None and len(found) < MOST_PLACES:
        file = frame.f_code.co_filename
        if file.startswith(folders) and file not in _CORE:
            found.append(
                f"{os.path.relpath(file, os.path.dirname(PACKAGE_FOLDER))}:{frame.f_lineno}, in {frame.f_code.co_name}"
            )
        elif found and not file.startswith(folders):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)
