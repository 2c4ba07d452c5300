"""LoRA and DoRA adapters as PEFT writes them, merged into the weights of the model that they are for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.sources.hf.config import ADAPTER_CONFIG
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.weight_files import map_file

_PATH = re.compile(r"[\w.]+")
FILES = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
_PART = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(?:\.default)?(?:\.weight)?")
_UNMERGED = (
    *("target_parameters", "trainable_token_indices", "layer_replication", "lora_bias", "megatron_config"),
    *("alora_invocation_tokens", "use_qalora", "arrow_config", "corda_config"),
)
"""Settings of an adapter that change more than the products of weights, or other weights."""


def merge(module: Model, folder: Path) -> None:
    """Add the adapter in ``folder`` to the weights of ``module``; nothing is changed where a part does not fit.

    Raises:   UserError E302 for a folder that is no adapter, E601 for an adapter of another base or kind.
    """
    stated, state = _read(folder)
    found: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    whole: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        name = key.removeprefix(PREFIX)
        part = _PART.fullmatch(name)
        if part is None:
            whole[name.replace(".modules_to_save.", ".")] = tensor
        else:
            found[part[1]][part[2].removeprefix("embedding_")] = tensor
    changes: list[tuple[nn.Module, str, torch.Tensor]] = []
    wrong: list[str] = []
    for name, parts in found.items():
        owner = _module(module, name)
        weight = getattr(owner, "weight", None)
        if not isinstance(weight, torch.Tensor) or not {"A", "B"} <= parts.keys():
            wrong.append(f"{name} is no layer of it" if owner is None else f"{name} has no weight for it")
        else:
            made = _merged(owner, weight, parts, _scale(stated, name, len(parts["A"])))
            sizes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in sorted(parts.items()))
            wrong += [f"{name} is {list(weight.shape)}, of the adapter {sizes}"] if made is None else []
            changes += [] if made is None or owner is None else [(owner, "weight", made)]
    for name, tensor in whole.items():
        path, _, last = name.rpartition(".")
        owner = _module(module, path)
        own = getattr(owner, last, None)
        if owner is None or not isinstance(own, torch.Tensor) or own.shape != tensor.shape:
            wrong.append(f"{name} {list(tensor.shape)} is no weight of it")
        else:
            changes.append((owner, last, tensor.to(own.dtype)))
    if wrong or not changes:
        base = stated.get("base_model_name_or_path")
        raise UserError(
            "E601",
            f"the adapter '{folder}' is not for this {type(module).__name__}",
            why=f"{len(wrong)} of {len(found) + len(whole)} parts do not fit, the first: {wrong[0]}" if wrong else "it has no weights",
            next=f"give the model that it was trained on{f', {base}' if isinstance(base, str) else ''}: hf:BASE?adapter={folder}",
        )  # fmt: skip
    for owner, name, tensor in changes:
        setattr(
            owner, name, nn.Parameter(tensor, requires_grad=False)
        )  # a new one: what is tied to the old one keeps it


def _read(folder: Path) -> tuple[Mapping[str, object], Mapping[str, torch.Tensor]]:
    if not folder.is_dir():
        raise UserError("E302", f"there is no adapter folder '{folder}'", next="?adapter=FOLDER, as PEFT saves it")
    stated = read_object(inside(folder, ADAPTER_CONFIG))
    kind = stated.get("peft_type")
    others = [name for name in _UNMERGED if stated.get(name)]
    if kind != "LORA" or others:
        raise UserError(
            "E601",
            f"the adapter '{folder}' cannot be merged here",
            why=f"it has {', '.join(others)}" if kind == "LORA" else f"its kind is {kind!r:.60}, not LORA",
            next="merge it with PEFT: model.merge_and_unload().save_pretrained(FOLDER)",
        )
    for name in FILES:
        if inside(folder, name).is_file():
            return stated, map_file(folder / name).state
    raise UserError("E302", f"the adapter '{folder}' has no weights", why=f"there is neither {' nor '.join(FILES)}")


def _module(module: Model, name: str) -> nn.Module | None:
    """The module of that name, also where the adapter is of the model with another head, or of the model inside."""
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    names = dict(module.named_modules())
    tried = (name, name.removeprefix(prefix), prefix + name)
    return next((names[each] for each in tried if each in names), None)


def _scale(stated: Mapping[str, object], name: str, rank: int) -> float:
    """The factor of the product. Raises: UserError E302."""
    patterns = stated.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(map(_PATH.fullmatch, patterns)):
        raise UserError(
            "E601",
            "the adapter cannot be merged here",
            why="its alpha_pattern has expressions, not names of modules",
            next="merge it with PEFT: model.merge_and_unload().save_pretrained(FOLDER)",
        )
    own = next((alpha for key, alpha in patterns.items() if f".{name}".endswith(f".{key}")), None)
    alpha = stated.get("lora_alpha", rank) if own is None else own
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not rank:
        raise UserError("E302", "cannot read the adapter", why=f"lora_alpha is {alpha!r:.60}, the rank {rank}")
    return float(alpha) / (math.sqrt(rank) if stated.get("use_rslora") else rank)


def _merged(
    owner: nn.Module | None, weight: torch.Tensor, parts: Mapping[str, torch.Tensor], scale: float
) -> torch.Tensor | None:
    """The weight with the product added, and scaled to the magnitudes of DoRA; None where sizes do not fit."""
    first, second, magnitude = parts["A"].float(), parts["B"].float(), parts.get("magnitude_vector")
    if first.dim() < 2 or second.dim() < 2 or (magnitude is not None and isinstance(owner, nn.Embedding)):
        return None
    is_turned = isinstance(owner, nn.Embedding) or type(owner).__name__ == "Conv1D"
    rows = weight.float().T if is_turned else weight.float()
    if first.flatten(1).shape[0] != second.flatten(1).shape[1] or getattr(owner, "groups", 1) != 1:
        return None
    delta = second.flatten(1) @ first.flatten(1)
    if delta.shape != rows.flatten(1).shape or (magnitude is not None and magnitude.numel() != len(rows)):
        return None
    made = rows + scale * delta.reshape(rows.shape)
    if magnitude is not None:
        by = magnitude.float().reshape(-1) / made.flatten(1).norm(dim=1)
        made = made * by.reshape(-1, *[1] * (made.dim() - 1))
    return (made.T if is_turned else made).to(weight.dtype).contiguous()
