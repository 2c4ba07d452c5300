"""Building ONNX nodes: ``op.LayerNormalization(x, weight, axis=-1)`` returns a typed value.

One ``Emit`` writes one graph in one opset. Every call is checked against the operator's schema in exactly that opset,
so nothing newer can slip in; a keyword is an attribute or an input, whichever that opset makes it (``axes`` of
``Squeeze`` is an attribute up to opset 12 and an input from 13 on).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.base.events import SpanRecorder
from fx2onnx.irx import precision, shapes
from fx2onnx.irx.arithmetic import emit_scalar
from fx2onnx.irx.builder import Accessors, Builder, Key
from fx2onnx.irx.private_names import new_node
from fx2onnx.irx.schema import DTYPE_SINCE, OpSchema, schema_of, without_keyword
from fx2onnx.irx.shapes.table import check_dtypes
from fx2onnx.irx.values import (
    Dims,
    Operand,
    OutputType,
    as_data_type,
    dims_of,
    dtype_of,
    lacks_data,
    new_value,
    set_known_sizes,
)
from fx2onnx.sizes.bounds import bounds
from fx2onnx.sizes.expr import Dim, DimLike, Scalar

INT64 = ir.DataType.INT64


if TYPE_CHECKING:
    from fx2onnx.irx.emit_ops import Operators
else:
    Operators = object


class Emit(Accessors, Operators):
    """Adds nodes to a ``Builder``; ``Accessors`` are what a translation may look at."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.opset = builder.opset
        self.result = ()
        self.origin: dict[str, str] = {}
        """Metadata for every node emitted now."""
        self.scope = ""
        """Prefix of node names: the module path."""

    if not TYPE_CHECKING:  # there the operators are those of ``Operators``, and no others

        def __getattr__(self, op_type: str) -> Callable[..., Any]:
            if not op_type[:1].isupper():
                raise AttributeError(op_type)

            def call(self: Emit, *inputs: Operand, **keywords: Any) -> Any:
                return self.node(op_type, *inputs, **keywords)

            setattr(Emit, op_type, call)  # not of this object, which would be in a cycle with it
            return functools.partial(call, self)

    @overload
    def node(
        self,
        op_type: str,
        *inputs: Operand,
        outputs: Literal[1] | tuple[OutputType] = 1,
        domain: str = "",
        **keywords: Any,
    ) -> ir.Value: ...
    @overload
    def node(
        self, op_type: str, *inputs: Operand, outputs: int, domain: str = "", **keywords: Any
    ) -> tuple[ir.Value, ...]: ...
    @overload
    def node(
        self, op_type: str, *inputs: Operand, outputs: Sequence[OutputType], domain: str = "", **keywords: Any
    ) -> Any: ...
    def node(
        self,
        op_type: str,
        *inputs: Operand,
        outputs: int | Sequence[OutputType] = 1,
        domain: str = "",
        **keywords: Any,
    ) -> Any:
        """Emit one node. Returns its value, or a tuple of values where ``outputs`` is not 1.

        ``outputs`` is a count, or the (dtype, dims) of each output where no shape rule knows them. Python numbers and
        lists among ``inputs`` become constants of the first tensor operand's dtype (lists: int64).
        """
        schema = schema_of(op_type, self.opset, domain)
        axes = keywords.get("axes")
        if isinstance(axes, list | tuple) and op_type.startswith("Reduce") and isinstance(inputs[0], ir.Value):
            rank = self.rank(inputs[0])  # onnxruntime keeps an empty axis that a negative number names
            keywords["axes"] = [axis + rank if axis < 0 else axis for axis in axes]
        operands, attrs = self._split_keywords(schema, inputs, keywords)
        values = [
            operand if operand is None or isinstance(operand, ir.Value) else self._as_value(operand, operands)
            for operand in operands
        ]
        dtypes = tuple([None if value is None else value.dtype or ir.DataType.UNDEFINED for value in values])
        if not precision.takes(op_type, self.opset, domain, dtypes):
            missing = precision.missing_half(schema, self.opset, dtypes)
            if missing is not None:
                return precision.in_float32(self, op_type, values, missing, outputs, attrs)
            check_dtypes(schema, values, dtypes, self.opset)
        if isinstance(outputs, int):
            call = shapes.ShapeCall(op_type, values, attrs, outputs, schema.input_names, self.builder.sizes)
            try:
                typed: Sequence[OutputType] = (
                    shapes.infer(call) if self.builder.spans is None else self._inferred(call, self.builder.spans)
                )
            except shapes.UnknownShape as unknown:
                if outputs != 1 or len(self.result) != 1:
                    step = f"give the type of each output: op.{op_type}(..., outputs=[(dtype, dims), ...])"
                    raise InternalError("E900", f"{op_type}: {unknown}", next=step) from unknown
                typed = self.result
            typed, is_one = typed[:outputs], outputs == 1
        else:
            typed, is_one = outputs, len(outputs) == 1
        name = op_type.lower()
        results = [new_value(self.builder.unique(name), dtype, dims) for dtype, dims in typed]
        self._append(domain, op_type, values, attrs, results, schema)
        return results[0] if is_one else tuple(results)

    @staticmethod
    def _inferred(call: shapes.ShapeCall, spans: SpanRecorder) -> Sequence[OutputType]:
        start_ns = time.perf_counter_ns()
        try:
            return shapes.infer(call)
        finally:
            spans.add("shapes", start_ns)

    def _append(
        self,
        domain: str,
        op_type: str,
        values: Sequence[ir.Value | None],
        attrs: dict[str, Any],
        results: Sequence[ir.Value],
        schema: OpSchema | None,
    ) -> None:
        attributes = [
            ir.Attr(name, schema.attribute_types[name], value)
            if schema is not None and name in schema.attribute_types
            else ir.convenience.convert_attribute(name, value)
            for name, value in attrs.items()
        ]
        name = self.builder.unique(f"{self.scope}/{op_type}" if self.scope else op_type)
        origin = dict(self.origin) if self.origin else None
        self.builder.nodes.append(new_node(domain, op_type, values, attributes, results, name, origin))

    def custom(
        self, domain: str, op_type: str, inputs: Sequence[ir.Value | None], outputs: Sequence[OutputType], **attrs: Any
    ) -> tuple[ir.Value, ...]:
        """A node of a custom domain, unchecked; the domain is imported at version 1."""
        self.builder.opset_imports.setdefault(domain, 1)
        results = [
            new_value(self.builder.unique(op_type.lower()), as_data_type(dtype), dims) for dtype, dims in outputs
        ]
        self._append(domain, op_type, inputs, attrs, results, None)
        return tuple(results)

    def _split_keywords(
        self, schema: OpSchema, inputs: Sequence[Operand], keywords: dict[str, Any]
    ) -> tuple[list[Operand], dict[str, Any]]:
        operands: list[Operand] = list(inputs)
        attrs: dict[str, Any] = {}
        names = schema.input_names
        for name, value in keywords.items():
            if value is None:
                continue
            if name in schema.attribute_types:
                attrs[name] = self._attribute(value)
            elif name in names:
                index = names.index(name)
                operands += [None] * (index + 1 - len(operands))
                operands[index] = value
            else:
                raise without_keyword(schema, name, self.opset)
        if not schema.is_variadic and len(operands) > len(names):
            raise UserError(
                "E202",
                f"{schema.op_type} takes {len(names)} inputs in opset {self.opset}, {len(operands)} are needed",
                next="export with a newer opset_version",
            )
        while operands and operands[-1] is None and len(operands) > schema.min_inputs:
            operands.pop()
        return operands, attrs

    @staticmethod
    def _attribute(value: Any) -> Any:
        if type(value) is int or type(value) is str or type(value) is float:
            return value
        if isinstance(value, ir.DataType | bool):
            return int(value)
        if isinstance(value, list | tuple):
            return [int(item) if isinstance(item, bool) else item for item in value]
        if type(value).__name__ == "dtype":  # PyTorch's
            return int(as_data_type(value))
        return value

    def _as_value(self, operand: npt.NDArray[Any] | float | Sequence[int], beside: Sequence[Operand]) -> ir.Value:
        if isinstance(operand, np.ndarray):
            return self.const(operand)
        if isinstance(operand, bool | int | float):
            like = next((other for other in beside if isinstance(other, ir.Value)), None)
            return self.const(operand, dtype_of(like) if like is not None else None)
        return self.sizes(operand)

    def const(self, data: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant of ``dtype`` (default: the data's own; float32 for Python floats, int64 for ints)."""
        if dtype is None and isinstance(data, float):
            dtype = ir.DataType.FLOAT
        array = np.asarray(data)
        if dtype is None:
            dtype = ir.DataType.from_numpy(array.dtype)
        dtype = as_data_type(dtype)
        target = dtype.numpy()
        if array.dtype != target:
            with np.errstate(over="ignore", invalid="ignore"):
                array = array.astype(target)
        return self.builder.constant(np.ascontiguousarray(array).reshape(array.shape), dtype)

    def sizes(self, dims: Iterable[Scalar]) -> ir.Value:
        """An int64 vector of sizes: a constant, or a short chain over the shapes of the inputs, shared."""
        dims = tuple(dims)
        if not any(isinstance(dim, Dim) for dim in dims):
            return self.const(np.array([int(dim) for dim in dims], dtype=np.int64))  # type: ignore[arg-type]
        key = Key("sizes", rest=dims)
        found = self.builder.emitted.get(key)
        if found is None:
            parts = [self._size_vector(dim) for dim in dims]
            found = parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)
            set_known_sizes(found, dims)  # type: ignore[arg-type]
            self.builder.emitted[key] = found
        return found

    def depends_on_data(self, dim: Scalar) -> bool:
        """Return whether data decides the size ``dim``, which is then 0 more often than that of an input."""
        return isinstance(dim, Dim) and not dim.symbols() <= self.builder.sizes.keys()

    def may_be_zero(self, dim: Scalar) -> bool:
        """Return whether the size ``dim`` may be 0 although no axis of an input is empty: data decides it, or something is
        subtracted.
        """
        if not isinstance(dim, Dim) or self.depends_on_data(dim):
            return isinstance(dim, Dim)
        if any(atom.depth for monomial in dim.terms for atom in monomial):
            return False  # a quotient, such as what strides leave, of sizes for which windows ask
        least, _ = bounds(dim, dict.fromkeys(dim.symbols(), (1, None)))
        return least is None or least < 1

    def size(self, dim: Scalar, dtype: ir.DataType = INT64) -> ir.Value:
        """A scalar (rank 0) of ``dtype`` holding ``dim``."""
        if not isinstance(dim, Dim):
            return self.const(dim, dtype)
        key = Key("size", rest=(dim, dtype))
        found = self.builder.emitted.get(key)
        if found is None:
            found = emit_scalar(self, dim)
            if dtype_of(found) != dtype:
                found = self.node("Cast", found, to=dtype)
            elif dtype == INT64:
                set_known_sizes(found, (dim,))
            self.builder.emitted[key] = found
        return found

    def _size_vector(self, dim: Scalar) -> ir.Value:
        if not isinstance(dim, Dim):
            return self.const(np.array([int(dim)], dtype=np.int64))
        key = Key("vector", rest=(dim,))
        found = self.builder.emitted.get(key)
        if found is None:
            symbol = dim.as_symbol()
            source = self.builder.symbols.get(symbol) if symbol is not None else None
            if source is not None and source[1] is not None:
                found = self.size_of_axis(source[0], source[1])
            else:
                found = self.node("Reshape", self.size(dim), np.array([1], dtype=np.int64))
            set_known_sizes(found, (dim,))
            self.builder.emitted[key] = found
        return found

    def size_of_axis(self, value: ir.Value, axis: int) -> ir.Value:
        """``value.shape[axis]`` as an int64 vector of one."""
        key = Key("axis", (value,), (axis,))
        found = self.builder.emitted.get(key)
        if found is None:
            if self.opset >= 15:
                found = self.node("Shape", value, start=axis, end=axis + 1)
            else:
                found = self.node("Gather", self.node("Shape", value), np.array([axis], dtype=np.int64), axis=0)
            set_known_sizes(found, (dims_of(value)[axis],))
            self.builder.emitted[key] = found
        return found

    def reshape(self, value: ir.Value, dims: Sequence[DimLike]) -> ir.Value:
        """``Reshape`` to known dims with the fewest nodes: symbolic sizes that stay in place are copied (0), one other
        is left to the operator (-1); only beyond that are sizes computed.
        """
        dims, source = tuple(dims), dims_of(value)
        if dims == source:
            return value
        if 0 in dims and self.opset < 14:
            return self.expand(self.const(0, dtype_of(value)), dims)
        if not any(isinstance(dim, Dim) for dim in dims):
            return self._reshaped(value, self.sizes(dims), dims, allowzero=1 if 0 in dims else None)
        if 0 not in dims:
            target = [0 if isinstance(d, Dim) and i < len(source) and source[i] == d else d for i, d in enumerate(dims)]
            open_axes = [axis for axis, dim in enumerate(target) if isinstance(dim, Dim)]
            if len(open_axes) <= 1:
                for axis in open_axes:
                    target[axis] = -1
                return self._reshaped(value, self.sizes(target), dims)
        is_zero = self.opset >= 14 and any(self.depends_on_data(dim) for dim in dims)
        return self._reshaped(value, self.sizes(dims), dims, allowzero=1 if is_zero else None)

    def _reshaped(self, value: ir.Value, target: ir.Value, dims: Dims, allowzero: int | None = None) -> ir.Value:
        return self.node("Reshape", value, target, allowzero=allowzero, outputs=((dtype_of(value), dims),))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``value`` as ``dtype``; nothing is emitted where it is already.

        Raises: UserError E202 where the opset has no such dtype yet.
        """
        own = dtype_of(value)
        if own is dtype or own == (dtype := as_data_type(dtype)):
            return value
        for kind in (dtype, own):
            if self.opset < DTYPE_SINCE.get(kind, 0):
                raise UserError(
                    "E202",
                    f"opset {self.opset} has no {kind.name.lower()}",
                    why=f"Cast knows it from opset {DTYPE_SINCE[kind]} on",
                    next=f"export with opset_version={DTYPE_SINCE[kind]} or newer, or cast the model to float32",
                )
        if value.const_value is not None and value.const_value.size <= 1 and not lacks_data(value):
            return self.const(value.const_value.numpy(), dtype)
        return self.node("Cast", value, to=dtype)

    def expand(self, value: ir.Value, dims: Sequence[DimLike]) -> ir.Value:
        """``value`` broadcast to ``dims``; nothing is emitted where it has them already.

        Sizes that ``value`` has already are asked for as 1, so that symbolic ones need not be computed.
        """
        dims, source = tuple(dims), dims_of(value)
        if source == dims:
            return value
        if 0 in dims and source:  # onnxruntime drops such a node, as if it changed nothing
            return self.expand(self.const(0, dtype_of(value)), dims)
        offset = len(dims) - len(source)
        target = [1 if axis >= offset and source[axis - offset] == dim else dim for axis, dim in enumerate(dims)]
        return self.node("Expand", value, self.sizes(target), outputs=((dtype_of(value), dims),))

    @overload
    def subgraph(
        self, name: str, inputs: Sequence[ir.Value], body: Callable[[Emit], Sequence[ir.Value]]
    ) -> ir.Graph: ...
    @overload
    def subgraph(self, name: str, inputs: Sequence[ir.Value], body: Callable[[Emit], ir.Value]) -> ir.Graph: ...
    def subgraph(self, name: str, inputs: Sequence[ir.Value], body: Callable[[Emit], Any]) -> ir.Graph:
        """A nested graph (for If, Loop, Scan) whose nodes ``body`` emits; constants go to the outer graph.

        ``body`` returns the outputs. A value of the outer scope that is returned as it is gets an Identity.
        """
        builder = self.builder
        outer_nodes, outer_cache = builder.nodes, builder.emitted
        builder.nodes, builder.emitted = [], dict(outer_cache)
        try:
            found = body(self)
            outputs = [found] if isinstance(found, ir.Value) else list(found)
            inside = {id(value) for node in builder.nodes for value in node.outputs}
            seen: set[int] = set()
            for index, value in enumerate(outputs):
                if id(value) not in inside or id(value) in seen:
                    outputs[index] = self.node("Identity", value)
                seen.add(id(outputs[index]))
            return ir.Graph(list(inputs), outputs, nodes=builder.nodes, name=name)
        finally:
            builder.nodes, builder.emitted = outer_nodes, outer_cache

    def subgraph_input(self, name: str, dtype: ir.DataType, dims: Sequence[DimLike]) -> ir.Value:
        """A new formal input for ``subgraph``."""
        return new_value(self.builder.unique(name), dtype, dims)
