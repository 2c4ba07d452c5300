"""Numbers a step of a float apart, of as many as a size says: which whole number each lies behind is as in eager PyTorch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from tests.verify.given import Given


@pytest.mark.parametrize(("start", "step"), [(0, 1.3), (0, 0.1), (0, 0.7), (0.1, 1.1), (0.5, 2.0), (1, 0.25)])
def test_numbers_a_step_apart(start: float, step: float) -> None:
    module = Given(lambda x: torch.arange(start, x.shape[0], step))
    result = fx2onnx.export(module, (torch.zeros(41),), dynamic_shapes=({0: "n"},))
    assert verify(result, module, (torch.zeros(41),), seeds=()).ok
    model = result.model_proto.SerializeToString()
    sessions = [InferenceSession(model), onnxruntime.InferenceSession(model)]
    for size in (20, 41, 161, 1000):
        want = torch.arange(start, size, step).numpy()
        for session in sessions:
            (got,) = session.run(None, {session.get_inputs()[0].name: np.zeros(size, np.float32)})
            assert got.shape == want.shape
            assert np.array_equal(np.floor(got), np.floor(want))
            np.testing.assert_allclose(got, want, rtol=3e-7)
