"""A transformers checkpoint whose weights stay in their files: the model is built without numbers and given mapped ones.

transformers itself puts the tensors into the module, so that its renames, ties and buffers hold; what it only renames or
splits still lies in the file, what it computes (stacked experts, another dtype) is a copy in memory.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.hf.packed_formats import FORMATS, read, unknown
from fx2onnx.sources.hf.transformers_types import Config, LoadingNotes, Model
from fx2onnx.sources.weight_files import Checkpoint, main_dtype, map_checkpoint

LARGEST_CONVERTED_BYTES = 256 * 1024 * 1024
"""What loading may compute anew. A checkpoint that needs more is not one to refer to (and might not fit the memory)."""

LOADING: dict[str, bool] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Of ``from_pretrained``: what does not fit stands in the notes, from which the caller makes its error."""

_VIEWS = frozenset({"Chunk", "Split", "SplitModulelist"})
"""transformers' conversions that give parts of the checkpoint's tensor; along axis 0 such a part is contiguous."""


def load_mapped(
    model_class: type[Model], folder: Path, config: Config, dtype: str | None
) -> tuple[Model, LoadingNotes, list[WeightFile]]:
    """The module on mapped weights, transformers' notes on loading, and the files.

    Raises:   UserError E302 (missing or corrupt file), E001 (another dtype than the checkpoint's), E601 (weights that have
              to be converted). What ``from_pretrained`` itself raises is left to the caller.
    """
    checkpoint = map_checkpoint(folder)
    said = stated_quantization(config)
    if said is not None:
        module, notes = _load_packed(model_class, folder, config, said, checkpoint)
        return module if dtype is None else module.to(getattr(torch, dtype)), notes, checkpoint.files
    stored = main_dtype(checkpoint.state)
    if dtype is not None and getattr(torch, dtype, None) != stored:
        raise UserError(
            "E001",
            f"--dtype {dtype} needs other bytes than the checkpoint has ({str(stored).removeprefix('torch.')})",
            next="leave out --dtype, or leave out --weights reference",
        )
    _refuse_conversions(model_class, config, checkpoint.state, folder)
    module, notes = model_class.from_pretrained(
        None, config=config, state_dict=checkpoint.state, dtype=stored, **LOADING
    )
    return module, notes, checkpoint.files


def stated_quantization(config: Config) -> dict[str, Any] | None:
    """The quantization that the config states, as far as it is read here."""
    said = getattr(config, "quantization_config", None)
    if not isinstance(said, dict) or said.get("quant_method") not in FORMATS:
        return None
    if said["quant_method"] == "bitsandbytes":
        return said
    return None if said.get("load_in_4bit") or said.get("load_in_8bit") else said


def _load_packed(
    model_class: type[Model], folder: Path, config: Config, said: dict[str, Any], checkpoint: Checkpoint
) -> tuple[Model, LoadingNotes]:
    """The module with the checkpoint's integers in the place of linear layers.

    transformers gets one number for all of a weight's, without memory, and puts it where the weight belongs; there the layer is
    exchanged. Raises UserError E601 for an unknown layout, and where a weight ends up elsewhere than in a linear layer.
    """
    layers, others = read(checkpoint.state, said)
    stored = main_dtype(others)
    marks = {name: torch.empty(1, dtype=stored) for name in layers}
    places = {mark.data_ptr(): name for name, mark in marks.items()}
    state = others | {
        f"{name}.weight": mark.expand(layers[name].rows, layers[name].columns) for name, mark in marks.items()
    }
    plain = copy.deepcopy(config)
    del plain.quantization_config
    _refuse_conversions(model_class, plain, state, folder)
    module, notes = model_class.from_pretrained(None, config=plain, state_dict=state, dtype=stored, **LOADING)
    for path, part in list(module.named_modules()):
        name = places.get(part.weight.data_ptr()) if isinstance(part, torch.nn.Linear) else None
        if name is not None:
            layer = layers.pop(name)
            layer.bias = part.bias
            module.set_submodule(path, layer)
    if layers:
        raise unknown(
            str(folder), f"{len(layers)} are no linear layers of {model_class.__name__}, such as {min(layers)}"
        )
    return module, notes


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bar and no table of misfits on stderr: what there is to say is in the notes or an error."""
    from transformers.utils import logging

    had_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()


def _refuse_conversions(
    model_class: type[Model], config: Config, state: Mapping[str, torch.Tensor], folder: Path
) -> None:
    converted = _converted(model_class, config, state)
    total_bytes = sum(state[key].nbytes for key in converted)
    if total_bytes > LARGEST_CONVERTED_BYTES:
        raise UserError(
            "E601",
            f"the weights of '{folder}' cannot be referred to",
            why=f"{model_class.__name__} computes {len(converted)} of them ({total_bytes / 1e9:.1f} GB) anew when it loads, "
            f"the first is {converted[0]}",
            next=[
                "save the checkpoint in the layout of this model: "
                f"{model_class.__name__}.from_pretrained(FOLDER).save_pretrained(NEW, save_original_format=False)",
                "or copy the weights: leave out --weights reference",
            ],
        )


def _converted(model_class: type[Model], config: Config, state: Mapping[str, torch.Tensor]) -> list[str]:
    """Checkpoint names whose tensors transformers does not use as they are."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # another release of transformers; what was copied shows after loading
        return []
    with torch.device("meta"):
        outline = model_class(config)
    transforms = get_model_conversion_mapping(outline)
    renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
    converters = [item for item in transforms if isinstance(item, WeightConverter)]
    computing = {
        pattern
        for converter in converters
        for pattern in converter.source_patterns
        if any(type(operation).__name__ not in _VIEWS for operation in converter.operations)
    }
    if not computing:
        return []
    known = outline.state_dict()
    return [
        key
        for key in state
        if rename_source_key(key, renamings, converters, outline.base_model_prefix, known)[1] in computing
    ]
