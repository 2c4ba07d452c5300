"""The types of a node's values: what ONNX's schema allows its inputs, and what its outputs are then.

A type is onnxruntime's name of it, such as ``tensor(float)``, and "" where it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.runner.feeds import listed
from fx2onnx.runner.ml_value_types import ML_OUTPUT_TYPES
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.schemas import Parameter, Signature
from fx2onnx.runner.types import TENSOR_NAMES, type_name
from fx2onnx.runner.typing_protos import type_of_array

OutputType: TypeAlias = Callable[[Mapping[str, Any], Sequence[str]], str]
"""From a node's attributes and the types of its inputs to the type of its first output."""


def types_made(
    text: NodeText, signature: Signature, given: tuple[str, ...], attrs: Mapping[str, Any]
) -> tuple[str, ...]:
    """The types of all outputs of a node.

    Raises: UserError E303 for inputs of types that the operator does not take, or not together.
    """
    try:
        made = _made_by_schema(signature, given, len(text.outputs))
        rule = _RULES.get(text.domain, {}).get(text.op_type)
        if rule is not None:
            first = rule(attrs, given)
            if first and first not in signature.outputs[0].types:
                raise ValueError(f"it would make {first}, which ONNX does not allow")
            made = (first, *made[1:])
        elif text.op_type == "LayerNormalization" and not text.domain:
            made = (made[0], *[tensor_of(attrs.get("stash_type", 1))] * (len(made) - 1))
    except ValueError as error:
        what = f"{text.op_type} cannot have values of these types"
        raise UserError("E303", what, node=str(text), why=str(error)) from error
    return made


@lru_cache(maxsize=1 << 14)
def _made_by_schema(signature: Signature, given: tuple[str, ...], n_outputs: int) -> tuple[str, ...]:
    """The types of the outputs by those of the inputs.

    Raises: ValueError for a type that an input may not have, and for two where the schema has one.
    """
    bound: dict[str, int] = {}
    for place, type_ in enumerate(given):
        if not type_:
            continue
        parameter = _parameter(signature.inputs, place)
        if type_ not in parameter.types:
            allowed = listed(sorted(parameter.types, key=lambda each: (not each.startswith("tensor("), each)))
            raise ValueError(f"input {place} ({parameter.name}) is {type_}; ONNX allows {allowed}")
        first = bound.setdefault(parameter.variable, place) if parameter.variable else place
        if given[first] != type_:
            other = _parameter(signature.inputs, first).name
            raise ValueError(
                f"input {place} ({parameter.name}) is {type_} and input {first} ({other}) {given[first]}; "
                f"ONNX wants one type, {parameter.variable}, for both"
            )
    return tuple(_output_type(_parameter(signature.outputs, place), bound, given) for place in range(n_outputs))


def _parameter(parameters: Sequence[Parameter], place: int) -> Parameter:
    return parameters[min(place, len(parameters) - 1)]


def _output_type(parameter: Parameter, bound: Mapping[str, int], given: Sequence[str]) -> str:
    if parameter.variable in bound:
        return given[bound[parameter.variable]]
    return next(iter(parameter.types)) if len(parameter.types) == 1 else ""


_NAME_OF_CODE: dict[int | str, str] = {
    code: f"tensor({name})" for dtype, name in TENSOR_NAMES.items() for code in (int(dtype), dtype.name)
}


def tensor_of(code: int | str) -> str:
    """The tensor type of an element type's number, or of its name as ``Cast`` of opsets 1-5 has it. Raises: ValueError for no such number."""
    name = _NAME_OF_CODE.get(code)
    if name is None:
        raise ValueError(f"{code} is no element type that ONNX knows")
    return name


def element_of(type_: str, form: str = "seq") -> str:
    """What a sequence (or an optional) holds; "" for another type."""
    return type_[len(form) + 1 : -1] if type_.startswith(f"{form}(") else ""


def without_optional(type_: str) -> str:
    return element_of(type_, "optional") or type_


def _by_attribute(name: str, default: int | None = None) -> OutputType:
    """The element type of that attribute; without one ``default``, or the type of the first input."""

    def rule(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
        if name in attrs:
            return tensor_of(attrs[name])
        return tensor_of(default) if default is not None else given[0] if given else ""

    return rule


def _filled(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return type_name(type_of_array(attrs["value"])) if "value" in attrs else "tensor(float)"


def _quantized(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    zero_point = given[2] if len(given) > 2 else ""
    asked = tensor_of(attrs["output_dtype"]) if attrs.get("output_dtype") else ""
    if zero_point and asked and zero_point != asked:
        raise ValueError(f"output_dtype asks for {asked}, and the zero point is {zero_point}")
    return asked or zero_point or ("tensor(uint8)" if len(given) < 3 else "")


def _dequantized(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return tensor_of(attrs["output_dtype"]) if attrs.get("output_dtype") else given[1]


def _sequence_of_first(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return f"seq({given[0]})" if given and given[0] else ""


def _inserted(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    held = element_of(given[0])
    if held and given[1] and held != given[1]:
        raise ValueError(f"the sequence holds {held}, and the value to insert is {given[1]}")
    return given[0]


def _optional(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    held = given[0] if given else type_name(attrs["type"]) if "type" in attrs else ""
    return f"optional({held})" if held else ""


OUTPUT_TYPES: dict[str, OutputType] = {
    **dict.fromkeys(("Cast", "BitCast"), _by_attribute("to")),
    **dict.fromkeys(("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"), _by_attribute("dtype")),
    **dict.fromkeys(("RandomNormal", "RandomUniform"), _by_attribute("dtype", 1)),
    "Multinomial": _by_attribute("dtype", 6),
    **dict.fromkeys(
        ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), _by_attribute("output_datatype", 1)
    ),
    "ConstantOfShape": _filled,
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _dequantized,
    "SequenceEmpty": lambda attrs, given: f"seq({tensor_of(attrs.get('dtype', 1))})",
    **dict.fromkeys(("SequenceConstruct", "SplitToSequence"), _sequence_of_first),
    "SequenceInsert": _inserted,
    **dict.fromkeys(("SequenceAt", "ConcatFromSequence"), lambda attrs, given: element_of(given[0])),
    "Optional": _optional,
    "OptionalGetElement": lambda attrs, given: without_optional(given[0]),
}
"""Operators of the standard domain whose first output has a type that the schema does not derive from its inputs."""

_RULES: dict[str, Mapping[str, OutputType]] = {"": OUTPUT_TYPES, "ai.onnx.ml": ML_OUTPUT_TYPES}
