"""A model is data from a stranger: every malformed file ends in an fx2onnx error or in a result, in bounded memory."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

LIMIT_BYTES = 1 << 26


def options() -> ort.SessionOptions:
    wanted = ort.SessionOptions()
    wanted.add_session_config_entry("fx2onnx.memory_limit_bytes", str(LIMIT_BYTES))
    wanted.add_session_config_entry("fx2onnx.loop_limit", "2000")
    return wanted


def value(name: str, dims: list, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def model(nodes: list, inputs: list, outputs: list, constants: list = (), functions: list = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid("f", 1) for _ in functions[:1])]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def int_const(name: str, numbers: list[int]) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers)


def cycle() -> onnx.ModelProto:
    return model([helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])], [], [value("a", [1])])


def twice() -> onnx.ModelProto:
    return model([helper.make_node("Neg", ["x"], ["y"])] * 2, [value("x", [1])], [value("y", [1])])


def nowhere() -> onnx.ModelProto:
    return model([helper.make_node("Neg", ["missing"], ["y"])], [], [value("y", [1])])


def unknown_op() -> onnx.ModelProto:
    return model([helper.make_node("Neggg", ["x"], ["y"])], [value("x", [1])], [value("y", [1])])


def unknown_domain() -> onnx.ModelProto:
    return model([helper.make_node("Neg", ["x"], ["y"], domain="zz")], [value("x", [1])], [value("y", [1])])


def private_domain() -> onnx.ModelProto:
    return model([helper.make_node("SumTo", ["x", "x"], ["y"], domain="fx2onnx")], [value("x", [1])], [value("y", [1])])


def wrong_attribute() -> onnx.ModelProto:
    return model([helper.make_node("Softmax", ["x"], ["y"], axis="one")], [value("x", [1])], [value("y", [1])])


def unknown_attribute() -> onnx.ModelProto:
    return model([helper.make_node("Softmax", ["x"], ["y"], sharpness=1)], [value("x", [1])], [value("y", [1])])


def huge_fill() -> onnx.ModelProto:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    return model([node], [], [value("y", [None, None])], [int_const("s", [1 << 20, 1 << 20])])


def huge_expand() -> onnx.ModelProto:
    node = helper.make_node("Expand", ["x", "s"], ["y"])
    return model([node], [value("x", [1])], [value("y", [None])], [int_const("s", [1 << 40])])


def huge_range() -> onnx.ModelProto:
    scalars = [helper.make_tensor(n, TensorProto.INT64, [], [v]) for n, v in (("a", 0), ("b", 1 << 50), ("c", 1))]
    return model([helper.make_node("Range", ["a", "b", "c"], ["y"])], [], [value("y", [None], 7)], scalars)


def huge_product() -> onnx.ModelProto:
    shape = int_const("s", [1 << 13, 1])
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    return model(nodes, [], [value("y", [None, None])], [shape])


def huge_tensor() -> onnx.ModelProto:
    claim = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40], raw_data=b"")
    return model([helper.make_node("Neg", ["w"], ["y"])], [], [value("y", [None])], [claim])


def short_tensor() -> onnx.ModelProto:
    claim = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"1234")
    return model([helper.make_node("Neg", ["w"], ["y"])], [], [value("y", [None])], [claim])


def negative_dim() -> onnx.ModelProto:
    claim = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1], raw_data=b"1234")
    return model([helper.make_node("Neg", ["w"], ["y"])], [], [value("y", [None])], [claim])


def endless_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Identity", ["c"], ["scan"])],
        "body",
        [value("i", [], 7), value("c", [], 9)],
        [value("again", [], 9), value("scan", [], 9)],
    )
    true = helper.make_tensor("t", TensorProto.BOOL, [], [True])
    return model([helper.make_node("Loop", ["", "t"], ["y"], body=body)], [], [value("y", [None], 9)], [true])


def recursive_function() -> onnx.ModelProto:
    call = helper.make_node("Self", ["x"], ["y"], domain="f")
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    function = helper.make_function("f", "Self", ["x"], ["y"], [call], imports)
    return model([call], [value("x", [1])], [value("y", [1])], (), [function])


def function_bomb() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "F0", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], imports)]
    for level in range(1, 40):
        name = f"F{level - 1}"
        body = [helper.make_node(name, ["x"], ["t"], domain="f"), helper.make_node(name, ["t"], ["y"], domain="f")]
        functions.append(helper.make_function("f", f"F{level}", ["x"], ["y"], body, imports))
    call = helper.make_node("F39", ["x"], ["y"], domain="f")
    return model([call], [value("x", [1])], [value("y", [1])], (), functions)


def deep_graphs() -> onnx.ModelProto:
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [], [value("y", [1])])
    for _ in range(5):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "g", [], [value("y", [1])])
    outer = helper.make_node("If", ["c"], ["out"], then_branch=graph, else_branch=graph)
    return model([outer], [value("x", [1]), value("c", [], 9)], [value("out", [1])])


def regex_bomb() -> onnx.ModelProto:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="(a+)+$")
    return model([node], [value("x", [1], 8)], [value("y", [1], 9)])


def shape_clash() -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [5, 2], [0.0] * 10)
    return model([node], [value("x", [3, 4])], [value("y", [3, 2])], [weight])


def many_cells() -> onnx.ModelProto:
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[1 << 10, 1 << 10])
    return model([node], [value("x", [2, 1, 4, 4]), value("r", [1, 5])], [value("y", [None] * 4)])


def many_taps() -> onnx.ModelProto:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1 << 20], pads=[(1 << 20) - 1, 0])
    return model([node], [value("x", [1, 1, 4])], [value("y", [None] * 3)])


def left_out() -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", ""], ["y"])], [value("x", [1])], [value("y", [1])])


REFUSED_AT_START: dict[Callable[[], onnx.ModelProto], tuple[str, str]] = {
    cycle: ("E303", "cycle"),
    twice: ("E303", "two definitions"),
    nowhere: ("E303", "made nowhere"),
    unknown_op: ("E402", "Neggg"),
    unknown_domain: ("E303", "imports no opset"),
    private_domain: ("E303", "runner's own"),
    wrong_attribute: ("E303", "'axis'"),
    unknown_attribute: ("E303", "no attribute 'sharpness'"),
    huge_tensor: ("E404", "initializer 'w'"),
    short_tensor: ("E303", "initializer 'w'"),
    negative_dim: ("E303", "invalid shape"),
    recursive_function: ("E303", "calls itself"),
    function_bomb: ("E404", "steps"),
    shape_clash: ("E303", "do not fit"),
    left_out: ("E303", "Add needs its input 1 (B)"),
}
REFUSED_AT_RUN: dict[Callable[[], onnx.ModelProto], tuple[str, str]] = {
    huge_fill: ("E404", "ConstantOfShape"), huge_expand: ("E404", "Expand"), huge_range: ("E404", "Range"),
    huge_product: ("E404", "limit"), endless_loop: ("E404", "iterations"), many_cells: ("E404", "iterations"),
    many_taps: ("E404", "iterations"),
}  # fmt: skip


@pytest.mark.long_cases("function_bomb")
@pytest.mark.parametrize("make", REFUSED_AT_START, ids=lambda make: make.__name__)
def test_refused_at_start(make: Callable[[], onnx.ModelProto]) -> None:
    code, text = REFUSED_AT_START[make]
    with pytest.raises(UserError) as caught:
        ort.InferenceSession(make(), options())
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.parametrize("make", REFUSED_AT_RUN, ids=lambda make: make.__name__)
def test_refused_at_run(make: Callable[[], onnx.ModelProto]) -> None:
    code, text = REFUSED_AT_RUN[make]
    session = ort.InferenceSession(make(), options())
    with pytest.raises(UserError) as caught:
        run(session)
    assert caught.value.code == code
    assert text in str(caught.value)


def test_no_cells_in_many_rows() -> None:
    """A size of 0 beside a huge one: nothing to do, however many rows there would be."""
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], pooled_shape=[1 << 33, 1])
    session = ort.InferenceSession(
        model([node], [value("x", [1, 1, 4, 4]), value("r", [0, 5])], [value("y", [None] * 4)]), options()
    )
    feeds = {"x": np.zeros((1, 1, 4, 4), np.float32), "r": np.zeros((0, 5), np.float32)}
    assert session.run(None, feeds)[0].shape == (0, 1, 1 << 33, 1)


def test_what_is_large_but_within_the_limit_runs() -> None:
    """The check before the run computes small values only; it must not refuse what the run's own limit allows."""
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    large = model([node], [], [value("y", [None, None])], [int_const("s", [1 << 10, 1 << 10])])
    assert ort.InferenceSession(large, options()).run(None, {})[0].shape == (1 << 10, 1 << 10)


