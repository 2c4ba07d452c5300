"""The public names, and the promise that torch.onnx.export's calls work unchanged."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pickle
import pkgutil
import pydoc
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx import api
from fx2onnx.base import public_names
from fx2onnx.cli import main
from fx2onnx.exporting import pipeline
from fx2onnx.exporting.options import OTHER_NAMES, TORCH_ONLY, ExportOptions
from fx2onnx.steps.pipeline import optimize_model
from fx2onnx.verify.compare import verify as compare_verify
from tools import python_page

PUBLIC = {
    "Difference", "ExportResult", "ExportWarning", "ExportedFolder", "Finding", "FirstWrong", "Fx2OnnxError", "InternalError",
    "LoadedModel", "LoadedPipeline", "OptimizeResult", "Precision", "Profile", "Quantize", "Report", "TokenVerdict", "Training", "TrainingFolder", "UpdateRule",
    "UserError", "Verdict", "VerificationError", "__version__", "Certificate", "attest", "certify", "diff", "export", "export_folder", "export_training", "inspect",
    "lint", "load", "locate", "optimize", "profile", "quantize", "runner", "sources", "testcase", "translates", "verify",
    "verify_generation", "verify_training", "ValueRanges", "value_ranges",
}  # fmt: skip
COMMANDS = {"export", "verify", "locate", "diff", "lint", "inspect", "optimize", "quantize", "testcase", "profile"} | {
    "attest",
    "certify",
}
"""Functions that are commands, too."""
CALLED_PACKAGES = {"verify", "diff", "optimize", "quantize"}

_ERROR = (
    "(code: str, what: str, *, where: SourceLocation | None = None, module_path: str = '', node: str = '', "
    "why: str = '', next: Sequence[str] | str = ()) -> None"
)
SIGNATURES = {
    "export": (
        "(model: Any, args: Any = (), f: str | os.PathLike[str] | BinaryIO | None = None, *, "
        "kwargs: Mapping[str, Any] | None = None, export_params: bool = True, verbose: bool | None = None, "
        "input_names: Sequence[str] | None = None, output_names: Sequence[str] | None = None, "
        "opset_version: int | None = None, target: str | None = None, fused: bool | None = None, dynamo: bool = True, external_data: bool | None = None, "
        "dynamic_shapes: Any = None, dynamic_axes: Mapping[str, Any] | None = None, samples: Sequence[Any] | None = None, verify: bool = False, effort: Effort = 'normal', "
        "training: Any = None, capture: str = 'auto', metadata: str | Mapping[str, Any] | Sequence[Any] = 'light', state: str = 'warn', "
        "bake: Sequence[str] | str = (), data_branches: str = 'if', checks: bool = True, "
        "custom_translations: Mapping[Any, Callable[..., Any]] | None = None, optimize: bool = True, "
        "keep_initializers_as_inputs: bool = False, durable: bool = False, weight_files: Sequence[WeightFile] = (), "
        "quantize: Quantize | str | None = None, dtype: str | Precision | None = None, io: str | None = None, functions: bool | Sequence[type | str] = False, report: bool | str | os.PathLike[str] = False, profile: bool | str | os.PathLike[str] = False, attest: bool = False, "
        "custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None, custom_opsets: Mapping[str, int] | None = None, "
        "**ignored: Any) -> ExportResult"
    ),
    "export_folder": (
        "(spec: str, output: str | os.PathLike[str], *, task: str = 'text-generation-with-past', "
        "cache: str = 'dynamic', kv: str | None = None, kv_calibration: Any = None, "
        "drafter: str | None = None, "
        "logits: str = 'all', opset_version: int | None = None, "
        "target: str | None = None, fused: bool | None = None, "
        "quantize: Quantize | str | None = None, verify: bool = False, "
        "engines: Sequence[str] | None = None, dtype: str | Precision | None = None, io: str | None = None, "
        "functions: bool | Sequence[type | str] = False, adapters: Mapping[str, str | os.PathLike[str]] | None = None, package: bool = False, layout: str = 'plain', **options: Any) -> ExportedFolder"
    ),
    "export_training": (
        "(model: Any, args: Any, folder: str | os.PathLike[str], *, loss: Callable[..., Any], targets: Any = (), "
        "optimizer: Any = None, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None, "
        "opset_version: int | None = None, metadata: str = 'light', "
        "custom_translations: Mapping[Any, Callable[..., Any]] | None = None, verify: bool = False, **training: Any) "
        "-> TrainingFolder"
    ),
    "UpdateRule.first_state": "(self, parameter: torch.Tensor) -> State",
    "UpdateRule.slots": "(self, parameter: torch.Tensor) -> tuple[str, ...]",
    "attest": (
        "(path: Any, *, source: str | None = None, out: Paths | None = None, bind: bool = False, check: bool = False, "
        "**options: Any) -> dict[str, Any]"
    ),
    "certify": "(before: Any, after: Any, *, derivation: bool = True) -> Certificate",
    "Certificate.as_dict": "(self) -> dict[str, Any]",
    "value_ranges": (
        "(model: Any, ranges: Mapping[str, tuple[float, float]], *, "
        "sizes: Mapping[str, int] | None = None) -> ValueRanges"
    ),
    "ValueRanges.as_dict": "(self) -> dict[str, Any]",
    "diff": "(one: Any, other: Any) -> Difference",
    "inspect": "(path: Any, *, html: Paths | None = None) -> dict[str, Any]",
    "lint": "(model: Any, target: str = 'onnxruntime', *, faults: Paths | None = None) -> list[Finding]",
    "profile": (
        "(model: Any, args: Any = (), *, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None, "
        "compare: Sequence[str] = (), repeat: int = 5, folder: Paths | None = None) -> Profile"
    ),
    "quantize": (
        "(model: Any, out: Paths | None = None, kind: str | Quantize = 'int8', **options: Any) -> OptimizeResult"
    ),
    "testcase": (
        "(model: Any, folder: Paths, *, module: Any = None, args: Any = (), kwargs: Mapping[str, Any] | None = None, "
        "feeds: Mapping[str, Any] | None = None, dims: Mapping[str, int] | None = None, seed: int = 0, "
        "weights: str = 'full') -> dict[str, list[str]]"
    ),
    "load": "(folder: str | PathLike[str], engine: str | None = None) -> Any",
    "optimize": (
        "(model: Any, out: str | os.PathLike[str] | None = None, *, level: int = 2, opset: int | None = None, target: str | None = None, "
        "fix: Mapping[str, int] | str | None = None, dynamic: Mapping[str, str] | None = None, "
        "quantize: Quantize | str | None = None, dtype: str | Precision | None = None, io: str | None = None, external_data: bool | None = None, external_data_bytes: int = 1024, metadata: str | Mapping[str, Any] | Sequence[Any] = 'keep', verify: bool = True, effort: Effort = 'normal', "
        "engines: Sequence[str] | None = None, seed: int = 0, explain: bool = False, check: bool = False) "
        "-> OptimizeResult"
    ),
    "Precision.is_kept": "(self, *names: str) -> bool",
    "Precision.metadata": "(self) -> str",
    "Quantize.is_excluded": "(self, name: str) -> bool",
    "OptimizeResult.as_dict": "(self) -> dict[str, Any]",
    "translates": "(*overloads: torch._ops.OpOverload | type, since: int = 0) -> Callable[[F], F]",
    "ExportResult.restore_outputs": "(self, outputs: Sequence[Any]) -> Any",
    "ExportResult.apply_weights": "(self, state_dict: Mapping[str, Any]) -> None",
    "ExportResult.initialize_inference_session": "(self, initializer: Callable[[bytes], Any] | None = None) -> Any",
    "ExportResult.optimize": "(self) -> None",
    "ExportResult.call_reference": "(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]",
    "ExportResult.compute_values": (
        "(self, value_names: Sequence[str], args: Any = (), kwargs: Mapping[str, Any] | None = None) -> tuple[Any, ...]"
    ),
    "ExportResult.release": "(self) -> None",
    "ExportResult.rename_axes": "(self, rename_mapping: Mapping[Any, str]) -> None",
    "ExportResult.save": (
        "(self, destination: str | os.PathLike[str] | BinaryIO | None = None, *, include_initializers: bool = True, "
        "keep_initializers_as_inputs: bool = False, external_data: bool | None = None, durable: bool = False, path: Any = None)"
        " -> None"
    ),
    "Report.as_dict": "(self) -> dict[str, Any]",
    "Fx2OnnxError": _ERROR,
    "Fx2OnnxError.add_next": "(self, steps: Sequence[str], *, before: Sequence[str] = ()) -> None",
    "Fx2OnnxError.as_dict": "(self) -> dict[str, Any]",
    "Fx2OnnxError.render": "(self) -> str",
    "InternalError": _ERROR,
    "UserError": _ERROR,
    "VerificationError": _ERROR,
}
"""The signature of every public function, method and error, as text."""


def test_public_names() -> None:
    assert set(fx2onnx.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(fx2onnx, name) is not None


def test_public_objects_have_docstrings() -> None:
    for name in PUBLIC - {"__version__"}:
        assert (getattr(fx2onnx, name).__doc__ or "").strip(), name


def test_keywords_of_torch_onnx_export_are_taken() -> None:
    ours = inspect.signature(fx2onnx.export).parameters
    theirs = inspect.signature(torch.onnx.export).parameters
    positional = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    keyword = {name for name, p in theirs.items() if p.kind is p.KEYWORD_ONLY and not name.startswith("_")}
    assert keyword - set(ours) - set(TORCH_ONLY) - set(OTHER_NAMES) == set()


@pytest.mark.long
def test_the_functions_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(32, 64).eval()
    result = fx2onnx.export(net, (torch.ones(2, 32),), "m.onnx", dynamic_shapes={"input": {0: "rows"}})
    facts = fx2onnx.inspect("m.onnx", html="m.html")
    assert facts["inputs"][0]["shape"] == ["rows", 32]
    assert Path("m.html").exists()
    assert fx2onnx.lint("m.onnx") == fx2onnx.lint(result.model_proto) == []
    assert {finding.rule for finding in fx2onnx.lint("m.onnx", "onnxruntime-1.8")} == {"opset"}
    small = fx2onnx.quantize("m.onnx", "q.onnx", "int8", engines=["runner"])
    assert small.after.total_bytes < small.before.total_bytes
    with pytest.raises(fx2onnx.UserError, match="int3"):
        fx2onnx.quantize("m.onnx", "q.onnx", "int3")
    assert fx2onnx.testcase("m.onnx", "random", dims={"rows": 3}) == {"inputs": ["input"], "outputs": ["output"]}
    fx2onnx.testcase("m.onnx", "given", feeds={"input": np.ones((4, 32), np.float32)})
    fx2onnx.testcase(result, "module", module=net, args=(torch.ones(2, 32),))
    sizes = [onnx.load_tensor(f"{name}/test_data_set_0/input_0.pb").dims for name in ("random", "given", "module")]
    assert [list(dims) for dims in sizes] == [[3, 32], [4, 32], [2, 32]]
    with pytest.raises(fx2onnx.UserError, match="from the module"):
        fx2onnx.testcase("m.onnx", "both", module=net, dims={"rows": 3})
    cost = fx2onnx.profile(net, (torch.ones(2, 32),), repeat=1, folder=".")
    assert (len(cost.exports), cost.source) == (1, "Linear")
    with pytest.raises(fx2onnx.UserError, match="tensorflow"):
        fx2onnx.profile(net, (torch.ones(2, 32),), compare=["tensorflow"])


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(fx2onnx.UserError, match="opset_versoin") as caught:
        fx2onnx.export(torch.nn.Identity(), (torch.ones(1),), opset_versoin=17)
    assert caught.value.code == "E001"


def _signature(found: Any) -> str:
    """As it is written: annotations are text already, without the quotes that ``inspect`` puts around it."""
    signature = inspect.signature(found)
    each = [str(p).replace(f": '{p.annotation}'", f": {p.annotation}") for p in signature.parameters.values()]
    plain = str(signature.replace(return_annotation=inspect.Signature.empty))
    for parameter, text in zip(signature.parameters.values(), each, strict=True):
        plain = plain.replace(str(parameter), text)
    return f"{plain} -> {signature.return_annotation}"


def test_signatures_of_public_functions() -> None:
    found = {}
    pinned = {name.partition(".")[0] for name in SIGNATURES}
    for name in PUBLIC - {
        "__version__",
        "runner",
        "sources",
        "verify",
        "locate",
        "verify_generation",
        "verify_training",
    }:
        thing = getattr(fx2onnx, name)
        if not inspect.isclass(thing) or issubclass(thing, fx2onnx.Fx2OnnxError):
            found[name] = _signature(thing)
        if inspect.isclass(thing) and name in pinned:
            methods = {key: value for key, value in vars(thing).items() if inspect.isfunction(value) and key[0] != "_"}
            found |= {f"{name}.{key}": _signature(value) for key, value in methods.items()}
    assert found == SIGNATURES


def test_annotations_of_public_functions_can_be_looked_up() -> None:
    for function in (fx2onnx.export, fx2onnx.export_folder, fx2onnx.export_training):
        assert "return" in typing.get_type_hints(function)


_IMPORT_ALL = """
import importlib, pkgutil, fx2onnx
for found in pkgutil.iter_modules(fx2onnx.__path__, "fx2onnx."):
    if found.name != "fx2onnx.__main__":
        importlib.import_module(found.name)
