"""Graphs as tools of all ages write them, by ONNX's text form: each a thing that files in the wild have and our exporter never writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {}


def graph(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    """Register the graph under the function's name."""
    GRAPHS[make.__name__] = make
    return make


def text(body: str, ir: int = 8, opset: int = 15, extra: str = "") -> onnx.ModelProto:
    """A model from ONNX's text form."""
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}{extra}]> {body}')
    return model


def weights(model: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """Give the model initializers."""
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@graph
def weights_as_inputs() -> onnx.ModelProto:
    """IR 3: a weight had to be an input, too."""
    body = "g (float[N, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[N, 4, 6, 6] y) { c = Conv (x, w) d = Identity (c) e = Identity (b) y = BatchNormalization (d, e, e, e, e) }"
    return weights(text(body, ir=3, opset=9), w=normal(4, 3, 3, 3), b=np.abs(normal(4)) + 0.5)


@graph
def default_of_input() -> onnx.ModelProto:
    """From IR 4 on, a weight that is an input is a default that feeds may replace: it is no constant."""
    body = "g (float[N, 3] x, float[3] w) => (float[N, 3] y) { z = Mul (w, w) t = Identity (x) y = Add (t, z) }"
    return weights(text(body), w=normal(3))


@graph
def functions() -> onnx.ModelProto:
    """Functions that call each other, with an attribute handed on."""
    body = """g (float[N, 4] x) => (float[N, 4] y) { a = local.twice (x) y = local.leak <alpha = 0.25> (a) }
    <domain: "local", opset_import: ["" : 15, "local" : 1]> twice (x) => (y) { b = local.once (x) y = local.once (b) }
    <domain: "local", opset_import: ["" : 15]> once (x) => (y) { t = Identity (x) y = Sin (t) }
    <domain: "local", opset_import: ["" : 15]> leak <alpha> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }"""
    return text(body, extra=', "local" : 1')


@graph
def constant_condition() -> onnx.ModelProto:
    """An If whose condition is known, with a branch that reads an outer value and a weight of its own."""
    then = parser.parse_graph("t () => (float[N, 4] p) { q = Mul (x, k) p = Relu (q) }")
    then.initializer.append(numpy_helper.from_array(np.float32(3.0), "k"))
    other = parser.parse_graph("e () => (float[N, 4] p) { p = Neg (x) }")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other),
        helper.make_node("Sigmoid", ["z"], ["y"]),
    ]
    return made(nodes)


@graph
def condition_of_data() -> onnx.ModelProto:
    """An If that stays; names of its branches are used twice."""
    then = parser.parse_graph("t () => (float[N, 4] p) { q = Identity (x) p = Relu (q) }")
    other = parser.parse_graph("e () => (float[N, 4] p) { q = Identity (x) p = Neg (q) }")
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    return made(nodes)


@graph
def loop() -> onnx.ModelProto:
    """A loop that reads an outer value and a constant of its own."""
    body = parser.parse_graph(
        "b (int64 i, bool go, float[N, 4] a) => (bool on, float[N, 4] r) { on = Identity (go) d = Identity (x) two = Constant <value = float {2.0}> () h = Div (d, two) r = Add (a, h) }"
    )
    nodes = [
        helper.make_node("Constant", [], ["n"], value_int=3),
        helper.make_node("Constant", [], ["go"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("Loop", ["n", "go", "x"], ["y"], body=body),
    ]
    return made(nodes)


@graph
def sparse_weight() -> onnx.ModelProto:
    model = text("g (float[N, 3] x) => (float[N, 2] y) { y = MatMul (x, w) }")
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([2.0, -1.0], np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 4], np.int64), "w_indices"))
    sparse.dims.extend([3, 2])
    return model


@graph
def old_attributes() -> onnx.ModelProto:
    """Opset 9: slices, clips, pads, splits, squeezes and top-k by attributes."""
    body = """g (float[N, 4, 6] x) => (float[N, 2, 3] y, int64[N, 2, 2] i) {
        a = Pad <mode = "constant", pads = [0, 0, 0, 0, 0, 0]> (x) b, c = Split <axis = 1, split = [2, 2]> (a)
        d = Clip <min = -0.5, max = 0.5> (b) e = Slice <axes = [2], starts = [0], ends = [9223372036854775807]> (d)
        f = Slice <axes = [-1], starts = [1], ends = [4]> (e) g = Unsqueeze <axes = [0]> (f) h = Squeeze <axes = [0]> (g)
        y = Dropout (h) v, i = TopK <axis = -1, k = 2> (c) }"""
    return text(body, ir=4, opset=9)


@graph
def shape_chain() -> onnx.ModelProto:
    """Reshape to sizes that are read from the input, as every exporter writes them."""
    body = """g (float[N, L, 8] x) => (float[N, 2, L, 4] y) {
        s = Shape (x) zero = Constant <value_int = 0> () one = Constant <value_int = 1> () n = Gather (s, zero) l = Gather (s, one)
        ax = Constant <value_ints = [0]> () n1 = Unsqueeze (n, ax) l1 = Unsqueeze (l, ax)
        h = Constant <value_ints = [2]> () w = Constant <value_ints = [4]> () t = Concat <axis = 0> (n1, l1, h, w)
        r = Reshape (x, t) y = Transpose <perm = [0, 2, 1, 3]> (r) }"""
    return text(body)


