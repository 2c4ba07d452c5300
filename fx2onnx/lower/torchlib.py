"""The last resort: onnxscript's torchlib, for overloads with neither an entry of ours nor a decomposition of PyTorch's.

Its functions are Python that calls ``op.Name(...)`` of opset 18. They run here with an evaluator that hands every call
to our own ``Emit``, which checks it against the schema of the opset asked for: what that opset lacks is an error, never
a newer node in the file. onnxscript is optional; without it there is no such resort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import IGNORED, TableEntry
from fx2onnx.base.errors import Fx2OnnxError, InternalError, UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import admits, schema_of
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.semantics.schemas import onnx_schema
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.operators import OpOverload

DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype"})
VARIADIC_OUTPUTS = frozenset({"If", "Loop", "Scan", "Split"})
WRITTEN_FOR = 18
"""The opset of torchlib's functions."""


@lru_cache(maxsize=1)
def _registry() -> Mapping[str, Any]:
    """torchlib's functions by ``aten::name.overload``; empty where onnxscript is not installed."""
    try:
        from onnxscript.function_libs.torch_lib import ops, registration  # noqa: F401
    except ImportError:
        return {}
    return dict(registration.default_registry.items())


def find(overload: Any, is_complex: bool) -> Any | None:
    """torchlib's function for an overload, or None."""
    if not isinstance(overload, OpOverload):
        return None
    name = overload._schema.name
    variant = overload._schema.overload_name
    known = _registry().get(f"{name}.{variant}" if variant else name)
    functions = () if known is None else known.complex if is_complex else known.overloads
    return functions[0] if functions else None


def entry_for(overload: Any, is_complex: bool) -> TableEntry | None:
    """torchlib's function as an entry of the table, or None."""
    function = find(overload, is_complex)
    if function is None:
        return None
    names = tuple(argument.name for argument in overload._schema.arguments)

    def translation(op: Emit, *values: Any) -> Any:
        return emit(op, overload, function, dict(zip(names, values, strict=True)))

    return TableEntry(overload, WRITTEN_FOR, translation, names, f"onnxscript's torchlib, {function.name}")


@dataclass(frozen=True)
class Origin:
    """The source of an onnxscript function, as errors name it, and the function that gives it the arguments of the
    schema."""

    name: str
    arguments: Callable[[Emit, OpOverload, Any, Mapping[str, Any]], tuple[Sequence[Any], dict[str, Any]]]
    opset: int
    """The opset that the function is written for."""
    step: str
    """The remedy that errors name."""


def emit(
    op: Emit, overload: OpOverload, function: Any, arguments: Mapping[str, Any], origin: Origin | None = None
) -> Any:
    """Emit an onnxscript function, torchlib's or the ``origin``'s, for one call; ``arguments`` holds every argument of the
    schema.

    Raises: UserError E202 where the opset lacks what the function uses, E203 where it does not take these arguments.
    """
    from onnxscript import evaluator

    origin = origin or TORCHLIB
    expected, op.result = op.result, ()
    arithmetic = ir.set_value_magic_handler(op)
    try:
        with evaluator.default_as(_Evaluator(op)):
            args, keywords = origin.arguments(op, overload, function, arguments)
            found = _called(op, function, args, keywords)
    except Fx2OnnxError as error:
        raise UserError(
            "E202",
            f"{overload} by {origin.name} cannot be expressed in opset {op.opset}",
            why=f"{origin.name} is written for opset {origin.opset}: {error.what}"
            + (f" ({error.why})" if error.why else ""),
            next=(f"export with opset_version={max(op.opset, origin.opset)}", f"or {origin.step.format(overload)}"),
        ) from error
    except Exception as cause:  # the function's code, and whatever it asks of a value that ours does not have
        raise UserError(
            "E203",
            f"{origin.name} does not translate this call of {overload}",
            why=f"{type(cause).__name__}: {cause}",
            next=origin.step.format(overload),
        ) from cause
    finally:
        op.result = expected
        ir.set_value_magic_handler(arithmetic)
    only = len(overload._schema.returns) == 1 and not isinstance(overload._schema.returns[0].type, torch.ListType)
    results = (
        (found[0],) if only and isinstance(found, tuple) else found if isinstance(found, tuple | list) else (found,)
    )
    for result, (dtype, dims) in zip(results, expected, strict=False):
        if dtype_of(result) != dtype or len(dims_of(result)) != len(dims):
            raise UserError(
                "E203",
                f"the form of {overload} by {origin.name} gives {dtype_of(result).name}{list(dims_of(result))}, "
                f"PyTorch {dtype.name}{list(dims)}",
                next=origin.step.format(overload),
            )
    return results[0] if only else results


