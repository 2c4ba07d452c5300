"""Models of one operator that few files have, or of onnxruntime's own operators, for ``benchmarks.runner_sweep``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.runner_sweep_cases import MICROSOFT, Builder, Case, Given, c, const, f, fed, one, values, w


def rare_elementwise() -> Iterator[Case]:
    text = 1, 128, 768
    for op in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Ceil", "IsInf", "Hardmax"):
        low, high = (1.0, 3.0) if op == "Acosh" else (-0.9, 0.9)
        yield one("", op, f(*text, low=low, high=high))
    yield one("", "Swish", f(*text), opset=24)
    for op in ("Sub", "Min", "Less", "LessOrEqual", "GreaterOrEqual", "Equal"):
        yield one("", op, f(*text), f(*text))
    for op in ("Sum", "Mean"):
        yield one("", op, f(*text), f(*text), f(*text))
    for op in ("Or", "Xor"):
        yield one("", op, fed("bool", *text), fed("bool", *text))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield one("", op, fed("int32", *text), fed("int32", *text))
    yield one("", "BitwiseNot", fed("int32", *text))
    yield one("", "BitShift", fed("uint32", *text), c(3, "uint32"), direction="LEFT")
    yield one("", "CastLike", f(*text), c(0, "int32"))
    yield one("Pow float", "Pow", f(*text, low=0.1), f(*text, low=0.1, high=2))
    for dtype in ("int32", "int64", "float64"):
        for op in ("Add", "Mul", "Div", "Max"):
            yield one(f"{op} {dtype}", op, fed(dtype, *text, low=1), fed(dtype, *text, low=1))
    yield one("Where int64", "Where", fed("bool", *text), fed("int64", *text), c(0, "int64"))
    yield one("Abs int32", "Abs", fed("int32", *text))
    yield one("Clip uint8", "Clip", fed("uint8", *text), c(3, "uint8"), c(200, "uint8"))
    yield one("Greater int64", "Greater", fed("int64", *text), c(50, "int64"))


def rare_reductions() -> Iterator[Case]:
    for op in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceMin", "ReduceProd", "ReduceSumSquare"):
        yield one(f"{op} last", op, f(1, 128, 768, low=0.5, high=1.1), c([-1], "int64"))
        yield one(f"{op} space", op, f(1, 64, 56, 56, low=0.5, high=1.1), c([2, 3], "int64"))
    yield one("ReduceSum int64", "ReduceSum", fed("int64", 128, 768), c([-1], "int64"))
    yield one("ReduceMax int32", "ReduceMax", fed("int32", 128, 768), c([-1], "int64"))
    yield one("", "CumSum", f(512, 512), c(0, "int64"))
    yield one("", "RMSNormalization", f(1, 128, 768), w(768), opset=23)
    yield one("", "MeanVarianceNormalization", f(1, 64, 56, 56))
    yield one("", "LRN", f(1, 64, 55, 55), size=5)
    yield one("LpNormalization axis 1", "LpNormalization", f(1, 64, 28, 28), axis=1)
    yield one("", "GlobalMaxPool", f(1, 256, 14, 14))
    yield one("", "GlobalLpPool", f(1, 256, 14, 14))
    yield one("", "LpPool", f(1, 64, 56, 56), kernel_shape=[2, 2], strides=[2, 2])
    yield one("AveragePool all", "AveragePool", f(1, 2048, 7, 7), kernel_shape=[7, 7])
    yield one("MaxPool 3d", "MaxPool", f(1, 16, 16, 32, 32), kernel_shape=[2] * 3, strides=[2] * 3)
    yield one("MaxPool 5", "MaxPool", f(1, 128, 20, 20), kernel_shape=[5, 5], pads=[2] * 4)
    yield one("", "SoftmaxCrossEntropyLoss", f(128, 1000), fed("int64", 128))
    yield one("", "NegativeLogLikelihoodLoss", f(128, 1000), fed("int64", 128))
    yield one("ArgMax first", "ArgMax", f(64, 5000), axis=0)


def rare_movements() -> Iterator[Case]:
    image = 1, 64, 56, 56
    yield one("", "SpaceToDepth", f(*image), blocksize=2)
    yield one("", "Col2Im", f(1, 27, 3136), c([56, 56], "int64"), c([3, 3], "int64"), pads=[1] * 4)
    yield one("", "CenterCropPad", f(*image), c([50, 50], "int64"), axes=[2, 3])
    yield one("", "ReverseSequence", f(64, 8, 128), fed("int64", 8, low=1, high=64), batch_axis=1, time_axis=0)
    yield one("", "ConstantOfShape", fed("int64", 3, low=40, high=60))
    yield one("", "EyeLike", f(256, 256))
    yield one("", "Range", *(Given(np.array(number)) for number in (0, 4096, 1)))
    yield one("", "AffineGrid", f(1, 2, 3), c([1, 3, 112, 112], "int64"), opset=20)
    yield one("", "Identity", f(*image))
    yield one("", "MaxUnpool", f(1, 16, 14, 14), Given(np.arange(16 * 14 * 14).reshape(1, 16, 14, 14) * 4), kernel_shape=[2, 2], strides=[2, 2])  # fmt: skip
    yield one("", "TensorScatter", f(1, 12, 256, 64), f(1, 12, 1, 64), fed("int64", 1), opset=24)
    yield one("Transpose heads", "Transpose", f(1, 12, 128, 64), perm=[0, 2, 1, 3])
    yield one("Transpose to NCHW", "Transpose", f(1, 224, 224, 3), perm=[0, 3, 1, 2])
    yield one("Transpose uint8", "Transpose", fed("uint8", 1, 64, 56, 56), perm=[0, 2, 3, 1])
    yield one("Concat many", "Concat", *[f(1, 32, 28, 28)] * 8, axis=1)
    yield one("Concat last", "Concat", *[f(1, 8400, 4)] * 4, axis=-1)
    yield one("Split axis 1", "Split", f(1, 64, 56, 56), n=2, axis=1, num_outputs=2)
    yield one("Slice step", "Slice", f(1, 128, 768), c([0], "int64"), c([768], "int64"), c([2], "int64"), c([3], "int64"))  # fmt: skip
    yield one("Slice back", "Slice", f(1, 128, 768), c([-1], "int64"), c([-1000], "int64"), c([1], "int64"), c([-1], "int64"))  # fmt: skip
    yield one("Gather axis 1", "Gather", f(64, 1000), fed("int64", 200), axis=1)
    yield one("Gather rows", "Gather", f(512, 64), fed("int64", 512, high=511), axis=0)
    yield one(
        "Resize nearest down", "Resize", f(1, 3, 480, 640), None, None, c([1, 3, 224, 224], "int64"), mode="nearest"
    )
    yield one("Upsample", "Upsample", f(1, 64, 28, 28), c([1, 1, 2, 2]), mode="nearest", opset=9)
    yield one("Upsample linear", "Upsample", f(1, 64, 28, 28), c([1, 1, 2, 2]), mode="linear", opset=9)
    yield one("Resize antialias", "Resize", f(1, 3, 300, 400), None, None, c([1, 3, 112, 112], "int64"), mode="linear", antialias=1)  # fmt: skip
    yield one("Resize uint8", "Resize", fed("uint8", 1, 3, 240, 320), None, None, c([1, 3, 224, 224], "int64"), mode="linear")  # fmt: skip
    yield one("ScatterElements add", "ScatterElements", f(64, 1000), fed("int64", 64, 50), f(64, 50), axis=1, reduction="add")  # fmt: skip
    yield one("GridSample nearest", "GridSample", f(1, 16, 56, 56), f(1, 56, 56, 2), mode="nearest")
    yield one("GridSample cubic", "GridSample", f(1, 16, 56, 56), f(1, 56, 56, 2), mode="cubic")
    yield one("GridSample border", "GridSample", f(1, 64, 80, 80), f(1, 300, 4, 2), padding_mode="border")
    yield one("", "DeformConv", f(1, 16, 28, 28), w(16, 16, 3, 3), f(1, 18, 28, 28), pads=[1] * 4, opset=19)
    yield one("Unique float", "Unique", f(5000))
    yield one("Trilu batch", "Trilu", f(12, 128, 128), upper=0)
    yield one("OneHot axis 1", "OneHot", fed("int64", 8, 128, high=20), c(21, "int64"), c([0.0, 1.0]), axis=1)


def rare_products() -> Iterator[Case]:
    yield one("", "Det", f(64, 4, 4))
    yield one("", "DFT", f(1, 100, 512, 1), c(512, "int64"), c(2, "int64"), onesided=1)
    yield one("DFT all", "DFT", f(1, 16, 400, 2), None, c(2, "int64"))
    yield one("", "RotaryEmbedding", f(1, 12, 128, 64), f(1, 128, 32), f(1, 128, 32), opset=23)
    yield one("", "Attention", f(1, 12, 128, 64), f(1, 12, 128, 64), f(1, 12, 128, 64), opset=23)
    yield one("Attention causal", "Attention", f(1, 12, 128, 64), f(1, 12, 128, 64), f(1, 12, 128, 64), opset=23, is_causal=1)  # fmt: skip
    yield one("MatMul double", "MatMul", fed("float64", 128, 256), fed("float64", 256, 256))
    yield one("MatMul float16", "MatMul", fed("float16", 128, 768, high=1), const("float16", 768, 768, high=1))
    yield one("Gemm float16", "Gemm", fed("float16", 1, 768, high=1), const("float16", 768, 768, high=1), const("float16", 768, high=1))  # fmt: skip
    yield one("Conv float16", "Conv", fed("float16", 1, 64, 28, 28, high=1), const("float16", 64, 64, 3, 3, high=1), pads=[1] * 4)  # fmt: skip
    yield one("MatMul int32", "MatMul", fed("int32", 64, 128), fed("int32", 128, 64))
    yield one("MatMul row", "MatMul", f(1, 768), w(768, 30000))
    yield one("Gemm A turned", "Gemm", f(512, 64), w(512, 512), w(512), transA=1)
    yield one("Einsum outer", "Einsum", f(1, 12, 128, 64), f(128, 128, 64), equation="bhid,ijd->bhij")
    zero, signed = c(128, "uint8"), c(0, "int8")
    yield one("MatMulInteger both", "MatMulInteger", fed("uint8", 12, 128, 64), fed("int8", 12, 64, 128), zero, signed)
    yield one("QLinearMatMul both", "QLinearMatMul", fed("uint8", 12, 128, 64), c(0.02), zero, fed("int8", 12, 64, 128), c(0.01), signed, c(0.5), zero)  # fmt: skip
    scales = c(0.02), zero, const("int8", 64, 64, 3, 3), c(0.01), signed, c(0.05), zero
    yield one("QLinearConv stride", "QLinearConv", fed("uint8", 1, 64, 28, 28), *scales, strides=[2, 2], pads=[1] * 4)
    scales = c(0.02), zero, const("int8", 64, 3, 3, 3), Given(values("float32", (64,), 0.01, 0.02), True), const("int8", 64, low=0, high=0), c(0.05), zero  # fmt: skip
    yield one("QLinearConv image", "QLinearConv", fed("uint8", 1, 3, 112, 112), *scales[:4], c([0] * 64, "int8"), *scales[5:], pads=[1] * 4)  # fmt: skip
    scales = c(0.02), zero, const("int8", 64, 16, 3, 3), c(0.01), signed, c(0.05), zero
    yield one("QLinearConv groups", "QLinearConv", fed("uint8", 1, 64, 28, 28), *scales, group=4, pads=[1] * 4)
    yield one("QLinearConv 1d", "QLinearConv", fed("uint8", 1, 64, 400), c(0.02), zero, const("int8", 64, 64, 3), *scales[3:], pads=[1, 1])  # fmt: skip
    yield one("ConvInteger 1d", "ConvInteger", fed("uint8", 1, 64, 400), const("int8", 64, 64, 3), zero, signed, pads=[1, 1])  # fmt: skip


def of_onnxruntime() -> Iterator[Case]:
    domain = {"domain": MICROSOFT}
    zero, signed, text = c(128, "uint8"), c(0, "int8"), (1, 128, 768)
    codes = fed("uint8", 1, 64, 28, 28), c(0.02), zero
    for rows in (1, 64):
        gemm = fed("uint8", rows, 512), c(0.02), zero, const("int8", 512, 512), c(0.01), signed, const("int32", 512)
        yield one("", "QGemm", *gemm, c(0.5), zero, **domain)
        yield one("QGemm float", "QGemm", *gemm, **domain)
    gemm = fed("uint8", 1, 2048), c(0.02), zero, const("int8", 1000, 2048), c(0.01), signed, const("int32", 1000)
    yield one("QGemm B turned", "QGemm", *gemm, c(0.5), zero, transB=1, **domain)
    yield one("", "MatMulIntegerToFloat", fed("uint8", 128, 768), const("int8", 768, 768), c(0.02), w(768), zero, **domain)  # fmt: skip
    yield one("", "MatMulInteger16", fed("int16", 64, 128), fed("int16", 128, 64), **domain)
    yield one("", "QLinearAveragePool", *codes, c(0.02), zero, kernel_shape=[3, 3], strides=[2, 2], **domain)
    yield one("", "QLinearLeakyRelu", *codes, c(0.02), zero, alpha=0.1, **domain)
    b = Builder()
    softmax = b.add(
        "QLinearSoftmax", fed("uint8", 128, 1000), c(0.02), zero, c(1 / 256), c(0, "uint8"), opset=13, **domain
    )
    yield b.case("QLinearSoftmax 128x1000", [softmax], "operator")
    yield one("", "QLinearWhere", fed("bool", 1, 64, 28, 28), *codes, *codes, c(0.03), zero, **domain)
    yield one("NhwcMaxPool", "NhwcMaxPool", fed("uint8", 1, 56, 56, 64), kernel_shape=[3, 3], strides=[2, 2], **domain)
    by = c(0.02), zero, const("int8", 64, 64, 3, 3), c(0.01), signed, c(0.05), zero, const("int32", 64)
    yield one("QLinearConv channels last", "QLinearConv", fed("uint8", 1, 28, 28, 64), *by, channels_last=1, pads=[1] * 4, **domain)  # fmt: skip
    yield one("DynamicQuantizeLSTM", "DynamicQuantizeLSTM", f(30, 1, 64), const("int8", 1, 64, 256), const("int8", 1, 64, 256), w(1, 512), None, None, None, None, w(1), c([0], "int8"), w(1), c([0], "int8"), n=3, hidden_size=64, **domain)  # fmt: skip
    wide = 1, 128, 3072
    for op in ("Gelu", "FastGelu", "QuickGelu"):
        yield one(f"{op} microsoft", op, f(*wide, low=-3, high=3), **domain)
    yield one("", "BiasGelu", f(*wide, low=-3, high=3), w(3072), **domain)
    yield one("FastGelu bias", "FastGelu", f(*wide, low=-3, high=3), w(3072), **domain)
    yield one("", "SkipLayerNormalization", f(*text), f(*text), w(768), w(768), w(768), **domain)
    yield one("", "SkipSimplifiedLayerNormalization", f(*text), f(*text), w(768), **domain)
    yield one("SkipLayerNormalization row", "SkipLayerNormalization", f(1, 1, 768), f(1, 1, 768), w(768), w(768), **domain)  # fmt: skip
    yield one("", "SimplifiedLayerNormalization", f(*text), w(768))
    yield one("", "FusedMatMul", f(1, 12, 128, 64), f(1, 12, 128, 64), transB=1, alpha=0.125, **domain)
    yield one("FusedMatMul weights", "FusedMatMul", f(128, 768), w(768, 768), alpha=0.5, **domain)
    yield one("", "FusedGemm", f(64, 512), w(512, 512), w(512), activation="Relu", **domain)
    yield one("FusedConv Relu", "FusedConv", f(1, 64, 28, 28), w(64, 64, 3, 3), w(64), activation="Relu", pads=[1] * 4, **domain)  # fmt: skip
    yield one("RotaryEmbedding microsoft", "RotaryEmbedding", f(1, 128, 768), fed("int64", 1, 128, high=127), w(128, 32), w(128, 32), num_heads=12, **domain)  # fmt: skip
    qkv = [f(*text)] * 3
    yield one("MultiHeadAttention", "MultiHeadAttention", *qkv, num_heads=12, **domain)
    past = f(1, 12, 128, 64), f(1, 12, 128, 64)
    yield one("MultiHeadAttention step", "MultiHeadAttention", *[f(1, 1, 768)] * 3, None, None, None, *past, n=3, num_heads=12, **domain)  # fmt: skip
    grouped = f(1, 1, 768), f(1, 1, 256), f(1, 1, 256), f(1, 4, 256, 64), f(1, 4, 256, 64)
    yield one("GroupQueryAttention step", "GroupQueryAttention", *grouped, Given(np.array([255], np.int32)), Given(np.array(256, np.int32)), n=3, num_heads=12, kv_num_heads=4, **domain)  # fmt: skip
    prompt = f(1, 128, 768), f(1, 128, 256), f(1, 128, 256), f(1, 4, 0, 64), f(1, 4, 0, 64)
    yield one("GroupQueryAttention prompt", "GroupQueryAttention", *prompt, Given(np.array([127], np.int32)), Given(np.array(128, np.int32)), n=3, num_heads=12, kv_num_heads=4, **domain)  # fmt: skip
    yield one("Attention microsoft", "Attention", f(*text), w(768, 2304), w(2304), num_heads=12, **domain)
    yield one("", "QAttention", fed("uint8", *text), const("int8", 768, 2304), w(2304), c(0.02), c(0.001), None, zero, signed, num_heads=12, **domain)  # fmt: skip
    ids = fed("int32", 1, 128, high=500)
    yield one("", "EmbedLayerNormalization", ids, fed("int32", 1, 128, high=1), w(1000, 768), w(512, 768), w(2, 768), w(768), w(768), n=2, **domain)  # fmt: skip
    packed = const("uint8", 1000, 384), fed("int64", 1, 64, high=999), Given(values("float32", (1000, 24)), True)
    yield one("", "GatherBlockQuantized", *packed, bits=4, block_size=32, **domain)
    yield one("", "CDist", f(200, 32), f(300, 32), metric="euclidean", **domain)
    yield one("", "Inverse", f(64, 4, 4), **domain)
    yield one("", "UnfoldTensor", f(1, 16000), dim=1, size=400, step=160, **domain)
    yield one("", "CropAndResize", f(1, 16, 56, 56), Given(np.sort(values("float32", (20, 2, 2), 0, 1), 1).reshape(20, 4)), fed("int32", 20, high=0), c([7, 7], "int32"), **domain)  # fmt: skip
    yield one("", "NGramRepeatBlock", fed("int64", 4, 100), f(4, 30000), ngram_size=3, **domain)
    yield one("", "DynamicTimeWarping", f(64, 300, low=0), **domain)
    yield one("", "MoE", f(16, 128), f(16, 8), w(8, 256, 128), w(8, 256), w(8, 128, 256), w(8, 128), k=2, activation_type="gelu", **domain)  # fmt: skip
    heads = [f(1, 64, 256)] * 3
    yield one("", "LinearAttention", *heads, None, None, None, n=2, q_num_heads=4, kv_num_heads=4, update_rule="linear", **domain)  # fmt: skip
    yield one("CausalConvWithState", "CausalConvWithState", f(1, 256, 64), w(256, 1, 4), w(256), f(1, 256, 3), n=2, **domain)  # fmt: skip


def classical() -> Iterator[Case]:
    """Operators of ``ai.onnx.ml``, of texts, and of control flow."""
    ml = {"domain": "ai.onnx.ml"}
    trees, depth, features = 100, 6, 30
    inner, leaves = 2**depth - 1, 2**depth
    rng = np.random.default_rng(0)
    places = np.arange(inner + leaves)
    modes = ["BRANCH_LEQ"] * inner + ["LEAF"] * leaves
    attrs = {
        "nodes_treeids": np.repeat(np.arange(trees), inner + leaves),
        "nodes_nodeids": np.tile(places, trees),
        "nodes_featureids": rng.integers(0, features, trees * (inner + leaves)),
        "nodes_values": rng.uniform(-1, 1, trees * (inner + leaves)),
        "nodes_truenodeids": np.tile(np.where(places < inner, 2 * places + 1, 0), trees),
        "nodes_falsenodeids": np.tile(np.where(places < inner, 2 * places + 2, 0), trees),
        "nodes_modes": modes * trees,
    }
    leaf = {"treeids": np.repeat(np.arange(trees), leaves), "nodeids": np.tile(places[inner:], trees), "weights": rng.uniform(-1, 1, trees * leaves)}  # fmt: skip
    for rows in (1, 1000):
        given = f(rows, features)
        target = {f"target_{key}": value for key, value in leaf.items()}
        yield one("", "TreeEnsembleRegressor", given, n_targets=1, target_ids=[0] * (trees * leaves), **attrs, **target, **ml)  # fmt: skip
        classes = {f"class_{key}": value for key, value in leaf.items()}
        yield one("", "TreeEnsembleClassifier", given, n=2, classlabels_int64s=[0, 1, 2], class_ids=rng.integers(0, 3, trees * leaves), **attrs, **classes, **ml)  # fmt: skip
        yield one("", "LinearClassifier", given, n=2, coefficients=values("float32", (90,)), intercepts=[0.0] * 3, classlabels_ints=[0, 1, 2], post_transform="SOFTMAX", **ml)  # fmt: skip
        yield one("", "LinearRegressor", given, coefficients=values("float32", (30,)), intercepts=[0.5], **ml)
        yield one("", "Scaler", given, scale=[0.5] * features, offset=[0.1] * features, **ml)
        yield one("", "Normalizer", given, norm="L2", **ml)
        yield one("", "SVMRegressor", given, kernel_type="RBF", kernel_params=[0.1, 0.0, 3.0], coefficients=values("float32", (200,)), support_vectors=values("float32", (6000,)), n_supports=200, rho=[0.1], **ml)  # fmt: skip
    yield one("", "Imputer", f(1000, 30), imputed_value_floats=[0.0] * 30, replaced_value_float=float("nan"), **ml)
    yield one("", "Binarizer", f(1000, 30), threshold=0.2, **ml)
    words = Given(np.array(["the", "quick", "brown", "fox"] * 250, object).reshape(1000, 1))
    yield one(
        "", "LabelEncoder", words, keys_strings=["the", "quick", "brown"], values_int64s=[0, 1, 2], opset=20, **ml
    )
    yield one("", "OneHotEncoder", words, cats_strings=["the", "quick", "brown"], **ml)
    yield one("", "OneHotEncoder", fed("int64", 1000, 1, high=9), cats_int64s=list(range(10)), **ml)
    yield one("", "ArrayFeatureExtractor", f(1000, 30), c([3, 5, 7], "int64"), **ml)
    yield one("", "FeatureVectorizer", f(1000, 10), f(1000, 20), inputdimensions=[10, 20], **ml)
    yield one("", "TfIdfVectorizer", fed("int64", 1000), mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0, ngram_counts=[0, 50], ngram_indexes=list(range(75)), pool_int64s=list(range(100)))  # fmt: skip
    line = Given(np.array(["The quick brown fox", "Lazy dog"] * 100, object))
    yield one("", "StringNormalizer", line, case_change_action="LOWER", locale="C")
    yield one("", "StringConcat", line, line)
    yield one("", "StringSplit", line, n=2)


def rare() -> Iterator[Case]:
    """All of them."""
    for family in (rare_elementwise, rare_reductions, rare_movements, rare_products, of_onnxruntime, classical):
        yield from family()
