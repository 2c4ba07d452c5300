"""The files that ``fx2onnx train`` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fx2onnx.base.errors import UserError
from fx2onnx.files.staging import replacing
from fx2onnx.report.training_page import training_drawing, training_page

if TYPE_CHECKING:
    from fx2onnx.report.training_page import TrainingCurves

WRITERS: dict[str, Callable[[TrainingCurves], str]] = {".html": training_page, ".svg": training_drawing}


def check_plots(paths: Sequence[Path]) -> None:
    """Raises UserError E001 for a file that cannot be drawn, before anything is trained."""
    for path in paths:
        if path.suffix not in WRITERS:
            raise UserError("E001", f"--plot {path} has no known ending", next=f"one of {', '.join(WRITERS)}")


def write_plots(curves: TrainingCurves, paths: Sequence[Path]) -> list[str]:
    """Write each file whole or not at all; returns their names. Raises UserError E301."""
    for path in paths:
        with replacing(path) as stage:
            stage.write_text(WRITERS[path.suffix](curves), encoding="utf-8")
    return [str(path) for path in paths]
