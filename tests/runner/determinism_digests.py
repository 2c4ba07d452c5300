"""Prints a digest of every case's outputs: a process of its own, as OpenBLAS reads its environment once.

Each case runs three times (recorded, planned, planned) at several values of ``intra_op_num_threads``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

import fx2onnx.runner as ort

THREADS = (0, 1, 3)

SHAPES: dict[str, tuple[str, list[list[int]], dict]] = {
    "row_by_matrix": ("MatMul", [[1, 4096], [4096, 1000]], {}),
    "matrix_by_column": ("MatMul", [[1000, 4096], [4096, 1]], {}),
    "vector_by_matrix": ("MatMul", [[4096], [4096, 1000]], {}),
    "long_dot": ("MatMul", [[300000], [300000]], {}),
    "narrow": ("MatMul", [[33, 5000], [5000, 17]], {}),
    "square": ("MatMul", [[600, 600], [600, 600]], {}),
    "wide": ("MatMul", [[64, 300], [300, 4000]], {}),
    "large": ("MatMul", [[1, 150, 900], [900, 1111]], {}),
    "tall": ("MatMul", [[3001, 300], [300, 200]], {}),
    "large_turned": ("Gemm", [[200, 900], [1100, 900]], {"transB": 1}),
    "few_rows": ("MatMul", [[8, 512], [512, 1000]], {}),
    "few_rows_turned": ("Gemm", [[12, 1000], [3000, 1000]], {"transB": 1}),
    "few_rows_large": ("Gemm", [[8, 4096], [4111, 4096]], {"transB": 1}),
    "batched": ("MatMul", [[1, 12, 128, 128], [1, 12, 128, 128]], {}),
    "broadcast": ("MatMul", [[16, 200, 128], [128, 100]], {}),
    "gemm": ("Gemm", [[200, 300], [250, 300], [250]], {"transB": 1}),
    "gemm_turned": ("Gemm", [[300, 200], [300, 250], [1]], {"transA": 1, "alpha": 0.5}),
    "pointwise": ("Conv", [[1, 256, 28, 28], [512, 256, 1, 1]], {}),
    "columns": ("Conv", [[2, 64, 30, 30], [64, 64, 3, 3]], {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", [[2, 32, 40, 40], [32, 1, 3, 3]], {"group": 32}),
    "grouped": ("Conv", [[2, 32, 20, 20], [32, 8, 3, 3]], {"group": 4}),
    "signal": ("Conv", [[1, 16, 2000], [16, 16, 9]], {}),
    "transposed": ("ConvTranspose", [[3, 64, 20, 20], [64, 32, 3, 3]], {"strides": [2, 2]}),
    "einsum": ("Einsum", [[8, 64, 500], [8, 70, 500]], {"equation": "bik,bjk->bij"}),
    "layer_norm": ("LayerNormalization", [[64, 3000], [3000]], {}),
    "sum": ("ReduceSum", [[20, 70000]], {}),
    "mean": ("ReduceMean", [[3, 40, 40, 40]], {}),
    "softmax": ("Softmax", [[40, 20000]], {}),
    "pool": ("GlobalAveragePool", [[1, 64, 60, 60]], {}),
    "attention": ("Attention", [[1, 8, 300, 64]] * 3, {}),
    "lstm": ("LSTM", [[20, 4, 200], [1, 800, 200], [1, 800, 200]], {"hidden_size": 200}),
    "gru": ("GRU", [[20, 4, 200], [1, 600, 200], [1, 600, 200]], {"hidden_size": 200}),
    "det": ("Det", [[4, 90, 90]], {}),
}
"""Operator, shapes of its inputs (the first is fed, the others are constants), attributes."""


def cases() -> Iterator[tuple[str, onnx.ModelProto | str]]:
    for dtype, code in (("float32", TensorProto.FLOAT), ("float64", TensorProto.DOUBLE)):
        rng = np.random.default_rng(0)
        for name, (op_type, shapes, attrs) in SHAPES.items():
            names = [f"i{place}" for place in range(len(shapes))]
            constants = [
                onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), given)
                for given, shape in zip(names[1:], shapes[1:], strict=True)
            ]
            graph = helper.make_graph(
                [helper.make_node(op_type, names, ["y"], **attrs)],
                name,
                [helper.make_tensor_value_info("i0", code, shapes[0])],
                [helper.make_tensor_value_info("y", code, None)],
                constants,
            )
            yield (
                f"{name} {dtype}",
                helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11),
            )
    yield from ((path, path) for path in sys.argv[1:])


def feeds_of(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    feeds = {}
    for arg in session.get_inputs():
        dtype = arg.value_type.dtype.numpy()
        shape = [dim if isinstance(dim, int) else 3 for dim in arg.shape]
        feeds[arg.name] = (rng.integers(0, 2, shape) if dtype.kind in "iub" else rng.standard_normal(shape)).astype(
            dtype
        )
    return feeds


def digest(source: onnx.ModelProto | str) -> list[str]:
    found = set()
    for threads in THREADS:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(source, options)
        feeds = feeds_of(session)
        for _ in range(3):
            outputs = session.run(None, feeds)
            found.add(hashlib.sha256(b"".join(output.tobytes() for output in outputs)).hexdigest()[:16])
    return sorted(found)


if __name__ == "__main__":
    print(json.dumps({name: digest(source) for name, source in cases()}))
