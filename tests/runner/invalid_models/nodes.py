"""Attributes, the texts and numbers that name one of a few things, deprecated operators, and how many inputs and outputs a node has."""

from __future__ import annotations

from invalid_models.case import ABORTS, AT_LOAD, AT_RUN, IF, LOOP, Case, attribute

ATTRIBUTES = {
    "attribute_that_the_operator_lacks": Case(
        "g (float[2] x) => (float[2] y) { y = Neg <sharpness = 1> (x) }", "Neg-13 has no attribute 'sharpness'"
    ),
    "attribute_of_a_later_opset": Case(
        '<ir_version: 7, opset_import: ["": 13]> g (float[2,2] x) => (float[2,2] y) { y = Reshape <allowzero = '
        "1> (x, x) }",
        "Reshape-13 has no attribute 'allowzero'",
    ),
    "attribute_of_an_earlier_opset": Case(
        "g (float[2] x) => (float[2] y) { y = Dropout <ratio = 0.5> (x) }", "Dropout-13 has no attribute 'ratio'"
    ),
    "attribute_of_an_old_file": Case(
        '<ir_version: 3, opset_import: ["": 7]> g (float[2] x) => (float[2] y) { y = Dropout <ratio = 0.5> (x) }'
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
        "the attribute 'alpha' of LeakyRelu is FLOAT, not INT",
    ),
    "attribute_of_a_list_for_one": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha: floats = [1.0]> (x) }",
        "the attribute 'alpha' of LeakyRelu is FLOAT, not FLOATS",
    ),
    "attribute_required_and_missing": Case(
        "g (float[2] x) => (float[2] y) { y = Cast (x) }", "Cast needs the attribute 'to'"
    ),
    "attribute_twice": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5, alpha = 0.25> (x) }",
        "an attribute of LeakyRelu occurs twice",
    ),
    "attribute_without_a_name": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "LeakyRelu-16 has no attribute ''",
        edit=lambda model: attribute(model).ClearField("name"),
    ),
    "attribute_without_a_type": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "the attribute 'alpha' of LeakyRelu has a value that is not of its type, UND",
        edit=lambda model: attribute(model).ClearField("type"),
    ),
    "attribute_without_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        edit=lambda model: attribute(model).ClearField("f"),
    ),
    "attribute_of_two_values": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "the attribute 'alpha' of LeakyRelu has a value that is not of its type, FLO",
        edit=lambda model: setattr(attribute(model), "i", 3),
    ),
    "attribute_of_a_value_of_another_type": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "the attribute 'alpha' of LeakyRelu has a value that is not of its type, FLO",
        edit=lambda model: (attribute(model).ClearField("f"), setattr(attribute(model), "i", 3)),
    ),
    "attribute_tensor_missing": Case(
        "g (int64[1] x) => (float[n] y) { y = ConstantOfShape <value = float[1] {1}> (x) }",
        "the attribute 'value' of ConstantOfShape is TENSOR and has no value",
        edit=lambda model: attribute(model).ClearField("t"),
    ),
    "attribute_graph_missing": Case(
        IF,
        "the attribute 'then_branch' of If is GRAPH and has no value",
        edit=lambda model: attribute(model).ClearField("g"),
    ),
    "attribute_that_refers_outside_a_function": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha: float = @a> (x) }",
        "the attribute 'alpha' of LeakyRelu refers to 'a', an attribute of a functio",
        because="onnx.proto: ref_attr_name is invalid in the main graph",
    ),
    "attribute_that_refers_in_a_branch": Case(
        IF.replace("Neg(x)", "LeakyRelu <alpha: float = @a> (x)"),
        "the attribute 'alpha' of LeakyRelu refers to 'a', an attribute of a functio",
        because="onnx.proto: ref_attr_name is invalid in the main graph",
    ),
    "attribute_that_refers_and_has_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }",
        "the attribute 'alpha' of LeakyRelu refers to another attribute and has a va",
        edit=lambda model: setattr(attribute(model), "ref_attr_name", "a"),
        because="onnx.proto: an attribute that refers to another does not contain data",
    ),
    "attribute_of_an_unknown_operator": Case(
        '<ir_version: 10, opset_import: ["": 21, "zz": 1]> g (float[2] x) => (float[2] y) { y = zz.Neg <a = 1> (x) }',
        "the runner has no kernel for zz::Neg, opset 1",
    ),
    "attribute_list_that_is_empty": Case(
        "g (float[2] x) => (float[2] y) { y = Transpose <perm: ints = []> (x) }",
        "axes don't match array",
        onnxruntime=AT_RUN,
    ),
    "constant_without_a_value": Case(
        "g (float[2] x) => (float[2] y) { y = Constant () }", "no value attribute is given"
    ),
    "constant_of_two_values": Case(
        "g (float[2] x) => (float y) { y = Constant <value_float = 1.0, value_int = 2> () }"
    ),
    "string_attribute_that_is_not_utf_8": Case(
        'g (float[2,2] x) => (float[2,2] y) { y = Conv <auto_pad = "VALID"> (x, x) }',
        "the attribute 'auto_pad' of Conv is '�', which ONNX does not know",
        edit=lambda model: setattr(attribute(model), "s", b"\xff"),
    ),
}


