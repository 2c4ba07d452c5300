"""Proofs of the optimizer's rewrites and of the changes between opsets: ``make proofs`` writes docs/measured/proofs.md.

Every graph that a test gives to a rewrite is evaluated on symbols before and after it (``proving/graphs.py``): equal terms are equal bit
for bit; else z3 proves elements equal bit for bit in float16, float32, integers or bools; else both are compared as polynomials of real
numbers, whose factors may be apart by roundings of folded weights. Wrong rules are planted by edits of what a rewrite left. Decompositions
of the table are compared with PyTorch's definitions, or with eager PyTorch on all numbers (``proving/decompositions.py``).
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fx2onnx.base.packages import require
from fx2onnx.steps.opset import CHANGES
from studies.proving.algebra import Exact, Poly, Real, Unproved
from studies.proving.cases import Case, opset_cases, rewrite_cases
from studies.proving.decompositions import examined
from studies.proving.elements import equal_in_z3
from studies.proving.operators import terms_of
from tools import long_tables

PAGE = Path("docs/measured/proofs.md")
MOST = 8.0
"""Roundings that factors may be apart: folds of a few weights."""
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
    """The result of a proof that two graphs are equal."""

    kind: str
    roundings: float = 0.0
    why: str = ""


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
        if equal_in_z3(algebra, differing):
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


# -- wrong rules ------------------------------------------------------------------------------------------------------
def wrong(case: Case) -> Iterator[onnx.ModelProto]:
    """Graphs as a rule leaves them that has one constant, axis, attribute, operand or operator wrong, where it computes something else."""
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
            a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
            for a, b in zip(got, want, strict=True)
        ):
            yield made


def passed(cases: list[Case], most: int) -> tuple[int, list[str]]:
    """Return how many wrong rules were planted, over all rules in turn, and which were proved all the same."""
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


# -- the page ---------------------------------------------------------------------------------------------------------
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


def page(
    rewrites: dict[str, list[Proof]],
    opsets: dict[str, list[Proof]],
    planted: tuple[int, list[str]],
    decomposed: list[dict[str, Any]],
) -> str:
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
    known, wrong_ones, through = (sum(each[name] for each in decomposed) for name in ("proved", "planted", "through"))
    several = sum(each["nodes"] > 1 for each in decomposed)
    lines = [
        "# Proofs of rewrites, opset changes and decompositions",
        "",
        "Every graph that a test gives to a rewrite is evaluated on symbols before and after it, by code that shares nothing with the optimizer",
        "(`studies/proving`). Equal terms are equal bit for bit, whatever the numbers are; z3 (`fx2onnx[proofs]`) proves single",
        "elements bit for bit; polynomials of real numbers are equal up to roundings of folded weights. Written by `make proofs`.",
        "",
        describe(),
        "",
        f"- rewrites: {len(rules)}, {proved} proved on all their cases",
        f"- opset changes: {len(changes)}, {done} proved on all their cases",
        f"- planted wrong rules: {planted[0] - len(planted[1])} of {planted[0]} refuted",
        f"- decompositions (overloads of ATen that become more than one node): {several}, {known} proved on their cases",
        f"- planted wrong decompositions: {wrong_ones - through} of {wrong_ones} refuted",
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
    lines += [
        "",
        "## Decompositions of the table",
        "",
        "Calls are drawn from the schema of each overload of ATen, of at most 24 elements, at opset 20. A call that becomes more than one node is",
        "proved in the first of these ways that applies:",
        "",
        "- on symbols, against PyTorch's own decomposition of the call: the same terms, or the same polynomials of real numbers. Assumed: what",
        "  PyTorch's decomposition says is what its kernel computes, no divisor is 0, and no number is NaN; integers are those of the call.",
        "- on all numbers, where each element is computed by itself: all of float16 (as float32), int8, uint8 and bool; all pairs of finite and",
        "  infinite numbers of float8, of int8, uint8 and bool; all triples of 21 numbers. Both engines are within the tolerance of eager PyTorch.",
        "- on all arrays of a few numbers (two to four, such as -1.5, 0, 1 and 2) of the call's shape, at most 1,024, in both engines.",
        "- at zeros and all arrays of one 1, in both engines, of tensors in which PyTorch's results are linear, and so is the graph. Assumed: both",
        "  are, as their definitions say.",
        "",
        "Others have a reason. All decompositions are compared with eager PyTorch on the operator database and on drawn calls, too.",
        "",
        "| overload | nodes | cases | proof |",
        "|---|---:|---:|---|",
        *(each["line"] for each in decomposed),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prove all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    require("z3")
    cases, converted = rewrite_cases(), list(opset_cases())
    text = page(rows_of(cases), rows_of(converted), passed(cases, PLANTED), examined())
    if chosen.write:
        long_tables.write_page(PAGE, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
