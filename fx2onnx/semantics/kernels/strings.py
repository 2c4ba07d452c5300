"""Operators on strings."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.re2 import compiled_pattern
from fx2onnx.semantics.limits import check_bytes, check_shape, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, INT64, Array, string_array


@kernel("StringConcat", 20)
def string_concat(a: Array, b: Array) -> Array:
    """a + b, with broadcasting."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    check_shape(shape, a.dtype)
    longest = sum(max((len(item) for item in array.reshape(-1)), default=0) for array in (a, b))
    check_bytes(math.prod(shape) * longest, "the result of StringConcat")
    return np.asarray(np.add(a, b), dtype=object)


@kernel("StringSplit", 20)
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """The parts of each string, padded with empty ones; and their number."""
    rows = [str(item).split(delimiter or None, -1 if maxsplit is None else maxsplit) for item in x.reshape(-1)]
    counts = np.array([len(row) for row in rows], INT64).reshape(x.shape)
    width = max((len(row) for row in rows), default=0)
    flat = [part for row in rows for part in row + [""] * (width - len(row))]
    return string_array(flat, (*x.shape, width)), counts


@kernel("RegexFullMatch", 20)
def regex_full_match(x: Array, *, pattern: str | None = None) -> Array:
    """Return whether each whole string matches the RE2 pattern."""
    if pattern is None:
        raise ValueError("it has no pattern")
    compiled = compiled_pattern(pattern)
    return np.array([compiled.matches(str(item)) for item in x.reshape(-1)], np.bool_).reshape(x.shape)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


_CASES: dict[str, Any] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@kernel("StringNormalizer", 10, shape_inputs=None)
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Array:
    """Strings of one row without stop words, in another case. The locale makes no difference here."""
    if case_change_action not in _CASES:
        raise ValueError(f"case_change_action is {case_change_action!r}")
    change = _CASES[case_change_action]
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"the input has the shape {list(x.shape)}, not [C] or [1, C]")
    stops = set(stopwords) if is_case_sensitive else {word.lower() for word in stopwords}
    kept = []
    for item in x.reshape(-1):
        text = str(item)
        words = text.split(" ") if stops else [text]
        text = " ".join(word for word in words if (word if is_case_sensitive else word.lower()) not in stops)
        if text:
            kept.append(change(_without_accents(text)))
    kept = kept or [""]
    return string_array(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@kernel("TfIdfVectorizer", 9)
def tf_idf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Array:
    """Counts (or weights) of the pool's n-grams in each row, skips allowed."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ValueError(f"the mode is {mode!r}")
    if not 1 <= min_gram_length <= max_gram_length <= len(ngram_counts) or max_skip_count < 0:
        lengths = f"{min_gram_length} to {max_gram_length} with {max_skip_count} skips"
        raise ValueError(f"n-grams of {lengths} do not fit ngram_counts of {len(ngram_counts)} lengths")
    if weights and len(weights) != len(ngram_indexes):
        raise ValueError(f"{len(weights)} weights for {len(ngram_indexes)} n-grams")
    pool: list[Any] = [*pool_strings] or [*pool_int64s]
    edges = [*ngram_counts, len(pool)]
    if edges[0] < 0 or any(low > high for low, high in itertools.pairwise(edges)):
        raise ValueError(f"ngram_counts {list(ngram_counts)[:8]} do not divide a pool of {len(pool)}")
    if any(index < 0 for index in ngram_indexes) or len(ngram_indexes) > len(pool):
        raise ValueError("ngram_indexes do not fit the pool")
    width = max(ngram_indexes, default=-1) + 1
    check_shape((x.shape[0] if x.ndim > 1 else 1, width), FLOAT32, "the counts of n-grams")
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    for size, (start, end) in enumerate(itertools.pairwise(edges), 1):
        for first in range(start, end - size + 1, size):
            if min_gram_length <= size <= max_gram_length:
                grams[tuple(pool[first : first + size])] = number
            number += 1
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    counts = np.zeros((len(rows), width), np.float32)
    slot_weight = np.ones(width, np.float32)
    for index, weight in zip(ngram_indexes, weights, strict=False):
        slot_weight[index] = weight
    for row, tokens in zip(counts, rows.tolist(), strict=True):
        for size in sorted({len(gram) for gram in grams if len(gram) <= len(tokens)}):
            for skip in range(1, min(max_skip_count + 1, (len(tokens) - 1) // (size - 1)) + 1 if size > 1 else 2):
                for first in range(len(tokens) - skip * (size - 1)):
                    count_iteration()
                    gram = tuple(tokens[first : first + skip * (size - 1) + 1 : skip])
                    if gram in grams:
                        row[ngram_indexes[grams[gram]]] += 1
    if mode == "IDF":
        counts = (counts > 0) * slot_weight
    elif mode == "TFIDF":
        counts = counts * slot_weight
    return counts.astype(np.float32).reshape((*x.shape[:-1], width) if x.ndim else (width,))
