"""What a graph takes for true, as objects: equality, lines, JSON, and the way through pickle into another process."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

import fx2onnx
from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.assumptions import Assumed, Assumption, Guard, Specialization, described, is_limit
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation

N, M = Dim.symbol("n"), Dim.symbol("m")
HERE = SourceLocation("model.py", 7, "forward")
ABOVE, BELOW = Relation("gt", (N, 2)), Relation("lt", (M // 4, N + 1))
LINES: list[tuple[Assumed, str]] = [
    (Guard(ABOVE, HERE, by_user=True), "n > 2   (model.py:7, in forward)"),
    (Guard(ABOVE.negated()), "n <= 2"),
    (Guard(Relation("or", (ABOVE, BELOW))), "(n > 2) or ((m // 4) < n + 1)"),
    (Guard(Relation("or", (ABOVE, BELOW)).negated()), "not ((n > 2) or ((m // 4) < n + 1))"),
    (Guard(Relation("eq", (ABOVE, BELOW))), "(n > 2) == ((m // 4) < n + 1)"),
    (Specialization(N, 4, HERE), "n == 4   (model.py:7, in forward)"),
    (Specialization(N, 2 * M), "n == 2*m"),  # type: ignore[arg-type]
    (Assumption("%any is false", HERE, "assertion"), "asserted: %any is false   (model.py:7, in forward)"),
    (Assumption("boxes are kept", HERE), "boxes are kept   (model.py:7, in forward)"),
    (Assumption("boxes are kept"), "boxes are kept"),
]


@pytest.mark.parametrize(("assumed", "line"), LINES, ids=str)
def test_lines(assumed: Assumed, line: str) -> None:
    assert str(assumed) == line
    assert repr([assumed]) == f"[<{type(assumed).__name__} {line}>]", "as a list of them is printed"


def test_equal_are_only_those_that_say_the_same_of_the_same_place() -> None:
    alike = [*(assumed for assumed, _ in LINES), Guard(ABOVE, HERE), Assumption("n > 2"), Specialization(N, 4)]
    assert len(set(alike)) == len(alike)
    for assumed in alike:
        again = copy.deepcopy(assumed)
        assert again == assumed
        assert hash(again) == hash(assumed)


@pytest.mark.parametrize("relation", [ABOVE, Relation("and", (ABOVE, BELOW)), Relation("ne", (N, M))], ids=str)
def test_a_relation_is_its_negations_negation(relation: Relation) -> None:
    assert relation.negated() != relation
    assert relation.negated().negated() == relation
    assert relation.negated().symbols() == relation.symbols()


READER = """
import pickle, sys
from fx2onnx.sizes.assumptions import Guard
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.expr import Dim

(found,) = pickle.load(sys.stdin.buffer)
assert found in {Guard(Relation("lt", (Dim.symbol("m") // 4, Dim.symbol("n") + 1)))}, found
"""


def test_another_process_reads_what_this_one_wrote() -> None:
    """Hashes of texts are not the same there."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=pickle.dumps([Guard(BELOW)]),
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": seed},
    )
    assert done.returncode == 0, done.stderr


def test_parts_as_json() -> None:
    where = {"file": "model.py", "line": 7, "function": "forward"}
    odd = Specialization(Dim.symbol('a == 4\n   ("b'), 3, HERE)
    assert [json.loads(json.dumps(described(one))) for one in (LINES[0][0], odd, LINES[-1][0])] == [
        {"kind": "guard", "is_limit": True, "expression": "n > 2", "where": where},
        {"kind": "specialization", "is_limit": True, "expression": 'a == 4\n   ("b == 3', "where": where},
        {"kind": "note", "is_limit": True, "expression": "boxes are kept", "where": None},
    ]


class Asking(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(y > 0)
        x = x * 2 if x.shape[0] > 2 else x
        return torch.stack([x[:, place] + y for place in range(x.shape[1])])


class Squared(torch.nn.Module):
    """PyTorch's product asks whether there is one row, and gives the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.unfold(1, 4, 2)
        return h @ h.transpose(1, 2)


def test_printed_assumptions_are_those_that_limit_the_file() -> None:
    report = fx2onnx.export(
        Squared(), (torch.ones(2, 9),), dynamic_shapes=({0: "batch", 1: "length"},), verify=True
    ).report
    assert any(isinstance(each, Guard) for each in report.assumptions)
    assert [is_limit(each) for each in report.assumptions if isinstance(each, Guard)] == [False] * (
        len(report.assumptions) - 1
    )
    lines = [line for line in str(report).splitlines() if line.startswith("assumed")]
    assert [line.partition("   (")[0] for line in lines] == ["assumed: length >= 4"]


@pytest.mark.long
def test_a_report_has_objects_and_its_json_their_lines_and_parts() -> None:
    arguments = (torch.ones(4, 3), torch.ones(1))
    auto = torch.export.Dim.AUTO
    shapes = {"x": {0: auto, 1: auto}, "y": None}
    report = fx2onnx.export(Asking(), arguments, dynamic_shapes=shapes, data_branches="error").report
    fixed, asserted, guard = report.assumptions
    assert isinstance(fixed, Specialization)
    assert (fixed.size.as_symbol(), fixed.value) == ("x_dim_1", 3)
    assert isinstance(asserted, Assumption)
    assert asserted.kind == "assertion"
    assert isinstance(guard, Guard)
    assert (guard.relation, guard.by_user) == (Relation("gt", (Dim.symbol("x_dim_0"), 2)), True)

    fields = json.loads(json.dumps(report.as_dict()))
    assert fields["assumptions"] == [str(fixed), str(asserted), str(guard)]
    assert [line.partition("   (")[0] for line in fields["assumptions"]][::2] == ["x_dim_1 == 3", "x_dim_0 > 2"]
    parts = fields["assumption_details"]
    assert [part["kind"] for part in parts] == ["specialization", "assertion", "guard"]
    assert [part["where"]["function"] for part in parts] == ["forward"] * 3
    assert parts[2]["expression"] == "x_dim_0 > 2"
    assert all(part["is_limit"] for part in parts)
    assert set(fields) == set(vars(report)) | {"assumption_details", "rung", "rung_reason"}
