"""All patches together, as capture takes them."""

from __future__ import annotations

from types import CodeType

from fx2onnx.base.assumptions import Assumption
from fx2onnx.capture.patches import Known, TracedCode
from fx2onnx.model_patches import recurrences, torch_rnn, torchvision
from fx2onnx.model_patches.patching import stand_in_for
from fx2onnx.model_patches.transformers import chunks, compressors, experts, indexers, positions, prompts, tracing, udop

_STAND_INS = (
    *torchvision.STAND_INS,
    *tracing.STAND_INS,
    *torch_rnn.STAND_INS,
    *recurrences.STAND_INS,
    *experts.STAND_INS,
    *indexers.STAND_INS,
    *chunks.STAND_INS,
    *compressors.STAND_INS,
    *positions.STAND_INS,
    *prompts.STAND_INS,
    *udop.STAND_INS,
)


class LibraryPatches:
    """``fx2onnx.capture.patches.Patches``: those of torch, torchvision and transformers."""

    def __init__(self) -> None:
        self._used: dict[str, str] = {}

    def apply(self, traced: TracedCode, known: Known) -> None:
        tracing.answer(traced, known)
        self._used = stand_in_for(_STAND_INS)

    def notes(self) -> list[Assumption]:
        return [Assumption(f"{name} {reason}") for name, reason in self._used.items()] + tracing.branches_for_tracing()

    def decided_by_data(self, error: BaseException) -> CodeType | None:
        return tracing.decided_by_data(error)
