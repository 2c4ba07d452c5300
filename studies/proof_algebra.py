"""ONNX graphs on symbols: each element of an input is a symbol, and outputs are terms of them, exact or in real numbers.

In exact terms an operator is a name, so that two equal terms are equal bit for bit whatever the numbers are. In real terms values are
polynomials over symbols and over functions of polynomials. No code comes from the optimizer: data moves as the onnx package's reference
evaluator moves it, and operators are written out by their definitions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.nodes import Array, attributes_of, evaluated

UNIT = 2.0**-24
"""The share of a number that a rounding of float32 is."""


class Unproved(Exception):
    """The graph holds something that is not written out here; the text says what."""


class Exact:
    """Terms as numbers: equal keys are equal terms."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self._ids: dict[Any, int] = {}
        self.by_values = False
        """Whether an equation was used that was checked on all values of 8-bit integers."""

    def term(self, *key: Any) -> int:
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.keys)
            self.keys.append(key)
        return found

    def symbol(self, name: str, place: int, dtype: str) -> int:
        return self.term("symbol", name, place, dtype)

    def constant(self, number: Any) -> int:
        return self.term("constant", np.asarray(number).tobytes(), str(np.asarray(number).dtype))

    def element(self, op: str, key: Any, args: Sequence[Any]) -> int:
        if op in ("Max", "Relu") and all(isinstance(arg, int) for arg in args):  # a maximum of maxima
            zero = [self.constant(np.float32(0))] if op == "Relu" else []
            parts = [
                part
                for arg in [*args, *zero]
                for part in (self.keys[arg][1] if self.keys[arg][0] == "most" else (arg,))
            ]
            return self.term("most", tuple(sorted(set(parts))))
        if op in ("Add", "Mul", "And", "Or", "Xor", "Min"):
            args = sorted(args)
        if op == "QuantizeLinear" and self._is_requantized(args):
            self.by_values = True
            return int(self.keys[args[0]][2])
        return self.term(op, key, *args)

    def _is_requantized(self, args: Sequence[int]) -> bool:
        """Whether ``args`` are quantized numbers, dequantized by the same scale and zero point, that come back on every value."""
        inner = self.keys[args[0]]
        if inner[0] != "DequantizeLinear" or inner[3:] != tuple(args[1:]):
            return False
        parts = [self.keys[each] for each in args[1:]]
        if len(parts) != 2 or any(each[0] != "constant" for each in parts) or parts[1][2] not in ("int8", "uint8"):
            return False
        scale, zero = (np.frombuffer(each[1], each[2])[0] for each in parts)
        limits = np.iinfo(zero.dtype)
        values = np.arange(limits.min, limits.max + 1).astype(zero.dtype)
        wide = ((values.astype(np.int32) - np.int32(zero)).astype(scale.dtype) * scale) / scale
        return bool((np.clip(np.rint(wide).astype(np.int32) + np.int32(zero), limits.min, limits.max) == values).all())

    def row(self, op: str, key: Any, place: int, args: Sequence[Sequence[Any]]) -> int:
        return self.term(op, key, place, *(tuple(each) for each in args))

    def dot(self, pairs: Sequence[tuple[Any, Any]]) -> int:
        return self.term("dot", tuple(pairs))


