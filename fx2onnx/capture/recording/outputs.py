"""What forward returned: outputs of the graph, and what is not one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import storable
from fx2onnx.capture.captured import GraphOutput
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.torchcompat.pytrees import Key, Rebuild, flatten

if TYPE_CHECKING:
    from fx2onnx.capture.python.inputs import Arguments
    from fx2onnx.capture.recording.tracer import Tracer

_HELD = (torch.Tensor, int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def graph_outputs(tracer: Tracer, result: object, arguments: Arguments) -> tuple[list[GraphOutput], Rebuild]:
    """Every tensor and number in ``result``, named, and a function that builds ``result`` again from their values.

    Anything else but None is said in the tracer's warnings. Raises: UserError E107 where nothing is left.
    """
    leaves, rebuild = flatten(result)
    outputs: list[GraphOutput] = []
    places: list[int | None] = []
    taken: set[str] = set()
    others: list[str] = []
    for leaf in leaves:
        value = leaf.value.tensor if type(leaf.value) is DataNumber else leaf.value
        if not isinstance(value, _HELD):
            places.append(None)
            if value is not None and not _is_of(arguments, value):
                others.append(f"{leaf.path() or 'it'} is a {type(value).__name__}")
            continue
        wanted = name = output_name(leaf.keys)
        while name in taken:
            name += "_"
        if name != wanted:
            tracer.warnings.append(f"the output {leaf.path()} is called {name}: another one is called {wanted}")
        taken.add(name)
        node = tracer.values.node_of(value) if isinstance(value, torch.Tensor) else unwrap(value)
        places.append(len(outputs))
        outputs.append(GraphOutput(name, node, leaf.path()))
    if others and not outputs:
        raise UserError(
            "E107",
            "forward returns nothing that a file can hold",
            why=f"of what it returns, {'; '.join(others[:5])}",
            next=(
                "return tensors, numbers, or dicts, tuples, lists and dataclasses of them",
                "or register the class with torch.utils._pytree.register_pytree_node",
            ),
        )
    tracer.warnings += [f"not in the file: of what forward returns, {text}" for text in others]

    constants = [leaf.value if place is None else None for leaf, place in zip(leaves, places, strict=True)]

    def restore(values: Sequence[object]) -> object:
        return rebuild([constants[i] if place is None else values[place] for i, place in enumerate(places)])

    return outputs, restore


def _is_of(arguments: Arguments, value: object) -> bool:
    """Whether arguments hold all tensors of an object: what forward changes in them is an output by itself."""
    known = {id(given) for _, given in arguments.objects()}
    if id(value) in known:
        return True
    held, found = Snapshot((), arguments.objects()).tensors, Snapshot((), [("", value)]).tensors
    return bool(found) and found.keys() <= held.keys()


def output_name(keys: tuple[Key, ...]) -> str:
    """``logits`` for a key or field, ``output_0`` for a position, ``output`` for a lone tensor."""
    text = storable("_".join(map(str, keys)))
    return text if keys and isinstance(keys[0], str) and not keys[0].isdigit() else f"output_{text}".rstrip("_")
