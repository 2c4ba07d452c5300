"""What the specification says of an operator's operands and attributes together ends in an error at the latest when it runs.

onnxruntime is asked the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.registry import all_kernels

onnxruntime = pytest.importorskip("onnxruntime")

CPU = ["CPUExecutionProvider"]
ML = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 4]> '
OF = '<ir_version: 10, opset_import: ["": {}]> '

REFUSED = {
    "auto_pad beside pads": (
        "g (float[1,1,3,3] x, float[1,1,1,1] w) => (float[1,1,5,5] y) "
        '{ y = Conv <pads = [1,1,1,1], auto_pad = "SAME_UPPER"> (x, w) }',
        "pads are [1, 1, 1, 1] and auto_pad is SAME_UPPER",
    ),
    "auto_pad beside pads of a transposed convolution": (
        "g (float[1,1,3,3] x, float[1,1,1,1] w) => (float[1,1,n,m] y) "
        '{ y = ConvTranspose <pads = [1,1,1,1], auto_pad = "VALID"> (x, w) }',
        "pads are [1, 1, 1, 1] and auto_pad is VALID",
    ),
    "scales beside sizes": (
        "g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1,1,2,2}, int64[4] z = {1,1,4,4}> "
        "{ y = Resize (x, , s, z) }",
        "scales and sizes are both given",
    ),
    "an axis of Resize out of range": (
        "g (float[2,2] x) => (float[2,4] y) <float[1] s = {2}> { y = Resize <axes = [2]> (x, , s) }",
        "axis 2 is out of range for 2 axes",
    ),
    "an axis of Resize twice": (
        "g (float[2,2] x) => (float[2,4] y) <float[2] s = {2,2}> { y = Resize <axes = [1,-1]> (x, , s) }",
        "name one twice",
    ),
    "a shape of two axes": (
        "g (int64[1,2] s) => (float[a,b] y) { y = ConstantOfShape (s) }",
        "the shape has 2 axes",
    ),
    "values of another number": (
        "g (int64[2] i, float[3] v) => (float[2,4] y) <int64 d = {4}> { y = OneHot (i, d, v) }",
        "values has the shape [3], not [2]",
    ),
    "a one-sided transform of complex numbers": (
        "g (float[1,4,2] x) => (float[1,3,2] y) { y = DFT <onesided = 1> (x) }",
        "a one-sided transform is of real numbers",
    ),
    "statistics without an axis": (
        "g (float[1,2,2] x, float[2] s, float m) => (float[1,2,2] y) { y = BatchNormalization (x, s, s, m, s) }",
        "mean has the shape [], the input [1, 2, 2]",
    ),
    "statistics of other channels": (
        "g (float[1,2,2] x, float[1] s) => (float[1,2,2] y) { y = BatchNormalization (x, s, s, s, s) }",
        "scale has the shape [1], the input [1, 2, 2]",
    ),
    "columns of two axes": (
        "g (float[4,4] x) => (float[4,1,2,2] y) <int64[2] i = {2,2}, int64[2] b = {2,2}> { y = Col2Im (x, i, b) }",
        "the input has 2 axes",
    ),
    "a triangle of one axis": ("g (float[2] x) => (float[2] y) { y = Trilu (x) }", "the input has 1 axes"),
    "a term of another number of axes": (
        'g (float[2,3] x) => (float[2] y) { y = Einsum <equation = "ijk->i"> (x) }',
        "the term 'ijk' is for 3 axes, its operand has 2",
    ),
    "parts of no given size": ("g (float[4] x) => (float[2] y, float[2] z) { y, z = Split (x) }", "not given"),
    "parts of two kinds of size": (
        "g (float[4] x) => (float[2] y, float[2] z) <int64[2] s = {2,2}> { y, z = Split <num_outputs = 2> (x, s) }",
        "both given",
    ),
    "more parts than elements": (
        "g (float[5] x) => (float[2] y, float[2] z, float[a] u, float[b] v) { y, z, u, v = Split <num_outputs = 4> (x) }",
        "num_outputs is 4, so many parts of 2 are more than the axis has: 5",
    ),
    "parts that are not equal, in opset 13": (
        OF.format(13) + "g (float[3] x) => (float[2] y, float[1] z) { y, z = Split (x) }",
        "3 is no multiple of 2",
    ),
    "no strides": (
        "g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y = LpPool <kernel_shape = [2,2], strides: ints = []> (x) }",
        "do not fit 2 spatial axes",
    ),
    "no pads of a transposed convolution": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,5,5] y) { y = ConvTranspose <pads: ints = []> (x, w) }",
        "do not fit 2 spatial axes",
    ),
    "negative pads": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,1,1] y) { y = Conv <pads = [-1,-1,-1,-1]> (x, w) }",
        "they must not be negative",
    ),
    "negative padding of an output": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <output_padding = [-1,-1]> (x, w) }",
        "they must not be negative",
    ),
    "a kernel of another shape than the weight's": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <kernel_shape = [3,3]> (x, w) }",
        "kernel_shape is [3, 3], the weight's [2, 2]",
    ),
    "an output shape of other axes": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <output_shape: ints = []> (x, w) }",
        "output_shape [] does not fit 2 spatial axes",
    ),
    "padding of an output by a whole stride": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <output_padding = [1,1]> (x, w) }",
        "output_padding is [1, 1]; it must be less than the stride or the dilation",
    ),
    "an output of another input": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <output_shape = [5,9]> (x, w) }",
        "output_shape is [5, 9], of such an input it is positive and at most [5, 5]",
    ),
    "an output of nothing": (
        "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,n,m] y) "
        "{ y = ConvTranspose <output_shape = [0,5]> (x, w) }",
        "output_shape is [0, 5], of such an input it is positive",
    ),
    "windows in the padding alone": (
        "g (float[1,1,4,4] x) => (float[1,1,n,m] y) { y = AveragePool <kernel_shape = [2,2], pads = [2,2,2,2]> (x) }",
        "they must be smaller than the kernel, [2, 2]",
    ),
    "a mean over no axes": (
        "g (float[2,2] x) => (float[2,2] y) { y = GlobalAveragePool (x) }",
        "pooling needs 3 or more",
    ),
    "a bias of two axes": (
        "g (float[1,1,1,1] x, float[1,1] b) => (float[1,1,1,1] y) { y = Conv (x, x, b) }",
        "input 2 of Conv has 2 axes",
    ),
    "starts of two axes": (
        "g (float[4] x, int64[1,1] s) => (float[n] y) { y = Slice (x, s, s) }",
        "input 1 of Slice has 2 axes",
    ),
    "axes that are a scalar": (
        "g (float[4,4] x, int64 a) => (float[n,m] y) { y = ReduceSum (x, a) }",
        "input 1 of ReduceSum has 0 axes",
    ),
    "a shape that is a scalar": ("g (float[1] x, int64 s) => (float[n] y) { y = Reshape (x, s) }", "has 0 axes"),
    "a limit of two axes": ("g (float[3] x, float[1,1] a) => (float[3] y) { y = Clip (x, a) }", "has 2 axes"),
    "a ratio of one axis": ("g (float[3] x, float[1] r) => (float[3] y) { y = Dropout (x, r) }", "has 1 axes"),
    "a ratio of 1": ("g (float[3] x, float r) => (float[3] y) { y = Dropout (x, r) }", "not from 0 to below 1"),
    "a flag of 2": (
        "g (float[3] x, int64 a) => (float[3] y) { y = CumSum <exclusive = 2> (x, a) }",
        "each must be 0 or 1",
    ),
    "a negative place of a permutation": (
        "g (float[2,2] x) => (float[2,2] y) { y = Transpose <perm = [-1,0]> (x) }",
        "it may not be negative",
    ),
    "a negative axis in opset 9": (
        OF.format(9) + "g (float[2,2] x) => (float[2,2] y) { y = Flatten <axis = -1> (x) }",
        "before opset 11",
    ),
    "images of another number": (
        "g (float[2,2,3] t) => (float[n,a,b,c] y) <int64[4] s = {3,1,2,2}> { y = AffineGrid (t, s) }",
        "theta is for 2 images, and size says 3",
    ),
    "biases of two directions": (
        "g (float[3,1,2] x, float[1,8,2] w, float[1,8,2] r, float[2,16] b) => (float[a,b,c,d] y) "
        "{ y = LSTM <hidden_size = 2> (x, w, r, b) }",
        "B has the shape [2, 16], not [1, 16]",
    ),
    "an initial state of four axes": (
        "g (float[3,1,2] x, float[1,6,2] w, float[1,6,2] r, float[1,1,1,2] h) => (float[a,b,c,d] y) "
        "{ y = GRU <hidden_size = 2> (x, w, r, , , h) }",
        "an initial state has the shape [1, 1, 1, 2], not [1, 1, 2]",
    ),
    "cells of no size": (
        "g (float[3,1,2] x, float[1,6,2] w, float[1,6,2] r) => (float[a,b,c,d] y) "
        "{ y = GRU <hidden_size = 0> (x, w, r) }",
        "W has the shape [1, 6, 2], not [1, 0, 2]",
    ),
    "keys of another batch": (
        OF.format(23) + "g (float[2,1,3,4] q, float[1,1,3,4] k) => (float[a,b,c,d] y) { y = Attention (q, k, k) }",
        "do not fit",
    ),
    "an operator that came later": (
        OF.format(7) + "g (float[2] x) => (float[2] y) { y = Acosh (x) }",
        "it came with opset 22 or was changed then",
    ),
    "keys of another type": (
        ML
        + 'g (string[2] x) => (string[2] y) { y = ai.onnx.ml.LabelEncoder <keys_int64s = [1], values_strings = ["a"]> (x) }',
        "the input is tensor(string) and the keys are tensor(int64)",
    ),
    "two tables of keys": (
        ML + "g (int64[2] x) => (int64[2] y) "
        "{ y = ai.onnx.ml.LabelEncoder <keys_int64s = [1], keys_floats = [1.0], values_int64s = [1]> (x) }",
        "ONNX wants one table of keys",
    ),
    "no table of values": (
        ML + "g (int64[2] x) => (int64[2] y) { y = ai.onnx.ml.LabelEncoder <keys_int64s = [1]> (x) }",
        "it has no values",
    ),
    "values of another type than declared": (
        ML
        + 'g (int64[2] x) => (int64[2] y) { y = ai.onnx.ml.LabelEncoder <keys_int64s = [1], values_strings = ["a"]> (x) }',
        "'y' is declared tensor(int64) and is tensor(string)",
    ),
    "labels of another type than declared": (
        ML + "g (int64[2] x) => (int64[2] y) "
        '{ y = ai.onnx.ml.CategoryMapper <cats_int64s = [1], cats_strings = ["a"]> (x) }',
        "'y' is declared tensor(int64) and is tensor(string)",
    ),
    "two tables of categories": (
        ML + "g (int64[2] x) => (float[2,1] y) "
        '{ y = ai.onnx.ml.OneHotEncoder <cats_int64s = [1], cats_strings = ["a"]> (x) }',
        "cats_int64s and cats_strings are both given",
    ),
    "two tables of replacements": (
        ML + "g (float[2,3] x) => (float[2,3] y) "
        "{ y = ai.onnx.ml.Imputer <imputed_value_floats = [1.0], imputed_value_int64s = [1]> (x) }",
        "are both given",
    ),
    "rows of rows": (
        ML + 'g (float[3,2,2] x) => (float[3,2,2] y) { y = ai.onnx.ml.Normalizer <norm = "L1"> (x) }',
        "the input has 3 axes, not 1 or 2",
    ),
    "means of another type than declared": (
        "g (float[2] x, float[2] s) => (float[2] y, int64[1] m) { y, m = LayerNormalization (x, s) }",
        "'m' is declared tensor(int64) and is tensor(float)",
    ),
    "an encoded image of two axes": (
        "g (uint8[2,2] x) => (uint8[a,b,c] y) { y = ImageDecoder (x) }",
        "input 0 of ImageDecoder has 2 axes",
    ),
    "a slice of another size than its body declares": (
        "g (float[3,2] x) => (float[3,2] y) "
        "{ y = Scan <num_scan_inputs = 1, body = b (float[5] s) => (float[2] v) { v = Neg(s) }> (x) }",
        "the body declares 's' of shape [5] and is given [2]",
    ),
    "more reflected than there is": (
        'g (float[2] x) => (float[n] y) <int64[2] p = {2,0}> { y = Pad <mode = "reflect"> (x, p) }',
        "reflect more than there is of [2]",
    ),
    "pads of several rows": (
        "g (float[2] x) => (float[n] y) <int64[2,1] p = {2,0}> { y = Pad (x, p) }",
        "pads have the shape [2, 1]",
    ),
    "boxes of a third kind": (
        "g (float[1,4,4] x, float[1,1,4] s, int64 n) => (int64[a,b] y) "
        "{ y = NonMaxSuppression <center_point_box = 2> (x, s, n) }",
        "center_point_box is 2, not 0 or 1",
    ),
    "a number of the largest that is a scalar": (
        "g (float[4] x, int64 k) => (float[n] y, int64[n] z) { y, z = TopK (x, k) }",
        "input 1 of TopK has 0 axes",
    ),
    "lengths of n-grams without counts": (
        'g (int64[2] x) => (float[n] y) { y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 9, '
        "max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0], pool_int64s = [1]> (x) }",
        "n-grams of 1 to 9 with 0 skips do not fit ngram_counts of 1 lengths",
    ),
    "weights of other n-grams": (
        'g (int64[2] x) => (float[n] y) { y = TfIdfVectorizer <mode = "IDF", min_gram_length = 1, max_gram_length = 1, '
        "max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0], pool_int64s = [1], weights = [1.0,2.0]> (x) }",
        "2 weights for 1 n-grams",
    ),
    "a mode of an older opset": (
        'g (float[1,1,2,2] x, float[1,2,2,2] p) => (float[a,b,c,d] y) { y = GridSample <mode = "bilinear"> (x, p) }',
        "mode 'bilinear' is of another opset than GridSample-20",
    ),
    "a mode of a newer opset": (
        OF.format(18)
        + 'g (float[1,1,2,2] x, float[1,2,2,2] p) => (float[a,b,c,d] y) { y = GridSample <mode = "linear"> (x, p) }',
        "mode 'linear' is of another opset than GridSample-16",
    ),
    "a zero point of another shape": (
        "g (float[3,2] x, float[2] s, uint8 z) => (uint8[3,2] y) { y = QuantizeLinear <axis = 1> (x, s, z) }",
        "the zero point has the shape [], the scale [2]",
    ),
    "the remainder of floats by integers' rule": ("g (float[2] x) => (float[2] y) { y = Mod (x, x) }", "fmod=1 only"),
    "classes' weights of two axes": (
        "g (float[1,1] x, int64[1] t, float[1,1] w) => (float y) { y = NegativeLogLikelihoodLoss (x, t, w) }",
        "input 2 of NegativeLogLikelihoodLoss has 2 axes",
    ),
    "positions of another length": (
        OF.format(23)
        + "g (float[2,1,3,4] x, float[5,2] c, int64[2,1] p) => (float[a,b,c,d] y) { y = RotaryEmbedding (x, c, c, p) }",
        "positions of [2, 1] and caches of [5, 2] do not fit [2, 1, 3, 4]",
    ),
    "frames of no length": (
        "g (float[1,8,1] x, int64 s) => (float[a,b,c,d] y) { y = STFT (x, s) }",
        "neither window nor frame_length is given",
    ),
    "channels that were not pooled": (
        "g (float[1,1,1,1] x, int64[1,1,1,1] i) => (float[a,b,c,d] y) <int64[4] s = {1,3,2,2}> "
        "{ y = MaxUnpool <kernel_shape = [2,2]> (x, i, s) }",
        "has other images or channels than [1, 1, 1, 1]",
    ),
    "places of another shape": (
        "g (float[1,1,1,1] x, int64[1] i) => (float[a,b,c,d] y) { y = MaxUnpool <kernel_shape = [2,2]> (x, i) }",
        "indices of [1] do not fit [1, 1, 1, 1]",
    ),
    "the inverse of a one-sided transform of real numbers": (
        OF.format(20) + "g (float[1,4,1] x) => (float[a,b,c] y) { y = DFT <inverse = 1, onesided = 1> (x) }",
        "its inverse of complex ones",
    ),
    "an update of other heads": (
        OF.format(24) + "g (float[2,3,4,5] c, float[2,2,1,5] u, int64[2] w) => (float[a,b,d,e] y) "
        "{ y = TensorScatter (c, u, w) }",
        "an update of [2, 2, 1, 5] does not fit a cache of [2, 3, 4, 5]",
    ),
    "a row of another number of axes than its body declares": (
        "g (float[3,2] x) => (float[3,2] y) "
        "{ y = Scan <num_scan_inputs = 1, body = b (float[2] s) => (float[2,2] v) { v = Neg(s) }> (x) }",
        "the body declares 'v' of shape [2, 2] and makes [2]",
    ),
    "a match of no pattern": ("g (string[2] x) => (bool[2] y) { y = RegexFullMatch (x) }", "it has no pattern"),
    "training of one output": (
        "g (float[1,2,2] x, float[2] s) => (float[1,2,2] y) "
        "{ y = BatchNormalization <training_mode = 1> (x, s, s, s, s) }",
        "with training_mode there are three",
    ),
    "smoothing between nearest numbers": (
        "g (float[1,1,4,4] x) => (float[a,b,c,d] y) <int64[4] z = {1,1,2,2}> { y = Resize <antialias = 1> (x, , , z) }",
        "antialias is for the modes linear and cubic",
    ),
    "nothing drawn": (
        "g (float[2,2] x) => (int32[a,b] y) { y = Multinomial <sample_size = 0> (x) }",
        "sample_size is 0, it must be 1 or more",
    ),
    "regions of no rows": (
        "g (float[1,1,4,4] x, float[1,5] r) => (float[a,b,c,d] y) { y = MaxRoiPool <pooled_shape = [0,2]> (x, r) }",
        "pooled_shape is [0, 2], both must be 1 or more",
    ),
    "a negative limit of a cell": (
        "g (float[3,1,2] x, float[1,8,2] w, float[1,8,2] r) => (float[a,b,c,d] y) "
        "{ y = LSTM <hidden_size = 2, clip = -1.0> (x, w, r) }",
        "clip is -1, it must be positive",
    ),
}


def feeds(session: Any) -> dict[str, Any]:
    of = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8, "tensor(string)": object}
    return {
        arg.name: np.full(arg.shape, "a" if of[arg.type] is object else 1, of[arg.type]) for arg in session.get_inputs()
    }


def run_by(engine: Any, data: bytes) -> None:
    options = engine.SessionOptions()
    options.log_severity_level = 4
    session = engine.InferenceSession(data, options, providers=CPU)
    session.run(None, feeds(session))


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_do_not_fit(name: str) -> None:
    text, why = REFUSED[name]
    data = onnx.parser.parse_model(text if text.startswith("<") else OF.format(21) + text).SerializeToString()
    with pytest.raises(UserError) as caught:
        run_by(ort, data)
    assert caught.value.code in ("E303", "E402", "E403")
    assert why in str(caught.value)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_by(onnxruntime, data)


@pytest.mark.parametrize("version", [13, 17, 18])
def test_parts_of_equal_size(version: int) -> None:
    how = "<num_outputs = 3>" if version >= 18 else ""
    text = (
        OF.format(version) + f"g (float[6] x) => (float[2] y, float[2] z, float[2] u) {{ y, z, u = Split {how} (x) }}"
    )
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    parts = session.run(None, {"x": np.arange(6, dtype=np.float32)})
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(("length", "sizes"), [(7, [3, 3, 1]), (2, [1, 1, 0]), (0, [0, 0, 0])])
def test_the_last_part_may_be_smaller_or_nothing(length: int, sizes: list[int]) -> None:
    text = f"g (float[{length}] x) => (float[a] y, float[b] z, float[c] u) {{ y, z, u = Split <num_outputs = 3> (x) }}"
    data = onnx.parser.parse_model(OF.format(21) + text).SerializeToString()
    feeds = {"x": np.arange(length, dtype=np.float32)}
    parts = ort.InferenceSession(data).run(None, feeds)
    assert [len(part) for part in parts] == sizes
    np.testing.assert_array_equal(np.concatenate(parts), feeds["x"])


@pytest.mark.parametrize(("count", "is_right"), [(2, True), (1, False), (4, False)])
def test_bytes_of_four_bit_integers(count: int, is_right: bool) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=bytes([0x21, 0x03, 0, 0][:count]))
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [weight, helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if is_right:
        assert ort.InferenceSession(model).run(None, {})[0].tolist() == [1, 2, 3]
        return
    with pytest.raises(UserError, match=f"{count} bytes; INT4.3. is 2"):
        ort.InferenceSession(model)


def test_kernels_are_no_older_than_their_operators() -> None:
    """Else the runner would run an operator in an opset that has none of its name."""
    came_with: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        came_with[key] = min(came_with.get(key, schema.since_version), schema.since_version)
    too_old = [k for k in all_kernels() if k.since < came_with.get((k.domain, k.op_type), 0)]
    assert [f"{each.op_type}-{each.since}" for each in too_old] == []


def test_vectors_that_are_too_short_end_in_zeros() -> None:
    """As onnxruntime has it: ONNX does not say it."""
    text = ML + "g (float[2,3] x) => (float[2,5] y) { y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [5]> (x) }"
    data = onnx.parser.parse_model(text).SerializeToString()
    given = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (mine,), (theirs,) = (
        engine.InferenceSession(data, providers=CPU).run(None, given) for engine in (ort, onnxruntime)
    )
    np.testing.assert_array_equal(mine, theirs)
    assert mine.shape == (2, 5)
