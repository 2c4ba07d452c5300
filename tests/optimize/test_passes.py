"""Whole-graph passes, the driver and the pipelines."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.check import check_model
from fx2onnx.optimize.driver import apply
from fx2onnx.optimize.fold_constants import FoldBudget, fold_constants
from fx2onnx.optimize.pipelines import FUSED, LEVELS, Pass, Rewrites, run, run_default
from fx2onnx.optimize.redundant_nodes import merge_equal_nodes, remove_dead_nodes
from fx2onnx.optimize.rewrite import Kept, Match, Removal, Rewrite, Why, required
from fx2onnx.optimize.rewrites.neutral import RemoveNoop
from fx2onnx.semantics.folding import EXACT, LAST_BIT, fold
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.schemas import NEWEST_OPSET
from fx2onnx.sizes.expr import Dim
from tests.optimize.support import model, random, same_results, types, weight

V = dict[str, ir.Value]
INT64 = ir.DataType.INT64


def after_pass(graph: ir.Model, function: Any, *, to: list[str], sizes: dict[str, int] | None = None) -> ir.Model:
    before = ir.to_proto(graph)
    function(graph)
    check_model(graph, "after the pass")
    assert types(graph) == to
    same_results(before, ir.to_proto(graph), rtol=0, sizes=sizes)
    return graph


def test_equal_nodes_are_one() -> None:
    def make(op: Emit, v: V) -> ir.Value:
        left = op.Mul(op.Add(v["x"], v["y"]), op.Softmax(v["x"], axis=1))
        right = op.Mul(op.Add(v["y"], v["x"]), op.Softmax(v["x"], axis=1))
        return op.Sub(left, op.Mul(right, op.Softmax(v["x"], axis=0)))  # type: ignore[no-any-return]

    to = ["Add", "Softmax", "Mul", "Softmax", "Mul", "Sub"]
    after_pass(model(make, {"x": (3, 4), "y": (3, 4)}), merge_equal_nodes, to=to)


@pytest.mark.parametrize("op_type", ["Bernoulli", "RandomNormalLike", "RandomUniformLike"])
def test_two_draws_stay_two(op_type: str) -> None:
    graph = model(lambda op, v: op.Add(op.node(op_type, v["x"]), op.node(op_type, v["x"])), {"x": (8,)})
    assert merge_equal_nodes(graph) == 0


def test_nodes_stay_two_where_a_zero_has_another_sign() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        one, other, again = (op.Reciprocal(op.node("LeakyRelu", v["x"], alpha=alpha)) for alpha in (0.0, -0.0, 0.0))
        return [op.Add(one, again), other]

    to = ["LeakyRelu", "Reciprocal", "LeakyRelu", "Reciprocal", "Add"]
    after_pass(model(make, {"x": (3,)}), merge_equal_nodes, to=to)


def test_outputs_keep_their_names() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        return [op.Relu(v["x"]), op.Relu(v["x"]), op.Tanh(op.Relu(v["x"]))]

    graph = after_pass(model(make, {"x": (3,)}), merge_equal_nodes, to=["Relu", "Relu", "Tanh"])
    assert [value.name for value in graph.graph.outputs] == ["out0", "out1", "out2"]


def test_an_inner_value_may_become_the_output() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        inner = op.Relu(v["x"])
        return [op.Tanh(inner), op.Relu(v["x"])]

    after_pass(model(make, {"x": (3,)}), merge_equal_nodes, to=["Relu", "Tanh"])


def test_equal_weights_stay_two() -> None:
    def make(op: Emit, v: V) -> ir.Value:
        zeros = [weight(op, name, np.zeros(4, np.float32)) for name in ("a.bias", "b.bias")]
        return op.Mul(op.Add(v["x"], zeros[0]), op.Add(v["x"], zeros[1]))  # type: ignore[no-any-return]

    graph = after_pass(model(make, {"x": (3, 4)}), merge_equal_nodes, to=["Add", "Add", "Mul"])
    assert list(graph.graph.initializers) == ["a.bias", "b.bias"]


def folds_to(value: Any, make: Any) -> None:
    """``make(op)`` folds to an initializer holding ``value``, as onnxruntime computes it."""
    graph = model(
        lambda op, v: op.node("Add", v["x"], make(op)), {"x": np.shape(value)}, dtypes={"x": _ir_dtype(value)}
    )
    after_pass(graph, fold_constants, to=["Add"])
    (constant,) = list(graph.graph.initializers.values())
    assert constant.const_value is not None
    np.testing.assert_array_equal(constant.const_value.numpy(), value)


def _ir_dtype(value: Any) -> ir.DataType:
    return ir.DataType.from_numpy(np.asarray(value).dtype)


def test_sizes_and_arithmetic() -> None:
    folds_to(np.int64([2, 0, 1]), lambda op: op.Mod(op.Add(np.int64([4, 5, 6]), 1), 3))
    folds_to(np.int64([-2, 2, 0]), lambda op: op.Div(np.int64([-7, 7, -2]), 3))
    folds_to(np.int64([[1], [3]]), lambda op: op.Unsqueeze(op.Gather(np.int64([5, 1, 3]), np.int64([1, -1])), axes=[1]))
    folds_to(np.int64([0, 2, 4]), lambda op: op.Range(np.array(0), np.array(6), np.array(2)))
    folds_to(np.float32([[1, 0], [1, 1]]), lambda op: op.Cast(op.Trilu(np.ones((2, 2), np.int64), upper=0), to=1))
    folds_to(np.int64([3, 2]), lambda op: op.Slice(np.int64([1, 2, 3]), [-1], [-3], [0], [-1]))
    folds_to(np.int64([1, 9]), lambda op: op.Where(op.Less(np.int64([1, 5]), 3), np.int64([1, 5]), np.int64([9, 9])))


@pytest.mark.parametrize("reader", ["Floor", "Ceil", "Sign", "Neg"])
def test_a_guessed_last_bit_does_not_decide(reader: str) -> None:
    """Log(constant) in front of a rounding: folded only by the functions of the library that the model comes from."""

    def make(op: Emit, v: V) -> ir.Value:
        return op.node("Add", v["x"], op.node(reader, op.Mul(op.Log(np.float32([2, 4, 8])), np.float32([3]))))

    rounds = reader != "Neg"
    graph = model(make, {"x": (3,)})
    fold_constants(graph)
    assert types(graph) == (["Log", "Mul", reader, "Add"] if rounds else ["Add"])
    given = model(make, {"x": (3,)})
    fold_constants(given, functions={"Log": lambda array: np.full_like(array, 7)})
    assert types(given) == ["Add"]
    (constant,) = given.graph.initializers.values()
    assert constant.const_value is not None
    assert set(constant.const_value.numpy()) == {{"Sign": 1, "Neg": -21}.get(reader, 21)}


def test_shape_of_static_and_symbolic_dims() -> None:
    batch = Dim.symbol("batch")

    def make(op: Emit, v: V) -> list[ir.Value]:
        tail = op.Shape(v["x"], start=1, end=3)
        return [op.Mul(tail, v["n"]), op.Mul(op.Shape(v["x"], start=0, end=1), v["n"])]

    graph = model(make, {"x": (batch, 3, 4), "n": (1,)}, dtypes={"n": INT64})
    after_pass(graph, fold_constants, to=["Mul", "Shape", "Mul"], sizes={"batch": 2})


def test_the_byte_budget() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        small = op.Expand(op.const(1.0), np.array([16]))
        large = op.Expand(op.const(1.0), np.array([10000, 10000]))
        return [op.Add(v["x"], small), op.Add(v["y"], large)]

    graph = model(make, {"x": (16,), "y": (1, 1)})
    fold_constants(graph)
    assert types(graph) == ["Expand", "Add", "Add"]
    graph = model(make, {"x": (16,), "y": (1, 1)})
    fold_constants(graph, budget=FoldBudget(total_bytes=32))
    assert types(graph) == ["Expand", "Expand", "Add", "Add"]


def test_powers_of_integers_fold_as_pytorch_has_them() -> None:
    """Beyond 2**53 and around; runtimes take them in float64."""

    def make(op: Emit, v: V) -> ir.Value:
        return op.Add(v["x"], op.Pow(np.int64([3, 10**9 + 7, 0]), np.int64([41, 3, 0])))  # type: ignore[no-any-return]

    graph = model(make, {"x": (3,)}, dtypes={"x": INT64})
    assert fold_constants(graph) == 1
    (constant,) = graph.graph.initializers.values()
    assert constant.const_value is not None
    wrapped = [(3**41 + 2**63) % 2**64 - 2**63, ((10**9 + 7) ** 3 + 2**63) % 2**64 - 2**63, 1]
    assert constant.const_value.numpy().tolist() == wrapped


def test_every_operator_that_folds_has_a_kernel() -> None:
    assert not [name for name in (*EXACT, *LAST_BIT) if find_kernel("", name, NEWEST_OPSET) is None]


@pytest.mark.parametrize(("base", "exponent"), [(np.int64([2]), np.int64([-1])), (np.int8([2]), np.int16([300]))])
def test_powers_that_depend_on_who_computes_are_left(base: Any, exponent: Any) -> None:
    assert fold("Pow", 15, [base, exponent], {}) is None


def test_only_files_fold_by_any_kernel() -> None:
    """What rounds in its own way is computed where the result is compared with the file as it was."""

    def make(op: Emit, v: V) -> ir.Value:
        return op.Add(v["x"], op.ReduceSum(op.Erf(np.float32([[1, 2], [3, 4]])), np.int64([1]), keepdims=0))  # type: ignore[no-any-return]

    plain, file = (model(make, {"x": (2,)}) for _ in range(2))
    assert fold_constants(plain) == 0
    assert fold_constants(file, by_any_kernel=True) == 1
    assert types(file) == ["Add"]
    (constant,) = file.graph.initializers.values()
    assert constant.const_value is not None
    want = [math.erf(1) + math.erf(2), math.erf(3) + math.erf(4)]
    np.testing.assert_allclose(constant.const_value.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("opset", [6, 9, 12, 18])
def test_forms_of_older_opsets_fold(opset: int) -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    axes = {"attrs": {"axes": (0,)}} if opset < 13 else {"more": [np.int64([0])]}
    found = fold("ReduceSum", opset, [x, *axes.get("more", [])], {"keepdims": 0, **axes.get("attrs", {})})
    assert found is not None
    assert found.tolist() == [3, 5, 7]


def test_random_and_division_by_zero_are_not_folded() -> None:
    def make(op: Emit, v: V) -> list[ir.Value]:
        draw = op.Bernoulli(np.float32([0.5, 0.5]))
        quotient = op.Div(np.int64([1, 2]), np.int64([0, 1]))
        return [op.Add(v["x"], draw), op.Add(v["n"], quotient)]

    graph = model(make, {"x": (2,), "n": (2,)}, dtypes={"n": INT64})
    assert fold_constants(graph) == 0


def test_a_shared_weight_is_not_stored_twice_and_kept_weights_are_kept() -> None:
    def make(op: Emit, v: V) -> ir.Value:
        w = weight(op, "w", random(4))
        return op.Add(op.Mul(v["x"], w), op.Add(w, 1.0))  # type: ignore[no-any-return]

    assert fold_constants(model(make, {"x": (4,)}), fold_weights=True) == 0

    def once(op: Emit, v: V) -> ir.Value:
        return op.Mul(v["x"], op.Add(weight(op, "w", random(4)), 1.0))  # type: ignore[no-any-return]

    assert fold_constants(model(once, {"x": (4,)})) == 0
    after_pass(model(once, {"x": (4,)}), partial(fold_constants, fold_weights=True), to=["Mul"])


def test_constant_nodes_become_initializers_also_in_nested_graphs() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    main (bool c, float[2] x) => (float[2] y) {
      y = If (c) <
        then_branch = then () => (float[2] a) { k = Constant <value = float[2] {1, 2}> () a = Add (x, k) },
        else_branch = other () => (float[2] b) { m = Constant <value_float = 2.0> () n = Add (m, m) b = Mul (x, n) }
      >
    }"""
    proto = onnx.parser.parse_model(text)
    graph = ir.from_proto(proto)
    run(graph, 2, check=True)
    inner = [node.op_type for node in graph.graph.all_nodes()]
    assert inner == ["If", "Add", "Mul"]
    same_results(proto, ir.to_proto(graph), rtol=0)


