"""Patches, as capture needs them: library functions whose Python branches on data, written with tensors instead."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TypeAlias

import torch

from fx2onnx.sizes.assumptions import Assumption

TracedCode: TypeAlias = frozenset[CodeType]
"""Functions that are to take the branch for traced code."""

Known: TypeAlias = Callable[[torch.Tensor], bool]
"""True for a tensor whose numbers are known during capture."""


class Patches:
    """No patches: every library as it is."""

    def apply(self, traced: TracedCode, known: Known) -> None:
        """Until ``Changes`` end, this thread runs the patched functions, those ``traced`` on their branch for tracing."""

    def notes(self) -> list[Assumption]:
        """Lines for the report about the patches that the last run called."""
        return []

    def warnings(self) -> list[str]:
        """A line for each patch that the last run left out, as the library is another than the patch knows."""
        return []

    def decided_by_data(self, error: BaseException) -> CodeType | None:
        """The function that has to be traced, where it is what raised ``error``."""
        return None
