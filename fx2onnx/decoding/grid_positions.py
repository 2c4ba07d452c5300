"""Positions of tokens among images of any size, from the grid of each: its frames, rows and columns of patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fx2onnx.decoding.mrope import Asking, merge_size_of, rope_index_of
from fx2onnx.sources.hf.transformers_types import Model

_BEYOND = 2**31
"""More features than any prompt has: those of an image that ends the list, so that the list is never empty."""
_ASKED = ([(2, 3), (3, 2)], [(1, 1), (4, 2)], [(1, 5), (3, 1)], [(2, 2), (1, 3)])
"""Rows and columns of features of the two images in each prompt that the model's own function is asked about."""


@dataclass(frozen=True)
class GridLayout:
    """An image's features stand in rows and columns, counted from where the text before it ends; text goes on behind the
    longer side. A feature is made of ``merge_size`` rows and columns of patches.
    """

    merge_size: int
    axes: ClassVar[int] = 3

    def positions(self, is_image: torch.Tensor, is_shown: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """Places [axes, batch, sequence] of every token, time, row and column; 0 for padding.

        is_image, is_shown [batch, sequence]: the placeholders of features; what is no padding. grids [images, 3]: of the
        images in the order of their placeholders, none of which has some in two prompts.
        """
        sides = grids[:, -2:] // self.merge_size
        sides = torch.cat([sides, torch.tensor([[_BEYOND, 1]])])
        sizes, advances = sides.prod(-1), sides.amax(-1)
        starts, advanced = sizes.cumsum(0) - sizes, advances.cumsum(0) - advances
        image = is_image & is_shown
        text = is_shown & ~image
        before = (image.flatten().long().cumsum(0)).reshape(image.shape) - image.long()
        ended = (before[..., None] >= (starts + sizes)).long().sum(-1)
        inside, columns = before - starts[ended], sides[:, 1][ended]
        start = text.long().cumsum(-1) - text.long() + advanced[ended] - advanced[ended[:, :1]]
        places = torch.stack([torch.zeros_like(inside), inside // columns, inside % columns])
        return (start + torch.where(image, places, 0)) * is_shown.long()


def grid_layout(model: Model, samples: Mapping[str, torch.Tensor]) -> GridLayout | None:
    """How tokens stand among images of any grid, if the model's own ``get_rope_index`` says the same of several.

    samples: arguments of the encoder, for one image.
    """
    count, merge = rope_index_of(model), merge_size_of(model)
    name = next((name for name in samples if name.endswith("grid_thw")), None)
    if count is None or merge is None or name is None:
        return None
    asking, layout = Asking(model, count, samples), GridLayout(merge)
    word, start = asking.word, asking.start
    for sides in _ASKED:
        first, second = ([asking.token] * (rows * columns) for rows, columns in sides)
        grids = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in sides])
        ids = asking.prompt([word, word, start], first, [word, word, start], second, [word, word])
        places = asking.places(ids, len(sides), {name: grids})
        own = layout.positions(ids == asking.token, torch.ones_like(ids).bool(), grids)
        if places is None or not torch.equal(places, own[:, 0]):
            return None
    return layout
