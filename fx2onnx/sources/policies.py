"""``policy_source``: a policy of stable-baselines3 or sb3-contrib as one graph, from an observation to the action of its environment.

In a factory of yours, as the package's own files hold pickles::

    def make():
        return policy_source(PPO.load("walker.zip"), VecNormalize.load("walker.pkl", env))
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.source import DEFAULT_BATCH, Source

State: TypeAlias = tuple[Tensor, ...]


class Space(Protocol):
    """A space of gymnasium."""

    shape: tuple[int, ...]
    dtype: object
    spaces: Mapping[str, Space]
    low: object
    high: object

    def seed(self, seed: int) -> object: ...

    def sample(self) -> object: ...


class RunningMoments(Protocol):
    """A ``RunningMeanStd``."""

    mean: object
    var: object


class Normalizer(Protocol):
    """A ``VecNormalize``."""

    norm_obs: bool
    clip_obs: float
    epsilon: float
    obs_rms: RunningMoments | dict[str, RunningMoments]


class BasePolicy(nn.Module):
    """A policy, for annotations only."""

    observation_space: Space
    action_space: Space
    squash_output: bool
    lstm_hidden_state_shape: tuple[int, int, int]

    def _predict(self, observation: object, *state: object, deterministic: bool) -> Tensor | tuple[Tensor, State]:
        raise NotImplementedError


CONTRACT = "fx2onnx.policy"
"""The entry of a file's metadata with what its inputs and outputs mean, as JSON."""
OBSERVATION = "observation"
STATE, STARTS, ACTION = ("lstm_hidden", "lstm_cell"), "episode_starts", "action"


@public
def policy_source(
    algorithm: object,
    normalizer: Normalizer | None = None,
    *,
    rate_hz: float | None = None,
    names: Mapping[str, list[str]] | None = None,
) -> Source:
    """The policy of a trained ``algorithm``, with the observation statistics of a VecNormalize before it and the action's scale after it.

    ``action`` is that of ``algorithm.predict(normalizer.normalize_obs(observation), deterministic=True)``. A recurrent policy also takes
    ``lstm_hidden`` and ``lstm_cell`` [layers, batch, units], zeros at first, and ``episode_starts`` [batch], 1 where an environment begins anew; it
    returns ``lstm_hidden.next`` and ``lstm_cell.next``. The metadata ``fx2onnx.policy`` of the file states the spaces, and ``rate_hz`` and
    ``names``, by input and output the names of the numbers in order, as they are given.

    Shapes:   observation [batch, ...], or one input for each key of a dict -> action [batch, ...].
    Raises:   UserError E601 for what is no policy, or for observations of another kind.
    """
    policy = cast(BasePolicy, getattr(algorithm, "policy", algorithm))
    if not isinstance(policy, nn.Module) or not hasattr(policy, "action_space") or not hasattr(policy, "_predict"):
        what = f"{type(algorithm).__name__} is no policy of stable-baselines3"
        raise UserError("E601", what, next="give what PPO.load and its like return, or their policy")
    policy.eval()
    module = Policy(policy, normalizer).eval()
    kwargs = _observations(policy.observation_space)
    axes: dict[str, dict[int, str]] = {name: {0: "batch"} for name in kwargs}
    outputs: tuple[str, ...] = (ACTION,)
    if module.is_recurrent:
        layers, _, units = policy.lstm_hidden_state_shape
        kwargs |= {name: torch.randn(layers, DEFAULT_BATCH, units) for name in STATE} | {
            STARTS: torch.zeros(DEFAULT_BATCH)
        }
        axes |= {name: {1: "batch"} for name in STATE} | {STARTS: {0: "batch"}}
        outputs += tuple(f"{name}.next" for name in STATE)
    with torch.no_grad(), reported("the policy fails on observations of its own space"):
        module(**kwargs)
    stated = {
        "observation": _space(policy.observation_space),
        "action": _space(policy.action_space),
        "state": list(STATE) if module.is_recurrent else [],
        "rate_hz": rate_hz,
        "names": dict(names or {}),
    }
    return Source(
        type(policy).__name__,
        module,
        (),
        kwargs,
        axes,
        output_names=outputs,
        origin=f"policy of {type(algorithm).__name__}",
        metadata={CONTRACT: json.dumps(stated)},
    )  # fmt: skip


