"""The tables of options in ``docs/cli.md`` and ``docs/cli/``, made of the commands: ``python -m tools.options_page`` writes them.

``<!-- options: NAME -->`` stands for the options of a command, ``<!-- options: NAME but OTHER -->`` for those that differ from
the options of another one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from fx2onnx.base.options import PANELS
from fx2onnx.cli.help import meaning_of, value_of
from fx2onnx.cli.main import COMMANDS, app

DOCS = Path(__file__).parents[1] / "docs"
FILES = [DOCS / "cli.md", *sorted((DOCS / "cli").glob("*.md"))]
_HELP = re.compile(r"<!-- help -->\n.*?<!-- end help -->\n", re.DOTALL)
_TABLE = re.compile(r"<!-- options: ([\w-]+)(?: but ([\w-]+))? -->\n.*?<!-- end -->\n", re.DOTALL)


def table(name: str, other: str = "") -> str:
    """The options of a command, a row for each, in the panels of its help; with ``other``: those that differ from its options."""
    options, known = _options(name), {_row(each) for each in _options(other)} if other else set()
    options_left = [each for each in options if _row(each) not in known]
    panels = list(dict.fromkeys(each.rich_help_panel or "" for each in options_left))
    panels.sort(key=lambda panel: PANELS.index(panel) if panel in PANELS else -1)
    rows = [_but(options, other), ""] if other else []
    rows += ["| option | meaning |", "|---|---|"]
    for panel in panels:
        inside = [each for each in options_left if (each.rich_help_panel or "") == panel]
        rows += [f"| **{panel}** | |"] if panel else []
        rows += map(_row, inside)
    return "\n".join(rows) + "\n"


def _options(name: str) -> list[Any]:
    group: Any = typer.main.get_command(app)
    return [each for each in group.get_command(None, name).params if each.param_type_name == "option"]


def _row(option: Any) -> str:
    return f"| {_spelled(option)} | {_meaning(option)} |"


def _but(options: list[Any], other: str) -> str:
    """A sentence that names the options which a table that starts from another command leaves out."""
    names = {each.name for each in options}
    missing = [f"`{each.opts[0]}`" for each in _options(other) if each.name not in names]
    page = next(file for file in FILES if f"options: {other} -->" in file.read_text(encoding="utf-8"))
    return f"The options of [{other}]({page.name}){' but ' * bool(missing)}{', '.join(missing)}, and:"


def _spelled(option: Any) -> str:
    words = [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]
    value = value_of(option)
    words[-1] = words[-1].removesuffix("`") + (f" {value}`" if value else "`")
    return ", ".join(words).replace("|", "\\|")


def linked(text: str) -> str:
    """``text`` with links to pages, under their titles, in the place of their files: ``(docs/verify.md)``."""

    def link(found: re.Match[str]) -> str:
        title = (DOCS / found[1]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"([{title}](../{found[1]}))"

    return re.sub(r"\(docs/([\w/-]+\.md)\)", link, text)


def _meaning(option: Any) -> str:
    meaning = linked(meaning_of(option))
    return re.sub(
        r"Default: (\S+)\.$", lambda found: found[0] if found[1] == "yes" else f"Default: `{found[1]}`.", meaning
    )


def text(file: Path) -> str:
    """A page with its tables and the overview as they are today."""
    page = _TABLE.sub(
        lambda found: f"{found[0].splitlines()[0]}\n{table(found[1], found[2] or '')}<!-- end -->\n",
        file.read_text("utf-8"),
    )
    overview = CliRunner().invoke(app, ["--help"]).stdout.rstrip()
    return _HELP.sub(lambda _: f"<!-- help -->\n```text\n{overview}\n```\n<!-- end help -->\n", page)


def commands_without_table() -> set[str]:
    """Commands whose options stand in no table of the pages."""
    return set(COMMANDS) - {found[0] for file in FILES for found in _TABLE.findall(file.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    for each in FILES:
        each.write_text(text(each), encoding="utf-8")
