"""LoRA and DoRA adapters as PEFT writes them, and how they are merged into the weights of the model that they are for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.sources.hf.config import ADAPTER_CONFIG
from fx2onnx.sources.hf.packed_linear import PackedModule
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


@dataclass(frozen=True)
class LowRank:
    """The change of one layer: ``scale * second @ first`` is added to its weight, whose rows then get the lengths ``magnitude``."""

    owner: nn.Module
    name: str
    first: torch.Tensor
    second: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None

    @property
    def is_turned(self) -> bool:
        """True if the weight has a column for each output."""
        return isinstance(self.owner, nn.Embedding) or type(self.owner).__name__ == "Conv1D"

    def merged(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The weight with the product added, and scaled to the magnitudes of DoRA; None where sizes do not fit."""
        first, second, magnitude = self.first.float(), self.second.float(), self.magnitude
        if first.dim() < 2 or second.dim() < 2 or (magnitude is not None and isinstance(self.owner, nn.Embedding)):
            return None
        rows = weight.float().T if self.is_turned else weight.float()
        if first.flatten(1).shape[0] != second.flatten(1).shape[1] or getattr(self.owner, "groups", 1) != 1:
            return None
        delta = second.flatten(1) @ first.flatten(1)
        if delta.shape != rows.flatten(1).shape or (magnitude is not None and magnitude.numel() != len(rows)):
            return None
        made = rows + self.scale * delta.reshape(rows.shape)
        if magnitude is not None:
            by = magnitude.float().reshape(-1) / made.flatten(1).norm(dim=1)
            made = made * by.reshape(-1, *[1] * (made.dim() - 1))
        return (made.T if self.is_turned else made).to(weight.dtype).contiguous()

    def misfit(self, weight: object) -> str:
        """The reason why the product is for another layer than that of ``weight``."""
        sizes = list(weight.shape) if isinstance(weight, torch.Tensor) else "packed"
        return f"{self.name} is {sizes}, of the adapter A {list(self.first.shape)}, B {list(self.second.shape)}"


@dataclass(frozen=True)
class AdapterParts:
    """The contents of an adapter's folder, for a module: products, weights that take the place of others, and what does not fit."""

    folder: Path
    products: list[LowRank]
    whole: dict[tuple[nn.Module, str], torch.Tensor]
    wrong: list[str]
    base: object

    def error(self, module: Model, wrong: list[str]) -> UserError:
        """The error for an adapter of another base."""
        count = len(self.products) + len(self.whole) + len(self.wrong)
        base = f", {self.base}" if isinstance(self.base, str) else ""
        return UserError(
            "E601",
            f"the adapter '{self.folder}' is not for this {type(module).__name__}",
            why=f"{len(wrong)} of {count} parts do not fit, the first: {wrong[0]}" if wrong else "it has no weights",
            next=f"give the model that it was trained on{base}",
        )


def parts_of(module: Model, folder: Path) -> AdapterParts:
    """Raises: UserError E302 for a folder that is no adapter, E601 for an adapter of another kind."""
    stated, state = _read(folder)
    found: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    parts = AdapterParts(folder, [], {}, [], stated.get("base_model_name_or_path"))
    for key, tensor in state.items():
        name = key.removeprefix(PREFIX)
        part = _PART.fullmatch(name)
        if part is None:
            name = name.replace(".modules_to_save.", ".").replace(".base_layer.", ".")
            owner, last = _module(module, name.rpartition(".")[0]), name.rpartition(".")[2]
            own = getattr(owner, last, None)
            if owner is None or not isinstance(own, torch.Tensor) or own.shape != tensor.shape:
                parts.wrong.append(f"{name} {list(tensor.shape)} is no weight of it")
            elif not torch.equal(own, tensor.to(own.dtype)):  # PEFT keeps a copy of tables of words that it changes
                parts.whole[owner, last] = tensor.to(own.dtype)
        else:
            found[part[1]][part[2].removeprefix("embedding_")] = tensor
    for name, tensors in found.items():
        owner = _module(module, name)
        if owner is None or not {"A", "B"} <= tensors.keys():
            parts.wrong.append(f"{name} is no layer of it" if owner is None else f"{name} lacks a part")
            continue
        scale = _scale(stated, name, len(tensors["A"]))
        parts.products.append(LowRank(owner, name, tensors["A"], tensors["B"], scale, tensors.get("magnitude_vector")))
    return parts


def merge(module: Model, folder: Path) -> None:
    """Add the adapter in ``folder`` to the weights of ``module``; nothing is changed where a part does not fit.

    Raises:   UserError E302 for a folder that is no adapter, E601 for an adapter of another base or kind.
    """
    parts = parts_of(module, folder)
    changes, wrong = dict(parts.whole), list(parts.wrong)
    for product in parts.products:
        if isinstance(product.owner, PackedModule):
            raise UserError(
                "E601",
                f"the adapter '{folder}' cannot be merged into quantized weights",
                why=f"{product.name} keeps the quantized values of the checkpoint",
                next=f"switch to it at run time: fx2onnx export-folder SOURCE -o OUT --adapters NAME={folder}",
            )
        weight = changes.get((product.owner, "weight"), getattr(product.owner, "weight", None))
        made = product.merged(weight) if isinstance(weight, torch.Tensor) else None
        wrong += [product.misfit(weight)] if made is None else []
        changes |= {} if made is None else {(product.owner, "weight"): made}
    if wrong or not changes:
        raise parts.error(module, wrong)
    for (owner, name), tensor in changes.items():
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
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha) or not rank:
        raise UserError("E302", "cannot read the adapter", why=f"lora_alpha is {alpha!r:.60}, the rank {rank}")
    return float(alpha) / (math.sqrt(rank) if stated.get("use_rslora") else rank)
