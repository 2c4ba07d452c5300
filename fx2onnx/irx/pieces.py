"""The bytes of a tensor, piece by piece: what lies in memory as it is, and what must be made when it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Piece(NamedTuple):
    """Consecutive bytes of a tensor."""

    length: int
    make: Callable[[Bytes], Bytes | None]
    """Called with memory of ``length`` bytes: fills it, or returns other memory that has the bytes already.

    Any thread may call it, at any time and beside other pieces."""


def pieces_of(tensor: Any, size: int) -> Iterable[Piece]:
    """The bytes of ``tensor`` as ONNX stores them, little-endian in C order.

    A tensor that knows how has a method ``pieces(size)``. A piece is longer than ``size`` bytes only where it needs no
    memory to be made in.
    """
    pieces = getattr(tensor, "pieces", None)
    if pieces is not None:
        made: Iterable[Piece] = pieces(size)
        return made
    return (Piece(tensor.nbytes, lambda _: np.frombuffer(tensor.tobytes(), np.uint8)),)


def all_bytes(tensor: Any) -> bytes:
    """The bytes of ``pieces_of``, at once."""
    whole = np.empty(tensor.nbytes, np.uint8)
    start = 0
    for piece in pieces_of(tensor, whole.size):
        make_in(whole[start : start + piece.length], piece, tensor)
        start += piece.length
    return whole.tobytes()


def make_in(place: Bytes, piece: Piece, tensor: Any) -> None:
    """Have the bytes of a piece of ``tensor`` in ``place``. Raises OSError where they are not as many."""
    made = made_with(place, piece, tensor)
    if made is not place:
        place[:] = made


def made_with(memory: Bytes, piece: Piece, tensor: Any) -> Bytes:
    """The bytes of a piece of ``tensor``: ``memory``, or other memory that has them already.

    Raises: OSError where they are not as many as the piece said.
    """
    made = piece.make(memory)
    if made is None:
        return memory
    if len(made) != piece.length:
        raise OSError(f"the weight {tensor.name} gave {len(made)} bytes instead of {piece.length}")
    return made
