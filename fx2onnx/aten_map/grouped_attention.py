"""``fx2onnx::cached_attention`` and ``fx2onnx::turned``, operators of ours, as onnxruntime's GroupQueryAttention and RotaryEmbedding."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.contrib import MICROSOFT
from fx2onnx.irx.shapes.table import as_dim
from fx2onnx.sizes.expr import DimLike

INT32 = ir.DataType.INT32
ROTARY_MULTIPLE = 8
"""Of the columns of the tables: onnxruntime's GroupQueryAttention takes no others."""


def turned(
    op: Emit, x: ir.Value, cosines: ir.Value, sines: ir.Value, positions: ir.Value, interleaved: bool
) -> ir.Value:
    """turned(Tensor x, Tensor cosines, Tensor sines, Tensor positions, bool interleaved) -> Tensor

    Shapes:  x [B, H, S, D]; tables [positions, R / 2], R at most D; positions [B, S].
    """
    width = op.dims(cosines)[1] * 2
    attrs = {"interleaved": int(interleaved)}
    if width != op.dims(x)[3]:
        attrs |= {"rotary_embedding_dim": int(width), "num_heads": int(op.dims(x)[1])}  # type: ignore[arg-type]
    tables = [op.cast(table, op.dtype(x)) for table in (cosines, sines)]
    operands = [x, positions, *tables]
    return op.custom(MICROSOFT, "RotaryEmbedding", operands, [(op.dtype(x), op.dims(x))], **attrs)[0]


def cached_attention(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    past_key: ir.Value,
    past_value: ir.Value,
    mask: ir.Value,
    sink: ir.Value | None,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[ir.Value, ...]:
    """cached_attention(Tensor query, Tensor key, Tensor value, Tensor past_key, Tensor past_value, Tensor mask, Tensor? sink, float scale, float softcap, int window) -> (Tensor, Tensor, Tensor)

    Shapes:  query [B, H, S, D]; key, value [B, K, S, D]; past [B, K, P, D]; mask [B, P + S] of ones, padded behind.
    ONNX:    GroupQueryAttention, which turns queries and keys itself where that is all that was done to them.
    """
    last, total = _lengths(op, mask)
    heads, groups, width = op.dims(query)[1], op.dims(key)[1], op.dims(query)[3]
    attrs = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "scale": float(scale),
        "softcap": float(softcap),
        "local_window_size": window,
    }
    tables: list[ir.Value | None] = [None, None]
    rotary = _rotary(op, query), _rotary(op, key)
    if rotary[0] is not None and rotary[1] is not None and _are_alike(op, rotary[0][0], rotary[1][0]):
        turn, query = rotary[0]
        key = rotary[1][1]
        tables = list(turn.inputs[2:4])
        attrs |= {"do_rotary": 1, "rotary_interleaved": turn.attributes["interleaved"].as_int()}
    flat = [_flat(op, x) for x in (query, key, value)]
    operands = [*flat, past_key, past_value, last, total, *tables]
    if sink is not None:
        operands += [None] * (11 - len(operands)) + [op.cast(sink, op.dtype(query))]
    while operands[-1] is None:
        operands.pop()
    dims = op.dims(query)
    cache = [(op.dtype(key), op.result_dims(index)) for index in (1, 2)]
    typed = [(op.dtype(query), (dims[0], dims[2], as_dim(heads * width))), *cache]
    out, keys, values = op.custom(MICROSOFT, "GroupQueryAttention", operands, typed, **attrs)
    apart = op.reshape(out, (dims[0], dims[2], heads, width))
    return op.Transpose(apart, perm=[0, 2, 1, 3]), keys, values


def _lengths(op: Emit, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The index of each row's last key, and the number of keys of the longest; emitted once a mask."""
    last, all_of_them = Key("last key", (mask,)), Key("all keys", (mask,))
    found, total = op.builder.emitted.get(last), op.builder.emitted.get(all_of_them)
    if found is None or total is None:
        counted = op.ReduceSum(op.cast(mask, ir.DataType.INT64), axes=[1], keepdims=0)
        found = op.cast(op.Sub(counted, 1), INT32)
        total = op.cast(op.size_of_axis(mask, 1), INT32)
        op.builder.emitted |= {last: found, all_of_them: total}
    return found, total


def _operand(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _rotary(op: Emit, x: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """The RotaryEmbedding that makes ``x``, alone or of its first features, which stand before the rest of them; and of what."""
    node = op.producer(x)
    if node is None:
        return None
    if (node.domain, node.op_type) == (MICROSOFT, "RotaryEmbedding"):
        return node, _operand(node, 0)
    if node.op_type != "Concat" or len(node.inputs) != 2:
        return None
    inner = op.producer(_operand(node, 0))
    if inner is None or (inner.domain, inner.op_type) != (MICROSOFT, "RotaryEmbedding"):
        return None
    width, parts = op.dims(_operand(inner, 0))[3], (_operand(inner, 0), _operand(node, 1))
    whole = [_source_of_slice(op, part, start) for part, start in zip(parts, (0, width), strict=True)]
    if whole[0] is None or whole[0] is not whole[1] or op.dims(whole[0]) != op.dims(x):
        return None
    return inner, whole[0]


def _source_of_slice(op: Emit, part: ir.Value, start: DimLike) -> ir.Value | None:
    """What ``part`` is a slice of, along the last axis from ``start`` on and without gaps."""
    node = op.producer(part)
    if node is None or node.op_type != "Slice" or len(node.inputs) < 4:
        return None
    known = [None if value is None else op.integers(value) for value in node.inputs[1:]]
    starts, _, axes, strides = (*known, [1])[:4]
    return node.inputs[0] if starts == [start] and axes in ([3], [-1]) and strides == [1] else None


def _are_alike(op: Emit, one: ir.Node, other: ir.Node) -> bool:
    """Return whether both turn by the same angles, by tables of a width that onnxruntime's attention takes."""
    return (
        list(one.inputs[1:]) == list(other.inputs[1:])
        and one.attributes["interleaved"].as_int() == other.attributes["interleaved"].as_int()
        and op.dims(_operand(one, 2))[1] % ROTARY_MULTIPLE == 0
    )


def _flat(op: Emit, x: ir.Value) -> ir.Value:
    """[B, H, S, D] -> [B, S, H * D]."""
    batch, heads, length, width = op.dims(x)
    return op.reshape(op.Transpose(x, perm=[0, 2, 1, 3]), (batch, length, as_dim(heads * width)))
