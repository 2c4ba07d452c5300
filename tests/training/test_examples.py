"""What stands in ``examples/`` runs as its first line says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from fx2onnx.base import safetensors

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora_bert.py"
PREPARED = "import runpy, sys; from fx2onnx.sources.torchvision_compat import prepare; prepare(); "
WITHOUT_TORCH = "import runpy, sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
RUN = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def run(prelude: str, *arguments: str) -> str:
    command = [sys.executable, "-c", prelude + RUN, str(EXAMPLE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lora_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = str(tmp_path / "lora")
    run(PREPARED, "export", folder)
    said = run(WITHOUT_TORCH, "train", folder)
    assert float(said.split()[1]) > 0.9
    kept, _ = safetensors.places(tmp_path / "lora" / "adapters.safetensors")
    parameters = [name for name in kept if ".exp_avg" not in name and name != "step"]
    assert parameters
    assert all(".up" in name or ".down." in name or name.startswith("classifier.") for name in parameters)
    onnx.checker.check_model(tmp_path / "lora" / "tuned" / "model.onnx")


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
