"""All patches together, as capture takes them."""

from __future__ import annotations

from types import CodeType

from fx2onnx.base import plugins
from fx2onnx.base.assumptions import Assumption
from fx2onnx.capture.patches import Known, TracedCode
from fx2onnx.model_patches import torch_norm, torch_rnn, torchvision  # noqa: F401  (each file registers its patches)
from fx2onnx.model_patches.patching import PATCHES, Applied, apply_patches
from fx2onnx.model_patches.transformers import (  # noqa: F401
    attention_masks,
    chunks,
    compressors,
    delta_rules,
    experts,
    frames,
    indexers,
    packed_images,
    packed_texts,
    positions,
    prompt_states,
    prompts,
    recurrences,
    sound_windows,
    strides,
    tracing,
    udop,
)


class LibraryPatches:
    """``fx2onnx.capture.patches.Patches``: those of torch, torchvision and transformers, and those of other packages."""

    def __init__(self) -> None:
        self._applied = Applied()
        self._problems = plugins.import_all(plugins.PATCHES)

    def apply(self, traced: TracedCode, known: Known) -> None:
        tracing.answer(traced, known)
        self._applied = apply_patches(PATCHES.values())

    def notes(self) -> list[Assumption]:
        called = self._applied.called.values()
        notes = [Assumption(f"{patch.name} {patch.reason}") for patch in called if patch.reason]
        return notes + tracing.branches_for_tracing()

    def warnings(self) -> list[str]:
        return [*self._problems, *self._applied.warnings]

    def decided_by_data(self, error: BaseException) -> CodeType | None:
        return tracing.decided_by_data(error)