ARITY = {
    "outputs_more_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y, z = Neg(x) }", "Neg has 1..1 outputs, not 2"
    ),
    "outputs_fewer_than_the_operator_has": Case(
        "g (float[2] x, int64[1] k) => (float[1] y) { y = TopK(x, k) }", "TopK has 2..2 outputs, not 1"
    ),
    "outputs_none": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Abs(x) }",
        "Abs has 1..1 outputs, not 0",
        edit=lambda model: model.graph.node[1].ClearField("output"),
    ),
    "inputs_more_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x, x) }", "Neg takes 1..1 inputs and has 2"
    ),
    "inputs_fewer_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x) }", "Add takes 2..2 inputs and has 1"
    ),
    "inputs_fewer_than_the_operator_has_unread": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Add(x) }", "Add takes 2..2 inputs and has 1"
    ),
    "outputs_fewer_than_split_makes": Case(
        "g (float[4] x) => (float[2] y) { y = Split <num_outputs = 2> (x) }",
        "num_outputs is 2, the node has 1 outputs",
        because="Split: num_outputs is the number of outputs; onnxruntime returns the whole",
        elsewhere=(AT_RUN,),
    ),
    "outputs_more_than_split_makes": Case(
        "g (float[4] x) => (float[2] y, float[2] z) { y, z, w = Split <num_outputs = 2> (x) }",
        "num_outputs is 2, the node has 3 outputs",
        onnxruntime=ABORTS,
        because="not tried: onnxruntime ends the process",
    ),
    "outputs_fewer_than_split_sizes": Case(
        "g (float[4] x) => (float[2] y) <int64[2] s = {2, 2}> { y = Split(x, s) }",
        "2 parts are asked for, the node has 1 outputs",
    ),
    "outputs_more_than_split_sizes": Case(
        "g (float[4] x) => (float[2] y, float[2] z) <int64[2] s = {2, 2}> { y, z, w = Split(x, s) }",
        "2 parts are asked for, the node has 3 outputs",
    ),
    "outputs_more_than_branches_make": Case(
        IF.replace("{ y = If", "{ y, z = If"), "the then_branch has 1 outputs, the node needs 2"
    ),
    "outputs_fewer_than_branches_make": Case(
        IF.replace("(float[2] u)", "(float[2] u, float[2] x)").replace("(float[2] v)", "(float[2] v, float[2] x)"),
        "nothing in graph 'a' makes its output 'x'",
    ),
    "outputs_different_of_branches": Case(
        IF.replace("{ u = Neg(x) }", "{ u = Neg(x) w = Abs(x) }").replace("(float[2] u)", "(float[2] u, float[2] w)"),
        "the then_branch has 2 outputs, the node needs 1",
    ),
    "inputs_of_a_branch": Case(IF.replace("a ()", "a (float[2] q)"), "the then_branch takes 1 inputs and is given 0"),
    "branch_missing": Case(IF, "If needs the attribute 'else_branch'", edit=lambda model: model.graph.node[0].attribute.__delitem__(1)),
    "loop_body_of_fewer_inputs": Case(LOOP.replace(", float[2] s)", ")").replace("Neg(s)", "Neg(x)"), "the body takes 2 inputs and is given 3"),
    "loop_body_of_more_inputs": Case(LOOP.replace("float[2] s)", "float[2] s, float[2] r)"), "the body takes 4 inputs and is given 3"),
    "loop_body_of_fewer_outputs": Case(LOOP.replace(", float[2] v)", ")"), "the body has 1 outputs, the node needs 2"),
    "loop_body_without_outputs": Case(LOOP.replace("(bool d, float[2] v)", "()"), "the body has 0 outputs, the node needs 2"),
    "outputs_more_than_the_loop_makes": Case(
        LOOP.replace("{ y = Loop", "{ y, z = Loop"), "the body has 2 outputs, the node needs 3"
    ),
    "outputs_fewer_than_the_loop_makes": Case(
        LOOP.replace("(bool d, float[2] v)", "(bool d, float[2] v, float[2] s)"),
        "the body has 3 outputs, the node needs 2",
    ),
    "scan_of_more_inputs_than_there_are": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 2, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }",
        "num_scan_inputs is 2 for 1 inputs",
    ),
    "scan_body_of_more_inputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] r) "
        "=> (float[2] v) { v = Neg(s) }> (x) }",
        "the body takes 2 inputs and is given 1",
    ),
    "scan_body_of_fewer_outputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => () { v = "
        "Neg(s) }> (x) }",
        "the body has 0 outputs, the node needs 1",
        onnxruntime=AT_RUN,
    ),
    "scan_of_no_inputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 0, body = b (float[3,2] s) => "
        "(float[3,2] v) { v = Neg(s) }> (x) }",
        "num_scan_inputs is 0 for 1 inputs",
    ),
    "scan_axes_of_another_number": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, scan_input_axes = [0, 0], body = "
        "b (float[2] s) => (float[2] v) { v = Neg(s) }> (x) }",
        "zip() argument 2 is shorter than argument 1",
    ),
    "sequence_map_body_of_fewer_inputs": Case(
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = SequenceMap <body = b () => (float[2] v) { v = "
        "Constant <value_floats = [1.0, 2.0]> () }> (x) }",
        "the body takes 0 inputs and is given 1",
    ),
}  # fmt: skip


