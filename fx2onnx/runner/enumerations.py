"""What the attributes may be that name one of a few things. Source: their descriptions in ``onnx.defs``."""

from __future__ import annotations

_AUTO_PAD = frozenset({"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"})
_BLOCKS = frozenset({"DCR", "CRD"})
_DIRECTION = frozenset({"forward", "reverse", "bidirectional"})
_LOSS = frozenset({"none", "sum", "mean"})
_ROUND = frozenset({"up", "down", "nearest"})
_SCATTER = frozenset({"none", "add", "mul", "max", "min"})

VALUES: dict[tuple[str, str], frozenset[str]] = {
    **{
        (op_type, "auto_pad"): _AUTO_PAD
        for op_type in (
            "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv",
        )
    },
    ("BitShift", "direction"): frozenset({"LEFT", "RIGHT"}),
    ("Cast", "round_mode"): _ROUND,
    ("CastLike", "round_mode"): _ROUND,
    ("CausalConvWithState", "activation"): frozenset({"silu", "swish", "none"}),
    ("DepthToSpace", "mode"): _BLOCKS,
    ("GRU", "direction"): _DIRECTION,
    ("Gelu", "approximate"): frozenset({"none", "tanh"}),
    ("GridSample", "mode"): frozenset({"linear", "nearest", "cubic", "bilinear", "bicubic"}),
    ("GridSample", "padding_mode"): frozenset({"zeros", "border", "reflection"}),
    ("ImageDecoder", "pixel_format"): frozenset({"RGB", "BGR", "Grayscale"}),
    ("LSTM", "direction"): _DIRECTION,
    ("LinearAttention", "update_rule"): frozenset({"linear", "gated", "delta", "gated_delta"}),
    ("NegativeLogLikelihoodLoss", "reduction"): _LOSS,
    ("Pad", "mode"): frozenset({"constant", "reflect", "edge", "wrap"}),
    ("RNN", "direction"): _DIRECTION,
    ("Resize", "coordinate_transformation_mode"): frozenset(
        {
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        }
    ),
    ("Resize", "keep_aspect_ratio_policy"): frozenset({"stretch", "not_larger", "not_smaller"}),
    ("Resize", "mode"): frozenset({"nearest", "linear", "cubic"}),
    ("Resize", "nearest_mode"): frozenset({"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
    ("RoiAlign", "coordinate_transformation_mode"): frozenset({"half_pixel", "output_half_pixel"}),
    ("RoiAlign", "mode"): frozenset({"avg", "max"}),
    ("ScatterElements", "reduction"): _SCATTER,
    ("ScatterND", "reduction"): _SCATTER,
    ("SoftmaxCrossEntropyLoss", "reduction"): _LOSS,
    ("SpaceToDepth", "mode"): _BLOCKS,
    ("StringNormalizer", "case_change_action"): frozenset({"LOWER", "UPPER", "NONE"}),
    ("TensorScatter", "mode"): frozenset({"linear", "circular"}),
    ("TfIdfVectorizer", "mode"): frozenset({"TF", "IDF", "TFIDF"}),
    ("Upsample", "mode"): frozenset({"nearest", "linear", "bilinear"}),
}  # fmt: skip
"""By operator of the standard domain and attribute, over all its versions."""

FLAGS = frozenset(
    {
        ("BatchNormalization", "training_mode"), ("GRU", "layout"), ("LSTM", "layout"), ("MaxPool", "storage_order"),
        ("RNN", "layout"), ("RotaryEmbedding", "interleaved"), ("Scan", "directions"), ("Scan", "scan_input_directions"),
        ("Scan", "scan_output_directions"), ("TopK", "largest"), ("Unique", "sorted"),
    }
)  # fmt: skip
"""Integers that are 0 or 1, of which onnxruntime refuses others or takes them for 0. It takes those of other flags for 1."""

POSITIVE = frozenset(
    {
        ("Attention", "kv_num_heads"), ("Attention", "q_num_heads"), ("LinearAttention", "kv_num_heads"),
        ("LinearAttention", "q_num_heads"), ("Conv", "group"), ("ConvInteger", "group"), ("ConvTranspose", "group"),
        ("QLinearConv", "group"), ("DeformConv", "group"), ("DeformConv", "offset_group"), ("DepthToSpace", "blocksize"),
        ("SpaceToDepth", "blocksize"), ("GroupNormalization", "num_groups"), ("Split", "num_outputs"),
    }
)  # fmt: skip
"""Integers that others are divided by: at 0, native code ends the process."""
