"""The search for a target's kernel for a node."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.irx.private_names import dtypes_of
from fx2onnx.irx.schema import GRAPH_BEARING
from fx2onnx.semantics.schemas import onnx_schema
from fx2onnx.targets.form import MICROSOFT, RuntimeKernel, Target, find

MODE = onnx.defs.OpSchema.AttrType
OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
NEUTRAL = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""Numbers that lists have where nothing is asked for."""
FLAGS = (0, 1)
DYNAMIC = "dynamic sizes"
"""The feature of a node none of whose input sizes is known before the run."""


def features_of(node: ir.Node, version: int) -> frozenset[str]:
    """The features of a node of the standard domain, in that opset: ``mode=cubic``, ``alpha`` where any number is meant, ``input
    roi``, ``output Indices``.
    """
    schema = onnx_schema(node.op_type, version)
    if schema is None:
        return frozenset()
    found = {
        f"{kind} {formal.name}"
        for kind, values, formals in (("input", node.inputs, schema.inputs), ("output", node.outputs, schema.outputs))
        for value, formal in zip(values, formals, strict=False)
        if value is not None and value.name and formal.option == OPTIONAL
    }
    for name, attribute in node.attributes.items():
        if isinstance(attribute, ir.Attr) and not attribute.is_ref() and name in schema.attributes:
            feature = _of_attribute(name, attribute.value, schema.attributes[name])
            found |= {feature} if feature else set()
    shapes = [value.shape for value in node.inputs if value is not None and value.const_value is None]
    if shapes and all(shape and not any(isinstance(size, int) for size in shape) for shape in shapes):
        found.add(DYNAMIC)
    return frozenset(found)


def _of_attribute(name: str, value: Any, formal: Any) -> str | None:
    default = onnx.helper.get_attribute_value(formal.default_value) if formal.default_value.name else None
    default = default.decode() if isinstance(default, bytes) else default
    if value == default or formal.type in (MODE.TENSOR, MODE.GRAPH, MODE.TYPE_PROTO):
        return None
    if isinstance(value, str):
        return None if formal.required else f"{name}={value}"  # one of a few words, except for Einsum's equation
    if isinstance(value, int):
        return f"{name}={value}" if value in FLAGS and default in FLAGS else name
    if isinstance(value, (list, tuple)) and name in NEUTRAL and set(value) <= {NEUTRAL[name]}:
        return None
    return name


Signature = tuple[tuple[str, ...], tuple[str, ...]]
"""dtypes of the inputs and of the outputs, as ONNX's type strings name them; empty where missing or unknown."""


STANDARD = ("", "ai.onnx.ml")
"""ONNX's own domains."""
KNOWN = (*STANDARD, MICROSOFT)
"""The domains whose operators runtimes are asked for."""


UNASKED = GRAPH_BEARING | {"Constant"}
"""Operators that hold values of any dtype."""


@cache
def word_of(dtype: ir.DataType | None) -> str:
    """``float``, ``bfloat16``, ... as in ``tensor(float)``."""
    return "" if dtype is None else dtype.name.lower()


def signature_of(node: ir.Node) -> Signature:
    """The dtypes around a node. Sequences and optionals count as what they hold."""
    return signature(dtypes_of(node.inputs), dtypes_of(node.outputs))


@lru_cache(maxsize=8192)
def signature(inputs: tuple[ir.DataType | None, ...], outputs: tuple[ir.DataType | None, ...]) -> Signature:
    """The words of dtypes."""
    return tuple(map(word_of, inputs)), tuple(map(word_of, outputs))


@lru_cache(maxsize=8192)
def knows(target: str, domain: str, op_type: str, opset: int, signature: Signature) -> bool | None:
    """Return whether the target runs the operator on these dtypes, in that version of its domain; None where nothing is known of it."""
    found = find(target)
    kernels = found.kernels(domain, op_type)
    if kernels is None or (not domain and opset < found.from_opset):
        return None
    failures = found.failures(domain, op_type)
    is_asked_all = found.fails is None or (bool(domain) and (domain not in KNOWN or found.knows(domain)))
    if not kernels and not is_asked_all:
        return False if failures else None
    schema = onnx_schema(op_type, opset, domain)
    signatures = [signature, *(with_dtype(signature, narrow, wide) for narrow, wide in found.casts.items())]
    if schema is None:  # of a domain that onnx does not know
        return any(_may_take(kernel, each) for kernel in kernels for each in signatures)
    bodies = found.functions(domain, op_type)
    every = [bound(schema, each) for each in signatures]
    if any(kernel.takes(schema.since_version, types) for kernel in kernels for types in every):
        return True
    if any(body.takes(opset, types) for body in bodies for types in every):
        return True
    if is_asked_all or any(failure.is_exactly(schema.since_version, every[0]) for failure in failures):
        return False
    return None


def has_kernel(target: str, domain: str, op_type: str, opset: int, signature: Signature) -> bool:
    """Return whether the target runs the operator on these dtypes; also where nothing is known."""
    return knows(target, domain, op_type, opset, signature) is not False


def has_kernel_for(target: Target, node: ir.Node, opset: int, signature: Signature, *, surely: bool = False) -> bool:
    """``has_kernel`` for a node, whose attributes may leave fewer dtypes than the operator has; ``surely``: not where nothing is
    known.
    """
    known = knows(target.name, node.domain, node.op_type, opset, signature)
    if known is False or (known is None and surely):
        return False
    narrower = {} if node.domain else target.lacks_in.get(f"::{node.op_type}", {})
    asked = features_of(node, opset) & narrower.keys() if narrower else ()
    if not asked:
        return True
    dtypes = {dtype for side in signature for dtype in side}
    return all(dtypes.isdisjoint(narrower[feature].split()) for feature in asked)


def has_limits(target: Target, domain: str, op_type: str) -> bool:
    """Return whether attributes or optional inputs of the operator decide, too, if the target runs it."""
    operator = f"::{op_type}"
    return not domain and (operator in target.lacks or operator in target.lacks_in)


def _may_take(kernel: RuntimeKernel, signature: Signature) -> bool:
    """Return whether nothing that is said of the kernel's types excludes the floats; which parameter an input has is not known."""
    known = frozenset().union(*kernel.types.values())
    floats = {dtype for dtypes in signature for dtype in dtypes} & {"float16", "bfloat16", "double"}
    return not known or floats <= known


def lacked(target: Target, node: ir.Node, opset: int) -> list[str]:
    """The features that the node has and the target's operator lacks: ``antialias=1``, ``input roi``."""
    missing = () if node.domain else target.lacks.get(f"::{node.op_type}", ())
    return sorted(features_of(node, opset).intersection(missing)) if missing else []


def bound(schema: Any, signature: Signature) -> dict[str, str]:
    """The dtype of each type parameter, and of each input and output by its name."""
    types: dict[str, str] = {}
    for parameters, dtypes in ((schema.inputs, signature[0]), (schema.outputs, signature[1])):
        for index, dtype in enumerate(dtypes):
            if dtype and parameters:
                parameter = parameters[min(index, len(parameters) - 1)]
                types.setdefault(parameter.type_str, dtype)
                types.setdefault(parameter.name, dtype)
    return types


def with_dtype(signature: Signature, old: str, new: str) -> Signature:
    """Every ``old`` as ``new``."""
    inputs, outputs = (tuple(new if dtype == old else dtype for dtype in dtypes) for dtypes in signature)
    return inputs, outputs


def is_asked(node: ir.Node) -> bool:
    """Return whether a kernel decides if the node runs: control flow holds values of any dtype."""
    return node.op_type not in UNASKED
