"""Kinds of harm. Each looks for a place in a file, changes it and says where, or finds none."""

from studies.sabotage.harms import (
    beyond_the_sample,
    of_attributes,
    of_constants,
    of_operands,
    of_operators,
    of_outputs,
    of_weights,
)
from studies.sabotage.harms.registry import HARMS

__all__ = [
    "HARMS", "beyond_the_sample", "of_attributes", "of_constants", "of_operands", "of_operators", "of_outputs",
    "of_weights",
]  # fmt: skip
