"""What docs/measured/operators.md says, measured: PyTorch's operator database in every usual dtype, at other opsets, and the ONNX
form of every overload at every opset. Each result is kept as it comes, so that an interrupted sweep goes on where it stopped.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx2onnx.aten_map import TABLE
from fx2onnx.base.errors import UserError
from fx2onnx.base.opsets import OPSET_MAX, OPSET_MIN
from tests.ops.database import ENGINES, calls_of, name_of, op_infos, sweep_engines
from tests.ops.harness import Call, Verdict, build, call_of
from tests.ops.judge import Case

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool,
)  # fmt: skip
SAMPLES = 5
OTHER_OPSETS = (11, 13, 17, 23, 26)
CALLS_AN_OVERLOAD = 3
OPSETS = Path(__file__).parents[2] / "tools" / "measured_opsets.json"
Swept = dict[str, dict[str, dict[str, list[Verdict]]]]
"""Verdicts by OpInfo entry, engine and dtype."""


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes_of(info: Any) -> list[torch.dtype]:
    """The usual dtypes that the entry takes; complex64 where it takes none of them."""
    taken = [dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")]
    return taken or [torch.complex64]


def kept(names: Iterable[str], file: Path, measure: Callable[[str], Any]) -> dict[str, Any]:
    """Return the JSON that ``measure`` gives for each name. ``file`` gets a line for each as soon as it is measured, and a later run
    goes on from there.
    """
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found: dict[str, Any] = dict(json.loads(line) for line in lines if line.endswith("]"))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        for name, value in found.items():  # without a last line that was cut off
            out.write(json.dumps([name, value]) + "\n")
        for name in names:
            if name not in found:
                found[name] = measure(name)
                out.write(json.dumps([name, found[name]]) + "\n")
                out.flush()
                print(file.stem, name, file=sys.stderr, flush=True)
    return found


def swept(patterns: Sequence[str], file: Path, judge: Callable[[Any], dict[str, dict[str, list[Verdict]]]]) -> Swept:
    """The verdicts that ``judge`` gives of every entry of the database."""
    infos = {name_of(info): info for info in op_infos(patterns)}

    def plain(name: str) -> Any:
        return pytree.tree_map(lambda v: asdict(v) | {"op_types": []}, judge(infos[name]))

    return {
        name: {
            engine: {key: [Verdict(**verdict) for verdict in verdicts] for key, verdicts in by_key.items()}
            for engine, by_key in by_engine.items()
        }
        for name, by_engine in kept(infos, file, plain).items()
        if name in infos
    }


def judge_dtypes(info: Any) -> dict[str, dict[str, list[Verdict]]]:
    """Verdicts of an entry in every dtype, by engine and dtype."""
    return _by_engine({short(dtype): sweep_engines(info, dtype, ENGINES, SAMPLES) for dtype in dtypes_of(info)})


def judge_opsets(info: Any) -> dict[str, dict[str, list[Verdict]]]:
    """Verdicts of one sample in float32 (or the first dtype that the entry takes) at each of the other opsets."""
    dtype = dtypes_of(info)[0]
    return _by_engine({str(opset): sweep_engines(info, dtype, ENGINES, 1, opset) for opset in OTHER_OPSETS})


def _by_engine(found: dict[str, dict[str, list[Verdict]]]) -> dict[str, dict[str, list[Verdict]]]:
    return {engine: {key: verdicts[engine] for key, verdicts in found.items()} for engine in ENGINES}


def listed_cases() -> Iterator[Case]:
    """The cases that the test files of this folder list."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.ops.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, list) and value and isinstance(value[0], Case):
                yield from value


def calls_by_overload(patterns: Sequence[str] = ("*",)) -> dict[torch._ops.OpOverload, list[Call]]:
    """Every call of the test lists, and up to three different calls of each overload that the database makes."""
    found: dict[torch._ops.OpOverload, dict[str, Call]] = {}
    for case in listed_cases():
        if case.overload in TABLE:
            found.setdefault(case.overload, {}).setdefault(str(case), call_of(case.overload, *case.args, **case.kwargs))
    for info in op_infos(patterns):
        for dtype in dtypes_of(info)[:1]:
            try:
                calls = list(calls_of(info, dtype, 3))
            except Exception:  # eager PyTorch itself fails on some samples of its own
                continue
            for call in calls:
                known = found.setdefault(call.overload, {})
                if call.overload in TABLE and len(known) < CALLS_AN_OVERLOAD:
                    known.setdefault(call.describe(), call)
    return {
        overload: wide
        for overload, calls in found.items()
        if (wide := [call for call in calls.values() if not _has_bfloat16(call)])
    }


def _has_bfloat16(call: Call) -> bool:
    """bfloat16 needs opset 13 in whatever overload: it says nothing of this one."""
    leaves = pytree.tree_leaves((call.args, call.kwargs, call.outputs))
    return torch.bfloat16 in [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _is_complex(call: Call) -> bool:
    leaves = pytree.tree_leaves((call.args, call.kwargs, call.outputs))
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves)


def nodes_at(call: Call, opset: int) -> list[str] | None:
    """The operators of the call's model, or None where it is refused at this opset."""
    try:
        return build(call, opset).op_types
    except UserError:
        return None


def lowest_opsets(calls: Sequence[Call]) -> tuple[int, int] | None:
    """(the lowest opset that expresses some call, the lowest that expresses as many as any does); None for none."""
    counts = dict.fromkeys(range(OPSET_MIN, OPSET_MAX + 1), 0)
    for call in calls:
        first = next((opset for opset in counts if nodes_at(call, opset) is not None), None)
        for opset in counts:
            counts[opset] += first is not None and opset >= first
    if not any(counts.values()):
        return None
    some = next(opset for opset, count in counts.items() if count)
    return some, next(opset for opset, count in counts.items() if count == max(counts.values()))


def forms(call: Call) -> Iterator[tuple[int, int, list[str]]]:
    """(first opset, last opset, operators) of each form that the call takes."""
    start, current = OPSET_MIN, None
    for opset in range(OPSET_MIN, OPSET_MAX + 1):
        nodes = nodes_at(call, opset)
        if nodes != current:
            if current is not None:
                yield start, opset - 1, current
            start, current = opset, nodes
    if current is not None:
        yield start, OPSET_MAX, current


def measure_forms(
    patterns: Sequence[str], folder: Path
) -> tuple[dict[str, list[int]], dict[str, list[tuple[int, int, list[str]]]]]:
    """Lowest opsets, and the forms of the first call that is expressed, by overload."""
    by_name = {str(overload): calls for overload, calls in calls_by_overload(patterns).items()}

    def measure(name: str) -> Any:
        found = lowest_opsets(by_name[name])
        if found is None:
            return None
        by_kind = sorted(by_name[name], key=_is_complex)
        return found, list(forms(next(call for call in by_kind if nodes_at(call, OPSET_MAX) is not None)))

    measured = kept(by_name, folder / "forms.jsonl", measure)
    found = {name: measured[name] for name in sorted(by_name) if measured[name] is not None}
    return {name: lowest for name, (lowest, _) in found.items()}, {name: shapes for name, (_, shapes) in found.items()}


def write_lowest(lowest: dict[str, list[int]], file: Path = OPSETS) -> None:
    """The data that ``fx2onnx ops --opset`` reads: one overload a line."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(opsets)}" for name, opsets in lowest.items())
    file.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
