"""Functions of a model, and faults in the bodies of functions, If, Loop and Scan."""

from __future__ import annotations

from onnx import helper

from invalid_models.case import AT_LOAD, CALLING, FUNCTION, HEADER, IF, LOOP, ONE, Case, attribute, in_branch

FUNCTIONS = {
    "function": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }"
    ),
    "function_without_imports": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the function f::F imports no opset of domain ''",
        edit=lambda model: model.functions[0].ClearField("opset_import"),
    ),
    "function_with_the_import_of_another_domain": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the function f::F imports no opset of domain ''",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "domain", "zz"),
    ),
    "function_with_a_future_opset": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the model needs opset 99; the installed onnx knows up to 28",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "version", 99),
    ),
    "function_with_another_opset": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "version", 13),
    ),
    "function_with_another_opset_of_another_operator": Case(
        CALLING
        + "g (float[2,1] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = Squeeze <axes = [1]> (x) }",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "version", 11),
        onnxruntime=AT_LOAD,
        because="onnx.proto: the schemas should be the same; the runner takes each function at its word",
    ),
    "function_of_a_domain_that_the_model_does_not_import": Case(
        HEADER + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the model imports no opset of domain 'f'",
    ),
    "function_unused_without_imports": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = Neg(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the function f::F imports no opset of domain ''",
        edit=lambda model: model.functions[0].ClearField("opset_import"),
    ),
    "function_unused_of_an_unknown_operator": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = Neg(x) }" + FUNCTION + "F (x) => (y) { y = Neggg(x) }"
    ),
    "function_that_calls_one_without_import": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = f.G(x) }"
        + FUNCTION
        + "G (x) => (y) { y = Neg(x) }",
        "the function f::F imports no opset of domain 'f'",
    ),
    "function_that_calls_one": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.G(x) }"
        + FUNCTION
        + "G (x) => (y) { y = Neg(x) }"
    ),
    "function_that_calls_itself": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.F(x) }",
        "the function f::F calls itself",
    ),
    "function_unused_that_calls_itself": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = Neg(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.F(x) }",
        "the function f::F calls itself",
    ),
    "function_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + (FUNCTION + "F (x) => (y) { y = Neg(x) }") * 2,
        "the function f::F is defined twice",
    ),
    "function_without_a_name": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: model.functions.add().CopyFrom(
            helper.make_function(
                "f", "", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 21)]
            )
        ),
    ),
    "function_without_a_domain": Case(
        "g (float[2] x) => (float[2] y) { y = F(x) }"
        + '<domain: "", opset_import: ["": 21]>'
        + "F (x) => (y) { y = Neg(x) }",
        "the runner has no kernel for F, opset 21",
    ),
    "function_in_place_of_an_operator": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) }"
        + '<domain: "", opset_import: ["": 21]>'
        + "Neg (x) => (y) { y = Abs(x) }"
    ),
    "function_input_made_nowhere": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Add(x, zz) }",
        "the input 'zz' of a node in 'F' is made nowhere",
    ),
    "function_that_reads_the_graph": Case(
        CALLING
        + "g (float[2] x, float[2] zz) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = Add(x, zz) }",
        "the input 'zz' of a node in 'F' is made nowhere",
        because="a function reads its inputs only",
    ),
    "function_body_that_reads_the_graph": Case(
        '<ir_version: 10, opset_import: ["": 21, "f": 1]> g (bool c, float[2] x, float[2] zz) => (float[2] y) { y = f.F(c, x) }'
        + FUNCTION
        + "F (c, x) => (y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(zz) }, else_branch = b () => (float[2] v) { v = Abs(x) }> }",
        "the input 'zz' of a node in 'a' is made nowhere",
    ),
    "function_output_made_nowhere": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (z) { y = Neg(x) }",
        "nothing in function F makes its output 'z'",
    ),
    "function_output_that_is_its_input": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (x) { y = Neg(x) }",
        onnxruntime=AT_LOAD,
        because="onnx says nothing against it; onnxruntime's schemas cannot say it",
    ),
    "function_input_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x, x) }" + FUNCTION + "F (x, x) => (y) { y = Neg(x) }",
        "the input of the function F 'x' occurs twice",
        because="which of the two would the name be?",
    ),
    "function_value_defined_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) y = Abs(x) }",
        "'y' has two definitions in 'f::F'",
    ),
    "function_output_twice": Case(
        CALLING
        + "g (float[2] x) => (float[2] y, float[2] z) { y, z = f.F(x) }"
        + FUNCTION
        + "F (x) => (y, y) { y = Neg(x) }",
        "the output of the function F 'y' occurs twice",
    ),
    "function_given_more_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x, x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "f::F is called with too many inputs or outputs",
    ),
    "function_given_fewer_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x, z) => (y) { y = Add(x, z) }",
        "Add needs its input 1 (B)",
    ),
    "function_given_fewer_optional_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x, z) => (y) { y = Clip(x, z) }"
    ),
    "function_asked_for_more_outputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y, z = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "f::F is called with too many inputs or outputs",
    ),
    "function_asked_for_fewer_outputs": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y, z) { y = Neg(x) z = Abs(x) }",
        onnxruntime=AT_LOAD,
        because="what nobody reads may be left out; onnxruntime's type inference counts on all",
    ),
    "function_attribute": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"
    ),
    "function_attribute_that_it_lacks": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F <b = 0.5> (x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }"
    ),
    "function_attribute_that_it_lacks_and_refers_to": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"
    ),
    "function_attribute_not_given": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"
    ),
    "function_attribute_not_given_but_required": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = Cast <to: int = @a> (x) }",
        "Cast needs the attribute 'to'",
    ),
    "function_attribute_by_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"
    ),
    "function_attribute_of_another_type": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 1> (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        "the attribute 'a' has the wrong type",
    ),
    "function_attribute_of_another_type_than_its_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 1> (x) }"
        + FUNCTION
        + "F <a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        "the attribute 'a' has the wrong type",
    ),
    "function_attribute_twice": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F <a, a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        "the attribute of the function F 'a' occurs twice",
        because="onnx.proto: an attribute stands in one of the two lists, once",
    ),
    "function_attribute_with_and_without_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F <a, a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        "the attribute of the function F 'a' occurs twice",
        because="onnx.proto: an attribute stands in one of the two lists, not both",
    ),
    "function_refers_to_an_attribute_it_lacks": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"
    ),
    "function_body_refers_in_a_branch": Case(
        CALLING
        + "g (bool c, float[2] x) => (float[2] y) { y = f.F <a = 0.5> (c, x) }"
        + FUNCTION
        + "F <a> (c, x) => (y) { y = If (c) <then_branch = t () => (float[2] u) { u = LeakyRelu <alpha: float = @a> (x) }, else_branch = e () => (float[2] v) { v = Abs(x) }> }"
    ),
    "function_of_operands_of_different_types": Case(
        CALLING
        + "g (float[2] x, int64[2] z) => (float[2] y) { y = f.F(x, z) }"
        + FUNCTION
        + "F (x, z) => (y) { y = Add(x, z) }",
        "input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
    ),
    "function_overload": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F : o (x) }"
        + '<domain: "f", overload: "o", opset_import: ["": 21]>'
        + "F (x) => (y) { y = Neg(x) }"
    ),
    "function_overload_that_there_is_not": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F : z (x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "the runner has no kernel for f::F, opset 1",
    ),
}


