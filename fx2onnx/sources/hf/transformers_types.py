"""The types of transformers' models and configs that fx2onnx uses, declared here because transformers has no types of its own.

For annotations only: nothing is derived from these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fx2onnx.sources.source import AxisName

Inputs: TypeAlias = dict[str, torch.Tensor]
"""Arguments of a call by name."""
Shapes: TypeAlias = dict[str, dict[int, AxisName]]
"""The names of the dynamic axes of each argument, or functions that give them by names."""


class Config(Protocol):
    """A ``PretrainedConfig``. Which fields there are depends on the model's type; these are the ones used without asking."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_codebooks: int
    audio_bos_token_id: int
    quantization_config: object
    use_cache: bool
    _attn_implementation: str

    def to_dict(self) -> dict[str, object]: ...

    def save_pretrained(self, folder: Path) -> None: ...

    def get_text_config(self, decoder: bool = False) -> Config: ...


class GenerationConfig(Protocol):
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

    def save_pretrained(self, folder: Path) -> None: ...


class LoadingNotes(TypedDict, total=False):
    """The notes of ``from_pretrained`` on weights that do not fit."""

    mismatched_keys: set[tuple[str, tuple[int, ...], tuple[int, ...]]]
    missing_keys: set[str]


class Model(nn.Module):
    """A ``PreTrainedModel``, of those that generate."""

    config: Config
    generation_config: GenerationConfig
    base_model: nn.Module
    base_model_prefix: str
    main_input_name: str

    from_pretrained: ClassVar[Callable[..., tuple[Model, LoadingNotes]]]
    get_input_embeddings: Callable[[], nn.Module]
    get_output_embeddings: Callable[[], nn.Module]
    get_encoder: Callable[[], Model]
    prepare_inputs_for_generation: Callable[..., dict[str, object]]
    generate: Callable[..., torch.Tensor]
    _update_model_kwargs_for_generation: Callable[..., dict[str, object]]
    _prepare_position_ids_for_generation: Callable[..., torch.Tensor | None]


class Processor(Protocol):
    """An image processor or a feature extractor. Which fields there are depends on its class."""

    sampling_rate: int
    n_samples: int
    n_fft: int
    hop_length: int
    mel_filters: npt.NDArray[np.float64]
    do_normalize: bool
    _valid_kwargs_names: Sequence[str]
    _preprocess: Callable[..., Mapping[str, Sequence[torch.Tensor]] | Sequence[torch.Tensor]]
    _standardize_kwargs: Callable[..., dict[str, object]]

    def __call__(self, *args: object, **kwargs: object) -> Mapping[str, torch.Tensor]: ...
