"""Imports point downward only, as the table below says."""

from __future__ import annotations

import ast
import enum
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir
import pytest

from fx2onnx.manifest import names

PACKAGE = Path(__file__).parents[1] / "fx2onnx"

MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "files": {"base"},
    "sizes": {"base"},
    "torchcompat": {"base", "sizes"},
    "capture": {"base", "sizes", "torchcompat"},
    "semantics": {"base"},
    "irx": {"base", "files", "semantics", "sizes"},
    "aten_map": {"base", "irx", "semantics", "sizes"},
    "lower": {"base", "sizes", "torchcompat", "irx", "capture", "aten_map", "semantics"},
    "optimize": {"base", "irx", "semantics", "sizes"},
    "targets": {"base", "files", "irx", "semantics", "sizes"},
    "runner": {"base", "files", "sizes", "irx", "optimize", "manifest", "semantics"},
    "training": {"base", "sizes", "torchcompat", "capture", "irx", "aten_map", "lower"},
    "quantize": {"base", "irx", "optimize", "runner", "targets"},
    "precision": {"base", "irx", "judge", "optimize", "runner", "semantics", "targets"},
    "verify": {
        "base", "files", "sizes", "torchcompat", "capture", "irx", "aten_map", "lower", "manifest", "model_patches", "optimize", "runner", "training", "targets",
        "quantize", "precision", "judge", "semantics",
    },
    "judge": {"base", "files", "irx", "runner", "semantics", "sizes", "targets"},
    "proof": {"base", "files", "irx", "judge", "semantics", "sizes"},
    "diff": {"base", "files", "irx", "judge", "semantics", "sizes"},
    "steps": {"base", "files", "irx", "judge", "optimize", "precision", "quantize", "runner", "semantics", "sizes", "targets"},
    "report": {"base", "files"},
    "model_patches": {"base", "capture", "sizes", "torchcompat"},
    "sources": {"base", "files", "sizes"},
    "manifest": {"base", "files", "sizes"},
    "decoding": {"base", "sizes", "sources", "manifest"},
    "generation": {"base", "files", "judge", "runner", "manifest", "sizes"},
    "exporting": {
        "base", "files", "sizes", "torchcompat", "capture", "irx", "aten_map", "lower", "optimize", "verify", "report", "model_patches", "sources", "manifest",
        "decoding", "training", "targets", "quantize", "precision", "steps", "judge", "semantics", "proof",
    },
}  # fmt: skip
NEVER: dict[str, set[str]] = {
    "base": {"torch", "onnx", "onnx_ir"},
    "sizes": {"torch", "onnx", "onnx_ir"},
    "files": {"torch", "onnx", "onnx_ir"},
    "torchcompat": {"onnx", "onnx_ir"},
    "manifest": {"torch", "onnx", "onnx_ir", "numpy"},
    "capture": {"onnx", "onnx_ir"},
    "irx": {"torch"},
    "optimize": {"torch"},
    "targets": {"torch"},
    "quantize": {"torch", "onnxruntime"},
    "precision": {"torch", "onnxruntime"},
    "judge": {"torch"},
    "proof": {"torch", "onnxscript"},
    "runner": {"torch", "onnxruntime"},
    "semantics": {"torch", "onnxruntime"},
    "diff": {"torch", "onnxruntime"},
    "steps": {"torch", "onnxruntime"},
    "report": {"torch", "onnx", "onnx_ir"},
}
TOP = {"api", "cli", "functions"}

OPTIONS = "typer reads the options of a command from the parameters of its function"
LONG_FILES = {
    "semantics/opset_changes.py": "one table: each change of an operator between opsets, with the functions that make it",
    "targets/faults.py": "one table: the faults of runtimes, and how a node that meets one is told",
    "capture/shapes/symnode.py": "one class",
    "capture/shapes/shape_env.py": "one class",
    "capture/recording/values.py": "one class, with the views and memories that it knows",
    "capture/python/held.py": "one class: a snapshot, and how each kind of holder is noted and put back",
    "sizes/expr.py": "one class, with its atoms",
}
LONG_FUNCTIONS = {
    "api.py:export": "a parameter, and a paragraph of the docstring, for each option",
    "api.py:export_folder": "a parameter, and a line of the docstring, for each option",
    "verify/compare.py:verify": "a parameter, and a line of the docstring, for each option",
    "cli/profile.py:profile_command": OPTIONS,
    "cli/run.py:run_command": OPTIONS,
    "semantics/kernels/attention.py:attention": "the operator has 16 inputs and attributes, each a line",
}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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

    visit(parsed(path))
    return found


