"""What comes beside the tokens of a prompt: images, sound, and the masks that say where they are seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.checks import cast, check_places, drop_baked
from fx2onnx.generation.engine import PAST, PRESENT, Array, Graph, as_array, dtype_of
from fx2onnx.generation.loaded import LoadedModel

ENCODERS = ("vision_encoder", "audio_encoder")
PROMPT = "prompt_model"
FEATURES = ("image_features", "audio_features")
STREAM = "audio_stream"  # what is heard with each token, given or generated: a row for each
TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "past_length")


def brought(model: LoadedModel, given: Mapping[str, Array], ids: Array) -> dict[str, Any]:
    """By name, what the encoders make of ``given`` and what goes to the language model as it is.

    Raises:   UserError E401 for an input that is missing, unknown or of another shape.
    """
    rest = {name: value for name, value in given.items() if name not in TEXT}
    drop_baked(model, rest)
    if "embed_tokens" in model.graphs:
        rest.pop("mm_token_type_ids", None)  # which the placeholder tokens say themselves
    found: dict[str, Any] = {}
    for stem in ENCODERS:
        graph = model.graphs.get(stem)
        is_needed = graph is not None and (gives_states(graph) or STREAM in graph.outputs)
        if graph is not None and (is_needed or any(name in rest for name in graph.inputs)):
            _check(graph, rest)
            found |= _encoded(graph, {name: rest.pop(name) for name in graph.inputs})
    prompt = model.graphs.get(PROMPT)
    if prompt is not None:
        _check(prompt, [*rest, *TEXT, *model.main.inputs])
    for graph in [model.main] if prompt is None else [model.main, prompt]:
        for name in own_inputs(graph):
            if name in rest:
                found[name] = cast(name, rest.pop(name), graph.inputs[name].type)
            elif name not in found and name.endswith("_mask"):  # nothing is hidden
                shape = graph.inputs[name].shape
                found[name] = np.ones((*ids.shape, *shape[2:]), dtype_of(graph.inputs[name].type))
    if rest:
        raise UserError(
            "E401", f"the model has no input {next(iter(rest))!r}", why=f"it takes {', '.join(taken(model))}"
        )
    check_places(model, ids, found)
    return found


def own_inputs(graph: Graph) -> list[str]:
    """Those that are neither text nor cache."""
    return [name for name in graph.inputs if name not in TEXT and not name.startswith(PAST)]


def taken(model: LoadedModel) -> list[str]:
    """The names that ``generate`` takes."""
    graphs = [model.graphs[stem] for stem in (*ENCODERS, PROMPT) if stem in model.graphs]
    return ["input_ids", "attention_mask", *dict.fromkeys(name for graph in graphs for name in own_inputs(graph))]


def gives_states(graph: Graph) -> bool:
    """Whether an encoder gives what the cache of the language model holds from the start."""
    return any(name.startswith(PRESENT) for name in graph.outputs)


def _check(graph: Graph, given: Collection[str]) -> None:
    """Raises UserError E401 where an input of ``graph`` is missing."""
    missing = [name for name in graph.inputs if name not in given]
    if missing:
        needs = ", ".join(own_inputs(graph))
        raise UserError("E401", f"{graph.path.name} needs {missing[0]}", why=f"it takes {needs}")


def _encoded(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """The features of all images or recordings, in several calls where the graph takes so much of them a call."""
    inputs = {name: cast(name, value, graph.inputs[name].type) for name, value in inputs.items()}
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
    results = [graph.run({name: parts[call] for name, parts in pieces.items()}) for call in range(calls)]
    return {name: np.concatenate([as_array(result[name]) for result in results]) for name in graph.outputs}


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
