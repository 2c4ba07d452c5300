"""istft of any number of frames, to a length that is a size: cut, or filled with zeros, as torch does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession


class Restored(torch.nn.Module):
    def __init__(self, normalized: bool) -> None:
        super().__init__()
        self.normalized = normalized
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.stft(x, 64, 16, window=self.window, return_complex=True, normalized=self.normalized)
        options: dict[str, Any] = {"window": self.window, "normalized": self.normalized}
        to_length = torch.istft(z, 64, 16, **options, length=k.shape[0])
        return to_length, torch.istft(z, 64, hop_length=16, **options), z.istft(64, 16, **options, length=x.shape[-1])


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("make", [onnxruntime.InferenceSession, InferenceSession])
def test_istft_at_other_sizes(tmp_path: Path, normalized: bool, make: Callable[..., Any]) -> None:
    module = Restored(normalized)
    n, k = torch.export.Dim("n", min=200), torch.export.Dim("k", min=40)
    path = str(tmp_path / "model.onnx")
    fx2onnx.export(module, (torch.randn(2, 500), torch.zeros(480)), path, dynamic_shapes=({1: n}, {0: k}))
    session = make(path)
    for length, count in ((500, 480), (512, 500), (301, 200), (640, 650), (640, 640), (1000, 64)):
        x, zeros = torch.randn(2, length), torch.zeros(count)
        for found, expected in zip(
            session.run(None, {"x": x.numpy(), "k": zeros.numpy()}), module(x, zeros), strict=True
        ):
            assert found.shape == tuple(expected.shape)
            np.testing.assert_allclose(found, expected.numpy(), atol=3e-5)
