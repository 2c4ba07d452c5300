"""``chunk_policy_source``: a policy of LeRobot as one graph, from observations to a chunk of actions in the robot's units."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.policies import ACTION, CONTRACT
from fx2onnx.sources.source import DEFAULT_BATCH, Source

Statistics: TypeAlias = Mapping[str, Mapping[str, object]]
"""The ``mean``, ``std``, ``min``, ``max`` and quantiles of each feature, as ``LeRobotDataset.meta.stats`` has them."""
NOISE = "noise"
_IMAGES = "observation.images"
_RANGES = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
_EPSILON = 1e-8


class Named(Protocol):
    """A member of an enumeration."""

    name: str


class Feature(Protocol):
    """A ``PolicyFeature``."""

    type: Named
    shape: Sequence[int]


class PolicyConfig(Protocol):
    input_features: Mapping[str, Feature]
    output_features: Mapping[str, Feature]
    normalization_mapping: Mapping[str, Named]
    n_obs_steps: int
    horizon: int


class ChunkPolicy(nn.Module):
    """A ``PreTrainedPolicy``, for annotations only."""

    config: PolicyConfig
    diffusion: nn.Module
    predict_action_chunk: Callable[[Mapping[str, Tensor]], Tensor]


@public
def chunk_policy_source(
    policy: object,
    statistics: Statistics,
    *,
    rate_hz: float | None = None,
    names: Mapping[str, list[str]] | None = None,
) -> Source:
    """An ACT or diffusion policy of LeRobot with its normalizer before it and the action's scale after it.

    ``action`` is what the postprocessor gives of ``predict_action_chunk``. A diffusion policy takes the newest ``n_obs_steps``
    observations, and ``noise``, from which its sampler begins: choose the scheduler DDIM, as DDPM draws more noise in each step. The metadata
    ``fx2onnx.policy`` of the file states the features, ``rate_hz`` and ``names``, as ``policy_source`` does.

    Shapes:   one input for each feature [batch, ...], of a diffusion policy [batch, steps, ...] -> action [batch, chunk, dimensions].
    Raises:   UserError E601 for what is no such policy, and where statistics are missing.
    """
    config = getattr(policy, "config", None)
    features = getattr(config, "input_features", None)
    if not isinstance(policy, nn.Module) or not features or not hasattr(policy, "predict_action_chunk"):
        what = f"{type(policy).__name__} is no policy of LeRobot that predicts chunks of actions"
        raise UserError("E601", what, next="give what ACTPolicy.from_pretrained and its like return")
    known = cast(ChunkPolicy, policy.eval())
    module = ChunkedActions(known, statistics).eval()
    steps = (known.config.n_obs_steps,) if module.is_diffusion else ()
    kwargs = {name: torch.rand(DEFAULT_BATCH, *steps, *each.shape) for name, each in features.items()}
    if module.is_diffusion:
        kwargs[NOISE] = torch.randn(DEFAULT_BATCH, known.config.horizon, *known.config.output_features[ACTION].shape)
    with torch.no_grad(), reported("the policy fails on observations of its own features"):
        module(**kwargs)
    stated = {
        "observation": {name: _stated(each) for name, each in features.items()},
        "action": _stated(known.config.output_features[ACTION]),
        "state": [],
        "rate_hz": rate_hz,
        "names": dict(names or {}),
    }
    return Source(
        type(policy).__name__,
        module,
        (),
        kwargs,
        {name: {0: "batch"} for name in kwargs},
        output_names=(ACTION,),
        origin=f"LeRobot's {type(policy).__name__}",
        metadata={CONTRACT: json.dumps(stated)},
    )  # fmt: skip


def _stated(feature: Feature) -> object:
    return {"kind": feature.type.name, "shape": list(feature.shape), "dtype": "float32"}


class ChunkedActions(nn.Module):
    """Normalize, predict a chunk, and bring it into the robot's units.

    Source:  NormalizerProcessorStep and UnnormalizerProcessorStep, ACTPolicy and DiffusionPolicy.predict_action_chunk of LeRobot.
    """

    def __init__(self, policy: ChunkPolicy, statistics: Statistics) -> None:
        super().__init__()
        self.policy = policy
        self.is_diffusion = hasattr(policy, "diffusion")
        config = policy.config
        features = {**config.input_features, **config.output_features}
        self.cameras = [name for name, each in config.input_features.items() if each.type.name == "VISUAL"]
        self.scales = {name: _scale(config, name, each, statistics) for name, each in features.items()}

    def forward(self, **inputs: Tensor) -> Tensor:
        noise = inputs.pop(NOISE, None)
        batch = {name: self._normal(name, value) for name, value in inputs.items()}
        if self.is_diffusion:
            if self.cameras:
                batch[_IMAGES] = torch.stack([batch[name] for name in self.cameras], dim=-4)
            generate = cast(Callable[..., Tensor], self.policy.diffusion.generate_actions)
            action = generate(batch, noise=noise)
        else:
            action = self.policy.predict_action_chunk(batch)
        scale = self.scales[ACTION]
        return action if scale is None else scale.inverse(action)

    def _normal(self, name: str, value: Tensor) -> Tensor:
        scale = self.scales[name]
        return value if scale is None else scale(value)


@dataclass(frozen=True)
class FeatureScale:
    """The scale of a feature's numbers: to mean 0 and deviation 1, or of a range to -1 to 1. A number that never changes is -1."""

    start: Tensor
    width: Tensor
    is_range: bool

    def __call__(self, value: Tensor) -> Tensor:
        if self.is_range:
            return 2 * (value - self.start) / self.width - 1
        return (value - self.start) / (self.width + _EPSILON)

    def inverse(self, value: Tensor) -> Tensor:
        return ((value + 1) / 2 if self.is_range else value) * self.width + self.start


def _scale(config: PolicyConfig, name: str, feature: Feature, statistics: Statistics) -> FeatureScale | None:
    """The scale of a feature; None where its numbers stay as they are."""
    mode = config.normalization_mapping.get(feature.type.name)
    if mode is None or mode.name == "IDENTITY" or name not in statistics:
        return None
    if mode.name not in _RANGES:
        raise UserError(
            "E601", f"{name} is normalized by {mode.name}", next=f"known are {', '.join(_RANGES)}, IDENTITY"
        )
    low, high = _RANGES[mode.name]
    if missing := [key for key in (low, high) if key not in statistics[name]]:
        raise UserError(
            "E601",
            f"the statistics of {name} have no {' and no '.join(missing)}",
            why=f"the policy normalizes it by {mode.name}",
            next="give dataset.meta.stats of the data that the policy was trained on",
        )
    first, second = (torch.as_tensor(statistics[name][key], dtype=torch.float32) for key in (low, high))
    if mode.name == "MEAN_STD":
        return FeatureScale(first, second, is_range=False)
    return FeatureScale(first, torch.where(second == first, _EPSILON, second - first), is_range=True)
