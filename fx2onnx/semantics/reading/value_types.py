"""The types of a node's values: what ONNX's schema allows its inputs, and what its outputs are then.

A type is onnxruntime's name of it, such as ``tensor(float)``, and "" where it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.reading.nodes import NodeText
from fx2onnx.semantics.reading.program import Dims, Program, Slot, type_of_array
from fx2onnx.semantics.reading.weights import declared
from fx2onnx.semantics.schemas import Parameter, Signature
from fx2onnx.semantics.types import TENSOR_NAMES, TensorType, listed, type_name

OutputType: TypeAlias = Callable[[Mapping[str, Any], Sequence[str]], str]
"""A function of a node's attributes and the types of its inputs that gives the type of its first output."""


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
    """The type of the elements of a sequence (or an optional); "" for another type."""
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


_STRING, _INT64, _FLOAT = "tensor(string)", "tensor(int64)", "tensor(float)"
_TABLES = {"strings": _STRING, "int64s": _INT64, "floats": _FLOAT}


def _table_type(attrs: Mapping[str, Any], side: str) -> str:
    """The type of the one table of keys or of values that LabelEncoder has."""
    names = [name for name in (f"{side}_tensor", *(f"{side}_{each}" for each in _TABLES)) if name in attrs]
    if len(names) != 1:
        raise ValueError(f"it has {' and '.join(names) or f'no {side}'}; ONNX wants one table of {side}")
    return type_name(type_of_array(attrs[names[0]])) if names[0].endswith("tensor") else _TABLES[names[0].split("_")[1]]


