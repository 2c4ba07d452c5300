"""dtype and dims of the outputs of onnxruntime's own operators, as far as inputs say them."""

from __future__ import annotations

from fx2onnx.irx.shapes.linear import matmul_dims
from fx2onnx.irx.shapes.table import FLOAT, Call, Rule, Typed, UnknownShape, as_dim
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import DimLike, product

MICROSOFT = "com.microsoft"


def _like_first(call: Call) -> list[Typed]:
    return [(call.dtype(), call.dims())]


def _skip_norm(call: Call) -> list[Typed]:
    whole, row = (call.dtype(), call.dims()), (FLOAT, (*call.dims()[:-1], 1))
    return [whole, row, row, whole]


def _simplified_norm(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", -1) % len(dims)
    return [(call.dtype(1), dims), (FLOAT, (*dims[:axis], *(1 for _ in dims[axis:])))]


def _fused_matmul(call: Call) -> list[Typed]:
    sides = []
    for index, name in enumerate("AB"):
        dims = call.dims(index)
        if call.attrs.get(f"transBatch{name}") and len(dims) > 2:
            dims = (*dims[1:-1], dims[0], dims[-1])
        sides.append((*dims[:-2], dims[-1], dims[-2]) if call.attrs.get(f"trans{name}") and len(dims) > 1 else dims)
    return [(call.dtype(), matmul_dims(*sides))]


def _given(call: Call, index: int) -> Dims | None:
    return call.dims(index) if index < len(call.inputs) and call.inputs[index] is not None else None


def _multi_head(call: Call) -> list[Typed]:
    query, key, value, heads = call.dims(), _given(call, 1), _given(call, 2), call.attrs["num_heads"]
    if len(query) != 3 or key is None or value is None:
        raise UnknownShape("packed heads")
    width: DimLike = value[2] if len(value) == 3 else as_dim(product((value[1], value[3])))
    found: list[Typed] = [(call.dtype(), (*query[:2], width))]
    past = _given(call, 6)
    for dims in (key, value):
        apart = dims if len(dims) == 4 else (dims[0], heads, dims[1], as_dim(dims[2] // heads))
        length = apart[2] if past is None else as_dim(apart[2] + past[2])
        found.append((call.dtype(), (apart[0], heads, length, apart[3])))
    return found


def _group_query(call: Call) -> list[Typed]:
    """The output alone: how long the cache gets is said by numbers."""
    dims = call.dims()
    if _given(call, 1) is not None:
        return [(call.dtype(), dims)]
    heads, groups = call.attrs["num_heads"], call.attrs["kv_num_heads"]
    return [(call.dtype(), (*dims[:2], as_dim(dims[2] // (heads + 2 * groups) * heads)))]


CONTRIB: dict[tuple[str, str], Rule] = {
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
    (MICROSOFT, "BiasGelu"): _like_first,
    (MICROSOFT, "FastGelu"): _like_first,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "Gelu"): _like_first,
    (MICROSOFT, "GroupQueryAttention"): _group_query,
    (MICROSOFT, "MoE"): _like_first,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "QMoE"): _like_first,
    (MICROSOFT, "QuickGelu"): _like_first,
    (MICROSOFT, "RotaryEmbedding"): _like_first,
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm,
}
"""By domain and operator. An output that a rule leaves out keeps the type that the file declares."""


def infer_contrib(domain: str, call: Call) -> list[Typed]:
    """Output types of ``call``. Raises UnknownShape where there is no rule, or the inputs do not say."""
    found = CONTRIB.get((domain, call.op_type))
    if found is None:
        raise UnknownShape(f"no shape rule for {domain}::{call.op_type}")
    return found(call)
