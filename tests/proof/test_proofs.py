"""Proofs of rewrites on symbols: right rules are proved, and wrong ones are not."""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from fx2onnx.aten_map.table.families import read_families
from fx2onnx.base.errors import UserError
from studies.proofs import passed, prove, rows_of, wrong
from studies.proving.arrays import by_arrays, by_values, units
from studies.proving.cases import Case, file_cases
from studies.proving.decompositions import by_symbols, row_of
from tests.ops.harness import build, call_of
from tests.proof.test_equations import graph_of, node

W = np.arange(6, dtype=np.float32).reshape(3, 2)
ONE = np.float32(1)
EQUAL: list[tuple[str, list[onnx.NodeProto], list[onnx.NodeProto], str]] = [
    ("gemm", [node("MatMul", "x", "w", "m"), node("Add", "m", "c", "y")], [node("Gemm", "x", "w", "c", "y")], "exact"),
    ("scale", [node("Mul", "x", "c", "m"), node("MatMul", "m", "w", "y")], [node("MatMul", "x", "w", "m"), node("Mul", "m", "c", "y")], "real"),
    ("softmax", [node("Softmax", "x", "y")], [node("Exp", "x", "e"), node("ReduceSum", "e", "last", "s"), node("Div", "e", "s", "y")], "real"),
    ("gelu", [node("Gelu", "x", "y")], [node("Gelu", "x", "y", approximate="tanh")], "none"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "kind"), [each[1:] for each in EQUAL], ids=[each[0] for each in EQUAL])
def test_kinds_of_proof(before: list[onnx.NodeProto], after: list[onnx.NodeProto], kind: str) -> None:
    pytest.importorskip("z3", reason="z3 is an extra: pip install 'fx2onnx[proofs]'")
    constants = {"w": W, "c": np.float32(2), "last": np.array([1], np.int64)}
    one, other = (
        graph_of(nodes, [2, 3], **{k: v for k, v in constants.items() if any(k in each.input for each in nodes)})
        for nodes in (before, after)
    )
    assert prove(one, other, {}).kind == kind


def test_z3_knows_signs_of_zero() -> None:
    pytest.importorskip("z3", reason="z3 is an extra: pip install 'fx2onnx[proofs]'")
    same = graph_of([node("Identity", "x", "y")], [2])
    for op, number, kind in (("Mul", 1.0, "z3"), ("Add", -0.0, "z3"), ("Add", 0.0, "real"), ("Mul", 1.5, "none")):
        made = graph_of([node(op, "x", "c", "y")], [2], c=np.float32(number))
        assert prove(made, same, {}).kind == kind, (op, number)


@pytest.mark.long
def test_rules_of_files_are_proved_and_wrong_ones_refuted() -> None:
    pytest.importorskip("z3", reason="z3 is an extra: pip install 'fx2onnx[proofs]'")
    cases = file_cases()
    proofs = rows_of(cases)
    assert len(proofs) == 7
    assert all(each.kind != "none" for each in itertools.chain(*proofs.values())), proofs
    count, through = passed(cases, 20)
    assert count >= 15
    assert through == []


def test_without_z3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = graph_of([node("Mul", "x", "c", "y")], [2], c=ONE)
    with pytest.raises(UserError, match="z3") as raised:
        prove(made, graph_of([node("Identity", "x", "y")], [2]), {})
    assert raised.value.code == "E602"
    assert "fx2onnx[proofs]" in str(raised.value.next)


def test_a_case_keeps_its_sizes() -> None:
    made = graph_of([node("Relu", "x", "y")], ["batch", 3])
    assert rows_of([Case(("same",), made, made, {"batch": 2})])["same"][0].kind == "exact"


PAGES = Path(__file__).parents[2] / "docs" / "measured"


def test_each_entry_of_the_table_has_a_row_in_the_proofs() -> None:
    """One that writes more than one node is proved, or has its reason: `make proofs` writes the rows."""
    rows = list(csv.reader((PAGES / "proofs_decompositions_overload.csv").open()))[1:]
    entries = {name for kinds in read_families().values() for name in kinds.get("real", ()) if name.startswith("aten.")}
    assert entries == {row[0].strip("`") for row in rows}
    assert all(row[2] or len(row[3]) > 30 for row in rows)
    several = [row for row in rows if row[1] not in ("", "0", "1")]
    assert sum(bool(row[2]) for row in several) >= 0.8 * len(several)


SYMBOLIC = (
    *("var_mean.correction", "addmv.default", "baddbmm.default", "silu.default", "glu.default", "addcdiv.default"),
    *("gelu_backward.default", "rsub.Scalar"),
)


@pytest.mark.long
@pytest.mark.parametrize("name", SYMBOLIC)
def test_decompositions_are_proved_on_symbols_and_wrong_ones_refuted(name: str) -> None:
    packet, _, overload = name.partition(".")
    found = row_of(getattr(getattr(torch.ops.aten, packet), overload), "")
    call, model, kind = next(each for each in found.proved if each[2] in ("exact", "real"))
    proto = onnx.load_from_string(model.proto)
    made = list(itertools.islice(wrong(Case((name,), proto, proto)), 2))
    assert made
    assert by_symbols(call, proto)[0] == kind
    assert [by_symbols(call, each)[0] for each in made] == [""] * len(made)


@pytest.mark.long
def test_a_decomposition_without_polynomials_is_compared_on_all_numbers() -> None:
    call = call_of(torch.ops.aten.logit.default, torch.rand(3), 0.1)
    sets, wrong = by_values(call, build(call))
    assert not wrong
    assert sets[0] == "all numbers of float16"


@pytest.mark.long
def test_linear_results_are_compared_on_arrays_of_one_number() -> None:
    overload, gradient, x = (
        torch.ops.aten.replication_pad2d_backward.default,
        torch.rand(1, 1, 2, 4),
        torch.rand(1, 1, 2, 2),
    )
    call, other = (call_of(overload, gradient, x, pads) for pads in ([1, 1, 0, 0], [2, 0, 0, 0]))
    model = build(call)
    arrays = list(units(call, model))
    assert sorted(float(each[0].sum()) for each in arrays) == [0, *[1] * 8]
    assert by_arrays(call, model, iter(arrays)) == (9, "")
    assert by_arrays(other, model, iter(arrays))[0] == 0