def _encoded(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    if "classes_strings" in attrs:
        return _other(attrs, given)
    keys = _table_type(attrs, "keys")
    if given[0] and given[0] != keys:
        raise ValueError(f"the input is {given[0]} and the keys are {keys}; ONNX wants one type for both")
    return _table_type(attrs, "values")


def _other(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return {_STRING: _INT64, _INT64: _STRING}.get(given[0], "")


def _labels(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return _STRING if attrs.get("classlabels_strings") else _INT64


ML_OUTPUT_TYPES = {
    "LabelEncoder": _encoded,
    "CategoryMapper": _other,
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _labels),
}
"""Operators whose first output has a type that the schema does not derive from its inputs."""

_RULES: dict[str, Mapping[str, OutputType]] = {"": OUTPUT_TYPES, "ai.onnx.ml": ML_OUTPUT_TYPES}


Types: TypeAlias = Sequence[str]
"""Types by onnxruntime's names, "" where one is not known."""


@dataclass(frozen=True, slots=True)
class BodyRule:
    """``inputs`` of each body, and ``outputs`` of the node, from the types of the node's inputs and its attributes."""

    inputs: Callable[[Types, Mapping[str, Any]], Types]
    outputs: Callable[[Types, Sequence[Types], Mapping[str, Any]], Types]
    n_own_outputs: int = 0
    """Outputs of a body that are no outputs of the node."""
    since: int = 1
    """The first version of the operator that the rule is for: Scan-8 gives its body slices of two axes."""


def build_bodies(
    text: NodeText,
    signature: Signature | None,
    graphs: Mapping[str, Any],
    types: Types,
    attrs: Mapping[str, Any],
    build: Callable[[Any, str, Types], Program],
) -> tuple[dict[str, Program], tuple[str, ...]]:
    """The graphs of a node as programs, each made by ``build``, and the types of the node's outputs.

    Raises: UserError E303 for a body with other inputs or outputs than the operator gives and takes.
    """
    rule = _BODY_RULES.get((text.domain, text.op_type))
    if rule is None or signature is None or signature.since_version < rule.since:
        return {name: build(graph, name, ()) for name, graph in graphs.items()}, ("",) * len(text.outputs)
    given = rule.inputs(types, attrs)
    n_outputs = len(text.outputs) + rule.n_own_outputs
    bodies: dict[str, Program] = {}
    try:
        for name, graph in graphs.items():
            if len(graph.input) != len(given):
                raise ValueError(f"the {name} takes {len(graph.input)} inputs and is given {len(given)}")
            bodies[name] = build(graph, name, given)
            n_found = len(bodies[name].outputs)
            if n_found != n_outputs:
                raise ValueError(f"the {name} has {n_found} outputs, the node needs {n_outputs}")
        made = [[body.slots[index].type_name for index in body.outputs] for body in bodies.values()]
        return bodies, tuple(rule.outputs(types, made, attrs))
    except ValueError as error:
        raise UserError("E303", f"a body of {text.op_type} does not fit it", node=str(text), why=str(error)) from error
    except UserError as error:
        if error.node:
            raise
        raise UserError(error.code, error.what, node=str(text), why=error.why, next=error.next) from error


def names_of_body(graph: Any, known: Iterable[str], is_outside: Callable[[str], bool]) -> set[str]:
    """The names that a body defines, of which ``known`` are its inputs and initializers.

    Raises: UserError E303 for a node's output that a graph around the body has defined before.
    """
    names = [name for node in graph.node for name in node.output if name]
    for name in names:
        if is_outside(name):
            what = f"{name!r} has two definitions: in the body {graph.name!r} and in a graph around it"
            raise UserError("E303", what)
    return {*known, *names}


def same_type(one: str, other: str) -> bool:
    """Return whether two types may be those of one value: an optional may hold what it is an optional of."""
    return not one or not other or without_optional(one) == without_optional(other)


def _if_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    one, other = bodies
    for place, (first, second) in enumerate(zip(one, other, strict=True)):
        if not same_type(first, second):
            raise ValueError(f"output {place} is {first} in one branch and {second} in the other")
    return [first or second for first, second in zip(one, other, strict=True)]


def _loop_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    condition, *rest = bodies[0]
    if not same_type(condition, "tensor(bool)"):
        raise ValueError(f"its body's first output is the condition to go on, and is {condition}")
    _check_carried(given[2:], rest)
    return rest


def _scan_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    _check_carried(given[: max(len(given) - int(attrs["num_scan_inputs"]), 0)], bodies[0])
    return bodies[0]


def _check_carried(before: Types, after: Types) -> None:
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        if not same_type(old, new):
            raise ValueError(f"the carried value {place} is {old} before an iteration and {new} after it")


def _map_inputs(given: Types, attrs: Mapping[str, Any]) -> Types:
    return [element_of(given[0]), *(element_of(type_) or type_ for type_ in given[1:])]


_BODY_RULES: dict[tuple[str, str], BodyRule] = {
    ("", "If"): BodyRule(lambda given, attrs: (), _if_outputs),
    ("", "Loop"): BodyRule(
        lambda given, attrs: ("tensor(int64)", "tensor(bool)", *given[2:]), _loop_outputs, n_own_outputs=1
    ),
    ("", "Scan"): BodyRule(lambda given, attrs: given, _scan_outputs, since=9),
    ("", "SequenceMap"): BodyRule(
        _map_inputs, lambda given, bodies, attrs: [f"seq({type_})" if type_ else "" for type_ in bodies[0]]
    ),
}


def agree(slot: Slot, name: str, type_: Any, text: NodeText | None = None) -> None:
    """Note the type that the graph declares. Raises: UserError E303 where the value has another."""
    if type_ is None:
        return
    is_declared = type_name(type_)
    if not slot.type_name:
        slot.type_name = is_declared
    elif slot.type_name != is_declared:
        raise UserError(
            "E303",
            f"{name!r} is declared {is_declared} and is {slot.type_name}",
            node=str(text or ""),
            why="the types of the operator's inputs, its schema and its attributes decide what it makes",
            next="declare that type, or put a Cast before it",
        )


def check_default(name: str, type_: Any, shape: Dims | None, tensor: Any) -> None:
    """Raises: UserError E303 for an initializer that is not what the input of its name is declared to be."""
    dtype, dims = declared(tensor, f"initializer {name!r}")
    found = type_name(TensorType(dtype))
    if type_ is not None and type_name(type_) != found:
        raise UserError("E303", f"the input {name!r} is declared {type_name(type_)}, and its initializer is {found}")
    if shape is None:
        return
    is_same = len(dims) == len(shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(dims, shape, strict=True)
    )
    if not is_same:
        what = f"the input {name!r} is declared of shape {list(shape)}, and its initializer is of {list(dims)}"
        raise UserError("E303", what)
