"""Greedy text generation over an exported decoder, or encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.checks import cast, check_feeds, check_known, without_settings
from fx2onnx.generation.codebooks import Shifted, batch_of, rows_of_prompt, shifted
from fx2onnx.generation.engine import Graph, as_array, dtype_of
from fx2onnx.generation.media import TEXT, beside_text, encode_media
from fx2onnx.generation.opened import OpenedFolder, positions
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.manifest.names import DECODER_IDS, IDS, MASK


def rewritten(rewrite: PromptRewrite | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, its ``input_ids`` and ``attention_mask`` [batch, length] without the last tokens, another one first.

    Raises:   UserError E401 where no token is left.
    """
    inputs = dict(given)
    ids = inputs.get(IDS)
    if rewrite is None or ids is None or ids.ndim != 2:
        return inputs
    kept = ids.shape[1] - rewrite.left_out
    if kept < 1:
        raise UserError(
            "E401",
            f"the prompt of {ids.shape[1]} tokens is too short",
            why=f"the model's own generate leaves out its last {rewrite.left_out}: processors end a text with a token for that",
        )
    inputs |= {name: inputs[name][:, :kept] for name in (IDS, MASK) if name in inputs}
    if rewrite.first_token is not None:
        first = np.full_like(ids[:, :1], rewrite.first_token)
        inputs[IDS] = np.concatenate([first, inputs[IDS][:, 1:]], axis=1)
    return inputs


_LAST_POSITION = "last_position"  # among the states: the greatest number of any token's position [batch]
_LENGTH = 20  # transformers' own default of max_length


@dataclass(frozen=True)
class Stop:
    """When a sequence ends, and what fills the rest of its row."""

    max_new_tokens: int
    eos: tuple[int, ...]
    pad: int


def generate(
    model: OpenedFolder,
    input_ids: Any = None,
    *,
    attention_mask: Any = None,
    max_new_tokens: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    on_token: Callable[[Array], Any] | None = None,
    **encoder_inputs: Any,
) -> Any:
    """The most likely token at every step, as ``model.generate(do_sample=False)`` of transformers gives it.

    input_ids [batch, length]: the prompt; of an encoder-decoder the encoder's text. Prompts of different lengths are
    padded on the left, with 0 in ``attention_mask``. Rows that end early are filled with the pad token. ``on_token``
    is called with the tokens [batch] of every step.

    Returns: prompt and new tokens [batch, length + new], of an encoder-decoder the decoder's tokens; a torch tensor
    where ``input_ids`` (or another input) is one. Raises: UserError E401 for inputs that do not fit.
    """
    encoder_inputs = without_settings(model.main.inputs, encoder_inputs)
    wants_torch = any(hasattr(value, "detach") for value in (input_ids, *encoder_inputs.values()))
    given = {"input_ids": input_ids, "attention_mask": attention_mask, **encoder_inputs}
    arrays = {name: _array(name, value) for name, value in given.items() if value is not None}
    arrays = rewritten(model.manifest.prompt_rewrite, arrays)
    stop = _stop(model, max_new_tokens, eos_token_id, pad_token_id)
    ids, mask, states, fixed = _start(model, arrays, stop.max_new_tokens)
    stream = model.main.form.input("stream")
    if stream:
        stop = _until_sound_ends(stop, ids, fixed[stream])
    rows, ids = shifted(model, ids, stop.max_new_tokens)
    tokens = [ids]
    for following in _steps(model, ids, mask, states, fixed, stop, rows):
        tokens.append(following[:, None])
        if on_token is not None:
            on_token(following)
    result = np.concatenate(tokens, axis=1)
    if rows is not None:
        result = rows.unshifted(result, stop.pad)
    if not wants_torch:
        return result
    import torch

    return torch.from_numpy(result)


def _array(name: str, value: Any) -> Array:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind in "SU" and name in (IDS, DECODER_IDS):
        raise UserError(
            "E401",
            "generate takes token ids, and no text",
            next='AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="np") of transformers makes them',
        )
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _stop(model: OpenedFolder, new: int | None, eos: Any, pad: int | None) -> Stop:
    rewrite, said = model.manifest.prompt_rewrite or PromptRewrite(), model.generation_config or model.config
    eos = next((end for end in (eos, rewrite.eos_token_id, said.get("eos_token_id")) if end is not None), None)
    ends = () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
    fallback = ends[0] if ends else 0
    pad = next(token for token in (pad, rewrite.pad_token_id, said.get("pad_token_id"), fallback) if token is not None)
    if new is None:
        new = said.get("max_new_tokens") or _LENGTH
    if new < 1:
        raise UserError("E001", f"max_new_tokens must be at least 1, not {new}")
    return Stop(int(new), ends, int(pad))


