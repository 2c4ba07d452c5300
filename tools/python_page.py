"""``docs/python.md`` and ``docs/python/``, the reference of Python, made of the docstrings: ``python -m tools.python_page`` writes it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fx2onnx
from tools.options_page import linked

FOLDER = Path(__file__).parents[1] / "docs"
_HEAD = """# Python reference

A function has the name of its command ([command line](cli.md)). Two packages have pages of their own: `fx2onnx.runner`, with the API
of onnxruntime ([runner](runner.md)), and `fx2onnx.sources`, which builds modules from names ([sources](cli/sources.md)).

`fx2onnx.verify`, `locate` and the other functions also take an `ExportResult` in place of a path. Errors are subclasses of
`fx2onnx.Fx2OnnxError`, warnings of `fx2onnx.ExportWarning` ([errors](errors.md)). Messages of an export go to the logger `fx2onnx`.

| name | what it is |
|---|---|
"""


class Page(NamedTuple):
    """A page of the reference: its title, its functions and its types."""

    title: str
    functions: tuple[str, ...]
    types: tuple[str, ...]


PAGES = {
    "export": Page("Export", ("export", "translates"), ("ExportResult", "Report")),
    "folders": Page("Folders that generate", ("export_folder", "load", "verify_generation"),
                    ("ExportedFolder", "LoadedModel", "LoadedPipeline", "TokenVerdict")),
    "training": Page("Train", ("export_training", "verify_training"), ("Training", "UpdateRule", "TrainingFolder")),
    "check": Page("Check", ("verify", "locate", "certify", "lint", "value_ranges", "diff"),
                  ("Verdict", "Certificate", "FirstWrong", "Finding", "ValueRanges", "Difference")),
    "files": Page("Work on files", ("inspect", "attest", "optimize", "quantize", "testcase", "profile"), ("OptimizeResult", "Profile")),
    "options": Page("Options of quantization and precision", (), ("Quantize", "Precision")),
}  # fmt: skip
_PARAMETERS = re.compile(r"^(\w+(?:, \w+)*): ")


def texts() -> dict[Path, str]:
    """The text of each page."""
    rows = [
        f"| [`{name}`](python/{file}.md#fx2onnx{name.lower()}) | {_first_line(name)} |"
        for file, page in PAGES.items()
        for name in (*page.functions, *page.types)
    ]
    found = {FOLDER / "python.md": _HEAD + "\n".join(rows) + "\n"}
    for file, page in PAGES.items():
        parts = [f"# {page.title}\n\nThis page is generated from the docstrings; [all names](../python.md).\n"]
        for name in page.functions:
            parts.append(
                f"## fx2onnx.{name}\n\n```text\n{_called(name, _documented(name))}\n```\n\n{_prose(_documented(name))}"
            )
        parts += [
            f"## fx2onnx.{name}\n\n{_prose(getattr(fx2onnx, name))}{_members(getattr(fx2onnx, name))}"
            for name in page.types
        ]
        found[FOLDER / "python" / f"{file}.md"] = "\n".join(parts)
    return found


def _documented(name: str) -> Any:
    thing = getattr(fx2onnx, name)
    if inspect.isclass(thing):
        return thing
    found = inspect.unwrap(thing) if inspect.isfunction(thing) else thing
    return found if inspect.isfunction(found) else found._function()


def _first_line(name: str) -> str:
    return inspect.cleandoc(_documented(name).__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


def _called(name: str, function: Any) -> str:
    """The call with its parameters, in lines that fit a page."""
    shown: list[str] = []
    is_keyword = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
            is_keyword = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{stars}{parameter.name}{default}")
    call = f"fx2onnx.{name}({', '.join(shown)})"
    return textwrap.fill(call, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _prose(thing: Any) -> str:
    """The docstring: parameters as a list, the rest as paragraphs."""
    return "\n".join(_lines(inspect.cleandoc(thing.__doc__ or ""))) + "\n"


def _lines(docstring: str) -> Iterator[str]:
    in_list = False
    for line in docstring.replace("``", "`").splitlines():
        found = _PARAMETERS.match(line)
        if found and found[1] not in ("Returns", "Raises"):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            line, in_list = f"- {names}: {line[found.end() :]}", True
        elif in_list and line and not line.startswith(" "):
            in_list = False
        yield linked(f"  {line.strip()}" if in_list and line[:1] == " " else line)


def _members(kind: Any) -> str:
    """Public methods and properties with the first line of their docstrings."""
    found = []
    for name, value in vars(kind).items():
        thing = value.fget if isinstance(value, property) else value
        if name[0] != "_" and inspect.isfunction(thing) and thing.__doc__:
            call = f"{name}" if isinstance(value, property) else f"{name}()"
            found.append(f"- `{call}`: {_first_sentence(thing.__doc__)}")
    return "\n" + "\n".join(found) + "\n" if found else ""


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(inspect.cleandoc(docstring).partition("\n\n")[0].split()).replace("``", "`")
    return linked(re.split(r"(?<=\.)\s", paragraph)[0])


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
