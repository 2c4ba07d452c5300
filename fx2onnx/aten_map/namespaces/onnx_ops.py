"""``torch.onnx.ops``: ONNX operators that forward calls by name, and ``attention`` and ``rotary_embedding``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.registry import translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import schema_of
from fx2onnx.sizes.expr import DimLike

ONNX_DOMAINS = ("", "ai.onnx")


@translates(torch.ops.onnx_symbolic._symbolic.default)
def symbolic(
    op: Emit,
    inputs: Sequence[ir.Value | None],
    op_type: str,
    onnx_dtype: int,
    shape: Sequence[DimLike],
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    metadata_props_keys: Sequence[str],
    metadata_props_values: Sequence[str],
    domain: str,
    version: int | None,
) -> ir.Value:
    """_symbolic(Tensor?[] inputs, str op_type, int onnx_dtype, *, SymInt[] shape, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain='', int? version=None) -> Tensor

    ONNX:     the operator of that name and domain.
    Refuses:  an operator of ONNX that opset ``version`` and the file's opset define differently.
    """
    attrs = _attributes(attr_keys, attr_types, attr_pos, attr_ints, attr_floats, attr_strs)
    props = dict(zip(metadata_props_keys, metadata_props_values, strict=True))
    return _called(op, domain, op_type, inputs, attrs, version, props)[0]


@translates(torch.ops.onnx_symbolic._symbolic_multi_out.default)
def symbolic_multi_out(
    op: Emit,
    inputs: Sequence[ir.Value | None],
    op_type: str,
    onnx_dtypes: Sequence[int],
    shapes: Sequence[Sequence[DimLike]],
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    metadata_props_keys: Sequence[str],
    metadata_props_values: Sequence[str],
    domain: str,
    version: int | None,
) -> tuple[ir.Value, ...]:
    """_symbolic_multi_out(Tensor?[] inputs, str op_type, int[] onnx_dtypes, *, SymInt[][] shapes, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain='', int? version=None) -> Tensor[]

    ONNX:     the operator of that name and domain.
    Refuses:  an operator of ONNX that opset ``version`` and the file's opset define differently.
    """
    attrs = _attributes(attr_keys, attr_types, attr_pos, attr_ints, attr_floats, attr_strs)
    props = dict(zip(metadata_props_keys, metadata_props_values, strict=True))
    return _called(op, domain, op_type, inputs, attrs, version, props)


def _attributes(
    keys: Sequence[str],
    types: Sequence[str],
    places: Sequence[Sequence[int]],
    ints: Sequence[int],
    floats: Sequence[float],
    texts: Sequence[str],
) -> dict[str, Any]:
    """The attributes that ``torch.onnx.ops.symbolic`` has spread over a list for each type."""
    lists = {"i": ints, "f": floats, "s": texts}
    found: dict[str, Any] = {}
    for key, kind, (start, end) in zip(keys, types, places, strict=True):
        values = list(lists[kind[0]][start:end])
        found[key] = values if kind.endswith("s") and len(kind) > 1 else values[0]
    return found


def _called(
    op: Emit,
    domain: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attrs: dict[str, Any],
    version: int | None,
    props: dict[str, str],
) -> tuple[ir.Value, ...]:
    """The results of the node, which has ``props`` among its metadata."""
    before = len(op.builder.nodes)
    if domain in ONNX_DOMAINS:
        _check_version(op_type, version, op.opset)
        results = op.node(op_type, *inputs, outputs=list(op.result), **attrs)
        results = (results,) if isinstance(results, ir.Value) else results
    else:
        known = op.builder.opset_imports.setdefault(domain, version or 1)
        if known != (version or known):
            raise UserError(
                "E203",
                f"{domain}::{op_type} is asked for in version {version}, another operator of {domain} in {known}",
                next="a file has one version of each domain: give both calls of torch.onnx.ops.symbolic the same",
            )
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        results = op.custom(domain, op_type, inputs, op.result, **attrs)
    for node in op.builder.nodes[before:]:
        node.metadata_props.update(props)
    return tuple(results)


def _check_version(op_type: str, version: int | None, opset: int) -> None:
    """Raises UserError E202 where the file's opset has another version of the operator than ``version``."""
    if version is None or version == opset:
        return
    asked, found = schema_of(op_type, version).since_version, schema_of(op_type, opset).since_version
    if asked != found:
        raise UserError(
            "E202",
            f"forward calls {op_type} of opset {version}, which is {op_type}-{asked}; the file's opset {opset} has {op_type}-{found}",
            next=[f"opset_version={version} in the export", f"version={opset} in torch.onnx.ops.symbolic"],
        )


@translates(torch.ops.onnx.Attention.opset23, since=23)
def attention(
    op: Emit,
    Q: ir.Value,
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None,
    past_key: ir.Value | None,
    past_value: ir.Value | None,
    is_causal: bool,
    kv_num_heads: int,
    q_num_heads: int,
    qk_matmul_output_mode: int,
    scale: float | None,
    softcap: float,
    softmax_precision: int | None,
) -> tuple[ir.Value, ...]:
    """Attention.opset23(Tensor Q, Tensor K, Tensor V, Tensor? attn_mask=None, Tensor? past_key=None, Tensor? past_value=None, *, bool is_causal=False, SymInt kv_num_heads=0, SymInt q_num_heads=0, SymInt qk_matmul_output_mode=0, float? scale=None, float softcap=0., SymInt? softmax_precision=None) -> (Tensor, Tensor, Tensor, Tensor)

    ONNX:  Attention.
    """
    attrs: dict[str, Any] = {"is_causal": is_causal, "qk_matmul_output_mode": qk_matmul_output_mode, "softcap": softcap}
    if kv_num_heads:
        attrs |= {"kv_num_heads": kv_num_heads, "q_num_heads": q_num_heads}
    operands = (Q, K, V, attn_mask, past_key, past_value)
    results: tuple[ir.Value, ...] = op.node(
        "Attention", *operands, outputs=list(op.result), scale=scale, softmax_precision=softmax_precision, **attrs
    )
    return results


@translates(torch.ops.onnx.RotaryEmbedding.opset23, since=23)
def rotary_embedding(
    op: Emit,
    x: ir.Value,
    cos_cache: ir.Value,
    sin_cache: ir.Value,
    position_ids: ir.Value | None,
    interleaved: bool,
    num_heads: int,
    rotary_embedding_dim: int,
) -> ir.Value:
    """RotaryEmbedding.opset23(Tensor x, Tensor cos_cache, Tensor sin_cache, Tensor? position_ids=None, *, bool interleaved=False, SymInt num_heads=0, SymInt rotary_embedding_dim=0) -> Tensor

    ONNX:  RotaryEmbedding.
    """
    return op.node(
        "RotaryEmbedding",
        x,
        cos_cache,
        sin_cache,
        position_ids,
        outputs=(op.result[0],),
        interleaved=interleaved,
        num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )
