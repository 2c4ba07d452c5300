"""``fx2onnx certify BEFORE AFTER``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fx2onnx.base.errors import VerificationError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    from fx2onnx.proof.certify import Certificate

MOST_NODES = 20
"""Nodes of one kind that are shown; all are in the JSON."""


@reports_errors
def certify_command(
    before: Annotated[Path, options.argument("BEFORE", "The ONNX file that was changed.")],
    after: Annotated[Path, options.argument("AFTER", "What it became.")],
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prove that one ONNX file computes what another does.

    Each changed node is proved (bit for bit), bounded (up to rounding), sampled (the same on random inputs) or refuted. The exit
    code is 1 where an output is refuted, or neither proved nor sampled.
    """
    from fx2onnx.cli.progress import Stages
    from fx2onnx.proof.certify import certify

    for path in (before, after):
        check_readable(path)
    with Stages(quiet=quiet or json_output) as stages:
        found = stages.call(f"certify {after}", lambda: certify(before, after))
    if json_output:
        print_json(found.as_dict())
    elif not quiet:
        _show(found)
    if not found.ok:
        raise typer.Exit(VerificationError.exit_code)


def _show(found: Certificate) -> None:
    from fx2onnx.cli.progress import line

    counts = ", ".join(f"{kind} {count}" for kind, count in found.counts.items())
    line("nodes", f"{len(found.changed)} changed", counts, f"{found.unchanged} as before")
    for name, kind in found.outputs.items():
        line("output", name, kind)
    for kind in ("bounded", "sampled", "unknown", "refuted"):
        nodes = [each for each in found.changed if each.kind == kind]
        for each in nodes[:MOST_NODES]:
            line(kind, f"{each.node or each.value} ({each.op_type})", each.why)
        if len(nodes) > MOST_NODES:
            line("", f"and {len(nodes) - MOST_NODES} more (--json)")
