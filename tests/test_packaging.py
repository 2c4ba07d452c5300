"""The wheel and the source archive: built twice, installed in clean environments, used without torch and with types."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import fx2onnx
import fx2onnx.runner
import fx2onnx.sources
import fx2onnx.verify

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
TYPED = Path(__file__).parent / "data" / "typed"
MOST_BYTES = 3_000_000


def run(*command: str | Path, folder: Path, umask: int = -1) -> str:
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "120"}
    done = subprocess.run(
        command, cwd=folder, env=variables, umask=umask, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """The interpreter of a new environment with these packages and what they ask for."""
    run(sys.executable, "-m", "venv", folder, folder=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *packages, folder=folder)
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two builds from two copies of the tracked files, which differ in place, age and permissions."""
    base = tmp_path_factory.mktemp("builds")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    python = environment(base / "builder", "hatchling")
    made = []
    for name, umask in (("a", 0o022), ("another_place", 0o077)):
        copy = base / name
        for file in filter(None, tracked.split("\0")):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copy / file)
            (copy / file).chmod(0o666 & ~umask)
        run(python, "-m", "hatchling", "build", "-d", "dist", folder=copy, umask=umask)
        made.append(copy / "dist")
    return made[0], made[1]


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return next(built[0].glob("*.whl"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what it asks for, no extras."""
    return environment(tmp_path_factory.mktemp("clean") / "base", wheel)


def test_builds_are_the_same_bytes(built: tuple[Path, Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in built)
    assert sorted(first) == [f"fx2onnx-{fx2onnx.__version__}-py3-none-any.whl", f"fx2onnx-{fx2onnx.__version__}.tar.gz"]
    assert first == second


def test_what_is_in_them(built: tuple[Path, Path], wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "fx2onnx", "models_zoo"], cwd=ROOT, capture_output=True, text=True)
    expected = {re.sub("^models_zoo/", "fx2onnx/models_zoo/", name) for name in tracked.stdout.split()}
    assert {name for name in inside if ".dist-info/" not in name} == expected
    with tarfile.open(next(built[0].glob("*.tar.gz"))) as archive:
        source = archive.getnames()
    assert any(name.endswith("/tests/test_packaging.py") for name in source)
    assert not any(re.search(r"/(out|\.venv|\.git)/", name) for name in source)


def test_the_wheel_alone_runs_a_model(base: Path, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    fx2onnx.export(module, (torch.randn(3, 4),), tmp_path / "m.onnx", dynamic_shapes=({0: "batch"},))
    installed = run(base, "-m", "pip", "list", "--format=freeze", folder=tmp_path)
    assert not re.search(r"^(torch|onnxruntime|onnxscript|transformers)==", installed, re.MULTILINE)
    code = (
        "import numpy as np; from fx2onnx.runner import InferenceSession; "
        "print(InferenceSession('m.onnx').run(None, {'input': np.ones((5, 4), np.float32)})[0].shape)"
    )
    assert run(base, "-c", code, folder=tmp_path).strip() == "(5, 2)"
    command = base.parent / "fx2onnx"
    assert "output" in run(command, "run", "m.onnx", folder=tmp_path)
    assert "Gemm" in run(command, "show", "m.onnx", folder=tmp_path)
    run(command, "optimize", "m.onnx", "o.onnx", "--fix", "batch=2", folder=tmp_path)
    assert (tmp_path / "o.onnx").exists()


def test_the_source_archive_installs_and_runs(
    base: Path, built: tuple[Path, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = next(built[1].glob("*.tar.gz"))
    folder = tmp_path_factory.mktemp("from_source")
    run(base, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, source, folder=tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import fx2onnx.runner as r; print(r.__version__, r.__file__)"
    )
    said = run(base, "-c", code, folder=tmp_path)
    assert said.startswith(fx2onnx.__version__)
    assert str(folder) in said


@pytest.fixture(scope="module")
def checked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of the two files of a user who has the wheel, torch and the rest installed."""
    folder = tmp_path_factory.mktemp("typed")
    run(sys.executable, "-m", "venv", folder / "env", folder=folder)
    site = next((folder / "env").glob("lib/python*/site-packages"))
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel, folder=folder)
    around = [path for path in sys.path if path.endswith("site-packages")]
    (site / "around.pth").write_text("\n".join(around))
    for file in ("user.py", "wrong.py"):
        shutil.copyfile(TYPED / file, folder / file)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", folder / "env" / "bin" / "python"]
    done = subprocess.run([*command, "user.py", "wrong.py"], cwd=folder, capture_output=True, text=True, timeout=600)
    return done.stdout


def test_a_users_file_passes_strict_type_checks(checked: str) -> None:
    assert "user.py" not in checked, checked
    assert "Found " in checked, checked


def test_a_users_mistakes_are_found(checked: str) -> None:
    lines = (TYPED / "wrong.py").read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert {int(number) for number in re.findall(r"^wrong\.py:(\d+): error", checked, re.MULTILINE)} == wanted, checked


@pytest.mark.parametrize("module", [fx2onnx, fx2onnx.runner, fx2onnx.sources])
def test_the_users_file_takes_every_public_name(module: object) -> None:
    text = (TYPED / "user.py").read_text()
    assert [name for name in vars(module)["__all__"] if not re.search(rf"\b{name}\b", text)] == []
