"""The equations by which nodes become terms: what each operator is in normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.exact import exact, is_zero, sliced
from fx2onnx.proof.moves import past_moves
from fx2onnx.proof.nodes import RANDOM, as_key, attributes_of, evaluated
from fx2onnx.proof.products import columns
from fx2onnx.proof.real import REAL, split_product
from fx2onnx.proof.shapes import BINARY, UNARY, VIEWS, inferred
from fx2onnx.proof.sizes import Dim, on_sizes
from fx2onnx.proof.terms import Args, Move, Shape, Terms
from fx2onnx.semantics.schemas import onnx_schema

_COMMUTATIVE = frozenset(
    ["Add", "Mul", "And", "Or", "Xor", "Max", "Min", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]
)
_MOVES = VIEWS | {
    "Transpose",
    "Slice",
    "Gather",
    "GatherND",
    "Split",
    "Expand",
    "Tile",
    "DepthToSpace",
    "SpaceToDepth",
}
"""Each element of the result is one of the first input; the others are constants."""
_STATED = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
_FLOATS = ("float16", "float32", "float64", "bfloat16")
_SMOOTH_NAMES = """
Add Attention AveragePool BatchNormalization BiasGelu Celu Clip Concat Conv ConvTranspose Div Einsum Elu Expand FastGelu FusedMatMul GRU
Gather GatherElements GatherND Gelu Gemm GroupNormalization GroupQueryAttention HardSigmoid HardSwish Identity InstanceNormalization
LSTM LayerNormalization LeakyRelu MatMul Max Min Mul MultiHeadAttention PRelu Pad RMSNormalization RNN Reshape RotaryEmbedding
ScatterElements ScatterND Selu SkipLayerNormalization SkipSimplifiedLayerNormalization Slice Softmax Split Squeeze Sub Sum Transpose
Unsqueeze Where
"""
_SMOOTH = frozenset(_SMOOTH_NAMES.split())
"""Operators whose results move little where a constant operand does: no size, step, choice or place depends on it."""
_FIRST_OPSET = 7
"""Before it, attributes said how operands broadcast, and which mode a node has."""


class Reader:
    """Turns the nodes of one graph into terms. ``dims`` and ``dtypes``: those of its values, as far as they are known."""

    def __init__(
        self,
        terms: Terms,
        opsets: Mapping[str, int],
        dims: Mapping[str, tuple[Dim | None, ...]],
        dtypes: Mapping[str, str],
    ) -> None:
        self.terms, self.opsets, self.dims, self.dtypes = terms, opsets, dims, dtypes
        self.opset = opsets.get("", 0)
        self._draws = 0

    def of(self, node: onnx.NodeProto, values: Mapping[str, int]) -> list[int]:
        """The terms of a node's outputs. ``values``: those of the values that it and its graphs may read."""
        terms, args = self.terms, [values[name] if name else None for name in node.input]
        attributes = attributes_of(node, self.opsets.get(node.domain, self.opset))
        names = [name for name in node.output if name]
        shape = self._shape(node.op_type, args, attributes, names[0]) if names else None
        found = self._standard(node, args, attributes, names, shape, values) if node.domain in ("", "ai.onnx") else None
        if found is None or len(found) < len(names):
            generic = self._generic(node, args, attributes, values)
            found = [*(found or ()), *generic[len(found or ()) :]]
        for place, (name, term) in enumerate(zip(names, found, strict=False)):
            terms.shaped(term, shape if place == 0 else self.dims.get(name))
            terms.dtypes.setdefault(term, self.dtypes.get(name) or self._stated_dtype(node, place))
        return found

    def _stated_dtype(self, node: onnx.NodeProto, place: int) -> str:
        """The dtype that an operator's schema has for an output; empty where it has several."""
        schema = onnx_schema(node.op_type, self.opsets.get(node.domain, self.opset), node.domain)
        kinds = (
            schema.outputs[min(place, len(schema.outputs) - 1)].types if schema is not None and schema.outputs else ()
        )
        return _STATED.get(next(iter(kinds)), "") if len(kinds) == 1 else ""

    def _standard(
        self,
        node: onnx.NodeProto,
        args: Args,
        attributes: dict[str, Any],
        names: list[str],
        shape: Shape,
        values: Mapping[str, int],
    ) -> list[int] | None:
        """The terms of an operator of the standard domain by an equation; None where there is none."""
        terms, op, dtype = self.terms, node.op_type, self.dtypes.get(names[0], "") if names else ""
        if op == "If" and args[0] in terms.constants:
            branch = "then_branch" if terms.constants[args[0]].all() else "else_branch"
            return self._inside(attributes[branch], values)
        if op not in RANDOM | {"Constant", "Shape"} and args:
            folded = self._folded(node, args)
            if folded is not None:
                return folded
        if self.opset < _FIRST_OPSET:
            return None
        if op == "Split":
            parts = self._split(args[0], node, int(attributes.get("axis", 0)), dtype)
            if parts is not None:
                return parts
        if op in _MOVES:
            moved = self._moved(node, args)
            if moved is not None:
                return moved
        if len(names) != 1 and op not in ("Dropout", "LayerNormalization"):
            return None
        single = self._sized(op, args, attributes, dtype)
        if single is None:
            single = self._single(op, args, attributes, shape, dtype)
        return None if single is None or (len(names) > 1 and op != "Dropout") else [single]

    def _folded(self, node: onnx.NodeProto, args: Args) -> list[int] | None:
        """The outputs of an operator of constants, by value; None where there are others, or no evaluator has it."""
        arrays = [None if arg is None else self.terms.constants.get(arg) for arg in args]
        if any(array is None and arg is not None for array, arg in zip(arrays, args, strict=True)):
            return None
        texts = tuple(each.SerializeToString(deterministic=True) for each in node.attribute)
        key = (node.op_type, self.opset, tuple(map(bool, node.output)), texts, tuple(args))
        if key not in self.terms.folded:  # layers that share weights compute them once
            found = evaluated(node, arrays, self.opset)
            self.terms.folded[key] = None if found is None else [self.terms.constant(array) for array in found]
        return self.terms.folded[key]

    def _inside(self, graph: onnx.GraphProto, values: Mapping[str, int], bound: Sequence[Any] = ()) -> list[int]:
        """The terms of the outputs of a graph inside of a node. ``bound``: names its inputs where no others have them."""
        terms, known = self.terms, dict(values)
        known |= {tensor.name: terms.constant(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
        for place, value in enumerate(graph.input):
            dims, dtype = self.dims.get(value.name), self.dtypes.get(value.name, "")
            known[value.name] = term = terms.of("bound", *bound, place, dims, dtype)
            terms.shaped(term, dims)
            terms.dtypes.setdefault(term, dtype)
        for node in graph.node:
            names = [name for name in node.output if name]
            known |= zip(names, self.of(node, known), strict=True)
        return [known[value.name] for value in graph.output]

    def _generic(
        self, node: onnx.NodeProto, args: Args, attributes: Mapping[str, Any], values: Mapping[str, int]
    ) -> list[int]:
        """Terms that are equal where operator, attributes and inputs are."""
        opset = self.opsets.get(node.domain, self.opset)
        schema = onnx_schema(node.op_type, opset, node.domain)
        version = schema.since_version if schema is not None else opset
        if node.op_type in RANDOM and node.op_type != "Dropout":
            self._draws += 1
            version = -self._draws  # two draws differ; the same draw has one place in its file
        if node.op_type in ("LSTM", "GRU", "RNN"):  # an initial state of zeros is the default
            args = [None if place >= 5 and is_zero(self.terms, args, place) else arg for place, arg in enumerate(args)]
        while args and args[-1] is None:
            args = args[:-1]
        if node.op_type in _SMOOTH:
            args = [*map(self.terms.alike, args)]
        inputs = tuple(sorted(args, key=str)) if node.op_type in _COMMUTATIVE and len(args) == 2 else tuple(args)
        key = []
        for name, value in sorted(attributes.items()):
            graphs = [value] if isinstance(value, onnx.GraphProto) else value
            if isinstance(graphs, list) and graphs and isinstance(graphs[0], onnx.GraphProto):
                bound = (node.domain, node.op_type, inputs, name)
                key.append((name, *(tuple(self._inside(graph, values, bound)) for graph in graphs)))
            else:
                key.append((name, as_key(value)))
        base = ("op", node.domain, node.op_type, version, tuple(key), inputs)
        return [self.terms.of(*base, index) for index, name in enumerate(node.output) if name]

    def _shape(self, op: str, args: Args, attributes: Mapping[str, Any], name: str) -> Shape:
        """The sizes of an output: as the file has them, or as they follow from those of the operands."""
        known = self.dims.get(name)
        if known is not None and None not in known:
            return known
        found = inferred(self.terms, op, args, attributes)
        if known is None or found is None or len(known) != len(found):
            return known if known is not None else found
        return tuple(other if size is None else size for size, other in zip(known, found, strict=True))

    def _sized(self, op: str, args: Args, attributes: Mapping[str, Any], dtype: str) -> int | None:
        """The term of integers that are sizes, or are made of them."""
        terms = self.terms
        if op == "Shape" and args[0] in terms.dims:
            known = terms.dims[args[0]]
            end = attributes.get("end")
            return terms.sized(np.array(known[attributes.get("start", 0) : len(known) if end is None else end], object))
        if not any(arg in terms.sizes for arg in args) or dtype not in ("", "int64", "int32", "bool"):
            return None
        arrays = [None if arg is None else terms.integers(arg) for arg in args]
        given = [array for array in arrays if array is not None]
        found = on_sizes(op, given, attributes) if len(given) == len(arrays) else None
        return None if found is None else terms.sized(found, dtype or "int64")

    def _single(self, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
        found = exact(self, op, args, attributes, shape, dtype)
        if found is not None:
            return found
        given = [arg for arg in args if arg is not None]
        if op in UNARY | BINARY and len(given) == len(args):
            found = past_moves(
                self.terms, given, lambda inner, sizes: self.by_element(op, inner, attributes, sizes, dtype)
            )
        if found is None and self.terms.is_real and (dtype in _FLOATS or op in ("Gemm", "Conv")):
            found = self._real(op, args, attributes, shape, dtype)
        return found

    def _split(self, x: int | None, node: onnx.NodeProto, axis: int, dtype: str) -> list[int] | None:
        """Parts of an axis whose sizes are known; those of a product's last axis are products."""
        terms, known = self.terms, None if x is None else self.terms.dims.get(x)
        if x is None or known is None:
            return None
        axis %= len(known)
        widths = [(self.dims.get(name) or (None,) * len(known))[axis] for name in node.output]
        sizes = [width for width in widths if isinstance(width, int)]
        if len(sizes) != len(widths) or sum(sizes) != known[axis]:
            return None
        found, ends = None, np.cumsum(sizes).tolist()
        shapes = [(*known[:axis], size, *known[axis + 1 :]) for size in sizes]
        if axis == len(known) - 1:
            found = split_product(terms, x, shapes) if terms.is_real else columns(self, x, ends[-1], ends, known, dtype)
        if found is None and x not in terms.shapes:
            parts = zip(ends, sizes, shapes, strict=True)
            found = [sliced(terms, x, {axis: (end - size, end, 1)}, shape) for end, size, shape in parts]
        return found

    def _moved(self, node: onnx.NodeProto, args: Args) -> list[int] | None:
        """The source of each element of the outputs, found by running the node on the places of its input's elements."""
        terms, x = self.terms, args[0]
        move = None if x is None else terms.places(x)
        if move is None or node.op_type in VIEWS | {"Transpose"}:
            return None
        rest = [None if arg is None else terms.constants.get(arg) for arg in args[1:]]
        if any(array is None and arg is not None for array, arg in zip(rest, args[1:], strict=True)):
            return None
        found = evaluated(node, [move.places, *rest], self.opset)
        return None if found is None else [terms.moved(Move(move.core, array)) for array in found]

    def by_element(
        self, op: str, args: Sequence[int | None], attributes: Mapping[str, Any], shape: Shape, dtype: str
    ) -> int:
        """The term of an operator that no node of the file has so."""
        args = list(args)
        node = onnx.helper.make_node(op, [str(place) for place in range(len(args))], ["y"], **attributes)
        found = self._folded(node, args)
        if found is None:
            single = self._single(op, args, attributes, shape, dtype)
            found = [single] if single is not None else self._generic(node, args, attributes_of(node, self.opset), {})
        self.terms.dtypes.setdefault(found[0], dtype)
        return self.terms.shaped(found[0], shape)

    def _real(self, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
        rule = REAL.get(op)
        if rule is None:
            return None
        found = rule(self.terms, args, attributes, shape)
        if found is not None:
            self.terms.shaped(found, shape)
            self.terms.dtypes.setdefault(found, dtype)
        return found
