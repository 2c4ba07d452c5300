"""``fx2onnx profile`` from end to end on a small model."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import recording
from fx2onnx.cli import profile_measure
from fx2onnx.cli.profile_measure import parse_depth, parse_sweep, with_depth, with_size
from fx2onnx.cli.profile_probes import DYNAMO, TORCHSCRIPT, Probe, probed
from fx2onnx.report.profile import Profile
from fx2onnx.report.profile_data import tree_of
from fx2onnx.sources import Source
from tests.cli import support
from tests.cli.support import factories

_MODELS = """
import torch

def stack(layers=1):
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(int(layers)))), (torch.randn(2, 4),)
"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, profile_models=_MODELS):
        gc.freeze()  # before each run the command collects garbage, which takes long behind other tests
        yield tmp_path


def invoke(*arguments: object) -> Result:
    return support.invoke("profile", *arguments)


@pytest.mark.long
def test_everything_at_once(tmp_path: Path) -> None:
    done = invoke(
        *(
            "profile_models:stack",
            "--repeat",
            2,
            "--sweep",
            "input:0=2,5",
            "--sweep",
            "input:0=3",
            "--depth",
            "layers=1,3",
        ),
        *("--html", "p.html", "--json", "p.json", "--trace", "t.json", "--speedscope", "s.json"),
        *("--compare", "torchscript"),
    )
    assert done.exit_code == 0, done.output
    for wanted in ("fx2onnx", "torchscript", "capture", "aten.linear.default", "input, axis 0", "layers", "verified"):
        assert wanted in done.stdout, wanted
    profile = Profile.from_json("p.json")
    assert [export.exporter for export in profile.exports] == ["fx2onnx", "torchscript"]
    assert [len(export.seconds) for export in profile.exports] == [2, 2]
    assert all(export.events is not None and export.file_bytes > 0 for export in profile.exports)
    for series, values in (
        (profile.sweeps[0], [2, 2, 5, 5]),
        (profile.sweeps[1], [3, 3]),
        (profile.depth, [1, 1, 3, 3]),
    ):
        assert series is not None
        assert [point.value for point in series.points] == values
        assert all(len(point.seconds) == 2 and not point.error for point in series.points)
    assert profile.verification is not None
    assert profile.verification["ok"]
    assert Path("p.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads(Path("t.json").read_text())["traceEvents"]
    assert json.loads(Path("s.json").read_text())["profiles"]
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "profile_models.py",
        "p.html",
        "p.json",
        "t.json",
        "s.json",
    }


@pytest.mark.long
def test_json_alone_on_stdout_and_no_file_written() -> None:
    done = invoke("profile_models:stack", "--repeat", 1, "--no-write", "--no-verify", "--json", "-")
    assert done.exit_code == 0, done.output
    profile = Profile.from_dict(json.loads(done.stdout))
    assert (profile.ours.file_bytes, profile.verification) == (0, None)
    assert profile.ours.events is not None
    assert "save" not in [child.name for child in profile.ours.events.children]


