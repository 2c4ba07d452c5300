"""The start of a generation: tokens of the text, given arrays, the decoder's first tokens, its mask, states and
constant inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import require
from fx2onnx.generation.codebooks import batch_of, rows_of_prompt
from fx2onnx.generation.engine import Graph, cast, check_feeds, check_known
from fx2onnx.generation.media import TEXT, encode_media
from fx2onnx.generation.opened import OpenedFolder
from fx2onnx.generation.settings import whole_numbers
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.manifest.names import DECODER_IDS, IDS, MASK

MADE_UP = 5000
"""More tokens than the tokenizers have that transformers makes of a folder without files of one."""


class FolderTokenizer:
    """The tokenizer of a folder: transformers' files, read without code that comes with them and without the network."""

    def __init__(self, folder: Path, without: str) -> None:
        require("transformers")
        from transformers import AutoTokenizer

        try:
            self._own: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if len(self._own) < MADE_UP:
                special = {*self._own.all_special_tokens, *self._own.get_added_vocab()}
                if len(self._own.get_vocab().keys() - special) < 2:
                    raise ValueError("its vocabulary has special tokens only")
        except Exception as error:  # each kind of damage has a class of its own
            raise UserError(
                "E302",
                f"the folder '{folder}' has no tokenizer that transformers can read",
                why=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}" if str(error).strip() else "",
                next=f"{without}, or copy tokenizer.json and tokenizer_config.json of the checkpoint into the folder",
            ) from error

    def encoded(self, prompts: Sequence[Any], *, on_left: bool) -> dict[str, Array]:
        """``input_ids`` and ``attention_mask`` [batch, length] of texts, or of chats, which the model is to answer."""
        rows = [self._ids(prompt) for prompt in prompts]
        length = max(map(len, rows))
        ids, mask = np.zeros((2, len(rows), max(length, 1)), np.int64)
        for index, row in enumerate(rows):
            part = slice(length - len(row), length) if on_left else slice(0, len(row))
            ids[index, part], mask[index, part] = row, 1
        return {"input_ids": ids, "attention_mask": mask}

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            found: list[int] = list(self._own(prompt)["input_ids"])
        else:
            if not getattr(self._own, "chat_template", None):
                raise UserError(
                    "E401", "the tokenizer of the folder has no chat template", next="give the prompt as text"
                )
            try:
                text = self._own.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            except Exception as error:  # the template's own complaint, or that of its language
                raise UserError(
                    "E401",
                    "the chat template does not take these messages",
                    why=f"{type(error).__name__}: {str(error)[:200]}",
                ) from error
            found = list(self._own(text, add_special_tokens=False)["input_ids"])
        if not found:
            raise UserError("E401", "the prompt has no token", next="give a longer text")
        return found

    def text(self, tokens: Sequence[int], *, has_special: bool = False) -> str:
        """The text of tokens."""
        found: str = self._own.decode([int(token) for token in tokens], skip_special_tokens=not has_special)
        return found


def is_text(value: Any) -> bool:
    """Return whether prompts are given as text or as chats, alone or several. Raises UserError E401 for a dict."""
    if isinstance(value, Mapping):
        step = (
            "generate(**inputs)" if IDS in value else "a chat is a list of messages: [{'role': 'user', 'content': ...}]"
        )
        raise UserError("E401", f"the prompt is a dict with {', '.join(map(str, value))}"[:200], next=step)
    first = value[0] if isinstance(value, list | tuple) and value else value
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, str | dict)


def prompts_of(value: Any) -> tuple[list[Any], bool]:
    """Texts and chats one by one, and whether there are several in a list."""
    is_one = isinstance(value, str) or (isinstance(value, list | tuple) and isinstance(value[0], dict))
    return ([value], False) if is_one else (list(value), True)


