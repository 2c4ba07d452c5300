"""The runner's element types are those of ``onnx_ir``, which it does not import, and of ``onnx``."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

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
