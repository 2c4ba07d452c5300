"""Images of any size: the grid of each says which rows of the patches are its own, and how many places of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.checks import check_feeds
from fx2onnx.generation.engine import Graph
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import Grid


def by_image(grid: Grid, graph: Graph, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """What ``graph`` takes for each image: its row of the grid, and as many rows of the other inputs as it has patches.

    Raises:   UserError E401 for a grid that no image has, or of more or fewer patches than there are.
    """
    sizes = inputs[grid.input]
    if sizes.ndim != 2 or sizes.shape[1] not in (2, 3) or not len(sizes):
        raise UserError(
            "E401", f"{grid.input} is {list(sizes.shape)}, not a row of frames, rows and columns for each image"
        )
    for size in sizes:
        sides = size[-2:]
        if (size[:-2] != 1).any() or (sides < 1).any() or (sides % grid.merge_size).any():
            why = f"an image has one frame, and rows and columns that are multiples of {grid.merge_size}"
            raise UserError("E401", f"{grid.input} says {size.tolist()}, which no image has", why=why)
    counts = sizes.prod(axis=1)
    for name, value in inputs.items():
        if name != grid.input and (not value.ndim or len(value) != counts.sum()):
            raise UserError(
                "E401",
                f"{name} is {list(value.shape)}, {grid.input} says {' + '.join(map(str, counts))} rows",
                why="each image has as many patches as its frames, rows and columns multiply to",
            )
    ends = counts.cumsum()
    rows = {name: np.split(value, ends[:-1]) for name, value in inputs.items() if name != grid.input}
    calls = [
        {grid.input: sizes[place : place + 1], **{name: parts[place] for name, parts in rows.items()}}
        for place in range(len(sizes))
    ]
    for feeds in calls:
        check_feeds(graph, feeds)
    return calls


def check_runs(ids: Array, token: int, grid: Grid, counts: Sequence[int]) -> None:
    """Raises UserError E401 where the places of images among ``ids`` [batch, sequence] are no runs of as many as the images
    have features (``counts``): positions would be those of other images.
    """
    is_place = np.pad(ids == token, ((0, 0), (1, 1)))
    ends = np.flatnonzero(is_place[:, 1:] != is_place[:, :-1])
    runs = (ends[1::2] - ends[::2]).tolist()
    if runs != list(counts):
        raise UserError(
            "E401",
            f"the images of {grid.input} have {', '.join(map(str, counts))} features, "
            f"the prompts have runs of {', '.join(map(str, runs))} places",
            why=f"token {token} stands once for each feature, and another token between two images",
            next="give the grids in the order of the images in the prompts",
        )
