"""What is wrong with a file as a whole, and the names of its values, nodes and graphs."""

from __future__ import annotations

import onnx
from onnx import helper

from invalid_models.case import AT_LOAD, AT_RUN, NEG, RUNS, UNUSED, WEIGHT, Case, filled, versions, weight

FILES = {
    "ir_version_missing": Case(NEG, "the model does not say its IR version", edit=lambda model: model.ClearField("ir_version")),
    "ir_version_0": Case(
        NEG,
        "the model does not say its IR version",
        edit=lambda model: setattr(model, "ir_version", 0),
        because="onnx.proto: this field must be present; 0 is what it is when it is not",
    ),
    "ir_version_negative": Case(
        NEG,
        "the model does not say its IR version",
        edit=lambda model: setattr(model, "ir_version", -3),
        because="there is no such version",
    ),
    "ir_version_from_the_future": Case(
        NEG,
        "the model has IR version 99; the installed onnx knows up to 14",
        edit=lambda model: setattr(model, "ir_version", 99),
    ),
    "ir_version_newest": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", onnx.IR_VERSION),
        onnxruntime=AT_LOAD,
        because="onnxruntime 1.31 knows IR versions up to 13",
        elsewhere=(RUNS,),
    ),
    "ir_version_12": Case(NEG, edit=lambda model: setattr(model, "ir_version", 12)),
    "ir_version_2": Case(NEG, edit=lambda model: setattr(model, "ir_version", 2)),
    "ir_version_1": Case(NEG, edit=lambda model: setattr(model, "ir_version", 1)),
    "ir_version_2_without_opset": Case(
        NEG,
        "the model has no opset_import",
        edit=lambda model: (setattr(model, "ir_version", 2), model.ClearField("opset_import")),
    ),
    "opset_import_missing": Case(NEG, "the model has no opset_import", edit=versions()),
    "opset_0": Case(NEG, "an opset version is out of range", edit=versions(("", 0))),
    "opset_negative": Case(NEG, "an opset version is out of range", edit=versions(("", -1))),
    "opset_without_a_version": Case(NEG, "an opset version is out of range", edit=lambda model: model.opset_import[0].ClearField("version")),
    "opset_from_the_future": Case(NEG, "the model needs opset 99; the installed onnx knows up to 28", edit=versions(("", 99))),
    "opset_of_ml_from_the_future": Case(
        NEG,
        "the model needs opset 99 of ai.onnx.ml; the installed onnx knows up to 5",
        edit=versions(("", 21), ("ai.onnx.ml", 99)),
    ),
    "opset_of_ml_from_the_future_used": Case(
        "g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer(x) }",
        "the model needs opset 99 of ai.onnx.ml; the installed onnx knows up to 5",
        edit=versions(("", 21), ("ai.onnx.ml", 99)),
    ),
    "opset_training_from_the_future": Case(
        NEG,
        "the model needs opset 99 of ai.onnx.preview.training; the installed onnx kn",
        edit=versions(("", 21), ("ai.onnx.preview.training", 99)),
    ),
    "opset_of_an_unknown_domain": Case(NEG, edit=versions(("", 21), ("org.unknown", 99))),
    "opset_of_an_unknown_domain_0": Case(
        NEG,
        "an opset version is out of range",
        edit=versions(("", 21), ("org.unknown", 0)),
        because="onnx.proto: the version must be present; 0 is what it is when it is not",
    ),
    "opset_imported_twice": Case(
        NEG,
        "two versions of the opset 'ai.onnx' are imported: 21 and 7",
        edit=versions(("", 21), ("ai.onnx", 7)),
        because="one domain of two versions has no meaning; onnxruntime takes the last",
    ),
    "opset_imported_twice_alike": Case(NEG, edit=versions(("", 21), ("ai.onnx", 21))),
    "standard_domain_not_imported": Case(
        NEG,
        "the model imports no opset of domain 'ai.onnx'",
        edit=versions(("ai.onnx.ml", 3)),
        because="onnx.proto: an entry of opset_import says which operators there are",
    ),
    "ml_domain_not_imported": Case(
        "g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer(x) }",
        "the model imports no opset of domain 'ai.onnx.ml'",
        because="onnx.proto: an entry of opset_import says which operators there are",
    ),
    "training_domain_not_imported": Case(
        "g (float r, int64 t, float[2] x, float[2] d, float[2] h) => (float[2] y, float[2] z) { y, z = "
        "ai.onnx.preview.training.Adagrad(r, t, x, d, h) }",
        "the model imports no opset of domain 'ai.onnx.preview.training'",
    ),
    "unknown_domain_not_imported": Case(
        "g (float[2] x) => (float[2] y) { y = zz.Neg(x) }", "the model imports no opset of domain 'zz'"
    ),
    "unknown_domain_imported": Case(
        '<ir_version: 10, opset_import: ["": 21, "zz": 1]> g (float[2] x) => (float[2] y) { y = zz.Neg(x) }',
        "the runner has no kernel for zz::Neg, opset 1",
    ),
    "unknown_operator": Case(
        "g (float[2] x) => (float[2] y) { y = Neggg(x) }", "the runner has no kernel for Neggg, opset 21"
    ),
    "operator_of_a_later_opset": Case(
        "g (float[2] x) => (float[2] y) { y = RMSNormalization(x, x) }",
        "the runner has no kernel for RMSNormalization, opset 21",
    ),
    "operator_of_an_earlier_opset": Case(
        '<ir_version: 10, opset_import: ["": 10]> g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = '
        "Upsample(x, s) }",
        "Upsample may not be used from opset 10 on",
    ),
    "deprecated_operator": Case(
        "g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Upsample(x, s) }",
        "Upsample may not be used from opset 10 on",
    ),
    "operator_without_a_name": Case(NEG, "a node does not say its operator", edit=lambda model: model.graph.node[0].ClearField("op_type")),
    "graph_missing": Case(NEG, "the model has no graph", edit=lambda model: model.ClearField("graph")),
    "graph_without_a_name": Case(NEG, edit=lambda model: model.graph.ClearField("name")),
    "graph_without_nodes": Case("g (float[2] x) => (float[2] x) { }"),
    "graph_without_outputs": Case(
        "g (float[2] x) => () { y = Neg(x) }",
        onnxruntime=AT_RUN,
        because="onnxruntime loads it and cannot be asked for nothing",
    ),
    "metadata_key_twice": Case(NEG, edit=lambda model: [model.metadata_props.add(key="a", value=v) for v in "bc"]),
    "producer_missing": Case(NEG, edit=lambda model: model.ClearField("producer_name")),
    "alias_of_the_standard_domain": Case("g (float[2] x) => (float[2] y) { y = ai.onnx.Neg(x) }"),
    "alias_imported": Case(NEG, edit=versions(("ai.onnx", 21))),
}  # fmt: skip


