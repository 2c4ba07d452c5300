"""What several test files need: export a module, run it in both engines, compare with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from fx2onnx.verify.arrays import to_numpy


def run_engines(proto: onnx.ModelProto, tensors: Sequence[torch.Tensor]) -> dict[str, list[Any]]:
    """Outputs of onnxruntime and of the runner."""
    content = proto.SerializeToString()
    names = [value.name for value in proto.graph.input]
    feeds = {name: to_numpy(tensor) for name, tensor in zip(names, tensors, strict=False)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    ort = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return {"onnxruntime": ort.run(None, feeds), "runner": InferenceSession(content).run(None, feeds)}


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
    result = fx2onnx.export(module, args, **export_arguments)
    proto = result.model_proto
    onnx.checker.check_model(proto, full_check=True)
    for inputs in (args, *others):
        with torch.no_grad():
            expected = flat(_fresh(eager)(*copy.deepcopy(inputs)))
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for engine, outputs in run_engines(proto, leaves).items():
            assert len(outputs) == len(expected), engine
            for got, want in zip(outputs, expected, strict=True):
                assert got.shape == want.shape, f"{engine}: {got.shape} for {want.shape}"
                assert got.dtype == want.dtype, f"{engine}: {got.dtype} for {want.dtype}"
                np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=engine)
    return result
