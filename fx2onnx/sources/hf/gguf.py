"""``gguf:FILE``: a model in a GGUF file, by transformers' maps of names and configs, its weights in the blocks of the file.

transformers' own loader turns all weights into float32. Here it gets one number for all of a weight's, without memory, and
puts it where the weight belongs; there the layer is exchanged for one on blocks (``gguf_layers``).
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.base.notices import warn
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.foreign_errors import reported, summary
from fx2onnx.sources.hf.config import check_config, offline
from fx2onnx.sources.hf.gguf_file import PLAIN, GgufFile, StoredWeight, damaged, unknown_layout
from fx2onnx.sources.hf.gguf_layers import BlockEmbedding, BlockLinear, BlockRows
from fx2onnx.sources.hf.transformers_types import Config, LoadingNotes, Model

_ALSO = {
    "attention.key_length": "head_dim",
    "context_length": "n_positions",
    "attention.sliding_window": "sliding_window",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Fields of a config by keys of GGUF that transformers' maps lack for some architectures."""
_SAY_NOTHING = re.compile(
    r"(attention\.(key|value)_length(_swa|_mla)?|rope\.(dimension_count|freq_base)\w*|vocab_size|context_length"
    r"|feed_forward_length|expert_count|expert_used_count|\w*_feed_forward_length|rope\.scaling\.(type|factor"
    r"|original_context_length|finetuned)|attention\.sliding_window|\w+_logit_softcapping|tensor_data_layout)"
)
"""Keys that are read here, or that repeat what the shapes of the weights say."""
_SPELT = {"gpt_oss": "gpt-oss", "minimax_m2": "minimax-m2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
"""Names in GGUF of architectures that transformers' maps call otherwise."""
FREQUENCIES = "rope_freqs.weight"
"""A tensor by which llama.cpp divides the frequencies of the rotary embedding."""
LARGEST_MADE_BYTES = 8 << 30


def architectures() -> list[str]:
    """The architectures that transformers can build, by their names in GGUF."""
    own = importlib.import_module("transformers.integrations.gguf").GGUF_CONFIG_ARCHS
    names = {_SPELT.get(name, name) for name in (*_loader().GGUF_SUPPORTED_ARCHITECTURES, *own)}
    return sorted(names - {"general", "tokenizer", "deci", "umt5"})


def _loader() -> ModuleType:
    """transformers' maps. Raises UserError E602 where it has none."""
    try:
        importlib.import_module("transformers.integrations.gguf").read_gguf_metadata  # noqa: B018
        return importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    except (ImportError, AttributeError) as error:
        step = "pip install 'fx2onnx[gguf]'"
        raise UserError("E602", "gguf: needs transformers 5.20 or newer", why=str(error), next=step) from error


def config_of(file: GgufFile) -> Config:
    """The config that the metadata says. Raises UserError E601 for an unknown architecture, and as ``check_config``."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    stated = dict(_stated(file))
    if stated.get("model_type") not in CONFIG_MAPPING:
        raise _unknown(file)
    check_config(stated, str(file.path))
    with reported(f"no config can be made of the metadata of '{file.path}'"):
        config: Config = CONFIG_MAPPING[str(stated["model_type"])].from_dict(stated)
        for key, name in _ALSO.items():
            value = file.metadata.get(f"{file.architecture}.{key}")
            is_derived = isinstance(getattr(type(config), name, None), property)
            if value is not None and name not in stated and hasattr(config, name) and not is_derived:
                setattr(config, name, value)
    return config


def _stated(file: GgufFile) -> dict[str, object]:
    gguf, found = importlib.import_module("transformers.integrations.gguf"), dict[str, object]()
    try:
        if file.architecture in gguf.GGUF_CONFIG_ARCHS:
            found.update(gguf.get_gguf_config(file.metadata, tuple(file.weights)))
            return found
        found.update(_loader().load_gguf_checkpoint(str(file.path), return_tensors=False)["config"])
    except ValueError as error:
        if "is not supported yet" not in str(error):
            raise damaged(file.path, summary(error)) from error
        raise _unknown(file) from error
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise damaged(file.path, f"its metadata lacks something: {summary(error)}") from error
    found["tie_word_embeddings"] = "output.weight" not in file.weights or file.architecture in ("falcon", "bloom")
    said = {key.removeprefix(f"{file.architecture}."): value for key, value in file.metadata.items()}
    scaling = said.get("rope.scaling.type")
    if scaling in ("linear", "yarn") and "rope_scaling" not in found:
        rope: dict[str, object] = {"rope_type": scaling, "factor": float(said.get("rope.scaling.factor", 1.0))}
        length = said.get("rope.scaling.original_context_length")
        found["rope_scaling"] = rope if length is None else rope | {"original_max_position_embeddings": int(length)}
    return found


def _unknown(file: GgufFile) -> UserError:
    what = f"'{file.path}' has the unknown architecture {file.architecture!r:.40}"
    return UserError("E601", what, next=f"known: {', '.join(architectures())}")


def write_tokenizer(path: Path, folder: Path) -> None:
    """Save the tokenizer and chat template of a GGUF file as transformers' files; a warning where it has none that is known."""
    from transformers import AutoTokenizer

    try:
        with offline():
            found = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        found.save_pretrained(folder)
    except Exception as error:  # whatever a tokenizer that is not known leads to
        warn([f"no tokenizer can be made of '{path}': {summary(error)}"])


def load(
    model_class: type[Model], file: GgufFile, config: Config, dtype: str | None, *, by_reference: bool
) -> tuple[Model, LoadingNotes, list[WeightFile]]:
    """The module on the blocks of the file, transformers' notes on loading, and the mapped files.

    Raises:   UserError E001 (another dtype than the file's, by reference), E404 (weights that have to be made anew and are too
              large), E601 (an unknown layout).
    """
    kinds = {weight.layout for weight in file.weights.values()}
    own = next((PLAIN[kind] for kind in ("BF16", "F16") if kind in kinds and kinds <= set(PLAIN)), torch.float32)
    wanted = own if dtype is None else getattr(torch, dtype)
    if by_reference and wanted != own:
        raise UserError(
            "E001", f"--dtype {dtype} needs other bytes than the file has", next="leave out --weights reference"
        )
    placed = _Placed(model_class, file, config, own)
    module, notes = model_class.from_pretrained(
        None, config=config, state_dict=placed.state, dtype=own, output_loading_info=True, ignore_mismatched_sizes=True
    )
    placed.exchange(module, own)
    warn(placed.warnings())
    return module if wanted == own else module.to(wanted), notes, file.files if by_reference else []


class _Placed:
    """The tensors of a file under transformers' names; a weight that stays in blocks is a mark, one number for all."""

    def __init__(self, model_class: type[Model], file: GgufFile, config: Config, dtype: torch.dtype) -> None:
        self.file, self.dtype = file, dtype
        self.state: dict[str, torch.Tensor] = {}
        self.blocks: dict[int, BlockRows] = {}
        self.made: dict[str, str] = {}
        """Weights that are made anew, and their layouts."""
        self._marks: list[torch.Tensor] = []
        with torch.device("meta"):
            self.outline = model_class(config)
        loader = _loader()
        said: Any = _stated(file)
        self._process = loader.TENSOR_PROCESSORS.get(file.architecture, loader.TensorProcessor)(config=said)
        with reported(f"transformers has no names for the weights of '{file.path}'"):
            self.names: dict[str, str] = loader.get_gguf_hf_weights_map(self.outline, self._process)
        self.unread = [name for name in file.weights if not self._place(name) and name != FREQUENCIES]

    def _place(self, name: str) -> bool:
        """Put a tensor under its name; False for one that the model does not have."""
        weight = self.file.weights[name]
        found = self._rows(name) if len(weight.sizes) == 2 else None
        if found is None:
            return self._put_numbers(name, weight)
        target, order, is_turned = found
        if target is None:
            return False
        blocks = weight.blocks(order)
        plain = weight.plain()
        if plain is not None:
            plain = plain if order is None else plain[order]
            self.state[target] = plain.t() if is_turned else plain
        elif blocks is not None and self._stays(target, is_turned):
            mark = torch.empty(1, dtype=self.dtype)
            self._marks.append(mark)
            self.blocks[mark.data_ptr()] = blocks
            self.state[target] = mark.expand(weight.sizes[::-1] if is_turned else weight.sizes)
        else:
            return self._put_numbers(name, weight)
        return True

    def _rows(self, name: str) -> tuple[str | None, torch.Tensor | None, bool] | None:
        """Under which name a matrix goes, its rows in which order, and whether turned; None where its numbers are needed.

        transformers' code is asked what it does to a matrix of row numbers.
        """
        rows, columns = self.file.weights[name].sizes
        for width in (1, columns):
            probe = np.broadcast_to(np.arange(rows)[:, None], (rows, width))
            try:
                target, found = self._processed(name, probe)
            except (ValueError, IndexError, TypeError):
                continue
            if target is None:
                return None, None, False
            is_turned = found.shape != probe.shape
            found = found.T if is_turned else found
            if found.shape != probe.shape or found.dtype != probe.dtype or (found != found[:, :1]).any():
                return None
            order = torch.from_numpy(found[:, 0].copy())
            return target, None if bool((order == torch.arange(rows)).all()) else order, is_turned
        return None

    def _processed(self, name: str, numbers: Any) -> tuple[str | None, Any]:
        """The tensor as transformers converts it, and its name for it."""
        parsed: dict[str, dict[str, torch.Tensor]] = {"tensors": self._partial(name)}
        result = self._process.process(
            weights=numbers, name=name, tensor_key_mapping=self.names, parsed_parameters=parsed
        )
        if result.name is not None:
            return self.names.get(result.name), result.weights
        targets = list(parsed["tensors"])
        return (targets[0], parsed["tensors"][targets[0]].numpy()) if targets else (None, None)

    def _partial(self, name: str) -> dict[str, torch.Tensor]:
        """The weight that a tensor becomes a part of."""
        target = self.names.get(name.removesuffix(".weight"))
        return {target: self.state[target]} if target in self.state else {}

    def _put_numbers(self, name: str, weight: StoredWeight) -> bool:
        """Numbers as transformers makes them of a tensor's."""
        if (
            self.names.get(name) is None
            and self.names.get(name.removesuffix(".weight")) is None
            and "output" not in name
        ):
            return False
        is_plain = weight.plain() is not None
        if not is_plain:
            self.made[name] = weight.layout
            _check_size(self.file, self.made)
        try:
            numbers = weight.numbers()
        except NotImplementedError as error:
            raise unknown_layout(self.file.path, weight.layout) from error
        wide = numbers.float() if numbers.dtype == torch.bfloat16 else numbers
        given: Any = wide.numpy()
        target, found = self._processed(name, given)
        if target is None:
            return False
        self.state[target] = numbers if found is given else torch.from_numpy(np.ascontiguousarray(found))
        return True

    def _stays(self, target: str, is_turned: bool) -> bool:
        """Return whether the module of a weight can be exchanged for one on blocks."""
        path, _, last = target.rpartition(".")
        try:
            part = self.outline.get_submodule(path)
        except AttributeError:
            return False
        return last == "weight" and (
            _is_conv1d(part)
            if is_turned
            else (isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward) or _is_embedding(part)
        )

    def exchange(self, module: Model, dtype: torch.dtype) -> None:
        """Put layers on blocks where the marks went, and apply the file's factors of rotary frequencies."""
        for path, part in list(module.named_modules(remove_duplicate=False)):
            weight = vars(part).get("_parameters", {}).get("weight")
            blocks = None if weight is None else self.blocks.get(weight.data_ptr())
            if blocks is None:
                continue
            if _is_embedding(part):
                scale = getattr(part, "embed_scale", None)
                factor = None if scale is None else float(torch.as_tensor(scale).to(dtype))
                module.set_submodule(path, BlockEmbedding(blocks, dtype, factor))
            else:
                module.set_submodule(path, BlockLinear(blocks, part.bias, dtype))
        factors = self.file.weights.get(FREQUENCIES)
        if factors is not None:
            divisor = factors.numbers().float()
            for part in module.modules():
                own = getattr(part, "inv_freq", None)
                if isinstance(own, torch.Tensor) and own.shape == divisor.shape:
                    own.copy_(own / divisor)

    def warnings(self) -> Iterator[str]:
        """The parts of the file that are not in the model, or not in their own quantized form."""
        if self.unread:
            shown = ", ".join(self.unread[:4])
            yield f"{self.file.path}: {len(self.unread)} tensors have no place in the model and are left out: {shown}"
        if self.made:
            layouts = ", ".join(sorted(set(self.made.values())))
            first = next(iter(self.made))
            yield f"{self.file.path}: {len(self.made)} weights of {layouts} become floating-point numbers, such as {first}"
        own = f"{self.file.architecture}."
        mapped = _keys_read(self.file.architecture)
        left = [
            key
            for key in self.file.metadata
            if key.startswith(own)
            and key.removeprefix(own) not in mapped
            and not _SAY_NOTHING.fullmatch(key.removeprefix(own))
            and not hasattr(self.outline.config, _ALSO.get(key.removeprefix(own), ""))
        ]
        if left:
            yield f"{self.file.path}: transformers does not read {', '.join(left[:6])}"


def _check_size(file: GgufFile, made: Mapping[str, str]) -> None:
    total_bytes = sum(4 * math.prod(file.weights[name].sizes) for name in made)
    if total_bytes > LARGEST_MADE_BYTES:
        raise UserError(
            "E404",
            f"more than {LARGEST_MADE_BYTES >> 30} GB of weights of '{file.path}' would become floating-point numbers",
            why=f"weights such as {next(iter(made))} cannot stay in their blocks",
        )


def _keys_read(architecture: str) -> set[str]:
    """Keys of GGUF, without the architecture, that transformers makes a config of."""
    maps: dict[str, dict[str, object]] = _loader().GGUF_TO_TRANSFORMERS_MAPPING["config"]
    own = architecture.replace("qwen2moe", "qwen2_moe").replace("qwen3moe", "qwen3_moe").replace("-", "_")
    return set(maps.get(architecture, {})) | set(maps.get(own, {}))


def _is_conv1d(part: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(part, Conv1D)


def _is_embedding(part: nn.Module) -> bool:
    is_plain = type(part).forward is nn.Embedding.forward
    return isinstance(part, nn.Embedding) and (is_plain or hasattr(part, "embed_scale"))
