"""All patches together, as capture takes them."""

from __future__ import annotations

import importlib
import sys
from types import CodeType, ModuleType

from fx2onnx.base import plugins
from fx2onnx.base.packages import GPU_PACKAGES
from fx2onnx.capture.options import Known, Patches, TracedCode
from fx2onnx.model_patches import einx, single_functions, torch_layers, torchvision  # noqa: F401  (each file registers its patches)
from fx2onnx.model_patches.patching import PATCHES, Applied, apply_patches
from fx2onnx.sizes.assumptions import Assumption


class LibraryPatches(Patches):
    """The patches of torch, torchvision, transformers and GPU kernels, and of other packages.

    is_fused: with those for files with a runtime's own operators.
    """

    def __init__(self, is_fused: bool = False) -> None:
        self._is_fused = is_fused
        self._applied = Applied()
        self._tracing = _tracing_of_transformers()
        if GPU_PACKAGES.keys() & sys.modules.keys():
            importlib.import_module("fx2onnx.model_patches.kernels")
        self._problems = plugins.import_all(plugins.PATCHES)

    def apply(self, traced: TracedCode, known: Known) -> None:
        if self._tracing is not None:
            self._tracing.answer(traced, known)
        fused = {one.name for one in PATCHES.values() if one.is_fused and self._is_fused}
        self._applied = apply_patches(one for one in PATCHES.values() if one.is_fused == (one.name in fused))

    def notes(self) -> list[Assumption]:
        called = self._applied.called.values()
        notes = [Assumption(f"{patch.name} {patch.reason}") for patch in called if patch.reason]
        return notes if self._tracing is None else notes + self._tracing.branches_for_tracing()

    def warnings(self) -> list[str]:
        return [*self._problems, *self._applied.warnings]

    def decided_by_data(self, error: BaseException) -> CodeType | None:
        return None if self._tracing is None else self._tracing.decided_by_data(error)


def _tracing_of_transformers() -> ModuleType | None:
    """The module that says whether transformers is traced. Registers the patches of transformers, where it is loaded."""
    if "transformers" not in sys.modules:
        return None
    from fx2onnx.model_patches.transformers import attention_masks

    return attention_masks
