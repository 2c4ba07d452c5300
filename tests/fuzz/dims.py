"""Texts in the place of a size's name: expressions with a known value, the same damaged, and noise. Each is read quickly,
as what it says or as a name; a verification's samples come out of it.
"""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.text import MOST, parse_dim, size_of
from fx2onnx.verify.samples import _changed

SIZES = {"n": 7, "m": 3, "past_length": 12, "max": 5}
PIECES = (
    *"()+-*/%,.^&|<>=!:;'\"\\[]{}@ \n\t\0", "**", "//", "n", "m", "max(", "floordiv(", "float(", "9" * 30, "9**9**9", "n(1)",
    "(" * 40, ")" * 40, "-" * 100, "n*" * 90, "(n + m)*" * 20, "__import__('os')", "lambda:0", "1e308", "0", "\u202e", "٣", "²",
)  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": max, "min": min,
}  # fmt: skip
_SECONDS = 0.25
"""The limit of processor time; the bounds allow some milliseconds."""


def case(rng: random.Random, _: Path | None = None) -> None:
    """Raises AssertionError where a text is read wrongly, slowly, or not at all."""
    text, value = _expression(rng, rng.randrange(5))
    is_whole = rng.random() < 0.5
    if not is_whole:
        text = _damaged(text, rng)
    start = time.thread_time()
    dim = parse_dim(text)
    size = None if dim is None else size_of(dim, SIZES)
    grown = _changed(7, text, SIZES, {name: size + 1 for name, size in SIZES.items()})
    seconds = time.thread_time() - start
    assert seconds < _SECONDS, f"{text[:200]!r} takes {seconds:.2f} s"
    if is_whole and dim is not None and value is not None:  # a division by zero may cancel out
        assert size == (value if 0 <= value < MOST else None), (text, size, value)
    assert 0 <= grown <= 16 * 8
    torch.arange(grown)
    if isinstance(dim, Dim):
        again = parse_dim(str(dim))
        assert again is None or again == dim, (text, dim, again)


def _expression(rng: random.Random, depth: int) -> tuple[str, int | None]:
    """A text of the grammar and what it is at ``SIZES``; None where a division by zero stands in it."""
    if depth == 0:
        name = rng.choice((*SIZES, None))
        number = rng.choice((0, 1, 2, 3, 64, 10**6))
        return (name, SIZES[name]) if name is not None else (str(number), number)
    op = rng.choice((*_BINARY, "neg"))
    left, value = _expression(rng, depth - 1)
    if op == "neg":
        return f"-({left})", None if value is None else -value
    right, other = _expression(rng, rng.randrange(depth))
    space = rng.choice(("", " "))
    text = f"{op}({left},{space}{right})" if op.isalpha() else f"({left}){space}{op}{space}({right})"
    if value is None or other is None or (op in ("//", "%") and other == 0):
        return text, None
    return text, _BINARY[op](value, other)


def _damaged(text: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(3) :]
    return text * rng.choice((1, 1, 1, 3, 30))
