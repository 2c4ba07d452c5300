"""The tables of options in ``docs/cli.md``, made of the commands: ``python -m tools.options_page`` writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from fx2onnx.base.options import PANELS
from fx2onnx.cli.main import COMMANDS, app

FILE = Path(__file__).parents[1] / "docs" / "cli.md"
_KINDS = {"text": "WORD", "str": "WORD", "int": "N", "integer": "N", "integer range": "N", "int range": "N"}
_HELP = re.compile(r"<!-- help -->\n.*?<!-- end help -->\n", re.DOTALL)
_TABLE = re.compile(r"<!-- options: ([\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)


def table(name: str) -> str:
    """The options of a command, a row for each, in the panels of its help."""
    group: Any = typer.main.get_command(app)
    options = [each for each in group.get_command(None, name).params if each.param_type_name == "option"]
    panels = list(dict.fromkeys(each.rich_help_panel or "" for each in options))
    panels.sort(key=lambda panel: PANELS.index(panel) if panel in PANELS else -1)
    rows = ["| option | meaning |", "|---|---|"]
    for panel in panels:
        inside = [each for each in options if (each.rich_help_panel or "") == panel]
        rows += [f"| **{panel}** | |"] if panel else []
        rows += [f"| {_spelled(each)} | {_meaning(each)} |" for each in inside]
    return "\n".join(rows) + "\n"


def _spelled(option: Any) -> str:
    words = [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]
    choices = getattr(option.type, "choices", None)
    value = option.metavar or (
        "" if option.is_flag else ",".join(choices) if choices else _KINDS.get(option.type.name, "NUMBER")
    )
    words[-1] = words[-1].removesuffix("`") + (f" {value}`" if value else "`")
    return ", ".join(words).replace("|", "\\|")


def _meaning(option: Any) -> str:
    default, help = option.default, re.sub(r"\(docs/([\w-]+\.md)\)", r"([\1](\1))", option.help)
    shown = getattr(default, "value", default)
    if option.is_flag or shown in (None, "", ()):
        on = " Default: yes." if option.is_flag and option.secondary_opts and default else ""
        return f"{help}{on}"
    return f"{help} Default: `{shown}`."


def text() -> str:
    """The page with its tables and the overview as they are today."""
    page = _TABLE.sub(
        lambda found: f"<!-- options: {found[1]} -->\n{table(found[1])}<!-- end -->\n", FILE.read_text(encoding="utf-8")
    )
    overview = CliRunner().invoke(app, ["--help"]).stdout.rstrip()
    return _HELP.sub(lambda _: f"<!-- help -->\n```text\n{overview}\n```\n<!-- end help -->\n", page)


def commands_without_table() -> set[str]:
    """Commands whose options stand in no table of the page."""
    return set(COMMANDS) - set(_TABLE.findall(FILE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
