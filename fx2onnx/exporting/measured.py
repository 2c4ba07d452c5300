"""What an export cost: kept as it was recorded, and a profile when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from fx2onnx.base.events import Recorder
    from fx2onnx.base.memory import MemoryReader
    from fx2onnx.exporting.report import Report
    from fx2onnx.report.profile import Profile
    from fx2onnx.verify import Verdict


@dataclass(frozen=True)
class Measured:
    """What a profile is made from."""

    source: str
    recorder: Recorder
    memory: MemoryReader | None
    verdict: Verdict | None

    def profile(self, model: ir.Model, report: Report) -> Profile:
        """The profile of the export that made ``model``."""
        from datetime import UTC, datetime

        from fx2onnx.irx.outline import graph_outline, weight_outline
        from fx2onnx.report.machine import machine
        from fx2onnx.report.profile import Profile
        from fx2onnx.report.profile_data import OURS, Export, events_of

        events, readings = events_of(self.recorder.tree(), self.memory)
        return Profile(
            source=self.source,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine(),
            exports=[Export(OURS, [events.seconds], events, readings, report.file_bytes, report.nodes_onnx)],
            weights=weight_outline(model),
            graph=graph_outline(model),
            verification=None if self.verdict is None else self.verdict.as_dict(),
            report=report.as_dict(),
        )
