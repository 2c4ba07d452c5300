"""The environments of the compatibility page, and how one is made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from studies.cuda_free import free_of_cuda

ROOT = Path(__file__).parent.parent
_ONNX = "onnx_ir onnxscript ml_dtypes"
_TESTS = "hypothesis jsonschema pytest packaging psutil rich safetensors typer xxhash"
_PURE = "filelock typing_extensions sympy networkx jinja2 fsspec setuptools pillow pyyaml tqdm expecttest scikit-learn"
"""The requirements of torch, torchvision and timm beside each other and CUDA, and of the tests where there is torch."""
_WHOLE = "-c constraints.txt setuptools>=77 build dask distributed matplotlib playwright pytest-xdist mypy ruff"
"""The requirements of the default suite beside those of the core tests."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A row of the page. What is in ``alone`` is installed without what it asks for, which would bring CUDA."""

    name: str
    python: str
    alone: str
    packages: str

    @property
    def has_torch(self) -> bool:
        return bool(self.alone)


def _with(name: str, python: str, torch: str, vision: str, timm: str, packages: str) -> Environment:
    alone = f"torch=={torch} torchvision=={vision} timm{timm}"
    return Environment(name, python, alone, f"{packages} {_ONNX} {_TESTS} {_PURE}")


_NEWEST = "transformers onnx onnxruntime numpy"
_PINNED = "-c constraints.txt transformers onnx onnxruntime numpy"

ENVIRONMENTS = (
    _with("torch-2.15", "3.11", "2.15.0", "0.29.2", "", _NEWEST),
    _with(
        "torch-2.14",
        "3.11",
        "2.14.1",
        "0.29.1",
        "==1.0.30",
        "transformers==5.20.2 onnx==1.22.0 onnxruntime==1.30.0 numpy",
    ),
    _with("torch-2.13", "3.11", "2.13.0", "0.28.0", "==1.0.31", _PINNED),
    _with(
        "torch-2.12",
        "3.11",
        "2.12.1",
        "0.27.1",
        "==1.0.27",
        "transformers==5.10.4 onnx==1.21.0 onnxruntime numpy==2.3.5",
    ),
    _with(
        "torch-2.11",
        "3.11",
        "2.11.0",
        "0.26.0",
        "==1.0.25",
        "transformers==5.5.4 onnx==1.20.1 onnxruntime numpy==2.2.6",
    ),
    _with(
        "torch-2.10",
        "3.11",
        "2.10.0",
        "0.25.0",
        "==1.0.24",
        "transformers==5.0.0 onnx==1.19.1 onnxruntime numpy==2.1.3",
    ),
    _with(
        "torch-2.9",
        "3.11",
        "2.9.1",
        "0.24.1",
        "==1.0.22",
        "transformers==4.57.6 onnx==1.19.1 onnxruntime numpy==2.0.2",
    ),
    _with(
        "torch-2.8",
        "3.11",
        "2.8.0",
        "0.23.0",
        "==1.0.19",
        "transformers==4.56.2 onnx==1.19.1 onnxruntime numpy==2.2.6",
    ),
    _with("transformers-5.24", "3.11", "2.13.0", "0.28.0", "==1.0.31", "transformers==5.24.0 onnx onnxruntime numpy"),
    _with("python-3.14", "3.14", "2.15.0", "0.29.2", "", _NEWEST),
    _with("python-3.13", "3.13", "2.15.0", "0.29.2", "", _NEWEST),
    _with("python-3.12", "3.12", "2.15.0", "0.29.2", "", _NEWEST),
    Environment("no-torch", "3.11", "", f"onnx==1.17.0 onnxruntime==1.17.3 numpy==1.26.4 onnx_ir ml_dtypes {_TESTS}"),
)
"""Each minor version of torch, the newest first, with what was current beside it; the newest transformers beside the pinned torch. onnxruntime is newer, as the tests ask it for every opset, and
1.20.1 and 1.23.2 end the process at sizes of 0; for older releases there is `--target`. The oldest of the rest is beside the
runner, without torch.
"""


class Unavailable(Exception):
    """This machine has no interpreter of the version, or no package of it is to be had."""


def make(environment: Environment, folder: Path) -> Path:
    """The environment's interpreter. Raises Unavailable."""
    interpreter = next(_interpreters(environment.python), None)
    if interpreter is None:
        raise Unavailable(f"this machine has no Python {environment.python}")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    if environment.has_torch:
        _install(python, "--no-deps", *environment.alone.split())
        runtime = free_of_cuda(next(folder.glob("lib/python3.*/site-packages")))
        if runtime:
            _install(python, "--no-deps", runtime)
    _install(python, *environment.packages.split())
    return python


def make_whole(python: Path) -> None:
    """Add to an environment what the default suite needs. Raises Unavailable."""
    _install(python, *_WHOLE.split())


def _interpreters(version: str) -> Iterator[str]:
    """Interpreters of this version that start: on the path, and pyenv's."""
    found = shutil.which(f"python{version}")
    places = [found] if found else []
    places += map(
        str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}*/bin/python")
    )
    for place in places:
        say = [place, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(say, capture_output=True, text=True, check=False).stdout.strip() == version:
            yield place


def _install(python: Path, *packages: str) -> None:
    """Raises Unavailable with pip's last word."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise Unavailable(errors[-1].removeprefix("ERROR: "))
