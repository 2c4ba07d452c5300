"""The same faults in the bodies of If, Loop, Scan and functions."""

from __future__ import annotations

from onnx import helper

from invalid_models.case import AT_LOAD, CALLING, FUNCTION, IF, LOOP, ONE, Case, attribute, in_branch

BODIES = {
    "branch_with_an_unknown_operator": Case(
        in_branch("u = Neggg(x)"),
        refused="the runner has no kernel for Neggg, opset 21",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_a_domain_that_is_not_imported": Case(
        in_branch("u = zz.Neg(x)"),
        refused="the model imports no opset of domain 'zz'",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_an_attribute_that_the_operator_lacks": Case(
        in_branch("u = Neg <sharpness = 1> (x)"),
        refused="Neg-13 has no attribute 'sharpness'",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_operands_of_different_types": Case(
        in_branch("s = Shape(x) u = Add(x, s)"),
        refused="input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_a_sequence_operator_on_a_tensor": Case(
        in_branch("n = SequenceLength(x) u = Neg(x)"),
        refused="input 0 (input_sequence) is tensor(float)",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_an_unknown_value": Case(
        in_branch('u = LpPool <auto_pad = "zz", kernel_shape = [1]> (x)'),
        refused="the attribute 'auto_pad' of LpPool is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_two_payloads": Case(
        in_branch("w = Constant <value = float[2] {1, 2}> () u = Add(x, w)"),
        edit=lambda model: setattr(attribute(model).g.node[0].attribute[0].t, "raw_data", bytes(8)),
        refused="attribute 'value' of Constant -> 'w' has its elements twice, in float_data",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_a_deprecated_operator": Case(
        in_branch("s = Constant <value = float[1] {1}> () u = Upsample(x, s)"),
        refused="Upsample may not be used from opset 10 on",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_nodes_of_one_name": Case(
        in_branch("[n] t = Neg(x) [n] u = Neg(t)"),
        refused="the node name 'n' occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "branch_that_gives_out_an_outer_value": Case(
        IF.replace("=> (float[2] u) { u = Neg(x) }", "=> (float[2] x) { u = Neg(x) }"),
        refused="nothing in graph 'a' makes its output 'x'",
        onnxruntime=AT_LOAD,
    ),
    "branch_with_a_sparse_index_out_of_range": Case(
        IF,
        edit=lambda model: attribute(model).g.sparse_initializer.add(
            values=ONE, indices=helper.make_tensor("i", 7, [1], [2]), dims=[2]
        ),
        refused="the sparse tensor 'w' has indices out of range",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_with_a_value_made_nowhere": Case(
        LOOP.replace("Neg(s)", "Add(s, zz)"),
        refused="the input 'zz' of a node in 'b' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_with_an_output_of_another_type": Case(
        LOOP.replace("float[2] v)", "int64[2] v)"),
        refused="'v' is declared tensor(int64) and is tensor(float)",
        onnxruntime=AT_LOAD,
    ),
    "scan_body_input_of_another_type": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (int64[2] s) => "
        "(float[2] v) { v = Cast <to = 1> (s) }> (x) }",
        refused="the input 's' of the body 'b' is declared tensor(int64) and is given tensor",
        onnxruntime=AT_LOAD,
    ),
    "scan_that_changes_its_state": Case(
        "g (float[2] i, float[3,2] x) => (int64[1] z, float[3,2] y) { z, y = Scan <num_scan_inputs = 1, body = "
        "b (float[2] a, float[2] s) => (int64[1] n, float[2] v) { n = Shape(a) v = Neg(s) }> (i, x) }",
        refused="the carried value 0 is tensor(float) before an iteration and tensor(int64)",
        onnxruntime=AT_LOAD,
    ),
    "scan_output_of_another_type": Case(
        "g (float[3,2] x) => (int64[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }",
        refused="'y' is declared tensor(int64) and is tensor(float)",
        onnxruntime=AT_LOAD,
    ),
    "scan": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }",
    ),
    "loop": Case(
        LOOP,
    ),
    "if": Case(
        IF,
    ),
    "function_with_an_attribute_that_the_operator_lacks": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = Neg <sharpness = 1> (x) }",
        refused="Neg-13 has no attribute 'sharpness'",
        onnxruntime=AT_LOAD,
    ),
    "function_with_nodes_of_one_name": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { [n] t = Neg(x) [n] y = Neg(t) }",
        refused="the node name 'n' occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "function_body_of_a_domain_that_is_not_imported": Case(
        CALLING
        + "g (bool c, float[2] x) => (float[2] y) { y = f.F(c, x) }"
        + FUNCTION
        + "F (c, x) => (y) { y = If (c) <then_branch = t () => (float[2] u) { u = ai.onnx.ml.Binarizer(x) }, else_branch = e () => (float[2] v) { v = Abs(x) }> }",
        refused="the function f::F imports no opset of domain 'ai.onnx.ml'",
        onnxruntime=AT_LOAD,
    ),
    "function_with_two_payloads": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { w = Constant <value = float[2] {1, 2}> () y = Add(x, w) }",
        edit=lambda model: setattr(model.functions[0].node[0].attribute[0].t, "raw_data", bytes(8)),
        refused="attribute 'value' of Constant -> 'w' has its elements twice, in float_data",
        because="onnx.proto: exactly one of the fields is used",
    ),
}