NAMES = {
    "input_twice": Case(
        "g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }", "the graph input 'x' occurs twice"
    ),
    "output_twice": Case("g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }"),
    "initializer_twice": Case(
        WEIGHT,
        "the initializer 'w' occurs twice",
        edit=lambda model: model.graph.initializer.append(weight(model)),
        because="onnx.proto: the name must be unique across both initializer and sparse_initializer",
    ),
    "initializer_without_a_name": Case(
        UNUSED,
        "an initializer of graph 'g' has no name",
        edit=filled(name=None),
        because="onnx.proto: each initializer must have a name",
    ),
    "value_defined_twice": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }", "'y' has two definitions in 'g'"
    ),
    "value_twice_of_one_node": Case(
        "g (float[2] x) => (float[2] y) { y, y = TopK(x, x) }", "'y' has two definitions in 'g'"
    ),
    "value_that_is_an_input": Case("g (float[2] x) => (float[2] x) { x = Neg(x) }", "'x' has two definitions in 'g'"),
    "value_that_is_an_initializer": Case(
        "g (float[2] x) => (float[2] w) <float[2] w = {1, 2}> { w = Neg(x) }", "'w' has two definitions in 'g'"
    ),
    "nodes_of_one_name": Case(
        "g (float[2] x) => (float[2] y) { [n] t = Neg(x) [n] y = Abs(t) }", "the node name 'n' occurs twice"
    ),
    "value_info_twice": Case("g (float[2] x) => (float[2] y) <float[2] t, float[2] t> { t = Neg(x) y = Abs(t) }"),
    "value_info_twice_in_contradiction": Case(
        "g (float[2] x) => (float[2] y) <float[2] t, int64[2] t> { t = Neg(x) y = Abs(t) }",
        "'t' is declared tensor(int64) and is tensor(float)",
    ),
    "value_info_of_no_value": Case("g (float[2] x) => (float[2] y) <float[2] t> { y = Neg(x) }"),
    "value_made_nowhere": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x, zz) }", "the input 'zz' of a node in 'g' is made nowhere"
    ),
    "value_made_nowhere_and_read_by_nobody": Case(
        "g (float[2] x) => (float[2] y) { t = Neg(zz) y = Neg(x) }", "the input 'zz' of a node in 'g' is made nowhere"
    ),
    "output_made_nowhere": Case(
        "g (float[2] x) => (float[2] z) { y = Neg(x) }", "nothing in graph 'g' makes its output 'z'"
    ),
    "output_without_a_name": Case(NEG, "nothing in graph 'g' makes its output ''", edit=lambda model: model.graph.output[0].ClearField("name")),
    "input_without_a_name": Case(
        NEG,
        "an input of the graph has no name",
        edit=lambda model: model.graph.input.add().CopyFrom(helper.make_tensor_value_info("", 1, [2])),
        because="onnx.proto: the name of a ValueInfoProto must be present",
    ),
    "output_that_is_an_input": Case("g (float[2] x) => (float[2] x) { y = Neg(x) }"),
    "output_that_is_an_initializer": Case("g (float[2] x) => (float[2] w) <float[2] w = {1, 2}> { y = Neg(x) }"),
    "nodes_out_of_order": Case("g (float[2] x) => (float[2] y) { y = Neg(t) t = Abs(x) }"),
    "nodes_in_a_cycle": Case("g (float[2] x) => (float[2] y) { y = Add(t, x) t = Abs(y) }", "the graph has a cycle"),
    "node_that_reads_itself": Case("g (float[2] x) => (float[2] y) { y = Add(y, x) }", "the graph has a cycle"),
    "body_value_of_an_outer_name": Case(
        "g (bool c, float[2] x) => (float[2] y) { t = Abs(x) z = Neg(t) y = If (c) <then_branch = a () => "
        "(float[2] t) { t = Neg(x) }, else_branch = b () => (float[2] u) { u = Abs(z) }> }",
        "'t' has two definitions: in the body 'a' and in a graph around it",
    ),
    "body_input_of_an_outer_name": Case(
        "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b (int64 i, bool c, "
        "float[2] x) => (bool c, float[2] v) { v = Neg(x) }> }"
    ),
    "body_initializer_of_an_outer_name": Case(
        "g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { t = Add(x, w) y = If (c) <then_branch "
        "= a () => (float[2] v) <float[2] w = {3, 4}> { v = Add(t, w) }, else_branch = b () => (float[2] u) { "
        "u = Neg(x) }> }"
    ),
    "bodies_with_the_same_names": Case(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> }"
    ),
    "body_and_node_of_one_name": Case(
        "g (bool c, float[2] x) => (float[2] y) { [n] y = If (c) <then_branch = a () => (float[2] u) { [n] u = "
        "Neg(x) }, else_branch = b () => (float[2] u) { [n] u = Abs(x) }> }"
    ),
    "body_reads_a_later_value": Case(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(t) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> t = Abs(x) }"
    ),
    "body_value_read_outside": Case(
        "g (bool c, float[2] x) => (float[2] y) { z = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (float[2] u) { u = Abs(x) }> y = Neg(u) }",
        "the input 'u' of a node in 'g' is made nowhere",
    ),
    "required_input_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x, ) }",
        "Add needs its input 1 (B)",
        edit=lambda model: model.graph.node[0].input.append("") if len(model.graph.node[0].input) == 1 else None,
    ),
    "optional_input_left_out": Case("g (float[2] x, float m) => (float[2] y) { y = Clip(x, , m) }"),
    "variadic_input_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Concat <axis = 0> (x) }",
        "Concat needs its input 1 (inputs)",
        edit=lambda model: model.graph.node[0].input.append(""),
        onnxruntime=AT_RUN,
    ),
    "required_output_left_out": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Neg(x) }",
        "Neg needs a name for its output 0 (Y)",
        edit=lambda model: model.graph.node[1].output.__setitem__(0, ""),
    ),
    "optional_output_left_out": Case(
        "g (float[1,1,2] x) => (float[1,1,2] y) { y = MaxPool <kernel_shape = [1]> (x) }",
        edit=lambda model: model.graph.node[0].output.append(""),
    ),
}  # fmt: skip
