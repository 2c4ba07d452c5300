"""Rewrites into onnxruntime's own operators: before and after in onnxruntime, and each refusal."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.optimize.rewrites.fuse_norm import FuseSkipNorm
from fx2onnx.optimize.rewrites.gelu import FuseBiasGelu
from fx2onnx.optimize.rewrites.heads import FuseHeadBias, FuseHeadScale, FusePackedBias, PackHeads
from fx2onnx.optimize.rewrites.matmuls import FuseMatMulScale, FuseMatMulTranspose
from fx2onnx.sizes.expr import Dim
from tests.optimize.support import model, random, refused, rewritten, weight

V = dict[str, ir.Value]
SHAPES = {"x": (Dim.symbol("batch"), Dim.symbol("length"), 8), "y": (Dim.symbol("batch"), Dim.symbol("length"), 8)}
SIZES = {"batch": 2, "length": 5}
INT32 = ir.DataType.INT32


def norm(op: Emit, x: ir.Value, *, bias: bool = False, **attrs: Any) -> ir.Value:
    parts = [weight(op, "gamma", random(8)), *([weight(op, "beta", random(8, seed=1))] if bias else [])]
    found: ir.Value = op.LayerNormalization(x, *parts, **({"axis": -1, "epsilon": 1e-3} | attrs))
    return found


class TestSkipNorm:
    @pytest.mark.parametrize("bias", [False, True])
    def test_sum_read_elsewhere(self, bias: bool) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            total = op.Add(v["x"], v["y"])
            return [op.Relu(norm(op, total, bias=bias)), op.Neg(total)]

        to = ["SkipLayerNormalization", "Relu", "Neg"]
        rewritten(model(make, SHAPES), FuseSkipNorm(), to=to, rtol=1e-5, sizes=SIZES)

    def test_rms_of_an_output(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            total = op.Add(v["x"], v["y"])
            return [op.RMSNormalization(total, weight(op, "gamma", random(8)), axis=2, epsilon=1e-3), total]

        to = ["SkipSimplifiedLayerNormalization"]
        rewritten(model(make, SHAPES, opset=23), FuseSkipNorm(), to=to, rtol=1e-5, sizes=SIZES)

    @pytest.mark.parametrize("first", [False, True])
    def test_row_of_a_projection(self, first: bool) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            row = op.Add(v["x"], weight(op, "bias", random(8, seed=2)))
            return norm(op, op.Add(row, v["y"]) if first else op.Add(v["y"], row), bias=True)

        rewritten(model(make, SHAPES), FuseSkipNorm(), to=["SkipLayerNormalization"], rtol=1e-5, sizes=SIZES)

    @pytest.mark.parametrize(
        ("shapes", "attrs", "why"),
        [
            ({"x": (2, 3, 8), "y": (2, 1, 8)}, {}, "broadcasts"),
            ({"x": (2, 3, 8), "y": (8,)}, {}, "broadcasts"),
            ({"x": (3, 8), "y": (3, 8)}, {}, "the last of three"),
        ],
    )
    def test_refuses(self, shapes: Any, attrs: Any, why: str) -> None:
        refused(model(lambda op, v: norm(op, op.Add(v["x"], v["y"]), **attrs), shapes), FuseSkipNorm(), why)

    def test_refuses_computed_weights_and_statistics(self) -> None:
        def computed(op: Emit, v: V) -> ir.Value:
            total = op.Add(v["x"], v["y"])
            return op.LayerNormalization(total, op.ReduceMax(v["x"], axes=[0, 1], keepdims=0), axis=-1)

        def statistics(op: Emit, v: V) -> list[ir.Value]:
            total = op.Add(v["x"], v["y"])
            made = op.LayerNormalization(total, weight(op, "gamma", random(8)), axis=-1, outputs=3)
            return [made[0], made[1]]

        refused(model(computed, SHAPES), FuseSkipNorm(), "no constants")
        refused(model(statistics, SHAPES), FuseSkipNorm(), "statistics are read")
        plain = model(lambda op, v: norm(op, op.Mul(v["x"], v["y"])), SHAPES)
        refused(plain, FuseSkipNorm(), "not the norm of a sum")


class TestBiasGelu:
    @pytest.mark.parametrize(("form", "name"), [("none", "BiasGelu"), ("tanh", "FastGelu")])
    def test_sum(self, form: str, name: str) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return op.Gelu(op.Add(weight(op, "bias", random(8)), v["x"]), approximate=form)

        rewritten(model(make, {"x": SHAPES["x"]}), FuseBiasGelu(), to=[name], rtol=1e-5, sizes=SIZES)

    def test_alone(self) -> None:
        tanh = model(lambda op, v: op.Gelu(v["x"], approximate="tanh"), {"x": (2, 8)})
        rewritten(tanh, FuseBiasGelu(), to=["FastGelu"], rtol=1e-5)
        refused(model(lambda op, v: op.Gelu(v["x"]), {"x": (2, 8)}), FuseBiasGelu(), "nothing constant")
        computed = model(lambda op, v: op.Gelu(op.Add(v["x"], v["y"])), {"x": (2, 8), "y": (8,)})
        refused(computed, FuseBiasGelu(), "nothing constant")
        half = model(lambda op, v: op.Gelu(v["x"]), {"x": (2, 8)}, dtypes={"x": ir.DataType.FLOAT16})
        refused(half, FuseBiasGelu(), "not of float32")


def attention(op: Emit, v: V, parts: list[ir.Value]) -> list[ir.Value]:
    past = [op.const(random(1, 2, 3, 8, seed=seed)) for seed in (5, 6)]
    lengths = [op.const(np.array([6], np.int32)), op.const(np.array([7], np.int32))]
    typed = [(ir.DataType.FLOAT, (1, 4, 32)), *[(ir.DataType.FLOAT, (1, 2, 7, 8))] * 2]
    attrs = {"num_heads": 4, "kv_num_heads": 2, "scale": 0.3}
    return list(op.custom(MICROSOFT, "GroupQueryAttention", [*parts, *past, *lengths], typed, **attrs))


class TestPackHeads:
    @pytest.mark.parametrize("bias", [False, True])
    def test_projections(self, bias: bool) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            x = op.Relu(v["x"])
            parts = [op.MatMul(x, weight(op, f"w{i}", random(16, n, seed=i))) for i, n in enumerate((32, 16, 16))]
            if bias:
                parts = [op.Add(y, weight(op, f"b{i}", random(y.shape[-1], seed=9))) for i, y in enumerate(parts)]
            return attention(op, v, parts)

        to = ["Relu", "MatMul", *(["Add"] if bias else []), "GroupQueryAttention"]
        rewritten(model(make, {"x": (1, 4, 16)}), PackHeads(), to=to, rtol=1e-5)

    def test_refuses(self) -> None:
        def parts_of(op: Emit, sources: list[ir.Value], bias: int = 0) -> list[ir.Value]:
            found = [
                op.MatMul(x, weight(op, f"w{i}", random(16, n, seed=i)))
                for i, (x, n) in enumerate(zip(sources, (32, 16, 16), strict=True))
            ]
            rows = [weight(op, f"b{i}", random(found[i].shape[-1])) for i in range(bias)]
            return [op.Add(y, rows[i]) if i < bias else y for i, y in enumerate(found)]

        def two_sources(op: Emit, v: V) -> list[ir.Value]:
            return attention(op, v, parts_of(op, [v["x"], v["x"], op.Relu(v["x"])]))

        def one_bias(op: Emit, v: V) -> list[ir.Value]:
            return attention(op, v, parts_of(op, [v["x"]] * 3, bias=1))

        def read(op: Emit, v: V) -> list[ir.Value]:
            parts = parts_of(op, [v["x"]] * 3)
            return [*attention(op, v, parts), op.Neg(parts[0])]

        def rotated(op: Emit, v: V) -> list[ir.Value]:
            query, *others = parts_of(op, [v["x"]] * 3)
            return attention(op, v, [op.Relu(query), *others])

        shapes = {"x": (1, 4, 16)}
        refused(model(two_sources, shapes), PackHeads(), "other operands")
        refused(model(one_bias, shapes), PackHeads(), "some projections")
        refused(model(read, shapes), PackHeads(), "read elsewhere")
        refused(model(rotated, shapes), PackHeads(), "no plain projections")


def heads(op: Emit, parts: list[ir.Value], **attrs: Any) -> ir.Value:
    typed = [(ir.DataType.FLOAT, (2, 4, 16))]
    return op.custom(MICROSOFT, "MultiHeadAttention", parts, typed, num_heads=2, scale=0.3, **attrs)[0]


class TestHeads:
    SHAPES: ClassVar = {"q": (2, 4, 16), "k": (2, 5, 16), "v": (2, 5, 16)}

    @pytest.mark.parametrize("places", [(0, 1, 2), (0, 2), (1,)])
    def test_biases(self, places: tuple[int, ...]) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            parts = [v["q"], v["k"], v["v"]]
            for place in places:
                parts[place] = op.Add(parts[place], weight(op, f"b{place}", random(16, seed=place)))
            return heads(op, parts)

        rewritten(model(make, self.SHAPES), FuseHeadBias(), to=["MultiHeadAttention"], rtol=1e-5)

    def test_scale(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return heads(op, [op.Mul(v["q"], op.const(0.5)), v["k"], v["v"]])

        rewritten(model(make, self.SHAPES), FuseHeadScale(), to=["MultiHeadAttention"], rtol=1e-5)

    def test_refuses(self) -> None:
        def with_bias(op: Emit, v: V) -> ir.Value:
            return heads(op, [op.Mul(v["q"], op.const(0.5)), v["k"], v["v"], weight(op, "b", random(48))])

        def by_row(op: Emit, v: V) -> ir.Value:
            return heads(op, [op.Mul(v["q"], weight(op, "r", random(16))), v["k"], v["v"]])

        def computed(op: Emit, v: V) -> ir.Value:
            return heads(op, [op.Add(v["q"], op.Relu(v["q"])), v["k"], v["v"]])

        def read(op: Emit, v: V) -> list[ir.Value]:
            total = op.Add(v["q"], weight(op, "b", random(16)))
            return [heads(op, [total, v["k"], v["v"]]), op.Neg(total)]

        refused(model(with_bias, self.SHAPES), FuseHeadScale(), "there is a bias")
        refused(model(with_bias, self.SHAPES), FuseHeadBias(), "there is a bias")
        refused(model(by_row, self.SHAPES), FuseHeadScale(), "more than a number")
        refused(model(computed, self.SHAPES), FuseHeadBias(), "nothing constant")
        refused(model(read, self.SHAPES), FuseHeadBias(), "nothing constant")


class TestPackedHeads:
    SHAPES: ClassVar = {"x": (2, 4, 48)}

    @staticmethod
    def parts(op: Emit, whole: ir.Value, axis: int = -1) -> list[ir.Value]:
        return list(op.node("Split", whole, op.const([16, 16, 16]), outputs=3, axis=axis))

    @pytest.mark.parametrize("side", [0, 1])
    def test_bias(self, side: int) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            operands = [v["x"], weight(op, "b", random(48))]
            return heads(op, self.parts(op, op.Add(*(operands if side else operands[::-1]))))

        rewritten(model(make, self.SHAPES), FusePackedBias(), to=["Split", "MultiHeadAttention"], rtol=1e-5)

    def test_refuses(self) -> None:
        def other_order(op: Emit, v: V) -> ir.Value:
            query, key, value = self.parts(op, op.Add(v["x"], weight(op, "b", random(48))))
            return heads(op, [key, query, value])

        def read(op: Emit, v: V) -> list[ir.Value]:
            parts = self.parts(op, op.Add(v["x"], weight(op, "b", random(48))))
            return [heads(op, parts), op.Neg(parts[2])]

        def with_bias(op: Emit, v: V) -> ir.Value:
            parts = self.parts(op, op.Add(v["x"], weight(op, "b", random(48))))
            return heads(op, [*parts, weight(op, "c", random(48))])

        def computed(op: Emit, v: V) -> ir.Value:
            return heads(op, self.parts(op, op.Add(v["x"], op.Relu(v["x"]))))

        refused(model(other_order, self.SHAPES), FusePackedBias(), "not the parts of one value")
        refused(model(with_bias, self.SHAPES), FusePackedBias(), "there is a bias")
        refused(model(read, self.SHAPES), FusePackedBias(), "read elsewhere")
        refused(model(computed, self.SHAPES), FusePackedBias(), "nothing constant")


class TestFusedMatMul:
    SHAPES: ClassVar = {"a": (2, 3, 5, 4), "b": (2, 3, 5, 6), "c": (2, 3, 7, 4)}
    LAST: ClassVar = [0, 1, 3, 2]

    def test_transposes(self) -> None:
        def left(op: Emit, v: V) -> ir.Value:
            return op.MatMul(op.Transpose(v["a"], perm=self.LAST), v["b"])

        def right(op: Emit, v: V) -> ir.Value:
            return op.MatMul(v["a"], op.Transpose(v["c"], perm=self.LAST))

        def both(op: Emit, v: V) -> ir.Value:
            return op.MatMul(
                op.Transpose(v["b"], perm=self.LAST), op.Transpose(op.Transpose(v["a"], perm=self.LAST), perm=self.LAST)
            )

        rewritten(model(left, self.SHAPES), FuseMatMulTranspose(), to=["FusedMatMul"], rtol=1e-5)
        rewritten(model(right, self.SHAPES), FuseMatMulTranspose(), to=["FusedMatMul"], rtol=1e-5)
        rewritten(model(both, self.SHAPES), FuseMatMulTranspose(), to=["FusedMatMul"], rtol=1e-5)

    def test_numbers(self) -> None:
        def scaled(op: Emit, v: V) -> ir.Value:
            (product,) = op.custom(
                MICROSOFT, "FusedMatMul", [v["a"], v["b"]], [(ir.DataType.FLOAT, (2, 3, 4, 6))], transA=1, alpha=3.0
            )
            return op.Div(op.Mul(op.const(0.25), product), op.const(0.7))

        def plain(op: Emit, v: V) -> ir.Value:
            return op.Div(op.MatMul(op.Transpose(v["a"], perm=self.LAST), v["b"]), op.const(0.7))

        rewritten(model(scaled, self.SHAPES), FuseMatMulScale(), to=["FusedMatMul"], rtol=1e-5)
        rewritten(model(plain, self.SHAPES), FuseMatMulScale(), to=["Transpose", "FusedMatMul"], rtol=1e-5)

    def test_refuses(self) -> None:
        def other_axes(op: Emit, v: V) -> ir.Value:
            return op.MatMul(op.Transpose(v["x"], perm=[1, 0, 2]), v["y"])

        def weighted(op: Emit, v: V) -> ir.Value:
            return op.Mul(op.MatMul(v["x"], weight(op, "w", random(5, 4))), op.const(0.5))

        def turned_weight(op: Emit, v: V) -> ir.Value:
            return op.MatMul(v["x"], op.Transpose(weight(op, "w", random(4, 5)), perm=[1, 0]))

        def read(op: Emit, v: V) -> list[ir.Value]:
            product = op.MatMul(v["x"], v["y"])
            return [op.Mul(product, op.const(0.5)), op.Relu(product)]

        def wider(op: Emit, v: V) -> ir.Value:
            return op.Mul(op.MatMul(v["x"], v["y"]), op.const([[[[0.5]]]], ir.DataType.FLOAT))

        def by_row(op: Emit, v: V) -> ir.Value:
            return op.Mul(op.MatMul(v["x"], v["y"]), weight(op, "r", random(6)))

        def inverse(op: Emit, v: V) -> ir.Value:
            return op.Div(op.const(0.5), op.MatMul(v["x"], v["y"]))

        shapes = {"x": (3, 3, 5), "y": (3, 5, 6)}
        refused(model(other_axes, shapes), FuseMatMulTranspose(), "last two axes")
        refused(model(turned_weight, shapes), FuseMatMulTranspose(), "two computed values")
        refused(model(weighted, shapes), FuseMatMulScale(), "has a weight")
        refused(model(read, shapes), FuseMatMulScale(), "read elsewhere")
        refused(model(wider, shapes), FuseMatMulScale(), "more axes")
        refused(model(by_row, shapes), FuseMatMulScale(), "one number")
        refused(model(inverse, shapes), FuseMatMulScale(), "one number")