def test_dead_nodes_and_weights() -> None:
    def make(op: Emit, v: V) -> ir.Value:
        op.Relu(op.Mul(v["x"], weight(op, "unread", random(4))))
        return op.Tanh(v["x"])  # type: ignore[no-any-return]

    graph = after_pass(model(make, {"x": (4,)}), remove_dead_nodes, to=["Tanh"])
    assert not graph.graph.initializers


def chain(op: Emit, v: V) -> ir.Value:
    x = v["x"]
    for _ in range(5):
        x = op.Relu(op.Identity(x))
    return x


def test_stop_after_edit_n() -> None:
    for edits in range(6):
        graph = model(chain, {"x": (4,)})
        outcome = run(graph, [Rewrites("noops", (RemoveNoop(),))], check=True, stop_after=edits)
        assert outcome.edits["RemoveNoop"] == edits
        assert types(graph).count("Identity") == 5 - edits


def test_refusals_are_counted() -> None:
    outcome = apply(model(lambda op, v: op.Identity(v["x"]), {"x": (4,)}), RemoveNoop(), explain=True)
    assert outcome.refusals == {"RemoveNoop": {"the result is a graph output and its source is none": 1}}


class _Restless(Removal):
    """``Relu`` -> ``Relu``, for ever."""

    roots: ClassVar = ("Relu",)

    def match(self, node: ir.Node) -> Kept | Why:
        return Kept(required(node, 0))

    def build(self, op: Emit, m: Kept) -> ir.Value:
        return op.Relu(m.value)


