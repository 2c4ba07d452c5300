"""``config.json`` and ``generation_config.json`` of an exported folder: the fields that generation reads, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object

PARTS = ("text_config", "decoder", "decoder_config")
"""Configs inside a config, of the language model."""


def read_config(folder: Path, name: str, file: Path | None = None) -> dict[str, Any]:
    """The file as an object, empty where there is none; ``file`` is what is read, where that is not (yet) called ``name``.

    Raises:   UserError E302, which names the file and the field.
    """
    path = inside(folder, name if file is None else file.name)
    if not path.exists():
        return {}
    stated = read_object(path)
    for part in PARTS:
        if not isinstance(stated.get(part) or {}, dict):
            raise UserError("E302", f"cannot read '{path}'", why=f"{part} is no object")
    for part in ("", *PARTS):
        _check(path, part, stated.get(part) or {} if part else stated)
    return stated


def _check(path: Path, part: str, stated: Mapping[str, Any]) -> None:
    for field, (is_right, what) in _FIELDS.items():
        value = stated.get(field)
        if value is not None and not is_right(value):
            name = f"{part}.{field}" if part else field
            raise UserError("E302", f"cannot read '{path}'", why=f"{name} is {value!r:.60}, not {what}")


def _is_token(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _is_factor(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


_TOKEN = (_is_token, "a token")
_TOKENS = (_are_tokens, "a list of tokens")
_ONE_OR_MORE = (lambda value: _is_token(value) or _are_tokens(value), "a token or a list of tokens")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "eos_token_id": _ONE_OR_MORE,
    "pad_token_id": _TOKEN,
    "bos_token_id": _TOKEN,
    "decoder_start_token_id": _ONE_OR_MORE,
    "forced_bos_token_id": _ONE_OR_MORE,
    "forced_eos_token_id": _ONE_OR_MORE,
    "suppress_tokens": _TOKENS,
    "begin_suppress_tokens": _TOKENS,
    "max_new_tokens": (_is_token, "a number of tokens"),
    "repetition_penalty": (_is_factor, "a positive number"),
}