def _called(op: Emit, function: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if hasattr(function, "function_ir") and not hasattr(function, "func"):
        return _inlined(op, function, args, keywords)
    return getattr(function, "func", function)(*args, **keywords)


def _by_name(
    op: Emit, overload: OpOverload, function: Any, given: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments that the function takes, by the schema's names."""
    taken = {parameter.name for parameter in function.op_signature.params}
    converted: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        name, value = argument.name, given[argument.name]
        default = argument.default_value if argument.has_default_value() else None
        if name not in taken:
            if name not in IGNORED and value != default:
                raise NotImplementedError(f"its function has no argument {name}")
            continue
        if value is None and default is None:
            continue
        converted[name] = as_operand(op, value)
    return (), converted


TORCHLIB = Origin(
    "torchlib", _by_name, WRITTEN_FOR, "write it: @fx2onnx.translates(torch.ops.{})   (docs/adding_an_op.md)"
)


def as_operand(op: Emit, value: Any) -> Any:
    """An argument as onnxscript's functions take it: dtypes as ONNX's numbers, symbolic sizes as values."""
    if isinstance(value, torch.dtype):
        return int(onnx_dtype(value))
    if isinstance(value, Dim):
        return op.size(value)
    if isinstance(value, list | tuple) and any(isinstance(item, Dim) for item in value):
        return op.sizes(value)
    return value


class _Evaluator:
    """onnxscript's calls as nodes of ours."""

    def __init__(self, op: Emit) -> None:
        self.op = op

    def eval_op(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if operator.opset.domain not in ("", "ai.onnx"):
            raise NotImplementedError(f"its function calls {operator.opset.domain}::{operator.name}")
        return _node(self.op, operator.name, args, dict(kwargs))

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if hasattr(function, "func") or getattr(function, "traceable", False):
            return (function.func if hasattr(function, "func") else function.function)(*args, **kwargs)
        return _inlined(self.op, function, args, kwargs)


def _node(op: Emit, op_type: str, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """One node, its types by our rules or by ONNX's own inference."""
    keywords = {name: item.value if isinstance(item, ir.Attr) else item for name, item in keywords.items()}
    if op_type == "Constant":
        return _constant(op, keywords)
    outputs = keywords.pop("_outputs", None) or _output_count(op_type, op.opset, keywords)
    for name in keywords.keys() & DTYPE_ATTRIBUTES:
        if keywords[name] is not None:
            keywords[name] = ir.DataType(keywords[name])
    if op_type == "Cast" and not isinstance(args[0], ir.Value):
        return op.const(np.asarray(args[0]), keywords["to"])
    operands = _operands(op, op_type, args)
    try:
        return op.node(op_type, *operands, outputs=outputs, **keywords)
    except InternalError:  # no shape rule of ours
        return op.node(op_type, *operands, outputs=_inferred(op, op_type, operands, keywords, outputs), **keywords)


def _operands(op: Emit, op_type: str, args: Sequence[Any]) -> list[ir.Value | None]:
    """Every operand as a value. Numbers take the dtype of the operands that the schema ties them to.

    Raises: NotImplementedError where tied operands differ in dtype, or one has a dtype that the operator does not take: the
    node would not load.
    """
    schema_of(op_type, op.opset)  # raises where the opset lacks the operator
    formal = onnx_schema(op_type, op.opset).inputs
    kinds = [formal[min(index, len(formal) - 1)].type_str for index in range(len(args))]
    tied: dict[str, ir.DataType] = {}
    for index, (kind, operand) in enumerate(zip(kinds, args, strict=True)):
        dtype = dtype_of(operand) if isinstance(operand, ir.Value) else None
        if dtype not in (None, ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and not admits(
            op_type, op.opset, index, dtype
        ):
            raise NotImplementedError(f"its {op_type} would get {dtype.name}")
        if isinstance(operand, ir.Value) and tied.setdefault(kind, dtype_of(operand)) != dtype_of(operand):
            raise NotImplementedError(f"its {op_type} would get {tied[kind].name} and {dtype_of(operand).name}")
    return [_as_value(op, operand, tied.get(kind)) for kind, operand in zip(kinds, args, strict=True)]


def _as_value(op: Emit, operand: Any, dtype: ir.DataType | None) -> ir.Value | None:
    if operand is None or isinstance(operand, ir.Value):
        return operand
    if isinstance(operand, ir.TensorProtocol):
        return op.const(operand.numpy(), operand.dtype)
    if isinstance(operand, list | tuple) and any(isinstance(item, ir.Value) for item in operand):
        parts = [item if isinstance(item, ir.Value) else op.const(np.int64(item)) for item in operand]
        return op.Concat(*(op.Reshape(part, [1]) for part in parts), axis=0)
    if isinstance(operand, list | tuple) and dtype is None:
        return op.sizes(operand)
    return op.const(operand, dtype)


def _constant(op: Emit, keywords: dict[str, Any]) -> ir.Value:
    kind, value = next((name, item) for name, item in keywords.items() if item is not None)
    if isinstance(value, onnx.TensorProto):
        return op.const(onnx.numpy_helper.to_array(value))
    if isinstance(value, ir.TensorProtocol):
        return op.const(value.numpy(), value.dtype)
    return op.const(np.asarray(value, np.float32) if "float" in kind else np.asarray(value))


def _output_count(op_type: str, opset: int, keywords: Mapping[str, Any]) -> int:
    """The number of outputs, as torch's own recorder counts: every output the schema names; of Split as many as asked
    for."""
    if op_type == "Split" and "num_outputs" in keywords:
        return int(keywords["num_outputs"])
    if op_type == "BatchNormalization" and not keywords.get("training_mode"):
        return 1
    return schema_of(op_type, opset).max_outputs if op_type not in VARIADIC_OUTPUTS else 1


def _inferred(
    op: Emit, op_type: str, values: Sequence[ir.Value | None], keywords: Mapping[str, Any], count: int
) -> list[tuple[ir.DataType, tuple[Any, ...]]]:
    """Output types by onnx's inference of this one node. Raises NotImplementedError where it knows no rank."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(values)]
    typed = {
        name: onnx.helper.make_tensor_type_proto(
            int(dtype_of(value)), [size if isinstance(size, int) else str(size) for size in dims_of(value)]
        )
        for name, value in zip(names, values, strict=True)
        if value is not None
    }
    known = {
        name: onnx.numpy_helper.from_array(value.const_value.numpy())
        for name, value in zip(names, values, strict=True)
        if value is not None and value.const_value is not None
    }
    outputs = [f"y{index}" for index in range(count)]
    node = onnx.helper.make_node(op_type, names, outputs, **keywords)
    schema = onnx_schema(op_type, op.opset)
    opsets, version = [onnx.helper.make_opsetid("", op.opset)], onnx.IR_VERSION
    result = onnx.shape_inference.infer_node_outputs(
        schema, node, typed, known, opset_imports=opsets, ir_version=version
    )
    return [_type_of(op, op_type, result.get(name)) for name in outputs]


def _type_of(op: Emit, op_type: str, found: Any) -> tuple[ir.DataType, tuple[Any, ...]]:
    if found is None or not found.tensor_type.HasField("shape"):
        raise NotImplementedError(f"the rank of {op_type}'s result is not known")
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else Dim.symbol(op.builder.unique("torchlib_size"))
        for dim in found.tensor_type.shape.dim
    )
    return ir.DataType(found.tensor_type.elem_type), dims


def _inlined(op: Emit, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A scripted function's nodes, emitted one by one. Raises NotImplementedError for nested graphs."""
    body = function.function_ir
    values: dict[Any, Any] = dict(zip(body.inputs, args, strict=False))
    values |= {formal: kwargs[formal.name] for formal in body.inputs if formal.name in kwargs}
    given = {name: attribute.value for name, attribute in body.attributes.items() if attribute.value is not None}
    given |= {name: value for name, value in kwargs.items() if name in body.attributes}
    given |= dict(zip(body.attributes, args[len(body.inputs) :], strict=False))
    for node in body:
        keywords = {}
        for name, attribute in node.attributes.items():
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                raise NotImplementedError(f"its function holds {node.op_type} with a nested graph")
            value = given.get(attribute.ref_attr_name) if attribute.is_ref() else attribute.value
            if value is not None:
                keywords[name] = value
        operands = [None if value is None else values.get(value) for value in node.inputs]
        if node.domain not in ("", "ai.onnx"):
            raise NotImplementedError(f"its function calls {node.domain}::{node.op_type}")
        result = _node(op, node.op_type, operands, keywords | {"_outputs": len(node.outputs)})
        values |= zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=True)
    results = [values[value] for value in body.outputs]
    return results[0] if len(results) == 1 else tuple(results)
