"""``fx2onnx lint FILE --target NAME``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable, know_faults
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.exporting.options import ExportOptions

if TYPE_CHECKING:
    from fx2onnx.targets.form import Target
    from fx2onnx.targets.lint import Finding

MOST_PLACES = 5
"""Nodes that are named of those with one problem; all are in the JSON."""


@reports_errors
def lint_command(
    path: Annotated[Path, options.argument("FILE", "An ONNX file.")],
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("target",))],
    faults: options.Faults = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check whether a runtime can run an ONNX file.

    Each finding has the line of source code and what to do. The exit code is 1 where there is a finding.
    """
    from fx2onnx.cli.progress import working
    from fx2onnx.functions import lint
    from fx2onnx.targets.find import DEFAULT, find

    asked = find(exported["target"] or DEFAULT)
    know_faults(faults)
    check_readable(path)
    with working(f"read {path}"):
        findings = lint(path, exported["target"] or DEFAULT)
    if json_output:
        facts = {"target": asked.name, "release": asked.release, "source": asked.source, "date": asked.date}
        print_json({"ok": not findings, **facts, "findings": [finding.as_dict() for finding in findings]})
    elif not quiet:
        _show(asked, findings)
    if findings:
        raise typer.Exit(1)


def _show(target: Target, findings: list[Finding]) -> None:
    """Findings of one problem together."""
    from fx2onnx.cli.progress import console, line

    taken = f"{target.name}" + (
        f" (as of {target.release})" if target.release and target.release not in target.name else ""
    )
    if not findings:
        known = "nothing stands in the way" if target.rows is not None else "nothing is known of its operators"
        line("ok", f"{taken}: {known}")
        return
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.problem, finding.instead), []).append(finding)
    for (rule, problem, instead), members in groups.items():
        line(rule, problem + (f"   ({len(members)} nodes)" if len(members) > 1 else ""))
        line("", f"-> {instead}")
        for member in members[:MOST_PLACES] if members[0].node else ():
            line("", "   " + member.node + (f"   {member.where}" if member.where else ""))
        if len(members) > MOST_PLACES:
            line("", f"   and {len(members) - MOST_PLACES} more (--json has all)")
    count = f"{len(findings)} finding" + ("s" if len(findings) > 1 else "")
    console().print(f"{count} for {taken}")
