"""One call of a folder as one call of the model that it was made from: encoders first, then the graph that gives logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.generation.checks import cast, check_known
from fx2onnx.generation.engine import PAST, PRESENT, Graph, as_array
from fx2onnx.generation.loaded import LoadedModel, Outputs, from_torch
from fx2onnx.generation.media import PROMPT, STREAM, brought

EMBEDDED, DECODER_IDS = "inputs_embeds", "decoder_input_ids"


def run_whole(model: LoadedModel, inputs: Mapping[str, Any]) -> Outputs:
    """What the main graph gives for ``inputs``, which may be those of the whole model: images, the encoder's text.

    Raises:   UserError E401 for an input that is unknown or missing, or does not fit.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    main, encoder, prompt = model.main, model.encoder, model.graphs.get(PROMPT)
    if encoder is not None and _is_for(encoder, main, given):
        return _decoded(model, encoder, given)
    if EMBEDDED in main.inputs and "input_ids" in given and EMBEDDED not in given:
        return _embedded(model, given)
    goes_on = any(name == "past_key_values" or name.startswith(PAST) for name in given)
    if prompt is not None and (_is_for(prompt, main, given) or (main.takes_all_tokens and not goes_on)):
        return model.run(prompt, given)
    sound = model.graphs.get("audio_encoder")
    if sound is not None and STREAM in main.inputs and _is_for(sound, main, given):
        return _heard(model, sound, given)
    vision = model.graphs.get("vision_encoder")
    if vision is not None and _is_for(vision, main, given):
        ids = cast("input_ids", _array(given.get("input_ids", [[0]])), "tensor(int64)")
        media = {name: _array(given.pop(name)) for name in list(given) if name in vision.inputs}
        found = brought(model, media, ids)
        feeds = {_as_past(name): value for name, value in found.items()}
        return model.run(main, {name: value for name, value in feeds.items() if name in main.inputs} | given)
    return model.run(main, given)


def _is_for(graph: Graph, main: Graph, given: Mapping[str, Any]) -> bool:
    """Whether there is an input of ``graph`` that the main graph does not take, or the decoder's under the model's name."""
    return DECODER_IDS in given or any(name in graph.inputs and name not in main.inputs for name in given)


def _decoded(model: LoadedModel, encoder: Graph, given: dict[str, Any]) -> Outputs:
    if DECODER_IDS not in given:
        raise UserError("E401", f"a call of the encoder and the decoder needs {DECODER_IDS}")
    past = {name: given.pop(name) for name in ("past_key_values",) if name in given}
    ids = given.pop(DECODER_IDS)
    check_known(encoder, given)
    encoded = dict(model.run(encoder, given))
    mask = {"encoder_attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
    states = encoded.pop("past_key_values", {})
    encoded["encoder_hidden_states"] = encoded.pop("last_hidden_state", None)
    feeds: dict[str, Any] = {"input_ids": ids, **encoded, **mask}
    feeds = {name: value for name, value in feeds.items() if name in model.main.inputs}
    return model.run(model.main, feeds | {"past_key_values": {**states, **(past.get("past_key_values") or {})}})


def _embedded(model: LoadedModel, given: dict[str, Any]) -> Outputs:
    embedding = model.graphs["embed_tokens"]
    own = {name: given.pop(name) for name in list(given) if name in model.main.inputs or name == "past_key_values"}
    told = given.pop("input_ids")
    ids = cast("input_ids", _array(told), "tensor(int64)")
    found = brought(model, {name: _array(value) for name, value in given.items()}, ids)
    feeds: dict[str, Any] = {"input_ids": told, **found}
    if "attention_mask" in embedding.inputs:
        feeds["attention_mask"] = own.get("attention_mask", ids * 0 + 1)
    for name, arg in embedding.inputs.items():
        if name not in feeds:
            feeds[name] = cast(name, _none(arg.shape), arg.type)
    if "position_ids" in embedding.outputs and own.get("past_key_values") and "position_ids" not in own:
        raise UserError(
            "E401", "a call that goes on after images needs position_ids", why="they count rows and columns"
        )
    made = model.run(embedding, feeds)
    like = {name: value for name, value in made.items() if name in model.main.inputs}
    return model.run(model.main, {**like, **own})


def _heard(model: LoadedModel, sound: Graph, given: dict[str, Any]) -> Outputs:
    """The tokens with their part of the sound: those behind the tokens that the mask has beyond them."""
    ids = cast("input_ids", _array(given.get("input_ids", [[0]])), "tensor(int64)")
    rows = brought(model, {name: _array(given.pop(name)) for name in list(given) if name in sound.inputs}, ids)[STREAM]
    end = ids.shape[1] if "attention_mask" not in given else _array(given["attention_mask"]).shape[1]
    return model.run(model.main, {**given, STREAM: rows[:, end - ids.shape[1] : end]})


def _none(shape: Any) -> Any:
    import numpy as np

    return np.zeros((0, *shape[1:]), np.float32)


def _as_past(name: str) -> str:
    return PAST + name.removeprefix(PRESENT) if name.startswith(PRESENT) else name


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        return from_torch(value)
    return as_array(value) if hasattr(value, "ortvalue_from_numpy") else value