VALUES = {
    "auto_pad_unknown": Case(
        'g (float[1,1,3] x) => (float[1,1,3] y) { y = MaxPool <auto_pad = "zz", kernel_shape = [1]> (x) }',
        "the attribute 'auto_pad' of MaxPool is 'zz', which ONNX does not know",
    ),
    "auto_pad_unknown_of_transposed_convolution": Case(
        'g (float[1,1,3] x, float[1,1,1] w) => (float[1,1,3] y) { y = ConvTranspose <auto_pad = "zz"> (x, w) }',
        "the attribute 'auto_pad' of ConvTranspose is 'zz', which ONNX does not know",
    ),
    "training_of_2": Case(
        "g (float[1,2,2] x, float[2] s) => (float[1,2,2] y, float[2] m, float[2] v) "
        "{ y, m, v = BatchNormalization <training_mode = 2> (x, s, s, s, s) }",
        "the attribute 'training_mode' of BatchNormalization is 2",
        because="BatchNormalization: true or false; onnxruntime leaves the running statistics without a value",
    ),
    "layout_of_2": Case(
        "g (float[3,1,2] x, float[1,8,2] w, float[1,8,2] r) => (float[a,b,c,d] y) "
        "{ y = LSTM <hidden_size = 2, layout = 2> (x, w, r) }",
        "the attribute 'layout' of LSTM is 2",
    ),
    "storage_order_of_2": Case(
        "g (float[1,1,2,2] x) => (float[1,1,1,1] y, int64[1,1,1,1] i) "
        "{ y, i = MaxPool <kernel_shape = [2,2], storage_order = 2> (x) }",
        "the attribute 'storage_order' of MaxPool is 2",
    ),
    "direction_of_2": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, scan_input_directions = [2], "
        "body = b (float[2] s) => (float[2] v) { v = Neg(s) }> (x) }",
        "the attribute 'scan_input_directions' of Scan is 2",
    ),
    "largest_of_2": Case(
        "g (float[4] x, int64[1] k) => (float[1] y, int64[1] i) { y, i = TopK <largest = 2> (x, k) }",
        "the attribute 'largest' of TopK is 2",
        because="TopK: largest or smallest; onnxruntime takes 2 for the smallest, others for the largest",
    ),
    "sorted_of_2": Case(
        "g (float[4] x) => (float[n] y) { y = Unique <sorted = 2> (x) }",
        "the attribute 'sorted' of Unique is 2",
        because="Unique: must be one of 0, or 1; onnxruntime takes 2 for 0",
    ),
    "interleaved_of_2": Case(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,1,1,4] x, float[2,2] c, int64[1,1] p) => (float[1,1,1,4] y) '
        "{ y = RotaryEmbedding <interleaved = 2> (x, c, c, p) }",
        "the attribute 'interleaved' of RotaryEmbedding is 2",
        because="RotaryEmbedding: interleaved or not; onnxruntime takes 2 for 0",
    ),
    "another_flag_of_2": Case("g (float[2,2] x) => (float[2,2] y) { y = Trilu <upper = 2> (x) }"),
    "auto_pad_in_small_letters": Case(
        'g (float[1,1,3] x) => (float[1,1,3] y) { y = MaxPool <auto_pad = "valid", kernel_shape = [1]> (x) }',
        "the attribute 'auto_pad' of MaxPool is 'valid', which ONNX does not know",
    ),
    "direction_unknown": Case(
        "g (float[1,1,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,1,3] y) { y = RNN <hidden_size = 3, "
        'direction = "zz"> (x, w, r) }',
        "the attribute 'direction' of RNN is 'zz', which ONNX does not know",
    ),
    "depth_to_space_mode_unknown": Case(
        'g (float[1,4,1,1] x) => (float[1,1,2,2] y) { y = DepthToSpace <blocksize = 2, mode = "zz"> (x) }',
        "the attribute 'mode' of DepthToSpace is 'zz', which ONNX does not know",
    ),
    "resize_mode_unknown": Case(
        'g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Resize <mode = "zz"> (x, , s) }',
        "the attribute 'mode' of Resize is 'zz', which ONNX does not know",
    ),
    "resize_coordinates_unknown": Case(
        "g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Resize <coordinate_transformation_mode = "
        '"zz"> (x, , s) }',
        "the attribute 'coordinate_transformation_mode' of Resize is 'zz', which ONN",
    ),
    "reduction_unknown": Case(
        'g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = ScatterElements <reduction = "zz"> (x, i, u) }',
        "the attribute 'reduction' of ScatterElements is 'zz', which ONNX does not k",
        because="ScatterElements: none, add, mul, max or min; onnxruntime takes others for none",
    ),
    "reduction_of_a_loss_unknown": Case(
        'g (float[1,2] x, int64[1] i) => (float y) { y = NegativeLogLikelihoodLoss <reduction = "zz"> (x, i) }',
        "the attribute 'reduction' of NegativeLogLikelihoodLoss is 'zz', which ONNX",
        because="NegativeLogLikelihoodLoss: none, sum or mean; onnxruntime takes others for some",
    ),
    "mode_of_an_old_grid_sample": Case(
        '<ir_version: 8, opset_import: ["": 16]> g (float[1,1,2,2] x, float[1,1,1,2] i) => (float[1,1,1,1] y) '
        '{ y = GridSample <mode = "bilinear"> (x, i) }'
    ),
    "approximation_unknown": Case(
        'g (float[2] x) => (float[2] y) { y = Gelu <approximate = "zz"> (x) }',
        "the attribute 'approximate' of Gelu is 'zz', which ONNX does not know",
        onnxruntime=AT_RUN,
    ),
    "locale_unknown": Case('g (string[2] x) => (string[2] y) { y = StringNormalizer <locale = "en_US"> (x) }'),
    "element_type_of_random_numbers_unknown": Case(
        "g (float[2] x) => (float[2] y) { y = RandomNormalLike <dtype = 99> (x) }",
        "99 is no element type that ONNX knows",
    ),
    "element_type_of_random_numbers_not_allowed": Case(
        "g (float[2] x) => (int64[2] y) { y = RandomNormalLike <dtype = 7> (x) }",
        "it would make tensor(int64), which ONNX does not allow",
    ),
    "element_type_of_a_sequence_unknown": Case(
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceEmpty <dtype = 99> () }",
        "99 is no element type that ONNX knows",
    ),
    "deprecated_scatter": Case(
        "g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = Scatter(x, i, u) }",
        "Scatter may not be used from opset 11 on",
    ),
    "deprecated_group_normalization": Case(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1,4,2] x, float[2] s) => (float[1,4,2] y) { y = '
        "GroupNormalization <num_groups = 2> (x, s, s) }"
    ),
}
