"""Running statistics of batch norms in training graphs: all are updated together, when one is read or the run ends.

The update of each takes three operators on a short vector; a network has a hundred of them.
"""

from __future__ import annotations

import weakref
from typing import TypeAlias

import torch

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.base_recorder import BaseRecorder

aten = torch.ops.aten
Update: TypeAlias = tuple[torch.Tensor, torch.Tensor, SourceLocation | None]
"""What is updated, the batch's own statistic, and the line."""


class RunningStatistics:
    """The updates of one run that are not recorded yet."""

    def __init__(self, recorder: BaseRecorder) -> None:
        self._recorder = weakref.proxy(recorder)
        self._waiting: dict[tuple[float, torch.dtype], list[Update]] = {}

    def may_wait(self, running: torch.Tensor) -> bool:
        """Whether an update need not be recorded where it stands."""
        recorder = self._recorder
        return running.dim() == 1 and not recorder.view_of(running).steps and recorder.graph is recorder.root

    def take(self, running: torch.Tensor, fresh: torch.Tensor, momentum: float) -> None:
        """``running`` becomes ``(1 - momentum) * running + momentum * fresh`` later. A second batch norm over it has read it, so that nothing
        waits for it.
        """
        recorder = self._recorder
        view = recorder.view_of(running)
        self._waiting.setdefault((momentum, running.dtype), []).append((running, fresh, recorder.place_of_call()))
        recorder.written.setdefault(id(view.memory), recorder.place_of_call())
        view.memory.version += 1
        view.memory.late = self.settle

    def settle(self) -> None:
        """Record what is waiting."""
        recorder, waiting, self._waiting = self._recorder, self._waiting, {}
        for updates in waiting.values():
            for running, _, _ in updates:
                recorder.view_of(running).memory.late = None
        with torch.no_grad():
            for (momentum, _), updates in waiting.items():
                with recorder.at(updates[0][2]):
                    old = recorder.record(aten.cat.default, ([running for running, _, _ in updates],), {})
                    new = recorder.record(aten.cat.default, ([fresh for _, fresh, _ in updates],), {})
                    old = recorder.record(aten.mul.Tensor, (old, 1 - momentum), {})
                    new = recorder.record(aten.mul.Tensor, (new, momentum), {})
                    total = recorder.record(aten.add.Tensor, (old, new), {})
                    sizes = [running.shape[0] for running, _, _ in updates]
                    parts = recorder.record(aten.split_with_sizes.default, (total, sizes), {})
                    for (running, _, _), part in zip(updates, parts, strict=True):
                        recorder.write(running, recorder.node_of(part))
