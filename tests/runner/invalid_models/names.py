"""Names: twice, nowhere, of nothing."""

from __future__ import annotations

from onnx import helper

from invalid_models.case import AT_LOAD, AT_RUN, NEG, UNUSED, WEIGHT, Case, filled, weight

NAMES = {
    "input_twice": Case(
        "g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }",
        refused="the graph input 'x' occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "output_twice": Case(
        "g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }",
    ),
    "initializer_twice": Case(
        WEIGHT,
        edit=lambda model: model.graph.initializer.append(weight(model)),
        refused="the initializer 'w' occurs twice",
        because="onnx.proto: the name must be unique across both initializer and sparse_initializer",
    ),
    "initializer_without_a_name": Case(
        UNUSED,
        edit=filled(name=None),
        refused="an initializer of graph 'g' has no name",
        because="onnx.proto: each initializer must have a name",
    ),
    "value_defined_twice": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }",
        refused="'y' has two definitions in 'g'",
        onnxruntime=AT_LOAD,
    ),
    "value_twice_of_one_node": Case(
        "g (float[2] x) => (float[2] y) { y, y = TopK(x, x) }",
        refused="'y' has two definitions in 'g'",
        onnxruntime=AT_LOAD,
    ),
    "value_that_is_an_input": Case(
        "g (float[2] x) => (float[2] x) { x = Neg(x) }",
        refused="'x' has two definitions in 'g'",
        onnxruntime=AT_LOAD,
    ),
    "value_that_is_an_initializer": Case(
        "g (float[2] x) => (float[2] w) <float[2] w = {1, 2}> { w = Neg(x) }",
        refused="'w' has two definitions in 'g'",
        onnxruntime=AT_LOAD,
    ),
    "nodes_of_one_name": Case(
        "g (float[2] x) => (float[2] y) { [n] t = Neg(x) [n] y = Abs(t) }",
        refused="the node name 'n' occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "value_info_twice": Case(
        "g (float[2] x) => (float[2] y) <float[2] t, float[2] t> { t = Neg(x) y = Abs(t) }",
    ),
    "value_info_twice_in_contradiction": Case(
        "g (float[2] x) => (float[2] y) <float[2] t, int64[2] t> { t = Neg(x) y = Abs(t) }",
        refused="'t' is declared tensor(int64) and is tensor(float)",
        onnxruntime=AT_LOAD,
    ),
    "value_info_of_no_value": Case(
        "g (float[2] x) => (float[2] y) <float[2] t> { y = Neg(x) }",
    ),
    "value_made_nowhere": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x, zz) }",
        refused="the input 'zz' of a node in 'g' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "value_made_nowhere_and_read_by_nobody": Case(
        "g (float[2] x) => (float[2] y) { t = Neg(zz) y = Neg(x) }",
        refused="the input 'zz' of a node in 'g' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "output_made_nowhere": Case(
        "g (float[2] x) => (float[2] z) { y = Neg(x) }",
        refused="nothing in graph 'g' makes its output 'z'",
        onnxruntime=AT_LOAD,
    ),
    "output_without_a_name": Case(
        NEG,
        edit=lambda model: model.graph.output[0].ClearField("name"),
        refused="nothing in graph 'g' makes its output ''",
        onnxruntime=AT_LOAD,
    ),
    "input_without_a_name": Case(
        NEG,
        edit=lambda model: model.graph.input.add().CopyFrom(helper.make_tensor_value_info("", 1, [2])),
        refused="an input of the graph has no name",
        because="onnx.proto: the name of a ValueInfoProto must be present",
    ),
    "output_that_is_an_input": Case(
        "g (float[2] x) => (float[2] x) { y = Neg(x) }",
    ),
    "output_that_is_an_initializer": Case(
        "g (float[2] x) => (float[2] w) <float[2] w = {1, 2}> { y = Neg(x) }",
    ),
    "nodes_out_of_order": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(t) t = Abs(x) }",
    ),
    "nodes_in_a_cycle": Case(
        "g (float[2] x) => (float[2] y) { y = Add(t, x) t = Abs(y) }",
        refused="the graph has a cycle",
        onnxruntime=AT_LOAD,
    ),
    "node_that_reads_itself": Case(
        "g (float[2] x) => (float[2] y) { y = Add(y, x) }",
        refused="the graph has a cycle",
        onnxruntime=AT_LOAD,
    ),
    "body_value_of_an_outer_name": Case(
        "g (bool c, float[2] x) => (float[2] y) { t = Abs(x) z = Neg(t) y = If (c) <then_branch = a () => "
        "(float[2] t) { t = Neg(x) }, else_branch = b () => (float[2] u) { u = Abs(z) }> }",
        refused="'t' has two definitions: in the body 'a' and in a graph around it",
        onnxruntime=AT_LOAD,
    ),
    "body_input_of_an_outer_name": Case(
        "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b (int64 i, bool c, "
        "float[2] x) => (bool c, float[2] v) { v = Neg(x) }> }",
    ),
    "body_initializer_of_an_outer_name": Case(
        "g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { t = Add(x, w) y = If (c) <then_branch "
        "= a () => (float[2] v) <float[2] w = {3, 4}> { v = Add(t, w) }, else_branch = b () => (float[2] u) { "
        "u = Neg(x) }> }",
    ),
    "bodies_with_the_same_names": Case(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> }",
    ),
    "body_and_node_of_one_name": Case(
        "g (bool c, float[2] x) => (float[2] y) { [n] y = If (c) <then_branch = a () => (float[2] u) { [n] u = "
        "Neg(x) }, else_branch = b () => (float[2] u) { [n] u = Abs(x) }> }",
    ),
    "body_reads_a_later_value": Case(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(t) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> t = Abs(x) }",
    ),
    "body_value_read_outside": Case(
        "g (bool c, float[2] x) => (float[2] y) { z = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> y = Neg(u) }",
        refused="the input 'u' of a node in 'g' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "required_input_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x, ) }",
        edit=lambda model: model.graph.node[0].input.append("") if len(model.graph.node[0].input) == 1 else None,
        refused="Add needs its input 1 (B)",
        onnxruntime=AT_LOAD,
    ),
    "optional_input_left_out": Case(
        "g (float[2] x, float m) => (float[2] y) { y = Clip(x, , m) }",
    ),
    "variadic_input_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Concat <axis = 0> (x) }",
        edit=lambda model: model.graph.node[0].input.append(""),
        refused="Concat needs its input 1 (inputs)",
        onnxruntime=AT_RUN,
    ),
    "required_output_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Neg(x) }",
        edit=lambda model: model.graph.node[1].output.__setitem__(0, ""),
        refused="Neg needs a name for its output 0 (Y)",
        onnxruntime=AT_LOAD,
    ),
    "optional_output_left_out": Case(
        "g (float[1,1,2] x) => (float[1,1,2] y) { y = MaxPool <kernel_shape = [1]> (x) }",
        edit=lambda model: model.graph.node[0].output.append(""),
    ),
}
