"""What is handed to an exported folder, checked before an engine sees it: names, dtypes, shapes, files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.engine import PAST, Array, Graph, dtype_of

if TYPE_CHECKING:
    from pathlib import Path

    from fx2onnx.generation.loaded import LoadedModel

_WHOLE = "iub"
_NEEDED = {"inputs_embeds": ("embed_tokens.onnx",), ".encoder.": ("encoder_model.onnx", "vision_encoder.onnx")}
"""What is in the name of an input of the decoder, and the files of which one makes such inputs."""
_BEFORE = ("embed_tokens", "vision_encoder", "audio_encoder", "encoder_model", "prompt_model")
_PLACES = {
    "image_features": ("image_token_id", "image_token_index", "video_token_id", "video_token_index"),
    "audio_features": ("audio_token_id", "audio_token_index"),
}


def shape_of(value: Any) -> tuple[int, ...]:
    """Of an array or an engine's own value."""
    return tuple(value.shape() if callable(value.shape) else value.shape)


def check_files(folder: Path, main: Graph, graphs: Collection[str]) -> None:
    """Raises UserError E302 where the folder lacks the decoder, or a file that makes what the decoder takes."""
    if main.path.stem in _BEFORE and "logits" not in main.outputs:
        raise UserError("E302", f"the folder '{folder}' lacks decoder_model.onnx", why="the other files are there")
    for mark, files in _NEEDED.items():
        if any(mark in name for name in main.inputs) and not any(
            file.removesuffix(".onnx") in graphs for file in files
        ):
            raise UserError(
                "E302",
                f"the folder '{folder}' lacks {' or '.join(files)}",
                why=f"{main.path.name} takes what it makes",
            )


def cast(name: str, value: Any, onnx_type: str) -> Array:
    """``value`` as the graph's input ``name`` takes it. Raises UserError E401 where numbers would be lost."""
    try:
        array = np.asarray(value)
    except ValueError as cause:
        raise UserError("E401", f"{name} is no array", why=str(cause)) from cause
    wanted = np.dtype(dtype_of(onnx_type))
    loses = wanted.kind in _WHOLE and array.dtype.kind not in _WHOLE and not _is_whole(array)
    if array.dtype.kind in "OUSMm" or loses:
        raise UserError("E401", f"{name} is {array.dtype}, the model takes {wanted}")
    return array.astype(wanted, copy=False)


def _is_whole(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isfinite(array).all() and (array == np.trunc(array)).all())


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> None:
    """Raises UserError E401 where a feed is missing or does not fit the graph's shape or another feed."""
    missing = [name for name in graph.inputs if name not in feeds]
    if missing:
        raise UserError("E401", f"{graph.path.name} needs {missing[0]}", why=_takes(graph))
    bound: dict[str, tuple[int, str]] = {}
    for name, arg in graph.inputs.items():
        given = shape_of(feeds[name])
        if len(given) != len(arg.shape):
            raise UserError("E401", f"{name} is {list(given)}, {graph.path.name} takes {list(arg.shape)}")
        for axis, (size, wanted) in enumerate(zip(given, arg.shape, strict=True)):
            if isinstance(wanted, int) and size != wanted:
                raise UserError("E401", f"{name} is {list(given)}, {graph.path.name} takes {list(arg.shape)}")
            if not isinstance(wanted, str) or not wanted.isidentifier():
                continue
            first, place = bound.setdefault(wanted, (size, f"axis {axis} of {name}"))
            if first != size:
                raise UserError(
                    "E401", f"{wanted} has two sizes", why=f"{first} at {place}, {size} at axis {axis} of {name}"
                )


def check_known(graph: Graph, names: Collection[str], next: str = "") -> None:
    """Raises UserError E401 for a name that is no input of ``graph``."""
    unknown = [name for name in names if name not in graph.inputs]
    if unknown:
        raise UserError("E401", f"{graph.path.name} has no input {unknown[0]!r}", why=_takes(graph), next=next or ())


def check_places(model: LoadedModel, ids: Array, features: Mapping[str, Any]) -> None:
    """Raises UserError E401 where the prompts have more or fewer placeholder tokens than there are features."""
    embedding = model.graphs.get("embed_tokens")
    for name, fields in _PLACES.items() if embedding is not None else ():
        token = next((model.config[key] for key in fields if isinstance(model.config.get(key), int)), None)
        if token is None or embedding is None or name not in embedding.inputs:
            continue
        places, rows = int((ids == token).sum()), len(features[name]) if name in features else 0
        if places != rows:
            kind = name.removesuffix("_features")
            given = f"the {kind} inputs give {rows} features" if name in features else f"there is no {kind} input"
            raise UserError(
                "E401", f"the prompts have {places} places for an {kind}, and {given}", why=f"token {token}"
            )


def drop_baked(model: LoadedModel, rest: dict[str, Array]) -> None:
    """Take out of ``rest`` what the graphs have as constants. Raises UserError E401 where the numbers are others."""
    for name, numbers in model.baked.items():
        if name not in rest:
            continue
        value, baked = rest.pop(name), np.asarray(numbers)
        times = len(value) // len(baked) if value.ndim == baked.ndim > 0 and baked.size else 0
        expected = np.concatenate([baked] * times) if times else baked
        if name in _COUNTED_THROUGH and times and value.shape == expected.shape:
            value = _counted_alone(value, times)
        if not np.array_equal(value, expected):
            raise UserError(
                "E401",
                f"{name} is {_short(value)}, the folder was exported for {_short(baked)}",
                why="its values decide shapes, so they are part of the graph",
                next="export again with images of that size: --image-size",
            )


_COUNTED_THROUGH = ("image_token_pooling",)
"""Inputs that hold places among the patches of all images of a call."""


def _counted_alone(value: Array, images: int) -> Array:
    """``value``, each image's places counted from its own first; negative ones stand for none."""
    parts = np.split(value, images)
    return np.concatenate([np.where(part < 0, part, part - part[part >= 0].min(initial=part.max())) for part in parts])


def _short(value: Array) -> str:
    text = str(value.tolist())
    return text if len(text) < 80 else f"{text[:76]}..."


def _takes(graph: Graph) -> str:
    return f"its inputs: {', '.join(name for name in graph.inputs if not name.startswith(PAST))}"
