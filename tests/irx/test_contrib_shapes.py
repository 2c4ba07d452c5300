"""Types of onnxruntime's own operators in files that declare none: what a run gives at other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import fx2onnx.runner as ort
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.shapes.linear import CONTRIB, MICROSOFT
from fx2onnx.irx.values import dims_of
from fx2onnx.sizes.expr import Dim

F16, F32 = np.float16, np.float32
CASES: list[tuple[str, str, list[tuple[Any, list[Any]] | None], int, dict[str, Any]]] = [
    ("", "SimplifiedLayerNormalization", [(F32, ["b", "s", 8]), (F32, [8])], 1, {}),
    (MICROSOFT, "BiasGelu", [(F32, ["b", "s", 8]), (F32, [8])], 1, {}),
    (MICROSOFT, "FastGelu", [(F16, ["b", "s", 8])], 1, {}),
    (MICROSOFT, "Gelu", [(F32, ["b", "s"])], 1, {}),
    (MICROSOFT, "QuickGelu", [(F32, ["b", "s"])], 1, {}),
    (MICROSOFT, "FusedMatMul", [(F32, [2, "s", "b"]), (F32, [2, "s", 5])], 1, {"transA": 1}),
    (MICROSOFT, "FusedMatMul", [(F32, ["b", 2, 3, 4]), (F32, [2, 3, 5, 4])], 1, {"transBatchA": 1, "transB": 1}),
    (MICROSOFT, "SkipLayerNormalization", [(F16, ["b", "s", 8]), (F16, ["s", 8]), (F16, [8])], 4, {}),
    (MICROSOFT, "SkipSimplifiedLayerNormalization", [(F32, ["b", "s", 8])] * 2 + [(F32, [8])], 4, {}),
    (MICROSOFT, "RotaryEmbedding", [(F32, ["b", "s", 8]), (np.int64, ["b", "s"]), (F32, [4, 2]), (F32, [4, 2])], 1, {"num_heads": 2}),
    (MICROSOFT, "MultiHeadAttention", [(F32, ["b", "s", 8]), (F32, ["b", "t", 8]), (F32, ["b", "t", 8])], 3, {"num_heads": 2}),
    (MICROSOFT, "MultiHeadAttention",
     [(F32, ["b", "s", 8]), (F32, ["b", 2, "t", 4]), (F32, ["b", 2, "t", 4]), None, None, None, (F32, ["b", 2, "p", 4]),
      (F32, ["b", 2, "p", 4])], 3, {"num_heads": 2}),
    (MICROSOFT, "MoE", [(F32, ["b", 8]), (F32, ["b", 4]), (F32, [4, 16, 8]), None, (F32, [4, 8, 16])], 1, {"k": 2}),
]  # fmt: skip
SIZES = {"b": 3, "s": 4, "t": 5, "p": 2}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{len(case[2])}")
def test_dims_are_those_of_a_run(case: Any) -> None:
    domain, op_type, operands, count, attrs = case
    names = ["" if operand is None else f"x{place}" for place, operand in enumerate(operands)]
    given = [(name, *operand) for name, operand in zip(names, operands, strict=True) if operand is not None]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)
        for name, dtype, dims in given
    ]
    outputs = [f"y{place}" for place in range(count)]
    graph = helper.make_graph(
        [
            helper.make_node(op_type, names, outputs, domain=domain, **attrs),
            *(helper.make_node("Neg", [name], [f"z{name}"]) for name in outputs),
        ],
        "g",
        infos,
        [helper.make_empty_tensor_value_info(f"z{name}") for name in outputs],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    model: Any = ir.from_proto(proto)
    infer_types(model)
    feeds = {
        name: np.ones([SIZES.get(dim, dim) if isinstance(dim, str) else dim for dim in dims], dtype)
        for name, dtype, dims in given
    }
    for value, found in zip(model.graph.outputs, run(proto, feeds), strict=True):
        told = [dim.evaluate(SIZES) if isinstance(dim, Dim) else dim for dim in dims_of(value)]
        assert (told, value.dtype.numpy()) == (list(found.shape), found.dtype)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(proto.SerializeToString()).run(None, feeds)


def test_every_rule_is_tried() -> None:
    """But for GroupQueryAttention, whose cache is as long as numbers say, and QMoE of codes: tests/runner has them."""
    assert {case[:2] for case in CASES} == set(CONTRIB) - {(MICROSOFT, "GroupQueryAttention"), (MICROSOFT, "QMoE")}