BODIES = {
    "branch_with_an_unknown_operator": Case(in_branch("u = Neggg(x)"), "the runner has no kernel for Neggg, opset 21"),
    "branch_with_a_domain_that_is_not_imported": Case(in_branch("u = zz.Neg(x)"), "the model imports no opset of domain 'zz'"),
    "branch_with_an_attribute_that_the_operator_lacks": Case(in_branch("u = Neg <sharpness = 1> (x)"), "Neg-13 has no attribute 'sharpness'"),
    "branch_with_operands_of_different_types": Case(
        in_branch("s = Shape(x) u = Add(x, s)"),
        "input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
    ),
    "branch_with_a_sequence_operator_on_a_tensor": Case(in_branch("n = SequenceLength(x) u = Neg(x)"), "input 0 (input_sequence) is tensor(float)"),
    "branch_with_an_unknown_value": Case(
        in_branch('u = LpPool <auto_pad = "zz", kernel_shape = [1]> (x)'),
        "the attribute 'auto_pad' of LpPool is 'zz', which ONNX does not know",
    ),
    "branch_with_two_payloads": Case(
        in_branch("w = Constant <value = float[2] {1, 2}> () u = Add(x, w)"),
        "attribute 'value' of Constant -> 'w' has its elements twice, in float_data",
        edit=lambda model: setattr(attribute(model).g.node[0].attribute[0].t, "raw_data", bytes(8)),
    ),
    "branch_with_a_deprecated_operator": Case(
        in_branch("s = Constant <value = float[1] {1}> () u = Upsample(x, s)"),
        "Upsample may not be used from opset 10 on",
    ),
    "branch_with_nodes_of_one_name": Case(in_branch("[n] t = Neg(x) [n] u = Neg(t)"), "the node name 'n' occurs twice"),
    "branch_that_gives_out_an_outer_value": Case(
        IF.replace("=> (float[2] u) { u = Neg(x) }", "=> (float[2] x) { u = Neg(x) }"),
        "nothing in graph 'a' makes its output 'x'",
    ),
    "branch_with_a_sparse_index_out_of_range": Case(
        IF,
        "the sparse tensor 'w' has indices out of range",
        edit=lambda model: attribute(model).g.sparse_initializer.add(
            values=ONE, indices=helper.make_tensor("i", 7, [1], [2]), dims=[2]
        ),
    ),
    "loop_body_with_a_value_made_nowhere": Case(LOOP.replace("Neg(s)", "Add(s, zz)"), "the input 'zz' of a node in 'b' is made nowhere"),
    "loop_body_with_an_output_of_another_type": Case(
        LOOP.replace("float[2] v)", "int64[2] v)"), "'v' is declared tensor(int64) and is tensor(float)"
    ),
    "scan_body_input_of_another_type": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (int64[2] s) => "
        "(float[2] v) { v = Cast <to = 1> (s) }> (x) }",
        "the input 's' of the body 'b' is declared tensor(int64) and is given tensor",
    ),
    "scan_that_changes_its_state": Case(
        "g (float[2] i, float[3,2] x) => (int64[1] z, float[3,2] y) { z, y = Scan <num_scan_inputs = 1, body = "
        "b (float[2] a, float[2] s) => (int64[1] n, float[2] v) { n = Shape(a) v = Neg(s) }> (i, x) }",
        "the carried value 0 is tensor(float) before an iteration and tensor(int64)",
    ),
    "scan_output_of_another_type": Case(
        "g (float[3,2] x) => (int64[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "scan": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }"
    ),
    "loop": Case(LOOP),
    "if": Case(IF),
    "function_with_an_attribute_that_the_operator_lacks": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = Neg <sharpness = 1> (x) }",
        "Neg-13 has no attribute 'sharpness'",
    ),
    "function_with_nodes_of_one_name": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { [n] t = Neg(x) [n] y = Neg(t) }",
        "the node name 'n' occurs twice",
    ),
    "function_body_of_a_domain_that_is_not_imported": Case(
        CALLING
        + "g (bool c, float[2] x) => (float[2] y) { y = f.F(c, x) }"
        + FUNCTION
        + "F (c, x) => (y) { y = If (c) <then_branch = t () => (float[2] u) { u = ai.onnx.ml.Binarizer(x) }, else_branch = e () => (float[2] v) { v = Abs(x) }> }",
        "the function f::F imports no opset of domain 'ai.onnx.ml'",
    ),
    "function_with_two_payloads": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { w = Constant <value = float[2] {1, 2}> () y = Add(x, w) }",
        "attribute 'value' of Constant -> 'w' has its elements twice, in float_data",
        edit=lambda model: setattr(model.functions[0].node[0].attribute[0].t, "raw_data", bytes(8)),
        because="onnx.proto: exactly one of the fields is used",
    ),
}  # fmt: skip
