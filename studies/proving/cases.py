"""Graphs before and after rewrites and opset changes, as the tests have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from fx2onnx.sizes.expr import Dim
from fx2onnx.steps.opset import CHANGES, convert_opset


@dataclass
class Case:
    """A graph before and after rewrites or a change of opset."""

    names: tuple[str, ...]
    before: onnx.ModelProto
    after: onnx.ModelProto
    sizes: Mapping[str, int] = field(default_factory=dict)


def rewrite_cases() -> list[Case]:
    """The graphs that the tests of rewrites give to them, with weights whose products are exact, and what rewrites of files get."""
    import pytest

    from tests.optimize import support

    cases: list[Case] = []
    original = support.rewritten

    def rewritten(graph: ir.Model, *rewrites: Any, rtol: float = 0.0, sizes: Any = None, **given: Any) -> ir.Model:
        before = ir.to_proto(graph)
        found = original(graph, *rewrites, rtol=max(rtol, 1e-3) if rtol else rtol, sizes=sizes, **given)
        cases.append(Case(tuple(each.name for each in rewrites), before, ir.to_proto(graph), sizes or {}))
        return found

    def dyadic(*dims: int, seed: int = 0) -> Any:
        return (np.random.default_rng(seed).integers(-8, 9, dims) / 4).astype(np.float32)

    kept = support.rewritten, support.random
    support.rewritten, support.random = rewritten, dyadic
    try:
        files = [f"tests/optimize/test_{name}.py" for name in ("rewrites", "patterns", "contrib", "split_product")]
        pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "", *files])
    finally:
        support.rewritten, support.random = kept
    return cases + file_cases()


def file_cases() -> list[Case]:
    """Graphs for the rewrites of files of other tools."""
    from fx2onnx.optimize.driver import apply
    from fx2onnx.steps.stages import EXACT, ROUNDED
    from tests.optimize.support import model, weight

    ramp = np.arange(1, 25, dtype=np.float32)

    def norm(op: Any, v: Any) -> Any:
        centred = op.Sub(v["x"], op.ReduceMean(v["x"], np.array([-1]), keepdims=1))
        spread = op.ReduceMean(op.Mul(centred, centred), np.array([-1]), keepdims=1)
        return op.Div(centred, op.Sqrt(op.Add(spread, 1e-5)))

    def state(op: Any, v: Any) -> Any:
        parts = [weight(op, "w", ramp[:12].reshape(1, 4, 3)), weight(op, "r", ramp[:4].reshape(1, 4, 1)), None, None]
        zeros = [np.zeros((1, 2, 1), np.float32)] * 2
        return op.node("LSTM", v["x"], *parts, *zeros, outputs=[(v["x"].dtype, (2, 1, 2, 1))], hidden_size=1)

    def conv(op: Any, v: Any) -> Any:
        made = op.Conv(v["x"], weight(op, "w", ramp[:12].reshape(4, 3, 1)), weight(op, "b", ramp[:4]))
        return op.Mul(op.Add(made, ramp[4:8].reshape(1, 4, 1)), ramp[8:12].reshape(1, 4, 1))

    def target(op: Any, v: Any) -> Any:
        first = op.Gather(op.Shape(v["x"]), np.array([0]), axis=0)
        sizes = op.Concat(first, np.array([12]), axis=0)
        return op.node("Reshape", v["x"], sizes, outputs=[(v["x"].dtype, (Dim.symbol("batch"), 12))])

    bools = {"c": ir.DataType.BOOL}
    made: list[tuple[str, Any, dict[str, Any], Any]] = [
        ("FixedTarget", target, {"x": (Dim.symbol("batch"), 3, 4)}, None),
        ("DropZeroState", state, {"x": (2, 2, 3)}, None),
        ("SwapWhere", lambda op, v: op.Where(op.Not(v["c"]), v["a"], v["b"]), {"c": (3,), "a": (3,), "b": (3,)}, bools),
        (
            "PlainCast",
            lambda op, v: op.CastLike(v["x"], op.Cast(v["y"], to=ir.DataType.FLOAT16)),
            {"x": (3,), "y": (2,)},
            None,
        ),
        ("FoldConvAffine", conv, {"x": (2, 3, 4)}, None),
        ("DropZeroTerm", lambda op, v: op.Abs(op.Add(v["x"], 0.0)), {"x": (3,)}, None),
        ("FuseBareLayerNorm", norm, {"x": (2, 4)}, None),
    ]
    rules = {each.name: each for each in (*EXACT, *ROUNDED)}
    cases = []
    for name, make, inputs, dtypes in made:
        graph = model(make, inputs, dtypes=dtypes)
        before = ir.to_proto(graph)
        apply(graph, rules[name])
        cases.append(Case((name,), before, ir.to_proto(graph), {"batch": 3}))
    return cases


def opset_cases() -> Iterator[Case]:
    """The graphs that the tests of opsets convert, each with the changes that it needs."""
    from fx2onnx.irx.inference import infer_types
    from fx2onnx.steps import opset
    from fx2onnx.steps.opened import open_model
    from tests.steps.graphs import text
    from tests.steps.test_opset import FORMS

    used: list[str] = []

    def noted(key: tuple[str, int], is_up: bool, change: Any) -> Any:
        def call(edit: Any) -> None:
            used.append(f"{key[0]} {key[1] - 1} -> {key[1]}" if is_up else f"{key[0]} {key[1]} -> {key[1] - 1}")
            change(edit)

        return None if change is None else call

    table = {
        key: tuple(noted(key, not place, each) for place, each in enumerate(pair)) for key, pair in CHANGES.items()
    }
    kept, opset.CHANGES = opset.CHANGES, table  # type: ignore[assignment]
    try:
        for before, after, body in (*(each for each in FORMS.values() if "Scatter" not in each[2]), *_more_forms()):
            proto = text(f"g (float[2, 4, 6] x) => (float y) {{ {body} }}", ir=8, opset=before)
            proto.graph.output[0].type.tensor_type.ClearField("shape")
            if "Arg" in body:
                proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
            used.clear()
            made = open_model(proto).fresh()
            infer_types(made)
            convert_opset(made, after)
            yield Case(tuple(dict.fromkeys(used)), proto, ir.to_proto(made))
    finally:
        opset.CHANGES = kept


def _more_forms() -> Iterator[tuple[int, int, str]]:
    """Graphs for changes that the tests of opsets compare in onnx's own cases alone."""
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum"):
        yield 11, 10, f"y = Reduce{name} <axes = [-1]> (x)"
        yield (
            (12, 13, "y = ReduceSum <axes = [1]> (x)")
            if name == "Sum"
            else (17, 18, f"y = Reduce{name} <axes = [1, 2]> (x)")
        )
        if name != "Sum":
            yield 18, 17, f"i = Constant <value_ints = [-1]> () y = Reduce{name} <keepdims = 0> (x, i)"
    for name in ("ArgMax", "ArgMin"):
        yield 11, 10, f"y = {name} <axis = -1> (x)"
    for name in ("LogSoftmax", "Hardmax"):
        yield 12, 13, f"y = {name} <axis = 1> (x)"
        yield 13, 12, f"y = {name} <axis = -1> (x)"
    yield 11, 10, "i = Constant <value = int64[2] {2, 0}> () y = Gather <axis = -1> (x, i)"
    yield 11, 10, "c = Constant <value = bool[3] {1, 0, 1}> () y = Compress <axis = -1> (x, c)"
    yield 11, 10, "a, b = Split <axis = -1> (x) y = Add (a, b)"
    yield 11, 10, "k = Constant <value = int64[1] {2}> () y, i = TopK <axis = -2> (x, k)"
    yield 11, 10, "y = Flatten <axis = -1> (x)"
    yield 10, 9, "k = Constant <value = int64[1] {2}> () y, i = TopK <axis = 1> (x, k)"
    yield 12, 13, "u = Unsqueeze <axes = [0]> (x) y = Squeeze <axes = [0]> (u) "
    yield 12, 13, "a, b = Split <axis = 2, split = [2, 4]> (x) y = Concat <axis = 2> (b, a)"
    yield 13, 12, "s = Constant <value_ints = [2, 4]> () a, b = Split <axis = 2> (x, s) y = Concat <axis = 2> (b, a)"
    yield 17, 18, "a, b = Split <axis = 2> (x) y = Concat <axis = 2> (b, a)"
    yield 11, 12, "y = Dropout <ratio = 0.25> (x)"
    yield 11, 9, "l = Constant <value = float {-0.5}> () h = Constant <value = float {0.5}> () y = Clip (x, l, h)"
    yield 9, 10, "y = Slice <axes = [1], starts = [1], ends = [3]> (x)"
    yield 10, 9, "s = Constant <value = int64[1] {1}> () e = Constant <value = int64[1] {3}> () y = Slice (x, s, e)"
    yield 19, 18, 'p = Constant <value_ints = [0, 0, 1, 0, 0, 1]> () y = Pad <mode = "edge"> (x, p)'
    channels = " ".join(f"{name} = Constant <value = float[4] {{{numbers}}}> ()" for name, numbers in
                        (("s", "1.0, 2.0, 0.5, 3.0"), ("b", "0.5, 1.0, 0.0, 2.0"), ("m", "0.0, 1.0, 2.0, 0.5"), ("v", "3.0, 8.0, 1.0, 2.0")))  # fmt: skip
    for before, after in ((8, 9), (13, 14), (14, 13)):
        yield before, after, f"{channels} y = BatchNormalization (x, s, b, m, v)"