def _until_sound_ends(stop: Stop, ids: Array, stream: Array) -> Stop:
    """``stop``, where there is sound for fewer tokens. Raises UserError E401 where the prompt leaves none."""
    room = stream.shape[1] - ids.shape[1]
    if room < 1:
        raise UserError(
            "E401",
            f"the sound ends with the prompt of {ids.shape[1]} tokens",
            why=f"it lasts for {stream.shape[1]} tokens, given and generated",
            next="give longer sound or a shorter prompt",
        )
    return replace(stop, max_new_tokens=min(stop.max_new_tokens, room))


def _start(
    model: OpenedFolder, given: dict[str, Array], new: int
) -> tuple[Array, Array, dict[str, Any], dict[str, Any]]:
    """The decoder's first tokens and mask, its states, and inputs that stay the same at every step."""
    main = model.main.form
    if not main.output("logits") or main.input("decoder_tokens"):
        raise UserError(
            "E401",
            f"{model.main.path.name} is no decoder to generate with",
            why=f"it takes {', '.join(model.main.inputs)} and gives {', '.join(model.main.outputs)}",
            next="export with a cache: --task text-generation-with-past, text2text-generation-with-past, ...",
        )
    if model.encoder is not None:
        return _encoded(model, model.encoder, given)
    if "input_ids" not in given:
        raise UserError("E401", "generation needs input_ids")
    ids = cast("input_ids", given["input_ids"], "tensor(int64)")
    if ids.ndim != 2 or 0 in ids.shape:
        raise UserError("E401", f"input_ids must be [batch, length] with at least one token, not {list(ids.shape)}")
    batch = batch_of(model, ids)
    mask = given.get("attention_mask", np.ones_like(ids[:batch]))
    if mask.shape != (batch, ids.shape[1]):
        raise UserError("E401", f"attention_mask is {list(mask.shape)}, input_ids {list(ids.shape)}")
    if ids.shape[0] > 1 and not mask[:, -1].all():
        raise UserError(
            "E401",
            "the prompts are padded on the right",
            why="the next token follows the last column, which is padding for some rows",
            next="pad on the left: tokenizer.padding_side = 'left'",
        )
    if not main.goes_on and main.positions == "none" and not mask.all():
        raise UserError(
            "E401",
            "padded prompts need a graph with a cache",
            why=f"{model.main.path.name} counts positions from the padding on",
            next="export with --task text-generation-with-past, or give prompts of one length",
        )
    if main.mask == "ones" and not mask.all():
        raise UserError(
            "E401",
            "the prompts are padded",
            why=f"the attention of {model.main.path.name} counts tokens from the first column on",
            next="give prompts of one length, or export without fused forms",
        )
    beside = encode_media(model, given, ids)
    states = model.main.empty(batch, ids.shape[1] + new)
    for graph in (model.graph(medium.kind) for medium in model.manifest.media):
        states |= graph.following(beside, model.main) if graph is not None else {}
    return ids, mask, states, beside


def _encoded(
    model: OpenedFolder, encoder: Graph, given: dict[str, Array]
) -> tuple[Array, Array, dict[str, Any], dict[str, Any]]:
    """What ``_start`` gives of an encoder-decoder."""
    if "attention_mask" in encoder.inputs and "attention_mask" not in given and "input_ids" in given:
        given["attention_mask"] = np.ones_like(given["input_ids"])
    missing = [name for name in encoder.inputs if name not in given]
    if missing:
        raise UserError("E401", f"the encoder needs {missing[0]}", why=f"its inputs: {', '.join(encoder.inputs)}")
    check_known(encoder, [name for name in given if name not in (*TEXT, "decoder_input_ids")])
    feeds = {name: cast(name, given[name], arg.type) for name, arg in encoder.inputs.items()}
    check_feeds(encoder, feeds)
    encoded = encoder.run(feeds)
    batch = len(given[next(iter(encoder.inputs))])
    if model.delays:
        ids = rows_of_prompt(model, given.get("decoder_input_ids"), batch, _first_token(model))
    else:
        ids = _decoder_prompt(encoder, given, _first_token(model))
    states = model.main.empty(batch) | encoder.following(encoded, model.main)
    by_role = {"encoder_states": encoded.get(encoder.form.output("encoder_states"))}
    by_role |= {"encoder_mask": given[MASK]} if MASK in given else {}
    fixed = {port.name: by_role[port.role] for port in model.main.form.inputs if port.role in by_role}
    fixed |= {
        p.name: encoded[p.name] for p in encoder.form.outputs if p.role == "handed_on" and p.name in model.main.inputs
    }
    return ids, np.ones_like(ids), states, fixed


