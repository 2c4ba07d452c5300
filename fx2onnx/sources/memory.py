"""Refuse random weights that memory cannot hold, before they are drawn and the system kills the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    from torch import nn

# Drawing the weights and one forward pass need room beside the weights.
_SHARE = 0.8


def check_memory(spec: str, build: Callable[[], nn.Module], advice: str) -> None:
    """Compare the weights of ``build()``, which is run on the meta device, with the free memory.

    Raises:   UserError E404. Whatever ``build`` itself raises on the meta device says nothing and is left to the real
              build, which reports it.
    """
    import psutil

    try:
        with torch.device("meta"):
            outline = build()
    except UserError:
        raise
    except Exception:  # the check is a courtesy: what fails here fails again, with its reason, in the real build
        return
    needed_bytes = sum(value.nbytes for value in (*outline.parameters(), *outline.buffers()))
    available_bytes = psutil.virtual_memory().available
    if needed_bytes > available_bytes * _SHARE:
        raise UserError(
            "E404",
            f"{spec} has {needed_bytes / 1e9:.1f} GB of weights, {available_bytes / 1e9:.1f} GB of memory are free",
            next=advice,
        )
