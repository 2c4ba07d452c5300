"""Types that are declared, and types that operators take."""

from __future__ import annotations

from onnx import helper

from invalid_models.case import AT_RUN, CALLING, FUNCTION, IF, LOOP, NEG, Case, attribute, tensor_type

TYPES = {
    "output_of_another_type": Case(
        "g (float[2] x) => (int64[2] y) { y = Neg(x) }", "'y' is declared tensor(int64) and is tensor(float)"
    ),
    "output_of_another_type_behind_unknown_sizes": Case(
        "g (float[n] x) => (int64[m] y) { t = NonZero(x) u = Gather(x, t) y = Neg(u) }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "output_of_another_type_of_cast": Case(
        "g (float[2] x) => (int64[2] y) { y = Cast <to = 6> (x) }", "'y' is declared tensor(int64) and is tensor(int32)"
    ),
    "output_of_another_type_of_shape": Case(
        "g (float[2] x) => (float[1] y) { y = Shape(x) }", "'y' is declared tensor(float) and is tensor(int64)"
    ),
    "output_of_another_type_of_constant": Case(
        "g (float[2] x) => (float[2] y) { y = Constant <value = int64[2] {1, 2}> () }",
        "'y' is declared tensor(float) and is tensor(int64)",
        because="the graph contradicts its declaration",
    ),
    "output_of_another_type_of_fill": Case(
        "g (int64[1] x) => (int64[n] y) { y = ConstantOfShape(x) }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "output_of_another_type_of_comparison": Case(
        "g (float[2] x) => (float[2] y) { y = Less(x, x) }", "'y' is declared tensor(float) and is tensor(bool)"
    ),
    "output_of_another_type_of_indices": Case(
        "g (float[2] x, int64[1] k) => (float[1] y, float[1] z) { y, z = TopK(x, k) }",
        "'z' is declared tensor(float) and is tensor(int64)",
    ),
    "output_of_another_type_of_a_passed_input": Case(
        "g (float[2] x) => (int64[2] x) { y = Neg(x) }",
        "'x' is declared tensor(int64) and is tensor(float)",
        because="the graph contradicts its declaration",
    ),
    "output_of_another_type_of_an_initializer": Case(
        "g (float[2] x) => (int64[2] w) <float[2] w = {1, 2}> { y = Neg(x) }",
        "'w' is declared tensor(int64) and is tensor(float)",
        because="the graph contradicts its declaration",
    ),
    "output_sequence_for_a_tensor": Case(
        "g (float[2] x) => (seq(float[2]) y) { y = Neg(x) }", "'y' is declared seq(tensor(float)) and is tensor(float)"
    ),
    "output_tensor_for_a_sequence": Case(
        "g (float[2] x) => (float[2] y) { y = SequenceConstruct(x) }",
        "'y' is declared tensor(float) and is seq(tensor(float))",
    ),
    "output_sequence_of_another_type": Case(
        "g (float[2] x) => (seq(int64[2]) y) { y = SequenceConstruct(x) }",
        "'y' is declared seq(tensor(int64)) and is seq(tensor(float))",
    ),
    "output_optional_for_a_tensor": Case(
        "g (float[2] x) => (optional(float[2]) y) { y = Neg(x) }",
        "'y' is declared optional(tensor(float)) and is tensor(float)",
    ),
    "output_of_another_type_of_sequence_at": Case(
        "g (float[2] x, int64 i) => (int64[2] y) { s = SequenceConstruct(x) y = SequenceAt(s, i) }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "output_of_another_type_of_if": Case(
        "g (bool c, float[2] x) => (int64[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (float[2] v) { v = Abs(x) }> }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "output_of_another_type_of_loop": Case(LOOP.replace("(float[2] y)", "(int64[2] y)"), "'y' is declared tensor(int64) and is tensor(float)"),
    "output_of_another_type_of_function": Case(
        CALLING + "g (float[2] x) => (int64[2] y) { y = f.F(x) }" + FUNCTION + "F (x) => (y) { y = Neg(x) }",
        "'y' is declared tensor(int64) and is tensor(float)",
    ),
    "output_of_another_type_of_a_branch": Case(IF.replace("(float[2] u)", "(int64[2] u)"), "'u' is declared tensor(int64) and is tensor(float)"),
    "branches_of_different_types": Case(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) "
        "}, else_branch = b () => (int64[1] v) { v = Shape(x) }> }",
        "output 0 is tensor(float) in one branch and tensor(int64) in the other",
    ),
    "output_of_another_rank": Case("g (float[2] x) => (float[2,1] y) { y = Neg(x) }"),
    "output_of_another_size": Case("g (float[2] x) => (float[3] y) { y = Neg(x) }"),
    "output_without_a_type": Case(NEG, edit=lambda model: model.graph.output[0].ClearField("type")),
    "output_of_the_undefined_type": Case(
        NEG,
        "a tensor type does not say its element type",
        edit=lambda model: setattr(model.graph.output[0].type.tensor_type, "elem_type", 0),
    ),
    "output_of_no_type_there_is": Case(
        NEG,
        "99 is no element type that ONNX knows",
        edit=lambda model: setattr(model.graph.output[0].type.tensor_type, "elem_type", 99),
    ),
    "value_info_of_another_type": Case(
        "g (float[2] x) => (float[2] y) <int64[2] t> { t = Neg(x) y = Abs(t) }",
        "'t' is declared tensor(int64) and is tensor(float)",
    ),
    "value_info_of_another_size": Case("g (float[2] x) => (float[2] y) <float[3] t> { t = Neg(x) y = Abs(t) }"),
    "value_info_without_a_type": Case(NEG, edit=lambda model: model.graph.value_info.add(name="y")),
    "value_info_of_an_input": Case("g (float[2] x) => (float[2] y) <int64[2] x> { y = Neg(x) }"),
    "value_info_of_an_initializer": Case(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
        edit=lambda model: model.graph.value_info.append(helper.make_tensor_value_info("w", 7, [2])),
    ),
    "input_without_a_type": Case(NEG, "the model's input 'x' has no type", edit=lambda model: model.graph.input[0].ClearField("type")),
    "input_of_the_undefined_type": Case(
        NEG,
        "a tensor type does not say its element type",
        edit=lambda model: setattr(tensor_type(model), "elem_type", 0),
    ),
    "input_of_no_type_there_is": Case(NEG, "99 is no element type that ONNX knows", edit=lambda model: setattr(tensor_type(model), "elem_type", 99)),
    "input_of_a_negative_size": Case(NEG, edit=lambda model: setattr(tensor_type(model).shape.dim[0], "dim_value", -1)),
    "input_of_a_very_negative_size": Case(NEG, edit=lambda model: setattr(tensor_type(model).shape.dim[0], "dim_value", -7)),
    "output_of_a_negative_size": Case(NEG, edit=lambda model: setattr(model.graph.output[0].type.tensor_type.shape.dim[0], "dim_value", -1)),
    "input_of_another_type_than_its_initializer": Case(
        "g (float[2] x, int64[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Neg(x) }",
        "the input 'w' is declared tensor(int64), and its initializer is tensor(floa",
    ),
    "input_of_another_size_than_its_initializer": Case(
        "g (float[2] x, float[3] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
        "the input 'w' is declared of shape [3], and its initializer is of [2]",
    ),
    "old_input_of_another_type_than_its_initializer": Case(
        '<ir_version: 3, opset_import: ["": 7]> g (float[2] x, int64[2] w) => (float[2] y) <float[2] w = {1, '
        "2}> { y = Add(x, w) }",
        "the input 'w' is declared tensor(int64), and its initializer is tensor(floa",
    ),
    "operands_of_different_types": Case(
        "g (float[2] x, int64[2] z) => (float[2] y) { y = Add(x, z) }",
        "input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
    ),
    "operands_of_different_types_of_unknown_rank": Case(
        "g (float x, int64 z) => (float y) { y = Add(x, z) }",
        "input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
        edit=lambda model: [info.type.tensor_type.ClearField("shape") for info in model.graph.input],
    ),
    "operands_of_different_types_behind_unknown_sizes": Case(
        "g (float[n] x) => (float[m] y) { t = NonZero(x) u = Squeeze(t) y = Mul(x, u) }",
        "input 1 (B) is tensor(int64) and input 0 (A) tensor(float); ONNX wants one",
    ),
    "operand_of_a_type_that_is_not_allowed": Case(
        "g (string[2] x) => (string[2] y) { y = Neg(x) }", "input 0 (X) is tensor(string)"
    ),
    "operand_of_a_type_that_is_not_allowed_unread": Case(
        "g (string[2] x, float[2] z) => (float[2] y) { t = Neg(x) y = Neg(z) }", "input 0 (X) is tensor(string)"
    ),
    "condition_that_is_no_bool": Case(IF.replace("bool c", "int64 c"), "input 0 (cond) is tensor(int64)"),
    "axes_that_are_floats": Case(
        "g (float[2,1] x, float[1] a) => (float[2] y) { y = Squeeze(x, a) }", "input 1 (axes) is tensor(float)"
    ),
    "zero_point_of_another_type": Case(
        "g (int8[2] x, float s, uint8 z) => (float[2] y) { y = DequantizeLinear(x, s, z) }",
        "input 2 (x_zero_point) is tensor(uint8) and input 0 (x) tensor(int8); ONNX",
    ),
    "zero_point_of_another_type_than_the_result": Case(
        "g (float[2] x, float s, uint8 z) => (int8[2] y) { y = QuantizeLinear(x, s, z) }",
        "'y' is declared tensor(int8) and is tensor(uint8)",
    ),
    "output_of_another_type_than_output_dtype": Case(
        "g (float[2] x, float s) => (uint8[2] y) { y = QuantizeLinear <output_dtype = 3> (x, s) }",
        "'y' is declared tensor(uint8) and is tensor(int8)",
    ),
    "output_dtype_and_zero_point": Case(
        "g (float[2] x, float s, uint8 z) => (uint8[2] y) { y = QuantizeLinear <output_dtype = 3> (x, s, z) }",
        "output_dtype asks for tensor(int8), and the zero point is tensor(uint8)",
    ),
    "quantised_product_of_floats": Case(
        "g (float[2,2] x) => (int32[2,2] y) { y = MatMulInteger(x, x) }", "input 0 (A) is tensor(float)"
    ),
    "sequence_at_of_a_tensor": Case(
        "g (float[2] x, int64 i) => (float y) { y = SequenceAt(x, i) }", "input 0 (input_sequence) is tensor(float)"
    ),
    "sequence_length_of_a_tensor": Case(
        "g (float[2] x) => (int64 y) { y = SequenceLength(x) }", "input 0 (input_sequence) is tensor(float)"
    ),
    "sequence_insert_into_a_tensor": Case(
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceInsert(x, x) }", "input 0 (input_sequence) is tensor(float)"
    ),
    "concat_of_a_tensor_as_sequence": Case(
        "g (float[2] x) => (float[2] y) { y = ConcatFromSequence <axis = 0> (x) }",
        "input 0 (input_sequence) is tensor(float)",
    ),
    "sequence_erase_of_a_tensor": Case(
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceErase(x) }", "input 0 (input_sequence) is tensor(float)"
    ),
    "sequence_construct_of_a_sequence": Case(
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = SequenceConstruct(x) }",
        "input 0 (inputs) is seq(tensor(float))",
    ),
    "sequence_construct_of_two_types": Case(
        "g (float[2] x, int64[2] z) => (seq(float[2]) y) { y = SequenceConstruct(x, z) }",
        "input 1 (inputs) is tensor(int64) and input 0 (inputs) tensor(float); ONNX",
    ),
    "sequence_insert_of_another_type": Case(
        "g (seq(float[2]) x, int64[2] z) => (seq(float[2]) y) { y = SequenceInsert(x, z) }",
        "the sequence holds tensor(float), and the value to insert is tensor(int64)",
    ),
    "neg_of_a_sequence": Case(
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = Neg(x) }", "input 0 (X) is seq(tensor(float))"
    ),
    "neg_of_an_optional": Case(
        "g (optional(float[2]) x) => (float[2] y) { y = Neg(x) }", "input 0 (X) is optional(tensor(float))"
    ),
    "optional_has_element_of_a_tensor": Case("g (float[2] x) => (bool y) { y = OptionalHasElement(x) }"),
    "optional_get_element_of_a_tensor_at_15": Case(
        '<ir_version: 8, opset_import: ["": 15]> g (float[2] x) => (float[2] y) { y = OptionalGetElement(x) }',
        "input 0 (input) is tensor(float)",
    ),
    "sequence_of_nothing": Case(
        "g (seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }",
        "the type of a sequence, optional or map does not say what is in it",
        edit=lambda model: model.graph.input[0].type.sequence_type.ClearField("elem_type"),
    ),
    "sequence_identity": Case("g (seq(float[2]) x) => (seq(float[2]) y) { y = Identity(x) }"),
    "cast_to_no_type": Case(
        "g (float[2] x) => (float[2] y) { y = Cast <to = 0> (x) }",
        "0 is no element type that ONNX knows",
        onnxruntime=AT_RUN,
    ),
    "cast_to_no_type_there_is": Case(
        "g (float[2] x) => (float[2] y) { y = Cast <to = 99> (x) }", "99 is no element type that ONNX knows"
    ),
    "cast_to_a_complex_number": Case(
        "g (float[2] x) => (complex64[2] y) { y = Cast <to = 14> (x) }",
        "it would make tensor(complex64), which ONNX does not allow",
    ),
    "loop_that_changes_the_type": Case(
        "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b (int64 i, bool a, "
        "float[2] s) => (bool a, int64[1] v) { v = Shape(s) }> }",
        "the carried value 0 is tensor(float) before an iteration and tensor(int64)",
    ),
    "loop_condition_that_is_no_bool": Case(
        "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) <body = b (int64 i, bool a, "
        "float[2] s) => (int64 i, float[2] v) { v = Neg(s) }> }",
        "its body's first output is the condition to go on, and is tensor(int64)",
        because="Loop: the condition is a tensor(bool)",
    ),
    "loop_body_input_of_another_type": Case(
        LOOP.replace("float[2] s", "int64[2] s").replace("float[2] v", "int64[2] v"),
        "the input 's' of the body 'b' is declared tensor(int64) and is given tensor",
    ),
    "loop_counter_of_another_type": Case(
        LOOP.replace("int64 i", "float i"),
        "the input 'i' of the body 'b' is declared tensor(float) and is given tensor",
    ),
    "loop_body_inputs_without_types": Case(
        LOOP,
        edit=lambda model: [info.ClearField("type") for info in attribute(model).g.input],
        onnxruntime=AT_RUN,
        because="onnx.proto: types must be present for the top-level graph only",
    ),
    "branch_output_without_a_type": Case(IF, edit=lambda model: [a.g.output[0].ClearField("type") for a in model.graph.node[0].attribute]),
}  # fmt: skip