def prompt_length(model: OpenedFolder, given: Mapping[str, Array]) -> int:
    """How many of the tokens that ``generate`` gives are none that it made."""
    if model.encoder is None:
        return int(rewritten(model.manifest.prompt_rewrite, given)["input_ids"].shape[1])
    return int(_decoder_prompt(model.encoder, given, _first_token(model)).shape[1])


def _decoder_prompt(encoder: Graph, given: Mapping[str, Array], start: int) -> Array:
    """The decoder's first tokens [batch, length]: those given, behind the start token where they do not begin with it."""
    prompt = given.get("decoder_input_ids", None if "input_ids" in encoder.inputs else given.get("input_ids"))
    batch = len(given[next(iter(encoder.inputs))])
    first = np.full((batch, 1), start, np.int64)
    if prompt is None:
        return first
    prompt = cast("decoder_input_ids", prompt, "tensor(int64)")
    if "attention_mask" not in encoder.inputs and not given.get("attention_mask", first).all():
        raise UserError("E401", "the decoder's tokens are padded", why="the decoder has no mask of its own")
    if prompt.ndim != 2 or len(prompt) != batch:
        raise UserError("E401", f"the decoder's tokens are {list(prompt.shape)}, the encoder has {batch} rows")
    return prompt if prompt.shape[1] and (prompt[:, 0] == start).any() else np.concatenate([first, prompt], axis=1)


def _first_token(model: OpenedFolder) -> int:
    parts = (model.config.get(name) or {} for name in ("decoder", "decoder_config"))
    for said in (model.generation_config, model.config, *parts):
        for key in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(said.get(key), int):
                return int(said[key])
    raise UserError("E401", "neither config.json nor generation_config.json has a decoder_start_token_id")


def _steps(
    model: OpenedFolder,
    ids: Array,
    mask: Array,
    states: dict[str, Any],
    fixed: Mapping[str, Any],
    stop: Stop,
    rows: Shifted | None,
) -> Iterator[Array]:
    """The next token of every row [batch], until all rows have ended."""
    open_rows = np.ones(len(ids), bool)
    rules = _rules(model, stop)
    rules += [rows.ends] if rows is not None and rows.ends is not None else []
    tokens = ids
    prompt = model.graph("prompt") if model.main.form.tokens_per_call != ids.shape[1] else None
    for step in range(stop.max_new_tokens):
        if rows is not None:
            ids = rows.applied(ids, tokens.shape[1] - ids.shape[1])
        graph = prompt if step == 0 and prompt is not None else model.main
        logits, states = _advance(model, graph, ids, mask, states, fixed)
        fixed = {name: value for name, value in fixed.items() if name in model.main.inputs}
        scores = logits[:, -1].astype(np.float32)
        for rule in rules:
            rule(scores, tokens, step)
        chosen = np.where(open_rows, scores.argmax(axis=-1), stop.pad).astype(np.int64)
        yield chosen
        open_rows &= ~np.isin(chosen, stop.eos)
        if not open_rows.any():
            return
        tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
        mask = np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
        ids = tokens if model.main.form.tokens == "all" else chosen[:, None]


