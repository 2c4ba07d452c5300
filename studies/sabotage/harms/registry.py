"""The table of harms, and the ways of changing a file that several kinds of harm share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studies.sabotage.sketch import Site, Sketch

Harm = Callable[[Sketch], Site | None]
HARMS: dict[str, Harm] = {}


def harm(function: Harm) -> Harm:
    """Put it into the table under its name."""
    HARMS[function.__name__] = function
    return function


def at(node: Any, text: str) -> Site:
    """The node's outputs are where the file was harmed."""
    return Site(tuple(node.output), f"{node.op_type} {node.name}: {text}")


def attribute(sketch: Sketch, name: str, change: Callable[[Any, Any], Any]) -> Site | None:
    """Change an attribute of that name of some node."""
    candidates = [node for node in sketch.nodes if sketch.attribute(node, name) is not None]
    node = sketch.pick(candidates)
    if node is None:
        return None
    before = sketch.attribute(node, name)
    after = change(node, before)
    if after is None or after == before:
        return None
    sketch.set_attribute(node, name, after)
    return at(node, f"{name} {before} -> {after}")


def wrapped(sketch: Sketch, kind: int, text: str, make: Callable[[str], str], rank: int = 0) -> Site | None:
    """Nodes that ``make`` gives stand between some value of the kind (an element type of ONNX) and its readers."""
    candidates = [
        (node, place)
        for node in sketch.nodes
        for place, name in enumerate(node.output)
        if sketch.types.get(name, (0, ()))[0] == kind and sketch.rank(name) >= rank and name
    ]
    found = sketch.pick(candidates)
    if found is None:
        return None
    node, place = found
    site = Site((node.output[place],), f"{node.op_type} {node.name}: {text}")
    sketch.after(node, place, make)
    return site
