"""What the runner asks of ``onnx.defs``: versions, attribute types, arity, function bodies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx

from fx2onnx.base.errors import UserError
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.types import TENSOR_NAMES, Dtype, numpy_dtype

NEWEST_OPSET = onnx.defs.onnx_opset_version()
STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview", "ai.onnx.training")


_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True, slots=True)
class Signature:
    """What a node of one operator version may look like."""

    since_version: int
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attribute_types: dict[str, int]
    required: tuple[str, ...]
    has_function: bool
    input_names: tuple[str, ...]
    optional_inputs: frozenset[int]
    input_dtypes: tuple[frozenset[Dtype], ...]
    """What arrays each input may be; the last entry is for all that follow, too."""


def _schema(domain: str, op_type: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


_schema("", "Identity", 1)  # onnx registers all schemas at the first question: once a process, not in a session's time


@lru_cache(maxsize=4096)
def signature_of(domain: str, op_type: str, opset: int) -> Signature | None:
    """The schema's facts, or None where ONNX does not know the operator in that opset."""
    schema = _schema(domain, op_type, opset)
    return None if schema is None else _signature_since(domain, op_type, schema.since_version)


@lru_cache(maxsize=4096)
def _signature_since(domain: str, op_type: str, since_version: int) -> Signature:
    schema = _schema(domain, op_type, since_version)
    return Signature(
        since_version,
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        schema.has_function,
        tuple(parameter.name for parameter in schema.inputs),
        frozenset(place for place, parameter in enumerate(schema.inputs) if parameter.option == _OPTIONAL),
        tuple(_dtypes(frozenset(parameter.types)) for parameter in schema.inputs),
    )


_DTYPE_OF_NAME = {f"tensor({name})": numpy_dtype(dtype) for dtype, name in TENSOR_NAMES.items()}


@lru_cache(maxsize=512)
def _dtypes(type_names: frozenset[str]) -> frozenset[Dtype]:
    """The dtypes of arrays that a parameter of these types takes, by itself or as the value of an optional."""
    names = {name[9:-1] if name.startswith("optional(") else name for name in type_names}
    return frozenset(_DTYPE_OF_NAME[name] for name in names if name in _DTYPE_OF_NAME)


@lru_cache(maxsize=512)
def function_body(domain: str, op_type: str, opset: int) -> onnx.FunctionProto:
    """ONNX's own definition of an operator that has one, in that opset."""
    schema = _schema(domain, op_type, opset)
    versions = [version for version in schema.function_opset_versions if version <= opset]
    body = schema.get_function_with_opset_version(max(versions)) if versions else schema.function_body
    function = onnx.FunctionProto()
    function.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    return function


def check_arity(text: NodeText, signature: Signature) -> None:
    """Raises: UserError E303 for wrong numbers of inputs or outputs, and for a required input that is left out."""
    if not signature.min_inputs <= len(text.inputs) <= signature.max_inputs:
        allowed = f"{signature.min_inputs}..{signature.max_inputs}"
        raise UserError("E303", f"{text.op_type} takes {allowed} inputs and has {len(text.inputs)}", node=str(text))
    if "" in text.inputs:
        for place, name in enumerate(text.inputs):
            if not name and place not in signature.optional_inputs:
                wanted = signature.input_names[min(place, len(signature.input_names) - 1)]
                raise UserError("E303", f"{text.op_type} needs its input {place} ({wanted})", node=str(text))
    if not signature.min_outputs <= len(text.outputs) <= signature.max_outputs:
        allowed = f"{signature.min_outputs}..{signature.max_outputs}"
        raise UserError("E303", f"{text.op_type} has {allowed} outputs, not {len(text.outputs)}", node=str(text))


def check_attributes(text: NodeText, signature: Signature, types: dict[str, int]) -> None:
    """Raises: UserError E303 for unknown, wrong or missing attributes."""
    for name, type_ in types.items():
        wanted = signature.attribute_types.get(name)
        if wanted is None:
            raise UserError(
                "E303",
                f"{text.op_type}-{signature.since_version} has no attribute {name!r}",
                node=str(text),
                why=f"it has {', '.join(sorted(signature.attribute_types)) or 'none'}",
            )
        if wanted != type_:
            given, allowed = (onnx.AttributeProto.AttributeType.Name(code) for code in (type_, wanted))
            raise UserError(
                "E303", f"the attribute {name!r} of {text.op_type} is {allowed}, not {given}", node=str(text)
            )
    for name in signature.required:
        if name not in types:
            raise UserError("E303", f"{text.op_type} needs the attribute {name!r}", node=str(text))
