"""The equations by which nodes become terms: what each operator is in normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.real import REAL, split_product
from fx2onnx.proof.terms import (
    RANDOM,
    Args,
    Move,
    Shape,
    Terms,
    array_of,
    as_key,
    attributes_of,
    evaluated,
)
from fx2onnx.semantics.schemas import onnx_schema

_COMMUTATIVE = frozenset(
    ["Add", "Mul", "And", "Or", "Xor", "Max", "Min", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]
)
_UNARY = frozenset(
    [
        "Relu",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Exp",
        "Log",
        "Sqrt",
        "Reciprocal",
        "Neg",
        "Abs",
        "Not",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Sin",
        "Cos",
        "Softplus",
        "HardSwish",
        "HardSigmoid",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Celu",
        "Gelu",
        "Mish",
        "Cast",
        "IsNaN",
        "IsInf",
        "ThresholdedRelu",
        "Swish",
    ]
)
"""One element in, one out: transpositions pass them by."""
_BINARY = frozenset(
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Max",
        "Min",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
    ]
)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MOVES = _VIEWS | {
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
_REPEATS = frozenset(["reshape", "view", "unsqueeze", "transpose", "moved"])
"""Terms that hold elements of another one."""
_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0, "And": True, "Or": False}
"""What changes nothing as the second input, and where their order does not matter as the first."""
_FLOATS = ("float16", "float32", "float64", "bfloat16")


def full(shape: Shape) -> tuple[int, ...] | None:
    """A shape all of whose sizes are known; None for another."""
    sizes = tuple(size for size in shape or () if size is not None)
    return None if shape is None or len(sizes) < len(shape) else sizes


class Reader:
    """Turns the nodes of one graph into terms. ``dims`` and ``dtypes``: of its values, as far as they are known."""

    def __init__(
        self,
        terms: Terms,
        opsets: Mapping[str, int],
        dims: Mapping[str, tuple[int | None, ...]],
        dtypes: Mapping[str, str],
        symbols: Mapping[str, tuple[int | str | None, ...]],
    ) -> None:
        self.terms, self.opsets, self.dims, self.dtypes, self.symbols = terms, opsets, dims, dtypes, symbols
        self.opset = opsets.get("", 0)
        self._draws = 0

    def of(self, node: onnx.NodeProto, args: Args, captured: Sequence[int] = ()) -> list[int]:
        """The terms of a node's outputs. ``captured``: those of the values that its graphs read from outside."""
        terms, is_standard = self.terms, node.domain in ("", "ai.onnx")
        attributes = attributes_of(node, self.opsets.get(node.domain, self.opset))
        names = [name for name in node.output if name]
        found: list[int] | None = None
        if is_standard and node.op_type not in RANDOM | {"Constant", "Shape"} and not captured and args:
            arrays = [None if arg is None else terms.constants.get(arg) for arg in args]
            if all(array is not None or arg is None for array, arg in zip(arrays, args, strict=True)):
                folded = evaluated(node, arrays, self.opset)
                found = None if folded is None else [terms.constant(array) for array in folded]
        if found is None and is_standard and node.op_type == "Split":
            shapes = [self.dims.get(name) for name in node.output]
            found = split_product(terms, args[0], shapes, int(attributes.get("axis", 0)))
        if found is None and is_standard and node.op_type in _MOVES:
            found = self._moved(node, args)
        if found is None and is_standard and node.op_type in _VIEWS and full(self.dims.get(names[0])) is None:
            found = self._reshaped(args[0], names[0])
        if found is None and is_standard and (len(names) == 1 or node.op_type in ("Dropout", "LayerNormalization")):
            shape, dtype = self.dims.get(names[0]), self.dtypes.get(names[0], "")
            single = self._single(node.op_type, args, attributes, shape, dtype)
            found = None if single is None or (len(names) > 1 and node.op_type != "Dropout") else [single]
        if found is None or len(found) < len(names):
            generic = self._generic(node, args, attributes, captured)
            found = [*(found or ()), *generic[len(found or ()) :]]
        for name, term in zip(names, found, strict=False):
            terms.shaped(term, self.dims.get(name))
            if name in self.dtypes:
                terms.dtypes.setdefault(term, self.dtypes[name])
        return found

    def _generic(
        self, node: onnx.NodeProto, args: Args, attributes: Mapping[str, Any], captured: Sequence[int]
    ) -> list[int]:
        """Terms that are equal where operator, attributes and inputs are."""
        opset = self.opsets.get(node.domain, self.opset)
        schema = onnx_schema(node.op_type, opset, node.domain)
        version = schema.since_version if schema is not None else opset
        if node.op_type in RANDOM and node.op_type != "Dropout":
            self._draws += 1
            version = -self._draws  # two draws differ; the same draw has one place in its file
        key = tuple(sorted((name, as_key(value)) for name, value in attributes.items()))
        if node.op_type in ("LSTM", "GRU", "RNN"):  # an initial state of zeros is the default
            args = [None if place >= 5 and self._is_zero(args, place) else arg for place, arg in enumerate(args)]
        while args and args[-1] is None:
            args = args[:-1]
        inputs = tuple(sorted(args, key=str)) if node.op_type in _COMMUTATIVE and len(args) == 2 else tuple(args)
        base = ("op", node.domain, node.op_type, version, key, inputs, tuple(captured))
        return [self.terms.of(*base, index) for index, name in enumerate(node.output) if name]

    # -- equations that hold bit for bit ------------------------------------------------------------------------
    def _single(self, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
        terms, x = self.terms, args[0] if args else None
        if op == "Constant":
            return self._constant(attributes)
        if x is None:
            return None
        known, sizes = terms.shapes.get(x), full(shape)
        if (
            op == "Identity"
            or (op == "Dropout" and not self._trains(args))
            or (len(args) == 1 and op in ("Concat", "Max", "Min", "Sum"))
        ):
            return x
        if op == "Shape" and known is not None:
            start, end = attributes.get("start", 0), attributes.get("end")
            return terms.constant(np.array(known[start : len(known) if end is None else end], np.int64))
        if op == "Cast" and terms.dtypes.get(x) == str(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])):
            return x
        if op == "CastLike" and dtype:
            array = terms.constants.get(x)
            if terms.dtypes.get(x) == dtype:
                return x
            return None if array is None else terms.constant(array.astype(dtype))
        if op == "Pad" and self._pads_zeros(args, attributes):
            pads = array_of(terms, args, 1)
            return None if pads is None else terms.of("zeros around", x, tuple(pads.tolist()))
        if op in ("Expand", "Tile") and sizes is not None and sizes == known:
            return x
        if op == "Slice" and sizes is not None and sizes == known and self._has_positive_steps(args):
            return x
        if op == "Pad" and sizes is not None and sizes == known and self._is_zero(args, 1):
            return x
        if op in _VIEWS and sizes is not None:
            return self._viewed(x, sizes)
        if op == "Transpose":
            rank = len(known) if known is not None else len(attributes.get("perm", ()))
            return self._transposed(x, tuple(attributes.get("perm", range(rank)[::-1]))) if rank else None
        if op == "Unsqueeze" and shape is not None:
            unsqueezed = self._unsqueezed(x, self._axes(args, attributes), len(shape))
            if unsqueezed is not None:
                return terms.shaped(unsqueezed, shape)
        if op in _NEUTRAL and len(args) == 2 and args[1] is not None:
            neutral = self._without_neutral(op, x, args[1], shape)
            if neutral is not None:
                return neutral
        moved = self._past_moves(op, args, attributes, dtype)
        if moved is not None:
            return moved
        if self.terms.is_real and (dtype in _FLOATS or op in ("Gemm", "Conv")):
            return self._real(op, args, attributes, shape, dtype)
        return None

    def _constant(self, attributes: Mapping[str, Any]) -> int | None:
        for name, value in attributes.items():
            if name == "value":
                return self.terms.constant(onnx.numpy_helper.to_array(value))
            if name in ("value_float", "value_floats"):
                return self.terms.constant(np.array(value, np.float32))
            if name in ("value_int", "value_ints"):
                return self.terms.constant(np.array(value, np.int64))
        return None

    def _trains(self, args: Args) -> bool:
        array = array_of(self.terms, args, 2)
        return len(args) > 2 and args[2] is not None and (array is None or bool(array))

    def _has_positive_steps(self, args: Args) -> bool:
        steps = array_of(self.terms, args, 4)
        return len(args) < 5 or args[4] is None or (steps is not None and bool((steps > 0).all()))

    def _is_zero(self, args: Args, index: int) -> bool:
        """Return whether an operand is zeros: a constant, or one made larger by operators that only repeat."""
        term = args[index] if index < len(args) else None
        while term is not None and term not in self.terms.constants:
            key = self.terms.key(term)
            if key[0] == "op" and key[2] == "ConstantOfShape":
                return not key[4]  # no value is 0
            term = key[1] if key[0] in _REPEATS else key[5][0] if key[0] == "op" and key[2] == "Expand" else None
        array = None if term is None else self.terms.constants[term]
        return array is not None and array.dtype != object and not array.any()

    def _pads_zeros(self, args: Args, attributes: Mapping[str, Any]) -> bool:
        is_plain = attributes.get("mode", b"constant") in (b"constant", "constant") and len(args) in (2, 3)
        return is_plain and (len(args) < 3 or args[2] is None or self._is_zero(args, 2))

    def _moved(self, node: onnx.NodeProto, args: Args) -> list[int] | None:
        """The source of each element of the outputs, found by running the node on the places of its input's elements."""
        terms, x = self.terms, args[0]
        move = None if x is None else terms.places(x)
        if move is None:
            return None
        shape = full(self.dims.get(node.output[0]))
        perm: tuple[int, ...] | None = None
        if node.op_type in _VIEWS and shape is not None:
            found = [move.places.reshape(shape)]
        elif node.op_type == "Transpose":
            axes = range(move.places.ndim)[::-1]
            given = next((tuple(each.ints) for each in node.attribute if each.name == "perm"), tuple(axes))
            found = [move.places.transpose(given)]
            perm = None if move.perm is None else tuple(move.perm[axis] for axis in given)
        else:
            rest = [None if arg is None else terms.constants.get(arg) for arg in args[1:]]
            if any(array is None and arg is not None for array, arg in zip(rest, args[1:], strict=True)):
                return None
            arrays = evaluated(node, [move.places, *rest], self.opset)
            if arrays is None:
                return None
            found = arrays
        return [terms.moved(Move(move.core, array, perm)) for array in found]

    def _viewed(self, x: int, shape: tuple[int, ...]) -> int:
        terms = self.terms
        key = terms.key(x)
        inner = key[1] if key[0] == "view" else x
        return inner if terms.shapes.get(inner) == shape else self.terms.shaped(terms.of("view", inner, shape), shape)

    def _reshaped(self, x: int | None, name: str) -> list[int] | None:
        """A view of unknown sizes, all but one of which have numbers or names: that one follows from the others, none of which is 0."""
        sizes = self.symbols.get(name)
        if x is None or sizes is None or sizes.count(None) > 1:
            return None
        left = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
        free = sizes.index(None) if None in sizes else left[-1]
        if 0 in sizes:
            return None
        target = tuple(-1 if axis == free else size for axis, size in enumerate(sizes))
        key = self.terms.key(x)
        return [self.terms.of("reshape", key[1] if key[0] == "reshape" else x, target)]

    def _axes(self, args: Args, attributes: Mapping[str, Any]) -> list[int] | None:
        array = array_of(self.terms, args, 1)
        found = attributes.get("axes") if array is None else array.reshape(-1).tolist()
        return None if found is None else [int(axis) for axis in found]

    def _unsqueezed(self, x: int, axes: list[int] | None, rank: int) -> int | None:
        """Axes of size 1 in one step: those of an earlier step are where the later one leaves them."""
        if axes is None:
            return None
        new, key = {axis % rank for axis in axes}, self.terms.key(x)
        if key[0] == "unsqueeze":
            left = [axis for axis in range(rank) if axis not in new]
            new |= {left[axis] for axis in key[2]}
            x = key[1]
        return self.terms.of("unsqueeze", x, tuple(sorted(new)))

    def _transposed(self, x: int, perm: tuple[int, ...]) -> int:
        terms = self.terms
        key, shape = terms.key(x), terms.shapes.get(x)
        if key[0] == "transpose":
            inner, first = key[1], key[2]
            x, perm = inner, tuple(first[axis] for axis in perm)
            shape = terms.shapes.get(x)
        if perm == tuple(range(len(perm))):
            return x
        return self.terms.shaped(
            terms.of("transpose", x, perm), None if shape is None else tuple(shape[axis] for axis in perm)
        )

    def _without_neutral(self, op: str, x: int, y: int, shape: Shape) -> int | None:
        """``x * 1``, ``x + 0``, ``x and True`` and the like, where the constant does not make it larger."""
        wanted = _NEUTRAL[op]
        for value, other in ((x, y),) if op in ("Div", "Sub") else ((x, y), (y, x)):
            array = self.terms.constants.get(other)
            if array is None or array.dtype == object or not array.size or not (array == wanted).all():
                continue
            if array.ndim == 0 or (shape is not None and self.terms.shapes.get(value) == shape):
                return value
        return None

    def _past_moves(self, op: str, args: Args, attributes: Mapping[str, Any], dtype: str) -> int | None:
        """``op(moved(x))`` as ``moved(op(x))`` of an operator by element."""
        terms = self.terms
        if op not in _UNARY | _BINARY or any(arg is None for arg in args):
            return None
        given = [arg for arg in args if arg is not None]
        if len(given) == 1 and terms.key(given[0])[0] == "transpose":  # of unknown sizes
            _, core, perm = terms.key(given[0])
            return self._transposed(self._by_element(op, [core], attributes, terms.dims.get(core), dtype), perm)
        moves = [terms.moves[arg] for arg in given if arg in terms.moves]
        if not moves:
            return None
        move, inner = moves[0], list[int | None]()
        for arg in given:
            array, other = terms.constants.get(arg), terms.moves.get(arg)
            if other is not None:
                is_same = other.places.shape == move.places.shape and (other.places == move.places).all()
                if not is_same or terms.shapes[other.core] != terms.shapes[move.core]:
                    return None
                inner.append(other.core)
            elif array is not None and array.size == 1 and array.ndim <= move.places.ndim:
                inner.append(terms.constant(array.reshape(())))
            elif array is not None and move.perm is not None and array.ndim == len(move.perm):
                inner.append(terms.constant(array.transpose(np.argsort(move.perm))))
            else:
                return None
        shape = terms.shapes[move.core]
        if any(
            array.ndim and np.broadcast_shapes(array.shape, shape) != shape
            for array in map(terms.constants.get, filter(None, inner))
            if array is not None
        ):
            return None
        found = self._by_element(op, inner, attributes, shape, dtype)
        return terms.moved(Move(found, move.places, move.perm))

    def _by_element(self, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int:
        """The term of an operator that no node of the file has so."""
        found = self._single(op, args, attributes, shape, dtype)
        if found is None:
            node = onnx.helper.make_node(op, [""] * len(args), ["y"], **attributes)
            (found,) = self._generic(node, args, attributes, ())
        self.terms.dtypes.setdefault(found, dtype)
        return self.terms.shaped(found, shape)

    # -- equations that hold for real numbers -------------------------------------------------------------------
    def _real(self, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
        rule = REAL.get(op)
        if rule is None:
            return None
        found = rule(self.terms, args, attributes, shape)
        if found is not None:
            self.terms.shaped(found, shape)
            self.terms.dtypes.setdefault(found, dtype)
        return found
