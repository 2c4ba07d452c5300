"""Tensors that forward keeps outside of the module and its arguments: in a global table, a class, an object that others hold.

They are the capture's own tensors, without data, and eager PyTorch would compute on them afterwards. So what still exists of them after
a run is looked for, and taken out of what holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import ReferenceType

import torch

from fx2onnx.capture.rare_roads import road
from fx2onnx.torchcompat.frames import is_user


@dataclass
class OutsideState:
    """The facts that one capture knows about state outside of the module."""

    before: dict[int, tuple[object, dict[str, Any]]]
    """By id, namespaces of Python modules and classes, and what they had before the capture."""
    tensors: list[ReferenceType[torch.Tensor]] = field(default_factory=list)
    """The tensors of the last runs, which are gone unless somebody keeps them."""
    returned: list[object] = field(default_factory=list)
    """Objects in what forward returns, which may hold tensors as they like."""
    notes: dict[str, None] = field(default_factory=dict)
    """A line for each name or attribute that was put back."""

    def put_back(self, has_ended: bool = False) -> None:
        """Take the tensors out of whatever keeps them. A name or an attribute has its value of before, or None, where that is unknown.

        ``has_ended``: the capture is over, without an error. Then whatever keeps them is found; else, while tracebacks keep them, too,
        the names of the module's own Python files and classes are looked through.
        """
        if any(each() is not None for each in self.tensors):
            kept = road("tensors kept outside")
            look = kept.taken_out if has_ended else kept.taken_out_of_names
            self.notes.update(dict.fromkeys(look(self.tensors, self.before, self.returned)))
        if has_ended:
            self.returned.clear()
            self.tensors.clear()


def outside_of(modules: Iterable[torch.nn.Module]) -> OutsideState:
    """The state outside of ``modules``: their classes, and the Python modules that their ``forward`` is from."""
    before: dict[int, tuple[object, dict[str, Any]]] = {}
    for module in modules:
        kind = type(module)
        forward = vars(module).get("forward", vars(kind).get("forward"))  # of a function that is exported, its own
        if not isinstance(forward, FunctionType) or id(kind) in before or not is_user(forward.__code__):
            continue
        if "forward" in vars(kind):
            before[id(kind)] = kind, dict(vars(kind))
        space = forward.__globals__
        if id(space) not in before:
            before[id(space)] = space, dict(space)
    return OutsideState(before)
