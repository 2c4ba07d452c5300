"""The export rung: ``torch.export``, for what the module's own run cannot do."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.capture.inputs import Arguments
from fx2onnx.capture.torch_private import forget_sizes


def exported(root: torch.nn.Module, arguments: Arguments) -> torch.nn.Module:
    """``root`` through torch.export (non-strict, then strict) as a module again. Raises UserError E107."""
    args, kwargs = arguments.rebuilt([leaf.tensor for leaf in arguments.leaves])
    specs: list[Any] = [None] * len(arguments.flat)
    for leaf in arguments.leaves:
        specs[leaf.position] = {
            axis: torch.export.Dim.AUTO for axis, size in leaf.axes.items() if isinstance(size, Dim)
        }
    positional, named = arguments.rebuild(specs)
    shapes: Any = (*positional, *named.values())
    failure: Exception | None = None
    for strict in (False, True):
        try:
            with _silent():
                program = torch.export.export(root, args, kwargs, dynamic_shapes=shapes, strict=strict)
            forget_sizes(program.graph)
            return program.module()
        except Exception as cause:  # torch.export passes on whatever forward raises, besides its own classes
            failure = failure or cause
    text = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
    try:
        raise UserError(
            "E107",
            "torch.export cannot capture the module",
            why=f"{type(failure).__name__}: {text[:300]}",
            next='export with capture="auto"',
        ) from failure
    finally:
        del failure  # this frame is in its traceback


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """torch.export logs and prints what it could not do besides raising it; the error says it all."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
