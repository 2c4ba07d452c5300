"""Proofs of the optimizer's rewrites and of the changes between opsets: ``make proofs`` writes docs/measured/proofs.md.

Every graph that a test gives to a rewrite is evaluated on symbols before and after it (``proof_algebra.py``): equal terms are equal bit
for bit; else z3 proves elements equal bit for bit in float16, float32, integers or bools; else both are compared as polynomials of real
numbers, whose factors may be apart by roundings of folded weights. Wrong rules are planted by edits of what a rewrite left.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from fx2onnx.base.packages import require
from fx2onnx.sizes.expr import Dim
from fx2onnx.steps.opset import CHANGES, convert_opset
from studies.proof_algebra import Exact, Poly, Real, Unproved, terms_of
from tools import long_tables

PAGE = Path("docs/measured/proofs.md")
MOST = 8.0
"""Roundings that factors may be apart: folds of a few weights."""
SECONDS = 5
PLANTED = 60
KINDS = ("exact", "z3", "values", "real", "none")
WORDS = {
    "exact": "the same terms: bit for bit",
    "z3": "z3: bit for bit in the dtypes of its cases",
    "values": "all values of 8-bit integers: bit for bit",
    "real": "polynomials of real numbers",
    "none": "not proved",
}


@dataclass
class Proof:
    """How far two graphs were proved equal."""

    kind: str
    roundings: float = 0.0
    why: str = ""


@dataclass
class Case:
    """A graph before and after rewrites or a change of opset."""

    names: tuple[str, ...]
    before: onnx.ModelProto
    after: onnx.ModelProto
    sizes: Mapping[str, int] = field(default_factory=dict)


def prove(before: onnx.ModelProto, after: onnx.ModelProto, sizes: Mapping[str, int]) -> Proof:
    """The strongest proof that both graphs compute the same. Raises UserError E602 where z3 is needed and missing."""
    why = ""
    try:
        algebra = Exact()
        one, other = terms_of(before, algebra, sizes), terms_of(after, algebra, sizes)
        if [each.shape for each in one] != [each.shape for each in other]:
            return Proof("none", why="other shapes")
        pairs = {
            pair for a, b in zip(one, other, strict=True) for pair in zip(a.reshape(-1), b.reshape(-1), strict=True)
        }
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        if not differing:
            return Proof("values" if algebra.by_values else "exact")
        if _equal_in_z3(algebra, differing):
            return Proof("z3")
    except Unproved as error:
        why = str(error)
    try:
        real = Real(MOST)
        one, other = terms_of(before, real, sizes), terms_of(after, real, sizes)
        if not _is_float(before):
            return Proof("none", why="the results are no floats")
        if [each.shape for each in one] != [each.shape for each in other]:
            return Proof("none", why="other shapes")
        polys: list[tuple[Poly, Poly]] = [
            pair for a, b in zip(one, other, strict=True) for pair in zip(a.reshape(-1), b.reshape(-1), strict=True)
        ]
        worst = max([real.worst, *(a.apart(b) for a, b in polys)])
        return Proof("real", worst) if worst <= MOST else Proof("none", why="other polynomials")
    except Unproved as error:
        return Proof("none", why=f"{error} is not written out" if str(error) == why or not why else f"{why}; {error}")


def _is_float(model: onnx.ModelProto) -> bool:
    values = (*model.graph.input, *model.graph.output)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.UNDEFINED)
    return all(value.type.tensor_type.elem_type in floats for value in values)


def _equal_in_z3(algebra: Exact, pairs: list[tuple[int, int]]) -> bool:
    """Whether no numbers tell the terms of any pair apart. Pairs that differ in the names of symbols alone are one."""
    require("z3")
    import z3

    seen = set()
    for one, other in pairs:
        names: dict[int, int] = {}
        shape = _shape(algebra, one, names), _shape(algebra, other, names)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            solver = z3.Solver()
            solver.set("timeout", SECONDS * 1000)
            solver.add(z3.Not(_in_z3(z3, algebra, one) == _in_z3(z3, algebra, other)))
        except (Unproved, z3.Z3Exception):
            return False
        if solver.check() != z3.unsat:
            return False
    return True


def _shape(algebra: Exact, term: Any, names: dict[int, int]) -> Any:
    if not isinstance(term, int):
        return tuple(_shape(algebra, part, names) for part in term) if isinstance(term, tuple) else term
    key = algebra.keys[term]
    if key[0] == "symbol":
        return "symbol", key[3], names.setdefault(term, len(names))
    return key if key[0] == "constant" else (key[0], *(_shape(algebra, part, names) for part in key[1:]))


def _in_z3(z3: Any, algebra: Exact, term: int) -> Any:
    """A term of elements in z3. Raises Unproved."""
    op, *rest = algebra.keys[term]
    if op == "symbol":
        return _variable(z3, f"{rest[0]}[{rest[1]}]", rest[2])
    if op == "constant":
        number = np.frombuffer(rest[0], rest[1])[0]
        sort = _variable(z3, "", rest[1]).sort()
        if rest[1] == "bool":
            return z3.BoolVal(bool(number))
        return z3.BitVecVal(int(number), sort.size()) if rest[1].startswith("int") else z3.FPVal(float(number), sort)
    key, *terms = ("", *rest[0]) if op == "most" else rest
    if not terms or not all(isinstance(each, int) for each in terms):
        raise Unproved(f"{op} in z3")
    args = [_in_z3(z3, algebra, each) for each in terms]
    if op == "Cast" or (op in _Z3 and op != "Where" and any(each.sort() != args[0].sort() for each in args)):
        same = (
            op == "Cast"
            and _variable(z3, "", str(onnx.helper.tensor_dtype_to_np_dtype(dict(key)["to"]))).sort() == args[0].sort()
        )
        if same:
            return args[0]
        op, key = f"{op} {key} {[str(each.sort()) for each in args]}", ""
    if op not in _Z3:  # a function of which nothing is known
        sorts = [each.sort() for each in args]
        return z3.Function(f"{op} {key}", *sorts, sorts[0])(*args)
    is_float, near = z3.is_fp(args[0]), z3.RNE()
    functions = {
        "Add": lambda a, b: z3.fpAdd(near, a, b) if is_float else a + b,
        "Sub": lambda a, b: z3.fpSub(near, a, b) if is_float else a - b,
        "Mul": lambda a, b: z3.fpMul(near, a, b) if is_float else a * b,
        "Div": lambda a, b: z3.fpDiv(near, a, b) if is_float else a / b,
        "Neg": lambda a: z3.fpNeg(a) if is_float else -a,
        "Not": z3.Not, "And": z3.And, "Or": z3.Or, "Xor": z3.Xor, "Where": z3.If,
        "Pow": lambda a, b: a if z3.is_true(z3.simplify(z3.fpEQ(b, z3.FPVal(1, b.sort())) if is_float else b == 1)) else None,
    }  # fmt: skip
    found = functions[op](*args)
    if found is None:
        return z3.Function(op, *[each.sort() for each in args], args[0].sort())(*args)
    return found


_Z3 = frozenset(["Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Where", "Pow"])


def _variable(z3: Any, name: str, dtype: str) -> Any:
    floats = {"float16": z3.Float16, "float32": z3.Float32, "float64": z3.Float64}
    if dtype in floats:
        return z3.FP(name, floats[dtype]())
    if dtype == "bool":
        return z3.Bool(name)
    if dtype.startswith("int"):
        return z3.BitVec(name, int(dtype[3:]))
    raise Unproved(f"{dtype} in z3")


def rewrite_cases() -> list[Case]:
    """What the tests of rewrites give to them, with weights whose products are exact, and what rewrites of files get."""
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


def wrong(case: Case) -> Iterator[onnx.ModelProto]:
    """What is left by a rule with one constant, axis, attribute, operand or operator wrong, where it computes something else."""
    from tests.optimize.support import feeds_for, run
    from tests.proof.test_certify import faults

    def swapped() -> Iterator[onnx.ModelProto]:
        for index, node in enumerate(case.after.graph.node):
            if len(node.input) > 1 and node.op_type in ("Sub", "Div", "MatMul", "Concat", "Where", "Pow"):
                made = copy.deepcopy(case.after)
                chosen = made.graph.node[index]
                chosen.input[:] = [*chosen.input[:-2], chosen.input[-1], chosen.input[-2]]
                yield made
            for place, attribute in enumerate(node.attribute):
                if attribute.name in ("axis", "transA", "transB", "keepdims", "group"):
                    made = copy.deepcopy(case.after)
                    made.graph.node[index].attribute[place].i = 0 if attribute.i else 1
                    yield made

    feeds = feeds_for(case.before, case.sizes)
    want = run(case.before, feeds)
    for made in itertools.chain((each for _, each in faults(case.after)), swapped()):
        try:
            got = run(made, feeds)
        except Exception:  # no runtime opens the graph
            continue
        if any(
            a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(got, want, strict=True)
        ):
            yield made


def passed(cases: list[Case], most: int) -> tuple[int, list[str]]:
    """How many wrong rules were planted, over all rules in turn, and which were proved all the same."""
    streams = {case.names: wrong(case) for case in cases}
    sources = {case.names: case for case in cases}
    count, through = 0, []
    while streams and count < most:
        for names in list(streams):
            made = next(streams[names], None)
            if made is None:
                del streams[names]
                continue
            count += 1
            case = sources[names]
            try:
                found = prove(case.before, made, case.sizes)
            except (ValueError, IndexError, TypeError):  # no graph that can be evaluated
                continue
            if found.kind != "none":
                through.append(" ".join(names))
    return count, through


SAMPLED = "not proved: {op} is not written out; files and onnx's own cases are converted and compared in both runtimes"
PASSES = (
    ("fold_constants", "computed by value; `fx2onnx certify` computes it again with the onnx package's evaluator"),
    ("merge_equal_nodes, merge_equal_weights", "equal terms are one term: congruence; random operators are left out"),
    ("remove_dead_nodes", "no output reads what is removed; certify reads outputs alone"),
    ("fold_branches", "a constant condition picks the branch; certify samples it"),
)


def rows_of(cases: list[Case]) -> dict[str, list[Proof]]:
    """The proofs of all cases by rule."""
    found: dict[str, list[Proof]] = defaultdict(list)
    for case in cases:
        proof = prove(case.before, case.after, case.sizes)
        for name in case.names:
            found[name].append(proof)
    return dict(found)


def line(name: str, proofs: list[Proof], text: str) -> str:
    """One row of a table: the weakest proof of all cases counts."""
    kinds = Counter(each.kind for each in proofs)
    worst = max(proofs, key=lambda each: KINDS.index(each.kind))
    told = (
        "; ".join(f"{WORDS[kind]} ({kinds[kind]})" for kind in KINDS if kinds[kind])
        if len(kinds) > 1
        else WORDS[worst.kind]
    )
    apart = max(each.roundings for each in proofs)
    told += f", factors {apart:.2g} roundings apart" if kinds["real"] else ""
    told += f": {worst.why}, sampled" if worst.kind == "none" else ""
    return f"| `{name}` | {text} | {len(proofs)} | {told} |"


def page(rewrites: dict[str, list[Proof]], opsets: dict[str, list[Proof]], planted: tuple[int, list[str]]) -> str:
    """The whole page."""
    from benchmarks.machine import describe
    from fx2onnx.optimize import pipelines
    from fx2onnx.steps import stages

    stages_of = (*itertools.chain(*pipelines.LEVELS.values()), *pipelines.FUSED, *pipelines.PICKED)
    rules = {rule.name: rule for stage in stages_of if isinstance(stage, pipelines.Rewrites) for rule in stage.rewrites}
    rules |= {rule.name: rule for rule in (*stages.EXACT, *stages.ROUNDED)}
    texts = {
        name: (type(rule).__doc__ or "").strip().split("\n")[0].rstrip(".").replace("|", "\\|")
        for name, rule in rules.items()
    }
    changes = [
        f"{op} {opset - up} -> {opset - (not up)}"
        for (op, opset), pair in CHANGES.items() for up, each in zip((True, False), pair, strict=True) if each is not None
    ]  # fmt: skip
    proved = sum(all(each.kind != "none" for each in proofs) for proofs in rewrites.values())
    done = sum(name in opsets and all(each.kind != "none" for each in opsets[name]) for name in changes)
    lines = [
        "# Proofs of rewrites and opset changes",
        "",
        "Every graph that a test gives to a rewrite is evaluated on symbols before and after it, by code that shares nothing with the optimizer",
        "(`studies/proof_algebra.py`). Equal terms are equal bit for bit, whatever the numbers are; z3 (`fx2onnx[proofs]`) proves single",
        "elements bit for bit; polynomials of real numbers are equal up to roundings of folded weights. Written by `make proofs`.",
        "",
        describe(),
        "",
        f"- rewrites: {len(rules)}, {proved} proved on all their cases",
        f"- opset changes: {len(changes)}, {done} proved on all their cases",
        f"- planted wrong rules: {planted[0] - len(planted[1])} of {planted[0]} refuted",
        "",
        "A proof is for the shapes, attributes and weights of its cases, and for all numbers of the inputs. It assumes that a runtime takes the",
        "same sum of products in any order, and that zeros of padding change no sum. `real` bounds say how far folded weights are from exact",
        "ones, in roundings of float32 of the magnitudes that they were made of.",
        "",
        "| rewrite | before -> after | cases | proof |",
        "|---|---|---:|---|",
        *(
            line(name, rewrites[name], texts[name])
            if name in rewrites
            else f"| `{name}` | {texts[name]} | 0 | not proved: sampled |"
            for name in sorted(rules)
        ),
        "",
        "| pass | why it is right |",
        "|---|---|",
        *(f"| {name} | {why} |" for name, why in PASSES),
        "",
        "| operator and opsets | cases | proof |",
        "|---|---:|---|",
    ]
    for name in changes:
        told = (
            line(name, opsets[name], "").replace("|  | ", "| ")
            if name in opsets
            else f"| `{name}` | 0 | {SAMPLED.format(op=name.split()[0])} |"
        )
        lines.append(told)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prove all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    require("z3")
    cases, converted = rewrite_cases(), list(opset_cases())
    text = page(rows_of(cases), rows_of(converted), passed(cases, PLANTED))
    if chosen.write:
        long_tables.write_page(PAGE, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
