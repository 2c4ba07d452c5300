"""Positions of tokens among images, as models with a position for each of time, row and column count them.

Their own code loops over the prompt. Where all images have the same grid, a few sums over the prompt give the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from fx2onnx.base.errors import UserError


def grid_positions(is_image: torch.Tensor, is_shown: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Time, row and column [3, batch, sequence] of every token; 0 for padding.

    is_image, is_shown [batch, sequence]: the placeholders of features, ``rows * columns`` for each image; what is no
    padding. Text counts on by 1; an image starts where the text before it ends, and text goes on after its longer side.
    """
    image = is_image & is_shown
    text = is_shown & ~image
    texts_before = text.long().cumsum(-1) - text.long()
    features_before = image.long().cumsum(-1) - image.long()
    start = texts_before + features_before // (rows * columns) * max(rows, columns)
    inside = features_before % (rows * columns) * image.long()
    positions = torch.stack([start, start + inside // columns, start + inside % columns])
    return positions * is_shown.long()


def merged_grid(model: Any, samples: Mapping[str, torch.Tensor]) -> tuple[int, int] | None:
    """Rows and columns of features of each image; None for a model whose positions are those of text.

    Raises:   UserError E601 for a model that counts otherwise than ``grid_positions``.
    """
    owners: tuple[Any, ...] = (model, getattr(model, "model", None), model.base_model)
    count: Any = next((owner.get_rope_index for owner in owners if hasattr(owner, "get_rope_index")), None)
    if count is None:
        return None
    grids = [value for name, value in samples.items() if name.endswith("grid_thw")]
    merge = getattr(getattr(model.config, "vision_config", None), "spatial_merge_size", None)
    if grids and merge:
        _, rows, columns = (int(size) for size in grids[0][0])
        grid = rows // merge, columns // merge
        if _agrees(count, model, grids[0], grid):
            return grid
    raise UserError(
        "E601",
        f"{type(model).__name__} counts positions by rules of its own",
        why="get_rope_index gives others than rows and columns of one grid",
    )


def _agrees(count: Any, model: Any, grid_thw: torch.Tensor, grid: tuple[int, int]) -> bool:
    """Whether the model's own function gives the same for two images among text."""
    token = next(
        value
        for name in ("image_token_id", "image_token_index")
        if isinstance(value := getattr(model.config, name, None), int)
    )
    features = [token] * (grid[0] * grid[1])
    special = {value for name, value in vars(model.config).items() if name.endswith(("_token_id", "_token_index"))}
    word = next(word for word in range(3, 100) if word not in special)
    start = getattr(model.config, "vision_start_token_id", None)
    before = word if start is None else start  # by which some functions count images
    ids = torch.tensor([[word, before, *features, word, before, *features, word, word]])
    known = {
        "input_ids": ids,
        "mm_token_type_ids": (ids == token).int(),
        "image_grid_thw": grid_thw.repeat(2, 1),
        "attention_mask": torch.ones_like(ids),
    }
    parameters = inspect.signature(count).parameters
    try:
        found, _ = count(**{name: value for name, value in known.items() if name in parameters})
    except Exception:  # a function of the model's that wants something else
        return False
    return torch.equal(found[-3:].long(), grid_positions(ids == token, torch.ones_like(ids).bool(), *grid))
