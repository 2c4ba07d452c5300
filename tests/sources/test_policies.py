"""``policy_source``: the file's actions are those of ``predict``, with normalised observations, scaled actions and carried state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import fx2onnx
from fx2onnx import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.sources.policies import CONTRACT, OBSERVATION, STARTS, STATE, policy_source

CASES = {
    "ppo": ("stable_baselines3:PPO", "MlpPolicy", "box", "arm"),
    "sac": ("stable_baselines3:SAC", "MlpPolicy", "box", "arm"),
    "td3": ("stable_baselines3:TD3", "MlpPolicy", "box", "arm"),
    "dqn": ("stable_baselines3:DQN", "MlpPolicy", "box", "keys"),
    "dict": ("stable_baselines3:PPO", "MultiInputPolicy", "dict", "arm"),
    "images": ("stable_baselines3:PPO", "CnnPolicy", "images", "keys"),
    "recurrent": ("sb3_contrib:RecurrentPPO", "MlpLstmPolicy", "box", "arm"),
    "recurrent, dict": ("sb3_contrib:RecurrentPPO", "MultiInputLstmPolicy", "dict", "keys"),
}


def _spaces() -> dict[str, Any]:
    spaces = pytest.importorskip("gymnasium", reason="needs gymnasium").spaces
    box = spaces.Box(-5, 5, (4,), np.float32)
    return {
        "box": box,
        "dict": spaces.Dict({"joints": box, "goal": spaces.Box(-np.inf, np.inf, (3,), np.float32)}),
        "images": spaces.Box(0, 255, (3, 36, 36), np.uint8),
        "arm": spaces.Box(np.array([-2, -1], np.float32), np.array([2, 3], np.float32)),
        "keys": spaces.Discrete(3),
    }


def _trained(name: str) -> tuple[Any, Any]:
    """The algorithm, and its normaliser with statistics of its own; None for images."""
    path, policy, seen, done = CASES[name]
    module, _, kind = path.partition(":")
    algorithm = getattr(pytest.importorskip(module, reason=f"needs {module}"), kind)
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Env(gymnasium.Env):  # type: ignore[type-arg]
        observation_space, action_space = _spaces()[seen], _spaces()[done]

    env: Any = DummyVecEnv([Env] * 3)
    normaliser = None if seen == "images" else VecNormalize(env, clip_obs=2.0)
    if normaliser is not None:
        rng = np.random.default_rng(0)
        moments: Any = normaliser.obs_rms
        for each in moments.values() if isinstance(moments, dict) else [moments]:
            each.mean, each.var = rng.normal(size=each.mean.shape), rng.random(each.var.shape) * 3 + 0.1
    sizes = {"buffer_size": 10} if kind in ("SAC", "TD3", "DQN") else {}
    return algorithm(policy, normaliser or env, seed=0, **sizes), normaliser


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_actions_are_those_of_predict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LD_LIBRARY_PATH", "PYGAME_HIDE_SUPPORT_PROMPT"):  # set by what the packages import
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    algorithm, normaliser = _trained(name)
    source = policy_source(algorithm, normaliser, rate_hz=50, names={"action": ["hip", "knee"]})
    path = tmp_path / "policy.onnx"
    result = fx2onnx.export(
        source.module,
        (),
        path,
        kwargs=source.kwargs,
        dynamic_shapes=source.dynamic_shapes,
        output_names=source.output_names,
    )
    assert not result.report.warnings
    space = _spaces()[CASES[name][2]]
    is_dict, is_recurrent = hasattr(space, "spaces"), "recurrent" in name
    for session in (InferenceSession(path), onnxruntime.InferenceSession(path)):
        state, carried = None, [np.zeros((1, 3, 256), np.float32)] * 2
        for step in range(4):
            inputs = {
                key: np.stack([one.sample() for _ in range(3)])
                for key, one in (space.spaces if is_dict else {OBSERVATION: space}).items()
            }
            observation: Any = inputs if is_dict else inputs[OBSERVATION]
            starts = np.array([step == 0, False, step == 2], np.float32)
            normal = observation if normaliser is None else normaliser.normalize_obs(observation)
            action, state = algorithm.predict(normal, state=state, episode_start=starts, deterministic=True)
            if is_recurrent:
                inputs |= dict(zip(STATE, carried, strict=True)) | {STARTS: starts}
            found, *carried = session.run(None, inputs)
            assert found.dtype == action.dtype
            np.testing.assert_allclose(found, action, atol=1e-5)
    stated = json.loads(source.metadata[CONTRACT])
    assert stated["rate_hz"] == 50
    assert stated["names"] == {"action": ["hip", "knee"]}
    assert stated["action"]["kind"] == type(_spaces()[CASES[name][3]]).__name__
    assert stated["state"] == (list(STATE) if is_recurrent else [])


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UserError, match=r"E601.*list is no policy"):
        policy_source([])
