"""dtype and dims of the outputs of the ONNX operators that translations emit.

One table, ``RULES``: operator -> rule, filled by a file a family. A rule takes a ``ShapeCall`` (inputs, attributes) and
returns one ``(dtype, dims)`` per output. Only what is needed while building a graph lives here;
``onnx.shape_inference`` is the reference in tests.
"""

from fx2onnx.irx.shapes import layout, linear
from fx2onnx.irx.shapes.linear import matmul_dims
from fx2onnx.irx.shapes.table import RULES, ShapeCall, Typed, UnknownShape, broadcast_dims, infer

__all__ = [
    "RULES", "ShapeCall", "Typed", "UnknownShape", "broadcast_dims", "infer", "layout", "linear", "matmul_dims",
]  # fmt: skip
