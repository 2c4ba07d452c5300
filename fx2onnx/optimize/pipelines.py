"""Which passes run, in which order."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fx2onnx.base.events import record
from fx2onnx.optimize.dead_nodes import remove_dead_nodes
from fx2onnx.optimize.fold_transposes import fold_weight_transposes

Pass = Callable[[ir.Model], int]

DEFAULT: tuple[Pass, ...] = (fold_weight_transposes, remove_dead_nodes)


def run_default(model: ir.Model) -> dict[str, int]:
    """Run the default passes; returns the number of edits of each."""
    edits: dict[str, int] = {}
    for function in DEFAULT:
        with record(function.__name__):
            edits[function.__name__] = function(model)
    return edits
