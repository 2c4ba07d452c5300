"""onnxruntime's own operators in the place of the readers of a quantized weight: MatMulNBits, MatMulBnb4, QMoE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import remove_unread, replace
from fx2onnx.irx.values import Dims, dims_of
from fx2onnx.optimize.rewrite import attributes
from fx2onnx.quantize.forms import QuantizedForm, Writer, dtype_of
from fx2onnx.quantize.places import DOMAIN, EXPERT_WEIGHTS, IN_INT8, WeightPlace
from fx2onnx.quantize.schemes import NF4
from fx2onnx.quantize.weights import block_codes_tensor, block_zeros_tensor, scales_tensor

D = ir.DataType


class BitsProduct:
    """``MatMulNBits(x, codes, scales)`` in the place of each product; ``MatMulBnb4`` for nf4."""

    operator = "MatMulNBits"

    def __init__(self, writer: Writer, place: WeightPlace) -> None:
        self.writer, self.weight, self.accuracy = writer, place.weight, place.accuracy
        self.is_lookup = self.weight.scheme.kind == "nf4"
        self.layout = "high" if self.is_lookup else "blocks"
        name, count = self.weight.name, self.weight.rows * self.weight.blocks
        self.has_gather = any(way == "gather" for way, _ in place.readers)
        codes = block_codes_tensor(
            self.weight, f"{name}.codes", is_high_first=self.is_lookup, is_flat=self.is_lookup and not self.has_gather
        )
        self.codes = writer.weight(codes)
        of_scales = (self.weight.rows, self.weight.blocks, 1) if self.has_gather else (count,)
        self.scales = writer.weight(scales_tensor(self.weight, f"{name}.scale", of_scales))
        self.zeros = None
        if self.weight.scheme.has_zeros:
            self.zeros = writer.weight(block_zeros_tensor(self.weight, f"{name}.zero", in_rows=self.has_gather))

    @property
    def dtype(self) -> ir.DataType:
        return self.weight.source.dtype

    def product(self, way: str, node: ir.Node) -> None:
        """Put the product in the place of MatMul, Gemm, or the products behind a Transpose."""
        nodes = [reader for reader, _ in node.outputs[0].uses()] if way == "turned" else [node]
        for each in nodes:
            self._in_place_of(each)
        remove_unread([node])

    def _in_place_of(self, node: ir.Node) -> None:
        writer, weight = self.writer, self.weight
        x, result = node.inputs[0], node.outputs[0]
        assert x is not None
        typed = (self.dtype, dims_of(result))
        scales = self._flat(node, self.scales) if self.has_gather else self.scales
        codes = self._flat(node, self.codes) if self.is_lookup and self.has_gather else self.codes
        rows = math.prod(weight.sizes[:-1])
        attrs: dict[str, Any] = {"K": weight.columns, "N": rows, "block_size": weight.block}
        if node.op_type == "Gemm" and node.attributes.get("transA") is not None and node.attributes["transA"].as_int():
            x = writer.node(node, "Transpose", [x], (self.dtype, dims_of(x)[::-1]), perm=(1, 0))
        if self.is_lookup:
            found = writer.node(node, "MatMulBnb4", [x, codes, scales], typed, DOMAIN, quant_type=1, **attrs)
        else:
            zeros = self._flat(node, self.zeros) if self.has_gather and self.zeros is not None else self.zeros
            inputs = [x, codes, scales, *([zeros] if zeros is not None else [])]
            attrs |= {"bits": weight.scheme.product_bits or weight.scheme.bits, "accuracy_level": self.accuracy}
            found = writer.node(node, "MatMulNBits", inputs, typed, DOMAIN, **attrs)
        bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
        if bias is not None:
            beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 1.0
            if beta != 1.0:
                scale = writer.const(f"{weight.name}.beta", np.array(beta, self.dtype.numpy()))
                bias = writer.node(node, "Mul", [bias, scale], (self.dtype, dims_of(bias)))
            found = writer.node(node, "Add", [found, bias], typed)
        replace(result, found)
        remove_unread([node])

    def _flat(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """The value as one axis: what the product takes, where a table is stored in rows."""
        target = self.writer.const("flat", np.array([-1], np.int64))
        flat = self.writer.node(node, "Reshape", [value, target], (dtype_of(value), (value.const_value.size,)))  # type: ignore[union-attr]
        return flat

    def gather(self, node: ir.Node) -> None:
        """Rows of bytes are picked, taken apart into two codes each, and scaled."""
        writer, weight, dtype = self.writer, self.weight, self.dtype
        rows = node.inputs[1]
        assert rows is not None
        dims: Dims = (*dims_of(rows), weight.blocks, weight.block)
        codes = self._picked_codes(node, self.codes, rows, weight.block)
        if self.is_lookup:
            table = writer.const("nf4", NF4.astype(dtype.numpy()))
            indices = writer.node(node, "Cast", [codes], (D.INT32, dims), to=int(D.INT32))
            steps = writer.node(node, "Gather", [table, indices], (dtype, dims), axis=0)
        else:
            wide = writer.node(node, "Cast", [codes], (dtype, dims), to=int(dtype))
            steps = writer.node(node, "Sub", [wide, self._picked_zeros(node, rows)], (dtype, dims))
        scales = writer.node(node, "Gather", [self.scales, rows], (dtype, (*dims[:-1], 1)), axis=0)
        scaled = writer.node(node, "Mul", [steps, scales], (dtype, dims))
        found = self._reshaped(node, scaled, (*dims[:-2], weight.columns))
        replace(node.outputs[0], found)
        remove_unread([node])

    def _picked_zeros(self, node: ir.Node, rows: ir.Value) -> ir.Value:
        """The zero points of the rows, [..., blocks, 1]; one number where all have the same."""
        dtype = self.dtype
        if self.zeros is None:
            return self.writer.const("zero", np.array(self.weight.scheme.offset, dtype.numpy()))
        codes = self._picked_codes(node, self.zeros, rows, 1)
        return self.writer.node(node, "Cast", [codes], (dtype, dims_of(codes)), to=int(dtype))

    def _picked_codes(self, node: ir.Node, table: ir.Value, rows: ir.Value, last: int) -> ir.Value:
        """The codes of the rows as bytes, [..., blocks, last]."""
        writer = self.writer
        dims: Dims = (*dims_of(rows), *dims_of(table)[1:])
        picked = writer.node(node, "Gather", [table, rows], (D.UINT8, dims), axis=0)
        if self.weight.scheme.bits == 8:
            return picked
        axis = writer.const("last", np.array([-1], np.int64))
        low = writer.node(node, "BitwiseAnd", [picked, writer.const("half", np.uint8(15))], (D.UINT8, dims))
        high = writer.node(
            node, "BitShift", [picked, writer.const("four", np.uint8(4))], (D.UINT8, dims), direction="RIGHT"
        )
        halves = [writer.node(node, "Unsqueeze", [each, axis], (D.UINT8, (*dims, 1))) for each in (low, high)]
        if self.is_lookup:
            halves.reverse()
        pairs = writer.node(node, "Concat", halves, (D.UINT8, (*dims, 2)), axis=-1)
        return self._reshaped(node, pairs, (*dims_of(rows), self.weight.blocks, last))

    def _reshaped(self, node: ir.Node, value: ir.Value, dims: Dims) -> ir.Value:
        target = [dim if isinstance(dim, int) else 0 for dim in dims]  # 0: the size that is there
        sizes = self.writer.const("sizes", np.array(target, np.int64))
        return self.writer.node(node, "Reshape", [value, sizes], (dtype_of(value), dims))


class Experts:
    """``QMoE(x, logits, codes, scales, ...)`` in the place of each ``MoE``, once both weights are codes."""

    operator, layout = "QMoE", "blocks"

    def __init__(self, writer: Writer, place: WeightPlace) -> None:
        self.writer, self.weight, self.value, self.accuracy = writer, place.weight, place.value, place.accuracy
        name, rows, self.zeros = self.weight.name, self.weight.sizes[:-1], None
        self.is_whole = self.weight.scheme.bits == 8
        self.codes = writer.weight(block_codes_tensor(self.weight, f"{name}.codes", in_rows=True))
        of_scales = rows if self.is_whole else (*rows, self.weight.blocks)
        self.scales = writer.weight(scales_tensor(self.weight, f"{name}.scale", of_scales))
        if self.weight.scheme.has_zeros:
            self.zeros = writer.weight(block_zeros_tensor(self.weight, f"{name}.zero", in_rows=True))

    def gather(self, node: ir.Node) -> None:
        """No table is picked from."""
        raise AssertionError(node.name)

    def product(self, way: str, node: ir.Node) -> None:
        """The node, where the other weight is done."""
        del way
        done = self.writer.experts.setdefault(node, {})
        index = node.inputs.index(self.value)
        done[index] = self
        node.replace_input_with(index, self.codes)
        if len(done) == len(EXPERT_WEIGHTS):
            self._in_place_of(node, *(done[each] for each in EXPERT_WEIGHTS))

    def _in_place_of(self, node: ir.Node, first: QuantizedForm, second: QuantizedForm) -> None:
        writer, result = self.writer, node.outputs[0]
        given = [*node.inputs, None, None, None][:6]
        attrs = attributes(node)
        is_scaled = attrs.pop("normalize_routing_weights", 0)
        attrs |= {"expert_weight_bits": self.weight.scheme.bits, "normalize_routing_weights": 1}
        attrs |= {} if self.is_whole else {"block_size": self.weight.block}
        attrs |= {"accuracy_level": self.accuracy} if self.accuracy == IN_INT8 else {}
        inputs = [*given[:2], first.codes, first.scales, given[3], second.codes, second.scales, given[5]]
        inputs += [None, None, None, first.zeros, second.zeros]
        while inputs[-1] is None:
            inputs.pop()
        typed = (dtype_of(result), dims_of(result))
        found = writer.node(node, "QMoE", inputs, typed, DOMAIN, **attrs)
        if not is_scaled:  # which QMoE always does
            found = writer.node(node, "Mul", [found, self._total(node, int(attrs.get("k", 1)))], typed)
        replace(result, found)
        remove_unread([node])

    def _total(self, node: ir.Node, k: int) -> ir.Value:
        """The sum of the chosen experts' shares, [tokens, 1]."""
        writer, logits = self.writer, node.inputs[1]
        assert logits is not None
        dtype, tokens = dtype_of(logits), dims_of(logits)[0]
        shares = writer.node(node, "Softmax", [logits], (dtype, dims_of(logits)), axis=-1)
        count = writer.const("choices", np.array([k], np.int64))
        dims: Dims = (tokens, k)
        largest = writer.node(node, "TopK", [shares, count], (dtype, dims), unread=[(D.INT64, dims)], axis=-1)
        axes = writer.const("last", np.array([-1], np.int64))
        return writer.node(node, "ReduceSum", [largest, axes], (dtype, (tokens, 1)), keepdims=1)
