"""Adapters of PEFT that are switched at run time: the graphs take the products of layers as inputs, which are empty by default."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.recipes.recipe import FolderPart
from fx2onnx.manifest.names import ADAPTER_RANK
from fx2onnx.sources.hf.adapters import LowRank, parts_of
from fx2onnx.sources.hf.transformers_types import Inputs, Model
from fx2onnx.sources.source import AxisName, Source

FIRST, SECOND, LENGTHS = ".lora_A.weight", ".lora_B.weight", ".lora_scale"
_SAMPLE_RANK = 5


@dataclass(frozen=True)
class AdaptedLayer:
    """A layer that some adapter changes: ``(layer(x) + x @ first @ second) * lengths``, which leaves the bias as it is.

    Shapes: first [inputs, rank], second [rank, outputs]; lengths [outputs], where an adapter has magnitudes (DoRA).
    """

    module: nn.Module
    name: str
    inputs: int
    outputs: int
    has_lengths: bool
    is_tied: bool
    """True if another layer has the same weight."""

    def defaults(self, rank: int = 0) -> dict[str, torch.Tensor]:
        """The inputs with which the layer is as it was."""
        empty = {
            self.name + FIRST: torch.zeros(self.inputs, rank),
            self.name + SECOND: torch.zeros(rank, self.outputs),
        }
        return empty | ({self.name + LENGTHS: torch.ones(self.outputs)} if self.has_lengths else {})

    def changed(self, values: Mapping[str, torch.Tensor], x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """The layer's result ``made`` of ``x``, with the product of ``values`` added."""
        first, second = values[self.name + FIRST], values[self.name + SECOND]
        if isinstance(self.module, nn.Embedding):
            low = nn.functional.embedding(x, first)
            factor = getattr(self.module, "embed_scale", None)
            low = low if factor is None else low * factor
        else:
            low = x @ first
        made = made + low @ second
        if self.has_lengths:
            lengths, bias = values[self.name + LENGTHS], getattr(self.module, "bias", None)
            made = made * lengths if bias is None else made * lengths + bias * (1 - lengths)
        return made


