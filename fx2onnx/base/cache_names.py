"""Names of the tensors in a cache of transformers, as the files of others have them."""

from __future__ import annotations

from collections.abc import Iterable

FIELD_NAMES: dict[str | int, str] = {
    "keys": "key", "values": "value", "conv_states": "conv_state", "recurrent_states": "recurrent_state",
    "self_attention_cache": "decoder", "cross_attention_cache": "encoder",
}  # fmt: skip
"""Attributes of caches under the names that the files of others use; any other attribute keeps its name."""
CELLS = ("int8", "fp8", "int8:head", "fp8:head", "int8:channel", "fp8:channel")
"""The cells that a cache can have: with a scale for each token and head, or constant ones for each head, or each channel of it."""
_SILENT = frozenset({"layers", "held"})


def cache_name(keys: Iterable[str | int]) -> str:
    """``("layers", 3, "conv_states", 0)`` -> ``3.conv_state``: layer first, a state's index only from the second on."""
    words = [FIELD_NAMES.get(key, key) for key in keys if key not in _SILENT]
    numbers = [index for index, word in enumerate(words) if isinstance(word, int)]
    if numbers:
        words.insert(0, words.pop(numbers[0]))
    if len(words) > 2 and words[-1] == 0 and isinstance(words[-2], str):
        words.pop()
    return ".".join(str(word).strip("_") for word in words)