class _Widening(_Restless):
    """``Relu`` -> a value of other dims."""

    def build(self, op: Emit, m: Kept) -> ir.Value:
        return op.Unsqueeze(m.value, axes=[0])


@pytest.mark.parametrize(
    ("rewrite", "why"),
    [(_Restless(), "_Restless failed.*do not end"), (_Widening(), "_Widening failed at .*: it turns out0")],
)
def test_faults_name_the_rewrite(rewrite: Rewrite[Any], why: str) -> None:
    with pytest.raises(InternalError, match=why):
        apply(model(lambda op, v: op.Relu(v["x"]), {"x": (4,)}), rewrite)


def test_the_checker_sees_a_broken_graph() -> None:
    graph = model(lambda op, v: op.Tanh(op.Relu(v["x"])), {"x": (4,)})
    check_model(graph, "here")
    first, second = list(graph.graph)
    graph.graph.remove(first)
    graph.graph.insert_after(second, first)
    with pytest.raises(InternalError, match="before it exists"):
        check_model(graph, "here")


@pytest.mark.parametrize("level", LEVELS)
def test_levels_are_consistent_and_safe(level: int) -> None:
    graph = model(chain, {"x": (4,)})
    before = ir.to_proto(graph)
    run(graph, level, check=True)
    assert types(graph).count("Identity") == (5 if level == 0 else 0)
    same_results(before, ir.to_proto(graph), rtol=0)


