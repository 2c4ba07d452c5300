"""What the table says of the newest release, and what that release does."""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from fx2onnx.targets.form import find
from fx2onnx.targets.match import has_kernel, signature_of
from tools.target_kernels import DTYPES, FAILS_IN_A_RUN, single_node

OPSETS = (11, 13, 16, 17, 18, 20, 21, 22, 24, 26)
ARTIFACTS = {"BitCast", "Constant", "Cast"}
"""Not judged by opening one node: what decides is an attribute (BitCast, Constant), or the attribute is a string (Cast-1)."""


@cache
def release() -> str:
    return ".".join(onnxruntime.__version__.split(".")[:2])


def opens(model: bytes) -> bool | None:
    """Return whether onnxruntime opens it; None where something else than a kernel stands in its way."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as cause:  # onnxruntime has classes of its own
        return False if "NOT_IMPLEMENTED" in str(cause) else None
    return True


@pytest.mark.long
@pytest.mark.parametrize("opset", OPSETS)
def test_the_table_says_what_onnxruntime_opens(opset: int) -> None:
    target = find(f"onnxruntime-{release()}").name
    wrong: list[str] = []
    judged = 0
    for schema in onnx.defs.get_all_schemas_with_history():
        is_newest = onnx.defs.has(schema.name, opset, "") and (
            onnx.defs.get_schema(schema.name, opset, "").since_version == schema.since_version
        )
        if schema.domain or schema.deprecated or not is_newest or schema.name in ARTIFACTS:
            continue
        for dtype in DTYPES:
            if FAILS_IN_A_RUN.get(("", schema.name)) == f"tensor({dtype})":
                continue
            model = single_node(schema, dtype, opset)
            opened = None if model is None else opens(model)
            if model is None or opened is None:
                continue
            node = next(iter(ir.from_proto(onnx.load_from_string(model)).graph))
            judged += 1
            if has_kernel(target, "", schema.name, opset, signature_of(node)) != opened:
                wrong.append(f"{schema.name}-{schema.since_version} {dtype}: opens is {opened}")
    assert judged > 400
    assert wrong == []


def test_kernels_of_sequences_are_those_of_what_they_hold() -> None:
    target = find("onnxruntime").name
    assert has_kernel(target, "", "SplitToSequence", 17, (("float",), ("float",)))
    assert has_kernel(target, "", "SequenceAt", 17, (("float", "int64"), ("float",)))
    assert not has_kernel(target, "", "SequenceAt", 17, (("complex64", "int64"), ("complex64",)))
