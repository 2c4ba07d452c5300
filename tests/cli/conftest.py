"""Several models in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fx2onnx.cli import workers
from fx2onnx.cli.job import Job
from fx2onnx.cli.progress import Stages


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs run here, one after another; the sources that were run are noted."""
    ran: list[str] = []

    def run_all(jobs: Sequence[Job], processes: int, limit_s: float, on_stage: Any) -> Iterator[dict[str, Any]]:
        for job in jobs:
            ran.append(job.source)
            yield workers.attempt(job, Stages(quiet=True))

    monkeypatch.setattr(workers, "run_all", run_all)
    return ran