def files_of(package: str) -> list[Path]:
    return sorted((PACKAGE / package).rglob("*.py"))


@pytest.mark.long_cases("aten_map", "capture", "optimize", "runner")
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


def test_schemas_are_looked_up_in_one_file() -> None:
    places = [path for path in PACKAGE.rglob("*.py") if ".get_schema(" in path.read_text()]
    assert places == [PACKAGE / "semantics" / "schemas.py"]


def test_every_package_is_in_the_table() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(MAY_IMPORT) | TOP


def test_the_map_shows_every_room() -> None:
    text = (PACKAGE.parent / "docs" / "developers" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    assert not {room for room in MAY_IMPORT if f"{room}/" not in text}
    assert len(re.findall(r"\| \d ", text)) <= 9


@pytest.mark.long
def test_nobody_imports_the_top() -> None:
    wrong = [
        f"{path}: {name}"
        for package in MAY_IMPORT
        for path in files_of(package)
        for name in imports_of(path)
        if name.startswith(("fx2onnx.cli", "fx2onnx.api", "fx2onnx.functions"))
    ]
    assert not wrong


def file_of(name: str) -> Path | None:
    """The file of a module, for a package its ``__init__.py``; None where ``name`` is not a module of ours."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    candidates = (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def files_imported_by(path: Path) -> set[Path]:
    """Files of the package that a file imports anywhere, also inside functions and under TYPE_CHECKING."""
    imported: set[Path | None] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            imported.update(file_of(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.update(file_of(f"{node.module}.{alias.name}") or file_of(str(node.module)) for alias in node.names)
    return {other for other in imported if other is not None and other != path}


CAPTURE_MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "python": {"contracts"},
    "shapes": {"contracts", "python"},
    "recording": {"contracts", "python", "shapes"},
    "overloads": {"contracts", "shapes", "recording"},
    "quantized": {"contracts", "shapes", "recording"},
    "branches": {"contracts", "python", "shapes", "recording", "attempts"},
    "loops": {"contracts", "python", "shapes", "recording", "branches"},
    "strategies": {"contracts", "python", "shapes", "recording", "attempts"},
    "attempts": {"contracts", "python", "shapes", "recording", "branches", "loops", "strategies"},
}
"""The folders of capture/ that each folder may import. What lies in no folder is a contract that all may know, or
belongs to the attempts."""
CONTRACTS = {"captured", "op_table", "options", "patches", "rare_roads", "reasons", "registry"}
SHARED_BY_ATTEMPTS = {"attempt"}
"""The values that strategies and branches take and give: they import nothing of these."""


def test_folders_of_capture_are_layers() -> None:
    folder = PACKAGE / "capture"

    def layer(path: Path) -> str:
        parts = path.relative_to(folder).parts
        return parts[0] if len(parts) > 1 else "contracts" if path.stem in CONTRACTS else "attempts"

    wrong = []
    for path in folder.rglob("*.py"):
        for other in files_imported_by(path):
            if not other.is_relative_to(folder) or other.name == "__init__.py" or path.name == "__init__.py":
                continue
            own, its = layer(path), layer(other)
            is_shared = its == "attempts" and other.stem not in SHARED_BY_ATTEMPTS and own in ("branches", "strategies")
            if own != its and (its not in CAPTURE_MAY_IMPORT[own] or is_shared):
                wrong.append(f"{path.relative_to(folder)} ({own}) imports {other.relative_to(folder)} ({its})")
    assert not wrong


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """The names that lead back to themselves."""
    reached = {name: set(below) for name, below in imports.items()}
    for middle, below in reached.items():
        for name in reached:
            if middle in reached[name]:
                reached[name] |= below
    return {name for name, below in reached.items() if name in below}


@pytest.mark.parametrize(
    ("imports", "circles"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, {"b", "c"}),
        ({"d": {"c"}, "a": {"d"}, "c": {"b"}, "b": {"a"}}, {"a", "b", "c", "d"}),
    ],
    ids=["chain", "two", "four"],
)
def test_a_circle_is_seen(imports: dict[str, set[str]], circles: set[str]) -> None:
    assert in_circles(imports) == circles


def test_an_import_counts_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "importing.py"
    path.write_text(
        "import fx2onnx.sizes.expr\n"
        "from fx2onnx.runner import capi, session\n"
        "if TYPE_CHECKING:\n    from fx2onnx.irx.emit_ops import Operators\n"
        "def late():\n    from fx2onnx.runner import InferenceSession\n"
    )
    names = {other.relative_to(PACKAGE).as_posix() for other in files_imported_by(path)}
    inside = {"runner/capi/__init__.py", "runner/session.py", "irx/emit_ops.pyi", "runner/__init__.py"}
    assert names == {"sizes/expr.py"} | inside


@pytest.mark.long
def test_no_file_is_in_an_import_circle() -> None:
    paths = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    imports = {
        path.relative_to(PACKAGE).as_posix(): {
            other.relative_to(PACKAGE).as_posix() for other in files_imported_by(path)
        }
        for path in paths
    }
    assert not in_circles(imports), "these import each other, or what does"


TORCH_PRIVATE = {
    "aten_map/namespaces/quantized_decomposed.py": "torch declares these operators in a private module only",
    "aten_map/table/registry.py": "the type of an overload has no public name; this package is below capture",
    "cli/profile_probes.py": "functions inside torch.onnx and torch.export, timed for a comparison",
    "model_patches/torch_layers.py": "the operator below torch.nn.utils.rnn.pad_packed_sequence",
    "sources/light_run.py": "fake tensors; this package does not import capture",
    "training/packed.py": "the functions that pack sequences, which have a gradient here",
    "training/recurrent.py": "the functions that recurrent layers call, which loops take the place of",
    "sources/seeding.py": "the class of all batch norms",
}
"""Files outside torchcompat/ that use private names of torch, and for what."""


def private_names_of_torch(text: str) -> set[str]:
    """Names below torch with a part that is private: imported, reached by attributes or ``getattr``, or named in a string."""
    names = {"torch": "torch"}
    found: set[str] = set()

    def full_name(node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return names.get(node.id, "")
        if isinstance(node, ast.Attribute):
            attribute: str | None = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            node, name = ast.Attribute(node.args[0]), node.args[1]
            attribute = name.value if isinstance(name, ast.Constant) else None
        else:
            return ""
        start = full_name(node.value)
        return f"{start}.{attribute}" if start and attribute else ""

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and full_name(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: full_name(node.value) for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        else:
            found.add(full_name(node))
    return {name for name in found if PRIVATE.fullmatch(name)}


PRIVATE = re.compile(r"torch\.(?!ops\.)([\w.]+\.)?(_(?!_)\w+|experimental)(\.[\w.]+)?")
"""A part of the name begins with one underline. What follows ``torch.ops`` are names of operators."""


@pytest.mark.long
def test_private_names_of_torch_are_in_named_files() -> None:
    used = {
        place: names
        for path in PACKAGE.rglob("*.py")
        if not (place := str(path.relative_to(PACKAGE))).startswith("torchcompat/")
        and (names := private_names_of_torch(path.read_text()))
    }
    assert {place: names for place, names in used.items() if place not in TORCH_PRIVATE} == {}, "move it"
    assert sorted(used) == sorted(TORCH_PRIVATE), "a file of the table uses none now"
    assert all(TORCH_PRIVATE.values()), "an exception needs a reason"


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "import torch._inductor as inductor",
        "from torch._subclasses.fake_tensor import FakeTensor",
        "from torch import _C",
        "from torch.fx.experimental import symbolic_shapes",
        "import torch\ntorch._C._get_mkldnn_enabled()",
        "import torch\nbelow: Any = torch.nn\nbelow.Module._call_impl",
        "from torch import nn\nnn.Module._wrapped_call_impl",
        "import torch.fx as fx\nfx.experimental.sym_node",
        "import torch\ngetattr(torch.overrides, '_len')",
        "import torch\nsetattr(getattr(torch, '_C'), 'x', 1)",
        "import torch\ndef f(x: torch._ops.OpOverload) -> None: ...",
        "import sys\nsys.modules.get('torch._dynamo.eval_frame')",
    ],
)
def test_private_names_of_torch_are_seen(text: str) -> None:
    assert private_names_of_torch(text)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\naten = torch.ops.aten\naten._to_copy.default, torch.ops.aten._softmax",
        "import torch\ntorch.__future__.get_overwrite_module_params_on_conversion()",
        "self._torch, module._C, 'torch._C is private'",
    ],
)
def test_public_names_of_torch_are_not_private(text: str) -> None:
    assert not private_names_of_torch(text)


PRIVATE_OF_OTHERS = {
    "irx/private_names.py": "what onnx_ir lacks",
    "lower/weights.py": "NumPy names no library that it computes with",
    "semantics/kernels/strings.py": "the parser of regular expressions, whose tree another matcher runs",
}
"""Files that use private names of other packages than torch, and for what."""
OTHERS = re.compile(
    r"(re|numpy|ml_dtypes|onnx|onnx_ir|onnxscript|onnxruntime|safetensors|transformers|timm|torchvision|typer|rich|click)"
    r"\.([\w.]+\.)?_(?!_)\w+(\.[\w.]+)?"
)


def private_slots_of_onnx_ir() -> set[str]:
    """Private attributes of onnx_ir's classes, without those that every enum and named tuple has."""
    classes = [kind for module in (ir, ir.serde) for kind in vars(module).values() if isinstance(kind, type)]
    own = {kind for each in classes for kind in each.__mro__ if kind.__module__.startswith("onnx_ir")}
    names = {name for kind in own for name in (*getattr(kind, "__slots__", ()), *vars(kind))}
    usual = {*dir(enum.Enum), *vars(enum.IntEnum("E", "A")), *dir(NamedTuple("T", [("a", int)]))}
    return {name for name in names - usual if name.startswith("_") and not name.startswith("__")}


def private_names_of_others(text: str, slots: set[str]) -> set[str]:
    """Private modules and names of other packages that are imported or named in a string, and private parts of onnx_ir's objects."""
    found: set[str] = set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(ast.unparse(node))
    found = {name for name in found if OTHERS.fullmatch(name)}
    if "import onnx_ir" in text:
        found |= {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in slots and ast.unparse(node.value) not in ("self", "cls")
        }
    return found


@pytest.mark.long
def test_private_names_of_others_are_in_named_files() -> None:
    slots = private_slots_of_onnx_ir()
    used = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if (names := private_names_of_others(path.read_text(), slots))
    }
    assert {place: names for place, names in used.items() if place not in PRIVATE_OF_OTHERS} == {}, "move it"
    assert sorted(used) == sorted(PRIVATE_OF_OTHERS), "a file of the table uses none now"


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("from re import _parser", True),
        ("import onnx_ir._core", True),
        ("import importlib\nimportlib.import_module('numpy._core')", True),
        ("import onnx_ir as ir\ndef f(value: ir.Value) -> int: return len(value._uses)", True),
        ("import onnx_ir as ir\ndef f(node: ir.Node) -> None: node.graph._nodes.remove(node)", True),
        ("import onnx_ir as ir\nkind._replace(a=1), self._uses, ir.Value.uses", False),
        ("import numpy.core, re", False),
    ],
)
def test_private_names_of_others_are_seen(text: str, is_private: bool) -> None:
    assert bool(private_names_of_others(text, private_slots_of_onnx_ir())) == is_private


