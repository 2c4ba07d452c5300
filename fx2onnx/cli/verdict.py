"""Show what ``fx2onnx.verify`` found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import VerificationError

if TYPE_CHECKING:
    from rich.table import Table


def check_model(model: Any, source: Any) -> Any:
    """The verdict on ``model`` (a path or an export result) against the eager module of ``source``."""
    import importlib

    verify: Any = importlib.import_module("fx2onnx.verify")
    return verify.verify(model, source.module, source.args, source.kwargs)


def verdict_as_dict(verdict: Any) -> dict[str, Any]:
    """The verdict as JSON types."""
    return {
        "ok": bool(verdict.ok),
        "outputs": [
            {
                "engine": row.engine,
                "output": row.output,
                "max_abs_error": float(row.max_abs_error),
                "allowed": float(row.allowed),
                "ok": bool(row.ok),
            }
            for row in verdict.rows
        ],
    }


def verdict_table(verdict: Any) -> Table:
    """One row per engine and output."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("engine", "left"), ("output", "left"), ("largest error", "right"), ("allowed", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    table.add_column("")
    for row in verdict.rows:
        mark = "[green]ok[/]" if row.ok else "[red]differs[/]"
        table.add_row(row.engine, Text(row.output), f"{row.max_abs_error:.2e}", f"{row.allowed:.2e}", mark)
    return table


def require_ok(verdict: Any, file: str) -> None:
    """Raise VerificationError E501 with the worst output unless the verdict is good."""
    if verdict.ok:
        return
    bad = [row for row in verdict.rows if not row.ok]
    why = ""
    if bad:
        worst = max(bad, key=lambda row: row.max_abs_error / row.allowed if row.allowed else float("inf"))
        why = f"{worst.output} in {worst.engine}: error {worst.max_abs_error:.3g}, allowed {worst.allowed:.3g}"
    raise VerificationError("E501", f"the outputs of {file} differ from eager PyTorch", why=why)
