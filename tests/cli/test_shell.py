"""What a person types: help at 80 columns, sources as files and without a kind, strict exports, inputs of a verification."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import fx2onnx
from fx2onnx.base.notices import warn
from fx2onnx.base.packages import EXTRAS
from fx2onnx.cli import help, listing
from fx2onnx.cli.main import COMMANDS, app
from fx2onnx.sources import registry
from tests.cli.support import invoke
from tools import model_names

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return self.layer(x)

class Counting(Net):
    def forward(self, x):
        self.calls += 1
        return self.layer(x)

def make():
    return Net(), torch.ones(3, 4)

def make_counting():
    return Counting(), torch.ones(3, 4)

def make_wide(width):
    return Net(), torch.ones(3, width)

class Chosen(Net):
    def forward(self, x, kind):
        return {"1": x, "2": -x}[str(int(kind))]

class ChosenTwice(Net):
    def forward(self, x, kind, sign):
        return {1: x, 2: -x}[int(kind) + int(sign)]

class Sampled(torch.nn.Module):
    def forward(self, image, grid):
        return torch.nn.functional.grid_sample(image, grid, align_corners=False)

class Added(torch.nn.Module):
    def forward(self, a, b):
        return a + b

def make_chosen():
    return Chosen(), (torch.ones(3, 4), torch.tensor(1))

def make_chosen_twice():
    return ChosenTwice(), (torch.ones(3, 4), torch.tensor(1), torch.tensor(1))

def make_sampled():
    return Sampled(), (torch.ones(1, 1, 4, 4), torch.ones(1, 4, 4, 2))

def make_added():
    return Added(), (torch.ones(3, 4), torch.ones(3, 4))

def make_class():
    return Net, torch.ones(3, 4)

network = Net()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "shell_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("shell_net", None)


def error_of(*arguments: object) -> dict[str, Any]:
    done = invoke(*arguments, "--json")
    assert done.exit_code == 2, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_fits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown, whole = invoke(name, "--help").stdout, invoke(name, "--help-all").stdout
    command: Any = typer.main.get_command(app)
    params = [max(each.opts, key=len) for each in command.get_command(None, name).params]
    for text in (shown, whole):
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert text.startswith(f"Usage: fx2onnx {name}")
        assert "Example" in text
    assert len(shown.splitlines()) < 60
    missing = [flag for flag in params if flag.startswith("--") and flag not in shown]
    assert not [flag for flag in params if flag.startswith("--") and flag not in whole]
    assert (f"{len(missing)} more options: fx2onnx {name} --help-all" in shown) == bool(missing)


@pytest.mark.parametrize("call", [call for calls in help.EXAMPLES.values() for call in calls])
def test_examples_of_the_help_are_calls(call: str) -> None:
    import shlex

    name, *rest = shlex.split(call)[1:]
    command: Any = typer.main.get_command(app)
    assert command.get_command(None, name).make_context(name, rest) is not None


def test_a_file_is_a_source(folder: Path) -> None:
    for spec in ("inner/shell_net.py:make", folder / "inner" / "shell_net.py:make"):
        assert invoke("export", spec, "-o", "net.onnx", "--no-verify", "-q").exit_code == 0
        assert Path("net.onnx").exists()
        Path("net.onnx").unlink()
    assert error_of("export", "inner/shell_net.py:make", "-o", "inner/shell_net.py")["code"] == "E301"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("inner/shell_net.py", "inner/shell_net.py:make or inner/shell_net.py:make_counting"),
        ("inner/shell_net.py:mak", "did you mean make"),
        ("absent.py:make", "there is no such file"),
        ("inner.shell_net.make", "did you mean inner.shell_net:make?"),
        ("inner/shell_net.py:make_wide", "'inner/shell_net.py:make_wide?width=VALUE'"),
        ("torch.nn:Linear", "'torch.nn:Linear?in_features=VALUE&out_features=VALUE'"),
        ("inner/shell_net.py:make_class", "return an instance of it: Net(...)"),
        ("model.onnx", "fx2onnx run, inspect, lint, diff, optimize"),
        ("resnet50", "torchvision:resnet50"),
        ("resnt50", "timm:resnet50"),
        ("bert", "hf:bert"),
        ("inner", "it has none of modules.json"),
        ("zoo:resnet34", "torchvision:resnet34 and timm:resnet34 have that name"),
        ("torchvison:resnet50", "did you mean torchvision:resnet50?"),
        ("inner/shell_net", "write inner/shell_net.py:make"),
        ("inner/shell_net.py:network", "def make(): return network, (example_input,)"),
        ("some/checkpoint-base", "write hf:FOLDER: nothing is downloaded"),
    ],
)
def test_a_mistaken_source_leads_to_the_right_one(spec: str, said: str) -> None:
    error = error_of("export", spec, "-o", "net.onnx")
    assert error["code"] in ("E601", "E302")
    assert said in error["why"] + "\n".join(error["next"])


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (["verify", "inner/shell_net.py:make", "net.onnx"], "the ONNX file comes first"),
        (["run", "shell_net:make"], "fx2onnx export 'shell_net:make' -o model.onnx"),
        (["inspect", "shell_net:make"], "fx2onnx export 'shell_net:make' -o model.onnx"),
        (["lint", "inner/shell_net.py"], "give the path of an ONNX file"),
        (["run", "net.onnx", "-i", "x=1,2,3,4"], "numpy.save('x.npy', numpy.array([[1,2,3,4]], 'float32'))"),
        (["run", "net.onnx", "-i", "x=[[1.5, 2e3]]"], "numpy.array([[1.5, 2e3]], 'float32')"),
        (["run", "net.onnx", "-o", "out.npy"], "-o out.npz"),
        (["run", "net.onnx", "-i", "x=objects.npy"], "numpy.save('objects.npy', array.astype('float32'))"),
    ],
)
def test_a_mistaken_file_leads_to_the_right_one(arguments: list[str], step: str) -> None:
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    fx2onnx.export(torch.nn.Identity(), (torch.ones(3, 4),), "net.onnx", input_names=["x"])
    assert step in "\n".join(error_of(*arguments)["next"])


def test_a_file_with_other_weights_says_so_in_a_shell() -> None:
    fx2onnx.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),), "net.onnx")
    Path("other.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(3, 4)\n")
    done = invoke("verify", "net.onnx", "other.py:make")
    assert done.exit_code == 1
    assert "next  1. give the module that was exported, with the same weights" in done.stderr


def test_names_need_no_import_of_the_version_that_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Imported:
        def names(self) -> list[str]:
            return ["of_the_package"]

    monkeypatch.setattr(registry, "_builder", lambda kind: Imported())
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    assert registry.names("timm") == registry.known_names()["timm"]
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.0.1")
    assert registry.names("timm") == ["of_the_package"]
    monkeypatch.undo()
    monkeypatch.setattr(registry, "_builder", lambda kind: Imported())
    monkeypatch.setitem(sys.modules, "timm", sys)  # it may have models of the user's
    assert registry.names("timm") == ["of_the_package"]


@pytest.mark.long
def test_the_names_are_those_of_the_libraries() -> None:
    assert registry.known_names() == model_names.collected(), "make names writes them"


@pytest.mark.parametrize("flags", [("--strict",), ("--fail-on", "warnings"), ("--fail-on=warnings",)])
def test_a_strict_export_with_a_warning_writes_nothing(flags: tuple[str, ...]) -> None:
    spec = "inner/shell_net.py:make_counting"
    error = error_of("export", spec, "-o", "net.onnx", *flags, "--no-verify")
    assert "calls" in error["what"]
    assert not Path("net.onnx").exists()
    assert "--state io" in error["what"]
    for shown in ((), ("-q",)):
        done = invoke("export", spec, "-o", "net.onnx", "--no-verify", *shown)
        assert done.exit_code == 0
        assert "--state io" in " ".join(done.output.split())
    assert invoke("export", "inner/shell_net.py:make", "-o", "net.onnx", "--no-verify", "-q", *flags).exit_code == 0


@pytest.mark.parametrize(
    ("maker", "flags", "step"),
    [
        ("make_chosen", (), "--bake kind"),
        ("make_chosen_twice", (), "--bake kind,sign"),
        ("make_sampled", ("--opset", "14"), "--opset 16"),
        ("make_counting", ("--state", "error"), "--state io"),
        ("make_added", ("--dynamic", "a:0=n"), "--dynamic a:0=n;b:0=n"),
    ],
)
def test_steps_name_options_of_the_command(maker: str, flags: tuple[str, ...], step: str) -> None:
    export = ("export", f"inner/shell_net.py:{maker}", "-o", "net.onnx", "--no-verify")
    option, _, value = step.partition(" ")
    steps = error_of(*export, *flags)["next"]
    assert any((option if option == "--dynamic" else step) in each for each in steps)
    assert not any("dynamic_shapes" in each or "opset_version" in each for each in steps)
    assert invoke(*export, option, value).exit_code == 0


@pytest.mark.parametrize("flags", [("--fail-on", "warning"), ("--fail-on=errors",), ("--fail-on",)])
def test_another_word_than_warnings_is_refused(flags: tuple[str, ...]) -> None:
    error = error_of("export", "inner/shell_net.py:make", "-o", "net.onnx", "--no-verify", *flags)
    assert error["next"] == ["--fail-on warnings, or --strict"]


def test_a_strict_export_names_every_warning() -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(fx2onnx.ExportWarning, match="first\nsecond"):
        warn(["first", "second"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_verify_takes_inputs_of_files(name: str) -> None:
    spec = "inner/shell_net.py:make"
    assert invoke("export", spec, "-o", "net.onnx", "--no-verify", "-q", "--dynamic", "x:0=n").exit_code == 0
    save: Any = np.save if name == "x.npy" else np.savez
    save(name, np.full((7, 4), 2.0, "float32"))
    done = invoke("verify", "net.onnx", spec, "--input", f"x={name}", "--json")
    assert done.exit_code == 0, done.output
    ranges = json.loads(done.stdout)["ranges"]["x"]
    assert [7, 4] in ranges["shapes"]
    for array, code in ((np.zeros((7, 4)), "E401"), (np.zeros((7, 5), "float32"), "E401")):
        save(name, array)
        assert error_of("verify", "net.onnx", spec, "--input", f"x={name}")["code"] == code
    assert "x" in error_of("verify", "net.onnx", spec, "--input", f"y={name}")["next"][0]


def test_doctor_says_what_is_missing_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = listing._looked_at
    packages = {
        "openvino": listing.Package("openvino", "", "verify --engine openvino"),
        "timm": listing.Package("timm", "1.0", "timm: sources", "ImportError: no"),
    }
    monkeypatch.setattr(listing, "_looked_at", lambda name, why="": packages.get(name) or looked_at("numpy", why))
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    done = invoke("doctor", "--json")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    used = {kind.package for kind in registry.KINDS.values() if kind.package}
    assert set(listing.PURPOSES) >= used | (set(EXTRAS) - {"z3"})
    assert "pip install openvino" in "\n".join(found["advice"])
    assert "pip install --upgrade timm" in "\n".join(found["advice"])
    assert "unset OPENBLAS_CORETYPE" in found["advice"][-1]
    assert found["engines"]["generate"] in ("onnxruntime", "runner")
    assert "to do" in invoke("doctor").stdout
    packages["timm"] = listing.Package("timm", "1.0", "timm: sources")
    assert invoke("doctor").exit_code == 0


@pytest.mark.long
def test_an_export_has_the_options_of_the_python_call(folder: Path) -> None:
    source = "inner/shell_net.py:make_counting"
    asked = ("--input-names", "a", "--output-names", "b", "--state", "io", "--metadata", "none", "--no-optimize")
    done = invoke("export", source, "-o", "net.onnx", "-q", "--data-branches", "error", "--no-external-data", *asked)
    assert done.exit_code == 0, done.output
    shown = json.loads(invoke("inspect", "net.onnx", "--json").stdout)
    assert [each["name"] for each in shown["inputs"]] == ["a", "calls"]
    assert [each["name"] for each in shown["outputs"]] == ["b", "calls.next"]
    many = invoke("export-many", source, "-o", "out", "-q", *asked[4:])
    assert many.exit_code == 0, many.output
    assert "calls" in invoke("inspect", str(next(Path("out").glob("*.onnx"))), "--json").stdout


def test_a_quiet_command_says_nothing(folder: Path) -> None:
    for name in ("a", "b"):
        assert invoke("export", "inner/shell_net.py:make", "-o", f"{name}.onnx", "-q", "--seed", 1).exit_code == 0
    for command in (("run", "a.onnx"), ("lint", "a.onnx"), ("diff", "a.onnx", "b.onnx")):
        done = invoke(*command, "-q")
        assert (done.exit_code, done.output) == (0, ""), command


def test_a_quiet_export_says_its_warnings(folder: Path) -> None:
    Path("shouting.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        print(x.sum().item())\n        return x * 2\n\n\n"
        "def make():\n    return Net(), (torch.ones(2),)\n"
    )
    done = invoke("export", "shouting.py:make", "-o", "loud.onnx", "-q", "--no-verify")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("warning: forward prints or logs numbers")


def test_a_wrong_file_names_the_command_that_finds_the_node(folder: Path) -> None:
    fx2onnx.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),), "wrong.onnx", input_names=["x"])
    done = invoke("verify", "wrong.onnx", "inner/shell_net.py:make")
    assert done.exit_code == 1
    assert "fx2onnx locate wrong.onnx inner/shell_net.py:make" in " ".join(done.stderr.split())


@pytest.mark.parametrize("name", ["export", "export-training", "profile"])
def test_a_missing_source_is_said_by_every_command(name: str, tmp_path: Path) -> None:
    """Options of sources, such as --stand-ins, go with it to what builds it."""
    where = [] if name == "profile" else ["-o", str(tmp_path / "out")]
    done = invoke(name, "no_module_of_this_name:make", *where)
    assert (done.exit_code, "[E601]" in done.stderr) == (2, True), done.stderr
