"""The context that example inputs of a transformers model are made from: its config, the sizes asked for, its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx2onnx.sources.hf.transformers_types import Config, Inputs, Shapes
from fx2onnx.sources.source import AxisName, Options


@dataclass(frozen=True)
class SampleContext:
    """The context that an example input is made from."""

    config: Config
    options: Options
    module: nn.Module | None = None

    @property
    def batch(self) -> int:
        return self.options.batch_or()

    @property
    def seq(self) -> int:
        return self.options.seq_or()

    def find(self, *names: str, default: object = None) -> Any:
        """The first of the config fields ``names`` that the config or one of its sub-configs has."""
        for config in with_sub_configs(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not callable(value):
                    return value
        return default

    def number(self, *names: str, default: int | None = None) -> int:
        """``find`` of fields that hold a number."""
        return int(self.find(*names, default=default))

    def image_size(self) -> tuple[int, int]:
        if self.options.image_size is not None:
            return self.options.image_size, self.options.image_size
        size = self.find("image_size") or (self.find("model_args") or {}).get("img_size", 224)
        if isinstance(size, dict):
            size = (size.get("height", 224), size.get("width", 224))
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

    def stem(self, *words: str) -> nn.Module | None:
        """The first layer that multiplies by weights, among those whose path has one of ``words`` where there are such."""
        layers = [
            (path, layer)
            for path, layer in (self.module.named_modules() if isinstance(self.module, nn.Module) else ())
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        ]
        named = [layer for path, layer in layers if any(word in path for word in words)]
        return next(iter(named or [layer for _, layer in layers]), None)


@dataclass(frozen=True)
class InputFactory:
    """The function that makes one argument, and the names of its dynamic axes, or functions that give them by names."""

    make: Callable[[SampleContext], torch.Tensor]
    axes: Mapping[int, AxisName]


def samples_of(factories: Mapping[str, InputFactory], context: SampleContext) -> tuple[Inputs, Shapes]:
    """Sample arguments, and the names of their dynamic axes."""
    samples = {name: factory.make(context) for name, factory in factories.items()}
    return samples, {name: dict(factory.axes) for name, factory in factories.items()}


def with_sub_configs(config: Config) -> Iterator[Config]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from with_sub_configs(value)


def set_use_cache(config: Config, value: bool) -> None:
    """Return whether the model gives its cache, in every part of the config that says so."""
    for part in with_sub_configs(config):
        if hasattr(part, "use_cache"):
            part.use_cache = value


def main_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating parameter."""
    return next((value.dtype for value in module.parameters() if value.is_floating_point()), torch.float32)
