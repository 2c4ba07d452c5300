"""An ONNX file as proofs read it."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference

from fx2onnx.irx.model_files import graphs_within
from fx2onnx.proof.sizes import Dim, NamedSize
from fx2onnx.semantics.check import open_file
from fx2onnx.semantics.reading.weights import WeightStore

_SEEN_BYTES = 1024
_IR_OF_DEFAULTS = 4


class OpenedFile:
    """An ONNX file as proofs read it: its nodes without functions, its constants, and what shapes are known."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        loaded = open_file(path)
        self.path, self.proto = os.fspath(path), loaded.proto
        graph = self.proto.graph
        if self.proto.functions:
            self.proto = onnx.inliner.inline_local_functions(self.proto)
            graph = self.proto.graph
        store = WeightStore(loaded.folders)
        self.constants = {each.name: store.any_array(each, each.name) for each in graph.initializer}
        self.constants |= {
            each.values.name: store.any_array(each, each.values.name) for each in graph.sparse_initializer
        }
        takes_defaults = self.proto.ir_version >= _IR_OF_DEFAULTS
        self.defaults = [value.name for value in graph.input if takes_defaults and value.name in self.constants]
        """The inputs that are weights where nothing is given for them."""
        self.inputs = [value.name for value in graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in graph.output]
        self.opsets = {
            "" if each.domain == "ai.onnx" else each.domain: each.version for each in self.proto.opset_import
        }
        self.dims: dict[str, tuple[Dim | None, ...]] = {}
        """Sizes as numbers or as the names that the inputs give them."""
        self.dtypes: dict[str, str] = {}
        self._unsure: set[str] = set()
        self._infer()
        for name in self._unsure:
            del self.dims[name]

    def _infer(self) -> None:
        """Shapes by onnx, whose inference sees no large weights, and what the file declares."""
        proto = onnx.ModelProto(ir_version=self.proto.ir_version, opset_import=self.proto.opset_import)
        graph = self.proto.graph
        proto.graph.node.extend(graph.node)
        proto.graph.input.extend(graph.input)
        proto.graph.output.extend(graph.output)
        proto.graph.value_info.extend(graph.value_info)
        declared = {value.name for value in graph.input}
        for name, array in self.constants.items():
            if array.nbytes <= _SEEN_BYTES and array.dtype.kind in "iufb":
                proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
            elif name not in declared and array.dtype != object:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        try:
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # onnx has classes of its own; what the file declares stays
            proto = self.proto
        sized = [value.type.tensor_type.shape.dim for value in graph.input]
        names = {dim.dim_param for dims in sized for dim in dims if dim.dim_param}
        for part in graphs_within(proto.graph):
            assert isinstance(part, onnx.GraphProto)
            for value in (*part.value_info, *part.input, *part.output):
                self._note(value, names, is_inner=part is not proto.graph)
        for name, array in self.constants.items():
            self.dims[name], self.dtypes[name] = array.shape, str(array.dtype)

    def _note(self, value: onnx.ValueInfoProto, names: set[str], *, is_inner: bool) -> None:
        """Keep dtype and sizes of a value; two branches may each have one of its name, of which nothing is kept where they differ."""
        kind = value.type.tensor_type
        if kind.elem_type:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            known = self.dtypes.setdefault(value.name, dtype)
            self.dtypes[value.name] = dtype if not is_inner or known == dtype else ""
        if kind.HasField("shape"):
            named = [NamedSize.of("size", dim.dim_param) if dim.dim_param in names else None for dim in kind.shape.dim]
            sizes = zip(kind.shape.dim, named, strict=True)
            dims = tuple(dim.dim_value if dim.HasField("dim_value") else name for dim, name in sizes)
            if is_inner and self.dims.setdefault(value.name, dims) != dims:
                self._unsure.add(value.name)
            self.dims[value.name] = dims

    def with_outputs(self, names: Iterable[str]) -> bytes:
        """The file with further values as outputs, its weights inside."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for tensor in proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                name = tensor.name
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(self.constants[name]), name))
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in self.outputs)
        content: bytes = proto.SerializeToString()
        return content
