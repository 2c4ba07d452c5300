"""Is it the same? Engines, example inputs, the tolerance model and verdicts, without torch; the reference is an argument."""

from __future__ import annotations

from typing import Literal, TypeAlias

Effort: TypeAlias = Literal["quick", "normal", "full"]
"""The number of inputs that are compared, in words."""
