"""A training in eager PyTorch beside the same in an exported graph, in both engines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from fx2onnx.runner import InferenceSession, Trainer


def onnxruntime_session(path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


ENGINES: dict[str, Callable[[str], Any]] = {"onnxruntime": onnxruntime_session, "runner": InferenceSession}


def eager_losses(
    module: torch.nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    loss: Callable[[torch.nn.Module], torch.Tensor],
    steps: int,
    before_step: Callable[[torch.nn.Module], None] = lambda module: None,
) -> list[float]:
    """The losses of a copy of the module, trained."""
    own = copy.deepcopy(module).train()
    optimizer, losses = make(own), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(own)
        value.backward()
        before_step(own)
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def exported_losses(folder: Path, engine: str, batch: Mapping[str, Any], steps: int) -> list[float]:
    trainer = Trainer(folder, ENGINES[engine])
    return [float(trainer.step(batch)["loss"]) for _ in range(steps)]


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def run_by_name(path: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """The outputs of each engine by name. Feeds that the file does not take are left out."""
    found = {}
    for engine, opened in ENGINES.items():
        session = opened(str(path))
        taken = {value.name: feeds[value.name] for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        found[engine] = dict(zip(names, session.run(None, taken), strict=True))
    return found
