"""``docs/python.md``, the reference of the Python functions, made of their docstrings: ``python -m tools.python_page`` writes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fx2onnx

FILE = Path(__file__).parents[1] / "docs" / "python.md"
_HEAD = """# Python reference

This page is made of the docstrings. Each function that has a command has its name: [cli.md](cli.md). `fx2onnx.runner` is a package
of its own, with the API of onnxruntime ([runner.md](runner.md)), and so is `fx2onnx.sources`, which builds modules from names
([cli.md](cli.md#sources)).
"""
FUNCTIONS = {
    "Export": ("export", "export_folder", "export_training", "translates"),
    "Check": ("verify", "verify_training", "locate", "lint", "diff"),
    "Files": ("inspect", "optimize", "quantize", "testcase", "profile"),
    "Run": ("load",),
}
TYPES = (
    "Quantize", "Precision", "Training", "UpdateRule", "ExportResult", "Report", "ExportedFolder", "TrainingFolder", "Verdict",
    "FirstWrong", "Finding", "Difference", "OptimizeResult", "Profile", "LoadedModel",
)  # fmt: skip
_PARAMETERS = re.compile(r"^(\w+(?:, \w+)*): ")


def text() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, names in FUNCTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            function = getattr(fx2onnx, name)
            found = inspect.unwrap(function) if inspect.isfunction(function) else function
            documented = found if inspect.isfunction(found) else found._function()
            parts.append(f"### fx2onnx.{name}\n\n```text\n{_called(name, documented)}\n```\n\n{_prose(documented)}")
    parts.append("## Types\n")
    parts += [
        f"### fx2onnx.{name}\n\n{_prose(getattr(fx2onnx, name))}{_members(getattr(fx2onnx, name))}" for name in TYPES
    ]
    return "\n".join(parts)


def _called(name: str, function: Any) -> str:
    """A line for each parameter, as they are written."""
    shown: list[str] = []
    is_keyword = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
            is_keyword = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{stars}{parameter.name}{default}")
    return f"fx2onnx.{name}({', '.join(shown)})"


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
        yield re.sub(
            r"\(docs/([\w-]+\.md)\)", r"([\1](\1))", f"  {line.strip()}" if in_list and line[:1] == " " else line
        )


def _members(kind: Any) -> str:
    """Public methods and properties with the first line of their docstrings."""
    found = []
    for name, value in vars(kind).items():
        thing = value.fget if isinstance(value, property) else value
        if name[0] != "_" and inspect.isfunction(thing) and thing.__doc__:
            call = f"{name}" if isinstance(value, property) else f"{name}()"
            found.append(f"- `{call}`: {inspect.cleandoc(thing.__doc__).splitlines()[0].replace('``', '`')}")
    return "\n" + "\n".join(found) + "\n" if found else ""


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
