"""DequantizeLinear before the readers of a quantized weight. products.py has onnxruntime's own operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import remove_unread, replace
from fx2onnx.irx.values import Dims, dims_of, new_value
from fx2onnx.quantize.options import BLOCKS_FROM
from fx2onnx.quantize.places import WeightPlace
from fx2onnx.quantize.schemes import NF4
from fx2onnx.quantize.weights import RowsTensor, StackedWeight, codes_tensor, scales_tensor, zeros_tensor

D = ir.DataType


class Writer:
    """Adds nodes and weights to one graph, with names that are free."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = model.graph.opset_imports.get("", 0)
        self._taken = {value.name for value in (*self.graph.inputs, *self.graph.initializers.values())}
        self._taken |= {value.name for node in self.graph.all_nodes() for value in node.outputs}
        self._constants: dict[tuple[object, ...], ir.Value] = {}
        self.experts: dict[ir.Node, dict[int, QuantizedForm]] = {}
        """The weights of MoE nodes that are quantized already, by the input."""

    def free(self, wanted: str) -> str:
        """``wanted``, or with a number behind it."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def weight(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A weight under its tensor's name."""
        name = self.free(tensor.name or "weight")
        tensor.name = name
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def const(self, name: str, array: Any) -> ir.Value:
        """One value for all that ask for the same: of some hundred layers they would be a part of the file that shows."""
        array = np.asarray(array)
        key = (name, array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(ir.Tensor(array, name=name))
        return self._constants[key]

    def node(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        typed: tuple[ir.DataType, Dims],
        domain: str = "",
        unread: Sequence[tuple[ir.DataType, Dims]] = (),
        **attrs: Any,
    ) -> ir.Value:
        """The first output of a node before ``before``, from the same line of the user's; ``unread``: types of its others."""
        stem = before.outputs[0].name or before.name or op_type.lower()
        result = new_value(self.free(f"{stem}.{op_type.lower()}"), *typed)
        others = [new_value(self.free(f"{result.name}.unread"), *each) for each in unread]
        made = ir.node(op_type, inputs, attributes=attrs, domain=domain, outputs=[result, *others], name=result.name)
        made.metadata_props.update(before.metadata_props)
        assert before.graph is not None
        before.graph.insert_before(before, made)
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        return result


class TurnsWriter(Writer):
    """Adds nodes to the body of a Scan; a weight is one more input of it, of which each turn has a row."""

    def __init__(self, writer: Writer, scan: ir.Node) -> None:
        vars(self).update(vars(writer))
        self._scan = scan
        self._body = scan.attributes["body"].as_graph()
        self._made: list[ir.Node] = []

    def node(self, before: ir.Node, *args: Any, **attrs: Any) -> ir.Value:
        made = super().node(before, *args, **attrs)
        self._made += filter(None, [made.producer()])
        return made

    def weight(self, tensor: ir.TensorProtocol) -> ir.Value:
        if not isinstance(tensor, RowsTensor) or not isinstance(tensor.weight, StackedWeight):
            return super().weight(tensor)
        turns, sizes = tensor.weight.turns, tensor.shape.numpy()
        if tensor.size == tensor.per_row * tensor.weight.rows:
            sizes = (sizes[0] // turns, *sizes[1:])
        stacked = super().weight(tensor.of_sizes((turns, *sizes)))
        place = len(self._scan.inputs)
        self._scan.resize_inputs(place + 1)
        self._scan.replace_input_with(place, stacked)
        inner = new_value(self.free(f"{stacked.name}.turn"), tensor.dtype, sizes)
        self._body.inputs.append(inner)
        self._count(1)
        return inner

    def drop(self, value: ir.Value) -> None:
        """Take the input of the body, which nothing reads, from the Scan."""
        place = self._body.inputs.index(value)
        inputs = [*self._scan.inputs[:place], *self._scan.inputs[place + 1 :]]
        for index, each in enumerate(inputs):
            self._scan.replace_input_with(index, each)
        self._scan.resize_inputs(len(inputs))
        self._body.inputs.remove(value)
        self._count(-1)

    def skip_without_rows(self, product: ir.Node) -> None:
        """Let the product, and the nodes that make its weight, run in turns that have rows: ``If(Size(x) > 0, product, empty)``."""
        x, result, nodes = product.inputs[0], product.outputs[0], [*self._made, product]
        assert x is not None
        dtype, dims = dtype_of(result), dims_of(result)
        size = super().node(nodes[0], "Size", [x], (D.INT64, ()))
        has_rows = super().node(nodes[0], "Greater", [size, self.const("none", np.int64(0))], (D.BOOL, ()))
        sizes = (0, *(dim for dim in dims[1:] if isinstance(dim, int)))
        empty = ir.tensor(np.zeros(sizes, dtype.numpy()))
        constant = ir.node("Constant", [], {"value": empty}, outputs=[new_value(self.free("empty"), dtype, sizes)])
        chosen = super().node(product, "If", [has_rows], (dtype, dims))
        replace(result, chosen)
        self._body.remove(nodes)
        made = chosen.producer()
        assert made is not None
        for name, inner, output in (("then", nodes, result), ("else", [constant], constant.outputs[0])):
            branch = ir.Graph([], [output], nodes=inner, name=f"{chosen.name}.{name}")
            made.attributes[f"{name}_branch"] = ir.AttrGraph(f"{name}_branch", branch)

    def _count(self, more: int) -> None:
        name = "num_scan_inputs"
        self._scan.attributes[name] = ir.AttrInt64(name, self._scan.attributes[name].as_int() + more)


class QuantizedForm(Protocol):
    """The values of the file that hold a quantized weight."""

    codes: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    operator: str
    """The operator that reads them."""
    layout: str
    """``rows``: one after the other; ``blocks``: bytes [rows, blocks, ...]; ``high``: the same, the first of two codes in the high half."""


class Dequantized:
    """``DequantizeLinear(codes, scales)`` before each reader; 16 values by ``Gather(values, codes)``."""

    operator, layout = "DequantizeLinear", "rows"

    def __init__(self, writer: Writer, place: WeightPlace) -> None:
        self.writer, self.place, self.weight = writer, place, place.weight
        self.is_lookup = self.weight.scheme.kind == "nf4"
        self.is_whole = self._has_row_scales()
        name, rows = self.weight.name, self.weight.sizes[:-1]
        sizes = place.value.const_value.shape.numpy() if self._is_conv and self.is_whole else self.weight.sizes  # type: ignore[union-attr]
        if self.is_lookup:
            sizes = (self.weight.rows, self.weight.blocks, self.weight.block)
        self.codes = writer.weight(codes_tensor(self.weight, f"{name}.codes", tuple(sizes)))
        self.of_scales = rows if self.is_whole and not self._has_gather else (*rows, self.weight.blocks)
        if self.is_lookup:
            self.of_scales = (self.weight.rows, self.weight.blocks, 1)
        self.scales = writer.weight(scales_tensor(self.weight, f"{name}.scale", self.of_scales))
        self.zeros = None
        if self.weight.scheme.has_zeros:
            self.zeros = writer.weight(zeros_tensor(self.weight, f"{name}.zero", self.of_scales))
        self._turned: ir.Value | None = None
        self._plain: ir.Value | None = None

    def _has_row_scales(self) -> bool:
        """Return whether DequantizeLinear gets one scale a row, on one axis.

        From opset 21 on a row is one block instead before a product: onnxruntime (1.31) would turn such a pair into a MatMulNBits
        that rounds what is multiplied to 8 bits. It picks wrong zero points of 4 bits along an axis, too.
        """
        weight = self.weight
        is_row = weight.blocks == 1 and len(weight.sizes) == 2 and not self.is_lookup and not weight.scheme.has_zeros
        return is_row and (self._is_conv or self.writer.opset < BLOCKS_FROM)

    @property
    def _is_conv(self) -> bool:
        return self.place.readers[0][0] == "conv"

    @property
    def _keeps_dims(self) -> bool:
        """True if readers want the weight's own dims, of which the rows have others."""
        return self.place.readers[0][0] in ("conv", "recurrent")

    @property
    def _has_gather(self) -> bool:
        return any(way == "gather" for way, _ in self.place.readers)

    @property
    def dtype(self) -> ir.DataType:
        return self.weight.source.dtype

    def before(self, way: str, node: ir.Node) -> None:
        """Dequantized for a product or convolution."""
        value = self._turned_values(node) if way == "matmul" else self._values(node)
        node.replace_input_with(node.inputs.index(self.place.value), value)
        if way == "gemm turned":
            node.attributes["transB"] = ir.AttrInt64("transB", 1)

    def _turned_values(self, node: ir.Node) -> ir.Value:
        plain = self._values(node)
        if self._turned is None:
            perm = (1, 0) if len(self.weight.sizes) == 2 else (0, 2, 1)
            dims = tuple(self.weight.sizes[axis] for axis in perm)
            self._turned = self.writer.node(_first(self.place), "Transpose", [plain], (self.dtype, dims), perm=perm)
        return self._turned

    def _values(self, node: ir.Node) -> ir.Value:
        """The weight as numbers, made once for all readers."""
        if self._plain is None:
            self._plain = self._made(_first(self.place))
        return self._plain

    def _made(self, node: ir.Node) -> ir.Value:
        writer, weight = self.writer, self.weight
        final = tuple(self.place.value.const_value.shape.numpy()) if self._keeps_dims else weight.sizes  # type: ignore[union-attr]
        if self.is_lookup:
            indices = writer.node(node, "Cast", [self.codes], (D.INT32, self.codes.shape.numpy()), to=int(D.INT32))  # type: ignore[union-attr]
            found = self._looked_up(node, indices, self.scales, final)
            return found
        inputs = [self.codes, self.scales, *([self.zeros] if self.zeros is not None else [])]
        if self.is_whole and len(self.of_scales) == 1:
            dims = final if self._is_conv else weight.sizes
            whole = writer.node(node, "DequantizeLinear", inputs, (self.dtype, dims), axis=0)
            return whole if final == dims else self._reshaped(node, whole, final)
        axis = len(weight.sizes) - 1
        blocked = writer.node(
            node, "DequantizeLinear", inputs, (self.dtype, weight.sizes), axis=axis, block_size=weight.block
        )
        return blocked if final == weight.sizes else self._reshaped(node, blocked, final)

    def _reshaped(self, node: ir.Node, value: ir.Value, dims: Dims) -> ir.Value:
        target = self.writer.const("sizes", np.array(dims, np.int64))
        return self.writer.node(node, "Reshape", [value, target], (self.dtype, dims))

    def _looked_up(self, node: ir.Node, indices: ir.Value, scales: ir.Value, final: Dims) -> ir.Value:
        """The nf4 numbers: the table's values of the indices, times the scales, as ``final``."""
        dims = dims_of(indices)
        table = self.writer.const("nf4", NF4.astype(self.dtype.numpy()))
        values = self.writer.node(node, "Gather", [table, indices], (self.dtype, dims), axis=0)
        scaled = self.writer.node(node, "Mul", [values, scales], (self.dtype, dims))
        open_dims = [0 if not isinstance(dim, int) else dim for dim in final]
        target = self.writer.const("sizes", np.array(open_dims, np.int64))
        return self.writer.node(node, "Reshape", [scaled, target], (self.dtype, final))

    def gather(self, node: ir.Node) -> None:
        """Rows of codes are picked, then dequantized: the table stays in its bits except for codes of 4 bits, which
        Gather lacks."""
        writer, rows = self.writer, node.inputs[1]
        assert rows is not None
        columns, dims = self.weight.columns, dims_of(rows)
        wide = D.INT32 if self.is_lookup else GATHERED_AS.get(self.weight.scheme.dtype)
        codes, zeros = self.codes, self.zeros
        if wide is not None:
            codes = writer.node(node, "Cast", [codes], (wide, dims_of(codes)), to=int(wide))
            zeros = zeros and writer.node(node, "Cast", [zeros], (wide, dims_of(zeros)), to=int(wide))
        picked = [
            each and writer.node(node, "Gather", [each, rows], (dtype_of(each), (*dims, *dims_of(each)[1:])), axis=0)
            for each in (codes, self.scales, zeros)
        ]
        if self.is_lookup:
            assert picked[0] is not None
            assert picked[1] is not None
            found = self._looked_up(node, picked[0], picked[1], (*dims, columns))
        elif self.weight.scheme.dtype == D.FLOAT8E4M3FN:
            assert picked[0] is not None
            wide_codes = writer.node(node, "Cast", picked[:1], (self.dtype, (*dims, columns)), to=int(self.dtype))
            found = writer.node(node, "Mul", [wide_codes, picked[1]], (self.dtype, (*dims, columns)))
        else:
            inputs = picked if picked[2] is not None else picked[:2]
            found = writer.node(
                node, "DequantizeLinear", inputs, (self.dtype, (*dims, columns)), axis=len(dims), block_size=self.weight.block
            )  # fmt: skip
        replace(node.outputs[0], found)
        remove_unread([node])


GATHERED_AS = {D.INT4: D.INT8, D.UINT4: D.UINT8, D.FLOAT8E4M3FN: D.FLOAT16}
"""The dtype to which codes are converted for Gather, which does not take theirs; the conversion is exact."""


def _first(place: WeightPlace) -> ir.Node:
    """The reader that comes first in the graph."""
    readers = {node for _, node in place.readers}
    graph = place.readers[0][1].graph
    assert graph is not None
    return next(node for node in graph if node in readers)


def dtype_of(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
