"""What a graph declares of a value, held against what follows from the graph."""

from __future__ import annotations

from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.runner.element_types import TensorType
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.program import Slot
from fx2onnx.runner.types import type_name
from fx2onnx.runner.typing_protos import Dims
from fx2onnx.runner.weights import declared


def agree(slot: Slot, name: str, type_: Any, text: NodeText | None = None) -> None:
    """Note the type that the graph declares. Raises: UserError E303 where the value has another."""
    if type_ is None:
        return
    is_declared = type_name(type_)
    if not slot.type_name:
        slot.type_name = is_declared
    elif slot.type_name != is_declared:
        raise UserError(
            "E303",
            f"{name!r} is declared {is_declared} and is {slot.type_name}",
            node=str(text or ""),
            why="the types of the operator's inputs, its schema and its attributes decide what it makes",
            next="declare that type, or put a Cast before it",
        )


def check_default(name: str, type_: Any, shape: Dims | None, tensor: Any) -> None:
    """Raises: UserError E303 for an initializer that is not what the input of its name is declared to be."""
    dtype, dims = declared(tensor, f"initializer {name!r}")
    found = type_name(TensorType(dtype))
    if type_ is not None and type_name(type_) != found:
        raise UserError("E303", f"the input {name!r} is declared {type_name(type_)}, and its initializer is {found}")
    if shape is None:
        return
    is_same = len(dims) == len(shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(dims, shape, strict=True)
    )
    if not is_same:
        what = f"the input {name!r} is declared of shape {list(shape)}, and its initializer is of {list(dims)}"
        raise UserError("E303", what)
