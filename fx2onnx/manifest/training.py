"""The manifest of a folder that trains: which input is which parameter, and which output is its next value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.typed_json import Misfit, Only, built, within
from fx2onnx.files.folder_commit import MANIFEST, VERSION, is_plain_name
from fx2onnx.files.folder_files import read_object

STEP_FILE, GRADIENTS_FILE, UPDATE_FILE = "train_step.onnx", "gradients.onnx", "apply_gradients.onnx"
EVAL_FILE, WEIGHTS_FILE = "eval.onnx", "weights.safetensors"
KEY = "training"
"""The key of this part in ``fx2onnx.json``."""

_Plain = Annotated[str, Only("the name of a file in the folder", is_plain_name, {"pattern": r"^[^/\\:\u0000]+$"})]
_Shape = tuple[Annotated[int, within(0, 2**62)], ...]


@dataclass(frozen=True)
class OptimizerSlot:
    """A tensor of the optimizer's state: an input, the output with its next value, and the number that it begins with."""

    name: str
    next: str
    shape: _Shape
    dtype: str
    initial: float = 0.0


@dataclass(frozen=True)
class TrainedParameter:
    """A parameter: an input of every graph but the model; its gradient and its next value are outputs."""

    name: str
    gradient: str
    next: str
    shape: _Shape
    dtype: str
    learning_rate: str | None = None
    state: tuple[OptimizerSlot, ...] = ()


@dataclass(frozen=True)
class Rate:
    """A learning rate: an input, and the value that the optimizer has for it."""

    name: str
    initial: float


@dataclass(frozen=True)
class TrainingManifest:
    """The graphs by what they do, and the names of their inputs and outputs. ``files`` has those that were written."""

    files: Mapping[str, _Plain]
    weights: _Plain
    batch: tuple[str, ...]
    targets: tuple[str, ...]
    loss: str
    metrics: tuple[str, ...]
    parameters: tuple[TrainedParameter, ...]
    buffers: tuple[OptimizerSlot, ...] = ()
    held: tuple[str, ...] = ()
    """Parameters that are inputs, and have no next value: another graph trains them."""
    learning_rates: tuple[Rate, ...] = ()
    step: OptimizerSlot | None = None
    first_step: int = 0
    seed: str | None = None
    loss_scale: str | None = None

    def carried(self) -> dict[str, str]:
        """The output with the next value of each input of a step that holds state."""
        slots = [*self.buffers, *(slot for parameter in self.parameters for slot in parameter.state)]
        slots += [self.step] if self.step is not None else []
        return {item.name: item.next for item in self.parameters} | {item.name: item.next for item in slots}

    def facts(self) -> dict[str, Any]:
        """The manifest as JSON holds it."""
        return {KEY: dataclasses.asdict(self)}


_WRITE_ONE = "give what fx2onnx.export_training or fx2onnx export-training wrote"


def read_training(folder: Path) -> TrainingManifest:
    """Raises UserError E302 where the folder was not written by ``export_training``."""
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(
            "E302",
            f"'{folder}' is no folder that trains",
            why=f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder",
            next=_WRITE_ONE,
        )
    found = read_object(path)
    if KEY not in found or found.get("version") != VERSION:
        raise UserError(
            "E302",
            f"'{folder}' is no folder that trains",
            why=f"{MANIFEST} says nothing of training"
            if KEY not in found
            else f"it is of version {found.get('version')}",
            next=_WRITE_ONE,
        )
    try:
        return built(TrainingManifest, found[KEY], KEY)
    except Misfit as cause:
        raise UserError("E302", f"'{path}' is malformed", why=str(cause), next="export the folder again") from cause