def test_nested_graphs_within_the_limit_run() -> None:
    session = ort.InferenceSession(deep_graphs(), options())
    (out,) = session.run(None, {"x": np.ones(1, np.float32), "c": np.array(True)})
    assert out.tolist() == [-1]


def run(session: ort.InferenceSession) -> None:
    """Run with feeds of the declared types; symbolic dims are 2."""
    feeds = {}
    for arg in session.get_inputs():
        dims = [dim if isinstance(dim, int) else 2 for dim in arg.shape or ()]
        if math.prod(max(dim, 1) for dim in dims) > 1 << 20 or any(dim < 0 for dim in dims):
            return
        if arg.type == "tensor(string)":
            feeds[arg.name] = np.full(dims, "a" * 30, dtype=object)
        elif arg.type.startswith("tensor(") and arg.value_type.dtype.name != "UNDEFINED":
            feeds[arg.name] = np.ones(dims).astype(arg.value_type.dtype.numpy())
        else:
            feeds[arg.name] = []
    session.run(None, feeds)


@lru_cache(maxsize=1)
def seeds() -> tuple[bytes, ...]:
    """Small models that use graphs, functions, attributes and constants of many kinds."""
    made = [shape_clash, huge_expand, endless_loop, recursive_function, deep_graphs, regex_bomb, huge_product]
    protos = [make() for make in made]
    convolution = helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2])
    resize = helper.make_node("Resize", ["h", "", "s"], ["r"], mode="linear")
    pool = helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], ceil_mode=1)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2, 3, 3], [0.5] * 36)
    scales = helper.make_tensor("s", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    protos.append(
        model([convolution, resize, pool], [value("x", ["n", 2, 6, 6])], [value("y", [None] * 4)], [weight, scales])
    )
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
        helper.make_node("Gather", ["t", "i"], ["g"], axis=1),
        helper.make_node("Pad", ["g", "p"], ["q"], mode="reflect"),
        helper.make_node("TopK", ["q", "k"], ["y", "j"], axis=0),
    ]
    constants = [int_const("s", [2, -1]), int_const("i", [1, 0]), int_const("p", [1, 0, 0, 1]), int_const("k", [2])]
    protos.append(
        model(nodes, [value("x", [2, 6])], [value("y", [None, None]), value("j", [None, None], 7)], constants)
    )
    return tuple(proto.SerializeToString() for proto in protos)


