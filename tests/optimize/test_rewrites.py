"""Each rewrite: before -> after, both executed; and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrites.layout import (
    FoldWeightTranspose,
    FuseTransposeGemm,
    MergeReshapes,
    MergeTransposes,
    MoveReshapeUp,
)
from fx2onnx.optimize.rewrites.linear_layers import ArrangeWeights, FoldBatchNorm, FuseMatMulAdd, UnflattenGemm
from fx2onnx.optimize.rewrites.matmuls import FoldMatMulScale, MergeMatMuls
from fx2onnx.optimize.rewrites.neutral import SkipExpand
from fx2onnx.optimize.rewrites.pick_early import PickEarly
from fx2onnx.optimize.rewrites.quantized import FoldZeroPoint, RemoveRequantize
from fx2onnx.optimize.rewrites.slices import GridGather, MergeConcats, MergeSlices, SliceSplat, SplitGathers
from fx2onnx.optimize.rewrites.windows import FusePad, SwapReluMaxPool
from fx2onnx.sizes.expr import Dim
from tests.optimize.support import model, random, refused, rewritten, weight

BATCH = Dim.symbol("batch")
V = dict[str, ir.Value]


def batch_norm(op: Emit, x: ir.Value, channels: int, **attrs: Any) -> ir.Value:
    parts = [weight(op, f"bn.{i}", np.abs(random(channels, seed=i)) + 0.5) for i in range(4)]
    result: ir.Value = op.BatchNormalization(x, *parts, epsilon=1e-3, **attrs)
    return result


class TestFoldBatchNorm:
    def test_in_front_of_indices_that_nobody_reads(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            y = op.node("Conv", v["x"], weight(op, "w", random(6, 4, 3)), outputs=[(v["x"].dtype, (2, 6, 6))])
            normed = batch_norm(op, y, 6)
            op.ArgMax(normed, axis=2)
            return [op.ReduceMax(normed, np.array([2]), keepdims=0)]

        from fx2onnx.optimize.driver import apply

        graph = model(make, {"x": (2, 4, 8)})
        assert apply(graph, FoldBatchNorm()).edits["FoldBatchNorm"] == 1

    @pytest.mark.parametrize(
        ("op_type", "sizes", "attrs", "channels"),
        [
            ("Conv", (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}, 6),
            ("Conv", (6, 2, 3, 3), {"group": 2}, 6),
            ("ConvTranspose", (4, 6, 3, 3), {}, 6),
            ("ConvTranspose", (4, 3, 3, 3), {"group": 2}, 6),
        ],
    )
    @pytest.mark.parametrize("with_bias", [True, False])
    def test_into_convolutions(
        self, op_type: str, sizes: tuple[int, ...], attrs: dict[str, Any], channels: int, with_bias: bool
    ) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            bias = weight(op, "b", random(channels, seed=9)) if with_bias else None
            size = 8 if "pads" in attrs else 6 if op_type == "Conv" else 10
            out = [(v["x"].dtype, (2, channels, size, size))]
            y = op.node(op_type, v["x"], weight(op, "w", random(*sizes)), bias, outputs=out, **attrs)
            return batch_norm(op, y, channels)

        after = rewritten(model(make, {"x": (2, 4, 8, 8)}), FoldBatchNorm(), to=[op_type], rtol=2e-6)
        assert list(after.graph.initializers) == ["w.folded", "b.folded" if with_bias else "w.bias.folded"]

    @pytest.mark.parametrize("trans_b", [0, 1])
    def test_into_gemm(self, trans_b: int) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            w = weight(op, "w", random(5, 4) if trans_b else random(4, 5))
            return batch_norm(op, op.Gemm(v["x"], w, transB=trans_b), 5)

        rewritten(model(make, {"x": (3, 4)}), FoldBatchNorm(), to=["Gemm"], rtol=2e-6)

    def test_dynamic_batch(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return batch_norm(op, op.Conv(v["x"], weight(op, "w", random(6, 4, 1, 1))), 6)

        rewritten(model(make, {"x": (BATCH, 4, 8, 8)}), FoldBatchNorm(), to=["Conv"], rtol=2e-6, sizes={"batch": 3})

    def test_weights_without_data_stay_descriptions(self) -> None:
        """A module on the meta device: the structure folds, nothing is computed."""

        class Described(ir.LazyTensor):
            lacks_data = True

        def fail() -> ir.TensorProtocol:
            raise AssertionError("the numbers were asked for")

        def make(op: Emit, v: V) -> ir.Value:
            w = op.builder.add_initializer("w", Described(fail, v["x"].dtype, ir.Shape((6, 4, 1, 1)), name="w"), (6, 4, 1, 1))  # type: ignore[arg-type]  # fmt: skip
            return batch_norm(op, op.Conv(v["x"], w), 6)

        graph = model(make, {"x": (1, 4, 8, 8)})
        from fx2onnx.optimize.driver import apply

        assert apply(graph, FoldBatchNorm()).edits["FoldBatchNorm"] == 1
        tensor: Any = graph.graph.initializers["w.folded"].const_value
        assert tensor.lacks_data
        assert tuple(tensor.shape) == (6, 4, 1, 1)

    def test_refuses(self) -> None:
        def shared(op: Emit, v: V) -> list[ir.Value]:
            y = op.Conv(v["x"], weight(op, "w", random(6, 4, 1, 1)))
            return [batch_norm(op, y, 6), op.Relu(y)]

        def tied(op: Emit, v: V) -> list[ir.Value]:
            w = weight(op, "w", random(6, 4, 1, 1))
            return [batch_norm(op, op.Conv(v["x"], w), 6), op.Conv(v["x"], w, pads=[1, 1, 1, 1])]

        def computed(op: Emit, v: V) -> ir.Value:
            return batch_norm(op, op.Conv(v["x"], op.Relu(weight(op, "w", random(6, 4, 1, 1)))), 6)

        for make, why in ((shared, "read elsewhere"), (tied, "stored twice"), (computed, "not constant")):
            refused(model(make, {"x": (2, 4, 8, 8)}), FoldBatchNorm(), why)  # type: ignore[arg-type]


class TestWeights:
    def test_transpose(self) -> None:
        graph = model(
            lambda op, v: op.MatMul(v["x"], op.Transpose(weight(op, "w", random(5, 4)), perm=[1, 0])), {"x": (3, 4)}
        )
        after = rewritten(graph, FoldWeightTranspose(), to=["MatMul"])
        assert list(after.graph.initializers) == ["w.T"]

    def test_tied_weight_is_not_duplicated(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            w = weight(op, "w", random(4, 4))
            return op.MatMul(op.MatMul(v["x"], w), op.Transpose(w, perm=[1, 0]))  # type: ignore[no-any-return]

        refused(model(make, {"x": (3, 4)}), FoldWeightTranspose(), "stored twice")

    def test_zero_point(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            zeros = op.cast(weight(op, "z", np.array([1, -3, 0, 127])), ir.DataType.INT8)
            codes = op.QuantizeLinear(v["x"], op.const(np.full(4, 0.1, np.float32)), zeros, axis=1)
            return op.DequantizeLinear(codes, op.const(np.full(4, 0.2, np.float32)), zeros, axis=1)  # type: ignore[no-any-return]

        after = rewritten(model(make, {"x": (3, 4)}), FoldZeroPoint(), to=["QuantizeLinear", "DequantizeLinear"])
        assert after.graph.initializers["z.int8"].dtype == ir.DataType.INT8

    def test_what_is_no_zero_point_stays(self) -> None:
        def quantized(op: Emit, v: V, zero: ir.Value) -> ir.Value:
            return op.QuantizeLinear(v["x"], op.const(np.full(4, 0.1, np.float32)), zero, axis=1)  # type: ignore[no-any-return]

        def other(op: Emit, v: V) -> list[ir.Value]:
            zero = op.cast(weight(op, "z", np.array([3, 1, 0, 2])), ir.DataType.INT8)
            return [quantized(op, v, zero), op.Neg(zero)]

        def wide(op: Emit, v: V) -> ir.Value:
            return quantized(op, v, op.cast(weight(op, "z", random(4)), ir.DataType.INT8))

        def computed(op: Emit, v: V) -> ir.Value:
            return quantized(op, v, op.cast(op.Neg(weight(op, "z", np.array([3, 1, 0, 2]))), ir.DataType.INT8))

        for make, why in ((other, "no zero point"), (wide, "no integer"), (computed, "no weight")):
            refused(model(make, {"x": (3, 4)}), FoldZeroPoint(), why)  # type: ignore[arg-type]

    @pytest.mark.parametrize("form", ["reshape", "unsqueeze", "rows", "joined", "rows joined"])
    def test_arranged(self, form: str) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            w, u = weight(op, "w", random(4, 3)), weight(op, "u", random(4, 3))
            order = op.const(np.array([2, 3, -3, 0]))
            made = {
                "reshape": lambda: op.reshape(w, (3, 4)),
                "unsqueeze": lambda: op.Unsqueeze(w, axes=[0]),
                "rows": lambda: op.Gather(w, order, axis=0),
                "joined": lambda: op.Concat(w, u, axis=0),
                "rows joined": lambda: op.Concat(op.Gather(w, order, axis=0), op.Gather(u, order, axis=0), axis=1),
            }[form]()
            return op.Add(v["x"], op.ReduceSum(made))  # type: ignore[no-any-return]

        after = rewritten(model(make, {"x": (3, 4)}), ArrangeWeights(), to=["ReduceSum", "Add"])
        assert any(name.startswith("w.arranged") for name in after.graph.initializers)

    def test_arranged_weights_lose_and_repeat_nothing(self) -> None:
        def taken(rows: list[int]) -> Any:
            return lambda op, v: op.Add(v["x"], op.Gather(weight(op, "w", random(4, 4)), op.const(np.array(rows))))

        def twice(op: Emit, v: V) -> ir.Value:
            w = weight(op, "w", random(4, 4))
            return op.Add(op.MatMul(v["x"], w), op.Reshape(w, np.array([4, 4])))  # type: ignore[no-any-return]

        refused(model(taken([0, 1, 1, 2]), {"x": (4, 4)}), ArrangeWeights(), "repeated")
        refused(model(taken([0, 1, 2]), {"x": (3, 4)}), ArrangeWeights(), "left out")
        refused(model(taken([0, 1, 6, 3]), {"x": (4, 4)}), ArrangeWeights(), "left out")
        refused(model(twice, {"x": (4, 4)}), ArrangeWeights(), "stored twice")

    def test_power_of_two_into_matmul(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            y = op.Add(op.MatMul(v["x"], weight(op, "w", random(8, 6))), weight(op, "b", random(6)))
            return op.Mul(op.Transpose(op.Reshape(y, [2, 3, 2, 3]), perm=[0, 2, 1, 3]), 0.125)  # type: ignore[no-any-return]

        rewritten(model(make, {"x": (2, 3, 8)}), FoldMatMulScale(), to=["MatMul", "Add", "Reshape", "Transpose"])

    def test_other_factors_would_round(self) -> None:
        graph = model(lambda op, v: op.Mul(op.MatMul(v["x"], weight(op, "w", random(8, 6))), 0.3), {"x": (3, 8)})
        refused(graph, FoldMatMulScale(), "no power of two")

    def test_merge_matmuls(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            x = op.Relu(v["x"])
            parts = [op.MatMul(x, weight(op, f"w{i}", random(8, n, seed=i))) for i, n in enumerate((4, 6, 2))]
            return [op.Tanh(op.Add(y, weight(op, f"b{i}", random(y.shape[-1], seed=i)))) for i, y in enumerate(parts)]

        rewritten(
            model(make, {"x": (2, 3, 8)}), MergeMatMuls(),
            to=["Relu", "MatMul", "Add", "Split", "Tanh", "Tanh", "Tanh"], rtol=1e-6,
        )  # fmt: skip

    def test_merge_matmuls_duplicates_no_weight(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            w = weight(op, "w", random(8, 4))
            x = op.Relu(v["x"])
            return [op.Relu(op.MatMul(x, w)), op.Tanh(op.MatMul(x, w))]

        refused(model(make, {"x": (3, 8)}), MergeMatMuls(), "of its own")


class TestGemm:
    def test_matmul_add(self) -> None:
        graph = model(lambda op, v: op.Add(v["c"], op.MatMul(v["a"], v["b"])), {"a": (3, 4), "b": (4, 5), "c": (5,)})
        rewritten(graph, FuseMatMulAdd(), to=["Gemm"], rtol=1e-6)

    def test_gemm_add(self) -> None:
        graph = model(
            lambda op, v: op.Add(op.Gemm(v["a"], v["b"], transB=1), v["c"]), {"a": (3, 4), "b": (5, 4), "c": (3, 1)}
        )
        rewritten(graph, FuseMatMulAdd(), to=["Gemm"], rtol=1e-6)

    @pytest.mark.parametrize(
        ("dims", "why"),
        [
            ({"a": (2, 3, 4), "b": (4, 5), "c": (5,)}, "not 2-D"),
            ({"a": (1, 4), "b": (4, 5), "c": (3, 5)}, "wider"),
            ({"a": (3, 4), "b": (4, 5), "c": (1, 1, 5)}, "wider"),
        ],
    )
    def test_matmul_add_refuses(self, dims: dict[str, tuple[int, ...]], why: str) -> None:
        refused(model(lambda op, v: op.Add(op.MatMul(v["a"], v["b"]), v["c"]), dims), FuseMatMulAdd(), why)

    def test_shared_product_is_refused(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            product = op.MatMul(v["a"], v["b"])
            return [op.Add(product, v["c"]), op.Relu(product)]

        refused(model(make, {"a": (3, 4), "b": (4, 5), "c": (5,)}), FuseMatMulAdd(), "nobody else reads")

    def test_integer_matmul_is_refused(self) -> None:
        dtypes = dict.fromkeys("abc", ir.DataType.INT32)
        graph = model(
            lambda op, v: op.Add(op.MatMul(v["a"], v["b"]), v["c"]),
            {"a": (3, 4), "b": (4, 5), "c": (5,)},
            dtypes=dtypes,
        )
        refused(graph, FuseMatMulAdd(), "no Gemm of")

    def test_transposes(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return op.Gemm(op.Transpose(v["a"], perm=[1, 0]), op.Transpose(v["b"], perm=[1, 0]), v["c"], transB=1)  # type: ignore[no-any-return]

        after = rewritten(
            model(make, {"a": (4, 3), "b": (4, 5), "c": (5,)}), FuseTransposeGemm(), to=["Gemm"], rtol=1e-6
        )
        (node,) = after.graph
        assert (node.attributes["transA"].as_int(), node.attributes["transB"].as_int()) == (1, 0)

    def test_transpose_of_three_axes_is_refused(self) -> None:
        graph = model(
            lambda op, v: op.MatMul(v["a"], op.Transpose(v["b"], perm=[0, 2, 1])), {"a": (2, 3, 4), "b": (2, 5, 4)}
        )
        refused(graph, FuseTransposeGemm(), "no operand is transposed")

    @pytest.mark.parametrize("batch", [2, BATCH])
    def test_unflatten(self, batch: Any) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            flat = op.reshape(v["x"], (batch * 3, 4))
            y = op.Gemm(flat, weight(op, "w", random(4, 5)), weight(op, "b", random(5)))
            return op.reshape(y, (batch, 3, 5))

        rewritten(
            model(make, {"x": (batch, 3, 4)}), UnflattenGemm(), to=["MatMul", "Add"], rtol=1e-6, sizes={"batch": 2}
        )

    def test_unflatten_refuses_another_layout(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return op.reshape(op.Gemm(op.reshape(v["x"], (6, 4)), weight(op, "w", random(4, 5))), (3, 2, 5))

        refused(model(make, {"x": (2, 3, 4)}), UnflattenGemm(), "not laid out")


class TestViews:
    @pytest.mark.parametrize("batch", [2, BATCH])
    def test_reshapes(self, batch: Any) -> None:
        graph = model(lambda op, v: op.reshape(op.Flatten(v["x"]), (batch, 4, 3)), {"x": (batch, 3, 4)})
        rewritten(graph, MergeReshapes(), to=["Reshape"], sizes={"batch": 5})

    def test_unsqueezes_of_unknown_sizes(self) -> None:
        other = Dim.symbol("other")
        graph = model(lambda op, v: op.Unsqueeze(op.Unsqueeze(v["x"], axes=[1]), axes=[0, 3]), {"x": (BATCH, other)})
        after = rewritten(graph, MergeReshapes(), to=["Unsqueeze"], sizes={"batch": 2, "other": 3})
        assert after.graph.outputs[0].shape == ["1", "batch", 1, 1, "other"] or after.graph.outputs[0].shape is not None

    def test_several_unknown_sizes_are_refused(self) -> None:
        x, y = Dim.symbol("x"), Dim.symbol("y")
        graph = model(
            lambda op, v: op.Reshape(
                op.Unsqueeze(v["x"], axes=[0]), op.Shape(v["z"]), outputs=[(v["x"].dtype, (y, x))]
            ),
            {"x": (x, y), "z": (y, x)},
        )
        refused(graph, MergeReshapes(), "computed")

    def test_transposes(self) -> None:
        graph = model(
            lambda op, v: op.Transpose(op.Transpose(v["x"], perm=[0, 2, 1]), perm=[1, 0, 2]), {"x": (2, 3, 4)}
        )
        after = rewritten(graph, MergeTransposes(), to=["Transpose"])
        assert after.graph.node(0).attributes["perm"].as_ints() == (2, 0, 1)

    def test_cancelling_transposes_of_a_shared_value(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            inner = op.Transpose(v["x"], perm=[1, 0])
            return [op.Relu(op.Transpose(inner, perm=[1, 0])), op.Relu(inner)]

        rewritten(model(make, {"x": (2, 3)}), MergeTransposes(), to=["Transpose", "Relu", "Relu"])

    def test_an_output_cannot_become_an_input(self) -> None:
        graph = model(lambda op, v: op.Transpose(op.Transpose(v["x"], perm=[1, 0]), perm=[1, 0]), {"x": (2, 3)})
        refused(graph, MergeTransposes(), "graph output")

    def test_move_reshape_up(self) -> None:
        """The in-projection of torch's attention: [L, N, 3E] -> [3, L, N, E], and the heads of one part."""

        def make(op: Emit, v: V) -> list[ir.Value]:
            parts = op.Unsqueeze(op.Reshape(v["x"], [5, 2, 3, 8]), axes=[0])
            packed = op.Squeeze(op.Transpose(parts, perm=[3, 1, 2, 0, 4]), axes=[3])
            heads = op.Transpose(op.Reshape(v["y"], [5, 4, 4]), perm=[1, 0, 2])
            return [packed, op.Reshape(heads, [2, 2, 5, 4])]

        rewritten(
            model(make, {"x": (5, 2, 24), "y": (5, 2, 8)}), MoveReshapeUp(), MergeReshapes(),
            to=["Reshape", "Transpose", "Reshape", "Transpose"],
        )  # fmt: skip

    def test_move_reshape_up_refuses_joined_axes(self) -> None:
        graph = model(
            lambda op, v: op.Reshape(op.Transpose(op.Reshape(v["x"], [2, 3, 4]), perm=[1, 0, 2]), [3, 8]),
            {"x": (2, 12)},
        )
        refused(graph, MoveReshapeUp(), "joins axes")

    def test_concats(self) -> None:
        graph = model(
            lambda op, v: op.Concat(v["a"], op.Concat(v["b"], v["a"], axis=1), v["b"], axis=-1),
            {"a": (2, 3), "b": (2, 1)},
        )
        after = rewritten(graph, MergeConcats(), to=["Concat"])
        assert len(after.graph.node(0).inputs) == 4

    def test_concat_on_another_axis_is_refused(self) -> None:
        graph = model(
            lambda op, v: op.Concat(op.Concat(v["a"], v["a"], axis=0), v["b"], axis=1), {"a": (2, 3), "b": (4, 1)}
        )
        refused(graph, MergeConcats(), "same axis")

    def test_slices_of_different_axes(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            first = op.Slice(v["x"], np.array([1]), np.array([2**62]), np.array([1]), np.array([2]))
            return op.Slice(first, np.array([-3, 0]), np.array([-1, 1]), np.array([-1, 0]), np.array([1, 1]))

        after = rewritten(model(make, {"x": (2, 7, 5)}), MergeSlices(), to=["Slice"])
        assert [value.const_value.size for value in after.graph.node(0).inputs[1:]] == [3, 3, 3, 3]  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("axis", "reads", "why"), [(1, False, "both cut one axis"), (0, True, "the inner Slice is read elsewhere")]
    )
    def test_slices_that_stay(self, axis: int, reads: bool, why: str) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            first = op.Slice(v["x"], np.array([1]), np.array([6]), np.array([1]))
            return [
                op.Slice(first, np.array([0]), np.array([1]), np.array([axis])),
                *([op.Relu(first)] if reads else []),
            ]

        refused(model(make, {"x": (2, 7)}), MergeSlices(), why)

    def test_slice_of_splats(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            fill = ir.Tensor(np.array([2.5], np.float32))
            filled = op.ConstantOfShape(np.array([4, 5]), value=fill)
            wide = op.Expand(v["s"], np.array([4, 5]))
            return [op.Slice(filled, [1], [3], [0]), op.Transpose(op.Slice(wide, [0], [2], [1]), perm=[1, 0])]

        rewritten(model(make, {"s": (1,)}), SliceSplat(), to=["ConstantOfShape", "Expand"])

    def test_expanded_rows_are_refused(self) -> None:
        graph = model(lambda op, v: op.Slice(op.Expand(v["s"], np.array([4, 5])), [1], [3], [0]), {"s": (5,)})
        refused(graph, SliceSplat(), "not one number")

    def test_split_gathers(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            parts = [op.Gather(v["x"], np.array(i, np.int64), axis=0) for i in (2, 0, -2)]
            return [op.Reshape(part, [6, 2]) for part in parts]

        rewritten(
            model(make, {"x": (3, 4, 3)}),
            SplitGathers(),
            MergeReshapes(),
            to=["Split", "Reshape", "Reshape", "Reshape"],
        )

    def test_gathers_that_miss_a_part_are_refused(self) -> None:
        def make(op: Emit, v: V) -> list[ir.Value]:
            return [op.Reshape(op.Gather(v["x"], np.array(i, np.int64), axis=0), [6, 2]) for i in (0, 2)]

        refused(model(make, {"x": (3, 4, 3)}), SplitGathers(), "do not cover")

    def test_grid_gather(self) -> None:
        grid = np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1).reshape(2, 1, 3, 2)
        graph = model(lambda op, v: op.GatherND(v["x"], grid), {"x": (2, 3)})
        rewritten(graph, GridGather(), to=["Reshape"])
        refused(
            model(lambda op, v: op.GatherND(v["x"], grid[::-1].copy()), {"x": (2, 3)}), GridGather(), "another order"
        )

    def test_skip_expand(self) -> None:
        graph = model(
            lambda op, v: op.Where(op.Expand(v["m"], np.array([2, 1, 3])), v["x"], op.Expand(v["s"], np.array([4, 3]))),
            {"m": (2, 1, 1), "x": (2, 4, 3), "s": (1,)}, dtypes={"m": ir.DataType.BOOL},
        )  # fmt: skip
        rewritten(graph, SkipExpand(), to=["Where"])
        refused(
            model(lambda op, v: op.Add(v["x"], op.Expand(v["s"], np.array([4, 3]))), {"x": (3,), "s": (1,)}),
            SkipExpand(), "no operand is an Expand",
        )  # fmt: skip


class TestWindows:
    def test_pads_into_conv_and_pool(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            y = op.Conv(
                op.Pad(v["x"], [0, 0, 0, 1, 0, 0, 2, 0]), weight(op, "w", random(6, 4, 3, 3)), pads=[1, 0, 0, 1]
            )
            padded = op.Pad(y, [0, 0, 0, 0, 0, 0, 1, 1], np.array(-math.inf, np.float32))
            return op.MaxPool(padded, kernel_shape=[3, 3], strides=[2, 2])  # type: ignore[no-any-return]

        rewritten(model(make, {"x": (2, 4, 8, 8)}), FusePad(), to=["Conv", "MaxPool"], rtol=1e-6)

    @pytest.mark.parametrize(
        ("number", "mode", "why"), [(1.0, "constant", "not zero"), (0.0, "reflect", "copies elements")]
    )
    def test_other_pads_are_refused(self, number: float, mode: str, why: str) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            filler = np.array(number, np.float32)
            padded = op.Pad(v["x"], [0, 0, 1, 1, 0, 0, 1, 1], filler, mode=mode)
            return op.Conv(padded, weight(op, "w", random(6, 4, 3, 3)))  # type: ignore[no-any-return]

        refused(model(make, {"x": (2, 4, 8, 8)}), FusePad(), why)

    def test_zero_padding_stays_before_a_max_pool(self) -> None:
        graph = model(
            lambda op, v: op.MaxPool(op.Pad(v["x"], [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]), {"x": (1, 2, 6, 6)}
        )
        refused(graph, FusePad(), "not -inf")

    def test_relu_after_max_pool(self) -> None:
        graph = model(
            lambda op, v: op.MaxPool(op.Relu(v["x"]), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            {"x": (1, 2, 8, 8)},
        )
        rewritten(graph, SwapReluMaxPool(), to=["MaxPool", "Relu"])

    def test_relu_stays_where_it_is_free_or_the_pool_does_not_shrink(self) -> None:
        def after_conv(op: Emit, v: V) -> ir.Value:
            y = op.Relu(op.Conv(v["x"], weight(op, "w", random(2, 2, 1, 1))))
            return op.MaxPool(y, kernel_shape=[2, 2], strides=[2, 2])  # type: ignore[no-any-return]

        refused(model(after_conv, {"x": (1, 2, 8, 8)}), SwapReluMaxPool(), "costs nothing")
        graph = model(
            lambda op, v: op.MaxPool(op.Relu(v["x"]), kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {"x": (1, 2, 8, 8)}
        )
        refused(graph, SwapReluMaxPool(), "does not shrink")


class TestQuantised:
    @staticmethod
    def chain(op: Emit, v: V, second: float) -> ir.Value:
        zero = np.array(3, np.int8)
        scale, other = np.array(0.05, np.float32), np.array(second, np.float32)
        once = op.DequantizeLinear(op.QuantizeLinear(v["x"], scale, zero), scale, zero)
        result: ir.Value = op.DequantizeLinear(op.QuantizeLinear(once, other, zero), other, zero)
        return result

    def test_requantised_alike(self) -> None:
        graph = model(lambda op, v: self.chain(op, v, 0.05), {"x": (64,)})
        rewritten(graph, RemoveRequantize(), to=["QuantizeLinear", "DequantizeLinear"])

    def test_requantised_otherwise(self) -> None:
        refused(
            model(lambda op, v: self.chain(op, v, 0.06), {"x": (64,)}), RemoveRequantize(), "scale or zero point differ"
        )

    def test_every_byte_survives(self) -> None:
        """The claim of exactness, for all 256 values and scales from tiny to huge."""
        q = np.arange(-128, 128).astype(np.float32)
        for exponent in range(-90, 90):
            for mantissa in (1.0, 1.1, 1.37, 1.9999999):
                scale = np.float32(mantissa * 2.0**exponent)
                assert np.array_equal(np.rint((q * scale) / scale), q)


class TestPickEarly:
    BEHIND = (
        *("MatMul", "MatMul", "Softmax", "MatMul", "Add", "Reshape", "Transpose", "Relu", "Transpose", "Reshape"),
        *("LayerNormalization", "MatMul", "Gelu", "MatMul", "Add"),
    )
    """What is left for the picked rows alone."""

    @staticmethod
    def block(op: Emit, x: ir.Value) -> ir.Value:
        """Attention over all positions, then what works on each by itself, the operand read again behind it."""
        query, key, value = (op.MatMul(x, weight(op, name, random(8, 8, seed=i))) for i, name in enumerate("qkv"))
        seen = op.MatMul(op.Softmax(op.MatMul(query, op.Transpose(key, perm=[0, 2, 1])), axis=2), value)
        x = op.Add(x, seen)
        heads = op.Transpose(op.Reshape(x, [0, 0, 2, 4]), perm=[0, 2, 1, 3])
        joined = op.Reshape(op.Transpose(op.Relu(heads), perm=[0, 2, 1, 3]), [0, 0, 8])
        norm = op.LayerNormalization(joined, weight(op, "scale", random(8)), axis=-1)
        return op.Add(
            x, op.MatMul(op.Gelu(op.MatMul(norm, weight(op, "up", random(8, 16)))), weight(op, "down", random(16, 8)))
        )

    def test_the_last_position(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            head = op.MatMul(self.block(op, v["x"]), weight(op, "head", random(8, 32)))
            result: ir.Value = op.Slice(head, [-1], [2**62], [1], outputs=[(head.dtype, (BATCH, 1, 32))])
            return result

        before = model(make, {"x": (BATCH, Dim.symbol("length"), 8)})
        ops = ["MatMul", "MatMul", "Transpose", "Slice", *self.BEHIND, "MatMul"]
        after = rewritten(before, PickEarly(), to=ops, sizes={"batch": 2, "length": 5}, rtol=1e-4)
        products = [node.outputs[0].shape for node in after.graph if node.op_type == "MatMul"]
        assert [[size if isinstance(size, int) else str(size) for size in shape or ()][1] for shape in products] == [
            *("length", "length", 1, 1),  # keys and values of all, the query of the last
            *(1, 1, 1, 1),
        ]

    @pytest.mark.parametrize("index", [0, -2, [3]])
    def test_one_token(self, index: Any) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            return op.Gather(self.block(op, v["x"]), op.const(np.array(index)), axis=1)

        ops = [
            "MatMul",
            "MatMul",
            "Transpose",
            "Gather",
            *self.BEHIND,
            *([] if isinstance(index, list) else ["Gather"]),
        ]
        rewritten(model(make, {"x": (BATCH, 7, 8)}), PickEarly(), to=ops, sizes={"batch": 2}, rtol=1e-4)

    def test_of_a_file_that_gets_no_more_nodes(self) -> None:
        def head(op: Emit, v: V) -> ir.Value:
            return op.Slice(op.MatMul(op.Relu(v["x"]), weight(op, "w", random(8, 32))), [0], [1], [1])

        def with_two_operands(op: Emit, v: V) -> ir.Value:
            return op.Slice(op.Add(v["x"], op.MatMul(v["x"], v["x"])), [0], [1], [1])

        def with_an_axis_less(op: Emit, v: V) -> ir.Value:
            return op.Gather(op.MatMul(v["x"], weight(op, "w", random(8, 32))), op.const(np.array(0)), axis=1)

        pick = PickEarly(may_grow=False)
        rewritten(model(head, {"x": (2, 5, 8)}), pick, to=["Slice", "Relu", "MatMul"], rtol=1e-5)
        rewritten(model(with_two_operands, {"x": (2, 8, 8)}), pick, to=["Slice", "MatMul", "Add"], rtol=1e-5)
        refused(model(with_an_axis_less, {"x": (2, 5, 8)}), pick, "more nodes")
        refused(
            model(
                lambda op, v: op.Slice(op.Add(v["y"], op.MatMul(v["x"], v["x"])), [0], [1], [1]),
                {"x": (2, 8, 8), "y": (2, 8, 8)},
            ),
            pick,
            "more nodes",
        )

    def test_what_is_read_whole_is_computed_once(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            square = op.MatMul(v["x"], weight(op, "w", random(5, 5)))
            return op.Slice(op.MatMul(square, square), [0], [1], [1])

        rewritten(model(make, {"x": (2, 5, 5)}), PickEarly(), to=["MatMul", "Slice", "MatMul"], rtol=1e-5)

    def test_rows_of_gemm(self) -> None:
        def make(op: Emit, v: V) -> ir.Value:
            product = op.Gemm(v["x"], weight(op, "w", random(6, 3)), weight(op, "b", random(4, 3)), transA=1)
            return op.Slice(op.Relu(product), [1], [3], [0])

        rewritten(model(make, {"x": (6, 4)}), PickEarly(), to=["Slice", "Slice", "Gemm", "Relu"], rtol=1e-5)

    def test_refuses(self) -> None:
        def check(make: Any, why: str = "nothing before it that works on each row by itself holds a product") -> None:
            refused(model(make, {"x": (2, 5, 8)}), PickEarly(), why)

        def w(op: Emit) -> ir.Value:
            return weight(op, "w", random(8, 8))

        check(lambda op, v: op.Slice(op.Relu(v["x"]), [0], [1], [1]))
        check(lambda op, v: op.Slice(op.MatMul(v["x"], w(op)), [0], [1], [2]))
        check(lambda op, v: op.Slice(op.MatMul(weight(op, "l", random(5, 5)), v["x"]), [0], [1], [0]))
        check(lambda op, v: op.Slice(op.Softmax(op.MatMul(v["x"], w(op)), axis=1), [0], [1], [1]))

        def read_twice(op: Emit, v: V) -> Any:
            product = op.MatMul(v["x"], w(op))
            return op.Slice(product, [0], [1], [1]), op.Relu(product)

        check(read_twice)

        def by_its_own(op: Emit, v: V) -> ir.Value:
            product = op.MatMul(v["x"], w(op))
            return op.Slice(op.MatMul(product, op.Transpose(product, perm=[0, 2, 1])), [0], [1], [2])

        check(by_its_own)
        check(lambda op, v: op.Slice(op.MatMul(v["x"], w(op)), [0], [5], [1]), "it picks every row")
