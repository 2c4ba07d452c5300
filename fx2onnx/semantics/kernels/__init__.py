"""NumPy kernels, one file a family: which file has the kernel of each operator, imported when a model first has the operator."""

from __future__ import annotations

from fx2onnx.semantics.kernels import contrib  # noqa: F401  (which names its own)
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, register_later

ML = "ai.onnx.ml"

FAMILIES: dict[tuple[str, str], str] = {
    ("", "activation"): """
        Celu Clip Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus Softsign
        SwiGLU Swish ThresholdedRelu
    """,
    ("", "attention"): "Attention LinearAttention RotaryEmbedding",
    ("", "cast"): "Cast CastLike",
    ("", "control"): """
        ConcatFromSequence If Loop Optional OptionalGetElement OptionalHasElement Scan SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence
    """,
    ("", "conv"): "CausalConvWithState Col2Im Conv ConvTranspose",
    ("", "creation"): """
        Bernoulli Constant ConstantOfShape Dropout EyeLike Multinomial RandomNormal RandomNormalLike RandomUniform
        RandomUniformLike Range
    """,
    ("", "elementwise"): """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil
        Cos Cosh Div Equal Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg
        Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where Xor
    """,
    ("", "gather"): """
        Compress Gather GatherElements GatherND NonZero OneHot Scatter ScatterElements ScatterND TensorScatter TopK
        Unique
    """,
    ("", "integer_convolutions"): "ConvInteger QLinearConv",
    ("", "integer_products"): "MatMulInteger QLinearMatMul",
    ("", "matmul"): "Det Einsum Gemm MatMul",
    ("", "norm"): """
        BatchNormalization GroupNormalization Hardmax InstanceNormalization LRN LayerNormalization LogSoftmax
        LpNormalization MeanVarianceNormalization RMSNormalization Softmax
    """,
    ("", "pool"): "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool MaxUnpool",
    ("", "quant"): "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    ("", "reduce"): """
        ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare
    """,
    ("", "resize"): "CenterCropPad Resize Upsample",
    ("", "rnn"): "GRU LSTM RNN",
    ("", "shape"): """
        Concat DepthToSpace Expand Flatten Identity Pad Reshape ReverseSequence Shape Size Slice SpaceToDepth
        Split Squeeze Tile Transpose Trilu Unsqueeze
    """,
    ("", "signal"): "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    ("", "strings"): "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    ("", "vision"): "AffineGrid DeformConv GridSample ImageDecoder NonMaxSuppression RoiAlign",
    (ML, "ml"): """
        ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder
        LinearClassifier LinearRegressor Normalizer OneHotEncoder Scaler ZipMap
    """,
    (ML, "svm"): "SVMClassifier SVMRegressor",
    (ML, "trees"): "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    ("ai.onnx.preview", "attention"): "FlexAttention",
    ("ai.onnx.preview.training", "training"): "Adagrad Adam Momentum",
    ("", "training"): "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    (PRIVATE_DOMAIN, "conv"): "FusedConv",
    (PRIVATE_DOMAIN, "integer_products"): "ScaledMatMulInteger",
    (PRIVATE_DOMAIN, "contrib.encoders"): "ProjectedAttention",
    (PRIVATE_DOMAIN, "training"): "OnesLike SumTo SwapLast ZerosLike",
}
"""The operators of each domain and file."""

for (_domain, _file), _op_types in FAMILIES.items():
    register_later(_domain, _op_types.split(), f"{__name__}.{_file}")
