"""onnxruntime's own operators: which file has the kernel of each, imported when a model first has the operator."""

from __future__ import annotations

from fx2onnx.semantics.registry import register_later

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"

FAMILIES: dict[tuple[str, str], str] = {
    (MICROSOFT, "attention"): "GroupQueryAttention MultiHeadAttention RotaryEmbedding",
    (MICROSOFT, "blocked"): "MatMulBnb4 MatMulNBits",
    (MICROSOFT, "fused"): """
        BiasGelu FastGelu FusedConv FusedGemm FusedMatMul Gelu QuickGelu SkipLayerNormalization SkipSimplifiedLayerNormalization
        TransposeMatMul
    """,
    ("", "fused"): "SimplifiedLayerNormalization",
    (MICROSOFT, "quantized"): """
        DequantizeLinear DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat NhwcMaxPool QGemm QLinearAdd QLinearAveragePool
        QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere
        QuantizeLinear
    """,
    (MICROSOFT, "recurrent"): """
        DynamicQuantizeLSTM
    """,
    (NCHWC, "nchwc"): """
        AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput Upsample
    """,
    (MICROSOFT, "encoders"): """
        Attention EmbedLayerNormalization QAttention QEmbedLayerNormalization
    """,
}
"""The operators of each domain and file."""

REFUSED = {
    **dict.fromkeys(
        ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
        "a search over tokens with the decoder inside the node: export the decoder, and search with fx2onnx.generation",
    ),
}
"""Operators of ``com.microsoft`` that have a CPU kernel in onnxruntime and none here, each with the reason."""

for (_domain, _file), _op_types in FAMILIES.items():
    register_later(_domain, _op_types.split(), f"{__name__}.{_file}")
