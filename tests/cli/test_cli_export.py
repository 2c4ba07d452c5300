"""``fx2onnx export`` and ``fx2onnx verify`` from end to end on small models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import onnx
import pytest
import torch

from fx2onnx import ExportResult, Report
from fx2onnx.capture.driver import as_module
from fx2onnx.cli import job as job_module
from fx2onnx.cli import verify as verdict_module
from fx2onnx.sizes.assumptions import Assumed, Assumption, Guard, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sources import Source
from fx2onnx.verify import Row, Verdict
from tests.cli.support import factories, invoke

_MODELS = """
import torch

class Reading(torch.nn.Module):
    def forward(self, x):
        return x * len(str(x.sum().item()))

class Repeated(torch.nn.Module):
    def forward(self, x, times):
        for _ in range(int(times)):
            x = x.relu() + 1
        return x

def repeated(): return Repeated(), (torch.randn(2, 3), torch.tensor(2))
def linear(): return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.randn(2, 3)
def reading(): return Reading(), torch.randn(2, 3)
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, cli_models=_MODELS):
        yield tmp_path


def shape_of(path: Path | str, name: str = "input") -> list[int | str]:
    (value,) = [value for value in onnx.load(path).graph.input if value.name == name]
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_export_writes_a_checked_file_and_a_summary(tmp_path: Path) -> None:
    done = invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", "--report", "r.json")
    assert done.exit_code == 0, done.output
    onnx.checker.check_model(onnx.load("m.onnx"), full_check=True)
    assert all(word in done.stdout for word in ("m.onnx", "cli_models:linear", "input", "ONNX nodes"))
    report = json.loads(Path("r.json").read_text())
    assert (report["ok"], report["verify"], report["report"]["nodes_onnx"]) == (True, None, 2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["cli_models.py", "m.onnx", "r.json"]


def test_json_is_the_only_thing_on_stdout() -> None:
    done = invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", "--json")
    summary = json.loads(done.stdout)
    assert (summary["source"], summary["file"], summary["ok"]) == ("cli_models:linear", "m.onnx", True)
    assert done.stderr == ""


def test_quiet_says_nothing() -> None:
    assert invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", "--quiet").output == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [2, 3]),
        (["--dynamic", "input:0=rows"], ["rows", 3]),
        (["--dynamic", "none"], [2, 3]),
    ],
)
def test_dynamic_dims_of_a_factory(arguments: list[str], expected: list[object]) -> None:
    done = invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", *arguments)
    assert done.exit_code == 0, done.output
    assert shape_of("m.onnx") == expected


@pytest.mark.long
def test_a_number_that_a_loop_takes_need_not_be_baked() -> None:
    done = invoke("export", "cli_models:repeated", "-o", "m.onnx", "--bake", "auto")
    assert done.exit_code == 0, done.output
    assert [value.name for value in onnx.load("m.onnx").graph.input] == ["x", "times"]


def test_an_input_is_baked_and_the_verdict_recorded() -> None:
    done = invoke("export", "cli_models:repeated", "-o", "m.onnx", "--bake", "times")
    assert done.exit_code == 0, done.output
    model = onnx.load("m.onnx")
    assert [value.name for value in model.graph.input] == ["x"]
    model.metadata_props.clear()  # so that the file does not say what was baked
    onnx.save(model, "m.onnx")
    assert "no input for it" in invoke("verify", "m.onnx", "cli_models:repeated").output
    assert not onnx.load("m.onnx").metadata_props
    done = invoke("verify", "m.onnx", "cli_models:repeated", "--bake", "times", "--record")
    assert done.exit_code == 0, done.output
    (entry,) = onnx.load("m.onnx").metadata_props
    assert (entry.key, json.loads(entry.value)["baked"]) == ("fx2onnx.verdict", ["times"])


