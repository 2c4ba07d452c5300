"""The runner's element types are those of ``onnx_ir``, which it does not import, and of ``onnx``."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from fx2onnx import runner
from fx2onnx.semantics.types import DataType, OptionalType, SequenceType, SparseTensorType, TensorType, widen

MEMBERS = list(ir.DataType)


def test_none_is_missing() -> None:
    assert {member.name: member.value for member in DataType} == {member.name: member.value for member in MEMBERS}
    assert dict(onnx.TensorProto.DataType.items()).items() <= {member.name: member.value for member in DataType}.items()


@pytest.mark.parametrize("theirs", MEMBERS, ids=lambda member: member.name)
def test_each_is_the_one_of_onnx_ir(theirs: ir.DataType) -> None:
    ours = DataType(theirs.value)
    assert ours == theirs
    assert ours.is_floating_point() == theirs.is_floating_point()
    if theirs is ir.DataType.UNDEFINED:
        with pytest.raises(TypeError, match="UNDEFINED"):
            ours.numpy()
        return
    assert ours.numpy() == theirs.numpy()
    if theirs is not ir.DataType.STRING:
        assert ours.bitwidth == theirs.bitwidth


def test_types_are_equal_by_kind_and_content() -> None:
    kinds = [TensorType(DataType.FLOAT), SparseTensorType(DataType.FLOAT), TensorType(DataType.INT64)]
    kinds += [SequenceType(kinds[0]), OptionalType(kinds[0]), OptionalType(SequenceType(kinds[0]))]
    for place, kind in enumerate(kinds):
        assert [kind == other for other in kinds] == [place == other for other in range(len(kinds))]


def test_every_float16_has_numpys_float32() -> None:
    """Also in the large arrays that are converted by their bits."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    for x in (halves, finite, np.repeat(finite, 2).reshape(2, -1)[:, ::2], np.repeat(halves, 3)):
        with np.errstate(all="ignore"):
            given, wanted = widen(x), x.astype(np.float32)
        assert given.shape == x.shape
        assert given.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("count", [3, 500])
@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_out_of_range_become_the_integers_of_onnxruntime(dtype: type, to: type, count: int) -> None:
    """But for float16 to uint32, for which onnxruntime has other numbers than for float32."""
    if (dtype, to) == (np.float16, np.uint32):
        to = np.int32
    draw = np.random.default_rng(count)
    with np.errstate(over="ignore"):
        x = (draw.standard_normal(count) * 10.0 ** draw.uniform(0, 20, count)).astype(dtype)
    x[:3] = np.nan, np.inf, -np.inf
    code = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None])
        for name, kind in (("x", dtype), ("y", to))
    ]
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=code)], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    ours, theirs = (
        kind(model).run(None, {"x": x})[0] for kind in (runner.InferenceSession, onnxruntime.InferenceSession)
    )
    np.testing.assert_array_equal(ours, theirs)
