"""What runs a model of one call: onnxruntime, onnx.reference where it has no kernel, and our runner."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    from tests.ops.harness import Model


BY_REFERENCE = "compared by onnx.reference, because onnxruntime has no kernel"
"""The note of a right call that onnxruntime could not run."""


class NoKernel(Exception):
    """An engine has no kernel for an operator at these dtypes."""


class Rejected(Exception):
    """An engine does not load the model."""


def run_onnxruntime(model: Model) -> list[np.ndarray]:
    """Outputs in onnxruntime. Raises NoKernel, Rejected."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.proto, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class of its own for each of its status codes
        if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error):
            raise NoKernel(str(error)) from error
        raise Rejected(str(error)) from error
    wanted = {given.name for given in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in model.feeds.items() if name in wanted}))


def run_reference(model: Model) -> list[np.ndarray]:
    """Outputs in onnx.reference: the judge where onnxruntime has no kernel."""
    import onnx.reference

    evaluator = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model.proto))
    wanted = set(evaluator.input_names)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = evaluator.run(None, {name: array for name, array in model.feeds.items() if name in wanted})
    return [np.asarray(array) for array in found]


class Unsteady(Exception):
    """A later run of a session gives other outputs than the first."""


def run_runner(model: Model, runs: int = 3) -> list[np.ndarray]:
    """Outputs in our runner, whose later runs are planned ones. Raises NoKernel, Rejected, Unsteady."""
    from fx2onnx.runner import InferenceSession

    try:
        session = InferenceSession(model.proto)
    except UserError as error:
        raise (NoKernel if error.code == "E402" else Rejected)(f"{error.code} {error.what}; {error.why}") from error
    wanted = {given.name for given in session.get_inputs()}
    feeds = {name: array for name, array in model.feeds.items() if name in wanted}
    with np.errstate(all="ignore"):
        first = list(session.run(None, feeds))
        for count in range(2, runs + 1):
            for before, after in zip(first, session.run(None, feeds), strict=True):
                if before.dtype != after.dtype or not np.allclose(before, after, 1e-5, 1e-6, equal_nan=True):
                    raise Unsteady(f"run {count} differs from the first")
    return first
