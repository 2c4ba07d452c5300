"""onnxruntime's products with weights of few bits: the runner beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.runner import InferenceSession

CASES = [
    (op, bits, block, columns, zeros, dtype)
    for op, bits, block, columns, zeros, dtype in [
        *(("MatMulNBits", bits, 32, columns, zeros, np.float32) for bits in (4, 8) for columns in (64, 80) for zeros in (0, 1)),
        ("MatMulNBits", 4, 16, 48, 2, np.float32),
        ("MatMulNBits", 4, 128, 96, 0, np.float32),
        ("MatMulNBits", 4, 32, 64, 1, np.float16),
        ("MatMulBnb4", 0, 32, 64, 0, np.float32),
        ("MatMulBnb4", 1, 64, 64, 0, np.float32),
    ]
]  # fmt: skip


def model_of(op_type: str, x: Any, weights: dict[str, Any], attrs: dict[str, int]) -> bytes:
    node = helper.make_node(op_type, ["x", *weights], ["y"], domain="com.microsoft", **attrs)
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    infos = [helper.make_tensor_value_info(name, dtype, None) for name in "xy"]
    graph = helper.make_graph(
        [node],
        "g",
        infos[:1],
        infos[1:],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("op_type", "bits", "block", "columns", "zeros", "dtype"), CASES)
def test_products_are_those_of_onnxruntime(
    op_type: str, bits: int, block: int, columns: int, zeros: int, dtype: Any
) -> None:
    rng, rows = np.random.default_rng(0), 24
    blocks = -(-columns // block)
    x = rng.standard_normal((2, 3, columns)).astype(dtype)
    attrs = {"K": columns, "N": rows, "block_size": block}
    if op_type == "MatMulBnb4":
        codes = rng.integers(0, 256, rows * columns // 2, np.uint8)
        weights = {"b": codes, "s": (rng.random(rows * columns // block) + 0.1).astype(dtype)}
        attrs["quant_type"] = bits
    else:
        codes = rng.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8)
        weights = {"b": codes, "s": (rng.random(rows * blocks) + 0.1).astype(dtype)}
        attrs |= {"bits": bits, "accuracy_level": 1}
        if zeros == 1:
            weights["z"] = rng.integers(0, 256, rows * -(-blocks * bits // 8), np.uint8)
        elif zeros == 2:
            weights["z"] = (rng.random((rows, blocks)) * 15).astype(dtype)
    content = model_of(op_type, x, weights, attrs)
    want = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    got = InferenceSession(content).run(None, {"x": x})[0]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == np.float16 else 1e-5, atol=np.abs(want).max() * (1e-3 if dtype == np.float16 else 1e-6))  # fmt: skip


@pytest.mark.parametrize("change", [{"bits": 3}, {"K": 60}])
def test_products_that_cannot_be(change: dict[str, int]) -> None:
    x, attrs = np.ones((1, 64), np.float32), {"K": 64, "N": 8, "block_size": 32, "bits": 4} | change
    weights = {"b": np.zeros((8, 2, 16), np.uint8), "s": np.ones(16, np.float32)}
    with pytest.raises(Fx2OnnxError):
        InferenceSession(model_of("MatMulNBits", x, weights, attrs)).run(None, {"x": x})
