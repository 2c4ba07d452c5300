"""What the runner asks of ``onnx.defs``: versions, attribute types, arity, function bodies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError

NEWEST_OPSET = onnx.defs.onnx_opset_version()
STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview", "ai.onnx.training")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a node of one operator version may look like."""

    since_version: int
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attribute_types: dict[str, ir.AttributeType]
    required: tuple[str, ...]
    function: Any


@lru_cache(maxsize=4096)
def signature_of(domain: str, op_type: str, opset: int) -> Signature | None:
    """The schema's facts, or None where ONNX does not know the operator in that opset."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    function = None
    if schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= opset]
        body = schema.get_function_with_opset_version(max(versions)) if versions else schema.function_body
        function = onnx.FunctionProto()
        function.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    return Signature(
        schema.since_version,
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: ir.AttributeType(int(attribute.type.value)) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        function,
    )


def check_node(node: ir.Node, signature: Signature, line: str, attribute_types: dict[str, ir.AttributeType]) -> None:
    """Raises: UserError E303 for wrong numbers of inputs or outputs, and unknown, wrong or missing attributes."""
    n_inputs, n_outputs = len(node.inputs), len(node.outputs)
    if not signature.min_inputs <= n_inputs <= signature.max_inputs:
        allowed = f"{signature.min_inputs}..{signature.max_inputs}"
        raise UserError("E303", f"{node.op_type} takes {allowed} inputs and has {n_inputs}", node=line)
    if not signature.min_outputs <= n_outputs <= signature.max_outputs:
        allowed = f"{signature.min_outputs}..{signature.max_outputs}"
        raise UserError("E303", f"{node.op_type} has {allowed} outputs, not {n_outputs}", node=line)
    for name, type_ in attribute_types.items():
        wanted = signature.attribute_types.get(name)
        if wanted is None:
            raise UserError(
                "E303",
                f"{node.op_type}-{signature.since_version} has no attribute {name!r}",
                node=line,
                why=f"it has {', '.join(sorted(signature.attribute_types)) or 'none'}",
            )
        if wanted is not type_:
            raise UserError(
                "E303", f"the attribute {name!r} of {node.op_type} is {wanted.name}, not {type_.name}", node=line
            )
    for name in signature.required:
        if name not in attribute_types:
            raise UserError("E303", f"{node.op_type} needs the attribute {name!r}", node=line)
