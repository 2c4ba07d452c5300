"""What installed packages add by entry points: an example package, installed and used, and one of which everything fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = Path(__file__).parent / "data" / "plugin"

USED = """
import json, sys
import fx2onnx
said = {"early": "importlib.metadata" in sys.modules}
import torch
from typer.testing import CliRunner
from fx2onnx.cli.main import app
from fx2onnx.sources import names, resolve
from fx2onnx.targets.form import find, names as targets
from fx2onnx import verify

fx2onnx.export(torch.nn.Tanh(), (torch.ones(2),), "new.onnx", target="acme-rt-2.1")
said["imported"] = sorted(name for name in sys.modules if name.startswith("acme"))
said |= {"sources": names("acme"), "targets": "acme-rt" in targets(), "opsets": [find(f"acme-rt-2.{n}").opset for n in (0, 1)]}
source = resolve("acme:clipped?width=4", batch=3)
result = fx2onnx.export(source.module, source.args, "clipped.onnx", dynamic_shapes=source.dynamic_shapes)
verify(result, source.module, source.args, engines=["runner"]).raise_if_failed()
said["operators"] = [node.op_type for node in result.model.graph]
said["warnings"] = [line for line in result.report.warnings if "cannot be used" in line]
scaled = fx2onnx.export(resolve("acme:scaled").module, (torch.tensor([[0.5, -0.25]]),))
said["scaled"] = [str(assumed) for assumed in scaled.report.assumptions]
for largest in (0.5, 4.0):
    verify(scaled, resolve("acme:scaled").module, (torch.tensor([[largest, -0.25]]),)).raise_if_failed()
try:
    fx2onnx.export(torch.nn.Tanh(), (torch.ones(2),), "old.onnx", target="acme-rt-2.0")
except fx2onnx.UserError as error:
    said["old target"] = f"{error.code} {error.why}"
for target in ("acme-rt-2.0", "acme-rt"):
    done = CliRunner().invoke(app, ["lint", "clipped.onnx", "--target", target])
    said[target] = [done.exit_code, done.stdout]
said["list"] = CliRunner().invoke(app, ["list"]).stdout
print(json.dumps(said))
"""


def python(*arguments: str, folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "COLUMNS": "120"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip put the example package into."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "plugin")
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [sys.executable, *pip, "--target", folder, source], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def used(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with what was exported, and what was seen."""
    folder = tmp_path_factory.mktemp("used")
    done = python("-c", USED, folder=folder, path=installed)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_sources_translations_patches_and_targets_of_a_package(used: tuple[Path, dict[str, Any]]) -> None:
    folder, said = used
    assert not said["early"]
    assert said["imported"] == [
        "acme_fx",
        "acme_fx.layers",
        "acme_fx.patches",
        "acme_fx.targets",
        "acme_fx.translations",
    ]
    assert said["sources"] == ["clipped", "scaled"]
    assert said["operators"] == ["Gemm", "SoftClip"]
    assert said["warnings"] == []
    assert any("at_most_one decides by the largest number" in line for line in said["scaled"])
    assert said["targets"]
    assert said["opsets"] == [18, 20]
    assert said["old target"].startswith("E204")
    assert "Tanh" in said["old target"]
    assert not (folder / "old.onnx").exists()
    assert (folder / "new.onnx").exists()
    assert said["acme-rt-2.0"][0] == 1
    assert "SoftClip" in said["acme-rt-2.0"][1]
    assert said["acme-rt"][0] == 0
    assert "the layers of Acme" in said["list"]


@pytest.mark.long
def test_kernels_of_a_package_are_found_where_the_runner_has_none(
    installed: Path, used: tuple[Path, dict[str, Any]]
) -> None:
    folder, _ = used
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np; from fx2onnx.runner import InferenceSession\n"
        "print(abs(InferenceSession('clipped.onnx').run(None, {'x': np.full((5, 4), 1e6, np.float32)})[0]).max())"
    )
    # The kernel's module needs no torch; that of the translations would.
    done = python("-c", code, folder=folder, path=installed)
    assert done.stdout.strip() == "2.0", done.stderr