class Poly:
    """A sum of products of atoms. Each has its factor, and the magnitudes that the factor was summed from."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[tuple[int, ...], tuple[float, float]]) -> None:
        self.parts = parts

    def __add__(self, other: Poly) -> Poly:
        found = dict(self.parts)
        for key, (factor, size) in other.parts.items():
            mine = found.get(key, (0.0, 0.0))
            found[key] = mine[0] + factor, mine[1] + size
        return Poly(found)

    def __mul__(self, other: Poly) -> Poly:
        found: dict[tuple[int, ...], tuple[float, float]] = {}
        for (one, (a, p)), (two, (b, q)) in itertools.product(self.parts.items(), other.parts.items()):
            key = tuple(sorted(one + two))
            mine = found.get(key, (0.0, 0.0))
            found[key] = mine[0] + a * b, mine[1] + p * q
        return Poly(found)

    def apart(self, other: Poly) -> float:
        """The largest number of roundings between two factors of the same product."""
        worst = 0.0
        for key in self.parts.keys() | other.parts.keys():
            (a, p), (b, q) = self.parts.get(key, (0.0, 0.0)), other.parts.get(key, (0.0, 0.0))
            if a != b:
                worst = max(worst, abs(a - b) / (max(p, q) * UNIT) if max(p, q) else math.inf)
        return worst


class Real:
    """Polynomials over symbols and functions."""

    def __init__(self, most: float) -> None:
        self.most, self.worst = most, 0.0
        """How many roundings apart two arguments of a function may be; how many they were."""
        self._symbols: dict[Any, int] = {}
        self._functions: dict[Any, list[tuple[list[Poly], int]]] = {}
        self._count = itertools.count()

    def number(self, value: float) -> Poly:
        return Poly({(): (float(value), abs(float(value)))} if value else {})

    constant = number

    def symbol(self, name: str, place: int, dtype: str) -> Poly:
        atom = self._symbols.setdefault((name, place), len(self._symbols) + (1 << 32))
        return Poly({(atom,): (1.0, 1.0)})

    def function(self, key: Any, args: list[Poly]) -> Poly:
        known = self._functions.setdefault((key, len(args)), [])
        for others, atom in known:
            apart = max((one.apart(other) for one, other in zip(args, others, strict=True)), default=0.0)
            if apart <= self.most:
                self.worst = max(self.worst, apart)
                return Poly({(atom,): (1.0, 1.0)})
        known.append((args, next(self._count)))
        return Poly({(known[-1][1],): (1.0, 1.0)})

    def inverse(self, value: Poly) -> Poly:
        if len(value.parts) == 1:
            ((atoms, (factor, _)),) = value.parts.items()
            found = self.number(1 / factor)
            for atom in atoms:
                found = found * self.function("inverse", [Poly({(atom,): (1.0, 1.0)})])
            return found
        return self.function("inverse", [value])

    def total(self, values: Sequence[Poly]) -> Poly:
        found: dict[tuple[int, ...], tuple[float, float]] = {}
        for value in values:
            for key, (factor, size) in value.parts.items():
                mine = found.get(key, (0.0, 0.0))
                found[key] = mine[0] + factor, mine[1] + size
        return Poly(found)

    def dot(self, pairs: Sequence[tuple[Poly, Poly]]) -> Poly:
        return self.total([a * b for a, b in pairs])

    def mean(self, values: Sequence[Poly]) -> Poly:
        return self.total(values) * self.number(1 / len(values))

    def element(self, op: str, key: Any, args: Sequence[Any]) -> Poly:
        minus = self.number(-1)
        match op:
            case "Add" | "Sum":
                return self.total(args)
            case "Sub":
                return args[0] + args[1] * minus  # type: ignore[no-any-return]
            case "Mul":
                return args[0] * args[1]  # type: ignore[no-any-return]
            case "Div":
                return args[0] * self.inverse(args[1])  # type: ignore[no-any-return]
            case "Neg":
                return args[0] * minus  # type: ignore[no-any-return]
            case "Reciprocal":
                return self.inverse(args[0])
            case "Pow":
                return self._power(*args)
            case "Gelu" | "FastGelu" | "BiasGelu":
                return self._gelu(self.total(args), op == "FastGelu" or dict(key).get("approximate") == b"tanh")
        return self.function((op, key), list(args))

    def _power(self, base: Poly, exponent: Poly) -> Poly:
        value = exponent.parts.get((), (0.0, 0.0))[0]
        if len(exponent.parts) == 1 and () in exponent.parts and value in (2.0, 3.0):
            return base * base if value == 2 else base * base * base
        if len(exponent.parts) == 1 and () in exponent.parts and abs(value) == 0.5:
            root = self.function(("Sqrt", ()), [base])
            return root if value > 0 else self.inverse(root)
        return self.function(("Pow", ()), [base, exponent])

    def _gelu(self, x: Poly, is_tanh: bool) -> Poly:
        inner = x * self.number(1 / math.sqrt(2))
        if is_tanh:
            inner = (x + x * x * x * self.number(0.044715)) * self.number(math.sqrt(2 / math.pi))
        inside = self.function(("Tanh" if is_tanh else "Erf", ()), [inner])
        return x * self.number(0.5) * (inside + self.number(1))

    def row(self, op: str, key: Any, place: int, args: Sequence[Sequence[Any]]) -> Poly:
        x, named = list(args[0]), dict(key)
        if op == "ReduceMean":
            return self.mean(x)
        if op == "ReduceSum":
            return self.total(x)
        if op == "Softmax":
            powers = [self.function(("Exp", ()), [each]) for each in x]
            return powers[place] * self.inverse(self.total(powers))
        if op in ("LayerNormalization", "RMSNormalization"):
            if op == "LayerNormalization":
                middle = self.mean(x) * self.number(-1)
                x = [each + middle for each in x]
            spread = self.mean([each * each for each in x]) + self.number(named.get("epsilon", 1e-5))
            found = x[place] * self.inverse(self.function(("Sqrt", ()), [spread])) * args[1][place]
            return found + args[2][place] if len(args) > 2 else found
        return self.function((op, key, place, tuple(map(len, args))), [part for each in args for part in each])


Evaluate = Callable[["Graph", onnx.NodeProto, list[Any], dict[str, Any]], Any]
OPERATORS: dict[str, Evaluate] = {}
_MOVES = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "GatherND", "Split", "Expand", "Tile",
                     "Identity", "Dropout", "DepthToSpace", "SpaceToDepth", "Compress"), (0,)),
    "Concat": None, "Pad": (0, 2), "Where": (1, 2), "ScatterElements": (0, 2), "Scatter": (0, 2),
}  # fmt: skip
_ELEMENTS = frozenset(
    ["Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Relu", "Abs", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Reciprocal",
     "Pow", "Gelu", "Cast", "Max", "Min", "Sum", "FastGelu", "BiasGelu", "Clip", "QuantizeLinear", "DequantizeLinear", "Mish", "HardSwish",
     "Sign", "Floor", "Log", "Sin", "Cos", "Softplus", "LeakyRelu", "Equal"]
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
            self.values[value.name] = _objects(flat, shape)
        for node in model.graph.node:
            self._run(node)
        self.outputs = [self.lifted(self.values[value.name]) for value in model.graph.output]
        if any(each is None for each in self.outputs):
            raise Unproved("an output that is not written out")

    def lifted(self, array: Any) -> Any:
        """An array of terms."""
        if array is None or array.dtype == object:
            return array
        return _objects([self.algebra.constant(each) for each in array.reshape(-1)], array.shape)

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
            found = [self._by_element("Where", (), args)]
        elif node.op_type in _MOVES:
            found = self._moved(node, args, opset)
        elif node.op_type == "CastLike":
            to = self.kinds.get(node.input[1], 0)
            found = [self._by_element("Cast", (("to", to),), args[:1])]
        elif node.op_type in _ELEMENTS:
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
            found = [self._by_element(node.op_type, key, args)]
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
        return [_objects([pool[place] for place in each.reshape(-1)], each.shape) for each in found]

    def _by_element(self, op: str, key: Any, args: list[Any]) -> Any:
        arrays = np.broadcast_arrays(*(self.lifted(each) for each in args if each is not None))
        flat = [
            self.algebra.element(op, key, each) for each in zip(*(array.reshape(-1) for array in arrays), strict=True)
        ]
        return _objects(flat, arrays[0].shape)

    def add(self, one: Any, other: Any) -> Any:
        return self._by_element("Add", (), [one, other])

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
        return _objects(flat, shape)

    def rows(self, op: str, key: Any, arrays: list[Any], axes: Sequence[int], keeps: bool | None) -> Any:
        """An operator of the numbers along axes; of each number among them where ``keeps`` is None."""
        x = arrays[0]
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        moved = [np.broadcast_to(each, x.shape).transpose([*rest, *axes]) for each in arrays]
        outer = moved[0].shape[: len(rest)]
        flat = []
        for index in np.ndindex(*outer):
            parts = [each[index].reshape(-1).tolist() for each in moved]
            flat += [self.algebra.row(op, key, place, parts) for place in range(len(parts[0]) if keeps is None else 1)]
        if keeps is None:
            found = _objects(flat, moved[0].shape)
            return found.transpose(np.argsort([*rest, *axes]))
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)] if keeps else list(outer)
        return _objects(flat, shape)


def _columns(node: onnx.NodeProto, args: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Scales and zero points of an axis as they broadcast."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return args
    if attributes.get("block_size"):
        raise Unproved(f"{node.op_type} by blocks")
    shape = [1] * args[0].ndim
    shape[int(attributes.get("axis", 1)) % max(args[0].ndim, 1)] = -1
    return [args[0], *(each if each is None or each.size == 1 else each.reshape(shape) for each in args[1:])]


def _objects(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    found = np.empty(len(flat), object)
    found[:] = flat
    return found.reshape(shape)


def operator(*names: str) -> Callable[[Evaluate], Evaluate]:
    def register(function: Evaluate) -> Evaluate:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


@operator("MatMul", "FusedMatMul")
def _matmul(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    a, b = (g.lifted(each) for each in args)
    vectors = [a.ndim == 1, b.ndim == 1]
    a, b = (a[None] if vectors[0] else a), (b[:, None] if vectors[1] else b)
    a, b = (each.swapaxes(-1, -2) if attributes.get(name) else each for each, name in ((a, "transA"), (b, "transB")))
    found = g.product(a, b)
    if attributes.get("alpha", 1.0) != 1.0:
        found = g._by_element("Mul", (), [found, np.float32(attributes["alpha"])])
    return [found[..., 0] if vectors[1] else found[..., 0, :] if vectors[0] else found]


@operator("Gemm")
def _gemm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    a, b = (each.T if attributes.get(name) else each for each, name in zip(args[:2], ("transA", "transB"), strict=True))
    found = g.product(a, b)
    for name, value in (("alpha", found), ("beta", args[2] if len(args) > 2 else None)):
        factor = attributes.get(name, 1.0)
        if value is not None and factor != 1.0:
            value = g._by_element("Mul", (), [value, np.asarray(factor, np.float32)])
        found = value if name == "alpha" else found if value is None else g.add(found, value)
    return [found]


@operator("Conv", "ConvTranspose")
def _conv(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """The pairs of each output in the order of channels and kernel; zeros of padding are in no sum."""
    x, w = g.lifted(args[0]), g.lifted(args[1])
    axes, group, is_back = x.ndim - 2, int(attributes.get("group", 1)), node.op_type == "ConvTranspose"
    if (
        attributes.get("auto_pad", b"NOTSET") != b"NOTSET"
        or attributes.get("output_padding")
        or attributes.get("output_shape")
    ):
        raise Unproved(f"{node.op_type} with auto_pad or output sizes")
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    pads, kernel = attributes.get("pads", [0] * 2 * axes), w.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if is_back:
        out = [
            (n - 1) * s + r - pads[i] - pads[i + axes]
            for i, (n, s, r) in enumerate(zip(x.shape[2:], strides, reach, strict=True))
        ]
        channels = w.shape[1] * group
    else:
        out = [
            (n + pads[i] + pads[i + axes] - r) // s + 1
            for i, (n, s, r) in enumerate(zip(x.shape[2:], strides, reach, strict=True))
        ]
        channels = w.shape[0]
    per_in, per_out = x.shape[1] // group, channels // group
    zero = g.algebra.constant(np.float32(0)) if isinstance(g.algebra, Exact) else None
    flat = []
    for n, o, *place in np.ndindex(x.shape[0], channels, *out):
        pairs = []
        for c, *k in np.ndindex(per_in, *kernel):
            if is_back:
                at = [(p + pads[i] - k[i] * dilations[i], strides[i]) for i, p in enumerate(place)]
                if any(a % s for a, s in at):
                    continue
                source = [a // s for a, s in at]
            else:
                source = [p * strides[i] - pads[i] + k[i] * dilations[i] for i, p in enumerate(place)]
            if all(0 <= p < size for p, size in zip(source, x.shape[2:], strict=True)):
                channel = (o // per_out) * per_in + c
                weight = w[(channel, o % per_out, *k)] if is_back else w[(o, c, *k)]
                value = x[(n, channel, *source)]
                pairs += [] if zero is not None and value == zero else [(value, weight)]
        flat.append(g.algebra.dot(pairs))
    found = _objects(flat, (x.shape[0], channels, *out))
    return [found if len(args) < 3 or args[2] is None else g.add(found, args[2].reshape(-1, *(1,) * axes))]


@operator("BatchNormalization")
def _batch_norm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """By channel an affine map of constants; opaque in exact terms."""
    x = g.lifted(args[0])
    if any(each.dtype == object for each in args[1:]) or isinstance(g.algebra, Exact):
        raise Unproved("BatchNormalization")
    scale, shift, mean, variance = (each.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2)) for each in args[1:])
    factor = scale / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
    found = g._by_element("Mul", (), [g._by_element("Sub", (), [x, mean]), factor])
    return [g.add(found, shift)]


@operator("MaxPool")
def _max_pool(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    x, kernel = args[0], attributes["kernel_shape"]
    axes = len(kernel)
    pads, strides = attributes.get("pads") or [0] * 2 * axes, attributes.get("strides") or [1] * axes
    if (
        attributes.get("ceil_mode")
        or attributes.get("auto_pad", b"NOTSET") != b"NOTSET"
        or (attributes.get("dilations") or [1]) != [1] * len(attributes.get("dilations") or [1])
    ):
        raise Unproved("MaxPool with ceil_mode, auto_pad or dilations")
    out = [
        (n + pads[i] + pads[i + axes] - k) // strides[i] + 1
        for i, (n, k) in enumerate(zip(x.shape[2:], kernel, strict=True))
    ]
    lowest = g.algebra.constant(np.float32(-np.inf)) if isinstance(g.algebra, Exact) else None
    flat = []
    for n, c, *place in np.ndindex(*x.shape[:2], *out):
        parts = []
        for k in np.ndindex(*kernel):
            source = [p * strides[i] - pads[i] + k[i] for i, p in enumerate(place)]
            if all(0 <= p < size for p, size in zip(source, x.shape[2:], strict=True)) and x[(n, c, *source)] != lowest:
                parts.append(x[(n, c, *source)])
        flat.append(g.algebra.element("Max", (), parts))
    return [_objects(flat, (*x.shape[:2], *out))]


@operator(
    *(f"Reduce{name}" for name in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"))
)
def _reduce(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    given = args[1].tolist() if len(args) > 1 and args[1] is not None else None
    axes = attributes.get("axes") or given
    if not axes and attributes.get("noop_with_empty_axes"):
        return [args[0]]
    chosen = sorted(axis % args[0].ndim for axis in axes or range(args[0].ndim))
    return [g.rows(node.op_type, (), [args[0]], chosen, bool(attributes.get("keepdims", 1)))]


@operator("ArgMax", "ArgMin")
def _place(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    key = (("select_last_index", attributes.get("select_last_index", 0)),)
    axis = int(attributes.get("axis", 0)) % args[0].ndim
    return [g.rows(node.op_type, key, [args[0]], [axis], bool(attributes.get("keepdims", 1)))]


@operator("TopK")
def _topk(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """Numbers and places, of which the first k of each row are taken."""
    axis = int(attributes.get("axis", -1)) % args[0].ndim
    k = int(attributes["k"]) if "k" in attributes else int(args[1][0])
    key = (attributes.get("largest", 1), attributes.get("sorted", 1))
    return [g.rows(f"TopK {part}", key, [args[0]], [axis], None).take(range(k), axis) for part in ("values", "places")]


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    axis, x = int(attributes.get("axis", -1)) % args[0].ndim, args[0]
    if g.opsets[""] < 13:
        flat = x.reshape(math.prod(x.shape[:axis]), -1)
        return [g.rows(node.op_type, (), [flat], [1], None).reshape(x.shape)]
    return [g.rows(node.op_type, (), [x], [axis], None)]


@operator("LayerNormalization", "RMSNormalization")
def _norm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    x, axis = args[0], int(attributes.get("axis", -1)) % args[0].ndim
    key = (("epsilon", attributes.get("epsilon", 1e-5)),)
    arrays = [x, *(g.lifted(each) for each in args[1:] if each is not None)]
    return [g.rows(node.op_type, key, arrays, range(axis, x.ndim), None)]


@operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_norm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """The norm of the sum of the operands and a bias, and that sum as the last output."""
    is_simple = node.op_type.startswith("SkipSimplified")
    bias = args[3 if is_simple else 4] if len(args) > (3 if is_simple else 4) else None
    total = g.add(args[0], args[1])
    total = total if bias is None else g.add(total, bias)
    scale = [args[2], *([] if is_simple or len(args) < 4 or args[3] is None else [args[3]])]
    key = (("epsilon", attributes.get("epsilon", 1e-5)),)
    arrays = [total, *map(g.lifted, scale)]
    found = g.rows("RMSNormalization" if is_simple else "LayerNormalization", key, arrays, [total.ndim - 1], None)
    return [found, None, None, total]


@operator("MultiHeadAttention")
def _attention(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """``softmax(q k^T * scale) v`` by heads, of queries, keys and values with their biases; other inputs are not written out."""
    if any(each is not None for each in args[4:]) or args[1] is None or args[0].ndim != 3 or args[1].ndim != 3:
        raise Unproved("MultiHeadAttention with masks or a past")
    heads = int(attributes["num_heads"])
    parts = list(map(g.lifted, args[:3]))
    if len(args) > 3 and args[3] is not None:
        ends = np.cumsum([0, *(each.shape[-1] for each in parts)])
        parts = [g.add(each, args[3][start:end]) for each, start, end in zip(parts, ends, ends[1:], strict=False)]
    q, k, v = (each.reshape(*each.shape[:2], heads, -1).transpose(0, 2, 1, 3) for each in parts)
    scale = attributes.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = g._by_element("Mul", (), [g.product(q, k.transpose(0, 1, 3, 2)), np.asarray(scale)])
    found = g.product(g.rows("Softmax", (), [scores], [3], None), v)
    return [found.transpose(0, 2, 1, 3).reshape(*parts[0].shape[:2], -1)]


@operator("GroupQueryAttention")
def _grouped(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """A function of queries, keys and values, which may come packed, and of all else that it reads."""
    if not isinstance(g.algebra, Exact):
        raise Unproved("GroupQueryAttention in real numbers")
    heads, shared = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    parts = [args[0]]
    if args[1] is None:
        size = args[0].shape[-1] // (heads + 2 * shared)
        parts = np.split(args[0], [heads * size, (heads + shared) * size], axis=-1)
    given = [*parts, *(g.lifted(each) for each in args[1:] if each is not None)]
    whole = tuple(tuple(each.reshape(-1)) for each in given)
    key = tuple(sorted((name, value) for name, value in attributes.items() if not isinstance(value, list)))
    shape = parts[0].shape
    found = _objects([g.algebra.term("grouped", key, whole, place) for place in range(math.prod(shape))], shape)
    return [
        found,
        *(_objects([g.algebra.term("grouped", key, whole, -place)], ()) for place in range(1, len(node.output))),
    ]


@operator("LSTM", "GRU", "RNN")
def _recurrent(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """A function of all that it reads, where a state of zeros is the default."""
    if not isinstance(g.algebra, Exact):
        raise Unproved(f"{node.op_type} in real numbers")
    zero = g.algebra.constant(np.float32(0))
    given = [None if each is None else g.lifted(each) for each in args]
    given = [
        None if place in (5, 6) and each is not None and (each == zero).all() else each
        for place, each in enumerate(given)
    ]
    while given[-1] is None:
        given.pop()
    whole = tuple(None if each is None else tuple(each.reshape(-1)) for each in given)
    key = tuple(sorted((name, str(value)) for name, value in attributes.items()))
    steps, batch, width = args[0].shape[0], args[0].shape[1], args[2].shape[-1]
    shape = (steps, args[1].shape[0], batch, width)
    return [_objects([g.algebra.term(node.op_type, key, whole, place) for place in range(math.prod(shape))], shape)]


def terms_of(model: onnx.ModelProto, algebra: Any, sizes: Mapping[str, int]) -> list[Array]:
    """The outputs of a model as arrays of terms. Raises Unproved."""
    return Graph(model, algebra, sizes).outputs
