"""Checks feeds against the model's inputs before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.runner.types import (
    TENSOR_NAMES,
    Value,
    as_value,
    describe,
    is_tensor_type,
    onnx_dtype,
    string_array,
    type_name,
)


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of the model as onnxruntime shows it."""

    name: str
    type: str
    shape: list[int | str | None]
    value_type: Any = None

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class FeedChecker:
    """Holds what the model needs; ``check`` binds symbolic dims once per run."""

    def __init__(self, args: Sequence[NodeArg], optional: frozenset[str], fixed: Mapping[str, int]) -> None:
        self.args = {arg.name: arg for arg in args}
        self.optional = optional
        self.fixed = dict(fixed)

    def check(self, feeds: Mapping[str, Any]) -> dict[str, Value]:
        """The feeds as arrays.

        Raises: UserError E401 for a name, dtype, rank or dim that does not fit.
        """
        if not isinstance(feeds, Mapping):
            raise UserError("E401", f"feeds must be a dict of name -> array, not {type(feeds).__name__}")
        for name in feeds:
            if name not in self.args:
                close = difflib.get_close_matches(str(name), self.args, 1)
                raise UserError(
                    "E401",
                    f"the model has no input {name!r}",
                    why=f"its inputs are {', '.join(map(repr, self.args)) or 'none'}",
                    next=f"did you mean {close[0]!r}?" if close else (),
                )
        missing = [name for name in self.args if name not in feeds and name not in self.optional]
        if missing:
            raise UserError(
                "E401",
                f"no feed for the input{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}",
                why="; ".join(f"{name}: {self._wanted(self.args[name])}" for name in missing),
                next="pass " + ", ".join(f"{name}=..." for name in missing) + " in the feeds",
            )
        bound: dict[str, tuple[int, str]] = {
            dim: (size, "free_dimension_overrides") for dim, size in self.fixed.items()
        }
        return {name: self._check_one(self.args[name], value, bound) for name, value in feeds.items()}

    def _wanted(self, arg: NodeArg) -> str:
        return f"{arg.type} {arg.shape}"

    def _check_one(self, arg: NodeArg, value: Any, bound: dict[str, tuple[int, str]]) -> Value:
        type_ = arg.value_type
        if not is_tensor_type(type_):
            if isinstance(type_, ir.OptionalType):
                if value is None:
                    return None
                type_ = type_.elem_type
            if isinstance(type_, ir.SequenceType):
                return self._check_sequence(arg, value, type_)
            if not is_tensor_type(type_):
                return value
        if not isinstance(value, np.ndarray):
            if hasattr(value, "numpy"):
                value = value.numpy()
            if not isinstance(value, (np.ndarray, np.generic)):
                value = self._converted(arg, value, type_.dtype)
            value = as_value(value)
        array = self._check_dtype(arg, value, type_.dtype)
        self._check_dims(arg, array, bound)
        return array

    def _converted(self, arg: NodeArg, value: Any, dtype: ir.DataType) -> Any:
        """Python numbers and lists, as onnxruntime takes them."""
        if isinstance(value, (bool, int, float, str, bytes, list, tuple)):
            try:
                if dtype is ir.DataType.STRING:
                    loose = np.array(value, dtype=object)
                    return string_array(loose.ravel().tolist(), loose.shape)
                return np.array(value, dtype=dtype.numpy())
            except (ValueError, TypeError, OverflowError) as error:
                raise UserError("E401", f"the feed {arg.name!r} is not {arg.type}", why=str(error)) from error
        raise UserError(
            "E401",
            f"the feed {arg.name!r} is a {type(value).__name__}, not an array",
            why=f"the model needs {self._wanted(arg)}",
            next="pass a numpy.ndarray",
        )

    def _check_dtype(self, arg: NodeArg, array: Any, wanted: ir.DataType) -> Any:
        given = onnx_dtype(array.dtype)
        if given is wanted:
            if given is ir.DataType.STRING:
                if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.ravel()):
                    raise UserError("E401", f"the feed {arg.name!r} holds objects that are not strings")
                return string_array(array.ravel().tolist(), array.shape)
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        name = TENSOR_NAMES[given] if given is not None else str(array.dtype)
        numpy_name = np.dtype(wanted.numpy()).name if wanted is not ir.DataType.STRING else "object"
        raise UserError(
            "E401",
            f"the feed {arg.name!r} is tensor({name}); the model needs {arg.type}",
            next=f'feeds["{arg.name}"].astype("{numpy_name}")',
        )

    def _check_dims(self, arg: NodeArg, array: Any, bound: dict[str, tuple[int, str]]) -> None:
        shape = arg.shape
        if arg.value_type is not None and shape is None:
            return
        given = list(array.shape)
        if len(given) != len(shape):
            step = "feed an array with the same number of axes"
            if len(given) + 1 == len(shape):
                step = f'add an axis: feeds["{arg.name}"][None]'
            raise UserError(
                "E401",
                f"the feed {arg.name!r} has {len(given)} axes; the model needs {len(shape)}",
                why=f"given {given}, needed {shape}",
                next=step,
            )
        for axis, (size, wanted) in enumerate(zip(given, shape, strict=True)):
            if isinstance(wanted, int):
                if size != wanted:
                    raise UserError(
                        "E401",
                        f"dim {axis} of the feed {arg.name!r} is {size}; the model needs {wanted}",
                        why=f"given {given}, needed {shape}",
                        next=f"feed {wanted} there, or export the model with that dim dynamic",
                    )
            elif wanted:
                earlier = bound.setdefault(wanted, (size, f"dim {axis} of {arg.name!r}"))
                if earlier[0] != size:
                    raise UserError(
                        "E401",
                        f"dim {axis} of the feed {arg.name!r} is {size}, but {wanted!r} is {earlier[0]}",
                        why=f"{wanted!r} was bound by {earlier[1]}; given {given}, needed {shape}",
                        next=f"feed the same size for {wanted!r} everywhere",
                    )

    def _check_sequence(self, arg: NodeArg, value: Any, type_: ir.SequenceType) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise UserError("E401", f"the feed {arg.name!r} is a {describe(value)}; the model needs {arg.type}")
        items = [as_value(item) for item in value]
        elem = type_.elem_type
        if isinstance(elem, ir.TensorType):
            inner = NodeArg(arg.name, type_name(elem), [], None)
            items = [
                self._check_dtype(inner, item, elem.dtype) if isinstance(item, np.ndarray) else item for item in items
            ]
        return items
