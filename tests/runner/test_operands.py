"""What the specification says of an operator's operands and attributes together ends in an error at the latest when it runs.

onnxruntime is asked the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

onnxruntime = pytest.importorskip("onnxruntime")

CPU = ["CPUExecutionProvider"]
OF = '<ir_version: 10, opset_import: ["": {}]> '

REFUSED = {
    "auto_pad beside pads": (
        "g (float[1,1,3,3] x, float[1,1,1,1] w) => (float[1,1,5,5] y) "
        '{ y = Conv <pads = [1,1,1,1], auto_pad = "SAME_UPPER"> (x, w) }',
        "pads are [1, 1, 1, 1] and auto_pad is SAME_UPPER",
    ),
    "auto_pad beside pads of a transposed convolution": (
        "g (float[1,1,3,3] x, float[1,1,1,1] w) => (float[1,1,n,m] y) "
        '{ y = ConvTranspose <pads = [1,1,1,1], auto_pad = "VALID"> (x, w) }',
        "pads are [1, 1, 1, 1] and auto_pad is VALID",
    ),
    "scales beside sizes": (
        "g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1,1,2,2}, int64[4] z = {1,1,4,4}> "
        "{ y = Resize (x, , s, z) }",
        "scales and sizes are both given",
    ),
    "an axis of Resize out of range": (
        "g (float[2,2] x) => (float[2,4] y) <float[1] s = {2}> { y = Resize <axes = [2]> (x, , s) }",
        "axis 2 is out of range for 2 axes",
    ),
    "an axis of Resize twice": (
        "g (float[2,2] x) => (float[2,4] y) <float[2] s = {2,2}> { y = Resize <axes = [1,-1]> (x, , s) }",
        "name one twice",
    ),
    "a shape of two axes": (
        "g (int64[1,2] s) => (float[a,b] y) { y = ConstantOfShape (s) }",
        "the shape has 2 axes",
    ),
    "values of another number": (
        "g (int64[2] i, float[3] v) => (float[2,4] y) <int64 d = {4}> { y = OneHot (i, d, v) }",
        "values has the shape [3], not [2]",
    ),
    "a one-sided transform of complex numbers": (
        "g (float[1,4,2] x) => (float[1,3,2] y) { y = DFT <onesided = 1> (x) }",
        "a one-sided transform is of real numbers",
    ),
    "statistics without an axis": (
        "g (float[1,2,2] x, float[2] s, float m) => (float[1,2,2] y) { y = BatchNormalization (x, s, s, m, s) }",
        "mean has the shape [], the input [1, 2, 2]",
    ),
    "statistics of other channels": (
        "g (float[1,2,2] x, float[1] s) => (float[1,2,2] y) { y = BatchNormalization (x, s, s, s, s) }",
        "scale has the shape [1], the input [1, 2, 2]",
    ),
    "columns of two axes": (
        "g (float[4,4] x) => (float[4,1,2,2] y) <int64[2] i = {2,2}, int64[2] b = {2,2}> { y = Col2Im (x, i, b) }",
        "the input has 2 axes",
    ),
    "a triangle of one axis": ("g (float[2] x) => (float[2] y) { y = Trilu (x) }", "the input has 1 axes"),
    "a term of another number of axes": (
        'g (float[2,3] x) => (float[2] y) { y = Einsum <equation = "ijk->i"> (x) }',
        "the term 'ijk' is for 3 axes, its operand has 2",
    ),
    "parts of no given size": ("g (float[4] x) => (float[2] y, float[2] z) { y, z = Split (x) }", "not given"),
    "parts of two kinds of size": (
        "g (float[4] x) => (float[2] y, float[2] z) <int64[2] s = {2,2}> { y, z = Split <num_outputs = 2> (x, s) }",
        "both given",
    ),
    "more parts than elements": (
        "g (float[2] x) => (float[1] y, float[1] z, float[0] u) { y, z, u = Split <num_outputs = 3> (x) }",
        "num_outputs is 3, the axis has 2",
    ),
    "parts that are not equal, in opset 13": (
        OF.format(13) + "g (float[3] x) => (float[2] y, float[1] z) { y, z = Split (x) }",
        "3 is no multiple of 2",
    ),
}


def feeds(session: Any) -> dict[str, Any]:
    of = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {arg.name: np.ones(arg.shape, of[arg.type]) for arg in session.get_inputs()}


def run_by(engine: Any, data: bytes) -> None:
    options = engine.SessionOptions()
    options.log_severity_level = 4
    session = engine.InferenceSession(data, options, providers=CPU)
    session.run(None, feeds(session))


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_do_not_fit(name: str) -> None:
    text, why = REFUSED[name]
    data = onnx.parser.parse_model(text if text.startswith("<") else OF.format(21) + text).SerializeToString()
    with pytest.raises(UserError) as caught:
        run_by(ort, data)
    assert caught.value.code in ("E303", "E403")
    assert why in str(caught.value)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_by(onnxruntime, data)


@pytest.mark.parametrize("version", [13, 17, 18])
def test_parts_of_equal_size(version: int) -> None:
    how = "<num_outputs = 3>" if version >= 18 else ""
    text = (
        OF.format(version) + f"g (float[6] x) => (float[2] y, float[2] z, float[2] u) {{ y, z, u = Split {how} (x) }}"
    )
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    parts = session.run(None, {"x": np.arange(6, dtype=np.float32)})
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(("count", "is_right"), [(2, True), (1, False), (4, False)])
def test_bytes_of_four_bit_integers(count: int, is_right: bool) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=bytes([0x21, 0x03, 0, 0][:count]))
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [weight, helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if is_right:
        assert ort.InferenceSession(model).run(None, {})[0].tolist() == [1, 2, 3]
        return
    with pytest.raises(UserError, match=f"{count} bytes; INT4.3. is 2"):
        ort.InferenceSession(model)
