"""Facts about operators of the standard domain that more than one package needs. One table per kind of fact."""

from __future__ import annotations

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Two calls give two draws: never shared, never folded, never reordered. ``Dropout`` draws in training mode."""

COMMUTATIVE = frozenset(
    {"Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"}
)
"""``op(a, b) == op(b, a)``, bit for bit."""

UNARY_ELEMENTWISE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos"),
        *("Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"),
        *("Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
"""One tensor in, one of the same dims out, each element by itself."""

BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)
"""Elementwise over operands that are broadcast as NumPy does."""

ELEMENTWISE = UNARY_ELEMENTWISE | BROADCASTING

VIEW = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""The same elements in the same order under other dims."""

MOVES = VIEW | frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Expand", "Gather", "GatherElements", "GatherND", "Pad"),
        *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose"),
        *("Trilu", "Clip", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "MaxRoiPool"),
    }
)
"""Every element of the result is one of an operand, or a bound."""

ROUNDS = frozenset(
    {
        *(
            "ArgMax",
            "ArgMin",
            "Ceil",
            "DynamicQuantizeLinear",
            "Equal",
            "Floor",
            "Greater",
            "GreaterOrEqual",
            "Hardmax",
        ),
        *("Less", "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign", "TopK"),
        *("ThresholdedRelu", "Shrink", "Unique"),
    }
)
"""Their results jump where an operand's last bit changes. ``Cast`` to integers does, too."""

GRAPH_BEARING = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of the standard domain with graphs among their attributes."""


def is_random(domain: str, op_type: str) -> bool:
    """Return whether two calls on equal inputs may differ. Unknown domains are taken to be random."""
    return domain not in ("", "ai.onnx", "ai.onnx.ml") or op_type in RANDOM
