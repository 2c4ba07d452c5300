"""Tensors of a module that are inputs of its graph: whoever holds one, in whatever way, has the input.

A training graph takes parameters as inputs, and forward reaches them as it likes: by the module, a closure, a hook, a
``backward`` of the user's, a view that was made long before. So it is the recorder that knows them, by their memory.
"""

from __future__ import annotations

import torch

from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import where_of
from fx2onnx.capture.recording.recorder import Recorder


class Given:
    """What one run was given."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def stand_for(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """From now on the real tensor is the input that ``fake`` is."""
        self._recorder.stand_for(real, fake)

    def constants(self) -> list[tuple[torch.Tensor, SourceLocation | None]]:
        """The real tensors that were read and are no inputs, each with the line of its first reader."""
        weights = self._recorder.weights.values()
        return [(weight.tensor, next(map(where_of, weight.node.users), None)) for weight in weights]


def take_given(recorder: Recorder) -> None:
    """Until ``Changes`` end, ``THREAD.given`` is for the run of this recorder."""
    put_name(THREAD, "given", Given(recorder))
