"""Text in and out: prompts and chats as tokens by the folder's own tokenizer, tokens as text, and strings that end a text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import require
from fx2onnx.judge.engines import Array


class FolderTokenizer:
    """The tokenizer of a folder: transformers' files, read without code that comes with them and without the network."""

    def __init__(self, folder: Path) -> None:
        require("transformers")
        from transformers import AutoTokenizer

        try:
            self._own: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # each kind of damage has a class of its own
            raise UserError(
                "E302",
                f"the folder '{folder}' has no tokenizer that transformers can read",
                why=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}" if str(error).strip() else "",
                next="give token ids, or copy tokenizer.json and tokenizer_config.json of the checkpoint into the folder",
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
    """Return whether prompts are given as text or as chats, alone or several."""
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
        if not all(isinstance(each, str) and each for each in strings):
            raise UserError("E001", "stop_strings are texts that are not empty")
        self._strings, self._tokenizer = strings, tokenizer
        self._width = max(len(each.encode()) for each in strings) + 2
        self._text = functools.lru_cache(4096)(lambda tokens: tokenizer.text(tokens, has_special=True))

    def __call__(self, tokens: Array) -> Array:
        """A bool for each row of tokens [rows, length]: True if it ends."""
        return np.array([self._ends(tuple(row[-self._width :].tolist())) for row in tokens], bool)

    def _ends(self, row: tuple[int, ...]) -> bool:
        now, before = self._text(row), self._text(row[:-1])
        return any(now.count(each) > before.count(each) for each in self._strings)
