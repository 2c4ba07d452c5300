"""Activation checkpointing that is not reentrant: what torch does before and after the checkpointed function."""

from __future__ import annotations

from torch.utils import checkpoint

AROUND = checkpoint._checkpoint_without_reentrant_generator.__name__
"""The generator that ``torch.utils.checkpoint.checkpoint`` runs around the function, so that it is run again for a gradient."""
