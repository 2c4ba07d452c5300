"""Names that some versions of torch have and others have not. What a version lacks is found out by looking, not by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # which torch itself imports only when an operator runs
from torch.utils import checkpoint


def find(path: str) -> Any:
    """The object at ``torch.PATH``; None where this torch has nothing there."""
    try:
        return reduce(getattr, path.split("."), torch)
    except AttributeError:
        return None


def found(*paths: str) -> Iterator[Callable[..., object]]:
    """The functions and classes at those of the paths that this torch has."""
    for path in paths:
        there = find(path)
        if there is not None:
            yield there


AROUND = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpoint, name)
)
"""The generator that ``torch.utils.checkpoint.checkpoint`` runs around the function, so that it is run again for a gradient.
Where torch has both names, the second calls the first."""
