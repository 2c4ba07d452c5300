"""The inputs beside the tokens of a prompt: images, sound, and the masks that say where they are seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.engine import Graph, as_array, cast, check_feeds, dtype_of, shape_of
from fx2onnx.generation.opened import OpenedFolder
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import Grid, Medium, Port
from fx2onnx.manifest.names import EMBEDDED, IDS, LENGTH, MASK, POSITIONS, TABLE


def by_image(grid: Grid, graph: Graph, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The inputs of ``graph`` for each image: its row of the grid, and as many rows of the other inputs as it has patches.

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


TEXT = (IDS, MASK, POSITIONS, EMBEDDED, LENGTH, TABLE)
"""The inputs of text, among those that a caller gives."""
_TEXT_ROLES = ("tokens", "decoder_tokens", "embedded", "mask", "positions", "length", "pages")
_KINDS_OF_TOKENS = "mm_token_type_ids"


def encode_media(model: OpenedFolder, given: Mapping[str, Array], ids: Array) -> dict[str, Any]:
    """The inputs of the language model by name: what the encoders make of ``given``, and what goes to it as it is.

    Raises:   UserError E401 for an input that is missing, unknown or of another shape.
    """
    rest = {name: value for name, value in given.items() if name not in TEXT}
    drop_baked(model.manifest.baked, rest)
    if model.graph("embed") is not None:
        rest.pop(_KINDS_OF_TOKENS, None)  # which the placeholder tokens say themselves
    found: dict[str, Any] = {}
    for medium in model.manifest.media:
        graph = model.graph(medium.kind)
        if graph is not None and (medium.is_required or any(name in rest for name in graph.inputs)):
            _check(graph, rest)
            found |= _encoded(model, medium, graph, {name: rest.pop(name) for name in graph.inputs}, ids)
    prompt = model.graph("prompt")
    if prompt is not None:
        _check(prompt, [*rest, *TEXT, *model.main.inputs])
    for graph in [model.main] if prompt is None else [model.main, prompt]:
        for port in beside_text(graph):
            if port.name in rest:
                found[port.name] = cast(port.name, rest.pop(port.name), graph.inputs[port.name].type)
            elif port.name not in found and port.role == "token_mask":  # nothing is hidden
                sizes = graph.inputs[port.name].shape[2:]
                found[port.name] = np.ones((*ids.shape, *sizes), dtype_of(graph.inputs[port.name].type))
    if rest:
        raise UserError(
            "E401", f"the model has no input {next(iter(rest))!r}", why=f"it takes {', '.join(_taken(model))}"
        )
    _check_places(model.manifest.media, ids, found)
    return found


def beside_text(graph: Graph) -> list[Port]:
    """The inputs that are neither text nor cache."""
    return [port for port in graph.form.inputs if port.role not in _TEXT_ROLES]


def _taken(model: OpenedFolder) -> list[str]:
    """The names that ``generate`` takes."""
    graphs = [graph for kind in ("image", "audio", "prompt") if (graph := model.graph(kind)) is not None]
    return [IDS, MASK, *dict.fromkeys(port.name for graph in graphs for port in beside_text(graph))]


def _check_places(media: Sequence[Medium], ids: Array, features: Mapping[str, Any]) -> None:
    """Raises UserError E401 where the prompts have more or fewer placeholder tokens than there are features."""
    for medium in media:
        if medium.token is None or medium.features is None:
            continue
        has_features = medium.features in features
        places, rows = int((ids == medium.token).sum()), len(features[medium.features]) if has_features else 0
        if places != rows:
            kind = medium.kind
            given = f"the {kind} inputs give {rows} features" if has_features else f"there is no {kind} input"
            raise UserError(
                "E401", f"the prompts have {places} places for an {kind}, and {given}", why=f"token {medium.token}"
            )


def drop_baked(constants: Mapping[str, Any], rest: dict[str, Array]) -> None:
    """Take out of ``rest`` what the graphs have as constants. Raises UserError E401 where the numbers are others."""
    for name, numbers in constants.items():
        if name not in rest:
            continue
        value, baked = rest.pop(name), np.asarray(numbers)
        times = len(value) // len(baked) if value.ndim == baked.ndim > 0 and baked.size else 0
        expected = np.concatenate([baked] * times) if times else baked
        if name in _COUNTED_THROUGH and times and value.shape == expected.shape:
            parts = np.split(value, times)
            value = np.concatenate(
                [np.where(part < 0, part, part - part[part >= 0].min(initial=part.max())) for part in parts]
            )
        if not np.array_equal(value, expected):
            raise UserError(
                "E401",
                f"{name} is {_short(value)}, the folder was exported for {_short(baked)}",
                why="its values decide shapes, so they are part of the graph",
                next="export again with images of that size: --image-size",
            )


_COUNTED_THROUGH = ("image_token_pooling",)
"""Inputs that hold places among the patches of all images of a call."""


def _short(value: Array) -> str:
    text = str(value.tolist())
    return text if len(text) < 80 else f"{text[:76]}..."


def _check(graph: Graph, given: Collection[str]) -> None:
    """Raises UserError E401 where an input of ``graph`` is missing."""
    missing = [name for name in graph.inputs if name not in given]
    if missing:
        needs = ", ".join(port.name for port in beside_text(graph))
        raise UserError("E401", f"{graph.path.name} needs {missing[0]}", why=f"it takes {needs}")


def _encoded(
    model: OpenedFolder, medium: Medium, graph: Graph, inputs: dict[str, Array], ids: Array
) -> dict[str, Array]:
    """The features of all images or recordings, in several calls where the graph takes so much of them a call; and the
    sizes of images, where these are free.
    """
    inputs = {name: cast(name, value, graph.inputs[name].type) for name, value in inputs.items()}
    grid = medium.grid
    calls = by_image(grid, graph, inputs) if grid is not None and grid.input in inputs else _calls(graph, inputs)
    results = [graph.run(feeds) for feeds in calls]
    found = {name: np.concatenate([as_array(result[name]) for result in results]) for name in graph.outputs}
    embedding = model.graph("embed")
    if grid is None or embedding is None or grid.input not in embedding.inputs:
        return found
    if medium.token is not None and medium.features is not None:
        check_runs(ids, medium.token, grid, [shape_of(result[medium.features])[0] for result in results])
    sizes = inputs[grid.input] if grid.input in inputs else np.tile(model.manifest.baked[grid.input], (len(calls), 1))
    return found | {grid.input: sizes}


def _calls(graph: Graph, inputs: Mapping[str, Array]) -> list[dict[str, Array]]:
    """``inputs``, cut into what ``graph`` takes a call."""
    cuts = {name: _cut(graph, name, value) for name, value in inputs.items()}
    counts = {count for _, count in cuts.values() if count != 1}
    if len(counts) > 1:
        raise UserError(
            "E401", f"the inputs of {graph.path.name} are of {' and '.join(map(str, sorted(counts)))} calls"
        )
    calls = counts.pop() if counts else 1
    pieces = {
        name: [value] * calls if cuts[name][1] == 1 else np.split(value, calls, cuts[name][0])
        for name, value in inputs.items()
    }
    return [{name: parts[call] for name, parts in pieces.items()} for call in range(calls)]


def _cut(graph: Graph, name: str, value: Array) -> tuple[int, int]:
    """The axis along which ``value`` is cut, and into how many parts of the size that the graph takes a call."""
    wanted = list(graph.inputs[name].shape)
    given = f"{name} is {list(value.shape)}, {graph.path.name} takes {wanted}"
    if len(wanted) != value.ndim:
        raise UserError("E401", given)
    other = [axis for axis, size in enumerate(wanted) if isinstance(size, int) and size != value.shape[axis]]
    if not other:
        return 0, 1
    if len(other) > 1:
        raise UserError("E401", given, next="images of another size need an export of their own: --image-size")
    size, count = wanted[other[0]], value.shape[other[0]]
    if not count or count % size:
        raise UserError("E401", f"the encoder takes {size} rows a call, {count} are no multiple of it", why=given)
    return other[0], count // size
