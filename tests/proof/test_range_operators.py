"""Each rule of value ranges bounds its operator, in the runner and onnxruntime, on the whole range and on a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from fx2onnx.proof import span_steps, walk
from fx2onnx.proof.domains import hull_spans
from fx2onnx.proof.spans import RULES, Interval
from tests.proof.bounds import assert_bounds_hold

RANGES = {"x": (-1.5, 2.0), "p": (0.5, 0.9), "i": (-5.0, 7.0), "j": (1.0, 4.0), "u": (3.0, 9.0)}
_HEAD = (
    "g (float[2, 3] x, float[2, 3] p, int64[2, 3] i, int64[2, 3] j, uint8[2, 3] u) => ({} y) <int64 three = {{3}}, int64[1] one = {{1}}, "
    "float tenth = {{0.1}}, float[2] pair = {{-0.4, 1.5}}, uint8 zero = {{5}}, int64[2, 2] places = {{0, 2, 1, 1}}, "
    "float[2, 2] news = {{0.3, -0.8, 1.1, 0.4}}, int64[4] image = {{1, 1, 2, 3}}, int64[3] row = {{1, 1, 6}}, int64[2] grid = {{2, 2}}, "
    "float[1, 4] box = {{0, 0, 1.5, 1}}, int64[1] first = {{0}}, int64[2] size = {{3, 3}}, float[3] column = {{0.2, -0.3, 0.9}}> {{ {} }}"
)
_IMAGE = "m = Reshape(x, image) "
TEXTS = {
    "Div of integers": "int64[A, B]: y = Div(i, j)", "Div by either sign": "int64[A, B]: k = Sub(j, three) l = Mul(k, three) m = Add(l, one) y = Div(i, m)",
    "Div of rounded": "int64[A, B]: f = Mul(x, p) g = Div(f, tenth) k = Cast<to=7>(g) y = Div(k, j)",
    "Mod": "int64[A, B]: y = Mod(i, j)", "Mod by a negative": "int64[A, B]: k = Neg(j) y = Mod(i, k)", "fmod": "int64[A, B]: y = Mod<fmod=1>(i, j)",
    "fmod of floats": "float[A, B]: y = Mod<fmod=1>(x, p)", "fmod of rounded": "float[A, B]: q = Mul(x, x) y = Mod<fmod=1>(q, p)", "Mod within": "int64[A, B]: k = Add(j, three) y = Mod(j, k)",
    "floor division": "int64[A, B]: q = Div(i, j) r = Mod(i, j) t = Mod<fmod=1>(i, j) d = Sub(t, r) e = Div(d, j) y = Add(q, e)",
    "BitShift left": 'uint8[A, B]: t = Cast<to=2>(j) y = BitShift<direction="LEFT">(u, t)', "BitShift right": 'uint8[A, B]: t = Cast<to=2>(j) y = BitShift<direction="RIGHT">(u, t)',
    **{op: f"uint8[A, B]: t = Cast<to=2>(j) y = {op}(u, t)" for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseAnd of negatives": "int64[A, B]: y = BitwiseAnd(i, j)", "BitwiseNot": "uint8[A, B]: y = BitwiseNot(u)", "BitwiseNot of int64": "int64[A, B]: y = BitwiseNot(i)",
    "IsNaN": "bool[A, B]: y = IsNaN(x)", "IsInf": "bool[A, B]: e = Exp(x) f = Exp(e) y = IsInf(f)", "Range": "float[N]: a = Constant<value_float=3.7>() y = Range(tenth, a, tenth)",
    "OneHot": "float[A, B, C]: y = OneHot(j, three, pair)", "Hardmax": "float[A, B]: q = Mul(x, p) y = Hardmax(q)",
    "ThresholdedRelu": "float[A, B]: q = Mul(x, p) y = ThresholdedRelu<alpha=0.4>(q)", "Shrink": "float[A, B]: q = Mul(x, p) y = Shrink<lambd=0.4, bias=0.2>(q)",
    "QuantizeLinear": "uint8[A, B]: q = Mul(x, p) y = QuantizeLinear(q, tenth, zero)", "DequantizeLinear": "float[A, B]: y = DequantizeLinear(u, tenth, zero)",
    "DequantizeLinear of rows": "float[A, B]: y = DequantizeLinear<axis=0>(u, pair)", "DynamicQuantizeLinear": "float[A, B]: q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
    "scale of DynamicQuantizeLinear": "float[]: q, y, z = DynamicQuantizeLinear(x)",
    "quantized and back": "float[A, B]: q = QuantizeLinear(x, tenth, zero) y = DequantizeLinear(q, tenth, zero)",
    "MatMulInteger": "int32[A, B]: t = Transpose(u) y = MatMulInteger(u, t, zero, zero)",
    **{f"GridSample {mode} {pad}": f'float[A, B, C, D]: {_IMAGE} s = Concat<axis=0>(p, p) g = Reshape(s, shape) y = GridSample<mode="{mode}", padding_mode="{pad}">(m, g)'
       for mode, pad in (("linear", "zeros"), ("linear", "border"), ("cubic", "zeros"), ("nearest", "reflection"))},
    "RoiAlign": f"float[A, B, C, D]: {_IMAGE} y = RoiAlign<output_height=2, output_width=2>(m, box, first)",
    "LRN": f"float[A, B, C, D]: {_IMAGE} y = LRN<size=3, alpha=0.5>(m)",
    "Attention": "float[A, B, C]: q = Unsqueeze(x, first) k = Unsqueeze(p, first) y = Attention<q_num_heads=1, kv_num_heads=1>(q, k, q)",
    "DFT": "float[A, B, C]: r = Reshape(x, row) t = Transpose<perm=[0, 2, 1]>(r) y = DFT(t)",
    "STFT": "float[A, B, C, D]: r = Reshape(x, flat) y = STFT(r, two, column)",
    "CenterCropPad": "float[A, B]: y = CenterCropPad(x, size)", "Col2Im": "float[A, B, C, D]: r = Reshape(x, cols) y = Col2Im(r, grid, ones)",
    **{f"ScatterElements {way}": f'float[A, B]: y = ScatterElements<axis=1, reduction="{way}">(x, places, news)' for way in ("add", "max", "min")},
    **{op: f"float[A, B]: y = {op}(x)" for op in ("Celu", "Selu", "Softsign", "Cosh", "Asinh", "Sinh", "Elu", "ReduceL1", "ReduceLogSumExp", "ReduceProd")},
    **{f"{op} of products": f"float[A, B]: q = Mul(x, p) y = {op}(q)" for op in ("Celu", "Selu", "Softsign", "Cosh", "ReduceLogSumExp", "ReduceProd")},
    **{op: f"float[A, B]: q = Mul(p, p) y = {op}(q)" for op in ("Tan", "Acos", "Asin", "Atanh", "ReduceLogSum")},
    "rows that are kept": "float[N]: b = Greater(x, p) c = Cast<to=6>(b) n = NonZero(c) t = Transpose<perm=[1, 0]>(n) r = GatherND(x, t) y = Exp(r)",
    "places that are not 0": "float[A, B]: q = Mul(x, p) b = Greater(q, tenth) n = NonZero(b) c = Cast<to=1>(n) y = Mul(c, tenth)",
    "Slice by data": "float[A, B]: m = ReduceMax<keepdims=0>(j) e = Reshape(m, one) s = Slice(x, first, e, one) t = Tanh(s) y = Concat<axis=1>(t, x)",
    "Range by data": "int64[N]: m = ReduceMax<keepdims=0>(j) z = Squeeze(first) o = Squeeze(one) r = Range(z, m, o) y = Add(r, m)",
    "shape of data": "int64[N]: m = ReduceMax<keepdims=0>(j) e = Reshape(m, one) s = Slice(x, first, e, one) h = Shape(s) y = Min(h, three)",
    "Unique": "float[N]: q = Mul(x, p) v, a, b, c = Unique(q) d = Cast<to=1>(a) e = Cast<to=1>(b) f = Cast<to=1>(c) g = Concat<axis=0>(v, d, e, f) y = Neg(g)",
    "NonMaxSuppression": "float[N, 3]: e = Exp(x) q = Concat<axis=1>(x, e) o = Slice(q, first, four, one) b = Unsqueeze(o, first) w = Reshape(more2, row2) "
    "n = NonMaxSuppression(b, w, ten) y = Cast<to=1>(n)",
    "TopK by data": "float[A, B]: m = ReduceMin<keepdims=0>(j) e = Reshape(m, one) f = Min(e, two) q = Mul(x, p) y, k = TopK(q, f)",
    "branches of two shapes": "float[N]: q = Reshape(x, long) c0 = ReduceMax<keepdims=0>(q) c = Greater(c0, tenth) y = If (c) <then_branch = t () => (float[N] a) "
    "{{ a = Abs(q) }}, else_branch = e () => (float[N] b) {{ b = Reshape(c0, one) }}>",
    "turns by data": "float[N, A, B]: m = ReduceMax<keepdims=0>(i) yes = Constant<value_int=1>() go = Cast<to=9>(yes) _s, y = Loop (m, go, x) <body = t (int64 k, bool o, float[2, 3] a) "
    "=> (bool o2, float[2, 3] b, float[2, 3] s) {{ o2 = Identity(o) b = Mul(a, tenth) s = Add(b, x) }}>",
    "Pow by data": "float[A, B]: q = Mul(p, p) y = Pow(q, x)",
    "Pow of one number": "float[A, B]: q = Mul(x, p) y = Pow(tenth, q)",
    "Clip by data": "float[A, B]: q = Mul(x, x) l = ReduceMin<keepdims=0>(p) c = Clip(q, l) y = Div(x, c)",
    "rows of rows": "float[A, B]: q = Mul(x, p) b = Greater(q, tenth) n = NonZero(b) c = Greater(n, first) m = NonZero(c) y = Cast<to=1>(m)",
    "Size of rows": "int64: q = Mul(x, p) b = Greater(q, tenth) n = NonZero(b) y = Size(n)",
    "TopK of rows": "float[A]: b = Greater(x, tenth) n = NonZero(b) r = Reshape(n, minus) a = Reshape(x, minus) d = Cast<to=1>(r) e = Concat<axis=0>(d, a) v, k = TopK(e, three1) y = Cast<to=1>(k)",
    "truth of rounded": "bool[A, B]: q = Mul(x, p) r = Sub(q, q) s = Add(r, x) t = Sub(s, x) y = Cast<to=9>(t)",
    "turns by rows": "float[A, B]: q = Greater(x, p) n = NonZero(q) m = Size(n) yes = Constant<value_int=1>() go = Cast<to=9>(yes) y = Loop (m, go, x) <body = t (int64 k, bool o, "
    "float[2, 3] a) => (bool o2, float[2, 3] b) {{ o2 = Identity(o) h = Mul(a, tenth) b = Tanh(h) }}>",
    "Acosh": "float[A, B]: q = Mul(p, p) r = Add(q, more) y = Acosh(r)", "Mean": "float[A, B]: y = Mean(x, p, x)", "PRelu": "float[A, B]: q = Mul(x, p) y = PRelu(q, column)",
}  # fmt: skip
_MORE = ", float more = {1.5}, int64[4] shape = {1, 2, 3, 2}, int64[3] flat = {1, 6, 1}, int64 two = {2}, int64[3] cols = {1, 4, 1}, int64[2] ones = {2, 2}, int64[1] four = {4}, float[2] more2 = {0.4, 0.9}, int64[3] row2 = {1, 1, 2}, int64 ten = {10}, int64[1] long = {6}, int64[1] minus = {-1}, int64 two0 = {1}, int64[2] plane = {2, 3}, int64[1] long2 = {-1}, int64[2, 3] places2 = {0, 2, 1, 1, 0, 0}, int64[1] three1 = {3}> {"


def parsed(text: str, opset: int = 23) -> onnx.ModelProto:
    kind, _, nodes = text.partition(": ")
    content = _HEAD.format(kind, nodes.replace("{{", "{").replace("}}", "}")).replace("> {", _MORE, 1)
    if "cols" in nodes:
        content = (
            content.replace("cols = {1, 4, 1}", "cols = {1, 6, 1}")
            .replace("ones = {2, 2}", "ones = {2, 3}")
            .replace("grid = {2, 2}", "grid = {2, 3}")
        )
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> ' + content)


_PLACES = "GatherND: the places that it reads or writes depend on data, and may be out of range"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bounds_of_an_operator_hold(text: str) -> None:
    beside = not {"Attention", "CenterCropPad", "RoiAlign"} & {*text.replace("<", "(").replace("(", " ").split()}
    for share in (1.0, 0.3):
        ranges = {name: (low, low + share * (high - low)) for name, (low, high) in RANGES.items()}
        ranges["i"], ranges["j"] = (RANGES["i"], RANGES["j"]) if share == 1 else ((2, 4), (2, 3))
        ranges["u"] = (3, 6)
        found = assert_bounds_hold(parsed(text), ranges, draws=8, beside=beside)
        assert {*found.unknown.values()} <= {_PLACES, "Loop: rounding may grow with each turn"}
        assert {each.kind for each in found.findings} <= ({"overflow", "division"} if "k =" in text else {"overflow"})


def _exact(ends_of: Any, *operands: Interval) -> Interval:
    low, high = ends_of(*((each.low, each.high) for each in operands))
    return Interval(*np.broadcast_arrays(low, high, np.zeros(())))


MUTANTS: dict[str, tuple[str, Any]] = {
    "rounding that no step sees": ("Div of rounded", lambda call: _exact(lambda x, y: (np.trunc(x[0] / y[1]), np.trunc(x[1] / y[0])), *call.args)),
    "floor division": ("Div of integers", lambda call: _exact(lambda x, y: (np.trunc(x[0] / y[1]), np.floor(x[1] / y[1])), *call.args)),
    "a rest that is never below 0": ("Mod by a negative", lambda call: span_steps.within(call, 0, 4)),
    "one slope": ("PRelu", lambda call: Interval(np.maximum(call.span(0).low, 0), call.span(0).high, call.span(0).error)),
    "no zero point": ("DequantizeLinear", lambda call: Interval(call.span(0).low * 0.1, call.span(0).high * 0.1, call.span(0).error)),
    "a mean of numbers alone": ("GridSample linear zeros", lambda call: span_steps.within(call, call.span(0).low.mean(), call.span(0).high.max())),
}  # fmt: skip


WRONG_HULLS: dict[str, tuple[str, Any]] = {
    "rows that rounding does not change": ("Unique", lambda call: [*hull_spans(call)[:1], *[Interval.of(np.zeros(()))] * (call.outputs - 1)]),
    "the first row alone": ("Slice by data", lambda call: [Interval.of(np.zeros(()))] if call.op_type == "Slice" else hull_spans(call)),
    "places that start at 1": ("NonMaxSuppression", lambda call: [Interval.of(np.ones(()))] if call.op_type == "NonMaxSuppression" else hull_spans(call)),
}  # fmt: skip


@pytest.mark.parametrize("mutant", WRONG_HULLS)
def test_wrong_bounds_of_all_elements_are_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = WRONG_HULLS[mutant]
    monkeypatch.setattr(walk, "hull_spans", wrong)
    with pytest.raises(AssertionError):
        assert_bounds_hold(parsed(TEXTS[name]), RANGES, draws=40)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = MUTANTS[mutant]
    (op_type,) = {each.op_type for each in parsed(TEXTS[name]).graph.node if each.op_type in name}
    monkeypatch.setitem(RULES, op_type, wrong)
    with pytest.raises(AssertionError):
        assert_bounds_hold(parsed(TEXTS[name]), RANGES, draws=40)


_DRAWN = {
    "f": ["Mul(f, f)", "Add(f, f)", "Sub(f, tenth)", "Div(f, p)", "Tanh(f)", "Abs(f)", "Neg(f)", "Exp(s)", "Max(f, f)", "Clip(f, tenth)", "Where(b, f, f)", "Mod<fmod=1>(f, p)",
          "PRelu(f, column)", "Shrink<lambd=0.4, bias=0.1>(f)", "ThresholdedRelu<alpha=0.3>(f)", "Hardmax(f)", "Softmax(f)", "Cast<to=1>(i)", "Floor(f)", "CumSum(f, two0)",
          "Selu(s)", "Celu(s)", "Softsign(f)", "Sigmoid(f)", "Reshape(r, plane)", "GatherElements<axis=1>(f, places2)", "Round(f)"],
    "s": ["Tanh(f)", "Sin(f)", "Sigmoid(f)"],
    "i": ["Add(i, i)", "Sub(i, i)", "Mul(i, three)", "Div(i, j)", "Mod(i, j)", "Mod<fmod=1>(i, j)", "Cast<to=7>(s)", "Min(i, three)", "BitwiseAnd(i, j)", "BitwiseNot(i)", "Cast<to=7>(b)", "Abs(i)"],
    "b": ["Greater(f, f)", "Less(s, tenth)", "Equal(i, i)", "Not(b)", "And(b, b)", "Or(b, b)", "Xor(b, b)", "IsNaN(f)", "Cast<to=9>(i)", "Cast<to=9>(s)"],
    "r": ["Reshape(f, long)"],
    "n": ["Compress(f, k)", "Compress(s, k)", "Neg(n)", "Tanh(n)", "Mul(n, tenth)", "Add(n, m)", "Where(o, n, m)", "Cast<to=1>(z)", "Concat<axis=0>(n, r)", "Unique(n)", "Identity(r)"],
    "m": ["ReduceMax<keepdims=0>(f)", "ReduceMin<keepdims=0>(s)", "ReduceMean<keepdims=0>(f)"],
    "k": ["Reshape(b, long)"], "o": ["Greater(m, m)", "Less(m, tenth)"], "z": ["Reshape(y0, long2)", "Add(z, three)", "Div(z, three)"], "y0": ["NonZero(b)", "Shape(n)"],
}  # fmt: skip


def drawn(seed: int) -> onnx.ModelProto:
    """A graph of random operators: floats, integers, truths, and rows whose number depends on data."""
    draw, lines, count = np.random.default_rng(seed), [], 0
    known: dict[str, list[str]] = {"f": ["x", "p"], "i": ["i", "j"]}

    def named(kind: str, depth: int) -> str:
        nonlocal count
        if known.get(kind) and (depth <= 0 or draw.random() < 0.25 * (depth < 5)):
            return str(draw.choice(known[kind]))
        text = str(draw.choice(_DRAWN[kind]))
        op, _, rest = text.partition("(")
        operands = [named(each, depth - 1) if each in _DRAWN else each for each in rest[:-1].split(", ")]
        count += 1
        lines.append(f"v{count} = {op}({', '.join(operands)})")
        known.setdefault(kind, []).append(f"v{count}")
        return f"v{count}"

    kind = str(draw.choice(["f", "i", "n", "n", "f"]))
    shape = {"f": "float[A, B]", "i": "int64[A, B]", "n": "float[N]"}[kind]
    last = named(kind, 5)
    return parsed(f"{shape}: {' '.join(lines)} y = Identity({last})")


@pytest.mark.parametrize(
    "seed", [each if each < 6 else pytest.param(each, marks=pytest.mark.long) for each in range(150)]
)
def test_bounds_of_drawn_operators_hold(seed: int) -> None:
    assert_bounds_hold(drawn(seed), RANGES if seed % 2 else {**RANGES, "x": (0.2, 0.5)}, draws=6)


@pytest.mark.parametrize("number", [5.0, 41.0, 700.0])
def test_a_quotient_that_float16_rounds_is_within_its_bounds(number: float) -> None:
    values = [onnx.helper.make_tensor_value_info("x", 10, [1]), onnx.helper.make_tensor_value_info("y", 5, [1])]
    parts = [
        onnx.numpy_helper.from_array(np.asarray(each), name)
        for name, each in (("s", np.float16(0.03)), ("z", np.int16(3)))
    ]
    nodes = [onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], parts)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    assert_bounds_hold(model, {"x": (number, number)}, draws=2)
