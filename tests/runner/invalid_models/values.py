"""Text and numbers that name one of a few things, and deprecated operators."""

from __future__ import annotations

from invalid_models.case import AT_LOAD, AT_RUN, Case

VALUES = {
    "auto_pad_unknown": Case(
        'g (float[1,1,3] x) => (float[1,1,3] y) { y = MaxPool <auto_pad = "zz", kernel_shape = [1]> (x) }',
        refused="the attribute 'auto_pad' of MaxPool is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "auto_pad_unknown_of_transposed_convolution": Case(
        'g (float[1,1,3] x, float[1,1,1] w) => (float[1,1,3] y) { y = ConvTranspose <auto_pad = "zz"> (x, w) }',
        refused="the attribute 'auto_pad' of ConvTranspose is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "training_of_2": Case(
        "g (float[1,2,2] x, float[2] s) => (float[1,2,2] y, float[2] m, float[2] v) "
        "{ y, m, v = BatchNormalization <training_mode = 2> (x, s, s, s, s) }",
        refused="the attribute 'training_mode' of BatchNormalization is 2",
        because="BatchNormalization: true or false; onnxruntime leaves the running statistics without a value",
    ),
    "layout_of_2": Case(
        "g (float[3,1,2] x, float[1,8,2] w, float[1,8,2] r) => (float[a,b,c,d] y) "
        "{ y = LSTM <hidden_size = 2, layout = 2> (x, w, r) }",
        refused="the attribute 'layout' of LSTM is 2",
        onnxruntime=AT_LOAD,
    ),
    "storage_order_of_2": Case(
        "g (float[1,1,2,2] x) => (float[1,1,1,1] y, int64[1,1,1,1] i) "
        "{ y, i = MaxPool <kernel_shape = [2,2], storage_order = 2> (x) }",
        refused="the attribute 'storage_order' of MaxPool is 2",
        onnxruntime=AT_LOAD,
    ),
    "direction_of_2": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, scan_input_directions = [2], "
        "body = b (float[2] s) => (float[2] v) { v = Neg(s) }> (x) }",
        refused="the attribute 'scan_input_directions' of Scan is 2",
        onnxruntime=AT_LOAD,
    ),
    "largest_of_2": Case(
        "g (float[4] x, int64[1] k) => (float[1] y, int64[1] i) { y, i = TopK <largest = 2> (x, k) }",
        refused="the attribute 'largest' of TopK is 2",
        because="TopK: largest or smallest; onnxruntime takes 2 for the smallest, others for the largest",
    ),
    "sorted_of_2": Case(
        "g (float[4] x) => (float[n] y) { y = Unique <sorted = 2> (x) }",
        refused="the attribute 'sorted' of Unique is 2",
        because="Unique: must be one of 0, or 1; onnxruntime takes 2 for 0",
    ),
    "interleaved_of_2": Case(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,1,1,4] x, float[2,2] c, int64[1,1] p) => (float[1,1,1,4] y) '
        "{ y = RotaryEmbedding <interleaved = 2> (x, c, c, p) }",
        refused="the attribute 'interleaved' of RotaryEmbedding is 2",
        because="RotaryEmbedding: interleaved or not; onnxruntime takes 2 for 0",
    ),
    "another_flag_of_2": Case("g (float[2,2] x) => (float[2,2] y) { y = Trilu <upper = 2> (x) }"),
    "auto_pad_in_small_letters": Case(
        'g (float[1,1,3] x) => (float[1,1,3] y) { y = MaxPool <auto_pad = "valid", kernel_shape = [1]> (x) }',
        refused="the attribute 'auto_pad' of MaxPool is 'valid', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "direction_unknown": Case(
        "g (float[1,1,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,1,3] y) { y = RNN <hidden_size = 3, "
        'direction = "zz"> (x, w, r) }',
        refused="the attribute 'direction' of RNN is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "depth_to_space_mode_unknown": Case(
        'g (float[1,4,1,1] x) => (float[1,1,2,2] y) { y = DepthToSpace <blocksize = 2, mode = "zz"> (x) }',
        refused="the attribute 'mode' of DepthToSpace is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "resize_mode_unknown": Case(
        'g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Resize <mode = "zz"> (x, , s) }',
        refused="the attribute 'mode' of Resize is 'zz', which ONNX does not know",
        onnxruntime=AT_LOAD,
    ),
    "resize_coordinates_unknown": Case(
        "g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Resize <coordinate_transformation_mode = "
        '"zz"> (x, , s) }',
        refused="the attribute 'coordinate_transformation_mode' of Resize is 'zz', which ONN",
        onnxruntime=AT_LOAD,
    ),
    "reduction_unknown": Case(
        'g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = ScatterElements <reduction = "zz"> (x, i, u) }',
        refused="the attribute 'reduction' of ScatterElements is 'zz', which ONNX does not k",
        because="ScatterElements: none, add, mul, max or min; onnxruntime takes others for none",
    ),
    "reduction_of_a_loss_unknown": Case(
        'g (float[1,2] x, int64[1] i) => (float y) { y = NegativeLogLikelihoodLoss <reduction = "zz"> (x, i) }',
        refused="the attribute 'reduction' of NegativeLogLikelihoodLoss is 'zz', which ONNX",
        because="NegativeLogLikelihoodLoss: none, sum or mean; onnxruntime takes others for some",
    ),
    "mode_of_an_old_grid_sample": Case(
        '<ir_version: 8, opset_import: ["": 16]> g (float[1,1,2,2] x, float[1,1,1,2] i) => (float[1,1,1,1] y) '
        '{ y = GridSample <mode = "bilinear"> (x, i) }',
    ),
    "approximation_unknown": Case(
        'g (float[2] x) => (float[2] y) { y = Gelu <approximate = "zz"> (x) }',
        refused="the attribute 'approximate' of Gelu is 'zz', which ONNX does not know",
        onnxruntime=AT_RUN,
    ),
    "locale_unknown": Case(
        'g (string[2] x) => (string[2] y) { y = StringNormalizer <locale = "en_US"> (x) }',
    ),
    "element_type_of_random_numbers_unknown": Case(
        "g (float[2] x) => (float[2] y) { y = RandomNormalLike <dtype = 99> (x) }",
        refused="99 is no element type that ONNX knows",
        onnxruntime=AT_LOAD,
    ),
    "element_type_of_random_numbers_not_allowed": Case(
        "g (float[2] x) => (int64[2] y) { y = RandomNormalLike <dtype = 7> (x) }",
        refused="it would make tensor(int64), which ONNX does not allow",
        onnxruntime=AT_LOAD,
    ),
    "element_type_of_a_sequence_unknown": Case(
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceEmpty <dtype = 99> () }",
        refused="99 is no element type that ONNX knows",
        onnxruntime=AT_LOAD,
    ),
    "deprecated_scatter": Case(
        "g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = Scatter(x, i, u) }",
        refused="Scatter may not be used from opset 11 on",
        onnxruntime=AT_LOAD,
    ),
    "deprecated_group_normalization": Case(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1,4,2] x, float[2] s) => (float[1,4,2] y) { y = '
        "GroupNormalization <num_groups = 2> (x, s, s) }",
    ),
}