def _advance(
    model: OpenedFolder, graph: Graph, ids: Array, mask: Array, states: dict[str, Any], fixed: Mapping[str, Any]
) -> tuple[Array, dict[str, Any]]:
    """Logits after ``ids``, and the states that follow. A graph of one token a call is called once a token."""
    length = ids.shape[1]
    form, stream = graph.form, graph.form.input("stream")
    made, places = _embedded(model, ids, mask, states, fixed)
    width = form.tokens_per_call or length
    for first in range(0, length, width):
        seen = mask[:, : mask.shape[1] - length + first + width]
        part = slice(seen.shape[1] - width, seen.shape[1])
        by_role = {
            "tokens": ids[:, first : first + width],
            "mask": seen[:, part] if form.mask == "new" else seen,
            "length": np.asarray(seen.shape[1] - width),
        }
        if form.positions != "none":
            by_role["positions"] = positions(seen)[:, part] if places is None else places[..., first : first + width]
        if stream:
            by_role["stream"] = fixed[stream][:, part]
        by_name = {**states, **fixed, **{name: value[:, first : first + width] for name, value in made.items()}}
        by_name |= {
            p.name: _of_tokens(fixed[p.name], first, width, length)
            for p in form.inputs
            if p.role == "token_mask" and p.name in fixed
        }
        outputs = graph.run(graph.feeds(by_role, by_name))
        states = states | graph.following(outputs, model.main)
    if places is not None:
        states[_LAST_POSITION] = places.max(axis=(0, 2))
    return as_array(outputs[form.output("logits")]), states


def _of_tokens(value: Any, first: int, width: int, length: int) -> Any:
    """The rows of an input with one for each token that belong to this call; later tokens go on with the last."""
    return value[:, first : first + width] if value.shape[1] == length else value[:, -1:]


def _embedded(
    model: OpenedFolder, ids: Array, mask: Array, states: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[dict[str, Array], Array | None]:
    """``ids`` embedded, with the features of ``fixed`` in their places, and what else there is for every token; no
    features after the prompt. And, where images have rows and columns, the tokens' positions [axes, batch, length].
    Nothing where the language model takes the tokens themselves.
    """
    graph = model.graph("embed")
    if graph is None:
        return {}, None
    images = [graph.inputs[port.name] for port in beside_text(graph)]
    none = {arg.name: np.zeros((0, *arg.shape[1:]), dtype_of(arg.type)) for arg in images}
    feeds = graph.feeds({"tokens": ids, "mask": mask[:, mask.shape[1] - ids.shape[1] :]}, {**none, **fixed})
    outputs = {name: as_array(value) for name, value in graph.run(feeds).items()}
    places = outputs.pop(graph.form.output("positions"), None)
    if places is not None and _LAST_POSITION in states:
        following = states[_LAST_POSITION][:, None] + 1 + np.arange(ids.shape[1])
        places = np.repeat(following[None], len(places), axis=0)
    return outputs, places


Rule = Callable[[Array, Array, int], None]


def _rules(model: OpenedFolder, stop: Stop) -> list[Rule]:
    """What generation_config.json says about scores, as functions that change scores [batch, vocabulary] in place."""
    said = model.generation_config
    rules: list[Rule] = []
    always, first = said.get("suppress_tokens") or [], said.get("begin_suppress_tokens") or []

    def suppress(scores: Array, _: Array, step: int) -> None:
        tokens = always + (first if step == 0 else [])
        scores[:, [token for token in tokens if 0 <= token < scores.shape[1]]] = -np.inf

    def force(scores: Array, _: Array, step: int) -> None:
        at = {0: said.get("forced_bos_token_id"), stop.max_new_tokens - 1: said.get("forced_eos_token_id")}
        token = at.get(step)
        if token is not None:
            if not all(0 <= forced < scores.shape[1] for forced in (token if isinstance(token, list) else [token])):
                why = f"the vocabulary has {scores.shape[1]}"
                raise UserError("E302", f"generation_config.json of '{model.folder}' forces the token {token}", why=why)
            scores[:] = -np.inf
            scores[:, token] = 0

    def penalise(scores: Array, tokens: Array, _: int) -> None:
        factor = float(said["repetition_penalty"])
        for row, seen in zip(scores, tokens, strict=True):
            seen = np.unique(seen)
            row[seen] = np.where(row[seen] < 0, row[seen] * factor, row[seen] / factor)

    if said.get("repetition_penalty") not in (None, 1.0):
        rules.append(penalise)
    if always or first:
        rules.append(suppress)
    if said.get("forced_bos_token_id") is not None or said.get("forced_eos_token_id") is not None:
        rules.append(force)
    return rules
