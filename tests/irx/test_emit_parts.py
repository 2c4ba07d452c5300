"""The parts of ``Emit``: names and constants of the builder, sizes as arithmetic, half precision between casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.irx.arithmetic import emit_scalar
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.precision import missing_half
from fx2onnx.irx.private_names import copied_shape, new_node
from fx2onnx.irx.schema import schema_of
from fx2onnx.irx.values import dims_of, dtype_of, known_sizes, new_value, set_known_sizes
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes.expr import Dim

N = Dim.symbol("n")


def emitter(*dims: Dim, opset: int = 20) -> Emit:
    """On a float32 input ``x`` with these dims; a dim that is a plain name is read from its axis."""
    builder = Builder(opset)
    x = new_value("x", ir.DataType.FLOAT, dims)
    builder.inputs = [x]
    for axis, dim in enumerate(dims):
        if (name := dim.as_symbol()) is not None:
            builder.symbols[name] = (x, axis)
    return Emit(builder)


def value_of(op: Emit, result: ir.Value, shape: tuple[int, ...]) -> np.ndarray:
    """``result`` computed by the runner for an ``x`` of that shape."""
    builder = op.builder
    graph = ir.Graph(
        builder.inputs,
        [result],
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports=builder.opset_imports,
        name="main",
    )
    model = ir.serde.serialize_model(ir.Model(graph, ir_version=9)).SerializeToString()
    return InferenceSession(model).run(None, {"x": np.zeros(shape, np.float32)})[0]


@pytest.mark.parametrize(
    ("opset", "op_type", "name", "said"),
    [
        (20, "ReduceMean", "axis", r"no attribute or input 'axis'.*has data, axes, .*did you mean 'axes'"),
        (13, "ReduceMean", "keepdim", r"no attribute or input 'keepdim'.*did you mean 'keepdims'"),
        (20, "Relu", "slope", r"no attribute or input 'slope'.*Relu-14 has X.*check the name"),
        (20, "Redcue", "axis", r"ONNX has no operator Redcue.*did you mean 'Reduce"),
        (20, "Mull", "axis", r"ONNX has no operator Mull.*did you mean 'Mul'"),
        (13, "Reshape", "allowzero", r"no allowzero in opset 13.*opset_version=14"),
    ],
)
def test_a_misspelled_keyword_is_told_from_one_of_later_opsets(opset: int, op_type: str, name: str, said: str) -> None:
    op = emitter(N, opset=opset)
    with pytest.raises(UserError, match=f"(?s){'E202' if 'opset' in said else 'E001'}.*{said}"):
        op.node(op_type, op.builder.inputs[0], **{name: 1})


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("size", [3, 8])
def test_a_size_is_what_python_computes(opset: int, size: int) -> None:
    op = emitter(N, opset=opset)
    dim = 2 * N * N - 3 * N + N // 2 + (N - 5) % 3 + 7
    assert isinstance(dim, Dim)
    wanted = 2 * size * size - 3 * size + size // 2 + (size - 5) % 3 + 7
    given = value_of(op, emit_scalar(op, dim), (size,))
    assert (given.shape, given.dtype, int(given)) == ((), np.int64, wanted)


def test_a_name_is_solved_from_an_axis_that_has_a_multiple_of_it() -> None:
    op = emitter(4 * N - 3)
    assert int(value_of(op, emit_scalar(op, N), (25,))) == 7
    with pytest.raises(InternalError, match="no value gives the size m"):
        emit_scalar(op, Dim.symbol("m"))


def test_a_size_is_computed_once() -> None:
    op = emitter(N)
    assert op.size(N + 1) is op.size(N + 1)
    assert op.sizes([N, 2]) is op.sizes([N, 2])
    assert known_sizes(op.sizes([N, 2])) == [N, 2]
    assert [node.op_type for node in op.builder.nodes].count("Add") == 1


def test_names_are_made_unique() -> None:
    builder = Builder(20)
    assert [builder.unique(name) for name in ("a", "a", "a_1", "a")] == ["a", "a_1", "a_1_1", "a_2"]


def test_equal_small_constants_are_one() -> None:
    builder = Builder(20)
    zeros = np.zeros(3, np.float32)
    same = builder.constant(zeros, ir.DataType.FLOAT)
    assert builder.constant(np.zeros(3, np.float32), ir.DataType.FLOAT) is same
    assert builder.constant(zeros.reshape(1, 3), ir.DataType.FLOAT) is not same
    assert builder.constant(zeros.astype(np.int32), ir.DataType.INT32) is not same


def slots_of(found: object) -> dict[str, object]:
    """The attributes of an object of onnx_ir, which has both slots and a dict."""
    names = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(found, name) for name in [*names, *getattr(found, "__dict__", ())]}


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft"])
@pytest.mark.parametrize("props", [None, {"source": "model.py:3"}])
def test_a_node_made_whole_is_as_onnx_ir_makes_it(domain: str, props: dict[str, str] | None) -> None:
    axis = ir.Attr("axis", ir.AttributeType.INT, 1)
    x, made, other = (new_value(name, ir.DataType.FLOAT, (2,)) for name in "xab")
    ours = new_node(domain, "Concat", [x, None, x], [axis], [made], "n", props)
    theirs = ir.Node(domain, "Concat", [x, None, x], [axis], outputs=[other], name="n", metadata_props=props)
    held, expected = slots_of(ours), slots_of(theirs)
    assert (held.pop("_outputs"), expected.pop("_outputs")) == ((made,), (other,))
    attributes, their_attributes = slots_of(held.pop("_attributes")), slots_of(expected.pop("_attributes"))
    assert (attributes.pop("_owner"), their_attributes.pop("_owner")) == (ours, theirs)
    assert attributes == their_attributes
    assert held == expected
    assert (made.producer(), made.index()) == (ours, 0)
    assert x.uses() == ((ours, 0), (ours, 2), (theirs, 0), (theirs, 2))


@pytest.mark.parametrize("dims", [(), (2,), (0, 3)])
def test_a_value_of_known_sizes_is_as_onnx_ir_makes_it(dims: tuple[int, ...]) -> None:
    ours, theirs = new_value("v", ir.DataType.FLOAT, dims), ir.Value(name="v", type=ir.TensorType(ir.DataType.FLOAT))
    assert ours.shape is not None
    assert slots_of(ours.shape) == slots_of(ir.Shape(dims))
    assert slots_of(copied_shape(ours.shape)) == slots_of(ours.shape)
    theirs.meta.data.update(ours.meta.data)
    assert slots_of(ours.meta) == slots_of(theirs.meta)


def test_half_precision_is_missed_only_where_the_operator_lacks_it() -> None:
    half = ir.DataType.BFLOAT16
    assert missing_half(schema_of("Add", 11, ""), 11, [half, half]) is half
    assert missing_half(schema_of("Add", 13, ""), 13, [half, half]) is None
    assert missing_half(schema_of("Cast", 11, ""), 11, [half]) is None
    assert missing_half(schema_of("Add", 11, ""), 11, [None, ir.DataType.FLOAT]) is None


def test_a_node_without_half_precision_computes_in_float32() -> None:
    op = emitter(N, opset=13)
    half = op.cast(op.builder.inputs[0], ir.DataType.FLOAT16)
    result = op.CumSum(half, np.array(0))
    assert dtype_of(result) is ir.DataType.FLOAT16
    assert dims_of(result) == (N,)
    (cumsum,) = (node for node in op.builder.nodes if node.op_type == "CumSum")
    assert [value.dtype for value in cumsum.inputs] == [ir.DataType.FLOAT, ir.DataType.INT64]


def test_looks_beyond_the_type_are_noted_in_order() -> None:
    op, other = emitter(N), emitter(N)
    x, number = op.builder.inputs[0], op.const(2.0)
    op.producer(x), op.constant(number), op.producer(x), op.dims(x), op.is_dequantized(x)
    assert op.builder.reads == [id(x), id(number), id(x)]
    assert other.builder.reads == [], "an export inside another one has reads of its own"


def test_noted_sizes_go_before_the_numbers() -> None:
    value = new_value("sizes", ir.DataType.INT64, (2,))
    assert known_sizes(value) is None
    set_known_sizes(value, (N, 4))
    assert known_sizes(value) == [N, 4]
    assert known_sizes(None) is None
