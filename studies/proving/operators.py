"""Operators written out on symbols by their definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.nodes import Array
from studies.proving.algebra import Exact, Unproved
from studies.proving.graphs import Graph, objects, operator


@operator("MatMul", "FusedMatMul")
def _matmul(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    a, b = (g.lifted(each) for each in args)
    vectors = [a.ndim == 1, b.ndim == 1]
    a, b = (a[None] if vectors[0] else a), (b[:, None] if vectors[1] else b)
    a, b = (each.swapaxes(-1, -2) if attributes.get(name) else each for each, name in ((a, "transA"), (b, "transB")))
    found = g.product(a, b)
    if attributes.get("alpha", 1.0) != 1.0:
        found = g.by_element("Mul", (), [found, np.float32(attributes["alpha"])])
    return [found[..., 0] if vectors[1] else found[..., 0, :] if vectors[0] else found]


@operator("Gemm")
def _gemm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    a, b = (each.T if attributes.get(name) else each for each, name in zip(args[:2], ("transA", "transB"), strict=True))
    found = g.product(a, b)
    for name, value in (("alpha", found), ("beta", args[2] if len(args) > 2 else None)):
        factor = attributes.get(name, 1.0)
        if value is not None and factor != 1.0:
            value = g.by_element("Mul", (), [value, np.asarray(factor, np.float32)])
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
    found = objects(flat, (x.shape[0], channels, *out))
    return [found if len(args) < 3 or args[2] is None else g.add(found, args[2].reshape(-1, *(1,) * axes))]


@operator("BatchNormalization")
def _batch_norm(g: Graph, node: onnx.NodeProto, args: list[Any], attributes: dict[str, Any]) -> Any:
    """An affine map of constants for each channel; opaque in exact terms."""
    x = g.lifted(args[0])
    if any(each.dtype == object for each in args[1:]) or isinstance(g.algebra, Exact):
        raise Unproved("BatchNormalization")
    scale, shift, mean, variance = (each.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2)) for each in args[1:])
    factor = scale / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
    found = g.by_element("Mul", (), [g.by_element("Sub", (), [x, mean]), factor])
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
    return [objects(flat, (*x.shape[:2], *out))]


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
    key = tuple((name, attributes.get(name, 1)) for name in ("largest", "sorted"))
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
    scores = g.by_element("Mul", (), [g.product(q, k.transpose(0, 1, 3, 2)), np.asarray(scale)])
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
    found = objects([g.algebra.term("grouped", key, whole, place) for place in range(math.prod(shape))], shape)
    return [
        found,
        *(objects([g.algebra.term("grouped", key, whole, -place)], ()) for place in range(1, len(node.output))),
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
    return [objects([g.algebra.term(node.op_type, key, whole, place) for place in range(math.prod(shape))], shape)]


def terms_of(model: onnx.ModelProto, algebra: Any, sizes: Mapping[str, int]) -> list[Array]:
    """The outputs of a model as arrays of terms. Raises Unproved."""
    return Graph(model, algebra, sizes).outputs
