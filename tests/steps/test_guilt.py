"""A rewrite that changes the numbers is found, named and left out; a file that differs is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir
import pytest

import fx2onnx
from fx2onnx.base.errors import InternalError, UserError, VerificationError
from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.pipelines import Pass, Rewrites
from fx2onnx.optimize.rewrite import Match, Rewrite, Why
from fx2onnx.steps import opened, pipeline, stages
from tests.steps.graphs import GRAPHS, text

CHAIN = "g (float[N, 4] x) => (float[N, 4] y) { a = Sin (x) i = Identity (a) b = Cos (i) j = Identity (b) [third] c = Tanh (j) k = Identity (c) y = Exp (k) }"


class Wrong(Rewrite[Match]):
    """``Tanh(x)`` -> ``Sin(x)``, which is not so."""

    roots: ClassVar = ("Tanh",)

    def match(self, node: ir.Node) -> Match | Why:
        return Match()

    def build(self, op: Emit, m: Match) -> ir.Value:
        value = next(node.inputs[0] for node in self.graph if node.op_type == "Tanh")
        result: ir.Value = op.node("Sin", value, outputs=op.result)
        return result

    graph: Any = None


class Failing(Wrong):
    def build(self, op: Emit, m: Match) -> ir.Value:
        raise InternalError("E900", "Failing turns float into int")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Add a rewrite to the levels of files."""

    def plant(rewrite: Wrong) -> None:
        monkeypatch.setitem(stages.LEVELS, 2, (*stages.LEVELS[2], Rewrites("planted", (rewrite,))))
        fresh = opened.Opened.fresh

        def remember(self: opened.Opened) -> ir.Model:
            model = fresh(self)
            type(rewrite).graph = model.graph
            return model

        monkeypatch.setattr(opened.Opened, "fresh", remember)

    return plant


def test_the_guilty_rewrite_is_named_and_left_out(planted: Any, tmp_path: Path) -> None:
    planted(Wrong())
    result = fx2onnx.optimize_model(text(CHAIN), tmp_path / "out.onnx")
    assert result.verified
    assert [(each.name, each.where) for each in result.left_out] == [("Wrong", "third")]
    assert "differs" in result.left_out[0].why
    assert result.after.operators == {"Sin": 1, "Cos": 1, "Tanh": 1, "Exp": 1}
    assert result.edits["RemoveNoop"] == 3
    assert any("Wrong was left out" in warning for warning in result.warnings)


def test_a_rewrite_that_fails_is_left_out(planted: Any) -> None:
    planted(Failing())
    result = fx2onnx.optimize_model(text(CHAIN))
    assert result.verified
    assert result.after.nodes == 4
    assert result.left_out[0].name == "Failing"


def test_without_verification_nothing_is_found(planted: Any) -> None:
    planted(Wrong())
    result = fx2onnx.optimize_model(text(CHAIN), verify=False)
    assert result.verified is None
    assert "Tanh" not in result.after.operators


@pytest.mark.long
def test_a_guilty_pass_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: ir.Model) -> int:
        for node in model.graph:
            if node.op_type == "Tanh":
                node.op_type = "Sin"
                return 1
        return 0

    spoiling = Pass("merge_equal_weights", spoil)
    levels = [spoiling if stage is stages.WEIGHTS else stage for stage in stages.LEVELS[2]]
    monkeypatch.setitem(stages.LEVELS, 2, tuple(levels))
    result = fx2onnx.optimize_model(text(CHAIN))
    assert result.verified
    assert [each.name for each in result.left_out] == ["merge_equal_weights"]


def test_a_file_that_differs_whatever_is_left_out_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh = opened.Opened.fresh

    def spoiled(self: opened.Opened) -> ir.Model:
        model = fresh(self)
        next(node for node in model.graph if node.op_type == "Tanh").op_type = "Sin"
        return model

    monkeypatch.setattr(opened.Opened, "fresh", spoiled)
    with pytest.raises(VerificationError, match="differs from its input before anything is rewritten") as caught:
        fx2onnx.optimize_model(text(CHAIN), tmp_path / "out.onnx")
    assert caught.value.code == "E501"
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_many_edits_is_found() -> None:
    trace = stages.StageTrace(steps=[("fold", 3), ("fuse", 40), ("dead", 0), ("fuse", 5)])
    for guilty in [(1, 1), (1, 17), (1, 40), (0, 2), (3, 5)]:
        asked = []

        def is_wrong(limit: stages.Limit, guilty: tuple[int, int] = guilty, asked: list[Any] = asked) -> bool:
            asked.append(limit)
            return (limit.steps, limit.edits) >= guilty or limit.steps > guilty[0]

        assert stages.guilty_step(trace, is_wrong) == stages.Limit(*guilty)
        assert len(asked) <= 10
    assert stages.guilty_step(trace, lambda _: True) is None


def test_a_file_that_no_engine_runs_is_written_and_said_to_be_unverified(tmp_path: Path) -> None:
    proto = text(
        "g (float[N, 4] x) => (float[N, 4] y) { i = Identity (x) y = some.where.Magic (i) }", extra=', "some.where" : 1'
    )
    result = fx2onnx.optimize_model(proto, tmp_path / "out.onnx")
    assert result.verified is None
    assert any("no engine runs it" in warning for warning in result.warnings)
    assert result.after.operators == {"some.where::Magic": 1}
    assert (tmp_path / "out.onnx").exists()


def test_engines_are_chosen() -> None:
    result = fx2onnx.optimize_model(GRAPHS["shape_chain"](), engines=["runner"])
    assert {row.engine for row in (result.comparison.rows if result.comparison else [])} == {"runner"}
    with pytest.raises(UserError, match="unknown engine"):
        fx2onnx.optimize_model(GRAPHS["shape_chain"](), engines=["magic"])


def test_several_sizes_and_seeds_are_compared() -> None:
    result = fx2onnx.optimize_model(GRAPHS["shape_chain"]())
    assert result.comparison is not None
    tried = result.comparison.tried
    assert len({tuple(each.sizes.items()) for each in tried}) == 3
    assert {each.name.partition(",")[0] for each in tried} == {"seed 0", "seed 1"}
    assert {row.engine for row in result.comparison.rows} == {"runner", "onnxruntime"}


def test_large_weights_are_compared_in_the_runner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "free_bytes", lambda: 100)
    result = fx2onnx.optimize_model(GRAPHS["equal_weights"]())
    assert {row.engine for row in (result.comparison.rows if result.comparison else [])} == {"runner"}
    assert any("runner alone" in warning for warning in result.warnings)
