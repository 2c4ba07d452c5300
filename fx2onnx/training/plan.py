"""From a module and what was asked for to the plan of its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.training.optimizers import groups_of, trained_parameters
from fx2onnx.training.options import Training
from fx2onnx.training.program import TrainingPlan
from fx2onnx.training.sample import TrainingSample, sample_of


def plan_of(
    module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any] | None, training: Training, dynamic_shapes: Any
) -> TrainingPlan:
    """The plan of the training graphs. Raises UserError E001, E101, E105, E108."""
    sample = sample_of(module, args, kwargs, training, dynamic_shapes)
    _check_inputs(sample, training)
    parameters, held = trained_parameters(module, training.frozen, training.held)
    if not parameters and not training.inputs:
        raise UserError(
            "E108",
            "nothing is trained",
            why="the module has no parameter with requires_grad=True that is not frozen",
            next="let requires_grad be True for what is to be trained, or name inputs=(...)",
        )
    groups = None if training.optimizer is None else groups_of(training.optimizer, parameters)
    return TrainingPlan(training, sample, parameters, groups, held)


def _check_inputs(sample: TrainingSample, training: Training) -> None:
    for name in training.inputs:
        if name not in sample.batch:
            raise UserError(
                "E001", f"inputs names {name!r}, which is no input", next=f"the inputs are {', '.join(sample.batch)}"
            )
        if not sample.batch[name].is_floating_point():
            raise UserError("E001", f"inputs names {name!r}, which has no gradient: it is not of floating point")
