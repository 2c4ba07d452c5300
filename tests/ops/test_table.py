"""The table itself: schemas, sizes of its files, and a sample of PyTorch's operator database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fx2onnx.aten_map
from fx2onnx.aten_map import TABLE, Table
from fx2onnx.aten_map.table import families
from fx2onnx.base.errors import UserError
from tests.ops import database, measuring

families.load_all()
FILES = sorted(Path(fx2onnx.aten_map.__file__).parent.glob("*.py"))
MAX_LINES = 400
aten = torch.ops.aten


def schema_line(overload: torch._ops.OpOverload) -> str:
    """The schema as docstrings write it: no namespace, no overload name."""
    head, rest = str(overload._schema).split("(", 1)
    return f"{head.split('::')[-1].split('.')[0]}({rest}"


@pytest.mark.parametrize(
    "entry",
    [entry for entries in TABLE.entries.values() for entry in entries if not entry.form],
    ids=lambda entry: f"{entry.overload}-{entry.since}",
)
def test_first_docstring_line_is_the_schema(entry):
    lines = [line.strip() for line in (entry.function.__doc__ or "").strip().splitlines()]
    schemas = [line for line in lines if "->" in line and "(" in line]
    assert lines, f"{entry.place} has no docstring"
    assert schema_line(entry.overload) in schemas, f"{entry.place} lacks: {schema_line(entry.overload)}"
    assert lines[0] in schemas


def called(function, overload, **arguments):
    table = Table()
    table.add(overload, 0, function, form="in words")
    return table.entries[overload][0].call(SimpleNamespace(result=()), arguments)


def test_a_function_for_many_overloads_takes_what_it_names():
    def product(op, lhs, rhs, alpha=1):
        return lhs, rhs, alpha

    assert called(product, aten.mv.default, self=2, vec=3) == (2, 3, 1)
    assert called(product, aten.add.Tensor, self=2, other=3, alpha=4) == (2, 3, 4)
    assert called(lambda op, size: size, aten.reshape_as.default, self=2, other=3) == 2
    assert called(lambda op, **given: given, aten.mv.default, self=2, vec=3) == {"self": 2, "vec": 3}


@pytest.mark.parametrize("function", [lambda op, lhs, rhs, third: None, lambda op, vec, rhs: None])
def test_a_function_for_many_overloads_that_does_not_fit_is_refused(function):
    with pytest.raises(UserError, match="not in the schema: "):
        called(function, aten.mv.default)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES


SAMPLED = (
    "abs add argmax cat clamp cumsum div.floor_rounding nn.functional.embedding gather matmul mean nn.functional.gelu "
)
SAMPLED += "nn.functional.layer_norm nn.functional.conv2d nn.functional.softmin pow remainder sum topk var where"
STRICT = frozenset({"wrong", "rejected", "broken"})


@pytest.mark.long_cases(but=["mean", "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.softmin", "var"])
@pytest.mark.parametrize("name", SAMPLED.split())
def test_sampled_operators_are_right(name):
    """No call of the entry is silently wrong in onnxruntime or in our runner, at the default opset."""
    (info,) = database.op_infos([name])
    for dtype in (torch.float32, torch.int64):
        for engine, verdicts in database.sweep_engines(info, dtype, database.ENGINES, samples=3).items():
            faults = [verdict for verdict in verdicts if verdict.status in STRICT]
            assert not faults, "\n".join(f"{engine} {fault.status} {fault.call}: {fault.note}" for fault in faults)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 20, 23])
def test_whole_operator_database(opset):
    """No call of any entry is silently wrong, in any usual dtype."""
    faults = []
    for info in database.op_infos():
        for dtype in (torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool):
            verdicts = database.sweep(info, dtype, opset=opset)
            faults += [
                f"{database.name_of(info)} {v.status} {v.call}: {v.note}" for v in verdicts if v.status in STRICT
            ]
    assert not faults, "\n".join(faults)


@pytest.mark.long
def test_the_index_of_families_is_what_they_register(tmp_path: Path) -> None:
    file = tmp_path / "families.json"
    subprocess.run([sys.executable, "-m", "tools.aten_families", str(file)], check=True)
    assert families.FAMILIES.read_text(encoding="utf-8") == file.read_text(encoding="utf-8"), "run `make families`"


def test_every_entry_is_found_by_its_name() -> None:
    for is_complex, entries in ((False, TABLE.entries), (True, TABLE.complex_entries)):
        kind = "complex" if is_complex else "real"
        known = {name for kinds in families.read_families().values() for name in kinds.get(kind, ())}
        assert {str(overload) for overload in entries if overload.namespace == "aten"} <= known


@pytest.mark.long
def test_a_lookup_imports_the_family_alone_and_before_a_user_adds_to_it() -> None:
    code = (
        "import sys, torch, fx2onnx\n"
        "from fx2onnx.aten_map import TABLE\n"
        "before = {name for name in sys.modules if name.startswith('fx2onnx.aten_map.')}\n"
        "assert TABLE.find(torch.ops.aten.bucketize.Tensor, 20) is not None\n"
        "print(sorted({name for name in sys.modules if name.startswith('fx2onnx.aten_map.')} - before))\n"
        "try:\n"
        "    fx2onnx.translates(torch.ops.aten.cummax.default)(lambda op, self, dim: None)\n"
        "except fx2onnx.UserError as error:\n"
        "    print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded, code_of_error = done.stdout.splitlines()
    assert "fx2onnx.aten_map.sorting" in loaded
    assert "fx2onnx.aten_map.convolution" not in loaded
    assert code_of_error == "E001"


def test_a_measurement_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    file, seen = tmp_path / "kept.jsonl", []

    def measure(name: str) -> int:
        if name == "c" and len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(name)
        return len(name)

    with pytest.raises(KeyboardInterrupt):
        measuring.kept("abc", file, measure)
    file.write_text(file.read_text() + '["c", 1')
    seen.append("interrupted")
    assert measuring.kept("abc", file, measure) == {"a": 1, "b": 1, "c": 1}
    assert seen == ["a", "b", "interrupted", "c"]
    assert measuring.kept("abc", file, measure) == {"a": 1, "b": 1, "c": 1}
    assert len(file.read_text().splitlines()) == len(seen) - 1