@graph
def expanded_shape() -> onnx.ModelProto:
    """Expand as TorchScript writes it: -1 where a size stays."""
    body = """g (float[N, 1, 4] x) => (float[N, 3, 4] y) {
        want = Constant <value_ints = [-1, 3, -1]> () n = Constant <value_ints = [3]> () ones = ConstantOfShape <value = int64[1] {1}> (n)
        minus = Constant <value_int = -1> () m = Mul (ones, minus) e = Equal (want, m) w = Where (e, ones, want) y = Expand (x, w) }"""
    return text(body)


@graph
def equal_weights() -> onnx.ModelProto:
    """A tied weight stored twice, and nodes that are equal once it is stored once."""
    body = "g (float[N, 20] x) => (float[N, 20] y) { a = MatMul (x, w) b = MatMul (x, v) c = Tanh (a) d = Tanh (b) y = Add (c, d) }"
    return weights(text(body), w=normal(20, 20), v=normal(20, 20))


@graph
def large_constants() -> onnx.ModelProto:
    """What is computed of weights alone, larger than literals: normalised, transposed, padded."""
    body = """g (float[N, 6, 16] x) => (float[N, 40, 14] y) {
        n = ReduceL2 <axes = [1, 2]> (v) u = Div (v, n) w = Mul (u, g) y = Conv (x, w) }"""
    return weights(text(body, opset=13), v=normal(40, 6, 3), g=normal(40, 1, 1))


@graph
def wrong_value_info() -> onnx.ModelProto:
    """A file that lies of the shapes between its nodes: a Reshape that does something looks as if it did not."""
    model = text(
        "g (float[2, 6] x) => (float[3, 4] y) { t = Constant <value_ints = [3, 4]> () a = Relu (x) b = Reshape (a, t) y = Sin (b) }"
    )
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [3, 4]))
    return model


@graph
def no_shapes() -> onnx.ModelProto:
    """Inputs and outputs without a rank."""
    model = text("g (float[N, 4] x) => (float[N, 4] y) { a = Identity (x) b = Dropout (a) y = Relu (b) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@graph
def contrib_operator() -> onnx.ModelProto:
    """Operators of onnxruntime's own domain are carried as they are."""
    body = "g (float[N, 4] x) => (float[N, 4] y) { a = Identity (x) b = com.microsoft.Gelu (a) y = Identity (b) }"
    return text(body, extra=', "com.microsoft" : 1')


@graph
def half_precision() -> onnx.ModelProto:
    body = "g (float16[N, 4] x) => (float16[N, 4] y) { t = Cast <to = 1> (x) u = Cast <to = 10> (t) w = Identity (v) y = Mul (u, w) }"
    return weights(text(body), v=normal(4).astype(np.float16))


@graph
def random_numbers() -> onnx.ModelProto:
    """Two draws are two draws; outputs that they reach are compared by type."""
    body = "g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) { a = RandomNormalLike (x) b = RandomNormalLike (x) c = Sub (a, b) y = Add (x, c) t = Identity (x) z = Exp (t) }"
    return text(body)


@graph
def input_is_output() -> onnx.ModelProto:
    return text("g (float[3] x) => (float[3] y, float[3] z) { y = Identity (x) z = Identity (y) }")


@graph
def strings() -> onnx.ModelProto:
    body = 'g (string[N] x) => (int64[N] y) { a = Identity (x) y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = 0> (a) }'
    return text(body, extra=', "ai.onnx.ml" : 2')


@graph
def sequences() -> onnx.ModelProto:
    body = "g (float[4, 3] x) => (float[2, 3] y) { n = Constant <value_ints = [2, 2]> () s = SplitToSequence <axis = 0> (x, n) i = Constant <value_int = 1> () t = SequenceAt (s, i) y = Identity (t) }"
    return text(body)


@graph
def quantized() -> onnx.ModelProto:
    body = """g (float[N, 4] x) => (float[N, 4] y) {
        s = Constant <value = float {0.05}> () z = Constant <value = uint8 {128}> () q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
        e = QuantizeLinear (d, s, z) y = DequantizeLinear (e, s, z) }"""
    return text(body)


@graph
def unused() -> onnx.ModelProto:
    """Nodes and weights that nothing needs, in an order that is none, and metadata."""
    model = text("g (float[N, 4] x) => (float[N, 4] y) { y = Add (b, b) b = Sin (x) c = Cos (b) }")
    model.metadata_props.add(key="author", value="somebody")
    model.doc_string = "a model"
    return weights(model, dead=normal(400))


def made(nodes: list[onnx.NodeProto], opset: int = 15) -> onnx.ModelProto:
    """A model of x [N, 4] -> y [N, 4]."""
    typed = [helper.make_tensor_value_info(name, 1, ["N", 4]) for name in "xy"]
    return helper.make_model(
        helper.make_graph(nodes, "g", typed[:1], typed[1:]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


@graph
def weights_of_bodies() -> onnx.ModelProto:
    """Bodies that have weights of their own under one name, and small ones of the graph around that only they read."""

    def branch(name: str, op_type: str, seed: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "bias"], ["a"]),
            helper.make_node(op_type, ["a"], ["o"]),
        ]
        given = helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, ["N", 20])
        return helper.make_graph(
            nodes, name, [], [given], [numpy_helper.from_array(normal(20, 20, seed=seed) / 8, "w")]
        )

    body = "g (float[N, 20] x) => (float[N, 20] y) { s = ReduceMax <keepdims = 0> (x) c = Greater (s, limit) y = Identity (x) }"
    model = text(body)
    del model.graph.node[-1]
    branches = {"then_branch": branch("then", "Relu", 1), "else_branch": branch("else", "Neg", 2)}
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], **branches))
    return weights(model, limit=np.float32(1.5), bias=normal(1, 1))
