"""The operands and results of a node that may have 16 bits, as ONNX declares the operator."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fx2onnx.irx.schema import ELEMENTWISE, GRAPH_BEARING, MOVES
from fx2onnx.semantics.schemas import onnx_schema
from fx2onnx.targets.form import Target
from fx2onnx.targets.match import has_kernel_for, knows, signature_of, with_dtype, word_of

D = ir.DataType

HEAVY = frozenset(
    {
        *("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"),
        *("FusedGemm", "FusedMatMul", "GroupQueryAttention", "MatMulBnb4", "MatMulNBits"),
        *("MultiHeadAttention", "NhwcFusedConv", "FusedConv", "LinearAttention", "CausalConvWithState"),
    }
)
"""Operators that half precision is for: sums of many products."""
LIGHT = MOVES | ELEMENTWISE | frozenset(
    {
        *("CumSum", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
        *("ReduceSum", "ReduceSumSquare", "ConstantOfShape", "CastLike"),
    }
)  # fmt: skip
"""Operators that may follow what is around them into float32: they cost little."""
READS_ANY = frozenset({"Shape", "Size", "Cast"})
"""Operators whose operand may have any dtype: it needs no cast."""
WIDE_RESULTS = {"LayerNormalization": (1, 2), "BatchNormalization": (1, 2)}
"""Results that keep float32 whatever the operand has: statistics."""
SEQUENCE = "it holds a sequence"
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
_SAYS_DTYPE = frozenset({"ConstantOfShape", "Constant", "EyeLike", "RandomNormal", "RandomUniform"})
SUMS = frozenset(
    {
        *(
            "BatchNormalization",
            "CumProd",
            "CumSum",
            "Exp",
            "GroupNormalization",
            "InstanceNormalization",
            "LRN",
            "Log",
        ),
        *(
            "LayerNormalization",
            "LogSoftmax",
            "LpNormalization",
            "LpPool",
            "MeanVarianceNormalization",
            "Pow",
            "RMSNormalization",
        ),
        *("Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
        *(
            "ReduceSum",
            "ReduceSumSquare",
            "SimplifiedLayerNormalization",
            "SkipLayerNormalization",
            "Softmax",
            "Softplus",
        ),
        *("SkipSimplifiedLayerNormalization", "Sqrt", "Cos", "Sin", "Tan"),
    }
)
"""Operators that stay in float32 where nothing is measured, and in ``mixed``: as torch.autocast has them."""


@dataclass(frozen=True)
class Form:
    """The form of a node in 16 bits: the places of its operands and results that keep float32."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def form_of(node: ir.Node, wide: ir.DataType, half: ir.DataType, opset: int, target: Target) -> Form | str:
    """The form of a node that bears ``wide``, or why it has none."""
    if node.op_type in GRAPH_BEARING and not node.domain:
        return "it holds graphs"
    values = (*node.inputs, *node.outputs)
    if any(
        value is not None and value.type is not None and not isinstance(value.type, ir.TensorType) for value in values
    ):
        return SEQUENCE
    if node.op_type in _SAYS_DTYPE and not any(name in node.attributes for name in (*DTYPE_ATTRIBUTES, "value")):
        return "its result has float32 unless it says otherwise"
    form = _declared(node, wide, half, opset)
    if isinstance(form, str):
        return form
    if not _has_kernel(node, wide, half, opset, target, form):
        return f"{target.name} has no {word_of(half)} kernel for it"
    return form


def _declared(node: ir.Node, wide: ir.DataType, half: ir.DataType, opset: int) -> Form | str:
    schema = onnx_schema(node.op_type, opset, node.domain)
    if schema is None:
        return Form() if node.domain == "com.microsoft" else "nothing is known of the operator"
    word = f"tensor({word_of(half)})"
    kept: list[set[int]] = [set(), set()]
    for side, values, formals in ((0, node.inputs, schema.inputs), (1, node.outputs, schema.outputs)):
        for place, value in enumerate(values):
            if value is None or value.dtype != wide or not formals:
                continue
            formal = formals[min(place, len(formals) - 1)]
            is_wide = side == 1 and place in WIDE_RESULTS.get(node.op_type, ()) and node.op_type != "BatchNormalization"
            if is_wide or word not in formal.types:
                kept[side].add(place)
    bears = [
        [place for place, value in enumerate(values) if value is not None and value.dtype == wide]
        for values in (node.inputs, node.outputs)
    ]
    if 0 in kept[1] or not ((set(bears[0]) - kept[0]) | (set(bears[1]) - kept[1])):
        return f"ONNX has no {word_of(half)} {node.op_type} in opset {opset}"
    if kept[0] & {0} and bears[1]:
        return f"ONNX has {node.op_type} of float32 alone in opset {opset}"
    return Form(frozenset(kept[0]), frozenset(kept[1]))


def _has_kernel(node: ir.Node, wide: ir.DataType, half: ir.DataType, opset: int, target: Target, form: Form) -> bool:
    if target.rows is None or node.op_type == "Constant":
        return True
    if node.domain not in ("", "ai.onnx.ml", "com.microsoft"):
        return False
    inputs, outputs = with_dtype(signature_of(node), word_of(wide), word_of(half))
    float32 = word_of(D.FLOAT)
    inputs = tuple(float32 if place in form.inputs else word for place, word in enumerate(inputs))
    outputs = tuple(float32 if place in form.outputs else word for place, word in enumerate(outputs))
    return has_kernel_for(target, node, opset, (inputs, outputs), surely=True)


def can_hold(target: Target, half: ir.DataType, opset: int) -> bool:
    """Return whether the target computes with the dtype, or knows it at least to cast it."""
    word, float32 = word_of(half), word_of(D.FLOAT)
    if target.rows is None:
        return True
    if any(knows(target.name, "", each, opset, ((word, word), (word,))) for each in ("Add", "Conv", "Gemm", "MatMul")):
        return True
    return bool(target.kernels("", "Cast")) and bool(knows(target.name, "", "Cast", opset, ((word,), (float32,))))
