"""Show what ``fx2onnx.verify`` found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fx2onnx.base.errors import VerificationError
from fx2onnx.report.console import headed_table

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source
    from fx2onnx.verify import Verdict


def check_model(
    model: Path | ExportResult, source: Source, engines: Sequence[str] | None = None, bake: Sequence[str] = ()
) -> Verdict:
    """The verdict on a model against the eager module of ``source``, in all engines unless some are named."""
    from fx2onnx import verify

    with warnings.catch_warnings(action="ignore"):
        return verify.verify(
            model, source.module, source.args, source.kwargs, engines=engines, bake=(*source.bake, *bake)
        )


def verdict_view(verdict: Verdict) -> RenderableType:
    """The worst case of every engine and output, and the notes."""
    table = headed_table("engine", "output", ">largest error", ">allowed", "at", "")
    pairs = dict.fromkeys((row.engine, row.output) for row in verdict.rows)
    for engine, output in pairs:
        rows = [row for row in verdict.rows if (row.engine, row.output) == (engine, output)]
        worst = max(rows, key=lambda row: (not row.ok, bool(row.problem), row.share))
        count = "" if len(rows) == 1 else f"worst of {len(rows)}: "
        table.add_row(
            Text(engine),
            Text(output),
            Text(f"{worst.max_abs_error:.2e}"),
            Text(f"{worst.allowed:.2e}"),
            Text(count + worst.inputs),
            Text("ok", style="green") if worst.ok else Text(worst.problem or "differs", style="red"),
        )
    notes = [*verdict.notes, *_left_out(verdict)]
    return Group(table, *(Text(f"note: {note}", style="dim") for note in notes))


def _left_out(verdict: Verdict) -> list[str]:
    """One line on the inputs that were not tried; the JSON output has each."""
    count = len(verdict.left_out)
    return [f"{len(verdict.tried)} sets of inputs were compared, {count} left out (--json)"] if count else []


def require_ok(verdict: Verdict, file: Path, *, is_reported: bool = False) -> None:
    """Raise VerificationError E501 with the failing outputs unless the verdict is good (E502 where there is none), or end with
    its exit code where the verdict ``is_reported`` already.
    """
    if not verdict.ok:
        if is_reported:
            raise typer.Exit(VerificationError.exit_code)
        if verdict.unverified:
            raise verdict.not_verified(f"{file} is not verified")
        raise VerificationError(
            "E501",
            f"the outputs of {file} differ from eager PyTorch",
            why="; ".join(verdict.describe().splitlines()[:4]),
            next=[
                "the file is kept for inspection",
                f"fx2onnx debug {file} SOURCE: the first wrong node, and whether the export or an engine is to blame",
            ],
        )
