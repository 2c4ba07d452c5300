"""``Transpose(weight)`` -> the weight stored transposed, where nothing else reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.irx.values import dims_of, set_type


class TransposedTensor(ir.LazyTensor):
    """A weight in another axis order. The transposed bytes are made when they are written and not kept."""

    def __init__(self, source: ir.TensorProtocol, perm: tuple[int, ...], name: str) -> None:
        self.source = source
        self.perm = perm
        sizes = source.shape.numpy()
        super().__init__(
            self._permuted,
            dtype=source.dtype,
            shape=ir.Shape([sizes[axis] for axis in perm]),
            cache=False,
            name=name,
        )

    def _permuted(self) -> ir.TensorProtocol:
        """The contiguous tensor: made by the source, if it knows a faster way than NumPy."""
        permuted = getattr(self.source, "permuted", None)
        if permuted is not None:
            made: ir.TensorProtocol = permuted(self.perm)
            return made
        array: npt.NDArray[Any] = self.source.numpy()
        return ir.Tensor(np.ascontiguousarray(array.transpose(self.perm)), dtype=self.source.dtype, name=self.name)

    @property
    def lacks_data(self) -> bool:
        """Whether the source is a mere description without numbers."""
        return bool(getattr(self.source, "lacks_data", False))

    def tofile(self, file: Any) -> None:
        """Write the transposed bytes straight from one contiguous copy."""
        made: Any = self._permuted()
        made.tofile(file)


def fold_weight_transposes(model: ir.Model) -> int:
    """Returns how many Transpose nodes were folded.

    Refuses: a weight read elsewhere (it would be stored twice: tied embeddings), or one that is a graph output or input.
    """
    graph = model.graph
    outputs, inputs = set(graph.outputs), set(graph.inputs)
    folded = 0
    for node in list(graph):
        if node.op_type != "Transpose" or node.domain:
            continue
        weight, result = node.inputs[0], node.outputs[0]
        if (
            weight is None
            or weight.const_value is None
            or weight in inputs
            or result in outputs
            or len(weight.uses()) != 1
        ):
            continue
        rank = len(dims_of(weight))
        attribute = node.attributes.get("perm")
        perm = tuple(attribute.as_ints()) if attribute is not None else tuple(reversed(range(rank)))
        name = f"{weight.name}.T"
        if name in graph.initializers:
            continue
        stored = ir.Value(name=name, const_value=TransposedTensor(weight.const_value, perm, name))
        set_type(stored, weight.const_value.dtype, [dims_of(weight)[axis] for axis in perm])
        result.replace_all_uses_with(stored)
        graph.remove(node, safe=True)
        assert weight.name is not None
        del graph.initializers[weight.name]
        graph.initializers[name] = stored
        folded += 1
    return folded
