"""The arguments of a sample call of a transformers model, from its forward signature and its config.

How each is made: ``samples.py``. Where there are several ways to call a model, the first that it accepts is taken.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterator, Mapping

import torch

from fx2onnx.base.changes import Changes
from fx2onnx.base.errors import UserError
from fx2onnx.base.memoized import keep_apart
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, main_dtype, samples_of
from fx2onnx.sources.hf.samples import (
    CHOICE_FACTORIES,
    INPUT_FACTORIES,
    PADDED_PATCH_FACTORIES,
    PAIR_FACTORIES,
    PATCH_FACTORIES,
    STRIP_FACTORIES,
    other_forms,
)
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options
from fx2onnx.sources.weight_files import cast_inputs


def sample_inputs(module: Model, options: Options) -> tuple[Inputs, Shapes]:
    """Keyword arguments of one sample call of ``module`` and their dynamic axes by argument name.

    Taken are: the model's main input; ``attention_mask`` beside ``input_ids``; ``decoder_input_ids`` for
    encoder-decoders; ``pixel_values`` beside text where the config holds a text and a vision part of equal rank; every
    argument without a default.

    Raises:   UserError E601 where an argument without a default is of an unknown kind.
    """
    context = SampleContext(module.config, options, module)
    parameters = inspect.signature(module.forward).parameters
    choices = list(_choices(module, parameters, context))
    first: tuple[Inputs, Shapes] | None = None
    for factories in choices:
        samples, shapes = samples_of(factories, context)
        if len(choices) == 1 or _is_accepted(module, samples):
            return samples, shapes
        first = first or (samples, shapes)
    # What none of them led to is for the caller to see, with the model's own error.
    return first or ({}, {})


def _choices(
    module: Model, parameters: Mapping[str, inspect.Parameter], context: SampleContext
) -> Iterator[dict[str, InputFactory]]:
    """The arguments to try, the fewest in their usual form first. Raises UserError E601."""
    factories = _factories(module, parameters)
    least = [name for name, parameter in parameters.items() if _is_wanted(name, parameter, module, context)]
    unknown = [name for name in least if name not in factories]
    if unknown:
        raise UserError(
            "E601",
            f"no sample input is known for '{unknown[0]}' of {type(module).__name__}",
            next="write a factory that returns (module, args, kwargs): fx2onnx export package.module:factory",
        )
    more = [name for name in parameters if name in least or (name in _BESIDE and name in factories)]
    in_patches = any(name in parameters for name in GRIDS) and "input_ids" not in parameters
    for names in [least] if more == least else [least, more]:
        forms = [(factories[name], *other_forms(name, context, in_patches=in_patches)) for name in names]
        for chosen in itertools.product(*forms):
            yield dict(zip(names, chosen, strict=True))


_TEXT = ("input_ids", "attention_mask", "bbox", "decoder_input_ids")
_IMAGES_AND_SOUND = ("pixel_values", "input_features", "input_values", "pixel_attention_mask", "spatial_shapes")
_REGIONS = ("visual_feats", "visual_pos")
_SERIES = ("actions", "rewards", "returns_to_go", "timesteps", "future_values", "future_time_features")
_BESIDE = (*_TEXT, *_IMAGES_AND_SOUND, *_REGIONS, *_SERIES)
"""Arguments with a default of None that some models cannot do without."""


def _is_accepted(module: Model, samples: Inputs) -> bool:
    """Return whether ``module(**samples)`` runs, on tensors without data where it can."""
    if not isinstance(module, torch.nn.Module):
        return True
    cast = {name: cast_inputs(value, main_dtype(module)) for name, value in samples.items()}
    try:
        # A copy with the same weights, so that what modules keep of a run without data is forgotten.
        shell = copy.deepcopy(module, {id(value): value for value in (*module.parameters(), *module.buffers())})
        with Changes():
            keep_apart({type(part) for part in module.modules()})
            run_lightly(shell, shell, cast)
    except Exception:  # a model raises whatever an input that it does not take leads to
        return False
    return True


def baked_inputs(samples: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The example inputs whose values, not only their shapes, decide what forward does."""
    return tuple(name for name in samples if name in _DECIDING)


GRIDS = ("grid_thw", "image_grid_thw", "image_grid_hw")
_DECIDING = (*GRIDS, "spatial_shapes", "target_sizes", "image_sizes", "classes_structure")


def _factories(module: Model, parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, InputFactory]:
    """The factory for each kind of argument of this module."""
    grids = [name for name in GRIDS if name in parameters]
    if any(parameters[name].default is inspect.Parameter.empty for name in grids):
        return {**INPUT_FACTORIES, **PATCH_FACTORIES}
    if "spatial_shapes" in parameters or "pixel_position_ids" in parameters:
        return {**INPUT_FACTORIES, **PADDED_PATCH_FACTORIES}
    if "target_sizes" in parameters and "input_ids" not in parameters:
        return {**INPUT_FACTORIES, **STRIP_FACTORIES}
    if "pixel_values" in parameters and module.config.model_type in _names("KEYPOINT_MATCHING"):  # base models, too
        return {**INPUT_FACTORIES, **PAIR_FACTORIES}
    class_name = _names("MULTIPLE_CHOICE").get(getattr(module.config, "model_type", ""))
    return {**INPUT_FACTORIES, **CHOICE_FACTORIES} if class_name == type(module).__name__ else INPUT_FACTORIES


def _names(task: str) -> Mapping[str, str]:
    """The class names of transformers' models for the task, by model type."""
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})


def _main_input(module: Model) -> str:
    """The model's main input; the first of forward that a sample is known for where the stated one is none of it."""
    parameters = inspect.signature(module.forward).parameters
    stated = str(module.main_input_name)
    if "query_embeds" in parameters and parameters["query_embeds"].default is inspect.Parameter.empty:
        return "query_embeds"
    return stated if stated in parameters else next((name for name in parameters if name in INPUT_FACTORIES), stated)


def _is_wanted(name: str, parameter: inspect.Parameter, module: Model, context: SampleContext) -> bool:
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    main = _main_input(module)
    if name == main or parameter.default is parameter.empty:
        return True
    is_decoded = bool(getattr(context.config, "is_encoder_decoder", False))
    beside: dict[str, bool] = {
        "attention_mask": main == "input_ids",
        "decoder_input_ids": is_decoded,
        "decoder_input_values": is_decoded,
        "speaker_embeddings": is_decoded and context.find("speaker_embedding_dim") is not None,
        "target_sizes": main == "pixel_values" and "input_ids" not in inspect.signature(module.forward).parameters,
        "input_ids": main == "pixel_values" and hasattr(context.config, "text_config"),
        "input_features_mask": main == "input_features",
        "encoder_hidden_states": main == "query_embeds",
        # Image and text encoders side by side (CLIP and the like) need both inputs; a language model that embeds images
        # at placeholder tokens runs on text alone.
        "pixel_values": hasattr(context.config, "text_config")
        and hasattr(context.config, "vision_config")
        and context.find("image_token_id", "image_token_index") is None,
    }
    return beside.get(name, False)