import fx2onnx.exporting.pipeline, fx2onnx.exporting.folder
from fx2onnx.api import export, export_folder
assert fx2onnx.export is export and fx2onnx.export_folder is export_folder
assert all(map(callable, (fx2onnx.verify, fx2onnx.diff, fx2onnx.optimize, fx2onnx.quantize)))
"""


def test_functions_have_the_names_of_commands() -> None:
    assert set(main.COMMANDS) >= COMMANDS
    assert all(callable(getattr(fx2onnx, name)) for name in COMMANDS)


def test_the_reference_is_that_of_the_functions() -> None:
    for path, text in python_page.texts().items():
        assert path.read_text() == text, "python -m tools.python_page writes it"
    named = {name for page in python_page.PAGES.values() for name in (*page.functions, *page.types)}
    errors = {name for name in PUBLIC if name.endswith(("Error", "Warning"))}
    assert named == PUBLIC - errors - {"__version__", "runner", "sources"}


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in public_names.OLD.items() for name in names]
)
def test_an_old_name_works_and_says_the_new_one(package: str, name: str) -> None:
    new = public_names.OLD[package][name]
    with pytest.warns(DeprecationWarning, match=f"{package}.{name} is {new} now") as caught:
        found = getattr(importlib.import_module(package), name)
    assert caught[0].filename == __file__
    wanted = pydoc.locate(new)
    assert found is wanted or inspect.signature(found) == inspect.signature(wanted)


def test_a_package_that_is_called_is_its_function(tmp_path: Path) -> None:
    fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),), tmp_path / "m.onnx")
    for function, package in ((compare_verify, fx2onnx.verify), (optimize_model, fx2onnx.optimize)):
        assert inspect.signature(package) == inspect.signature(function)
    verdict = fx2onnx.verify(tmp_path / "m.onnx", torch.nn.Linear(3, 4), (torch.ones(2, 3),), engines=["runner"])
    assert isinstance(verdict, fx2onnx.Verdict)
    assert not verdict.ok
    assert fx2onnx.diff(tmp_path / "m.onnx", tmp_path / "m.onnx").equal
    with pytest.raises(fx2onnx.UserError):
        fx2onnx.optimize(tmp_path / "missing.onnx")


@pytest.mark.long
def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    """``import fx2onnx.NAME`` sets ``fx2onnx.NAME`` to the module, which would then be called in the place of a function."""
    packages = {found.name for found in pkgutil.iter_modules(fx2onnx.__path__)} & PUBLIC
    assert packages == CALLED_PACKAGES | {"runner", "sources"}
    subprocess.run([sys.executable, "-c", _IMPORT_ALL], check=True)


ASKED: dict[str, Any] = {
    "export_params": False, "attest": True, "verbose": True, "input_names": ["a"], "output_names": ["b"],
    "opset_version": 17, "target": "onnxruntime-1.19", "fused": True, "external_data": True,
    "dynamic_shapes": {"x": None}, "dynamic_axes": {"x": {0: "n"}}, "samples": [("other",)], "verify": True,
    "effort": "quick", "training": True, "capture": "fake", "metadata": "full", "state": "io", "bake": ["x"],
    "data_branches": "error", "checks": False, "custom_translations": {}, "optimize": False,
    "keep_initializers_as_inputs": True, "durable": True, "weight_files": [None], "quantize": fx2onnx.Quantize("int8"),
    "dtype": "float16", "io": "float32", "functions": True, "profile": "p.json", "report": "r.json",
    "custom_translation_table": {}, "custom_opsets": {"mine": 1},
}  # fmt: skip
WITHOUT_EFFECT = {"dynamo"}
"""Taken since torch.onnx.export has them."""


INTERNAL = {"gradients", "ignored", "keep_weights", "properties"}
"""Options that fx2onnx's own parts set, which are no keywords."""


