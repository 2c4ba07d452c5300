"""Derivations: what ``optimize`` lists is checked, and names the rules of changed nodes."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fx2onnx
from fx2onnx.base.errors import VerificationError
from fx2onnx.base.metadata import DERIVATION, derivation_text
from fx2onnx.optimize.pipelines import FUSED, PICKED, Pass, Rewrites
from fx2onnx.optimize.pipelines import LEVELS as EXPORTS
from fx2onnx.proof.certify import Certifying
from fx2onnx.proof.derivation import derivation_of
from fx2onnx.proof.nodes import OpenedFile
from fx2onnx.proof.replay import CONVERSIONS, RESIZED, ListedEdit, statements, versions
from fx2onnx.steps.opset import CHANGES
from fx2onnx.steps.stages import LEVELS as FILES

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
BEFORE = FOREIGN / "dynamo_rms_norm.onnx"
PAGES = Path(__file__).parents[2] / "docs" / "measured"
STAGES = [*(stage for levels in (EXPORTS, FILES) for level in levels.values() for stage in level), *FUSED, *PICKED]


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("derived") / "after.onnx"
    fx2onnx.optimize(BEFORE, path, verify=False)
    return path


def test_each_rule_of_the_optimizer_is_known_by_its_version() -> None:
    known = {stage.name: stage.version for stage in STAGES if isinstance(stage, Pass)}
    for stage in STAGES:
        if isinstance(stage, Rewrites):
            known |= {each.name: each.version for each in stage.rewrites}
    assert known.items() <= versions().items()
    assert set(versions()) - set(known) == {*CONVERSIONS, *RESIZED}


def test_each_rule_has_a_statement_of_its_own_and_a_row_in_the_proofs() -> None:
    """The statement ends where the rewrite does; the page of proofs says how the rewrite and each opset change is known to be right."""
    rewrites = {each.name: each for stage in STAGES if isinstance(stage, Rewrites) for each in stage.rewrites}
    for name, each in rewrites.items():
        assert {root.rpartition("::")[2] for root in each.roots} <= statements()[name].ends, name
    rows = {
        name: list(csv.reader((PAGES / f"proofs_{name}.csv").open())) for name in ("rewrite", "operator_and_opsets")
    }
    assert set(rewrites) == {row[0].strip("`") for row in rows["rewrite"][1:] if int(row[2])}
    changes = {
        f"{op} {opset - up} -> {opset - (not up)}"
        for (op, opset), pair in CHANGES.items() for up, each in zip((True, False), pair, strict=True) if each is not None
    }  # fmt: skip
    assert changes == {row[0].strip("`") for row in rows["operator_and_opsets"][1:] if row[2]}


def test_changed_nodes_have_their_rules(after: Path) -> None:
    found = fx2onnx.certify(BEFORE, after)
    assert found.rules == {"DivideByRoot": 1, "FoldWeightTranspose": 2, "MergeMatMuls": 1, "fold_constants": 1}
    assert {each.op_type: each.rules for each in found.changed} == {
        **dict.fromkeys(("MatMul", "Add", "Split"), "MergeMatMuls"), "Div": "DivideByRoot",
    }  # fmt: skip
    assert fx2onnx.certify(BEFORE, after, derivation=False).rules == {}


def _changed(after: Path, to: Path, change: Callable[[dict[str, Any]], None], *, is_whole: bool = True) -> Path:
    """The file with another derivation, whose digest fits if it ``is_whole``."""
    model = onnx.load(after)
    entry = next(each for each in model.metadata_props if each.key == DERIVATION)
    told = json.loads(entry.value)
    change(told)
    entry.value = derivation_text(told["of"], told["rules"], told["steps"]) if is_whole else json.dumps(told)
    onnx.save(model, to)
    return to


def _refused(after: Path, match: str) -> None:
    with pytest.raises(VerificationError) as raised:
        fx2onnx.certify(BEFORE, after)
    assert raised.value.code == "E304"
    assert match in f"{raised.value}: {raised.value.why}"
    assert fx2onnx.certify(BEFORE, after, derivation=False).ok


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other version": (lambda told: told["rules"].update(MergeMatMuls=2), "does not know: MergeMatMuls 2"),
    "other rule": (
        lambda told: (told["rules"].update(Unheard=1), told["steps"].append(["Unheard", "+y"])),
        "does not know: Unheard 1",
    ),
    "other file": (lambda told: told.update(of="0" * 64), "of another file"),
    "empty": (lambda told: (told["rules"].clear(), told["steps"].clear()), "no entry explains"),
    "no mark": (lambda told: told["steps"].append(["DivideByRoot", "mul_8"]), "damaged"),
    "rule not listed": (lambda told: told["rules"].pop("DivideByRoot"), "damaged"),
    "made up": (lambda told: told["steps"].append(["DivideByRoot", "+val_7"]), "it is made by MatMul"),
    "twice": (lambda told: told["steps"].append(["DivideByRoot", "+mul_8"]), "it is made by Div, not by Mul"),
    "at no value": (
        lambda told: told["steps"].append(["DivideByRoot", "+none"]),
        "at 'none': there is no such value",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_derivation_that_is_not_of_these_files_is_an_error(after: Path, tmp_path: Path, name: str) -> None:
    change, match = FORGED[name]
    _refused(_changed(after, tmp_path / "changed.onnx", change), match)


def test_every_byte_of_a_derivation_counts(after: Path, tmp_path: Path) -> None:
    """Each entry left out, moved or made up is found, of passes too."""
    steps = json.loads(next(each.value for each in onnx.load(after).metadata_props if each.key == DERIVATION))["steps"]
    assert len(steps) == 5
    for place in range(len(steps)):
        for new in ([], [[steps[place][0], "+y"]], [steps[place], ["RemoveNoop", "+y"]]):
            told = [*steps[:place], *new, *steps[place + 1 :]]
            changed = _changed(
                after, tmp_path / "changed.onnx", lambda all_, told=told: all_.update(steps=told), is_whole=False
            )  # type: ignore[misc]
            with pytest.raises(VerificationError, match="damaged"):
                fx2onnx.certify(BEFORE, changed)


@pytest.mark.long
def test_a_derivation_is_replayed_from_the_file_before(tmp_path: Path) -> None:
    """Entries left out, moved and made up, by one who makes the list whole again, are found by the statements of the rules."""
    generator, found = random.Random(0), Counter[str]()
    names = (
        "dynamo_attention",
        "torchscript_views",
        "tf2onnx_transformer",
        "paddle2onnx_attention",
        "dynamo_tanh_gelu",
    )
    for name in names:
        fx2onnx.optimize(FOREIGN / f"{name}.onnx", tmp_path / "after.onnx", verify=False)
        before, after = OpenedFile(FOREIGN / f"{name}.onnx"), OpenedFile(tmp_path / "after.onnx")
        steps, job = derivation_of(before, after).steps, Certifying(before, after)
        job.add_reals()
        job.compare({})
        assert steps
        assert not job.fault(steps)
        values = [output for node in before.proto.graph.node for output in node.output]
        for place, entry in enumerate(steps):
            assert not (entry.gone or entry.rule in statements()) or job.fault([*steps[:place], *steps[place + 1 :]])
            if entry.rule not in statements():
                continue
            moved = entry._replace(made=[generator.choice(values) for _ in entry.made])
            made_up = ListedEdit(generator.choice(sorted(statements())), [generator.choice(values)])
            found["moved"] += bool(job.fault([*steps[:place], moved, *steps[place + 1 :]]))
            found["made up"] += bool(job.fault([*steps[:place], made_up, *steps[place:]]))
            found["all"] += 1
    assert found["all"] >= 60
    assert found["moved"] >= 0.9 * found["all"]
    assert found["made up"] >= 0.9 * found["all"]


def test_a_folded_weight_of_several_layers_is_derived(tmp_path: Path) -> None:
    """Layers that share a weight, as ALBERT's: their transposes are merged, and one entry folds all."""
    layers = "\n".join(
        f"t{number} = Transpose<perm = [1, 0]>(w)\n m{number} = MatMul(x{number}, t{number})\n"
        f"i{number} = Identity(m{number})\n j{number} = Identity(i{number})\n x{number + 1} = Tanh(j{number})"
        for number in range(12)
    )
    graph = onnx.parser.parse_graph(f"net (float[N, 256] x0) => (float[N, 256] x12) {{\n{layers}\n}}")
    weight = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "before.onnx")
    fx2onnx.optimize(tmp_path / "before.onnx", tmp_path / "after.onnx", verify=False)
    after = onnx.load(tmp_path / "after.onnx")
    assert not any(node.op_type == "Transpose" for node in after.graph.node)
    assert any(entry.key == DERIVATION and "FoldWeightTranspose" in entry.value for entry in after.metadata_props)
    assert fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "after.onnx").ok


def test_a_file_that_another_tool_changed_is_no_result_of_its_derivation(after: Path, tmp_path: Path) -> None:
    for change, match in (
        (lambda graph: graph.node[0].CopyFrom(onnx.helper.make_node("Mul", [*graph.node[0].input][:1] * 2, graph.node[0].output)), "no entry explains"),
        (lambda graph: graph.node.insert(0, onnx.helper.make_node("Relu", [graph.input[0].name], ["new"])), "no entry makes 'new', of Relu"),
    ):  # fmt: skip
        model = onnx.load(after)
        change(model.graph)  # type: ignore[no-untyped-call]
        onnx.save(model, tmp_path / "other.onnx")
        with pytest.raises(VerificationError, match="does not lead to it") as raised:
            fx2onnx.certify(BEFORE, tmp_path / "other.onnx")
        assert match in raised.value.why


def test_files_without_notes_have_none(tmp_path: Path) -> None:
    fx2onnx.optimize(BEFORE, tmp_path / "plain.onnx", verify=False, metadata="none")
    assert DERIVATION not in {entry.key for entry in onnx.load(tmp_path / "plain.onnx").metadata_props}
    assert fx2onnx.certify(BEFORE, tmp_path / "plain.onnx").ok
