"""The export strategy: ``torch.export``, for what the module's own run cannot do."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from typing import TextIO

import torch

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import CodePatch, Delegate, put_name
from fx2onnx.base.errors import UserError, first_line
from fx2onnx.capture.python.inputs import Arguments, refuse_objects
from fx2onnx.capture.rare_roads import road
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.frames import know_places
from fx2onnx.torchcompat.graphs import forget_sizes


def made(root: torch.nn.Module, arguments: Arguments) -> torch.nn.Module:
    """``root`` through torch.export (non-strict, then strict) as a module again; ``arguments`` get notes. Raises UserError E107."""
    refuse_objects(arguments, "torch.export")
    args, kwargs = arguments.rebuilt([leaf.tensor for leaf in arguments.leaves])
    specs: list[object] = [None] * len(arguments.flat)
    for leaf in arguments.leaves:
        specs[leaf.position] = {
            axis: torch.export.Dim.AUTO for axis, size in leaf.axes.items() if isinstance(size, Dim)
        }
    positional, named = arguments.rebuild(specs)
    shapes = (*positional, *named.values())
    wanted = sum(isinstance(size, Dim) for leaf in arguments.leaves for size in leaf.axes.values())
    failure: Exception | None = None
    fixed: torch.export.ExportedProgram | None = None
    caught = road("errors that forward catches").CaughtCalls()
    for strict in (False, True):
        try:
            with Changes(), contextlib.nullcontext() if strict else caught:
                _silence()
                program = torch.export.export(root, args, kwargs, dynamic_shapes=shapes, strict=strict)
            arguments.notes.extend(line for line in caught.lines if line not in arguments.notes)
            forget_sizes(program.graph)
            if strict or _dynamic_axes(program) >= wanted:
                return know_places(program.module())
            fixed = program
        except Exception as cause:  # torch.export passes on whatever forward raises, besides its own classes
            failure = failure or cause
    if fixed is not None:
        return know_places(fixed.module())
    try:
        raise UserError(
            "E107",
            "torch.export cannot capture the module",
            why=f"{type(failure).__name__}: {first_line(failure)[:300]}",
            next='export with capture="auto"',
        ) from failure
    finally:
        del failure  # this frame is in its traceback


def _dynamic_axes(program: torch.export.ExportedProgram) -> int:
    """The number of axes of the user's inputs that are of any size in ``program``."""
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    sizes: list[object] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return sum(isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None for size in sizes)


class _Muted(Delegate):
    """A stream to which one thread writes in vain."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.thread = threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.thread else int(self.original.write(text))


_LOGGING = CodePatch(logging.Logger.handle, lambda original: lambda *_: None, "torch.export logs what it refuses")


def _silence() -> None:
    """Until ``Changes`` end, this thread logs and prints nothing: torch.export says what it could not do besides raising it;
    the error says it all.
    """
    _LOGGING.put_in()
    for name in ("stdout", "stderr"):
        muted = _Muted(getattr(sys, name))
        before_change(functools.partial(setattr, muted, "thread", 0))  # other code may have taken it for the stream
        put_name(sys, name, muted)
