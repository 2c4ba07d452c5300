"""The operators of onnxruntime's own domain and of ai.onnx.ml that a runtime knows: a model of one node of each is
opened, and the runtime's error tells an unknown operator from one that is called in a wrong way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime_state
from onnx import helper

from tools.target_nodes import Case

UNKNOWN = {
    "onnxruntime-web": re.compile(r"is not a registered function/op"),
    "openvino": re.compile(r"No conversion rule found|is not recognized"),
    "tract": re.compile(r"Unimplemented\("),
}
"""The errors of runtimes for an operator that they do not know. Other runtimes do not tell it from one that is called
in a wrong way."""


def nodes() -> Iterator[Case]:
    """A model of each operator: two inputs in float32, or as many as it needs. The name of a case has the domain."""
    for name in sorted(
        {each.op_name for each in onnxruntime_state.get_all_opkernel_def() if each.domain == "com.microsoft"}
    ):
        yield _node("com.microsoft", name, 1, 2, 1)
    for schema in onnx.defs.get_all_schemas():
        if schema.domain == "ai.onnx.ml":
            yield _node(schema.domain, schema.name, schema.since_version, schema.min_input, schema.min_output)


def _node(domain: str, name: str, version: int, inputs: int, outputs: int) -> Case:
    given = [helper.make_tensor_value_info(f"x{place}", onnx.TensorProto.FLOAT, [2, 4]) for place in range(inputs or 1)]
    made = [helper.make_tensor_value_info(f"y{place}", onnx.TensorProto.FLOAT, None) for place in range(outputs or 1)]
    node = helper.make_node(name, [value.name for value in given], [value.name for value in made], domain=domain)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    model = helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=imports, ir_version=8)
    return Case(f"{domain}::{name}", name, version, 17, {}, model.SerializeToString())


def known(runtime: str, every: list[Case], said: list[str]) -> list[str]:
    """``domain::operator`` of those that the runtime knows."""
    return [case.name for case, problem in zip(every, said, strict=True) if not UNKNOWN[runtime].search(problem)]
