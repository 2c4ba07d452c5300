"""``fx2onnx export`` with several sources: patterns, processes, going on after an interruption, exit codes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.cli import many, workers
from fx2onnx.cli.job import Job, engines_for
from fx2onnx.report.console import PlainConsole
from fx2onnx.sources.source import Options
from tests.cli.support import factories, invoke

_MODELS = """
import os, time
import torch

def linear(width=3): return torch.nn.Linear(width, 2), torch.randn(2, width)
def wide(): return linear(7)
class Counts(torch.nn.Linear):
    def forward(self, x):
        self.bias += 1
        return super().forward(x)
def counts(): return Counts(3, 2).requires_grad_(False), torch.randn(2, 3)
def broken(): raise ValueError("this model cannot be built")
def dies():
    os.makedirs("out/.fx2onnx-part")  # as a process that is killed while it writes
    open("out/.fx2onnx-part/model", "wb").close()
    os._exit(3)
def hangs(): time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, many_models=_MODELS):
        yield tmp_path


@pytest.mark.long
def test_several_processes_export_verify_and_survive_a_crash_and_a_hang(folder: Path) -> None:
    names = ("linear", "dies", "broken", "hangs", "wide")
    (folder / "out").mkdir()
    (folder / "out" / ".fx2onnx-other").mkdir()  # of somebody else's run
    done = invoke(
        "export", *(f"many_models:{n}" for n in names), "-o", "out", "--jobs", 2, "--limit", 6, "--json", "--no-verify"
    )
    assert done.exit_code == 1, done.output
    summary = json.loads(done.stdout)
    rows = {row["source"].partition(":")[2]: row for row in summary["exports"]}
    assert list(rows) == list(names)
    assert {name: (row["ok"], row["exit_code"]) for name, row in rows.items()} == {
        "linear": (True, 0),
        "wide": (True, 0),
        "broken": (False, 2),
        "dies": (False, 1),
        "hangs": (False, 1),
    }
    assert rows["broken"]["error"]["code"] == "E601"
    assert "exit code 3" in rows["dies"]["error"]["what"]
    assert "within 6 s" in rows["hangs"]["error"]["what"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        ".fx2onnx-other",
        "exports.jsonl",
        "many_models_linear.onnx",
        "many_models_wide.onnx",
    ]


@pytest.mark.long
def test_a_run_goes_on_where_it_stopped(folder: Path, in_this_process: list[str]) -> None:
    call = ("export", "many_models:linear", "many_models:wide", "many_models:broken", "-o", "out")
    assert invoke(*call).exit_code == 2
    assert in_this_process == ["many_models:linear", "many_models:wide", "many_models:broken"]
    with (folder / "out" / "exports.jsonl").open("a") as stream:
        stream.write('{"source": "many_models:wi')  # killed while writing
    in_this_process.clear()
    again = invoke(*call)
    assert again.exit_code == 2
    assert in_this_process == ["many_models:broken"]
    assert "2 of 3 models exported, 2 of them by an earlier run" in again.stdout
    assert "many_models:broken: [E601] the factory many_models:broken raised ValueError" in again.stdout
    assert "def broken(): raise" in again.stdout, "the line"
    assert "next  call it in Python" in again.stdout, "what to do"
    assert max(map(len, again.stdout.splitlines())) < 120
    in_this_process.clear()
    (folder / "out" / "many_models_wide.onnx").unlink()
    invoke(*call[:3], "-o", "out")
    assert in_this_process == ["many_models:wide"]


@pytest.mark.long
def test_other_options_or_again_export_anew(in_this_process: list[str]) -> None:
    call = ("export", "many_models:linear", "many_models:wide", "-o", "out", "--no-verify")
    assert invoke(*call).exit_code == 0
    assert invoke(*call).exit_code == 0
    assert len(in_this_process) == 2
    assert invoke(*call, "--opset", 17).exit_code == 0
    assert len(in_this_process) == 4
    assert invoke(*call, "--opset", 17, "--again").exit_code == 0
    assert len(in_this_process) == 6
    opsets = {entry.version for entry in onnx.load("out/many_models_wide.onnx").opset_import}
    assert opsets == {17}


