"""``chunk_policy_source``: the file's chunks are those of the policy between LeRobot's normaliser and its inverse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fx2onnx
from fx2onnx import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.sources.chunk_policies import NOISE, chunk_policy_source
from fx2onnx.sources.policies import CONTRACT

STATE, CAMERA = "observation.state", "observation.images.top"
SIZES = {STATE: (3,), CAMERA: (3, 4, 4), "action": (2,)}


def _feature(kind: str, name: str) -> SimpleNamespace:
    return SimpleNamespace(type=SimpleNamespace(name=kind), shape=SIZES[name])


def _config(mode: str) -> SimpleNamespace:
    modes = {"STATE": mode, "VISUAL": "IDENTITY", "ACTION": mode}
    return SimpleNamespace(
        input_features={STATE: _feature("STATE", STATE), CAMERA: _feature("VISUAL", CAMERA)},
        output_features={"action": _feature("ACTION", "action")},
        normalization_mapping={kind: SimpleNamespace(name=name) for kind, name in modes.items()},
        n_obs_steps=2,
        horizon=5,
    )


class Chunks(nn.Module):
    """An ACT-like policy: queries of a chunk attend to the observation."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.config = _config(mode)
        self.queries = nn.Parameter(torch.randn(6, 8))
        self.state, self.image, self.head = nn.Linear(3, 8), nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def predict_action_chunk(self, batch: Mapping[str, Tensor]) -> Tensor:
        tokens = torch.cat([self.state(batch[STATE])[:, None], self.image(batch[CAMERA]).flatten(2).mT], dim=1)
        found: Tensor = self.head(self.attention(self.queries.expand(len(tokens), -1, -1), tokens, tokens)[0])
        return found


class Sampler(nn.Module):
    """A denoiser of chunks in three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv1d(2, 2, 3, padding=1)
        self.condition = nn.Linear(2 * (3 + 3), 2)

    def generate_actions(self, batch: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        seen = torch.cat([batch[STATE], batch["observation.images"].mean(dim=(2, 4, 5))], dim=-1).flatten(1)
        sample = noise
        for step in range(3):
            sample = sample - self.net(sample.mT).mT / (step + 2) + self.condition(seen)[:, None]
        return sample[:, 1:4]


class Denoises(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.config = _config(mode)
        self.diffusion = Sampler()

    def predict_action_chunk(self, batch: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError  # it reads queues


def _statistics() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    found = {}
    for name in (STATE, "action"):
        low = rng.normal(size=SIZES[name]).astype(np.float32)
        high = low + rng.random(SIZES[name], np.float32)
        high[-1] = low[-1]  # a joint that never moves
        found[name] = {"mean": low, "std": high - low, "min": low, "max": high, "q01": low, "q99": high}
    return found


def _normal(x: Tensor, low: Any, high: Any, mode: str, *, inverse: bool) -> Tensor:
    """As LeRobot's NormalizerProcessorStep computes it."""
    low, high = torch.as_tensor(low), torch.as_tensor(high)
    if mode == "MEAN_STD":
        return x * high + low if inverse else (x - low) / (high + 1e-8)
    wide = torch.where(high == low, torch.tensor(1e-8), high - low)
    return (x + 1) / 2 * wide + low if inverse else 2 * (x - low) / wide - 1


@pytest.mark.parametrize(
    ("make", "mode", "keys"),
    [
        (Chunks, "MEAN_STD", ("mean", "std")),
        (Denoises, "MIN_MAX", ("min", "max")),
        pytest.param(Denoises, "QUANTILES", ("q01", "q99"), marks=pytest.mark.long),
    ],
)
def test_chunks_in_the_robots_units(make: Any, mode: str, keys: tuple[str, str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy, statistics = make(mode).eval(), _statistics()
    source = chunk_policy_source(policy, statistics, rate_hz=30, names={"action": ["lift", "turn"]})
    path = tmp_path / "policy.onnx"
    fx2onnx.export(source.module, (), path, kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes)
    steps = () if make is Chunks else (2,)
    feeds = {STATE: torch.randn(3, *steps, 3), CAMERA: torch.rand(3, *steps, 3, 4, 4)}
    feeds[STATE][..., -1] = float(statistics[STATE][keys[0]][-1])
    low, high = (statistics[STATE][key] for key in keys)
    batch = {**feeds, STATE: _normal(feeds[STATE], low, high, mode, inverse=False)}
    with torch.no_grad():
        if make is Chunks:
            wanted = policy.predict_action_chunk(batch)
        else:
            feeds[NOISE] = torch.randn(3, 5, 2)
            images = batch.pop(CAMERA)[:, :, None]
            wanted = policy.diffusion.generate_actions(batch | {"observation.images": images}, noise=feeds[NOISE])
    wanted = _normal(wanted, *(statistics["action"][key] for key in keys), mode, inverse=True).numpy()
    arrays = {name: value.numpy() for name, value in feeds.items()}
    for session in (InferenceSession(path), onnxruntime.InferenceSession(path)):
        (found,) = session.run(None, arrays)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    stated = json.loads(source.metadata[CONTRACT])
    assert (stated["rate_hz"], stated["action"]["shape"], stated["names"]["action"]) == (30, [2], ["lift", "turn"])


@pytest.mark.parametrize(
    ("policy", "statistics", "message"),
    [
        (nn.Linear(2, 2), {}, "Linear is no policy of LeRobot"),
        (Chunks("MEAN_STD"), {STATE: {"mean": [0.0]}}, "statistics of observation.state have no std"),
        (Chunks("LOG"), {STATE: {"mean": [0.0]}}, "observation.state is normalized by LOG"),
    ],
)
def test_what_cannot_be_normalised_is_refused(policy: Any, statistics: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        chunk_policy_source(policy, statistics)
    assert caught.value.code == "E601"
