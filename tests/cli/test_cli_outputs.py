"""No output of a command takes the place of what the command reads, or of another output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx.cli import many, workers
from tests.cli.support import factories, invoke

_MODELS = """
import torch

def signed(sign=1):
    layer = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(layer.weight, sign)
    return layer, torch.randn(2, 3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, output_models=_MODELS):
        yield tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def checkpoint_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fx2onnx.sources import resolve

    folder = tmp_path_factory.mktemp("checkpoint")
    resolve("zoo:bert_tiny").module.save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture
def checkpoint(folder: Path, checkpoint_files: Path) -> Path:
    place = folder / "checkpoint"
    place.mkdir()
    for path in checkpoint_files.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


@pytest.fixture
def large(folder: Path) -> Path:
    fx2onnx.export(torch.nn.Linear(64, 64), (torch.ones(2, 64),), "large.onnx", external_data=True)
    np.save("x.npy", np.ones((2, 64), np.float32))
    np.savez("wanted.npz", linear=np.zeros(1))
    return folder / "large.onnx"


REFUSED: dict[str, list[str]] = {
    "weights by reference": ["export", "hf:checkpoint", "--weights", "reference", "-o", "checkpoint/model.safetensors"],
    "weights copied": ["export", "hf:checkpoint", "-o", "checkpoint/model.safetensors"],
    "the config": ["export", "hf:checkpoint", "-o", "checkpoint/config.json"],
    "by a link": ["export", "hf:checkpoint", "-o", "link"],
    "a file of weights": ["export", "zoo:mnist_cnn", "--weights", "state.safetensors", "-o", "state.safetensors"],
    "the factory's file": ["export", "output_models:signed", "-o", "output_models.py"],
    "a report over the weights": ["export", "hf:checkpoint", "-o", "m.onnx", "--report", "checkpoint/model.safetensors"],
    "a report of a folder over the config": [
        "export-folder", "hf:checkpoint", "--task", "text-generation", "-o", "out", "--report", "checkpoint/config.json",
    ],
    "outputs over the model": ["run", "large.onnx", "--output", "large.onnx"],
    "outputs over the weights": ["run", "large.onnx", "--output", "DATA"],
    "a trace over the weights": ["run", "large.onnx", "--trace", "DATA"],
    "a picture over the model": ["run", "large.onnx", "--dump-dag", "large.onnx"],
    "outputs over an input": ["run", "large.onnx", "-i", "input=x.npy", "--output", "x.npy"],
    "outputs over what is wanted": ["run", "large.onnx", "--assert-outputs", "wanted.npz", "--output", "wanted.npz"],
    "two outputs in one file": ["run", "large.onnx", "--output", "one", "--trace", "one"],
    "two outputs in one file, spelled differently": ["run", "large.onnx", "--output", "one", "--trace", "./one"],
    "a profile over the factory": ["profile", "output_models:signed", "--html", "output_models.py"],
    "two profiles in one file": ["profile", "output_models:signed", "--html", "p", "--trace", "p"],
    "a device": ["export", "zoo:mnist_cnn", "-o", "/dev/null"],
    "a device for outputs": ["run", "large.onnx", "--output", "/dev/null"],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_lost(name: str, checkpoint: Path, large: Path, folder: Path) -> None:
    (data,) = folder.glob("large.onnx.*.data")
    (folder / "link").symlink_to("checkpoint/model.safetensors")
    (folder / "state.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    before = contents(folder)
    done = invoke(*(data.name if word == "DATA" else word for word in REFUSED[name]))
    assert done.exit_code == 2, done.output
    assert "E301" in done.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("report", ["m.onnx", "./m.onnx", "DATA", "m.onnx.data"])
def test_a_report_over_the_model(report: str, folder: Path) -> None:
    fx2onnx.export(torch.nn.Linear(64, 64), (torch.ones(2, 64),), "m.onnx", external_data=True)
    (data,) = folder.glob("m.onnx.*.data")
    before = contents(folder)
    done = invoke("export", "zoo:mnist_cnn", "-o", "m.onnx", "--report", data.name if report == "DATA" else report)
    assert done.exit_code == 2, done.output
    assert contents(folder) == before


@pytest.mark.long
def test_a_report_over_a_file_of_the_exported_folder() -> None:
    spec = "hf:gpt2?n_layer=1&n_embd=8&n_head=1&vocab_size=50"
    Path("out").mkdir()
    for report in ("out/model.onnx", "out/fx2onnx.json", "out/config.json"):
        done = invoke(
            "export-folder", spec, "--task", "text-generation", "--no-verify", "-o", "out", "--report", report
        )
        assert done.exit_code == 2, done.output
        assert "E301" in done.stderr
        onnx.checker.check_model("out/model.onnx")
        json.loads(Path("out/fx2onnx.json").read_text())
    done = invoke(
        "export-folder", spec, "--task", "text-generation", "--no-verify", "-o", "out", "--report", "out/report.json"
    )
    assert done.exit_code == 0, done.output
    done = invoke(
        "export-folder", spec, "--task", "text-generation", "--no-verify", "-o", "out", "--report", "out/report.json"
    )
    assert done.exit_code == 0, done.output


def test_a_report_over_the_results(in_this_process: list[str]) -> None:
    call = ("export", "output_models:signed", "output_models:signed?sign=2", "-o", "out", "--no-verify")
    assert invoke(*call).exit_code == 0
    before = contents(Path("out"))
    for report in ("out/exports.jsonl", "out/output_models_signed.onnx", "output_models.py"):
        assert invoke(*call, "--report", report).exit_code == 2
    assert contents(Path("out")) == before


def weight(path: str) -> float:
    (found,) = (w for w in onnx.load(path).graph.initializer if len(w.dims) == 2)
    return float(onnx.numpy_helper.to_array(found).ravel()[0])


class TestSeveral:
    @pytest.mark.long
    def test_sources_that_differ_in_lost_characters_have_files_of_their_own(self, in_this_process: list[str]) -> None:
        """In one run and in two, so that going on never takes one's file for the other's."""
        for sign in (1, -1, 1, -1):
            done = invoke("export", f"output_models:signed?sign={sign}", "output_models:signed", "-o", "out", "--json")
            assert done.exit_code == 0, done.output
            for row in json.loads(done.stdout)["exports"]:
                _, _, expected = row["source"].rpartition("=") if "=" in row["source"] else ("", "", "1")
                assert weight(row["file"]) == float(expected)
        assert in_this_process == [
            "output_models:signed?sign=1",
            "output_models:signed",
            "output_models:signed?sign=-1",
        ]

    def test_names_that_are_plain_stay_readable(self) -> None:
        template = workers.Job(source="", output="")
        names = {job.source: Path(job.output).name for job in many.plan(
            template, ["torchvision:resnet18", "zoo:a", "m:f", "m:f?a=1", "m:f?a=-1", "m:f?a=1&b=2", "a:b_c", "a_b:c"], Path("out")
        )}  # fmt: skip
        assert names["torchvision:resnet18"] == "torchvision_resnet18.onnx"
        assert len({name.lower() for name in names.values()}) == len(names)
        assert names["a:b_c"] == "a_b_c.onnx"

    def test_a_file_that_is_another_one_is_exported_again(self, in_this_process: list[str]) -> None:
        call = ("export", "output_models:signed", "output_models:signed?sign=2", "-o", "out")
        rows = {row["source"]: row for row in json.loads(invoke(*call, "--json").stdout)["exports"]}
        os.replace(rows["output_models:signed?sign=2"]["file"], rows["output_models:signed"]["file"])
        in_this_process.clear()
        assert invoke(*call).exit_code == 0
        assert sorted(in_this_process) == ["output_models:signed", "output_models:signed?sign=2"]
        assert weight(rows["output_models:signed"]["file"]) == 1

    @pytest.mark.parametrize(
        "line",
        [
            "[]", "7", "null", '"text"', "{}", '{"source": 3}', "\x00", "[" * 100_000, '{"source": "output_models:signed", "ok": true}',
            '{"source": "output_models:signed", "ok": true, "exit_code": 0, "seconds": 1, "job": {"output": 7}}',
            '{"source": "output_models:signed", "ok": true, "exit_code": "x", "seconds": null, "job": []}',
        ],
    )  # fmt: skip
    def test_lines_of_results_that_are_none(self, line: str, in_this_process: list[str]) -> None:
        call = ("export", "output_models:signed", "output_models:signed?sign=2", "-o", "out", "--no-verify")
        Path("out").mkdir()
        Path("out/exports.jsonl").write_text(line + "\n")
        done = invoke(*call)
        assert done.exit_code == 0, done.output
        assert len(in_this_process) == 2

    @pytest.mark.long
    def test_a_finished_row_with_damaged_parts_is_not_shown(self, in_this_process: list[str]) -> None:
        call = ("export", "output_models:signed", "output_models:signed?sign=2", "-o", "out")
        assert invoke(*call).exit_code == 0
        path = Path("out/exports.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for damage in ({"report": None}, {"report": {"nodes_onnx": "x"}}, {"verify": [1]}, {"verify": {"rows": [{}]}}):
            path.write_text("".join(json.dumps(row | damage) + "\n" for row in rows))
            in_this_process.clear()
            done = invoke(*call)
            assert done.exit_code == 0, done.output
            assert len(in_this_process) == 2

    def test_leftovers_of_killed_runs_go(self, in_this_process: list[str]) -> None:
        leftover = Path("out/.fx2onnx-0123456789abcdef")
        leftover.mkdir(parents=True)
        (leftover / "graph").write_bytes(b"half")
        done = invoke("export", "output_models:signed", "output_models:signed?sign=2", "-o", "out", "--no-verify")
        assert done.exit_code == 0, done.output
        assert sorted(path.suffix for path in Path("out").iterdir()) == [".jsonl", ".onnx", ".onnx"]


_LONG = "x" * 300


@pytest.mark.parametrize(
    "call",
    [
        ["run", _LONG],
        ["verify", _LONG + ".onnx", "zoo:mnist_cnn"],
        ["export", f"hf:{_LONG}", "-o", "a.onnx"],
        ["export-folder", f"hf:{_LONG}", "-o", "out", "--task", "text-generation"],
        ["export", "zoo:mnist_cnn", "--weights", _LONG + ".safetensors", "-o", "a.onnx"],
        ["export", "zoo:mnist_cnn", "-o", f"{_LONG}/a.onnx"],
        ["export", "zoo:mnist_cnn", "zoo:bert_tiny", "-o", _LONG],
        ["export-folder", "hf:gpt2", "--task", "text-generation", "-o", _LONG],
        ["export", "zoo:mnist_cnn", "-o", "a.onnx", "--report", _LONG],
        ["export", f"{_LONG}:f", "-o", "a.onnx"],
        ["generate", _LONG, "--prompt-ids", "1"],
        ["profile", "zoo:mnist_cnn", "--compare", _LONG + ".json"],
    ],
)
def test_names_that_are_too_long_are_an_error_of_the_user(call: list[str], folder: Path) -> None:
    before = contents(folder)
    done = invoke(*call)
    assert done.exit_code == 2, done.output
    assert "[E" in done.stderr
    assert contents(folder) == before
