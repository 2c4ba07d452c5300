"""``load(FOLDER)``: an exported folder as something to call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.generation.forward import run_forward
from fx2onnx.generation.greedy import generate
from fx2onnx.generation.opened import OpenedFolder, Outputs
from fx2onnx.judge.engines import SESSIONS, chosen_engines

if TYPE_CHECKING:
    from os import PathLike


class LoadedModel(OpenedFolder):
    """An exported folder, opened in one engine.

    Calling it runs the main graph: ``model(input_ids=ids, attention_mask=mask)``. Torch tensors in give torch tensors
    out, arrays give arrays. Caches that are left out are empty; ``past_key_values=out.past_key_values`` goes on.
    ``generate`` is that of ``greedy.py``.
    """

    def __call__(self, **inputs: Any) -> Outputs:
        """Raises: UserError E401 for an input that is unknown or missing, or does not fit."""
        return run_forward(self, inputs)

    generate = generate

    def __repr__(self) -> str:
        return f"<fx2onnx.LoadedModel {self.folder}, {self.engine}: {', '.join(self.graphs)}>"


def load(folder: str | PathLike[str], engine: str | None = None) -> LoadedModel:
    """The exported models of ``folder``, ready to run in ``engine`` (``"onnxruntime"`` or ``"runner"``).

    Raises:   UserError E302 where the folder holds no model, E001 and E602 for an engine that is unknown or missing.
    """
    path = Path(folder).expanduser()
    if not os.path.isdir(path):
        raise UserError("E302", f"there is no folder '{path}'", next="fx2onnx export-folder hf:FOLDER -o FOLDER")
    if not any(path.glob("*.onnx")):
        raise UserError("E302", f"the folder '{path}' holds no .onnx file", next="give the folder that export wrote")
    return LoadedModel(path, chosen_engines(None if engine is None else [engine], SESSIONS)[0])