@pytest.mark.long
def test_names_of_an_exported_folder_are_spelled_once() -> None:
    """Files of graphs, prefixes of caches and what else both sides of a folder have to call alike."""
    spelled = [names.MODEL_FILE, names.DECODER_FILE, names.PROMPT_FILE, names.ENCODER_FILE, names.EMBED_FILE]
    spelled += [names.IMAGE_FILE, names.AUDIO_FILE, names.LENGTH, names.STREAM, names.PAST, names.PRESENT]
    spelled += [names.PAST_SIZE, names.CAPACITY, names.STREAM_SIZE, names.TOTAL, names.ENCODER_MASK]
    other = {
        path: {names.CAPACITY}
        for path in ("sources/hf/samples.py", "exporting/layouts.py", "generation/settings.py", "cli/generate.py")
    }  # a field of configs
    other["sources/embedder_folder.py"] = {names.MODEL_FILE}  # sentence-transformers' name
    again = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value!r}"
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "manifest" / "names.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and node.value in spelled
        if node.value not in other.get(str(path.relative_to(PACKAGE)), ())
    ]
    assert again == []


LOOKS = {"const_value", "producer", "shape", "dtype", "type", "meta", "uses", "consumers", "is_graph_input"}
"""Attributes of values that a translation reads through the accessors of ``Emit``, which record the look."""


