"""What capture knows of overloads: refused duplicates, and arguments by the names of the schema."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import InternalError
from fx2onnx.capture import op_table, registry
from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.recording.functionalize import mutate
from fx2onnx.capture.registry import Call, Kind, find, handler, register, traits_of
from tests.capture.recorded import Entry, entries
from tools.capture_families import WRITES

aten = torch.ops.aten
BY_NAME = (Kind.RECORD, Kind.WRITE)
CASES = [(kind, entry) for kind in BY_NAME for entry in entries(kind)]
PACKAGE = Path(registry.__file__).parent


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of this test's own."""
    monkeypatch.setattr(registry, "_ENTRIES", {kind: {} for kind in Kind})


def first(tracer: Any, call: Call) -> str:
    return "first"


def second(tracer: Any, call: Call) -> str:
    return "second"


def test_a_duplicate_is_refused_naming_both_places(empty: None) -> None:
    register(Kind.RECORD, aten.cov.default)(first)
    register(Kind.WRITE, aten.cov.default)(second)
    with pytest.raises(InternalError) as caught:
        register(Kind.RECORD, aten.relu.default, aten.cov.default)(second)
    assert caught.value.what == "aten::cov is registered twice as Kind.RECORD"
    for function in (first, second):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in caught.value.why
    assert find(Kind.RECORD, aten.cov.default) is first


def test_one_function_is_not_registered_twice_for_an_overload(empty: None) -> None:
    with pytest.raises(InternalError, match="registered twice"):
        register(Kind.RECORD, aten.cov.default, aten.cov.default)(first)


def test_a_name_and_its_overload_are_one(empty: None) -> None:
    register(Kind.RECORD, "aten::slice.Tensor")(first)
    assert find(Kind.RECORD, aten.slice.Tensor) is first
    with pytest.raises(InternalError, match="registered twice"):
        register(Kind.RECORD, aten.slice.Tensor)(second)


def test_an_import_that_was_ended_may_be_run_again(empty: None) -> None:
    code = "@register(Kind.RECORD, overload)\ndef twice(tracer, call): return NotImplemented"
    for _ in range(2):
        run = {"__name__": "family", "register": register, "Kind": Kind, "overload": aten.cov.default}
        exec(code, run)
        assert find(Kind.RECORD, aten.cov.default) is run["twice"]


def test_arguments_are_handed_by_name(empty: None) -> None:
    def function(tracer: Any, call: Call, end: Any, dim: Any, step: Any, missing: Any = "own") -> Any:
        return tracer, call.func, end, dim, step, missing

    register(Kind.RECORD, aten.slice.Tensor)(function)
    handle = handler(Kind.RECORD, aten.slice.Tensor)
    assert handle is not None
    assert handle("r", aten.slice.Tensor, ("x", 2, 0), {"end": 7}) == ("r", aten.slice.Tensor, 7, 2, 1, "own")
    assert handle("r", aten.slice.Tensor, ("x",), {})[2:] == (None, 0, 1, "own")


def test_a_name_that_the_schema_lacks_is_refused(empty: None) -> None:
    def function(tracer: Any, call: Call, axis: int) -> None:
        raise AssertionError

    register(Kind.RECORD, aten.slice.Tensor)(function)
    with pytest.raises(InternalError, match="has no argument 'axis'"):
        handler(Kind.RECORD, aten.slice.Tensor)


@pytest.mark.parametrize(("kind", "entry"), CASES, ids=[f"{kind.name}-{entry.overload}" for kind, entry in CASES])
def test_parameters_are_names_of_the_schema(kind: Kind, entry: Entry) -> None:
    """A parameter with a default of its own may be missing in one schema, not in those of all the function's overloads."""
    names = list(inspect.signature(entry.function).parameters)
    assert names[:2] == ["tracer", "call"]
    if isinstance(entry.overload, str):
        assert names[2:] == []
        return
    assert handler(kind, entry.overload) is not None
    overloads = [other.overload for other in entries(kind) if other.function is entry.function]
    known = {argument.name for overload in overloads for argument in overload._schema.arguments}  # type: ignore[union-attr]
    assert set(names[2:]) <= known


def test_the_index_of_families_is_what_they_register(tmp_path: Path) -> None:
    """A function of a file that is not in the index would be missed in silence."""
    file = tmp_path / "families.json"
    subprocess.run([sys.executable, "-m", "tools.capture_families", str(file)], check=True)
    assert registry.FAMILIES.read_text(encoding="utf-8") == file.read_text(encoding="utf-8"), "run `make families`"
    registering = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"register\(\s*Kind\.", path.read_text())
    }
    assert registering - {"registry", WRITES} == set(registry.read_families())


@pytest.mark.long
def test_a_family_is_imported_when_an_overload_of_it_is_first_seen() -> None:
    """Also where a guarded statement is watched for what else it does: no import is seen there."""
    code = (
        "import sys, torch, fx2onnx\n"
        "FAMILIES = ('fx2onnx.capture.quantized', 'fx2onnx.capture.overloads.')\n"
        "def families(): return {name.removeprefix('fx2onnx.capture.') for name in sys.modules if name.startswith(FAMILIES)}\n"
        "def forward(x):\n"
        "    if x.sum() > 0:\n"
        "        x = torch.nn.functional.pad(x, (1, -1))\n"
        "    return x.sum()\n"
        "layers = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.Flatten())\n"
        "fx2onnx.export(layers.eval(), (torch.ones(2, 1, 8, 8),), dynamic_axes={'input': {0: 'n'}})\n"
        "assert families() == {'overloads.reshapes', 'overloads.slices', 'overloads.common'}, families()\n"
        "result = fx2onnx.export(forward, (torch.ones(2, 3),), dynamic_axes={'x': {0: 'n'}})\n"
        "assert 'overloads.windows' in families()\n"
        "assert result.report.attempts == ['fake'], result.report.attempts\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_traits_of_an_overload_are_what_the_registry_has() -> None:
    assert traits_of(aten.relu.default).records is None
    assert traits_of(aten.relu.default).result_type is find(Kind.RESULT_TYPE, aten.relu.default)
    assert traits_of(aten.slice.Tensor).records is not None
    assert traits_of(aten.add_.Tensor).writes is mutate
    assert traits_of(aten.zero_.default).writes not in (None, mutate)
    assert traits_of(aten.add.Tensor).writes is None
    assert traits_of(aten._native_batch_norm_legit.default).writes is None, "its call is recorded whole"


def test_each_operator_stands_in_one_row_of_flags() -> None:
    rows = re.findall(r"^        (.*)$", op_table._ROWS, re.M)
    names = [name for row in rows for name in row.split()]
    assert len(names) == len(set(names))
    assert set().union(*(flag.names for flag in Op)) == {f"aten::{name}" for name in names}, "a flag that is none"
    for name in names:
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(aten, packet), overload or "__name__"), name


def test_flags_are_those_of_the_traits() -> None:
    assert traits_of(aten.item.default).reads_number
    assert traits_of(aten.sym_size.int).is_query
    assert traits_of(aten.result_type.Tensor).is_query
    assert not traits_of(aten.result_type.Scalar).is_query
    assert traits_of(aten.cumsum.default).keeps_sizes
    assert not traits_of(aten.view.default).keeps_sizes
    assert "aten::contiguous" in Op.CHOOSES_KERNEL.names & Op.MAY_COPY.names & Op.MOVES.names
    assert name_of(aten.result_type.Tensor) == "aten::result_type"
    assert name_of(re.sub) == ""
