"""Derivations: what ``optimize`` lists is checked, and names the rules of changed nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import fx2onnx
from fx2onnx.base.errors import VerificationError
from fx2onnx.base.metadata import DERIVATION
from fx2onnx.optimize.pipelines import FUSED, PICKED, Pass, Rewrites
from fx2onnx.optimize.pipelines import LEVELS as EXPORTS
from fx2onnx.proof.derivation import RULES
from fx2onnx.steps.stages import LEVELS as FILES

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
BEFORE = FOREIGN / "dynamo_rms_norm.onnx"


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("derived") / "after.onnx"
    fx2onnx.optimize(BEFORE, path, verify=False)
    return path


def test_each_rule_of_the_optimizer_is_known_by_its_version() -> None:
    stages = [stage for levels in (EXPORTS, FILES) for level in levels.values() for stage in level]
    stages += [*FUSED, *PICKED]
    known = {stage.name: stage.version for stage in stages if isinstance(stage, Pass)}
    for stage in stages:
        if isinstance(stage, Rewrites):
            known |= {each.name: each.version for each in stage.rewrites}
    assert known.items() <= RULES.items()
    conversions = {"fix_sizes", "make_dynamic", "convert_opset", "quantize", "lower_precision", "fit_to_target"}
    assert set(RULES) - set(known) == conversions


def test_changed_nodes_have_their_rules(after: Path) -> None:
    found = fx2onnx.certify(BEFORE, after)
    assert found.rules == {"DivideByRoot": 1, "FoldWeightTranspose": 2, "MergeMatMuls": 1, "fold_constants": 1}
    assert {each.op_type: each.rules for each in found.changed} == {
        **dict.fromkeys(("MatMul", "Add", "Split"), "MergeMatMuls"), "Div": "DivideByRoot",
    }  # fmt: skip
    assert fx2onnx.certify(BEFORE, after, derivation=False).rules == {}


def _other_version(told: dict[str, Any]) -> None:
    told["rules"]["MergeMatMuls"] = 2


def _other_rule(told: dict[str, Any]) -> None:
    told["rules"]["Unheard"] = 1
    told["steps"].append(["Unheard", "y"])


def _other_file(told: dict[str, Any]) -> None:
    told["of"] = "0" * 64


def _unlisted(told: dict[str, Any]) -> None:
    del told["rules"]["DivideByRoot"]


def _no_list(told: dict[str, Any]) -> None:
    told["steps"] = 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_other_version, "does not know: MergeMatMuls 2"), (_other_rule, "does not know: Unheard 1"),
        (_other_file, "of another file"), (_unlisted, "damaged"), (_no_list, "damaged"),
    ],
)  # fmt: skip
def test_a_derivation_that_is_not_of_these_files_is_an_error(
    after: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], match: str
) -> None:
    model = onnx.load(after)
    entry = next(each for each in model.metadata_props if each.key == DERIVATION)
    told = json.loads(entry.value)
    change(told)
    entry.value = json.dumps(told)
    onnx.save(model, tmp_path / "changed.onnx")
    with pytest.raises(VerificationError, match=match) as raised:
        fx2onnx.certify(BEFORE, tmp_path / "changed.onnx")
    assert raised.value.code == "E304"
    assert fx2onnx.certify(BEFORE, tmp_path / "changed.onnx", derivation=False).ok


def test_files_without_notes_have_none(tmp_path: Path) -> None:
    fx2onnx.optimize(BEFORE, tmp_path / "plain.onnx", verify=False, metadata="none")
    assert DERIVATION not in {entry.key for entry in onnx.load(tmp_path / "plain.onnx").metadata_props}
    assert fx2onnx.certify(BEFORE, tmp_path / "plain.onnx").ok
