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
    """What ``pieces_of`` gives, at once."""
    whole = np.empty(tensor.nbytes, np.uint8)
    start = 0
    for length, make in pieces_of(tensor, whole.size):
        make_in(whole[start : start + length], make)
        start += length
    return whole.tobytes()


def make_in(place: Bytes, make: Callable[[Bytes], Bytes | None]) -> None:
    """Have the bytes of a piece in ``place``. Raises OSError where they are not as many."""
    made = make(place)
    if made is not None:
        check(made, len(place))
        place[:] = made


def check(made: Bytes, length: int) -> None:
    """Raises OSError where a piece is not as long as it said."""
    if len(made) != length:
        raise OSError(f"a weight gave {len(made)} bytes instead of {length}")
