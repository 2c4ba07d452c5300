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
    (MICROSOFT, "codes"): "QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearWhere",
    (MICROSOFT, "quantized"): """
        DequantizeLinear DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat NhwcMaxPool QGemm QLinearAveragePool QLinearConv
        QLinearGlobalAveragePool QLinearSoftmax QuantizeLinear
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
    (MICROSOFT, "arrays"): """
        BifurcationDetector CDist ConvTransposeWithDynamicPads CropAndResize DynamicTimeWarping ExpandDims GatherND GridSample
        Inverse MaxpoolWithMask NGramRepeatBlock Pad Range SampleOp Trilu UnfoldTensor Unique
    """,
    ("", "arrays"): """
        Affine Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh
    """,
    (MICROSOFT, "gated"): """
        BranchwiseRMSNorm EngramGate GatedAdd GatedRMSNorm HyperConnectionPostMix HyperConnectionPreMix LinearAttentionGate
        MurmurHash3 ScaledSiLU
    """,
    (MICROSOFT, "decoders"): """
        CausalConvWithState GatherBlockQuantized LinearAttention MRotaryEmbedding MoE QMoE
    """,
}
"""The operators of each domain and file."""

REFUSED = {
    **dict.fromkeys(
        ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"),
        "a search over tokens with the decoder inside the node: export the decoder, and search with fx2onnx.generation",
    ),
    "AttnLSTM": "an LSTM with attention inside, as converters of 2018 wrote it; export the model again",
    "DecoderMaskedMultiHeadAttention": "a step of BeamSearch, with a cache that it shares: MultiHeadAttention computes the same",
    "MatMulFpQ4": "its weights are packed as one kernel of one release reads them; use MatMulNBits or MatMulBnb4",
    **dict.fromkeys(("NGramHashMapping", "VarlenNGramHashMapping"), "hashes of tokens of one family of models"),
    "SparseAttention": "attention over blocks that are listed; GroupQueryAttention computes it over all",
    "SparseToDenseMatMul": "values are dense here",
    "Tokenizer": "its patterns are RE2's; tokenize outside of the model",
    "WordConvEmbedding": "words as rows of characters, of one model of onnxruntime's makers",
}
"""Operators of ``com.microsoft`` that have a CPU kernel in onnxruntime and none here, each with the reason."""

for (_domain, _file), _op_types in FAMILIES.items():
    register_later(_domain, _op_types.split(), f"{__name__}.{_file}")
