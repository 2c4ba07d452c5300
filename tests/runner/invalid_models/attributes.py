"""Attributes: whose, of which type, with which value."""

from __future__ import annotations

from invalid_models.case import AT_LOAD, AT_RUN, IF, Case, attribute

ATTRIBUTES = {
    "attribute_that_the_operator_lacks": Case(
        "g (float[2] x) => (float[2] y) { y = Neg <sharpness = 1> (x) }",
        refused="Neg-13 has no attribute 'sharpness'",
        onnxruntime=AT_LOAD,
    ),
    "attribute_of_a_later_opset": Case(
        '<ir_version: 7, opset_import: ["": 13]> g (float[2,2] x) => (float[2,2] y) { y = Reshape <allowzero = '
        "1> (x, x) }",
        refused="Reshape-13 has no attribute 'allowzero'",
        onnxruntime=AT_LOAD,
    ),
    "attribute_of_an_earlier_opset": Case(
        "g (float[2] x) => (float[2] y) { y = Dropout <ratio = 0.5> (x) }",
        refused="Dropout-13 has no attribute 'ratio'",
        onnxruntime=AT_LOAD,
    ),
    "attribute_of_an_old_file": Case(
        '<ir_version: 3, opset_import: ["": 7]> g (float[2] x) => (float[2] y) { y = Dropout <ratio = 0.5> (x) }',
    ),
    "attribute_consumed_inputs": Case(
        '<ir_version: 3, opset_import: ["": 5]> g (float[2] x) => (float[2] y) { y = Relu <consumed_inputs = '
        "[0]> (x) }",
        onnxruntime=AT_LOAD,
        because="valid in opset 5; onnxruntime begins with opset 7",
    ),
    "attribute_is_test_of_an_old_dropout": Case(
        '<ir_version: 3, opset_import: ["": 6]> g (float[2] x) => (float[2] y) { y = Dropout <is_test = 1, '
        "ratio = 0.5> (x) }",
        onnxruntime=AT_LOAD,
        because="valid in opset 6; onnxruntime begins with opset 7",
    ),
    "attribute_of_another_type": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 1> (x) }",
        refused="the attribute 'alpha' of LeakyRelu is FLOAT, not INT",
        onnxruntime=AT_LOAD,
    ),
    "attribute_of_a_list_for_one": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha: floats = [1.0]> (x) }",
        refused="the attribute 'alpha' of LeakyRelu is FLOAT, not FLOATS",
        onnxruntime=AT_LOAD,
    ),
    "attribute_required_and_missing": Case(
        "g (float[2] x) => (float[2] y) { y = Cast (x) }",
        refused="Cast needs the attribute 'to'",
        onnxruntime=AT_LOAD,
    ),
    "attribute_twice": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5, alpha = 0.25> (x) }",
        refused="an attribute of LeakyRelu occurs twice",
        onnxruntime=AT_LOAD,
    ),
    "attribute_without_a_name": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: attribute(model).ClearField("name"),
        refused="LeakyRelu-16 has no attribute ''",
        onnxruntime=AT_LOAD,
    ),
    "attribute_without_a_type": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: attribute(model).ClearField("type"),
        refused="the attribute 'alpha' of LeakyRelu has a value that is not of its type, UND",
        onnxruntime=AT_LOAD,
    ),
    "attribute_without_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: attribute(model).ClearField("f"),
    ),
    "attribute_of_two_values": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: setattr(attribute(model), "i", 3),
        refused="the attribute 'alpha' of LeakyRelu has a value that is not of its type, FLO",
        onnxruntime=AT_LOAD,
    ),
    "attribute_of_a_value_of_another_type": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: (attribute(model).ClearField("f"), setattr(attribute(model), "i", 3)),
        refused="the attribute 'alpha' of LeakyRelu has a value that is not of its type, FLO",
        onnxruntime=AT_LOAD,
    ),
    "attribute_tensor_missing": Case(
        "g (int64[1] x) => (float[n] y) { y = ConstantOfShape <value = float[1] {1}> (x) }",
        edit=lambda model: attribute(model).ClearField("t"),
        refused="the attribute 'value' of ConstantOfShape is TENSOR and has no value",
        onnxruntime=AT_LOAD,
    ),
    "attribute_graph_missing": Case(
        IF,
        edit=lambda model: attribute(model).ClearField("g"),
        refused="the attribute 'then_branch' of If is GRAPH and has no value",
        onnxruntime=AT_LOAD,
    ),
    "attribute_that_refers_outside_a_function": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha: float = @a> (x) }",
        refused="the attribute 'alpha' of LeakyRelu refers to 'a', an attribute of a functio",
        because="onnx.proto: ref_attr_name is invalid in the main graph",
    ),
    "attribute_that_refers_in_a_branch": Case(
        IF.replace("Neg(x)", "LeakyRelu <alpha: float = @a> (x)"),
        refused="the attribute 'alpha' of LeakyRelu refers to 'a', an attribute of a functio",
        because="onnx.proto: ref_attr_name is invalid in the main graph",
    ),
    "attribute_that_refers_and_has_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: setattr(attribute(model), "ref_attr_name", "a"),
        refused="the attribute 'alpha' of LeakyRelu refers to another attribute and has a va",
        because="onnx.proto: an attribute that refers to another does not contain data",
    ),
    "attribute_of_an_unknown_operator": Case(
        '<ir_version: 10, opset_import: ["": 21, "zz": 1]> g (float[2] x) => (float[2] y) { y = zz.Neg <a = 1> (x) }',
        refused="the runner has no kernel for zz::Neg, opset 1",
        onnxruntime=AT_LOAD,
    ),
    "attribute_list_that_is_empty": Case(
        "g (float[2] x) => (float[2] y) { y = Transpose <perm: ints = []> (x) }",
        refused="axes don't match array",
        onnxruntime=AT_RUN,
    ),
    "constant_without_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = Constant () }",
        refused="no value attribute is given",
        onnxruntime=AT_LOAD,
    ),
    "constant_of_two_values": Case(
        "g (float[2] x) => (float y) { y = Constant <value_float = 1.0, value_int = 2> () }",
    ),
    "string_attribute_that_is_not_utf_8": Case(
        'g (float[2,2] x) => (float[2,2] y) { y = Conv <auto_pad = "VALID"> (x, x) }',
        edit=lambda model: setattr(attribute(model), "s", b"\xff"),
        refused="the attribute 'auto_pad' of Conv is '�', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
}