def outcome(data: bytes) -> str:
    """'ran', or the code of the fx2onnx error; any other exception is a failure of the test."""
    try:
        run(ort.InferenceSession(data, options()))
    except UserError as error:
        return error.code
    return "ran"


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few random edits of bytes: flips, cuts, repeats, splices."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(len(changed)) if changed else 0
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[place] = rng.randrange(256)
        elif kind == 1 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[place : place + rng.randrange(1, 9)]
        elif kind == 3:
            changed[place:place] = changed[place : place + rng.randrange(1, 9)]
        else:
            changed[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.05 and changed else changed)


def still_model(data: bytes, rng: random.Random) -> bytes:
    """``data`` with edits that leave it readable as Protobuf, as few edits do."""
    while True:
        changed = mutated(data, rng)
        with contextlib.suppress(DecodeError):
            onnx.ModelProto.FromString(changed)
            return changed


@pytest.mark.parametrize("batch", range(4))
def test_mutated_bytes(batch: int) -> None:
    rng = random.Random(batch)
    outcomes = {outcome(still_model(seeds()[number % len(seeds())], rng)) for number in range(120)}
    assert outcomes >= {"ran", "E303", "E402", "E404"}, "files come as far as the run, and fail at every step before it"
    assert outcome(mutated(seeds()[0], rng)) == "E303", "most edits leave no Protobuf"


