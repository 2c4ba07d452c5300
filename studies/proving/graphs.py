"""ONNX graphs on symbols: each element of an input is a symbol, and outputs are terms of them.

Data moves as the onnx package's reference evaluator moves it; operators are written out by their definitions (``operators.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.nodes import attributes_of, evaluated
from studies.proving.algebra import Unproved

Evaluate = Callable[["Graph", onnx.NodeProto, list[Any], dict[str, Any]], Any]
OPERATORS: dict[str, Evaluate] = {}
_MOVES = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "GatherND", "Split", "Expand", "Tile",
                     "Identity", "Dropout", "DepthToSpace", "SpaceToDepth", "Compress"), (0,)),
    "Concat": None, "Pad": (0, 2), "Where": (1, 2), "ScatterElements": (0, 2), "Scatter": (0, 2),
}  # fmt: skip
ELEMENTS = frozenset(
    ["Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Relu", "Abs", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Reciprocal",
     "Pow", "Gelu", "Cast", "Max", "Min", "Sum", "FastGelu", "BiasGelu", "Clip", "QuantizeLinear", "DequantizeLinear", "Mish", "HardSwish",
     "Sign", "Floor", "Log", "Sin", "Cos", "Softplus", "LeakyRelu", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "HardSigmoid",
     "Elu", "Selu", "Celu", "Round", "Ceil"]
)  # fmt: skip


class Graph:
    """One evaluation of a model on symbols."""

    def __init__(self, model: onnx.ModelProto, algebra: Any, sizes: Mapping[str, int]) -> None:
        self.algebra = algebra
        self.opsets = {each.domain or "": each.version for each in model.opset_import}
        self.values: dict[str, Any] = {"": None}
        try:
            typed = onnx.shape_inference.infer_shapes(model)
        except Exception as error:  # onnx has classes of its own
            raise Unproved("a graph whose types do not fit") from error
        kinds = {
            value.name: value.type.tensor_type.elem_type for value in (*typed.graph.value_info, *typed.graph.input)
        }
        self.kinds = kinds | {each.name: each.data_type for each in model.graph.initializer}
        for tensor in model.graph.initializer:
            self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        self.dtypes: dict[str, str] = {}
        for value in model.graph.input:
            if value.name in self.values:
                continue
            kind = value.type.tensor_type
            shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in kind.shape.dim]
            self.dtypes[value.name] = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            flat = [algebra.symbol(value.name, place, self.dtypes[value.name]) for place in range(math.prod(shape))]
            self.values[value.name] = objects(flat, shape)
        for node in model.graph.node:
            self._run(node)
        self.outputs = [self.lifted(self.values[value.name]) for value in model.graph.output]
        if any(each is None for each in self.outputs):
            raise Unproved("an output that is not written out")

    def lifted(self, array: Any) -> Any:
        """An array of terms."""
        if array is None or array.dtype == object:
            return array
        return objects([self.algebra.constant(each) for each in array.reshape(-1)], array.shape)

    def _run(self, node: onnx.NodeProto) -> None:
        opset = self.opsets.get(node.domain, self.opsets.get("", 0))
        args = [self.values[name] for name in node.input]
        attributes = attributes_of(node, opset)
        found: Any
        if all(each is None or each.dtype != object for each in args) or node.op_type == "Shape":
            given = [
                each if each is None or each.dtype != object else np.zeros(each.shape, np.float32) for each in args
            ]
            found = evaluated(node, given, opset)
            if found is None:
                raise Unproved(f"{node.op_type} of constants")
        elif node.op_type == "Where" and args[0].dtype == object:
            found = [self.by_element("Where", (), args)]
        elif node.op_type in _MOVES:
            found = self._moved(node, args, opset)
        elif node.op_type == "CastLike":
            to = self.kinds.get(node.input[1], 0)
            found = [self.by_element("Cast", (("to", to),), args[:1])]
        elif node.op_type in ELEMENTS:
            if node.op_type == "Clip":
                ends = [attributes.pop(name, None) for name in ("min", "max")]
                args = [*args, *ends[len(args) - 1 :]] if len(args) < 3 else args
                given = zip(args, (0, -np.inf, np.inf), strict=True)
                args = [
                    np.asarray(end if each is None else each, np.float32) if i else each
                    for i, (each, end) in enumerate(given)
                ]
            args = _columns(node, args, attributes)
            key = tuple(
                sorted(
                    (k, v) for k, v in attributes.items() if not isinstance(v, list) and k not in ("axis", "saturate")
                )
            )
            found = [self.by_element(node.op_type, key, args)]
        elif node.op_type in OPERATORS:
            found = OPERATORS[node.op_type](self, node, args, attributes)
        else:
            raise Unproved(node.op_type)
        for name, array in zip(node.output, found, strict=False):
            self.values[name] = array

    def _moved(self, node: onnx.NodeProto, args: list[Any], opset: int) -> list[Any]:
        """The elements that the reference evaluator's result has at each place, of the places of the operands' elements."""
        if node.op_type == "Pad" and opset < 11:
            named = attributes_of(node, opset)
            args, opset = [*args, np.asarray(named["pads"]), np.asarray(named.get("value", 0.0), np.float32)], 13
            node = onnx.helper.make_node(
                "Pad", ["x", "pads", "value"], list(node.output), mode=named.get("mode", b"constant")
            )
        data = _MOVES[node.op_type] or range(len(args))
        pool: list[Any] = []
        given = []
        for index, array in enumerate(args):
            if index in data and array is not None:
                flat = self.lifted(array).reshape(-1)
                given.append(np.arange(len(pool), len(pool) + flat.size).reshape(array.shape))
                pool.extend(flat)
            elif array is not None and array.dtype == object:
                raise Unproved(f"{node.op_type} by computed places")
            else:
                given.append(array)
        if node.op_type == "Pad" and (len(given) < 3 or given[2] is None):
            given = [*given[:2], np.asarray(len(pool)), *given[3:]]
            pool.append(self.algebra.constant(np.float32(0)))
            node = onnx.NodeProto.FromString(node.SerializeToString())
            node.input[:] = [*node.input[:2], "zero", *node.input[3:]]
        if node.op_type in ("Dropout", "Identity"):
            found: Any = given[:1]
        else:
            found = evaluated(node, given, opset)
        if found is None:
            raise Unproved(node.op_type)
        return [objects([pool[place] for place in each.reshape(-1)], each.shape) for each in found]

    def by_element(self, op: str, key: Any, args: list[Any]) -> Any:
        arrays = np.broadcast_arrays(*(self.lifted(each) for each in args if each is not None))
        flat = [
            self.algebra.element(op, key, each) for each in zip(*(array.reshape(-1) for array in arrays), strict=True)
        ]
        return objects(flat, arrays[0].shape)

    def add(self, one: Any, other: Any) -> Any:
        return self.by_element("Add", (), [one, other])

    def product(self, a: Any, b: Any) -> Any:
        """``a @ b`` of terms."""
        a, b = self.lifted(a), self.lifted(b)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = np.broadcast_to(a, (*batch, *a.shape[-2:])), np.broadcast_to(b, (*batch, *b.shape[-2:]))
        shape = (*a.shape[:-1], b.shape[-1])
        flat = [
            self.algebra.dot(list(zip(a[index[:-1]], b[(*index[:-2], slice(None), index[-1])], strict=True)))
            for index in np.ndindex(*shape)
        ]
        return objects(flat, shape)

    def rows(self, op: str, key: Any, arrays: list[Any], axes: Sequence[int], keeps: bool | None) -> Any:
        """An operator of the numbers along axes; of each number among them where ``keeps`` is None."""
        x = arrays[0]
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        moved = [np.broadcast_to(each, x.shape).transpose([*rest, *axes]) for each in arrays]
        outer = moved[0].shape[: len(rest)]
        flat = []
        for index in np.ndindex(*outer):
            parts = [np.asarray(each[index], object).reshape(-1).tolist() for each in moved]
            flat += [self.algebra.row(op, key, place, parts) for place in range(len(parts[0]) if keeps is None else 1)]
        if keeps is None:
            found = objects(flat, moved[0].shape)
            return found.transpose(np.argsort([*rest, *axes]))
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keeps else list(outer)
        return objects(flat, shape)


def _columns(node: onnx.NodeProto, args: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Scales and zero points of an axis as they broadcast."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return args
    if attributes.get("block_size"):
        raise Unproved(f"{node.op_type} by blocks")
    shape = [1] * args[0].ndim
    shape[int(attributes.get("axis", 1)) % max(args[0].ndim, 1)] = -1
    return [args[0], *(each if each is None or each.size == 1 else each.reshape(shape) for each in args[1:])]


def objects(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(shape)


def operator(*names: str) -> Callable[[Evaluate], Evaluate]:
    def register(function: Evaluate) -> Evaluate:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register