def test_every_keyword_reaches_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(pipeline, "run", lambda *args: given.append(args))
    api.export("model", "args", "file", kwargs={"k": 1}, **ASKED)
    *call, options = given[0]
    assert call == ["model", "args", {"k": 1}, "file"]
    found = {item.name: getattr(options, item.name) for item in fields(options)}
    found |= {item.name: getattr(options.capture, item.name) for item in fields(options.capture)}
    found["capture"] = found.pop("strategy")
    precision = found.pop("precision")
    found |= {"dtype": precision.dtype, "io": precision.io}
    found = {name: value for name, value in found.items() if name not in INTERNAL}
    assert found == ASKED
    keywords = [p.name for p in inspect.signature(api.export).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert set(keywords) - {"kwargs"} - WITHOUT_EFFECT == set(ASKED)


def test_defaults_of_the_options_are_those_of_export(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(pipeline, "run", lambda *args: given.append(args))
    api.export("model")
    assert given[0] == ("model", (), None, None, ExportOptions())


@pytest.mark.parametrize(
    "keywords", [{"capture": "c"}, {"data_branches": "d"}, {"state": "s"}, {"metadata": "m"}, {"strategy": "fake"}]
)
def test_options_are_checked_before_anything_runs(keywords: dict[str, Any]) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        ExportOptions.of(**keywords)
    assert caught.value.code == "E001"
    assert next(iter(keywords)) in caught.value.what


def test_options_load_neither_torch_nor_onnx() -> None:
    code = "import sys, fx2onnx.exporting.options\nprint({'torch', 'onnx', 'onnx_ir'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.long
def test_an_ordinary_export_imports_what_it_needs() -> None:
    code = (
        "import sys, torch, fx2onnx\n"
        "fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),))\n"
        "print(sorted(name.removeprefix('fx2onnx.') for name in sys.modules if name.startswith('fx2onnx.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    rare = ("quantize.", "precision.", "verify.", "decoding.", "runner.", "training.", "targets.float64.table")
    allowed = {"quantize.options", "precision.options", "training.options"}
    assert {name for name in loaded if name.startswith(rare)} <= allowed
    assert not {name for name in loaded if name.startswith(("model_patches.transformers", "exporting.folder"))}
    assert {name for name in loaded if name.startswith("aten_map.")} >= {"aten_map.matmul"}
    assert not {"aten_map.convolution", "aten_map.sorting"} & loaded


@pytest.mark.long
def test_a_capture_imports_no_family_of_the_table() -> None:
    code = (
        "import sys, torch, fx2onnx\n"
        "def families(): return {name for name in sys.modules if name.startswith('fx2onnx.aten_map.')}\n"
        "fx2onnx.export(torch.relu, (torch.ones(2),))\n"
        "before = families()\n"
        "def forward(x):\n"
        "    y = torch.cummax(x, 1).values\n"
        "    assert families() == before\n"
        "    return y\n"
        "fx2onnx.export(forward, (torch.ones(2, 3),), capture='fake')\n"
        "assert 'fx2onnx.aten_map.scans' in families()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["runner.InferenceSession", "runner.StatefulSession", "sources.resolve", "verify", "locate", "lint"]
)
def test_parts_come_with_their_first_use(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import fx2onnx\nassert callable(fx2onnx.{name})"], check=True)


def _entrances() -> Iterator[tuple[str, Any]]:
    """Public functions, and the public methods of public classes."""
    for package in (fx2onnx, fx2onnx.runner, fx2onnx.sources):
        for name in package.__all__:
            found = getattr(package, name)
            if isinstance(found, types.FunctionType):
                yield f"{package.__name__}.{name}", found
            elif inspect.isclass(found) and not issubclass(found, Exception | enum.Enum | tuple):
                for own, member in vars(found).items():
                    function = getattr(member, "__func__", getattr(member, "fget", member))
                    if isinstance(function, types.FunctionType) and (own in CONSTRUCTION or not own.startswith("_")):
                        yield f"{package.__name__}.{name}.{own}", function


CONSTRUCTION = ("__init__", "__call__")
PLAIN = ("NodeArg", "ModelMetadata", "SourceKind", "get_", "telemetry", "set_default_logger")
"""What raises no error of fx2onnx."""


def test_errors_of_every_public_entrance_are_caught_as_torchs() -> None:
    bare = [
        name
        for name, function in _entrances()
        if not hasattr(function, "__wrapped__") and not any(each in name for each in PLAIN)
    ]
    assert not bare


@pytest.mark.parametrize(
    "call",
    [
        lambda: fx2onnx.Quantize("int9"),
        lambda: fx2onnx.Precision("float7"),
        lambda: fx2onnx.runner.InferenceSession(b""),
        lambda: fx2onnx.sources.resolve("nothing"),
        lambda: fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),)).save(),
        lambda: fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),))(torch.ones(2), torch.ones(2)),
        lambda: fx2onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).apply_weights({"weight": torch.ones(3)}),
        lambda: fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),)).rename_axes({"no": "size"}),
        lambda: fx2onnx.verify(
            fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),)), torch.nn.Tanh(), (torch.ones(2),)
        ).raise_if_failed(),
    ],
)
def test_errors_of_methods_are_caught_as_torchs(call: Callable[[], Any]) -> None:
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        call()
    assert isinstance(raised.value, fx2onnx.Fx2OnnxError)
    assert type(pickle.loads(pickle.dumps(raised.value))).__name__ == type(raised.value).__name__
