"""What the runner asks of ``onnx.defs``: versions, attribute types, arity, function bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import onnx

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.base.parameter_types import types_of
from fx2onnx.runner.element_types import Dtype
from fx2onnx.runner.enumerations import FLAGS, POSITIVE, VALUES
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.types import TENSOR_NAMES

NEWEST_OPSET = onnx.defs.onnx_opset_version()
STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview", "ai.onnx.training")


Allowed: TypeAlias = frozenset[str] | frozenset[int] | range
_ZERO_OR_ONE = frozenset({0, 1})
_POSITIVE = range(1, 1 << 63)
_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input or output, the last also for all that follow. Inputs and outputs of one ``variable`` have one type."""

    name: str
    variable: str
    """Such as "T"; "" where the type is fixed, or may differ between the values of a variadic parameter."""
    types: frozenset[str]
    is_optional: bool


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What a node of one operator version may look like. Equal only to itself: there is one of each, a key of caches."""

    since_version: int
    is_deprecated: bool
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attribute_types: dict[str, int]
    required: tuple[str, ...]
    has_function: bool
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    values: dict[str, Allowed]
    """What an attribute may be, for those that name one of a few things or are positive."""
    input_dtypes: tuple[frozenset[Dtype], ...]
    """What arrays each input may be; the last entry is for all that follow, too."""


def _schema(domain: str, op_type: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


_schema("", "Identity", 1)  # onnx registers all schemas at the first question: once a process, not in a session's time


@lru_cache(maxsize=64)
def newest_opset(domain: str) -> int | None:
    """The newest opset of a domain of ONNX that the installed onnx knows; None for another domain."""
    if domain not in STANDARD_DOMAINS:
        return None
    newest = {"": onnx.defs.onnx_opset_version, "ai.onnx.ml": onnx.defs.onnx_ml_opset_version}.get(domain)
    if newest is not None:
        return int(newest())
    return max((each.since_version for each in onnx.defs.get_all_schemas() if each.domain == domain), default=None)


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
        schema.deprecated,
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        schema.has_function,
        tuple(_parameter(parameter, schema) for parameter in schema.inputs),
        tuple(_parameter(parameter, schema) for parameter in schema.outputs),
        {name: found for name in schema.attributes if not domain and (found := _allowed(op_type, name))},
        tuple(_dtypes(types_of(parameter, schema)) for parameter in schema.inputs),
    )


def _allowed(op_type: str, name: str) -> Allowed:
    if (op_type, name) in POSITIVE:
        return _POSITIVE
    return _ZERO_OR_ONE if (op_type, name) in FLAGS else VALUES.get((op_type, name), frozenset())


def _parameter(parameter: Any, schema: Any) -> Parameter:
    name = parameter.type_str
    is_shared = parameter.is_homogeneous and any(each.type_param_str == name for each in schema.type_constraints)
    is_optional = parameter.option == _OPTIONAL
    return Parameter(parameter.name, name if is_shared else "", types_of(parameter, schema), is_optional)


_DTYPE_OF_NAME = {f"tensor({name})": dtype.numpy() for dtype, name in TENSOR_NAMES.items()}


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
    """Raises: UserError E303 for wrong numbers of inputs or outputs."""
    if not signature.min_inputs <= len(text.inputs) <= signature.max_inputs:
        allowed = f"{signature.min_inputs}..{signature.max_inputs}"
        raise UserError("E303", f"{text.op_type} takes {allowed} inputs and has {len(text.inputs)}", node=str(text))
    if not signature.min_outputs <= len(text.outputs) <= signature.max_outputs:
        allowed = f"{signature.min_outputs}..{signature.max_outputs}"
        raise UserError("E303", f"{text.op_type} has {allowed} outputs, not {len(text.outputs)}", node=str(text))


def check_present(text: NodeText, signature: Signature, left_out: Iterable[int]) -> None:
    """Raises: UserError E303 where one of these inputs, which are not given, is required."""
    for place in left_out:
        parameter = signature.inputs[min(place, len(signature.inputs) - 1)]
        if not parameter.is_optional:
            raise UserError("E303", f"{text.op_type} needs its input {place} ({parameter.name})", node=str(text))


def check_left_out(text: NodeText, signature: Signature, place: int) -> None:
    """Raises: UserError E303 where an output without a name is not optional."""
    if place < signature.min_outputs:
        what = f"{text.op_type} needs a name for its output {place} ({signature.outputs[place].name})"
        raise UserError("E303", what, node=str(text))


def check_attributes(text: NodeText, signature: Signature, given: Mapping[str, Any]) -> None:
    """Raises: UserError E303 for unknown, wrong or missing attributes."""
    for name, attribute in given.items():
        wanted = signature.attribute_types.get(name)
        if wanted is None:
            raise UserError(
                "E303",
                f"{text.op_type}-{signature.since_version} has no attribute {name!r}",
                node=str(text),
                why=f"it has {', '.join(sorted(signature.attribute_types)) or 'none'}",
            )
        if wanted != attribute.type:
            is_type, allowed = (onnx.AttributeProto.AttributeType.Name(code) for code in (attribute.type, wanted))
            raise UserError(
                "E303", f"the attribute {name!r} of {text.op_type} is {allowed}, not {is_type}", node=str(text)
            )
        if name in signature.values:
            _check_value(text, attribute, signature.values[name])
    for name in signature.required:
        if name not in given:
            raise UserError("E303", f"{text.op_type} needs the attribute {name!r}", node=str(text))


def _check_value(text: NodeText, attribute: Any, allowed: Allowed) -> None:
    if attribute.type == onnx.AttributeProto.STRING:
        values = [attribute.s.decode("utf-8", "replace")]
    else:
        values = attribute.ints if attribute.type == onnx.AttributeProto.INTS else [attribute.i]
    for value in values:
        if value not in allowed:
            said = repr(value[:40]) if isinstance(value, str) else str(value)
            raise UserError(
                "E303",
                f"the attribute {attribute.name!r} of {text.op_type} is {said}, which ONNX does not know",
                node=str(text),
                why="it must be above 0"
                if allowed is _POSITIVE
                else f"it may be {', '.join(map(str, sorted(allowed)))}",
            )


def deprecated(text: NodeText, signature: Signature) -> UserError:
    """The error for an operator that ONNX has taken out of an opset."""
    return UserError(
        "E303",
        f"{text.op_type} may not be used from opset {signature.since_version} on",
        node=str(text),
        why="ONNX calls it deprecated there",
        next="use the operator that took its place, or convert the model to an older opset",
    )


def no_kernel(text: NodeText, version: int) -> UserError:
    """The error for an operator that the runner cannot compute."""
    domain, op_type = text.domain, text.op_type
    if not op_type:
        return UserError("E303", "a node does not say its operator", node=str(text), why="NodeProto.op_type is empty")
    known = signature_of(domain, op_type, NEWEST_OPSET) if not domain else None
    if known is not None:
        why = f"{op_type} is not in opset {version}; it came with opset {known.since_version} or was changed then"
    else:
        why = f"no kernel, no function body and no model-local function for {domain or 'ai.onnx'}::{op_type}"
    why = "; ".join([why, *plugins.import_all(plugins.KERNELS)])
    return UserError(
        "E402",
        f"the runner has no kernel for {domain + '::' if domain else ''}{op_type}, opset {version}",
        node=str(text),
        why=why,
        next=f'register one: @fx2onnx.runner.kernel("{op_type}", domain="{domain}")',
    )