BROKEN = {
    "fx2onnx.translations": "broken_fx.translations",
    "fx2onnx.kernels": "broken_fx.kernels",
    "fx2onnx.patches": "broken_fx.patches",
    "fx2onnx.sources": "broken_fx:SOURCE",
    "fx2onnx.targets": "broken_fx:TARGET",
}

UNDISTURBED = """
import json
import torch
import fx2onnx
from typer.testing import CliRunner
from fx2onnx.cli.main import app
from fx2onnx.runner import InferenceSession
from fx2onnx.sources import resolve
from fx2onnx.targets.form import find

@torch.library.custom_op("broken::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@op.register_fake
def _(x):
    return torch.empty_like(x)

class Calls(torch.nn.Module):
    def forward(self, x):
        return op(x)

def said_by(function):
    try:
        function()
    except fx2onnx.UserError as error:
        return {"code": error.code, "text": str(error)}
    return {"code": "", "text": ""}

import onnx.helper as h
lone = h.make_model(h.make_graph([h.make_node("Op", ["x"], ["y"], domain="broken")], "g",
    [h.make_tensor_value_info("x", 1, [1])], [h.make_tensor_value_info("y", 1, [1])]),
    opset_imports=[h.make_opsetid("", 20), h.make_opsetid("broken", 1)])
for _ in range(2):
    warnings = fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),), verify=True).report.warnings
listed = CliRunner().invoke(app, ["list"])
print(json.dumps({
    "list": [listed.exit_code, listed.stdout, listed.stderr],
    "warnings": warnings,
    "missing": said_by(lambda: fx2onnx.export(Calls(), (torch.ones(2),))),
    "kernel": said_by(lambda: InferenceSession(lone.SerializeToString())),
    "source": said_by(lambda: resolve("broken:x")),
    "target": said_by(lambda: find("broken-1.0")),
    "unlike": said_by(lambda: find("unlike")),
}))
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_fx").mkdir()
    (folder / "broken_fx" / "__init__.py").write_text("SOURCE = 7\n")
    (folder / "broken_fx" / "translations.py").write_text("import a_package_that_is_nowhere\n")
    (folder / "broken_fx" / "kernels.py").write_text("1 / 0\n")
    (folder / "broken_fx" / "patches.py").write_text("def (\n")
    (folder / "broken_fx" / "unlike.json").write_text('{"source": "me", "date": "today", "releases": {"x": {}}}')
    (folder / "broken_fx" / "unlike.py").write_text(
        "from pathlib import Path\nFILE = Path(__file__).with_suffix('.json')"
    )
    facts = folder / "broken_fx-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-fx\nVersion: 0.1\n")
    lines = [f"[{group}]\nbroken = {value}\n" for group, value in BROKEN.items()]
    (facts / "entry_points.txt").write_text("\n".join([*lines, "unlike = broken_fx.unlike:FILE\n"]))
    return folder


@pytest.mark.long
def test_a_package_that_fails_is_one_sentence_that_names_it(broken: Path, tmp_path: Path) -> None:
    done = python("-c", UNDISTURBED, folder=tmp_path, path=broken)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    named = "'broken' of the package broken-fx 0.1"
    assert len([line for line in said["warnings"] if named in line]) == 2  # its translations and its patches
    assert any("a_package_that_is_nowhere" in line for line in said["warnings"])
    assert any("SyntaxError" in line for line in said["warnings"]), said["warnings"]
    wanted = {"missing": "E201", "kernel": "E402", "source": "E603", "target": "E603"}
    for case, code in wanted.items():
        assert said[case]["code"] == code
        assert named in said[case]["text"], said[case]["text"]
    assert "ZeroDivisionError" in said["kernel"]["text"]
    assert "SourceKind" in said["source"]["text"]
    assert "'kernels'" in said["unlike"]["text"]
    assert said["list"][0] == 0
    assert "torchvision" in said["list"][1]
    assert named in said["list"][2]
