"""Autograd's nodes: which one runs, and how many there are. A node is known by its number, in the order of creation."""

from __future__ import annotations

import torch
from torch.autograd import graph as autograd_graph

_C = torch._C
ENGINE_CODE = autograd_graph._engine_run_backward.__code__
"""Of the function that calls autograd's engine: frames inside are those of the backward pass."""


def nodes_made() -> int:
    """The number that this thread's next node will get."""
    return int(_C._autograd._get_sequence_nr())


def running_node() -> int | None:
    """The number of the node whose backward runs in this thread."""
    node = _C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
