"""Check the words of fx2onnx: ``python -m tools.check_prose`` lists house words, long sentences, bullets and pages, and
measured numbers without date and source.

Read are the pages of ``docs/``, README, CONTRIBUTING, SECURITY and CHANGELOG, the help of all commands, the texts of errors and warnings (found in the
source, without running it) and docstrings.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
HOUSE_WORDS = {
    r"rungs?": "capture strategy",
    r"baked": "constant input",
    r"tam(?:er|est)": "milder inputs",
    r"(?:in )?few bits": "low-bit",
    r"mend(?:s|ed|ing)?": "fix",
    r"heard|told": "reported",
    r"only (?:the )?data (?:tells?|decides?)|that data decides?": "data-dependent",
    r"decisions? (?:of Python|by data|by sizes)|Python decides": "data-dependent branch, shape-dependent branch",
    r"the sample(?:'s)?": "the example inputs",
    r"judges?|judged": "comparison rule, compare",
    r"faults? of ours": "a bug in fx2onnx",
    r"of strangers": "untrusted",
    r"of whatever|whoever wrote": "any",
    r"what is otherwise": "differences",
    r"save (?:for|where|that)|but for|but where": "except",
    r"earlier state": "a date and a commit",
    r"(?:quantis|optimis|initialis|serialis|normalis|generalis|specialis|summaris)\w*": "American spelling, as in the names of the code",
}
"""Words of this project alone, and what to write instead."""
SAYS = {"UserError", "InternalError", "VerificationError", "ExportWarning", "fail", "refuse", "warn", "warning"}
"""Names of calls whose texts a user reads."""
DOCUMENTED = ("fx2onnx", "studies", "tools", "benchmarks", "models_zoo", "examples")
"""Folders whose docstrings are read."""
POINTING = re.compile(
    "(?:Also|And|Another|By|How|Its?|Likewise|Of|So|Such|That|There|They|Those|What|Whatever|When|Where|Whether|Which|Who|Whose|Why)\\b"
)
"""First words of docstrings that leave the noun to a neighbour."""
MEASURED = re.compile(
    r"(?<![\w.,-])\d[\d.,]*(?:(?: to | and )\d[\d.,]*)?(?: ?(?:[mµu]?s|(?:milli|micro)?seconds?|minutes|%|[kKMG]i?B)\b| ?%| times\b| of \d)"
)
"""A time, a size, a ratio, or a count of cases."""
LIMIT = re.compile(
    r"\b(?:above|below|beyond|up to|at most|more than|longer than|within|every|hold) (?:the |half of )?\d[\d.,]*(?: ?%| times| \w+)"
    r"|\b(?:16 times as large|8 times what|3\.5 runs|0\.1 s if|5 runs, or 1 s|20 % and 20 rounds|8 minutes)",
    re.IGNORECASE,
)
"""A number that the code fixes, or a reader does; it is not measured."""
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
SOURCE = re.compile(r"\]\((?:docs/)?(measured/\w+\.md)|`((?:make|python -m) [^`]*)`")
"""The page of a measurement, or the command that makes it."""
LONG_SENTENCE, LONG_BULLET, LONG_PAGE = 30, 4, 1500
KNOWN = {"docstring": 0, "error": 0, "help": 0, "number": 0, "page": 0}
"""Findings of each kind that are left: these numbers only shrink."""


class Finding(NamedTuple):
    """Something to write otherwise: its kind, where it stands and what is wrong."""

    kind: str
    place: str
    what: str


def findings() -> list[Finding]:
    """All findings, in the order of the files."""
    return [*_pages(), *_help(), *_errors(), *_docstrings()]


def _pages() -> Iterator[Finding]:
    for path in (
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if (count := len(text.split())) > LONG_PAGE:  # as wc -w counts
            yield Finding(
                "page", name, f"{count} words, at most {LONG_PAGE}; `python -m tools.long_tables` takes tables out"
            )
        if "docs/python" in name:  # made of docstrings
            yield from (Finding("docstring", f"{name}:{line}", what) for line, what in _words(_prose(text)))
            continue
        if measured := "measured/" in name:
            text = _without_tables(text)
        prose = _prose(text)
        yield from (Finding("page", f"{name}:{line}", what) for line, what in _words(prose))
        if not measured and "developers/" not in name:
            for line, bullet in _bullets(prose):
                if len(bullet) > LONG_BULLET * 130:
                    yield Finding("page", f"{name}:{line}", f"a bullet of {len(bullet)} characters: {bullet[:60]} ...")
            if "docs/cli/" not in name:  # examples of options
                yield from (Finding("number", f"{name}:{line}", what) for line, what in _numbers(text))


def _without_tables(text: str) -> str:
    """A measured page without its tables and lists, which are data."""
    return re.sub(r"^(?:\||- ).*$", "", text, flags=re.MULTILINE)


def _prose(text: str) -> str:
    """The text with code, links' targets and comments blanked, so that lines keep their numbers."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
    text = re.sub(r"^( *)```.*?^\1```", blank, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->", blank, text)


def _words(text: str) -> Iterator[tuple[int, str]]:
    for pattern, instead in HOUSE_WORDS.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, f"{found[0]!r}: write {instead!r}"


def _bullets(text: str) -> Iterator[tuple[int, str]]:
    for found in re.finditer(r"^( *)[-*] .*\n(?:\1  .*\n)*", text, re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def _numbers(text: str) -> Iterator[tuple[int, str]]:
    """Measured numbers of a users' page whose paragraph does not say when and how they were measured."""
    prose = _prose(text)
    for start, end in _paragraphs(text):
        found = MEASURED.search(LIMIT.sub(lambda limit: "-" * len(limit[0]), prose[start:end]))
        if found is None:
            continue
        line, said = text.count("\n", 0, start) + prose.count("\n", start, start + found.start()) + 1, text[start:end]
        dates, sources = DATE.findall(said), SOURCE.findall(said)
        if not dates or not sources:
            yield line, f"{found[0]!r}: say its date, and link its measured page or name the command"
        for page in {page for page, _ in sources if page}:
            if not any(date in _dates_of(page) for date in dates):
                yield line, f"{found[0]!r}: {page} is of another date"


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each paragraph and item of a list; a table goes with the paragraph behind it."""
    for found in re.finditer(
        r"(?:^\|.*\n)+\n?(?:(?!\||#|[-*] )\S.*\n)*|^(?: *[-*] .*|(?!\|)\S.*)\n(?:(?! *[-*] |\|) *\S.*\n)*",
        text,
        re.MULTILINE,
    ):
        yield found.span()


@functools.cache
def _dates_of(page: str) -> frozenset[str]:
    """Dates that a measured page and its row of the index say."""
    index = (ROOT / "docs" / "measured" / "index.md").read_text(encoding="utf-8")
    rows = "".join(line for line in index.splitlines() if f"]({Path(page).name})" in line)
    return frozenset(DATE.findall(rows + (ROOT / "docs" / page).read_text(encoding="utf-8")))


def _sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?;:])\s+|\n\n|\n\s*- ", text):
        if len(sentence.split()) > LONG_SENTENCE:
            yield sentence


def _texts(kind: str, place: str, text: str) -> Iterator[Finding]:
    prose = _prose(text.replace("``", "`"))
    yield from (Finding(kind, place, what) for _, what in _words(prose))
    for sentence in _sentences(prose):
        yield Finding(kind, place, f"a sentence of {len(sentence.split())} words: {sentence[:60]} ...")


def _help() -> Iterator[Finding]:
    import typer

    from fx2onnx.cli.main import COMMANDS, app

    group: Any = typer.main.get_command(app)
    seen = set()
    for name in COMMANDS:
        command = group.get_command(None, name)
        for place, text in [(name, command.help), *((f"{name} {each.name}", each.help) for each in command.params)]:
            if text and text not in seen:
                seen.add(text)
                yield from _texts("help", place, re.sub(r"\n(?!\n)", " ", text))


def _errors() -> Iterator[Finding]:
    for path, tree in _trees("fx2onnx"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in SAYS:
                for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
                    for text in _strings(each):
                        yield from _texts("error", f"{path}:{node.lineno}", text)


def _docstrings() -> Iterator[Finding]:
    """House words in docstrings of modules, classes, functions and attributes, and first words that leave the noun to a neighbour."""
    for path, tree in _trees(*DOCUMENTED):
        for node in ast.walk(tree):
            match node:
                case ast.Expr(ast.Constant(str(text))):
                    place = f"{path}:{node.lineno}"
                    yield from (
                        Finding("docstring", place, what) for _, what in _words(_prose(text.replace("``", "`")))
                    )
                    if found := POINTING.match(text):
                        yield Finding("docstring", place, f"begins with {found[0]!r}: name the thing first")


def _trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _strings(node: ast.expr) -> Iterator[str]:
    """The texts of an argument, a value in an f-string being one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    elif isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _strings(each)
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)
    elif isinstance(node, ast.BinOp):
        yield from _strings(node.left)
        yield from _strings(node.right)


def main() -> None:
    """Print the findings beyond those that are known."""
    found = findings()
    counts = Counter(each.kind for each in found)
    chosen = sys.argv[1:] or [kind for kind in KNOWN if counts[kind] > KNOWN[kind]]
    for each in found:
        if each.kind in chosen:
            print(f"{each.place}: {each.what}")
    print(", ".join(f"{kind} {counts[kind]} of {KNOWN[kind]}" for kind in KNOWN))
    sys.exit(any(counts[kind] > KNOWN[kind] for kind in KNOWN))


if __name__ == "__main__":
    main()