@pytest.mark.long
@pytest.mark.parametrize(("factor", "code"), [(0.001, 1), (1000.0, 0)])
def test_fail_if_slower_decides_the_exit_code(factor: float, code: int) -> None:
    assert invoke("profile_models:stack", "--repeat", 1, "--no-verify", "--json", "p.json", "-q").exit_code == 0
    earlier = json.loads(Path("p.json").read_text())
    earlier["exports"][0]["seconds"] = [seconds * factor for seconds in earlier["exports"][0]["seconds"]]
    Path("p.json").write_text(json.dumps(earlier))
    done = invoke(
        "profile_models:stack", "--repeat", 1, "--no-verify", "--compare", "p.json", "--fail-if-slower", "20%"
    )
    assert done.exit_code == code, done.output
    assert "against p.json" in done.stdout
    assert ("slower than p.json" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--compare", "tensorflow"), "E001", "is not known"),
        (("--compare", "missing.json"), "E302", "no such file"),
        (("--compare", "other.json"), "E302", "not a profile"),
        (("--fail-if-slower", "20%"), "E001", "needs an earlier profile"),
        (("--sweep", "input=3"), "E001", "cannot read --sweep"),
        (("--sweep", "nothing:0=3"), "E001", "no tensor"),
        (("--sweep", "input:7=3"), "E001", "no axis 7"),
        (("--depth", "1,2"), "E001", "which keyword"),
        (("--html", "missing/p.html"), "E301", "does not exist"),
        (("--attention", "eager"), "E001", "no transformers model"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_is_measured(
    arguments: tuple[str, ...], code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.json").write_text("{}")
    monkeypatch.setattr(profile_measure, "measure", lambda *_: pytest.fail("it measured"))
    done = invoke("profile_models:stack", *arguments)
    assert done.exit_code == 2
    assert code in done.stderr
    assert message in done.stderr


@pytest.mark.long
def test_a_wrong_file_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from fx2onnx.cli import profile as command

    verdict = {"ok": False, "rows": [], "notes": [], "summary": "runner: output: differs", "seconds": 0.1}
    monkeypatch.setattr(command, "_verified", lambda *_: verdict)
    done = invoke("profile_models:stack", "--repeat", 1)
    assert done.exit_code == 1
    assert "runner: output: differs" in done.stdout


@pytest.mark.long
def test_an_exporter_that_fails_is_shown_and_ours_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Any, detailed: bool) -> Any:
        raise RuntimeError("\x1b[96mno such luck\x1b[0m\nat line 3")

    monkeypatch.setitem(profile_measure.EXPORTERS, "torch", fail)
    done = invoke("profile_models:stack", "--repeat", 1, "--compare", "torch", "--no-verify", "--json", "p.json")
    assert done.exit_code == 0, done.output
    assert Profile.from_json("p.json").exports[1].error == "RuntimeError: no such luck"
    assert "no such luck" in done.stdout


def test_our_own_failure_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Any, detailed: bool) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setitem(profile_measure.EXPORTERS, "fx2onnx", fail)
    done = invoke("profile_models:stack", "--repeat", 1)
    assert done.exit_code == 1
    assert "RuntimeError" in done.stderr
    assert "ours" in done.stderr


def test_probes_find_torchs_functions_and_give_them_back() -> None:
    """Names of torch that went away show here, with the versions that the project is developed with."""
    import torch.onnx._internal.exporter._core as core

    before = core._exported_program_to_onnx_program
    with probed((*DYNAMO, *TORCHSCRIPT, Probe("torch", "no_such_thing", "x"))) as missing:
        assert core._exported_program_to_onnx_program is not before
    assert missing == ["torch.no_such_thing"]
    assert core._exported_program_to_onnx_program is before


@pytest.mark.long
def test_torchs_phases_fill_its_time(tmp_path: Path) -> None:
    source = Source("net", torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), (torch.randn(2, 4),))
    with profile_measure._undisturbed():
        run = profile_measure.dynamo(profile_measure.ProfileJob(source, tmp_path / "m.onnx"), True)
    assert run.events is not None
    names = [child.name for child in run.events.children]
    for phase in ("registry", "capture", "decompose", "translate", "optimize", "save"):
        assert phase in names
    covered = sum(child.seconds for child in run.events.children)
    assert covered > 0.9 * run.events.seconds, "little is left between the phases"
    assert run.memory


def test_probes_record_nothing_outside_a_recording() -> None:
    with probed((Probe("math", "sqrt", "root"),)):
        import math

        assert math.sqrt(4.0) == 2.0
        with recording("all") as recorder:
            math.sqrt(4.0)
    assert tree_of(recorder).children == []


def test_sizes_that_share_a_dim_name_change_together() -> None:
    class Two(torch.nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return ids * mask + other.sum()

    ids, mask, other = torch.arange(6).reshape(2, 3), torch.ones(2, 3), torch.zeros(3)
    shapes = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}
    source = Source("two", Two(), (ids,), {"mask": mask, "other": other}, shapes)
    made = with_size(source, parse_sweep("ids:1=7"), 7)
    assert made.args[0].tolist() == [[0, 1, 2, 0, 1, 2, 0], [3, 4, 5, 3, 4, 5, 3]]
    assert [tuple(made.kwargs[name].shape) for name in ("mask", "other")] == [(2, 7), (3,)]
    assert source.args[0].shape == (2, 3), "the original is as it was"


def test_axes_of_one_argument_change_together() -> None:
    source = Source("net", torch.nn.ReLU(), (torch.zeros(1, 3, 4, 4),))
    sweep = parse_sweep("input:2+3=8,16")
    assert (sweep.values, sweep.label) == ((8, 16), "input, axes 2 and 3")
    assert with_size(source, sweep, 8).args[0].shape == (1, 3, 8, 8)
    with pytest.raises(UserError, match="no axis 4"):
        with_size(source, parse_sweep("input:2+4=8"), 8)


def test_depth_changes_the_spec() -> None:
    assert parse_depth("2,4", "hf:bert") == (("num_hidden_layers",), (2, 4))
    assert parse_depth("a+b=3", "zoo:x") == (("a", "b"), (3,))
    assert with_depth("hf:t5?d_model=8&num_layers=6", ("num_layers", "num_decoder_layers"), 2) == (
        "hf:t5?d_model=8&num_layers=2&num_decoder_layers=2"
    )
    with pytest.raises(UserError, match="sizes of at least 1"):
        parse_depth("0,4", "hf:bert")
