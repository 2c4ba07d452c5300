"""``fx2onnx lint FILE... --target NAME``."""

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
    from fx2onnx.proof.domains import ValueRanges
    from fx2onnx.targets.form import Target
    from fx2onnx.targets.lint import Finding

MOST_PLACES = 5
"""Nodes that are named of those with one problem; all are in the JSON."""


@reports_errors
def lint_command(
    paths: Annotated[list[Path], options.argument("FILE...", "ONNX files.")],
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("target",))],
    ranges: Annotated[
        list[str] | None,
        options.flag(
            "--ranges",
            "Ranges of the inputs, repeatable: also bound the outputs and their rounding, and find what an input in them can cause.",
            metavar="INPUT=LOW:HIGH,...",
        ),
    ] = None,
    faults: options.Faults = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check whether a runtime can run an ONNX file.

    Each finding has the line of source code and what to do. --json prints a list for several files. With --ranges it also finds NaN, overflow, division by zero and indices out
    of range that an input in the ranges can cause. The exit code is 1 where there is a finding.
    """
    from fx2onnx.cli.progress import console
    from fx2onnx.targets.form import DEFAULT, find

    asked = find(exported["target"] or DEFAULT)
    know_faults(faults)
    for path in paths:
        check_readable(path)
    facts = {"target": asked.name, "release": asked.release, "source": asked.source, "date": asked.date}
    rows: list[dict[str, Any]] = []
    for path in paths:
        findings, bounded = _found(path, exported["target"] or DEFAULT, ranges)
        told = {} if bounded is None else {"ranges": bounded.as_dict()}
        is_ok = not findings and not (bounded and bounded.findings)
        named = {"file": str(path)} if len(paths) > 1 else {}
        rows.append({"ok": is_ok, **named, **facts, "findings": [each.as_dict() for each in findings], **told})
        if json_output or quiet:
            continue
        if named:
            console().print(f"{path}:", markup=False, highlight=False)
        _show(asked, findings)
        if bounded is not None:
            _show_ranges(bounded)
    if json_output:
        print_json(rows if len(rows) > 1 else rows[0])
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


def _found(path: Path, target: str, ranges: list[str] | None) -> tuple[list[Finding], ValueRanges | None]:
    """The findings for one file, and the bounds of its values where ``ranges`` are given."""
    from fx2onnx.cli.progress import working
    from fx2onnx.functions import lint

    with working(f"read {path}"):
        findings = lint(path, target)
    if not ranges:
        return findings, None
    from fx2onnx.proof.ranges import parse_ranges, value_ranges

    with working(f"bound the values of {path}"):
        return findings, value_ranges(path, parse_ranges(",".join(ranges)))


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


def _show_ranges(found: ValueRanges) -> None:
    from fx2onnx.cli.progress import line

    line("ranges", ", ".join(f"{name} {list(shape)}" for name, shape in found.sizes.items()), "bounds for these shapes")
    for each in found.findings:
        sure = "an input in the ranges does it" if each.is_shown else "not ruled out"
        line(each.kind, f"{each.problem}   ({sure})")
        line("", "   " + each.node + (f"   {each.where}" if each.where else ""))
    for name, bound in found.outputs.items():
        rounding = f"rounding at most {bound.rounding:.3g}, measured {bound.measured:.3g}"
        line("output", f"{name} from {bound.low:.6g} to {bound.high:.6g}", rounding)
    if found.lost_at:
        line("", f"rounding may be as large as the numbers from {found.lost_at} on")
    halves = [each.node + (f"   {each.where}" if each.where else "") for each in found.float16]
    if halves:
        line("float16", f"{len(halves)} nodes may be too large for it (above 65504)")
    for text in halves[:MOST_PLACES]:
        line("", "   " + text)
    for name, op_type in list(found.unknown.items())[:MOST_PLACES]:
        told = op_type if ": " in op_type else f"{op_type} has no rule, and nothing is known behind it"
        line("unknown", f"{name}: {told}")
    if len(found.unknown) > MOST_PLACES:
        line("", f"   and {len(found.unknown) - MOST_PLACES} more nodes: --json lists them")
