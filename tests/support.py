"""What several test files need: export a module, run it in both engines, compare with eager."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from fx2onnx.verify.arrays import to_numpy


class Engines:
    """onnxruntime and the runner, each opened once for all feeds."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        content = proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # tests run side by side
        self.names = [value.name for value in proto.graph.input]
        self.sessions = {
            "onnxruntime": onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]),
            "runner": InferenceSession(content),
        }

    def run(self, tensors: Sequence[torch.Tensor]) -> dict[str, list[Any]]:
        feeds = {name: to_numpy(tensor) for name, tensor in zip(self.names, tensors, strict=False)}
        return {engine: session.run(None, feeds) for engine, session in self.sessions.items()}


def run_engines(proto: onnx.ModelProto, tensors: Sequence[torch.Tensor]) -> dict[str, list[Any]]:
    """Outputs of onnxruntime and of the runner."""
    return Engines(proto).run(tensors)


def flat(result: Any) -> list[Any]:
    """The tensors (and numbers) of a forward's result, as NumPy arrays."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return [
        to_numpy(leaf) if isinstance(leaf, torch.Tensor) else np.asarray(leaf) for leaf in leaves if leaf is not None
    ]


def _fresh(module: Any) -> Any:
    """A copy; the module itself where it holds a computed tensor, which cannot be copied."""
    try:
        return copy.deepcopy(module)
    except RuntimeError:
        return module


class Call(torch.nn.Module):
    """A module that calls ``overload`` with its inputs, then ``rest`` and ``named``."""

    def __init__(self, overload: Any, *rest: Any, **named: Any) -> None:
        super().__init__()
        self.overload, self.rest, self.named = overload, rest, named

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.overload(*tensors, *self.rest, **self.named)


def agree(
    module: Callable[..., Any],
    proto: onnx.ModelProto,
    *each: tuple[Any, ...],
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """On the inputs of each call both engines give what eager PyTorch gives: as many outputs, shapes, dtypes and numbers."""
    engines = Engines(proto)
    for inputs in each:
        with torch.no_grad():
            expected = flat(_fresh(module)(*copy.deepcopy(inputs)))
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for engine, outputs in engines.run(leaves).items():
            assert len(outputs) == len(expected), engine
            for got, want in zip(outputs, expected, strict=True):
                assert got.shape == want.shape, f"{engine}: {got.shape} for {want.shape}"
                assert got.dtype == want.dtype, f"{engine}: {got.dtype} for {want.dtype}"
                np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=engine)


def check(
    module: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    *,
    others: Sequence[tuple[Any, ...]] = (),
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **export_arguments: Any,
) -> fx2onnx.ExportResult:
    """Export on ``args``; on them and on each of ``others`` both engines must give what eager PyTorch gives."""
    eager = _fresh(module)
    if isinstance(eager, torch.nn.Module) and not export_arguments.get("training"):
        eager.eval()
    with warnings.catch_warnings(action="ignore", category=fx2onnx.ExportWarning):  # the report has them
        result = fx2onnx.export(module, args, **export_arguments)
    onnx.checker.check_model(result.model_proto, full_check=True)
    agree(eager, result.model_proto, args, *others, rtol=rtol, atol=atol)
    return result


def calls_of(work: Callable[[], object]) -> int:
    """The number of functions, of Python and of C, that are called."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def of_torchs_tests(module: str) -> Any:
    """A module of ``torch.testing._internal``. Its import would keep backends' flags from being set in this process, and put
    functions in the place of calls of scripted ones.
    """
    kinds = (torch._C.ScriptFunction, torch._C.ScriptMethod)
    calls = [kind.__call__ for kind in kinds]
    found = importlib.import_module(f"torch.testing._internal.{module}")
    for kind, call in zip(kinds, calls, strict=True):
        kind.__call__ = call
    vars(getattr(torch.backends, "m", torch.backends))["__allow_nonbracketed_mutation_flag"] = True
    return found


def assert_positive(x: torch.Tensor) -> None:
    """An assertion for a forward: pytest makes another one of those in files of tests."""
    assert (x > 0).all()
