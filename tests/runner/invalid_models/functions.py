"""Model-local functions: what they import, define and are called with."""

from __future__ import annotations

from onnx import helper

from invalid_models.case import AT_LOAD, CALLING, FUNCTION, HEADER, Case

FUNCTIONS = {
    "function": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
    ),
    "function_without_imports": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: model.functions[0].ClearField("opset_import"),
        refused="the function f::F imports no opset of domain ''",
        onnxruntime=AT_LOAD,
    ),
    "function_with_the_import_of_another_domain": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "domain", "zz"),
        refused="the function f::F imports no opset of domain ''",
        onnxruntime=AT_LOAD,
    ),
    "function_with_a_future_opset": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: setattr(model.functions[0].opset_import[0], "version", 99),
        refused="the model needs opset 99; the installed onnx knows up to 28",
        onnxruntime=AT_LOAD,
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
        refused="the model imports no opset of domain 'f'",
        onnxruntime=AT_LOAD,
    ),
    "function_unused_without_imports": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = Neg(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        edit=lambda model: model.functions[0].ClearField("opset_import"),
        refused="the function f::F imports no opset of domain ''",
        onnxruntime=AT_LOAD,
    ),
    "function_unused_of_an_unknown_operator": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = Neg(x) }" + FUNCTION + "F (x) => (y) { y = Neggg(x) }",
    ),
    "function_that_calls_one_without_import": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = f.G(x) }"
        + FUNCTION
        + "G (x) => (y) { y = Neg(x) }",
        refused="the function f::F imports no opset of domain 'f'",
        onnxruntime=AT_LOAD,
    ),
    "function_that_calls_one": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.G(x) }"
        + FUNCTION
        + "G (x) => (y) { y = Neg(x) }",
    ),
    "function_that_calls_itself": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.F(x) }",
        refused="the function f::F calls itself",
        onnxruntime=AT_LOAD,
    ),
    "function_unused_that_calls_itself": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = Neg(x) }"
        + '<domain: "f", opset_import: ["": 21, "f": 1]>'
        + "F (x) => (y) { y = f.F(x) }",
        refused="the function f::F calls itself",
        onnxruntime=AT_LOAD,
    ),
    "function_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + (FUNCTION + "F (x) => (y) { y = Neg(x) }") * 2,
        refused="the function f::F is defined twice",
        onnxruntime=AT_LOAD,
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
        refused="the runner has no kernel for F, opset 21",
        onnxruntime=AT_LOAD,
    ),
    "function_in_place_of_an_operator": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) }"
        + '<domain: "", opset_import: ["": 21]>'
        + "Neg (x) => (y) { y = Abs(x) }",
    ),
    "function_input_made_nowhere": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Add(x, zz) }",
        refused="the input 'zz' of a node in 'F' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "function_that_reads_the_graph": Case(
        CALLING
        + "g (float[2] x, float[2] zz) => (float[2] y) { y = f.F(x) }"
        + FUNCTION
        + "F (x) => (y) { y = Add(x, zz) }",
        refused="the input 'zz' of a node in 'F' is made nowhere",
        because="a function reads its inputs only",
    ),
    "function_body_that_reads_the_graph": Case(
        '<ir_version: 10, opset_import: ["": 21, "f": 1]> g (bool c, float[2] x, float[2] zz) => (float[2] y) { y = f.F(c, x) }'
        + FUNCTION
        + "F (c, x) => (y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(zz) }, else_branch = b () => (float[2] v) { v = Abs(x) }> }",
        refused="the input 'zz' of a node in 'a' is made nowhere",
        onnxruntime=AT_LOAD,
    ),
    "function_output_made_nowhere": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (z) { y = Neg(x) }",
        refused="nothing in function F makes its output 'z'",
        onnxruntime=AT_LOAD,
    ),
    "function_output_that_is_its_input": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (x) { y = Neg(x) }",
        onnxruntime=AT_LOAD,
        because="onnx says nothing against it; onnxruntime's schemas cannot say it",
    ),
    "function_input_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x, x) }" + FUNCTION + "F (x, x) => (y) { y = Neg(x) }",
        refused="the input of the function F 'x' occurs twice",
        because="which of the two would the name be?",
    ),
    "function_value_defined_twice": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) y = Abs(x) }",
        refused="'y' has two definitions in 'f::F'",
        onnxruntime=AT_LOAD,
    ),
    "function_output_twice": Case(
        CALLING
        + "g (float[2] x) => (float[2] y, float[2] z) { y, z = f.F(x) }"
        + FUNCTION
        + "F (x) => (y, y) { y = Neg(x) }",
        refused="the output of the function F 'y' occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "function_given_more_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x, x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        refused="f::F is called with too many inputs or outputs",
        onnxruntime=AT_LOAD,
    ),
    "function_given_fewer_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x, z) => (y) { y = Add(x, z) }",
        refused="Add needs its input 1 (B)",
        onnxruntime=AT_LOAD,
    ),
    "function_given_fewer_optional_inputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F(x) }" + FUNCTION + "F (x, z) => (y) { y = Clip(x, z) }",
    ),
    "function_asked_for_more_outputs": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y, z = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        refused="f::F is called with too many inputs or outputs",
        onnxruntime=AT_LOAD,
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
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
    ),
    "function_attribute_that_it_lacks": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F <b = 0.5> (x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
    ),
    "function_attribute_that_it_lacks_and_refers_to": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
    ),
    "function_attribute_not_given": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
    ),
    "function_attribute_not_given_but_required": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = Cast <to: int = @a> (x) }",
        refused="Cast needs the attribute 'to'",
        onnxruntime=AT_LOAD,
    ),
    "function_attribute_by_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F <a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
    ),
    "function_attribute_of_another_type": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 1> (x) }"
        + FUNCTION
        + "F <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        refused="the attribute 'a' has the wrong type",
        onnxruntime=AT_LOAD,
    ),
    "function_attribute_of_another_type_than_its_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 1> (x) }"
        + FUNCTION
        + "F <a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        refused="the attribute 'a' has the wrong type",
        onnxruntime=AT_LOAD,
    ),
    "function_attribute_twice": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F <a, a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        refused="the attribute of the function F 'a' occurs twice",
        because="onnx.proto: an attribute stands in one of the two lists, once",
    ),
    "function_attribute_with_and_without_default": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F <a = 0.5> (x) }"
        + FUNCTION
        + "F <a, a: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
        refused="the attribute of the function F 'a' occurs twice",
        because="onnx.proto: an attribute stands in one of the two lists, not both",
    ),
    "function_refers_to_an_attribute_it_lacks": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F (x) }"
        + FUNCTION
        + "F (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }",
    ),
    "function_body_refers_in_a_branch": Case(
        CALLING
        + "g (bool c, float[2] x) => (float[2] y) { y = f.F <a = 0.5> (c, x) }"
        + FUNCTION
        + "F <a> (c, x) => (y) { y = If (c) <then_branch = t () => (float[2] u) { u = LeakyRelu <alpha: float = @a> (x) }, else_branch = e () => (float[2] v) { v = Abs(x) }> }",
    ),
    "function_of_operands_of_different_types": Case(
        CALLING
        + "g (float[2] x, int64[2] z) => (float[2] y) { y = f.F(x, z) }"
        + FUNCTION
        + "F (x, z) => (y) { y = Add(x, z) }",
        refused="input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
        onnxruntime=AT_LOAD,
    ),
    "function_overload": Case(
        CALLING
        + "g (float[2] x) => (float[2] y) { y = f.F : o (x) }"
        + '<domain: "f", overload: "o", opset_import: ["": 21]>'
        + "F (x) => (y) { y = Neg(x) }",
    ),
    "function_overload_that_there_is_not": Case(
        CALLING + "g (float[2] x) => (float[2] y) { y = f.F : z (x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        refused="the runner has no kernel for f::F, opset 1",
        onnxruntime=AT_LOAD,
    ),
}
