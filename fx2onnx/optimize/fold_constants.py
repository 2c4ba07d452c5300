"""Nodes whose operands are all constant -> initializers, under a byte budget; ``If`` with a constant condition -> the branch taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import can_replace, graphs_of, graphs_with_rows, remove_unread, replace, replace_inputs
from fx2onnx.irx.private_names import is_read, nodes_of_own_kind, use_count
from fx2onnx.irx.schema import GRAPH_BEARING, is_random
from fx2onnx.irx.values import dims_of, noted_sizes, set_type
from fx2onnx.optimize.rewrite import attribute, dims_or_none, is_constant, is_float, is_rounded, static_dims
from fx2onnx.optimize.weights import is_literal, lacks_data
from fx2onnx.semantics import folding
from fx2onnx.semantics.folding import EXACT, LAST_BIT, Function, Inputs
from fx2onnx.semantics.types import Array
from fx2onnx.sizes.expr import Dim


def fold_branches(model: ir.Model) -> int:
    """Inline the branch of every If whose condition is an initializer. Returns how many.

    Requires:  names that are unique in the whole model, weights in the main graph.
    """
    folded, again = 0, True
    while again:
        again = False
        for graph in list(graphs_of(model)):
            for node in list(graph):
                if node.op_type == "If" and not node.domain and _inline(graph, node):
                    folded, again = folded + 1, True
    return folded


def _inline(graph: ir.Graph, node: ir.Node) -> bool:
    condition = node.inputs[0]
    if condition is None or not is_constant(condition) or condition.const_value is None:
        return False
    chosen = "then_branch" if bool(np.asarray(condition.const_value.numpy()).reshape(-1)[0]) else "else_branch"
    branch = node.attributes[chosen].as_graph()
    if branch.initializers:
        return False
    results = list(branch.outputs)
    inner = list(branch)
    branch.outputs.clear()
    branch.remove(inner)
    graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=True):
        if not can_replace(old, new):
            kept = ir.Node("", "Identity", [new], name=f"{node.name}/{old.name}")
            kept.outputs[0].name = f"{old.name}.taken"
            kept.outputs[0].type, kept.outputs[0].shape = old.type, old.shape
            graph.insert_before(node, kept)
            new = kept.outputs[0]
        replace(old, new)
    remove_unread([node])
    return True


FOLDABLE_DTYPES = frozenset(
    {
        *(ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8),
        *(ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8, ir.DataType.UINT16),
        *(ir.DataType.UINT32, ir.DataType.UINT64),
    }
)
"""The dtypes for which NumPy's arithmetic is ONNX's."""


@dataclass(frozen=True)
class FoldBudget:
    """Bytes that folding may take. A value or source beyond ``value_bytes`` is not touched; all that is added to the
    file stays below ``total_bytes``.
    """

    value_bytes: int = 256 * 1024
    total_bytes: int = 1024 * 1024


DEFAULT_BUDGET = FoldBudget()

_NEVER_COMPUTED = GRAPH_BEARING | {"Identity", "Constant", "Dropout", "DequantizeLinear", "Tile", "Expand"}
"""Operators that other passes remove, that make more bytes of less, or that run graphs."""


class Folder:
    """One pass in order. Values are computed at once; only those that a remaining node reads become initializers."""

    def __init__(
        self, model: ir.Model, budget: FoldBudget = DEFAULT_BUDGET, *, fold_weights: bool = False,
        functions: Mapping[str, Function] | None = None, by_any_kernel: bool = False,
    ) -> None:  # fmt: skip
        self.model = model
        self.budget = budget
        self.fold_weights = fold_weights
        self.functions = functions
        self.by_any_kernel = by_any_kernel
        self._released: set[ir.Value] = set()
        self.arrays: dict[ir.Value, Array | None] = {}
        """Numbers of the values looked at; None for those that are not constant."""
        self.nodes: list[ir.Node] = []

    def run(self) -> int:
        """Returns how many values became initializers."""
        count = self.constant_nodes()
        for _, rows in graphs_with_rows(self.model):
            for node, domain, op_type, inputs, outputs in rows:
                if len(outputs) == 1 and not domain:
                    self._node(node, op_type, inputs, outputs[0])
        folded = set(self.nodes)
        left_bytes, unread = self.budget.total_bytes, []
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for node in reversed(self.nodes) if self.by_any_kernel else self.nodes:
            value = node.outputs[0]
            array = self.arrays[value]
            stays = [user for user, _ in value.uses() if user not in folded]
            if array is None or value.is_graph_output() or not stays:
                if value.is_graph_output() and self.by_any_kernel:
                    folded.discard(node)
                continue
            added_bytes = max(0, array.nbytes - (self._release(node, folded) if self.by_any_kernel else 0))
            if added_bytes > left_bytes:
                if self.by_any_kernel:  # it stays, and its operands, which come next, are what can be folded
                    folded.discard(node)
                continue
            left_bytes -= added_bytes
            dtype = value.dtype if value.dtype is not None else ir.DataType.from_numpy(array.dtype)
            replaced.append((value, self._initializer(value, ir.Tensor(array, dtype=dtype, name=value.name))))
            unread.append(node)
            count += 1
        replace_inputs(replaced)
        remove_unread(unread)
        return count

    def _release(self, node: ir.Node, folded: set[ir.Node]) -> int:
        """Bytes of the weights that nobody reads any more where ``node`` is folded; each counts once."""
        pending, seen, freed_bytes = [node], {node}, 0
        while pending:
            for value in pending.pop().inputs:
                producer = None if value is None else value.producer()
                if producer is not None and producer not in seen:
                    seen.add(producer)
                    pending.append(producer)
                tensor = None if value is None else value.const_value
                if value is None or tensor is None or value in self._released or value.is_graph_output():
                    continue
                if all(user in folded for user, _ in value.uses()):
                    self._released.add(value)
                    freed_bytes += tensor.nbytes
        return freed_bytes

    def _node(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], value: ir.Value) -> None:
        array = _sizes(node, op_type, value)
        if array is None:
            if not (op_type in EXACT or op_type in LAST_BIT or self._is_computed(op_type)):
                return
            arrays = self._arrays(inputs)
            if arrays is None or not self._is_small(node) or _is_moved_weight(node) or self._is_guess(node):
                return
            opset = self.model.graph.opset_imports.get("", 0)
            array = folded(node, arrays, opset, LAST_BIT if self.functions is None else self.functions)
            if array is None and self._is_computed(op_type) and not self._is_guess(node, is_computed=True):
                array = computed(node, arrays, opset)
        if array is None or array.nbytes > self.budget.value_bytes or not self._fits(value, array):
            return
        self.arrays[value] = array
        self.nodes.append(node)

    def _is_computed(self, op_type: str) -> bool:
        return self.by_any_kernel and op_type not in _NEVER_COMPUTED and not is_random("", op_type)

    def _is_guess(self, node: ir.Node, is_computed: bool = False) -> bool:
        """Return whether the last bit decides something, and nobody said which library's it should be."""
        value = node.outputs[0]
        guessed = (node.op_type in LAST_BIT and self.functions is None) or (is_computed and is_float(value))
        return guessed and is_rounded(node.outputs[0], self.model.graph)

    def _arrays(self, inputs: Sequence[ir.Value | None]) -> Sequence[Array | None] | None:
        """The numbers of operands; None where one is not constant, or there are none."""
        arrays: list[Array | None] = []
        for value in inputs:
            array = None
            if value is not None:
                array = self.arrays[value] if value in self.arrays else self._constant(value)
                if array is None:
                    return None
            arrays.append(array)
        return arrays or None

    def _constant(self, value: ir.Value) -> Array | None:
        tensor = value.const_value
        if tensor is None or value.is_graph_input():
            return None
        self.arrays[value] = array = tensor.numpy() if self._may_read(value, tensor) else None
        return array

    def _may_read(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
        """Return whether the numbers of a constant may be folded."""
        if not is_literal(tensor):
            is_stored_twice = (
                not self.by_any_kernel and use_count(value) != 1 and is_float(value)
            )  # else ``_release`` counts
            if not self.fold_weights or is_stored_twice:
                return False
        is_small = tensor.nbytes <= self.budget.value_bytes
        return is_small and tensor.dtype in FOLDABLE_DTYPES and not lacks_data(tensor)

    def _is_small(self, node: ir.Node) -> bool:
        """Return whether the result is within the budget, where that is known beforehand."""
        value = node.outputs[0]
        dtype, sizes = value.dtype, static_dims(value)
        if dtype is not None and dtype not in FOLDABLE_DTYPES:
            return False
        if sizes is None or dtype is None:
            return node.op_type not in ("Expand", "ConstantOfShape", "Tile", "Range")
        return math.prod(sizes) * dtype.itemsize <= self.budget.value_bytes

    @staticmethod
    def _fits(value: ir.Value, array: Array) -> bool:
        """Return whether the result is of the dtype and dims that the graph promises."""
        dtype, dims = value.dtype, dims_or_none(value)
        if dtype is not None and dtype.numpy() != array.dtype:
            return False
        return (
            dims is None
            or dims == array.shape
            or (
                len(dims) == array.ndim
                and all(isinstance(dim, Dim) or dim == size for dim, size in zip(dims, array.shape, strict=True))
            )
        )

    def _initializer(self, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """A weight under the name of ``old``, which loses it."""
        new = ir.Value(name=old.name, const_value=tensor)
        set_type(new, tensor.dtype, [int(size) for size in tensor.shape])  # type: ignore[arg-type]
        assert new.name is not None
        old.name = None
        self.model.graph.initializers[new.name] = new
        return new

    def constant_nodes(self) -> int:
        """``Constant`` nodes -> initializers that share their tensors."""
        found: list[ir.Node] = []
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for graph in graphs_of(self.model):
            for node in nodes_of_own_kind(graph, {"Constant"}):
                if node.domain or node.outputs[0].is_graph_output():
                    continue
                tensor = _constant_tensor(node)
                if tensor is None or not is_read(node.outputs[0]):
                    continue
                replaced.append((node.outputs[0], self._initializer(node.outputs[0], tensor)))
                found.append(node)
        replace_inputs(replaced)
        remove_unread(found)
        return len(found)


def _is_moved_weight(node: ir.Node) -> bool:
    """Nothing is won by these: ``FoldWeightTranspose`` transposes when the file is written, copies only take space."""
    moves = node.op_type in ("Transpose", "Expand", "Tile") and node.inputs[0] is not None
    tensor = node.inputs[0].const_value if moves and node.inputs[0] is not None else None
    return tensor is not None and not is_literal(tensor)


def _sizes(node: ir.Node, op_type: str, value: ir.Value) -> Array | None:
    """The numbers of a Shape, Size or a size computed from them, where all are known from dims."""
    if op_type in ("Shape", "Size") and node.inputs[0] is not None and node.inputs[0].shape is not None:
        dims = dims_of(node.inputs[0])
        if op_type == "Shape":
            dims = dims[attribute(node, "start", 0) : attribute(node, "end")]
        if all(isinstance(dim, int) for dim in dims):
            array = np.array(dims, dtype=np.int64)
            return array if op_type == "Shape" else np.array(array.prod(), dtype=np.int64)
        return None
    sizes = noted_sizes(value) if value.dtype in (ir.DataType.INT64, ir.DataType.INT32) else None
    if sizes is None or not all(isinstance(size, int) for size in sizes) or value.shape is None:
        return None
    dims = dims_of(value)
    if any(isinstance(dim, Dim) for dim in dims):
        return None
    dtype = np.int64 if value.dtype == ir.DataType.INT64 else np.int32
    return np.array(sizes, dtype=dtype).reshape([dim for dim in dims if isinstance(dim, int)])


_NUMBERS = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, item in node.attributes.items():
        if name == "value":
            tensor: ir.TensorProtocol = item.as_tensor()
            return tensor
        if name in _NUMBERS:
            return ir.Tensor(np.array(item.value, dtype=_NUMBERS[name]))
    return None


def store_constants(model: ir.Model) -> int:
    """``Constant`` nodes -> initializers, and nothing else. Returns how many."""
    return Folder(model).constant_nodes()


def fold_constants(
    model: ir.Model, *, budget: FoldBudget = DEFAULT_BUDGET, fold_weights: bool = False,
    functions: Mapping[str, Function] | None = None, by_any_kernel: bool = False,
) -> int:  # fmt: skip
    """Fold what depends on constants alone. Returns how many values became initializers.

    fold_weights: fold small parameters, buffers and what a file holds, too. By default they keep their names, and a module
    without data (on the meta device) gives the same graph.
    functions: what computes the operators of ``LAST_BIT`` where the model comes from, so that their bits are the same.
    by_any_kernel: fold operators whose bits runtimes may differ in, too; a result may be as large as the weights that it makes unread.
    Refuses: random operators, values beyond the budget, weights without data, graph outputs, sums of floats; without
    ``functions`` those of ``LAST_BIT`` in front of a rounding or comparison.
    """
    return Folder(model, budget, fold_weights=fold_weights, functions=functions, by_any_kernel=by_any_kernel).run()


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Attributes as kernels take them: tensors as arrays."""
    return {
        name: item.as_tensor().numpy() if item.type == ir.AttributeType.TENSOR else item.value
        for name, item in node.attributes.data.items()
    }


def folded(node: ir.Node, inputs: Inputs, opset: int, functions: Mapping[str, Function] = LAST_BIT) -> Array | None:
    """The node's one output with the bits of every runtime, or None (``semantics.folding.fold``)."""
    if node.domain or len(node.outputs) != 1:
        return None
    return folding.fold(node.op_type, opset, inputs, attributes_of(node), functions)


def computed(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    """The node's first output as its kernel computes it, or None (``semantics.folding.compute``)."""
    return None if node.domain else folding.compute(node.op_type, opset, inputs, attributes_of(node))
