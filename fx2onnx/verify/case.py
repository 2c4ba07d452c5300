"""The engines on a file and the module beside it: what a verification compares, how long its runs may take, and which refusals are no wrong results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import onnx
import torch

from fx2onnx.base.metadata import CHECK, VERSION
from fx2onnx.judge.engines import ENGINES, PRECISE_OPTION, Array, Run, lacks_operator, open_onnxruntime
from fx2onnx.judge.memory import is_exhausted
from fx2onnx.judge.verdict import NO_KERNELS, Row, Verdict
from fx2onnx.verify.eager import Eager
from fx2onnx.verify.float_values import BY_ANY_ENGINE
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.locating.program import OnnxFile
from fx2onnx.verify.locating.side_by_side import run_cut
from fx2onnx.verify.module_state import NothingToCompare, has_codes, in_float32, with_own_zero_points
from fx2onnx.verify.noise import RandomNodes
from fx2onnx.verify.samples import TriedSample
from fx2onnx.verify.work import WorkBudget

_LONGEST = 20.0
"""Seconds that a run on other inputs than the example inputs may take, or 40 times what it takes on the example inputs
where that is more."""
_LONGEST_ON_SAMPLE = 600.0
"""Seconds that a run of an engine on the example inputs may take, or 200 times what eager PyTorch takes."""
MOST_TIMEOUTS = 2


@dataclass(slots=True)
class Trial:
    """The case of a comparison: the two sides, the samples, and the work that it may cost."""

    eager: Eager
    path: str
    names: Sequence[str | None]
    """The input of the file for each argument."""
    file: Interface
    runs: dict[str, Run]
    random: RandomNodes | None
    seconds: dict[str, float] = field(default_factory=dict)
    """The processor time of a run on the example inputs, for eager PyTorch and each engine. Only ``longest`` depends on
    it."""
    budget: WorkBudget = field(default_factory=WorkBudget)
    """The budget of all runs, and what they have cost."""
    finite: list[bool] = field(default_factory=list)
    """For each output on the example inputs, True if all its numbers are finite."""
    says_nothing: frozenset[str] = frozenset()
    """Kinds of floats that are not tried."""
    random_outputs: set[int] = field(default_factory=set)
    """The outputs that depend on random numbers which cannot be fed, on inputs so far."""
    turns: int = 0
    """Turns of the loops on the example inputs."""
    timeouts: int = 0
    """Runs of eager PyTorch that were ended."""
    refuses_sizes: bool = False
    """True if eager PyTorch fails at other sizes."""

    def longest(self, name: str, *, on_sample: bool) -> float:
        """Seconds after which a run of eager PyTorch or an engine is ended."""
        if on_sample:
            return max(_LONGEST_ON_SAMPLE, 200 * self.seconds.get("eager", 0.0))
        return max(_LONGEST, 40 * self.seconds.get(name, 0.0))


PRECISE_NOTE = (
    f"onnxruntime was opened with {PRECISE_OPTION[0]}={PRECISE_OPTION[1]}: without, its int8 kernels add pairs of products in "
    "16 bits on CPUs without VNNI, and may overflow"
)
"""A note of the verdict."""

NOT_PRECISE_NOTE = (
    "onnxruntime cannot run this file with exact sums of int8 products: on CPUs without VNNI they may overflow, and differ by that "
    "(docs/quantization.md)"
)
"""A note of a verdict that something differs, where that option fails."""


def opened(
    path: str, proto: onnx.ModelProto, names: Sequence[str], verdict: Verdict, *, must_open: bool
) -> dict[str, Run]:
    """The engines that open the file; of the others a row, or a note where only a kernel is missing.

    Raises: NothingToCompare where no engine opens the file for lack of a kernel or of memory.
    """
    exact = in_float32(proto, verdict.note)
    runs: dict[str, Run] = {}
    lacking: dict[str, str] = {}
    for name in names:
        try:
            precise = _precise(path, proto, exact, verdict) if name == "onnxruntime" else None
            if precise is not None:
                runs[name] = precise
            elif exact is not None and name == "onnxruntime":
                runs[name] = open_onnxruntime(exact, os.path.dirname(path))
            else:
                runs[name] = ENGINES[name](path)
        except Exception as cause:  # each engine has classes of its own
            problem = f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0][:300]}"
            if is_exhausted(cause):
                verdict.ran_out(f"all inputs: {name} runs out of memory ({problem})")
            elif lacks_operator(cause):
                lacking[name] = problem
            else:
                verdict.rows.append(Row.failed(name, "(all)", "no inputs", problem))
    if not runs and not verdict.is_wrong and (lacking or verdict.unverified):
        problems = "; ".join(f"{name}: {problem}" for name, problem in lacking.items())
        raise NothingToCompare(f"{NO_KERNELS} ({problems})" if lacking else verdict.unverified)
    for name, problem in lacking.items():
        if must_open:
            verdict.rows.append(Row.failed(name, "(all)", "no inputs", problem))
        else:
            verdict.notes.append(f"{name} cannot run the model ({problem})")
    return runs


def _precise(path: str, proto: onnx.ModelProto, exact: bytes | None, verdict: Verdict) -> Run | None:
    """onnxruntime with kernels that do not overflow, of a file with codes; None where it does not open the file so."""
    if not has_codes(proto):
        return None
    try:
        own = with_own_zero_points(proto) if exact is None else exact
        run = open_onnxruntime(
            path if own is None else own, "" if own is None else os.path.dirname(path), is_precise=True
        )
    except Exception:  # of any kind; what is wrong with the file shows without the option, too
        return None
    without = cache(lambda: ENGINES["onnxruntime"](path))

    def precise(feeds: dict[str, Array]) -> list[Any]:
        try:
            outputs = run(feeds)
        except Exception:  # of any kind; the same without the option says whose fault it is
            verdict.note(NOT_PRECISE_NOTE)
            return without()(feeds)
        verdict.note(PRECISE_NOTE)
        return outputs

    return precise


def versions_of(runs: Mapping[str, Run]) -> dict[str, str]:
    """The versions of PyTorch, of this package and of the engines."""
    found = {"torch": torch.__version__, "runner": VERSION}
    for name in runs:
        with contextlib.suppress(PackageNotFoundError):
            found.setdefault(name, version(name))
    return found


_PASSES_ON = ("Reshape", "Unsqueeze", "Where")
"""Operators between a comparison and the check that reads it."""


def refused(sample: TriedSample, path: str, failure: str, feeds: Mapping[str, Array]) -> str:
    """A phrase for what was refused; empty where the failure is a fault."""
    if sample.is_empty:
        return "what is empty"
    if sample.values in BY_ANY_ENGINE:
        return "such numbers"
    check = _stopped_at_one(path, failure, feeds) if sample.sizes else ""
    return check and f"a size of 1, which eager PyTorch broadcasts, by its condition '{check}'"


def _stopped_at_one(path: str, failure: str, feeds: Mapping[str, Array]) -> str:
    """The name of the check of ``path`` that the engine's message ``failure`` names, where it asks two sizes to be equal and one of
    them is 1 on these inputs; empty where another thing failed.
    """
    file = OnnxFile.read(path)
    failed = [node for node in file.nodes if _is_check(node) and node.name in failure]
    check = max(failed, key=lambda node: len(node.name), default=None)
    compared = [] if check is None else _compared(file, check)
    made = [name for name in compared if name in file.producer]
    if check is None or not made:
        return ""
    cut = file.cut(file.segment(made, feeds), feeds, made)
    try:
        sizes = run_cut(file, cut, feeds, "runner")
    except Exception:  # of any kind: what leads to the check failed itself
        return ""
    sizes |= {name: file.weight(name) for name in compared if file.is_weight(name)}
    numbers = [int(size.reshape(-1)[0]) for size in sizes.values()]
    return check.name if 1 in numbers else ""


def _is_check(node: onnx.NodeProto) -> bool:
    return any(each.key == CHECK for each in node.metadata_props)


def _compared(file: OnnxFile, check: onnx.NodeProto) -> list[str]:
    """The two values that a check takes for equal; none where it asks for another thing."""
    name = check.input[1]
    while name in file.producer:
        node = file.nodes[file.producer[name]]
        if node.op_type == "Equal":
            return list(node.input)
        if node.op_type not in _PASSES_ON:
            break
        name = node.input[0]
    return []