def changed_gently(proto: onnx.ModelProto, node: onnx.NodeProto, kind: int, rng: random.Random) -> None:
    """Edits that leave the model well-formed, so that kernels see them."""
    graph = proto.graph
    if kind == 9 and node.attribute:
        attribute = rng.choice(node.attribute)
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = rng.randrange(-3, 6)
        elif attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = rng.choice((0.0, -1.0, 0.5, float("nan"), float("inf"), 1e30))
        elif attribute.type == onnx.AttributeProto.INTS:
            attribute.ints[:] = [rng.randrange(-3, 5) for _ in range(len(attribute.ints) + rng.randrange(-1, 2))]
        elif attribute.type == onnx.AttributeProto.STRING:
            attribute.s = rng.choice((attribute.s, b"", b"zz", b"LINEAR", b"SAME_UPPER"))
    elif kind == 10 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 11 and node.input:
        node.input[rng.randrange(len(node.input))] = ""
    elif kind == 12 and graph.input:
        dims = rng.choice(graph.input).type.tensor_type.shape.dim
        if dims and rng.random() < 0.3:
            del dims[rng.randrange(len(dims))]
        for dim in dims:
            if rng.random() < 0.5:
                dim.dim_value = rng.choice((0, 1, 2, 5, 7))
    elif kind == 13 and graph.input:
        rng.choice(graph.input).type.tensor_type.elem_type = rng.choice((1, 2, 3, 6, 7, 8, 9, 10, 11, 16))


def shuffled(data: bytes, rng: random.Random) -> bytes:
    """A few random edits of the graph's structure."""
    proto = onnx.ModelProto.FromString(data)
    graph = proto.graph
    for _ in range(rng.choice((1, 2, 4))):
        node = rng.choice(graph.node) if graph.node else None
        names = [name for other in graph.node for name in (*other.input, *other.output)]
        kind = rng.randrange(14)
        if node is not None and kind == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "zz"])
        elif node is not None and kind == 1:
            node.op_type = rng.choice(sorted({schema.name for schema in onnx.defs.get_all_schemas()}))
        elif node is not None and kind == 2 and node.attribute:
            attribute = rng.choice(node.attribute)
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = rng.choice((-(1 << 63), -1, 0, 3, 1 << 40, (1 << 63) - 1))
            attribute.ints[:] = [rng.choice((-5, 0, 1, 7, 1 << 33)) for _ in attribute.ints]
        elif kind == 3 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.dims[:] = [rng.choice((-1, 0, 1, 5, 1 << 20, 1 << 45)) for _ in range(rng.randrange(5))]
        elif kind == 4 and graph.initializer:
            rng.choice(graph.initializer).data_type = rng.randrange(0, 32)
        elif kind == 5 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.int64_data[:] = [rng.choice((-(1 << 63), -3, 0, 2, 1 << 35)) for _ in tensor.int64_data]
            tensor.float_data[:] = [rng.choice((0.0, -1.0, float("nan"), 1e30)) for _ in tensor.float_data]
        elif node is not None and kind == 6:
            graph.node.append(node)
        elif kind == 7 and proto.opset_import:
            proto.opset_import[0].version = rng.choice((-1, 0, 1, 6, 9, 13, 23, 28, 29, 1 << 40))
        elif kind == 8 and graph.input:
            tensor_type = rng.choice(graph.input).type.tensor_type
            tensor_type.elem_type = rng.randrange(0, 32)
            for dim in tensor_type.shape.dim:
                dim.dim_value = rng.choice((-1, 0, 1, 3, 1 << 40))
        elif node is not None and kind > 8:
            changed_gently(proto, node, kind, rng)
    return proto.SerializeToString()


@pytest.mark.long_cases(but=["3"])
@pytest.mark.parametrize("batch", range(4))
def test_shuffled_structure(batch: int) -> None:
    rng = random.Random(1000 + batch)
    outcomes = {outcome(shuffled(seeds()[number % len(seeds())], rng)) for number in range(120)}
    assert outcomes >= {"ran", "E303", "E402", "E404"}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    outcome(data)