@pytest.mark.long
def test_warnings_are_shown_and_those_of_an_earlier_run_fail_a_strict_one(in_this_process: list[str]) -> None:
    call = ("export", "many_models:counts", "many_models:linear", "-o", "out", "--no-verify")
    done = invoke(*call)
    assert (done.exit_code, done.stdout.count("ok, 1 warning"), done.stderr.count("ok, 1 warning")) == (0, 1, 1)
    assert "many_models:counts\nforward changes" in done.stdout
    again = invoke(*call)
    assert len(in_this_process) == 2, "both are of the earlier run"
    assert "many_models:counts\nforward changes" in again.stdout
    assert (invoke(*call, "--strict").exit_code, len(in_this_process)) == (2, 4)


@pytest.mark.parametrize("part", ["job", "options", "capture", "source"])
def test_two_jobs_with_the_same_record_have_the_same_options(part: str) -> None:
    job = Job("a:b", "out", source_options={field.name: None for field in fields(Options)})
    made = {"job": job, "options": job.options, "capture": job.options.capture, "source": Options()}[part]
    kept = {"options", "source_options"} if part == "job" else {"capture"} if part == "options" else set()
    for name in {field.name for field in fields(made)} - kept:
        other = copy.copy(made)
        object.__setattr__(other, name, "other")
        options = replace(job.options) if part == "capture" else other if part == "options" else job.options
        if part == "capture" and name not in {"dynamic_shapes", "bake"}:
            object.__setattr__(options, "capture", other)
        elif part == "capture":
            continue  # the job's own take their place
        given = {**job.source_options, **({name: "other"} if part == "source" else {})}
        changed = other if part == "job" else replace(job, options=options, source_options=given)
        assert changed.as_dict() != job.as_dict(), name


