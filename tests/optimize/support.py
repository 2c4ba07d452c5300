"""Small graphs by text, and one judge: both graphs in onnxruntime, on the same seeded feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import new_value
from fx2onnx.optimize.driver import Outcome, apply
from fx2onnx.optimize.rewrite import Rewrite

FLOAT = ir.DataType.FLOAT
Make = Callable[[Emit, dict[str, ir.Value]], ir.Value | Sequence[ir.Value]]


def weight(op: Emit, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A named initializer, as a parameter of a module is."""
    tensor = ir.TensorProtoTensor(onnx.numpy_helper.from_array(array, name))
    return op.builder.add_initializer(name, tensor, array.shape)


def random(*dims: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def model(
    make: Make, inputs: Mapping[str, Sequence[Any]], *, opset: int = 20, dtypes: Mapping[str, ir.DataType] | None = None
) -> ir.Model:
    """The model that ``make(op, inputs)`` emits; its results are the outputs out0, out1, ..."""
    builder = Builder(opset)
    op = Emit(builder)
    values = {}
    for name, dims in inputs.items():
        values[name] = new_value(builder.unique(name), (dtypes or {}).get(name, FLOAT), tuple(dims))
    op.origin = {"source": "model.py:1"}
    made = make(op, values)
    outputs = [made] if isinstance(made, ir.Value) else list(made)
    for index, value in enumerate(outputs):
        value.name = f"out{index}"
    used = {value for node in builder.nodes for value in node.inputs if value is not None}
    graph = ir.Graph(
        list(values.values()),
        outputs,
        nodes=builder.nodes,
        initializers=[value for value in builder.initializers.values() if value in used],
        opset_imports=builder.opset_imports,
        name="main",
    )
    return ir.Model(graph, ir_version=9)


def types(graph: ir.Model) -> list[str]:
    """The operators in order."""
    return [node.op_type for node in graph.graph]


def feeds_for(proto: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Any]:
    generator = np.random.default_rng(7)
    feeds = {}
    for value in proto.graph.input:
        dims = [sizes.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype == np.bool_:
            feeds[value.name] = np.asarray(generator.random(dims) > 0.5)
        elif dtype.kind in "iu":
            feeds[value.name] = generator.integers(-5 if dtype.kind == "i" else 0, 6, dims).astype(dtype)
        else:
            feeds[value.name] = generator.standard_normal(dims).astype(dtype)
    return feeds


def run(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def same_results(
    before: onnx.ModelProto, after: onnx.ModelProto, *, rtol: float, sizes: Mapping[str, int] | None = None
) -> None:
    """Both valid, both give the same numbers under the same names; ``rtol=0`` means bit for bit."""
    onnx.checker.check_model(after, full_check=True)
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    feeds = feeds_for(before, sizes or {})
    for want, got in zip(run(before, feeds), run(after, feeds), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if rtol:
            scale = float(np.max(np.abs(want), initial=1.0)) if want.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


def rewritten(
    graph: ir.Model,
    *rewrites: Rewrite,
    to: Sequence[str],
    rtol: float = 0.0,
    sizes: Mapping[str, int] | None = None,
) -> ir.Model:
    """``graph`` after the rewrites: has the operators ``to``, gives the same numbers, keeps types and origins. In front of
    a reader that rounds it gives the same bits: no rewrite that moves a rounding is done there.
    """
    before = ir.to_proto(graph)
    moving = [rewrite for rewrite in rewrites if rewrite.moves_rounding]
    assert moving or not rtol, "a rewrite that gives other bits must say so"
    for reader in READERS if moving else ():
        read = read_by(before, reader)
        outcome = apply(read, *moving, explain=True)
        assert outcome.total == 0, f"{types(read)} in front of {reader}"
        assert "the result is rounded or compared" in refusals(outcome)
    outcome = apply(graph, *rewrites, explain=True)
    assert types(graph) == list(to), f"{types(graph)}; refused: {refusals(outcome)}"
    for node in graph.graph:
        assert all(value.dtype is not None and value.shape is not None for value in node.outputs)
        assert node.metadata_props.get("source") == "model.py:1", f"{node.name} lost its origin"
    same_results(before, ir.to_proto(graph), rtol=rtol, sizes=sizes)
    return graph


READERS: dict[str, Callable[[Emit, ir.Value], ir.Value]] = {
    "Round": lambda op, x: op.Round(x),
    "Floor after Add": lambda op, x: op.Floor(op.Add(x, 0.5)),
    "Ceil after Flatten": lambda op, x: op.Ceil(op.Flatten(x, axis=0)),
    "Cast": lambda op, x: op.Cast(x, to=ir.DataType.INT64),
    "Greater": lambda op, x: op.Greater(x, 0.0),
    "Equal after Concat": lambda op, x: op.Equal(op.Concat(x, x, axis=0), 0.0),
    "ArgMax after Transpose": lambda op, x: op.ArgMax(op.Transpose(op.Flatten(x)), axis=0),
    "TopK": lambda op, x: op.TopK(x, [1], outputs=2)[0],
    "QuantizeLinear after Relu": lambda op, x: op.QuantizeLinear(op.Relu(x), np.array(0.1, np.float32), np.array(0, np.uint8)),
}  # fmt: skip


def read_by(proto: onnx.ModelProto, reader: str) -> ir.Model:
    """The model with each of its floating-point outputs read by ``reader``."""
    graph = ir.from_proto(proto)
    builder = Builder(graph.opset_imports[""])
    for each in (*graph.graph.all_nodes(), *graph.graph.initializers.values(), *graph.graph.inputs):
        builder.unique(each.name or "")
    op = Emit(builder)
    for index, value in enumerate(graph.graph.outputs):
        if value.dtype is not None and value.dtype.is_floating_point():
            graph.graph.outputs[index] = READERS[reader](op, value)
    graph.graph.extend(builder.nodes)
    for constant in builder.initializers.values():
        graph.graph.register_initializer(constant)
    return graph


def refused(graph: ir.Model, rewrite: Rewrite, why: str) -> None:
    """The rewrite edits nothing, and one of its sentences contains ``why``."""
    before = types(graph)
    outcome = apply(graph, rewrite, explain=True)
    assert outcome.total == 0, f"{before} became {types(graph)}"
    assert types(graph) == before
    assert any(why in sentence for sentence in refusals(outcome)), refusals(outcome)


def refusals(outcome: Outcome) -> list[str]:
    return [sentence for counts in outcome.refusals.values() for sentence in counts]
