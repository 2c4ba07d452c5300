"""Two questions about a run that failed: may ``torch.export`` capture the module, and is the module itself wrong?"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.capture.attempt import Attempt, Baked, Failed, Outcome
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording.eager_refusals import is_of_eager
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.torchcompat.frames import is_user

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_SHAPE_RULES = tuple(_TORCH + part for part in ("_meta_registrations", "_prims", "_refs", "_decomp"))
_FAITHFUL = (NameError, KeyError, IndexError, AssertionError, ImportError, ValueError, ArithmeticError)
"""Exceptions that the module raises on its own account, on fake tensors as on real ones."""
MOST_PROBES = 3
"""Runs that look for a mistake of the module behind a number that only the data tells."""
MOST_ELEMENTS = 1 << 20
"""The largest input whose sample values such a run takes."""


def export_may_help(failed: Failed) -> bool:
    """True if torch.export, which costs seconds, may do better: it runs the module on fake tensors, too, and knows besides NumPy inside forward;
    its own code stands in for the tracer's faults.
    """
    failure = failed.error
    if not isinstance(failure, UserError):
        return True
    if failure.code == "E101":
        return _may_be_due_to_fakes(failure.__cause__)
    return failure.code == "E107" or failed.reason is Reason.PLAIN_NUMBER


def _may_be_due_to_fakes(cause: BaseException | None) -> bool:
    """Not where torch refused the shapes or dtypes, nor where the module's own code raised."""
    if cause is None or isinstance(cause, Fx2OnnxError | RecursionError) or is_of_eager(cause):
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(cause.__traceback__)]
    if not files:  # of a branch of both that failed, which keeps no frames
        return False
    if isinstance(cause, _FAITHFUL) and not files[-1].startswith(_TORCH):
        return False
    return not any(file.startswith(_SHAPE_RULES) for file in files) or isinstance(cause, _FAITHFUL)


def mistake_behind(error: BaseException, start: Attempt, run: Callable[[Attempt], Outcome]) -> UserError | None:
    """The module's own error behind a number that it needs of an input: with the sample's values of such inputs, and its sizes,
    eager PyTorch raises it, too.
    """
    names = error.inputs if isinstance(error, UserError) and error.code == "E104" else ()
    probe = start.at_sizes(hints_of(start.arguments))
    few = {leaf.name for leaf in start.arguments.leaves if leaf.tensor.numel() <= MOST_ELEMENTS}
    for _ in range(MOST_PROBES):
        if not names or not few.difference(probe.baked.names).issuperset(names):
            return None
        probe = replace(probe, baked=Baked((*probe.baked.names, *names), probe.baked.lines))
        outcome = run(probe)
        if not isinstance(outcome, Failed) or not isinstance(outcome.error, UserError):
            return None
        if outcome.error.code == "E101":
            return outcome.error if _is_mistake(outcome.error.__cause__) else None
        names = outcome.error.inputs
    return None


def _is_mistake(cause: BaseException | None) -> bool:
    """True if eager PyTorch raises ``cause``, too, where every size and every number that Python takes is plain."""
    if cause is None:
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(cause.__traceback__)]
    if isinstance(cause, TypeError | AttributeError):
        return bool(codes) and is_user(codes[-1])
    is_of_call = not isinstance(cause, RuntimeError) or Tracer.handle.__code__ in codes
    return is_of_call and not _may_be_due_to_fakes(cause)
