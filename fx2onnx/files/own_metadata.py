"""The user's own entries in a file's metadata: read from what ``metadata=`` is given, as text that a file can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import OF_EXPORTERS, PRODUCER

RESERVED = (f"{PRODUCER}.", OF_EXPORTERS)
"""The prefixes of the keys that exporters write into a model's metadata."""


def metadata_of(given: Any, word: str, known: Sequence[str]) -> tuple[str, dict[str, str] | None]:
    """The word for notes on the origin of nodes, and the user's own entries as text, from a word, a mapping, or a list of both.

    Raises: UserError E001 for a word that is not ``known``, and for an entry that a file cannot hold.
    """
    entries: dict[str, str] = {}
    for each in given if isinstance(given, list | tuple) else (given,):
        if isinstance(each, Mapping):
            entries |= {key: _entry(key, value) for key, value in each.items()}
        else:
            word = each
    if word not in known:
        own = f"or an entry of your own: --metadata {word}=VALUE, metadata={{{word!r}: ...}}"
        steps = [f"one of {', '.join(known)}", own]
        raise UserError("E001", f"metadata={word!r:.40} is not known, and no KEY=VALUE", next=steps)
    return word, entries or None


def _entry(key: Any, value: Any) -> str:
    """The value of an own entry as text: JSON where it is none. Raises UserError E001."""
    if not isinstance(key, str) or not key or key.startswith(RESERVED):
        why = f"keys that begin with {' or '.join(RESERVED)} are those of exporters" if key else ""
        raise UserError("E001", f"metadata cannot have the key {key!r:.80}", why=why, next="give another name")
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False, ensure_ascii=False)
        (key + text).encode()
    except (TypeError, ValueError, RecursionError) as cause:
        steps = "give text, or numbers, lists and dicts, which become JSON"
        raise UserError("E001", f"metadata cannot hold the value of {key!r:.80}", why=str(cause), next=steps) from None
    return text
