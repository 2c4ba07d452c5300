"""``LoraAdapter`` and ``AdapterFormat`` with onnxruntime's names: arrays that a run takes for inputs which have defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.files import onnx_adapter
from fx2onnx.runner.ort_value import OrtValue, as_plain


@public_methods
class LoraAdapter:
    """An adapter for ``RunOptions.add_active_adapter``."""

    def __init__(self) -> None:
        self.parameters: Mapping[str, Any] = {}

    def Load(self, file_path: str | os.PathLike[str]) -> None:
        """Read an ``.onnx_adapter`` file. Raises: UserError E302."""
        self.parameters = onnx_adapter.read(file_path).parameters


@public_methods
class AdapterFormat:
    """An adapter to write to a file, or one that was read."""

    def __init__(self, adapter: onnx_adapter.Adapter | None = None) -> None:
        self._adapter = onnx_adapter.Adapter() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Raises: UserError E302."""
        return AdapterFormat(onnx_adapter.read(file_path))

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write the file. Raises: OSError, UserError E601."""
        onnx_adapter.write(file_path, self._adapter)

    def get_format_version(self) -> int:
        return self._adapter.format_version

    def get_adapter_version(self) -> int:
        return self._adapter.adapter_version

    def get_model_version(self) -> int:
        return self._adapter.model_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter = replace(self._adapter, adapter_version=adapter_version)

    def set_model_version(self, model_version: int) -> None:
        self._adapter = replace(self._adapter, model_version=model_version)

    def get_parameters(self) -> dict[str, OrtValue]:
        return {name: OrtValue.ortvalue_from_numpy(array) for name, array in self._adapter.parameters.items()}

    def set_parameters(self, params: Mapping[str, Any]) -> None:
        """Take the arrays of ``params``. Raises: UserError E001 for a value that is no tensor."""
        plain = {name: as_plain(value) for name, value in params.items()}
        for name, value in plain.items():
            if not isinstance(value, np.ndarray):
                raise UserError("E001", f"{name} is a {type(value).__name__}, an adapter holds tensors")
        self._adapter = replace(self._adapter, parameters=plain)
