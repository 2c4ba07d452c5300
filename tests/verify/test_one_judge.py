"""``verify``, ``locate`` and ``optimize`` judge alike: files that are harmed in known ways, and files that are only rewritten."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import locate, verify
from fx2onnx.judge.feeds import inputs_of
from fx2onnx.steps.compare import Original
from studies.sabotage.harms import HARMS
from studies.sabotage.sketch import Sketch


class Block(nn.Module):
    """A normalised layer with a residual and a mask, whose lowest number stands beside scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.inner, self.head = nn.LayerNorm(12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x + torch.relu(self.inner(self.norm(x)))
        return (self.head(inner) + torch.tensor([0.0, 0.0, 0.0, 0.0, -1e4])).softmax(-1)


X = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
KINDS = (
    "axis", "epsilon", "residual_dropped", "node_bypassed", "other_value_read", "in_half_precision", "in_brain_floats",
    "scaled_a_little", "last_axis_turned", "operator_of_two", "activation", "output_rounded", "noise",
    "weight_scaled", "sign_of_one_weight", "weight_turned",
)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one_judge") / "sound.onnx"
    fx2onnx.export(Block(), (X,), path)
    return path


def original(path: Path) -> Original:
    model = ir.load(path)
    return Original(
        str(path), inputs_of(model), [value.name or "" for value in model.graph.outputs], frozenset(), ["runner"]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_verify_refuses_optimize_refuses_and_locate_finds(sound: Path, tmp_path: Path, kind: str) -> None:
    sketch = Sketch.of(onnx.load(sound), 7, {"x": X.numpy()})
    site = HARMS[kind](sketch)
    assert site is not None
    harmed = tmp_path / "harmed.onnx"
    harmed.write_bytes(sketch.written())
    verdict, comparison = verify(harmed, Block(), (X,)), original(sound).compare(str(harmed))
    assert verdict.ok == comparison.ok
    if not verdict.ok:
        found = locate(harmed, Block(), (X,), verdict=verdict)
        assert found is not None
        assert found.nodes


@pytest.mark.parametrize("level", [1, 3])
def test_what_optimize_accepts_verify_accepts(sound: Path, tmp_path: Path, level: int) -> None:
    result = fx2onnx.optimize_model(sound, tmp_path / "rewritten.onnx", level=level)
    assert result.verified
    assert verify(tmp_path / "rewritten.onnx", Block(), (X,)).ok
    assert locate(tmp_path / "rewritten.onnx", Block(), (X,)) is None


JUDGES = ("cli", "diff", "generation", "judge", "precision", "quantize", "steps", "verify")


def test_tolerances_stand_in_one_file() -> None:
    package = Path(fx2onnx.__file__).parent
    wrong = [
        f"{path.relative_to(package)}:{number}: {line.strip()}"
        for room in JUDGES
        for path in sorted((package / room).rglob("*.py"))
        if path != package / "judge" / "constants.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(allclose|rtol=[\d.]|atol=[1-9]|(?:TOLERANCE|RTOL|ATOL|\w*ERROR_RATIO) = )", line)
    ]
    assert wrong == []