def test_unknown_level() -> None:
    with pytest.raises(UserError, match="optimization level 7"):
        run(model(chain, {"x": (4,)}), 7)


def test_keep_weights() -> None:
    def make(op: Emit, v: V) -> ir.Value:
        return op.MatMul(v["x"], op.Transpose(weight(op, "w", random(5, 4)), perm=[1, 0]))  # type: ignore[no-any-return]

    graph = model(make, {"x": (2, 3, 4)})
    run_default(graph, keep_weights=True)
    assert list(graph.graph.initializers) == ["w"]
    assert run_default(graph)["FoldWeightTranspose"] == 1


def test_every_rewrite_of_a_level_has_a_name_of_its_own() -> None:
    for stages in LEVELS.values():
        for stage in stages:
            if not isinstance(stage, Pass):
                names = [rewrite.name for rewrite in stage.rewrites]
                assert len(names) == len(set(names))
                assert all(
                    (type(rewrite).__doc__ or "").startswith("``") or "->" in (type(rewrite).__doc__ or "")
                    for rewrite in stage.rewrites
                )


def test_the_documentation_lists_every_rewrite_and_pass() -> None:
    text = (Path(__file__).parents[2] / "docs" / "developers" / "rewrites.md").read_text()
    for stages in (*LEVELS.values(), FUSED):
        for stage in stages:
            names = [stage.name] if isinstance(stage, Pass) else [rewrite.name for rewrite in stage.rewrites]
            assert [name for name in names if f"`{name}`" not in text] == []


EVERY = {rewrite.name: rewrite for stage in LEVELS[3] if isinstance(stage, Rewrites) for rewrite in stage.rewrites}


@pytest.mark.parametrize("rewrite", EVERY.values(), ids=EVERY)
def test_what_match_gives_build_takes(rewrite: Rewrite[Any]) -> None:
    found, _ = get_args(get_type_hints(rewrite.match)["return"])
    assert issubclass(found, Match)
    assert len(fields(found)) > len(fields(Match))
    assert found.__dataclass_params__.frozen
    assert get_type_hints(rewrite.build)["m"] is found