def looks_past_emit(source: str) -> list[str]:
    """The places where code reads these of anything but ``op`` and torch, or imports what reads them."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in LOOKS:
            base = ast.unparse(node.value)
            if base != "op" and base.split(".")[0] not in ("torch", "aten") and "_schema" not in base:
                wrong.append(f"line {node.lineno}: {base}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "fx2onnx.irx.values":
            names = {alias.name for alias in node.names} - {"Dims", "Operand", "OutputType", "mark_complex"}
            wrong += [f"line {node.lineno}: {name}" for name in sorted(names)]
    return wrong


@pytest.mark.parametrize("path", files_of("aten_map"), ids=lambda path: path.stem)
def test_translations_look_at_values_through_emit(path: Path) -> None:
    assert looks_past_emit(path.read_text()) == []


@pytest.mark.parametrize(
    "look",
    ["value.const_value", "value.producer()", "value.shape[0]", "from fx2onnx.irx.values import known_ints"],
)
def test_a_look_past_emit_is_seen(look: str) -> None:
    assert looks_past_emit(look)
    assert not looks_past_emit("op.producer(value), op.dtype(value), torch.dtype")


def test_a_public_class_name_is_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}, "name the class by its subject"


FOREIGN_FILES = {"logits_process.py", "repro.py"}
"""Files of transformers, and of a folder that fx2onnx writes."""


def test_files_that_docstrings_name_exist() -> None:
    root = PACKAGE.parent
    folders = ("fx2onnx", "tests", "tools", "benchmarks", "studies", "models_zoo")
    known = {path.name for folder in folders for path in (root / folder).rglob("*.py")} | FOREIGN_FILES
    pages = [*PACKAGE.rglob("*.py"), *(root / "docs" / "developers").glob("*.md")]
    gone = {
        f"{path.name}: {name}"
        for path in pages
        for name in re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", path.read_text(encoding="utf-8"))
        if name not in known
    }
    assert not gone, "name the file that holds it now"


def lengths_of_files() -> dict[str, int]:
    return {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}


def lengths_of_functions() -> dict[str, int]:
    """Lines of every function, from its ``def`` to its end, under ``file:name``; the longest of those that share a name."""
    lengths: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                place = f"{path.relative_to(PACKAGE)}:{node.name}"
                lengths[place] = max(lengths.get(place, 0), node.end_lineno - node.lineno + 1)
    return lengths


@pytest.mark.long_cases("functions")
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


@pytest.mark.parametrize(("packages", "most"), [(("capture",), 255), (("sources", "decoding"), 150)])
def test_types_are_said(packages: tuple[str, ...], most: int) -> None:
    """``Any`` stands where libraries have no types; it is counted wherever the word stands."""
    texts = [path.read_text() for package in packages for path in files_of(package)]
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) <= most


@pytest.mark.long_cases("import fx2onnx.runner-absent1")
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
