"""The module that puts features of images and sound among embedded tokens."""

from __future__ import annotations

import inspect

import torch

from fx2onnx.decoding.grid_positions import GridLayout
from fx2onnx.decoding.mrope import ImageLayout, image_positions
from fx2onnx.decoding.probes import adds_features, sees_kinds
from fx2onnx.decoding.recipes.deepstack import DEEP, KINDS, PER_LAYER, embedded_as, per_layer_inputs, takes_kinds
from fx2onnx.decoding.recipes.modality import Modality, token_of, width_of
from fx2onnx.manifest.form import Grid, Medium
from fx2onnx.manifest.names import EMBEDDED, POSITIONS
from fx2onnx.sources.hf.transformers_types import Inputs, Model


class EmbedPart(torch.nn.Module):
    """Embedded tokens [batch, sequence, width] with features in the places of their tokens; with ``layout``, also the
    positions [axes, batch, sequence] of tokens among images of that layout, or of the sizes that the input ``grid`` says.
    And what the language model takes beside them [batch, sequence, layers, width].
    """

    def __init__(
        self,
        model: Model,
        modalities: list[Modality],
        layout: ImageLayout | GridLayout | None = None,
        grid: Grid | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._tokens = {name: token_of(model, m) or 0 for m in modalities for name in (m.features, m.deep)}
        self.media = tuple(
            Medium(m.name, features=m.features, token=token_of(model, m), grid=grid if m.name == "image" else None)
            for m in modalities
        )
        self._layout = layout
        self._grid = "" if grid is None else grid.input
        self.axes = 0 if layout is None else layout.axes
        self._embedded_as = embedded_as(model)
        self._takes_kinds = takes_kinds(model) or (
            KINDS in inspect.signature(model.forward).parameters and sees_kinds(model, KINDS, width_of(model))
        )
        self._adds = {m.features for m in modalities if m.name == "image" and adds_features(model, token_of(model, m))}

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **features: torch.Tensor
    ) -> Inputs:
        grids = features.pop(self._grid, None)
        masks = {name: _places(input_ids == self._tokens[name], rows.shape[0]) for name, rows in features.items()}
        is_placeholder = torch.zeros_like(input_ids, dtype=torch.bool)
        for mask in (mask for name, mask in masks.items() if name not in self._adds):
            is_placeholder = is_placeholder | mask
        words = input_ids
        for token, other in self._embedded_as.items():
            words = words.masked_fill(input_ids == token, other)
        ids = words.masked_fill(is_placeholder, 0)  # placeholder tokens may lie beyond the embedding's rows
        embedded = self.model.get_input_embeddings()(ids)
        outputs: Inputs = {}
        for name, mask in masks.items():
            spread = _spread(features[name].to(embedded.dtype), mask)
            if name.endswith(DEEP):
                outputs[DEEP] = spread
            else:
                shown = embedded + spread if name in self._adds else spread
                embedded = torch.where(mask[..., None], shown, embedded)
        outputs[EMBEDDED] = embedded
        per_layer = per_layer_inputs(self.model, words)
        if per_layer is not None:
            outputs[PER_LAYER] = per_layer
        if self._takes_kinds:
            outputs[KINDS] = masks["image_features"].long()
        if attention_mask is not None:
            is_image, is_shown = masks["image_features"], attention_mask != 0
            if isinstance(self._layout, GridLayout) and grids is not None:
                outputs[POSITIONS] = self._layout.positions(is_image, is_shown, grids)
            elif isinstance(self._layout, ImageLayout):
                outputs[POSITIONS] = image_positions(input_ids, is_image, is_shown, self._layout)
        return outputs


def _places(is_token: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` of the places [batch, sequence]: a token that was generated stands for no feature."""
    return is_token & (is_token.flatten().cumsum(0).reshape(is_token.shape) <= count)


def _spread(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rows of ``features`` in the places [batch, sequence] that ``mask`` shows, zeros in all others."""
    rows = torch.cat([features.new_zeros(1, *features.shape[1:]), features])  # so that there may be no feature at all
    order = (mask.flatten().cumsum(0) * mask.flatten()).reshape(mask.shape)
    return rows[order]
