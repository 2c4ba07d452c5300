"""A transformers checkpoint whose weights stay in their files: the model is built without numbers and given mapped ones.

transformers itself puts the tensors into the module, so that its renames, ties and buffers hold; what it only renames or
splits still lies in the file. Weights that it joins from tensors of single experts stay there as well: the module, and so the
graph, joins them. What it computes otherwise (another dtype) is a copy in memory.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.hf.packed_formats import FORMATS, read, unknown
from fx2onnx.sources.hf.transformers_types import Config, LoadingNotes, Model
from fx2onnx.sources.weight_files import Checkpoint, main_dtype, map_checkpoint

LARGEST_CONVERTED_BYTES = 256 * 1024 * 1024
"""The most bytes that loading may compute anew. A checkpoint that needs more is not one to refer to (and might not fit
the memory)."""

LOADING: dict[str, bool] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Arguments of ``from_pretrained``: weights that do not fit stand in the notes, from which the caller makes its
error."""

_STACK = ("MergeModulelist", 0)
_JOINING = [[_STACK], [_STACK, ("Concatenate", 1)], [("Concatenate", 0)]]
"""transformers' conversions that put the checkpoint's tensors one after the other, with their axes: stacked experts, of each
the rows of one or several tensors; and rows of several tensors."""
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
    state, joined = _joined(_conversions(model_class, config, checkpoint.state), checkpoint.state)
    _refuse_conversions(model_class, _conversions(model_class, config, state), state, folder)
    marks = {name: torch.empty(1, dtype=stored) for name in joined}
    state |= {name: mark.expand(joined[name].shape) for name, mark in marks.items()}
    module, notes = model_class.from_pretrained(None, config=config, state_dict=state, dtype=stored, **LOADING)
    places = {mark.data_ptr(): name for name, mark in marks.items()}
    for part in list(module.modules()) if marks else ():
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight.data_ptr() in places:
                join = joined[places[weight.data_ptr()]]
                torch.nn.utils.parametrize.register_parametrization(part, name, join, unsafe=True)
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
    _refuse_conversions(model_class, _conversions(model_class, plain, state), state, folder)
    module, notes = model_class.from_pretrained(None, config=plain, state_dict=state, dtype=stored, **LOADING)
    for path, part in list(module.named_modules()):
        name = places.get(part.weight.data_ptr()) if isinstance(part, torch.nn.Linear) else None
        if name is not None:
            layer = layers.pop(name)
            layer.bias, layer.dtype = part.bias, stored
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


class JoinedTensors(torch.nn.Module):
    """A weight of which the checkpoint has the ``parts``, one after the other in memory."""

    def __init__(self, parts: list[torch.Tensor], shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self._count = len(parts)
        for place, part in enumerate(parts):
            self.register_buffer(f"part{place}", part)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """The weight; what stands in its place is not read."""
        return torch.cat([getattr(self, f"part{place}") for place in range(self._count)]).reshape(self.shape)


def _refuse_conversions(
    model_class: type[Model], converted: list[_Converted], state: Mapping[str, torch.Tensor], folder: Path
) -> None:
    total_bytes = sum(state[found.key].nbytes for found in converted)
    if total_bytes > LARGEST_CONVERTED_BYTES:
        raise UserError(
            "E601",
            f"the weights of '{folder}' cannot be referred to",
            why=f"{model_class.__name__} computes {len(converted)} of them ({total_bytes / 1e9:.1f} GB) anew when it loads, "
            f"the first is {converted[0].key}",
            next=[
                "save the checkpoint in the layout of this model: "
                f"{model_class.__name__}.from_pretrained(FOLDER).save_pretrained(NEW, save_original_format=False)",
                "or copy the weights: leave out --weights reference",
            ],
        )


@dataclass(frozen=True)
class _Converted:
    """A tensor of the checkpoint that transformers does not use as it is: by ``converter``, it becomes ``target`` or a part of it."""

    key: str
    target: str
    shape: torch.Size | None
    pattern: str
    converter: Any


def _conversions(model_class: type[Model], config: Config, state: Mapping[str, torch.Tensor]) -> list[_Converted]:
    """Tensors in the order in which transformers takes them."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key
    except ImportError:  # another release of transformers; what was copied shows after loading
        return []
    with torch.device("meta"):
        outline = model_class(config)
    transforms = get_model_conversion_mapping(outline)
    renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
    converters = [item for item in transforms if isinstance(item, WeightConverter)]
    computing = {
        pattern: converter
        for converter in converters
        for pattern in converter.source_patterns
        if any(type(operation).__name__ not in _VIEWS for operation in converter.operations)
    }
    if not computing:
        return []
    known, found = outline.state_dict(), []
    for key in sorted(state, key=dot_natural_key):
        target, pattern = rename_source_key(key, renamings, converters, outline.base_model_prefix, known)
        if pattern in computing:
            shape = known[target].shape if target in known else None
            found.append(_Converted(key, target, shape, pattern, computing[pattern]))
    return found


def _joined(
    converted: list[_Converted], state: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, JoinedTensors]]:
    """``state`` without the tensors that a conversion puts one after the other, and the weights that these become."""
    rest, joined = dict(state), dict[str, JoinedTensors]()
    by_target: dict[str, list[_Converted]] = {}
    for found in converted:
        by_target.setdefault(found.target, []).append(found)
    for target, parts in by_target.items():
        operations = [(type(step).__name__, getattr(step, "dim", None)) for step in parts[0].converter.operations]
        rows = [[part.key for part in parts if part.pattern == name] for name in parts[0].converter.source_patterns]
        shape, dtypes = parts[0].shape, {state[part.key].dtype for part in parts}
        # Of each expert its parts, as [experts, rows of all parts, columns] has them.
        counts = set(map(len, rows))
        if (
            operations not in _JOINING
            or len(counts) > 1
            or len(dtypes) > 1
            or (_STACK not in operations and counts != {1})
        ):
            continue
        keys = [key for expert in zip(*rows, strict=True) for key in expert]
        if shape is not None and shape.numel() == sum(state[key].numel() for key in keys):
            joined[target] = JoinedTensors([rest.pop(key) for key in keys], shape)
    return rest, joined
