"""What fx2onnx uses of transformers' models and configs, declared here because transformers has no types of its own.

For annotations only: nothing is derived from these classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias, TypedDict

import torch
from torch import nn

from fx2onnx.sources.source import AxisName

Inputs: TypeAlias = dict[str, torch.Tensor]
"""Arguments of a call by name."""
Shapes: TypeAlias = dict[str, dict[int, AxisName]]
"""By argument, the names of its dynamic axes, or what they are by names."""


class Config(Protocol):
    """A ``PretrainedConfig``; other fields than these depend on the model's type and are read with ``getattr``."""

    model_type: str
    vocab_size: int
    quantization_config: object

    def to_dict(self) -> dict[str, object]: ...

    def get_text_config(self, decoder: bool = False) -> Config: ...


class LoadingNotes(TypedDict, total=False):
    """What ``from_pretrained`` says of weights that do not fit."""

    mismatched_keys: set[tuple[str, tuple[int, ...], tuple[int, ...]]]
    missing_keys: set[str]


class Model(nn.Module):
    """A ``PreTrainedModel``."""

    config: Config
    base_model: nn.Module
    base_model_prefix: str
    main_input_name: str

    from_pretrained: ClassVar[Callable[..., tuple[Model, LoadingNotes]]]
    get_input_embeddings: Callable[[], nn.Module]
    get_encoder: Callable[[], Model]
    prepare_inputs_for_generation: Callable[..., dict[str, object]]
    generate: Callable[..., torch.Tensor]