class Adapters:
    """Adapters of one model, by name."""

    def __init__(self, model: Model, folders: Mapping[str, Path]) -> None:
        """Raises: UserError E302 for a folder that is no adapter, E601 for one of another base, or that cannot be switched."""
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._products: dict[str, dict[nn.Module, LowRank]] = {}
        for name, folder in folders.items():
            parts = parts_of(model, folder)
            wrong = [*parts.wrong, *(each for each in map(self._misfit, parts.products) if each)]
            if wrong or not (parts.products or parts.whole):
                raise parts.error(model, wrong)
            for owner, last in parts.whole:
                raise UserError(
                    "E601",
                    f"the adapter '{name}' cannot be switched at run time",
                    why=f"it has a whole weight: {self._names[owner]}.{last}",
                    next=f"merge it: hf:FOLDER?adapter={folder}",
                )
            self._products[name] = {product.owner: product for product in parts.products}
        every = [product for found in self._products.values() for product in found.values()]
        scaled = {product.owner for product in every if product.magnitude is not None}
        tied = Counter(id(getattr(module, "weight", module)) for module in self._names)
        self.layers = {
            owner: AdaptedLayer(
                owner, self._names[owner], product.first.shape[1], product.second.shape[0],
                owner in scaled, tied[id(getattr(owner, "weight", owner))] > 1,
            )
            for owner, product in {product.owner: product for product in every}.items()
        }  # fmt: skip

    def _misfit(self, product: LowRank) -> str:
        """The reason why the product is none of its layer, which may have packed weights where nothing is to be scaled."""
        owner, weight = product.owner, getattr(product.owner, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.dim() == 2:
            return "" if product.merged(weight) is not None else product.misfit(weight)
        sizes = [getattr(owner, size, None) for size in ("in_features", "out_features")]
        fits = product.magnitude is None and sizes == [product.first.shape[-1], product.second.shape[0]]
        return "" if fits else product.misfit(weight)

    def values(self, adapter: str) -> dict[str, torch.Tensor]:
        """The inputs for ``adapter``. All layers have the largest of its ranks, also those that it leaves as they are:
        onnxruntime puts one result into the memory of another where it takes their sizes for equal.
        """
        products = self._products[adapter]
        rank = max(len(product.first) for product in products.values())
        found: dict[str, torch.Tensor] = {}
        for layer in self.layers.values():
            found |= layer.defaults(rank)
        for module, product in products.items():
            layer, more = self.layers[module], rank - len(product.first)
            first, second = product.first.float(), product.second.float() * product.scale
            found[layer.name + FIRST] = nn.functional.pad(first, (0, 0, 0, more)).T.contiguous()
            found[layer.name + SECOND] = nn.functional.pad(second, (0, more)).T.contiguous()
            if product.magnitude is not None:
                weight = module.weight
                assert isinstance(weight, torch.Tensor)
                rows = weight.detach().float()
                rows = rows.T if product.is_turned else rows
                merged = rows + product.scale * product.second.float() @ product.first.float()
                found[layer.name + LENGTHS] = product.magnitude.float().reshape(-1) / merged.norm(dim=1)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._products)

    def part(self, part: FolderPart) -> FolderPart:
        """``part``, whose graphs take the products."""
        forms = [partial(self._adapted, make) for make in part.forms]
        prompt = None if part.prompt is None else partial(self._adapted, part.prompt)
        return replace(part, forms=forms, prompt=prompt)

    def _adapted(self, make: Callable[[], Source]) -> Source:
        source = make()
        within = set(source.module.modules())
        layers = [layer for module, layer in self.layers.items() if module in within]
        if not layers:
            return source
        module = _taking(source.module, layers)
        kwargs: Inputs = {}
        shapes: dict[str, dict[int, AxisName]] = {}
        dtype = next((each.dtype for each in source.module.parameters() if each.is_floating_point()), torch.float32)
        generator = torch.Generator().manual_seed(0)
        for layer in layers:
            names = layer.name + FIRST, layer.name + SECOND
            sizes = (layer.inputs, _SAMPLE_RANK), (_SAMPLE_RANK, layer.outputs)
            for name, size, axis in zip(names, sizes, (1, 0), strict=True):
                kwargs[name] = (torch.randn(size, generator=generator) / size[0] ** 0.5).to(dtype)
                shapes[name] = {axis: ADAPTER_RANK}
            if layer.has_lengths:
                kwargs[layer.name + LENGTHS] = (0.5 + torch.rand(layer.outputs, generator=generator)).to(dtype)
        for sample in getattr(module, "samples", ()):
            sample.update(kwargs)
        return replace(
            source,
            module=module,
            kwargs={**source.kwargs, **kwargs},
            dynamic_shapes={**(source.dynamic_shapes or {}), **shapes},
        )


class TakesProducts:
    """Goes before the class of a module: the same, whose forward also takes the products of ``adapted_layers``."""

    adapted_layers: tuple[AdaptedLayer, ...]

    def forward(self, **inputs: torch.Tensor) -> object:
        values = {name: inputs.pop(name) for name in list(inputs) if name.endswith((FIRST, SECOND, LENGTHS))}
        with contextlib.ExitStack() as stack:
            for layer in self.adapted_layers:
                if layer.name + FIRST in values:
                    hook = partial(_changed, layer, values)
                    stack.callback(layer.module.register_forward_hook(hook).remove)
            return super().forward(**inputs)  # type: ignore[misc]


def _changed(
    layer: AdaptedLayer,
    values: Mapping[str, torch.Tensor],
    _: nn.Module,
    args: tuple[torch.Tensor, ...],
    made: torch.Tensor,
) -> torch.Tensor:
    return layer.changed(values, args[0], made)


def product_inputs(module: nn.Module) -> set[str]:
    """The inputs of products that ``module`` takes."""
    layers = module.adapted_layers if isinstance(module, TakesProducts) else ()
    return {name for layer in layers for name in layer.defaults()}


def _taking(module: nn.Module, layers: list[AdaptedLayer]) -> nn.Module:
    kind = type(module)
    if not isinstance(module, TakesProducts):
        module.__class__ = type(kind.__name__, (TakesProducts, kind), {})
    vars(module)["adapted_layers"] = tuple(layers)
    return module