def test_the_live_display_shows_models_stages_and_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = PlainConsole(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(many, "console", lambda **_: terminal)

    def run_all(jobs: Sequence[Job], processes: int, limit_s: float, on_stage: Any) -> Iterator[dict[str, Any]]:
        for job in jobs:
            on_stage(0, job.source, "export")
            yield {"source": job.source, "ok": True, "seconds": 1.0}

    monkeypatch.setattr(workers, "run_all", run_all)
    rows = list(many._shown([Job("a:[b]", ""), Job("c:d", "")], 3, 2, 10.0, quiet=False))
    assert [row["source"] for row in rows] == ["a:[b]", "c:d"]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    for wanted in ("models", "a:[b]  export", "c:d  export", "3 of 5", "4 of 5", "5 of 5"):
        assert wanted in text, wanted
    assert "?" not in text


@pytest.mark.long
def test_patterns_name_every_model_that_fits(in_this_process: list[str]) -> None:
    done = invoke("export", "zoo:mnist_*", "-o", "out", "--no-verify", "--report", "r.json")
    assert done.exit_code == 0, done.output
    assert "zoo:mnist_cnn_same" in in_this_process
    assert all(source.startswith("zoo:mnist_") for source in in_this_process)
    assert [row["source"] for row in json.loads(Path("r.json").read_text())["exports"]] == in_this_process
    assert all(source in done.stdout for source in in_this_process)
    assert all(source in done.stderr for source in in_this_process)


def test_expansion() -> None:
    found = many.expand(["torchvision:resnet1*?num_classes=3", "a.b:c", "torchvision:resnet18?num_classes=3"])
    assert sorted(found[:-1]) == [f"torchvision:resnet{depth}?num_classes=3" for depth in (101, 152, 18)]
    assert found[-1] == "a.b:c"
    with pytest.raises(UserError) as caught:
        many.expand(["torchvision:resnot*"])
    assert caught.value.code == "E601"
    assert not re.fullmatch(many.PATTERN, "hf:bert?num_hidden_layers=[1,2]")


def test_files_of_sources_that_look_alike_differ() -> None:
    jobs = many.plan(Job("", ""), ["hf:a/b", "hf:a_b", "hf:a/b?x=1"], Path("out"))
    assert len({job.output for job in jobs}) == 3


@pytest.mark.parametrize(("codes", "expected"), [([0, 0], 0), ([0, 2], 2), ([2, 1, 0], 1)])
def test_the_exit_code_is_that_of_the_worst(codes: list[int], expected: int) -> None:
    assert many.exit_code([{"exit_code": code} for code in codes]) == expected


def test_a_file_where_the_folder_should_be() -> None:
    Path("out").write_text("mine")
    done = invoke("export", "many_models:linear", "many_models:wide", "-o", "out")
    assert (done.exit_code, "[E301]" in done.stderr) == (2, True)
    assert Path("out").read_text() == "mine"


class TestTarget:
    @pytest.mark.parametrize(("release", "opset"), [(12, 18), (20, 22)])
    def test_an_opset_beyond_the_target(self, release: int, opset: int) -> None:
        target = f"onnxruntime-1.{release}"
        done = invoke("export", "many_models:linear", "-o", "m.onnx", "--target", target, "--opset", opset)
        assert (done.exit_code, "[E202]" in done.stderr) == (2, True)
        assert not Path("m.onnx").exists()

    def test_the_runner_alone_verifies_what_is_for_it(self) -> None:
        assert engines_for("runner") == ["runner"]
        assert engines_for("onnxruntime-1.20") == ["runner", "onnxruntime"]
        done = invoke("export", "many_models:linear", "-o", "m.onnx", "--target", "runner", "--json")
        assert {row["engine"] for row in json.loads(done.stdout)["verify"]["rows"]} == {"runner"}


class TestWeights:
    @pytest.mark.long
    @pytest.mark.parametrize("suffix", ["pt", "safetensors"])
    def test_a_state_dict_is_taken(self, suffix: str) -> None:
        from safetensors.torch import save_file

        state = {"weight": torch.full((2, 3), 2.0), "bias": torch.zeros(2)}
        path = f"w.{suffix}"
        save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
        done = invoke("export", "many_models:linear", "-o", "m.onnx", "--weights", path)
        assert done.exit_code == 0, done.output
        held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("m.onnx").graph.initializer}
        assert (held["weight"] == 2.0).all()
        assert invoke("verify", "m.onnx", "many_models:linear", "--weights", path).exit_code == 0
        assert invoke("verify", "m.onnx", "many_models:linear").exit_code == 1

    def test_one_that_does_not_fit(self) -> None:
        torch.save({"weight": torch.zeros(2, 5), "extra": torch.zeros(1)}, "w.pt")
        done = invoke("export", "many_models:linear", "-o", "m.onnx", "--weights", "w.pt")
        assert done.exit_code == 2
        assert "[E601]" in done.stderr
        assert all(word in done.stderr for word in ("weight is [2, 5]", "[2, 3]", "bias", "extra"))
        assert not Path("m.onnx").exists()

    @pytest.mark.parametrize(
        ("weights", "code"), [("reference", "E001"), ("no/such/file.pt", "E302"), ("many_models.py", "E302")]
    )
    def test_words_and_files_that_mean_nothing_here(self, weights: str, code: str) -> None:
        done = invoke("export", "many_models:linear", "-o", "m.onnx", "--weights", weights)
        assert (done.exit_code, f"[{code}]" in done.stderr) == (2, True), done.stderr

    @pytest.mark.long
    def test_none_leaves_them_as_inputs(self) -> None:
        done = invoke("export", "hf:bert", "-o", "m.onnx", "--weights", "none", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["verify"] is None
        graph = onnx.load("m.onnx").graph
        assert "bert.embeddings.word_embeddings.weight" in {value.name for value in graph.input}
        assert Path("m.onnx").stat().st_size < 1_000_000

    @pytest.mark.long
    def test_by_reference_the_model_lies_beside_the_weights(self) -> None:
        from fx2onnx.sources import resolve

        resolve("zoo:bert_tiny").module.save_pretrained("checkpoint")  # type: ignore[operator]
        done = invoke("export", "hf:checkpoint", "--weights", "reference")
        assert done.exit_code == 0, done.output
        assert Path("checkpoint/model.onnx").stat().st_size < 60_000
        elsewhere = invoke("export", "hf:checkpoint", "--weights", "reference", "-o", "checkpoint/../m.onnx")
        assert elsewhere.exit_code == 0, elsewhere.output
        Path("other").mkdir()
        assert invoke("export", "hf:checkpoint", "--weights", "reference", "-o", "other/m.onnx").exit_code == 2

    def test_without_output_there_is_nothing_to_write(self) -> None:
        done = invoke("export", "many_models:linear")
        assert (done.exit_code, "--output is missing" in done.stderr) == (2, True)


@pytest.mark.parametrize(("dtype", "expected"), [("float16", 10), ("float64", 11), ("bfloat16", 16)])
def test_dtype(dtype: str, expected: int) -> None:
    done = invoke("export", "many_models:linear", "-o", "m.onnx", "--dtype", dtype)
    assert done.exit_code == 0, done.output
    graph = onnx.load("m.onnx").graph
    assert {value.type.tensor_type.elem_type for value in [*graph.input, *graph.output]} == {expected}
    assert invoke("export", "many_models:linear", "-o", "m.onnx", "--dtype", "int8").exit_code == 2


@contextlib.contextmanager
def limited_files() -> Iterator[None]:
    """No file may grow beyond 20 kB, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk() -> Iterator[None]:
    with limited_files():
        yield


class TestNoSpace:
    def test_the_old_file_stays_and_nothing_is_half_written(self, folder: Path, small_disk: None) -> None:
        Path("m.onnx").write_bytes(b"previous")
        before = sorted(path.name for path in folder.iterdir())
        done = invoke("export", "zoo:mnist_cnn", "-o", "m.onnx", "--no-verify")
        assert (done.exit_code, "[E301]" in done.stderr) == (2, True), done.output
        assert Path("m.onnx").read_bytes() == b"previous"
        assert sorted(path.name for path in folder.iterdir()) == before

    def test_by_reference_too(self, folder: Path) -> None:
        from fx2onnx.sources import resolve

        resolve("zoo:bert_tiny").module.save_pretrained("checkpoint")  # type: ignore[operator]
        before = sorted(path.name for path in Path("checkpoint").iterdir())
        with limited_files():
            done = invoke("export", "hf:checkpoint", "--weights", "reference", "--no-verify")
        assert (done.exit_code, "[E301]" in done.stderr) == (2, True), done.output
        assert sorted(path.name for path in Path("checkpoint").iterdir()) == before

    def test_several_models_go_on_with_the_next(self, in_this_process: list[str], small_disk: None) -> None:
        done = invoke("export", "zoo:mnist_cnn", "many_models:linear", "-o", "out", "--no-verify", "--json")
        rows = json.loads(done.stdout)["exports"]
        assert [row["exit_code"] for row in rows] == [2, 0]
        assert rows[0]["error"]["code"] == "E301"
        assert done.exit_code == 2
        assert not Path("out/zoo_mnist_cnn.onnx").exists()

    def test_results_that_cannot_be_noted_cost_no_model(self, in_this_process: list[str]) -> None:
        """A line is in ``exports.jsonl`` whole or not at all; the next run exports again what is not in it."""
        call = ("export", "many_models:linear", "many_models:wide", "-o", "out", "--no-verify")
        Path("out").mkdir()
        padding = json.dumps({"source": "old", "filling": "x" * 19_500}) + "\n"
        Path("out/exports.jsonl").write_text(padding)
        with limited_files():
            done = invoke(*call, "--json")
        summary = json.loads(done.stdout)
        assert [row["exit_code"] for row in summary["exports"]] == [0, 0]
        assert (done.exit_code, summary["ok"], summary["error"]["code"]) == (2, False, "E301")
        kept = Path("out/exports.jsonl").read_text()
        assert kept.startswith(padding)
        assert all(json.loads(line) for line in kept.splitlines())
        assert len(kept) <= 20_000
        noted = len(kept.splitlines()) - 1
        assert noted < 2
        in_this_process.clear()
        again = invoke(*call)
        assert again.exit_code == 0, again.output
        assert len(in_this_process) == 2 - noted

    def test_the_error_says_why(self, in_this_process: list[str], small_disk: None) -> None:
        done = invoke("export", "zoo:mnist_cnn", "many_models:linear", "-o", "out", "--no-verify")
        assert "File too large" in done.stdout
        assert "1 of 2 models exported" in done.stdout


@pytest.mark.long_cases("timm:vit_tini_patch16_224-vit_tiny_patch16_224")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("torchvision:resnet5", "resnet50"),
        ("timm:vit_tini_patch16_224", "vit_tiny_patch16_224"),
        ("hf:brt", "bert"),
        ("hf:no/such/folder", "save_pretrained"),
        ("zoo:mnist", "mnist_cnn"),
    ],
)
def test_an_unknown_model_is_one_error_with_close_names(source: str, said: str, folder: Path) -> None:
    done = invoke("export", source, "-o", "m.onnx")
    assert (done.exit_code, "[E601]" in done.stderr, said in done.stderr) == (2, True, True), done.stderr
    assert not Path("m.onnx").exists()


def test_a_wrong_task_lists_those_that_there_are() -> None:
    for word in ("translate", "image-classification"):
        done = invoke("export", "hf:bert", "-o", "m.onnx", "--task", word)
        assert (done.exit_code, "[E601]" in done.stderr) == (2, True), done.stderr
        assert "masked-lm" in done.stderr
