"""Models of one operator, in shapes that people's files have, for ``benchmarks.runner_sweep``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.runner_sweep_cases import MICROSOFT, Case, Given, c, const, f, fed, one, values, w


def convolutions() -> Iterator[Case]:
    def conv(x: Sequence[int], k: Sequence[int], label: str = "Conv", **attrs: Any) -> Case:
        return one(label, "Conv", f(*x), w(*k), w(k[0]), **attrs)

    yield conv((1, 1, 32000), (257, 1, 512), "Conv STFT", strides=[160])
    yield conv((1, 1, 16000), (258, 1, 256), "Conv STFT", strides=[128])
    yield conv((1, 1, 1024), (1024, 1, 512), "Conv CREPE", strides=[4], pads=[254, 254])
    yield conv((1, 1, 28, 28), (32, 1, 3, 3), "Conv grey", pads=[1] * 4)
    yield conv((1, 1, 100, 100), (64, 1, 3, 3), "Conv grey", pads=[1] * 4)
    yield conv((1, 1, 48, 320), (16, 1, 5, 5), "Conv grey", pads=[2] * 4, strides=[2, 2])
    yield conv((8, 1, 76, 32), (24, 1, 3, 3), "Conv mel")
    yield conv((1, 1, 16000), (64, 1, 10), "Conv wav", strides=[5])
    yield conv((1, 32, 40, 40), (64, 1, 3, 3), "Conv multiplier", group=32, pads=[1] * 4)
    yield conv((1, 8, 2000), (64, 1, 64), "Conv multiplier", group=8, strides=[4])
    yield conv((1, 64, 56, 56), (64, 16, 3, 3), "Conv groups", group=4, pads=[1] * 4)
    yield conv((1, 128, 28, 28), (128, 4, 3, 3), "Conv ResNeXt", group=32, pads=[1] * 4)
    yield conv((1, 24, 28, 28), (240, 6, 1, 1), "Conv shuffle", group=4)
    for channels, size, k, stride in (
        (16, 112, 3, 1),
        (72, 56, 5, 2),
        (240, 28, 3, 1),
        (672, 14, 5, 1),
        (960, 7, 5, 1),
        (3, 224, 3, 1),
        (8, 20, 3, 1),
    ):
        pads = [k // 2] * 4
        yield conv(
            (1, channels, size, size),
            (channels, 1, k, k),
            "Conv depthwise",
            group=channels,
            strides=[stride] * 2,
            pads=pads,
        )
    yield conv((1, 512, 100), (512, 1, 31), "Conv depthwise 1d", group=512, pads=[15, 15])
    yield conv((1, 128, 400), (128, 1, 5), "Conv depthwise 1d", group=128, pads=[2, 2])
    for x, k, stride in (
        ((1, 3, 224, 224), (64, 3, 7, 7), 2),
        ((1, 3, 112, 112), (16, 3, 3, 3), 2),
        ((1, 64, 56, 56), (64, 64, 3, 3), 1),
        ((1, 256, 14, 14), (256, 256, 3, 3), 1),
        ((1, 512, 7, 7), (512, 512, 3, 3), 1),
        ((1, 64, 56, 56), (256, 64, 1, 1), 1),
        ((1, 16, 12, 12), (32, 16, 3, 3), 1),
        ((16, 10, 5, 5), (16, 10, 3, 3), 1),
    ):
        yield conv(x, k, strides=[stride] * 2, pads=[k[2] // 2] * 4)
    yield conv((1, 80, 300), (512, 80, 3), "Conv 1d", pads=[1, 1])
    yield conv((1, 512, 150), (512, 512, 5), "Conv 1d", pads=[2, 2])
    yield conv((1, 64, 1), (64, 64, 3), "Conv 1d", pads=[1, 1])
    yield conv((1, 20, 500), (20, 20, 5), "Conv dilated", pads=[8, 8], dilations=[4])
    yield conv((1, 16, 1, 500), (16, 16, 1, 3), "Conv row", pads=[0, 1, 0, 1])
    yield conv((1, 4, 16, 24, 24), (8, 4, 3, 3, 3), "Conv 3d", pads=[1] * 6)
    yield one("", "ConvTranspose", f(1, 64, 28, 28), w(64, 32, 2, 2), w(32), strides=[2, 2])
    yield one("", "ConvTranspose", f(1, 128, 100), w(128, 64, 16), w(64), strides=[8], pads=[4, 4])
    yield one("ConvTranspose one channel", "ConvTranspose", f(1, 257, 60), w(257, 1, 512), strides=[160])
    zero8, zero_w = c(128, "uint8"), c(0, "int8")
    for x, k, group in (
        ((1, 64, 28, 28), (64, 64, 3, 3), 1),
        ((1, 1, 28, 28), (32, 1, 3, 3), 1),
        ((1, 96, 28, 28), (96, 1, 3, 3), 96),
    ):
        attrs = {"pads": [1] * 4, "group": group}
        yield one("", "ConvInteger", fed("uint8", *x), const("int8", *k), zero8, zero_w, **attrs)
        scales = c(0.02), zero8, const("int8", *k), c(0.01), zero_w, c(0.05), zero8
        yield one("", "QLinearConv", fed("uint8", *x), *scales, const("int32", k[0], high=1000), **attrs)
    scales = c(0.02), zero8, const("int8", 256, 64, 1, 1), c(0.01), zero_w, c(0.05), zero8
    yield one("", "QLinearConv", fed("uint8", 1, 64, 56, 56), *scales)


def products() -> Iterator[Case]:
    yield one("", "MatMul", f(128, 768), w(768, 768))
    yield one("", "MatMul", f(1, 128, 768), w(768, 3072))
    yield one("", "MatMul", f(1, 256), w(256, 256))
    yield one("", "MatMul", f(1, 12, 128, 64), f(1, 12, 64, 128))
    yield one("", "MatMul", f(512, 4, 4), f(512, 4, 4))
    yield one("", "Gemm", f(1, 96), w(32, 96), w(32), transB=1)
    yield one("", "Gemm", f(1, 2048), w(1000, 2048), w(1000), transB=1)
    yield one("", "Gemm", f(64, 512), w(512, 512), w(512))
    yield one("", "Einsum", f(8, 64, 32), f(8, 32, 64), equation="bij,bjk->bik")
    yield one("", "Einsum", f(1, 16, 10, 32), f(1, 16, 10, 32), equation="bhid,bhjd->bhij")
    zeros = c(128, "uint8"), c(0, "int8")
    for rows, inner, columns in ((18, 512, 2048), (1, 512, 2048), (128, 768, 768), (1, 96, 96), (64, 2048, 512)):
        yield one("", "MatMulInteger", fed("uint8", rows, inner), const("int8", inner, columns), *zeros)
    a, b, y = (c(0.02), zeros[0]), (c(0.01), zeros[1]), (c(0.5), zeros[0])
    yield one("", "QLinearMatMul", fed("uint8", 128, 768), *a, const("int8", 768, 768), *b, *y)
    yield one("", "QLinearMatMul", fed("uint8", 4, 128), *a, const("int8", 128, 64), *b, *y)
    for rows, k, n in ((1, 768, 768), (1, 768, 3072), (64, 768, 768)):
        packed = const("uint8", n, k // 32, 16), Given(values("float32", (n * (k // 32),)), True)
        yield one("", "MatMulNBits", f(rows, k), *packed, domain=MICROSOFT, K=k, N=n, bits=4, block_size=32)


def recurrences() -> Iterator[Case]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for op, steps, ins, hidden, direction in (
        ("LSTM", 100, 64, 25, "bidirectional"),
        ("LSTM", 1, 128, 128, "forward"),
        ("LSTM", 30, 40, 64, "forward"),
        ("LSTM", 60, 256, 256, "bidirectional"),
        ("GRU", 100, 60, 25, "forward"),
        ("GRU", 40, 128, 200, "bidirectional"),
        ("GRU", 1, 96, 64, "forward"),
        ("RNN", 100, 64, 25, "forward"),
    ):
        sides = 2 if direction == "bidirectional" else 1
        rows = gates[op] * hidden
        attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        if op == "GRU":
            attrs["linear_before_reset"] = 1
        weights = w(sides, rows, ins), w(sides, rows, hidden), w(sides, 2 * rows)
        yield one("", op, f(steps, 1, ins), *weights, n=2, **attrs)


SIZES = ((1, 64), (1, 128, 768), (1, 64, 112, 112))


def elementwise() -> Iterator[Case]:
    plain = (
        "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Floor", "Round", "Sign", "Erf", "Softplus",
        "Softsign", "Reciprocal", "Sin", "Cos", "HardSwish", "Mish",
    )  # fmt: skip
    for op in plain:
        low = 0.1 if op in ("Log", "Sqrt", "Reciprocal") else -3.0
        for dims in SIZES[1:2] if op in ("Floor", "Round", "Sign", "Sin", "Cos", "Mish", "Softsign") else SIZES:
            yield one("", op, f(*dims, low=low, high=3.0))
    for op, attrs in (
        ("LeakyRelu", {"alpha": 0.1}),
        ("Elu", {"alpha": 1.0}),
        ("Selu", {}),
        ("Celu", {"alpha": 1.5}),
        ("HardSigmoid", {"alpha": 0.2}),
        ("ThresholdedRelu", {"alpha": 0.5}),
        ("Shrink", {"lambd": 0.5}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
    ):
        for dims in SIZES[1:]:
            yield one("", op, f(*dims, low=-3, high=3), **attrs)
    yield one("", "PRelu", f(1, 64, 56, 56), w(64, 1, 1))
    yield one("", "Clip", f(1, 64, 112, 112), c(0.0), c(0.5))
    yield one("", "Clip", fed("int64", 1, 128, 768), c(3, "int64"), c(50, "int64"))
    for op in ("Add", "Mul", "Div", "Max"):
        yield one("", op, f(1, 128, 768, low=0.5, high=2), f(1, 128, 768, low=0.5, high=2))
        yield one(op + " channel", op, f(1, 64, 56, 56, low=0.5, high=2), w(64, 1, 1))
        yield one("", op, f(1, 1, 64), f(1, 1, 64, low=0.5, high=2))
    yield one("", "Add", fed("int64", 1, 512), fed("int64", 1, 512))
    yield one("", "Div", fed("int64", 1000), c(7, "int64"))
    yield one("", "Pow", f(1, 128, 768), c(2.0))
    yield one("", "Pow", f(1, 128, 768, low=0.1), c(1.7))
    yield one("", "Mod", fed("int64", 10000), c(7, "int64"))
    yield one("", "Where", fed("bool", 1, 12, 128, 128), f(1, 12, 128, 128), c(-1e9))
    yield one("", "Where", fed("bool", 1, 1, 128, 128), c(0.0), f(1, 12, 128, 128))
    yield one("", "Equal", fed("int64", 1, 4096), c(5, "int64"))
    yield one("", "Greater", f(1, 128, 768), c(0.3))
    yield one("", "And", fed("bool", 1, 128, 768), fed("bool", 1, 128, 768))
    yield one("", "Not", fed("bool", 1, 128, 768))
    yield one("", "IsNaN", f(1, 128, 768))
    for source, to in (
        ("float32", "INT64"),
        ("int64", "FLOAT"),
        ("float32", "FLOAT16"),
        ("float16", "FLOAT"),
        ("bool", "FLOAT"),
        ("float32", "UINT8"),
    ):
        yield one(f"Cast {source} to {to}", "Cast", fed(source, 1, 128, 768), to=getattr(TensorProto, to))
    yield one("", "QuantizeLinear", f(1, 64, 56, 56), c(0.02), c(128, "uint8"))
    yield one("", "DequantizeLinear", fed("uint8", 1, 64, 56, 56), c(0.02), c(128, "uint8"))
    yield one("", "DynamicQuantizeLinear", f(1, 128, 768), n=3)


def reductions() -> Iterator[Case]:
    yield one("", "Softmax", f(1, 12, 128, 128))
    yield one("", "Softmax", f(1, 1000))
    yield one("Softmax axis 1", "Softmax", f(1, 19, 64, 64), axis=1)
    yield one("", "LogSoftmax", f(100, 400))
    yield one("", "LayerNormalization", f(1, 128, 768), w(768), w(768))
    yield one("", "LayerNormalization", f(1, 1, 96), w(96), w(96))
    yield one("", "InstanceNormalization", f(1, 32, 64, 64), w(32), w(32))
    yield one("", "BatchNormalization", f(1, 64, 56, 56), w(64), w(64), w(64), c([0.7] * 64))
    yield one("", "LpNormalization", f(64, 512))
    for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"):
        yield one(op + " last", op, f(1, 128, 768), c([-1], "int64"))
        yield one(op + " space", op, f(1, 64, 56, 56), c([2, 3], "int64"))
        yield one(op + " first", op, f(128, 64, 20), c([0], "int64"))
    for op in ("ArgMax", "ArgMin"):
        yield one(op + " last", op, f(1, 100, 6000), axis=-1)
        yield one(op + " axis 1", op, f(1, 21, 64, 64), axis=1)
    yield one("", "CumSum", f(64, 1000), c(1, "int64"))
    yield one("", "CumSum", fed("int64", 1, 128), c(1, "int64"))
    yield one("", "TopK", f(1, 8400), c([300], "int64"), n=2)
    yield one("", "TopK", f(64, 1000), c([5], "int64"), n=2)
    yield one("", "TopK", f(1, 50000), c([40], "int64"), n=2)
    yield one("", "MaxPool", f(1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield one("", "MaxPool", f(1, 24, 24, 24), kernel_shape=[2, 2], strides=[2, 2])
    yield one("MaxPool row", "MaxPool", f(1, 64, 1, 400), kernel_shape=[1, 2], strides=[1, 2])
    yield one("", "AveragePool", f(1, 64, 56, 56), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    yield one("", "AveragePool", f(1, 128, 400), kernel_shape=[2], strides=[2])
    yield one("", "GlobalAveragePool", f(1, 960, 7, 7))


def movements() -> Iterator[Case]:
    yield one("", "Transpose", f(1, 128, 12, 64), perm=[0, 2, 1, 3])
    yield one("Transpose to NHWC", "Transpose", f(1, 64, 112, 112), perm=[0, 2, 3, 1])
    yield one("", "Concat", f(1, 64, 56, 56), f(1, 64, 56, 56), axis=1)
    yield one("Concat last", "Concat", f(1, 128, 64), f(1, 128, 64), axis=-1)
    yield one("", "Split", f(1, 128, 2304), n=3, axis=-1, num_outputs=3)
    yield one(
        "",
        "Slice",
        f(1, 64, 112, 112),
        c([0, 0], "int64"),
        c([112, 112], "int64"),
        c([2, 3], "int64"),
        c([2, 2], "int64"),
    )
    yield one("", "Pad", f(1, 64, 56, 56), c([0, 0, 1, 1, 0, 0, 1, 1], "int64"))
    yield one("Pad reflect", "Pad", f(1, 1, 16000), c([0, 0, 256, 0, 0, 256], "int64"), mode="reflect")
    yield one("Pad edge", "Pad", f(1, 16, 64, 64), c([0, 0, 1, 1, 0, 0, 1, 1], "int64"), mode="edge")
    yield one("", "Gather", w(30000, 256), fed("int64", 1, 128), axis=0)
    yield one("Gather last", "Gather", f(1, 128, 768), c(0, "int64"), axis=-1)
    yield one("", "GatherElements", f(64, 1000), fed("int64", 64, 50), axis=1)
    yield one("", "GatherND", f(64, 100, 32), fed("int64", 500, 2, high=63))
    yield one("", "ScatterND", f(100, 100, 32), fed("int64", 500, 2, high=99), f(500, 32))
    yield one("", "ScatterElements", f(64, 1000), fed("int64", 64, 50), f(64, 50), axis=1)
    yield one("", "Expand", f(1, 128, 1, 64), c([1, 128, 8, 64], "int64"))
    yield one("", "Tile", f(1, 128, 64), c([1, 2, 4], "int64"))
    yield one("", "NonZero", fed("bool", 100, 100))
    yield one("", "OneHot", fed("int64", 128, high=99), c(100, "int64"), c([0.0, 1.0]))
    yield one("", "Trilu", f(128, 128))
    yield one("", "Resize", f(1, 64, 28, 28), None, c([1, 1, 2, 2]), mode="nearest")
    yield one("Resize bilinear", "Resize", f(1, 64, 28, 28), None, c([1, 1, 2, 2]), mode="linear")
    yield one("Resize bilinear", "Resize", f(1, 3, 300, 400), None, None, c([1, 3, 224, 224], "int64"), mode="linear")
    yield one("Resize cubic", "Resize", f(1, 3, 100, 100), None, c([1, 1, 2, 2]), mode="cubic")
    yield one("", "GridSample", f(1, 16, 56, 56), f(1, 56, 56, 2))
    yield one("", "DepthToSpace", f(1, 64, 56, 56), blocksize=2)
    corners = np.sort(values("float32", (1, 1000, 2, 2), 0, 640), axis=2).reshape(1, 1000, 4)
    limits = c(100, "int64"), c(0.5), c(0.3)
    yield one("", "NonMaxSuppression", Given(corners), f(1, 1, 1000, low=0), *limits)
    yield one("", "NonMaxSuppression", Given(corners), f(1, 20, 1000, low=0), *limits)
    yield one(
        "",
        "RoiAlign",
        f(1, 64, 28, 28),
        Given(corners[0, :20] / 25),
        fed("int64", 20, high=0),
        output_height=7,
        output_width=7,
    )


def others() -> Iterator[Case]:
    """Audio, video, float16, quantized activations, attention steps, strings: one or two of each class."""
    yield one("Conv depthwise", "Conv", f(1, 96, 56, 56), w(96, 1, 7, 7), w(96), pads=[3] * 4, group=96)
    yield one("Conv vocoder", "Conv", f(1, 64, 3200), w(64, 64, 11), w(64), pads=[5, 5])
    yield one("ConvTranspose vocoder", "ConvTranspose", f(1, 64, 3200), w(64, 32, 4), w(32), strides=[2], pads=[1, 1])
    yield one("ConvTranspose depthwise", "ConvTranspose", f(1, 64, 28, 28), w(64, 1, 4, 4), w(64), strides=[2, 2], pads=[1] * 4, group=64)  # fmt: skip
    yield one("STFT", "STFT", f(1, 16000, 1), c(160, "int64"), w(400), c(400, "int64"))
    yield one("", "GroupNormalization", f(1, 320, 32, 32), w(320), w(320), num_groups=32, opset=21)
    yield one("", "InstanceNormalization", f(1, 512, 400), w(512), w(512))
    yield one("Resize cubic", "Resize", f(1, 3, 240, 320), None, c([1, 1, 2, 2]), mode="cubic")
    for op in ("Add", "Relu", "Sigmoid", "LayerNormalization", "Softmax"):
        operands = [fed("float16", 1, 128, 768, high=1)] * (2 if op == "Add" else 1)
        yield one(f"{op} float16", op, *operands, *[const("float16", 768, high=1)] * (2 if op[0] == "L" else 0))
    image = fed("float16", 1, 64, 56, 56, high=1)
    by = [const("float16", 64, high=1)] * 2
    yield one("ReduceMean float16", "ReduceMean", image, c([2, 3], "int64"))
    yield one("MaxPool float16", "MaxPool", image, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield one("GroupNormalization float16", "GroupNormalization", image, *by, num_groups=8, opset=21)
    yield one("RMSNormalization float16", "RMSNormalization", fed("float16", 1, 128, 768, high=1), const("float16", 768, high=1), opset=23)  # fmt: skip
    yield one("Mul uint8", "Mul", fed("uint8", 1, 128, 768), fed("uint8", 1, 128, 768))
    yield one("ReduceMax short", "ReduceMax", f(40000, 4), c([-1], "int64"))
    yield one("ReduceMean middle", "ReduceMean", f(8, 64, 128), c([1], "int64"))
    yield one("RNN Relu", "RNN", f(50, 1, 64), w(1, 64, 64), w(1, 64, 64), w(1, 128), n=2, hidden_size=64, activations=["Relu"])  # fmt: skip
    yield one("LSTM batch", "LSTM", f(50, 8, 64), w(2, 256, 64), w(2, 256, 64), w(2, 512), n=3, hidden_size=64, direction="bidirectional")  # fmt: skip
    yield one("Attention step", "Attention", f(1, 12, 1, 64), f(1, 12, 256, 64), f(1, 12, 256, 64), opset=23)
    yield one("GatherElements", "GatherElements", f(12, 128, 255), fed("int64", 12, 128, 128, high=254), axis=2)
    yield one("ScatterND add", "ScatterND", f(1000, 64), fed("int64", 2000, 1, high=999), f(2000, 64), reduction="add")
    yield one("Transpose", "Transpose", f(1024, 1024), perm=[1, 0])
    yield one("", "Unique", fed("int64", 5000), n=4)
    yield one("", "Compress", f(8400, 84), fed("bool", 8400), axis=0)
    zero = c(128, "uint8")
    given = fed("uint8", 1, 64, 28, 28), c(0.02), zero
    yield one("", "QLinearAdd", *given, *given, c(0.05), zero, domain=MICROSOFT)
    yield one("", "QLinearMul", *given, fed("uint8", 1, 64, 1, 1), c(0.02), zero, c(0.05), zero, domain=MICROSOFT)
    yield one("", "QLinearConcat", c(0.05), zero, *given, *given, axis=1, domain=MICROSOFT)
    yield one("", "QLinearGlobalAveragePool", *given, c(0.02), zero, domain=MICROSOFT)
    yield one(
        "DequantizeLinear channels", "DequantizeLinear", fed("uint8", 1, 64, 56, 56), w(64), fed("uint8", 64), axis=1
    )
    scaled = const("int8", 768, 768), w(768)
    yield one("", "DynamicQuantizeMatMul", f(128, 768), *scaled, domain=MICROSOFT)
    yield one("", "DynamicQuantizeMatMul", f(1, 768), *scaled, domain=MICROSOFT)
    yield one("", "QLinearSigmoid", *given, c(0.004), c(0, "uint8"), domain=MICROSOFT)
    corners = Given(np.sort(values("float32", (20, 2, 2), 0, 25), axis=1).reshape(20, 4))
    sizes = {"output_height": 7, "output_width": 7}
    yield one("RoiAlign max", "RoiAlign", f(1, 64, 28, 28), corners, fed("int64", 20, high=0), mode="max", **sizes)
    rois = Given(np.concatenate([np.zeros((20, 1), np.float32), corners.array], axis=1))
    yield one("", "MaxRoiPool", f(1, 64, 28, 28), rois, pooled_shape=[7, 7])
    yield one("", "RegexFullMatch", Given(np.array(["the quick brown fox", "a,b,c"] * 150, object)), pattern="[a-z ]+")
