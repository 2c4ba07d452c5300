"""The code blocks of the pages, and how they are run: in order, in one namespace a page, in a folder of their own.

What a fence says after its three backticks:

``python``             runs; ``raises=E201`` beside it: ends with that error; ``file=net.py``: is written to that file instead
``sh``                 commands: ``fx2onnx`` runs in this process, of ``pip``, ``make``, ``python`` and ``npm`` it is seen
                       that what they name is there; ``exit=1``, ``raises=E601``: how it ends
``console``            a session with its output: the commands are parsed, not run
``json``, ``toml``     are read
``text``               nothing to run; lines that begin with ``fx2onnx`` are parsed
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from fx2onnx import Fx2OnnxError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = {
    "python": {"raises", "file"}, "sh": {"raises", "exit"}, "console": set(), "json": set(), "toml": set(),
    "text": set(),
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    options: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All fences of a page, those in lists included."""
    found = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence":
            language, *words = token.info.split() or [""]
            options = dict(word.partition("=")[::2] for word in words)
            found.append(Block(page, token.map[0] + 1, language, options, token.content))
    return found


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """What pages register and import ends with them."""
    import torch

    from fx2onnx.aten_map import TABLE
    from fx2onnx.aten_map.table.registry import MODULE_TRANSLATIONS
    from fx2onnx.base import plugins
    from fx2onnx.model_patches.patching import PATCHES
    from fx2onnx.semantics import registry

    modules, grad, path = set(sys.modules), torch.is_grad_enabled(), list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # as Python has it that is called in this folder
    try:
        yield
    finally:
        # By whose they are and not by what was there before: fx2onnx's own come when they are first asked for.
        for table in (TABLE.entries, MODULE_TRANSLATIONS, PATCHES, registry._table):
            for key in [key for key, entry in table.items() if _is_of_a_page(entry)]:
                del table[key]  # type: ignore[attr-defined]
        registry._count_change()
        plugins._installed.cache_clear()
        sys.path[:] = path
        torch.set_grad_enabled(grad)
        here = str(Path.cwd())
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(here):
                del sys.modules[name]


def _is_of_a_page(entry: Any) -> bool:
    """Return whether a function in it is written in a block."""
    if isinstance(entry, list | dict):
        return any(_is_of_a_page(each) for each in (entry.values() if isinstance(entry, dict) else entry))
    names = ("function", "compute", "fn")
    function = next((getattr(entry, name) for name in names if hasattr(entry, name)), entry)
    return str(getattr(function, "__module__", "")).startswith("page_")


def run_page(page: Path) -> int:
    """Run the blocks of a page in the working directory; how many there were to run."""
    module = types.ModuleType(f"page_{page.stem}")
    module.__file__ = str(_write_program(page))
    sys.modules[module.__name__] = module
    count = 0
    try:
        with undone():
            for block in blocks_of(page):
                if block.language in RUNNERS:
                    RUNNERS[block.language](block, module.__dict__)
                    count += 1
    finally:
        del sys.modules[module.__name__]
    return count


def _write_program(page: Path) -> Path:
    """Write the Python blocks of a page to a file, each at its lines of the page: capture reads a user's file whole."""
    lines = [""] * len(page.read_text().splitlines())
    for block in blocks_of(page):
        if block.language == "python" and "file" not in block.options:
            text = block.text.splitlines()
            lines[block.line : block.line + len(text)] = text
    file = Path(f"page_{page.stem}.py").absolute()
    file.write_text("\n".join(lines))
    return file


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    if file := block.options.get("file"):
        Path(file).write_text(block.text)
        return
    code = compile("\n" * block.line + block.text, namespace["__file__"], "exec")
    wanted = block.options.get("raises")
    try:
        exec(code, namespace)
    except Fx2OnnxError as error:
        if error.code != wanted:
            raise
        return
    except BaseException as error:
        error.add_note(f"in the block at {block.place}")
        raise
    assert wanted is None, f"{block.place}: nothing was raised, {wanted} should be"


def run_shell(block: Block, namespace: dict[str, Any]) -> None:
    for command in commands(block.text):
        words = shlex.split(command, comments=True)
        if not words:
            continue
        assert words[0] in PROGRAMS, f"{block.place}: {command}"
        PROGRAMS[words[0]](block, words[1:])


def parse_session(block: Block, namespace: dict[str, Any], start: str = "$ fx2onnx ") -> None:
    """Commands of a session are such as the command line takes."""
    for line in commands(block.text):
        if line.startswith(start):
            name, *arguments = shlex.split(line.removeprefix(start), comments=True)
            _command(name).make_context(name, arguments)


def commands(text: str) -> list[str]:
    return re.sub(r"\\\n\s*", " ", text).splitlines()


def _command(name: str) -> Any:
    import typer

    from fx2onnx.cli.main import app

    return typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined,arg-type]


def _fx2onnx(block: Block, arguments: list[str]) -> None:
    from typer.testing import CliRunner

    from fx2onnx.cli.main import app

    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    said = f"{block.place}: fx2onnx {shlex.join(arguments)}\n{done.stdout}\n{done.stderr}\n{done.exception!r}"
    assert "DeprecationWarning" not in done.stderr, said
    if wanted := block.options.get("raises"):
        assert f"[{wanted}]" in done.stderr, said
        assert done.exit_code in (1, 2), said
    else:
        assert done.exit_code == int(block.options.get("exit", "0")), said


def _pip(block: Block, arguments: list[str]) -> None:
    """Install nothing: extras are those that are installed."""
    assert arguments[0] == "install", block.place
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:\.|fx2onnx)\[([\w,]+)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), block.place


def _make(block: Block, arguments: list[str]) -> None:
    targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(arguments) <= {word for line in targets for word in line.split()}, block.place


def _python(block: Block, arguments: list[str]) -> None:
    """The module or the script is there; the tests of either run it."""
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None, block.place
    else:
        assert Path(arguments[0]).exists() or (ROOT / arguments[0]).exists(), block.place


def _npm(block: Block, arguments: list[str]) -> None:
    assert arguments == ["install", "onnxruntime-web"], block.place


RUNNERS = {
    "python": run_python,
    "sh": run_shell,
    "console": parse_session,
    "json": lambda block, _: json.loads(block.text),
    "toml": lambda block, _: tomllib.loads(block.text),
}
PROGRAMS = {"fx2onnx": _fx2onnx, "pip": _pip, "make": _make, "python": _python, "npm": _npm}