class StopStrings:
    """A mask of the rows that end with a stop string, or with a token in which one ends."""

    def __init__(self, strings: Sequence[str], tokenizer: FolderTokenizer) -> None:
        self._strings, self._tokenizer = strings, tokenizer
        self._width = max(len(each.encode()) for each in strings) + 2
        self._text = functools.lru_cache(4096)(lambda tokens: tokenizer.text(tokens, has_special=True))

    def __call__(self, tokens: Array) -> Array:
        """A bool for each row of tokens [rows, length]: True if it ends."""
        return np.array([self._ends(tuple(row[-self._width :].tolist())) for row in tokens], bool)

    def _ends(self, row: tuple[int, ...]) -> bool:
        now, before = self._text(row), self._text(row[:-1])
        return any(now.count(each) > before.count(each) for each in self._strings)


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


def array_of(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except ValueError as cause:
        step = "pad the rows on the left to one length, with 0 in attention_mask"
        raise UserError("E401", f"{name} is no array", why=str(cause), next=step) from cause
    if array.size and array.dtype.kind not in "SUiu" and name in (IDS, DECODER_IDS):
        raise UserError("E401", f"{name} is {array.dtype}", next="give token ids, which are integers")
    if array.dtype.kind in "SU" and name in (IDS, DECODER_IDS):
        raise UserError(
            "E401",
            f"{name} is an array of texts",
            next='a text or a list of texts as input_ids, or AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="np")',
        )
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def start_of(
    model: OpenedFolder, given: dict[str, Array], new: int, adapter: Mapping[str, Any]
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
        return _encoded(model, model.encoder, given, adapter)
    if "input_ids" not in given:
        raise UserError("E401", "generation needs input_ids", next="give token ids: input_ids=[[1, 2, 3]]")
    ids = cast("input_ids", given["input_ids"], "tensor(int64)")
    if ids.ndim != 2 or 0 in ids.shape:
        raise UserError(
            "E401",
            f"input_ids must be [batch, length] with at least one token, not {list(ids.shape)}",
            next="a prompt is a row: input_ids=[[1, 2, 3]]" if ids.ndim == 1 else (),
        )
    if ids.min() < 0 and not model.manifest.media:
        raise UserError("E401", f"input_ids has the token {ids.min()}", next="give token ids from 0 on")
    batch = batch_of(model, ids)
    mask = given.get("attention_mask", np.ones_like(ids[:batch]))
    if mask.shape != (batch, ids.shape[1]):
        raise UserError(
            "E401",
            f"attention_mask is {list(mask.shape)}, input_ids {list(ids.shape)}",
            next=f"give attention_mask as {[batch, ids.shape[1]]}, or leave it out where no token is padding",
        )
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
    model: OpenedFolder, encoder: Graph, given: dict[str, Array], adapter: Mapping[str, Any]
) -> tuple[Array, Array, dict[str, Any], dict[str, Any]]:
    """The result of ``_start`` for an encoder-decoder."""
    if "attention_mask" in encoder.inputs and "attention_mask" not in given and "input_ids" in given:
        given["attention_mask"] = np.ones_like(given["input_ids"])
    missing = [name for name in encoder.inputs if name not in given and name not in encoder.optional]
    if missing:
        raise UserError("E401", f"the encoder needs {missing[0]}", why=f"its inputs: {', '.join(encoder.inputs)}")
    check_known(encoder, [name for name in given if name not in (*TEXT, "decoder_input_ids")])
    feeds = {name: cast(name, given[name], arg.type) for name, arg in encoder.inputs.items() if name in given}
    feeds |= {name: value for name, value in adapter.items() if name in encoder.inputs}
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
    """The number of tokens in a result of ``generate`` that it did not make."""
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


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """The tokens of a setting that is one or a list of them. Raises UserError E001 for anything else."""
    try:
        return tuple(whole_numbers(value if np.ndim(value) else [value]).tolist())
    except (TypeError, ValueError, OverflowError):
        what = f"{name}={value!r:.60} is not possible"
        raise UserError("E001", what, next=f"{name} is a token, or a list of tokens") from None


def rows_that_end(returned: Any, rows: int) -> Array:
    """Bools of what a stopping criterion returned. Raises UserError E401 where it is no bool, nor one for each row."""
    found = np.asarray(returned)
    if found.dtype.kind != "b" or found.shape not in ((), (rows,)):
        step = "return True or False, for all rows or as an array with one for each"
        raise UserError("E401", f"a function of stopping_criteria returned {returned!r:.60}", next=step)
    return np.broadcast_to(found, (rows,))
