"""``fx2onnx list [KIND] [PATTERN]``."""

from __future__ import annotations

import fnmatch
from typing import Annotated

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.outcome import print_json, reports_errors, show_error


@reports_errors
def list_command(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="zoo, torchvision, timm, hf or file.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATTERN]", help="Part of a name, or a shell pattern such as 'vit_*'.", show_default=False
        ),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """List the models of a source, one name per line; without a kind, the kinds of source."""
    from fx2onnx import sources

    if kind is None:
        _list_kinds(json_output)
        return
    known = sources.names(kind.rstrip(":"))
    if not known:
        raise UserError("E601", f"the models of {kind} cannot be listed", next="fx2onnx list shows how one is named")
    result = [name for name in known if pattern is None or fits(name, pattern)]
    if not result:
        from fx2onnx.sources.registry import fail_unknown

        fail_unknown(f"{kind} model", pattern or "", known, hint=f"fx2onnx list {kind}")
    if json_output:
        print_json(result)
    else:
        print("\n".join(result))


def fits(name: str, pattern: str) -> bool:
    """Whether ``pattern`` is a shell pattern for ``name``, or a part of it in any case."""
    if any(character in pattern for character in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.lower() in name.lower()


def _list_kinds(json_output: bool) -> None:
    from fx2onnx.sources.registry import FACTORY, kind_of, prefixes

    kinds = [FACTORY]
    for prefix in reversed(prefixes()):
        try:
            kinds[:0] = filter(None, [kind_of(prefix)])
        except UserError as error:  # the others are listed all the same
            show_error(error)
    if json_output:
        print_json([{"kind": kind.prefix, "summary": kind.summary, "example": kind.example} for kind in kinds])
        return
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(3)
    for kind in kinds:
        table.add_row(Text(f"{kind.prefix}:", "bold"), kind.summary, Text(kind.example, "dim"))
    console().print(table)
