"""Activation checkpointing that is not reentrant: what torch does before and after the checkpointed function."""

from __future__ import annotations

from torch.utils import checkpoint

AROUND = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpoint, name)
)
"""The generator that ``torch.utils.checkpoint.checkpoint`` runs around the function, so that it is run again for a gradient.
Where torch has both names, the second calls the first."""
