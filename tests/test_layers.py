"""Imports point downward only, as the table below says."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fx2onnx"

MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "capture": {"base"},
    "irx": {"base"},
    "aten_map": {"base", "irx"},
    "lower": {"base", "irx", "capture", "aten_map"},
    "optimize": {"base", "irx"},
    "runner": {"base", "irx", "optimize"},
    "training": {"base", "capture", "irx", "aten_map", "lower"},
    "verify": {"base", "capture", "irx", "aten_map", "lower", "optimize", "runner", "training"},
    "report": {"base"},
    "model_patches": {"base", "capture"},
    "sources": {"base"},
    "decoding": {"base", "sources"},
    "generation": {"base", "runner"},
    "exporting": {
        "base", "capture", "irx", "aten_map", "lower", "optimize", "verify", "report", "model_patches", "sources", "decoding",
    },
}  # fmt: skip
NEVER: dict[str, set[str]] = {
    "base": {"torch", "onnx", "onnx_ir"},
    "capture": {"onnx", "onnx_ir"},
    "irx": {"torch"},
    "optimize": {"torch"},
    "runner": {"torch", "onnxruntime"},
    "report": {"torch", "onnx", "onnx_ir"},
}
TOP = {"api", "cli"}

OPTIONS = "typer reads the options of a command from the parameters of its function"
LONG_FILES = {
    "base/dims.py": "expressions and their simplification call each other; as two files they would import each other",
    "capture/torch_private.py": "the one file of torch's private names",
}
LONG_FUNCTIONS = {
    "api.py:export": "a parameter, and a paragraph of the docstring, for each option",
    "cli/export.py:export_command": OPTIONS,
    "cli/profile.py:profile_command": OPTIONS,
    "cli/run.py:run_command": OPTIONS,
    "runner/kernels/attention.py:attention": "the operator has 16 inputs and attributes, each a line",
}


def imports_of(path: Path) -> set[str]:
    """Dotted names that a file imports, also inside functions; not those under TYPE_CHECKING."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def files_of(package: str) -> list[Path]:
    return sorted((PACKAGE / package).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_downward(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = []
    for path in files_of(package):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "fx2onnx" and len(parts) > 1 and parts[1] not in allowed:
                wrong.append(f"{path.name} imports {name}")
            if parts[0] in NEVER.get(package, ()):
                wrong.append(f"{path.name} imports {name}, which {package} never does")
    assert not wrong


def test_every_package_is_in_the_table() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(MAY_IMPORT) | TOP


def test_nobody_imports_the_top() -> None:
    wrong = [
        f"{path}: {name}"
        for package in MAY_IMPORT
        for path in files_of(package)
        for name in imports_of(path)
        if name.startswith(("fx2onnx.cli", "fx2onnx.api"))
    ]
    assert not wrong


def files_imported_by(path: Path) -> set[Path]:
    """Files of the package that a file imports anywhere, also under TYPE_CHECKING."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
        else:
            continue
        paths = [PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names]
        found.update(path for path in paths if path.exists())
    return found


def test_no_file_of_capture_is_in_an_import_circle() -> None:
    above = {path: files_imported_by(path) for path in files_of("capture")}
    while free := [path for path, imported in above.items() if not imported & above.keys()]:
        for path in free:
            del above[path]
    assert not above, "these import each other, or what does"


def test_torch_private_names_live_in_one_file() -> None:
    wrong = []
    for path in files_of("capture"):
        if path.name == "torch_private.py":
            continue
        wrong += [f"{path.name}: {name}" for name in imports_of(path) if name.startswith("torch.") and "._" in name]
    assert not wrong


def lengths_of_files() -> dict[str, int]:
    return {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}


def lengths_of_functions() -> dict[str, int]:
    """Lines of every function, from its ``def`` to its end, under ``file:name``; the longest of those that share a name."""
    lengths: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                place = f"{path.relative_to(PACKAGE)}:{node.name}"
                lengths[place] = max(lengths.get(place, 0), node.end_lineno - node.lineno + 1)
    return lengths


@pytest.mark.parametrize(
    ("lengths", "limit", "exceptions"),
    [(lengths_of_files, 400, LONG_FILES), (lengths_of_functions, 60, LONG_FUNCTIONS)],
    ids=["files", "functions"],
)
def test_files_and_functions_stay_small(
    lengths: Callable[[], dict[str, int]], limit: int, exceptions: dict[str, str]
) -> None:
    too_long = {place: length for place, length in lengths().items() if length > limit}
    assert {place: length for place, length in too_long.items() if place not in exceptions} == {}, "split it"
    assert [place for place in exceptions if place not in too_long] == [], "it is short now: remove the exception"
    assert all(exceptions.values()), "an exception needs a reason"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fx2onnx", ["torch", "onnx", "onnx_ir", "numpy"]),
        ("import fx2onnx.runner", ["torch", "onnxruntime"]),
        ("import fx2onnx.report.text", ["torch", "onnx"]),
    ],
)
def test_light_imports(statement: str, absent: list[str]) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