_GENERATES = ("hf:nowhere", "--task", "text-generation-with-past")
_MISPLACED = [
    *(("export-folder", option, ("export", "export-many")) for option in ("--bake x", "--capture fake")),
    ("export-folder", "--dynamic none", ("export", "export-many", "export-training")),
    *(("export-folder", option, ("export-training",)) for option in ("--loss mse", "--optimizer sgd", "--learning-rate 1")),
    *(("export", option, ("export-many",)) for option in ("--limit 9", "--again", "--cluster dask://localhost:1")),
    *((name, "--cache static", ("export-folder",)) for name in ("export", "export-many", "export-training")),
    *(
        ("export-training", option, ("export", "export-many"))
        for option in (
            "--target onnxruntime", "--fused", "--no-fused", "--functions all", "--io float32", "--keep x", "--quantize int8",
            "--block 32", "--keep-worst 1", "--method gptq", "--no-accuracy", "--no-checks", "--bake x", "--capture fake",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("command", "option", "others"), _MISPLACED)
def test_an_option_of_another_export_command_is_named(command: str, option: str, others: tuple[str, ...]) -> None:
    done = invoke(command, "zoo:mnist_cnn", "-o", "out", *option.split())
    assert done.exit_code == 2
    assert f"[E001] {option.split()[0]} is no option of fx2onnx {command}\n" in done.stderr
    assert all(f"fx2onnx {other}" in done.stderr for other in others)
    assert not Path("out").exists()


def test_an_option_that_asks_for_nothing_is_none() -> None:
    done = invoke("export", *_GENERATES, "-o", "out", "--dynamic", "default", "--capture", "auto")
    assert "has no meaning" not in done.output
    assert "nowhere" in done.output


@pytest.mark.parametrize(("word", "expected"), [("default", ["batch", 1, 28, 28]), ("none", [2, 1, 28, 28])])
def test_dynamic_dims_of_a_zoo_model(word: str, expected: list[object]) -> None:
    done = invoke("export", "zoo:mnist_cnn", "-o", "m.onnx", "--no-verify", "--dynamic", word)
    assert done.exit_code == 0, done.output
    assert shape_of("m.onnx", "x") == expected


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_size_that_nobody_named_is_fixed_only_where_the_module_needs_its_number(
    monkeypatch: pytest.MonkeyPatch, is_fixed: bool
) -> None:
    weight = torch.randn(3, 3)

    def unrolled(x: torch.Tensor) -> torch.Tensor:
        rows = [x[:, place] * place for place in range(x.shape[1])]
        return torch.stack(rows, 1) @ weight if is_fixed else torch.stack(rows, 1)

    proposed = {"x": {0: "batch", 1: "sequence"}}
    source = Source("unrolled", as_module(unrolled), (torch.randn(2, 3),), dynamic_shapes=proposed)
    monkeypatch.setattr(job_module, "resolve_source", lambda *_, **__: source)
    done = invoke("export", "unrolled", "-o", "m.onnx", "--json", "--no-verify")
    assert done.exit_code == 0, done.output
    assert shape_of("m.onnx", "x") == ["batch", 3 if is_fixed else "sequence"]
    warnings = json.loads(done.stdout)["report"]["warnings"]
    if is_fixed:
        assert warnings[0].startswith("the size sequence is fixed: sequence == 3   (")
        assert "in unrolled" in warnings[0]
    assert len(warnings) == is_fixed
    named = invoke("export", "unrolled", "-o", "m.onnx", "--no-verify", "--dynamic", "x:1=sequence")
    assert named.exit_code == (2 if is_fixed else 0), named.output


@pytest.mark.parametrize(
    ("assumed", "is_fixed"),
    [
        (Specialization(Dim.symbol("n"), 4), True),
        (Specialization(Dim.symbol("n"), 2 * Dim.symbol("m")), False),  # type: ignore[arg-type]
        (Specialization(Dim.symbol("n == 4"), 4), False),
        (Guard(Relation("gt", (Dim.symbol("n == 4\n"), 4))), False),
        (Assumption("n == 4"), False),
    ],
    ids=str,
)
def test_only_a_size_that_became_a_number_is_fixed(assumed: Assumed, is_fixed: bool) -> None:
    result = SimpleNamespace(report=Report(assumptions=[assumed]))
    expected = {"n": assumed} if is_fixed else {}
    assert job_module._fixed_sizes(cast(ExportResult, result), {"x": {0: "n", 1: "(", 2: "n"}}) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist_cnn_same", "t5_tiny"])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_zoo_model_is_exported_verified_and_run_at_another_size(name: str) -> None:
    done = invoke("export", f"zoo:{name}", "-o", "m.onnx")
    assert done.exit_code == 0, done.output
    dims = [text for dim in ("batch=3", "sequence=5", "decoder_sequence=4") for text in ("--dim", dim)]
    ran = {
        engine: invoke("run", "m.onnx", *(dims if name == "t5_tiny" else dims[:2]), "--engine", engine, "--json")
        for engine in ("runner", "onnxruntime")
    }
    assert all(result.exit_code == 0 for result in ran.values()), ran
    first = {engine: json.loads(result.stdout)["outputs"][0] for engine, result in ran.items()}
    assert first["runner"]["shape"] == first["onnxruntime"]["shape"]
    assert first["runner"]["shape"][0] == 3
    assert first["runner"]["first"] == pytest.approx(first["onnxruntime"]["first"], rel=1e-4, abs=1e-5)


def test_opset_is_the_one_asked_for() -> None:
    assert invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", "--opset", 17).exit_code == 0
    assert [entry.version for entry in onnx.load("m.onnx").opset_import if entry.domain == ""] == [17]


def test_a_failed_export_leaves_the_previous_file_alone(tmp_path: Path) -> None:
    Path("m.onnx").write_bytes(b"previous")
    done = invoke("export", "cli_models:reading", "-o", "m.onnx", "--no-verify", "--report", "r.json")
    assert done.exit_code == 2
    assert "[E104]" in done.stderr
    assert "cli_models.py" in done.stderr
    assert "Traceback" not in done.output
    assert Path("m.onnx").read_bytes() == b"previous"
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["cli_models.py", "m.onnx"]


@pytest.mark.parametrize("arguments", [["--opset", "3"], ["--opset", "99"]])
def test_an_opset_that_does_not_exist_is_a_users_error(arguments: list[str]) -> None:
    done = invoke("export", "cli_models:linear", "-o", "m.onnx", "--no-verify", *arguments)
    assert done.exit_code == 2, done.output
    assert not Path("m.onnx").exists()


def finding(engine: str = "runner", *, ok: bool = False) -> Row:
    return Row(engine, "output", 0.0 if ok else 0.5, 1e-6, ok, "sample")


BAD = Verdict(rows=[finding(), finding("onnxruntime", ok=True)])
GOOD = Verdict(rows=[finding(ok=True)])


class TestVerdict:
    """What the commands make of a verdict, with the verdict put in their hands."""

    def test_a_difference_is_exit_code_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verdict_module, "check_model", lambda *given, **asked: BAD)
        done = invoke("export", "cli_models:linear", "-o", "m.onnx")
        assert done.exit_code == 1
        assert "[E501]" in done.stderr
        assert "runner: output (sample): error 0.5, allowed 1e-06" in done.stderr
        assert "differs" in done.stdout
        checked = invoke("verify", "m.onnx", "cli_models:linear")
        assert (checked.exit_code, "[E501]" in checked.stderr) == (1, True)

    def test_json_has_the_verdict_and_exit_code_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verdict_module, "check_model", lambda *given, **asked: BAD)
        for arguments in (["export", "cli_models:linear", "-o", "m.onnx"], ["verify", "m.onnx", "cli_models:linear"]):
            done = invoke(*arguments, "--json")
            assert done.exit_code == 1
            assert json.loads(done.stdout)["ok"] is False

    def test_agreement_is_exit_code_0(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verdict_module, "check_model", lambda *given, **asked: GOOD)
        assert invoke("export", "cli_models:linear", "-o", "m.onnx").exit_code == 0
        assert invoke("verify", "m.onnx", "cli_models:linear").exit_code == 0

    @pytest.mark.long
    def test_a_file_of_other_weights_is_found_out(self) -> None:
        assert invoke("export", "cli_models:linear", "-o", "m.onnx", "--seed", 1, "--no-verify").exit_code == 0
        assert invoke("verify", "m.onnx", "cli_models:linear", "--seed", 1).exit_code == 0
        other = invoke("verify", "m.onnx", "cli_models:linear", "--seed", 2)
        assert other.exit_code == 1
        assert "[E501]" in other.stderr

    def test_every_engine_is_compared_by_default(self) -> None:
        done = invoke("export", "cli_models:linear", "-o", "m.onnx", "--json", "--dynamic", "input:0=rows")
        assert done.exit_code == 0, done.output
        assert {row["engine"] for row in json.loads(done.stdout)["verify"]["rows"]} == {"runner", "onnxruntime"}
