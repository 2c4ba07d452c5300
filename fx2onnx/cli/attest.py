"""``fx2onnx attest FILE`` and ``fx2onnx certify FILE OTHER``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.options import CHECKS, OUTPUT
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from fx2onnx.proof.certify import Certificate


@reports_errors
def attest_command(
    path: Annotated[Path, options.argument("FILE", "An ONNX file from any tool.")],
    sample: Annotated[dict[str, Any], Group(Options)],
    source: options.SourceFlag = None,
    check: Annotated[
        bool, options.flag("--check", "Compare FILE, its data and --source with the statement.", CHECKS)
    ] = False,
    bind: Annotated[
        bool, options.flag("--bind", "Write digests of external data into the metadata of FILE, too.", OUTPUT)
    ] = False,
    output: Annotated[
        Path | None, options.output("The statement. Default: FILE.intoto.json.", "FILE.intoto.json")
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write or check a statement about an ONNX file.

    It is an in-toto statement with digests of the file, its external data and its source, what was compared, and the verdict.
    Sign it with your own tool.
    """
    from fx2onnx.cli.progress import Stages, line
    from fx2onnx.functions import attest
    from fx2onnx.proof.attest import statement_path

    check_readable(path)
    asked = {name: value for name, value in sample.items() if value is not None}
    if source is None and any(value != _DEFAULTS.get(name) for name, value in asked.items()):
        raise UserError("E001", "options of example inputs are for --source", next="add --source SOURCE")
    place = output or statement_path(path)
    if not check:
        check_apart([place], [path])
    with Stages(quiet=quiet or json_output) as stages:
        title = f"{'check' if check else 'attest'} {path}"
        given = {} if source is None else {name: value for name, value in asked.items() if value != _DEFAULTS.get(name)}
        found = stages.call(title, lambda: attest(path, source=source, out=output, bind=bind, check=check, **given))
    if json_output:
        print_json(found)
    elif not quiet:
        _show(place, found)
        if check:
            line("checked", "digests" if source is None else f"digests, and weights and results of {source}")


_DEFAULTS = {name: field.default for name, field in Options.__dataclass_fields__.items()}


def _show(place: Path, statement: dict[str, Any]) -> None:
    from fx2onnx.cli.progress import line

    line("statement", os.fspath(place))
    for each in statement["subject"]:
        line("sha256", each["name"], each["digest"]["sha256"])
    predicate = statement["predicate"]
    source, verdict = predicate["source"], predicate["verdict"]
    if source is not None:
        line("source", source.get("spec") or source["name"])
    line("verdict", "none: nothing had been compared" if verdict is None else "agrees" if verdict["ok"] else "differs")


MOST_NODES = 20
"""Nodes of one kind that are shown; all are in the JSON."""


@reports_errors
def certify_command(
    before: Annotated[Path, options.argument("BEFORE", "The ONNX file that was changed.")],
    after: Annotated[Path, options.argument("AFTER", "What it became.")],
    no_derivation: Annotated[
        bool,
        options.flag(
            "--no-derivation", "Leave the rules that fx2onnx optimize listed in AFTER out of account.", CHECKS
        ),
    ] = False,
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
        found = stages.call(f"certify {after}", lambda: certify(before, after, derivation=not no_derivation))
    if json_output:
        print_json(found.as_dict())
    elif not quiet:
        _show_certificate(found)
    if not found.ok:
        raise typer.Exit(VerificationError.exit_code)


def _show_certificate(found: Certificate) -> None:
    from fx2onnx.cli.progress import line

    counts = ", ".join(f"{kind} {count}" for kind, count in found.counts.items())
    line("nodes", f"{len(found.changed)} changed", counts, f"{found.unchanged} as before")
    if found.rules:
        line("rules", ", ".join(f"{name} {count}" for name, count in found.rules.items()))
    for name, kind in found.outputs.items():
        step = found.steps.get(name)
        line("output", name, kind, f"a rounding may become a step at {step}" if step else "")
    if found.fixed:
        line("inputs", ", ".join(found.fixed), "at their defaults: one of the files does not take them")
    for kind in ("bounded", "sampled", "unknown", "refuted"):
        nodes = [each for each in found.changed if each.kind == kind]
        for each in nodes[:MOST_NODES]:
            line(kind, f"{each.node or each.value} ({each.op_type})", each.why, each.rules)
        if len(nodes) > MOST_NODES:
            line("", f"and {len(nodes) - MOST_NODES} more (--json)")