class Policy(nn.Module):
    """Normalize, infer deterministically, and bring the action into its space.

    Source:  BasePolicy.predict and VecNormalize.normalize_obs of stable-baselines3.
    """

    def __init__(self, policy: BasePolicy, normalizer: Normalizer | None) -> None:
        super().__init__()
        self.policy = copy.deepcopy(policy)
        self.is_recurrent = hasattr(policy, "lstm_hidden_state_shape")
        if self.is_recurrent:
            vars(self.policy)["_process_sequence"] = _step
        self.is_dict = hasattr(policy.observation_space, "spaces")
        self.clip = float(normalizer.clip_obs) if normalizer is not None else 0.0
        self.statistics: dict[str, tuple[Tensor, Tensor]] = {}
        if normalizer is not None and normalizer.norm_obs:
            found = normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {OBSERVATION: normalizer.obs_rms}
            for name, moments in found.items():
                scale = (torch.as_tensor(moments.var, dtype=torch.float64) + normalizer.epsilon).sqrt()
                self.statistics[name] = torch.as_tensor(moments.mean, dtype=torch.float64), scale
        space = policy.action_space
        self.bounds = None
        if hasattr(space, "low"):
            self.bounds = tuple(torch.as_tensor(each, dtype=torch.float32) for each in (space.low, space.high))
        self.shape = tuple(space.shape)

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        policy = self.policy
        distributions = [part.action_dist for part in policy.modules() if hasattr(part, "action_dist")]
        kept = [(one, dict(vars(one))) for one in distributions]  # a distribution remembers its last parameters
        state, starts = tuple(inputs.pop(name) for name in STATE if name in inputs), inputs.pop(STARTS, None)
        normal = {name: self._normalised(name, value) for name, value in inputs.items()}
        observation = normal if self.is_dict else normal[OBSERVATION]
        after: tuple[Tensor, ...] = ()
        if self.is_recurrent:
            action, after = policy._predict(observation, state, starts, deterministic=True)
        else:
            action = policy._predict(observation, deterministic=True)
        for one, values in kept:
            vars(one).clear()
            vars(one).update(values)
        action = action.reshape(-1, *self.shape)
        if self.bounds is None:
            return action, *after
        low, high = self.bounds
        if policy.squash_output:
            return low + 0.5 * (action + 1.0) * (high - low), *after
        return action.clamp(low, high), *after

    def _normalised(self, name: str, value: Tensor) -> Tensor:
        if name not in self.statistics:
            return value
        mean, scale = self.statistics[name]
        return ((value - mean) / scale).clamp(-self.clip, self.clip).to(torch.float32)


def _step(
    features: Tensor, state: tuple[Tensor, Tensor], starts: Tensor, lstm: nn.LSTM
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One step of each environment, from zeros where it begins anew.

    Source:  RecurrentActorCriticPolicy._process_sequence of sb3-contrib, which takes a loop of Python for such a step.
    """
    hidden, cell = ((1 - starts)[None, :, None] * each for each in state)
    found, after = lstm(features[None], (hidden, cell))
    return found[0], after


def _observations(space: Space) -> dict[str, Tensor]:
    """Two observations of the space, by input."""
    spaces = dict(space.spaces) if hasattr(space, "spaces") else {OBSERVATION: space}
    space.seed(0)
    with reported("the observation space has no numbers: it is nested"):
        return {
            name: torch.stack([torch.as_tensor(one.sample()) for _ in range(DEFAULT_BATCH)])
            for name, one in spaces.items()
        }


def _space(space: Space) -> object:
    """The space as JSON."""
    if hasattr(space, "spaces"):
        return {name: _space(one) for name, one in dict(space.spaces).items()}
    stated = {"kind": type(space).__name__, "shape": list(space.shape), "dtype": str(space.dtype)}
    bounds = {name: np.asarray(getattr(space, name)) for name in ("low", "high", "n", "nvec") if hasattr(space, name)}
    # An image states the range of one pixel; JSON has no infinity.
    numbers = {name: bound if bound.ndim < 2 else np.unique(bound)[:2] for name, bound in bounds.items()}
    return stated | {
        name: [x if abs(x) < np.inf else None for x in np.atleast_1d(found).tolist()] for name, found in numbers.items()
    }
