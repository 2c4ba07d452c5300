"""onnxruntime's own operators: which file has the kernel of each, imported when a model first has the operator."""

from __future__ import annotations

from fx2onnx.semantics.registry import register_later

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"

FAMILIES: dict[tuple[str, str], str] = {
    (MICROSOFT, "attention"): "GroupQueryAttention MultiHeadAttention RotaryEmbedding",
    (MICROSOFT, "blocked"): "MatMulBnb4 MatMulNBits",
    (MICROSOFT, "fused"): """
        BiasGelu FastGelu FusedMatMul Gelu QuickGelu SkipLayerNormalization SkipSimplifiedLayerNormalization
    """,
    ("", "fused"): "SimplifiedLayerNormalization",
}
"""The operators of each domain and file."""

for (_domain, _file), _op_types in FAMILIES.items():
    register_later(_domain, _op_types.split(), f"{__name__}.{_file}")
