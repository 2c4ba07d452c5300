"""The first wrong node, and how far its value is from the one that PyTorch has."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fx2onnx.base.escape import Shown
from fx2onnx.base.source import SourceLocation
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.judge.engines import Array
from fx2onnx.judge.movements import settled
from fx2onnx.judge.tolerance import MODULES_OWN, Exact, Grain, is_exact
from fx2onnx.targets.fault_entries import FaultEntry
from fx2onnx.verify.testcase import Case, write_case

DECADES = range(-9, 2)
"""The histogram's powers of ten; what is less or more is in the first or the last."""


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """One value of the file beside PyTorch's.

    ``max_abs_error`` and ``allowed`` are absolute. ``counts`` has, for each of ``DECADES``, how many numbers are off by so
    much of the scale. ``problem`` says what is wrong beyond numbers, such as a dtype or a shape.
    """

    max_abs_error: float
    allowed: float
    differing: int
    size: int
    counts: tuple[int, ...] = ()
    problem: str = ""

    @property
    def is_wrong(self) -> bool:
        return bool(self.problem) or not self.max_abs_error <= self.allowed

    def describe(self) -> str:
        """One line."""
        if self.problem:
            return self.problem
        return (
            f"{self.differing} of {self.size} numbers differ, the largest error is {self.max_abs_error:.3g}, "
            f"allowed {self.allowed:.3g}"
        )

    def histogram(self) -> list[str]:
        """A line for each power of ten in which there are errors."""
        most = max(self.counts, default=0)
        return [
            f"{'<' if decade == DECADES[0] else ''}1e{decade:+03d} {'#' * max(1, round(24 * count / most)):<24} {count}"
            for decade, count in zip(DECADES, self.counts, strict=False)
            if count
        ]


def difference(got: Any, want: Array, exact: Exact | None = None, grain: Grain = MODULES_OWN) -> NodeDifference:
    """``got`` beside PyTorch's ``want``, by the rules of a verification, with float64 as the only other run of PyTorch. ``exact``
    is asked only where it decides; without it PyTorch is taken for exact, and there is no histogram.
    """
    got = np.asarray(got)
    found = settled(got, want, exact, grain=grain, reference="PyTorch")
    if got.shape != want.shape or got.dtype.itemsize != want.dtype.itemsize:
        return NodeDifference(float("inf"), 0.0, want.size, want.size, problem=found.problem)
    off = _off(got, want)
    differing = int(np.count_nonzero(off))
    problem = "" if found.ok or is_exact(want) else found.problem
    counts = () if found.ok or problem or is_exact(want) or exact is None else _counts(got, want, off, found.scale)
    return NodeDifference(found.error, found.allowed, differing, want.size, counts, problem)


def _off(got: Array, want: Array) -> Array:
    """A mask of the numbers that differ, NaNs being equal."""
    off: Array = got != want
    return off if is_exact(want) else off & ~(np.isnan(got) & np.isnan(want))


def _counts(got: Array, want: Array, off: Array, scale: float) -> tuple[int, ...]:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(got[off].astype(np.float64) - want[off].astype(np.float64))
        decade = np.floor(np.log10(error / (scale or 1.0)))
    places = np.clip(np.nan_to_num(decade, neginf=DECADES[0]), DECADES[0], DECADES[-1]).astype(int) - DECADES[0]
    return tuple(np.bincount(places, minlength=len(DECADES)).tolist())


class Once:
    """A list that is computed when it is first asked for, or None where it cannot be."""

    def __init__(self, compute: Any) -> None:
        self._compute = compute
        self._values: list[Any] | None = None
        self._is_done = False

    def at(self, index: int) -> Any:
        if not self._is_done:
            self._values, self._is_done = self._compute(), True
        return None if self._values is None or index >= len(self._values) else self._values[index]


STAGES = {
    "capture": "the captured ATen graph differs from eager PyTorch",
    "translation": "the ONNX nodes differ from the ATen call that they stand for",
    "rewrite": "the optimizer changed what the nodes compute",
    "precision": "16 bits are not enough for what the nodes compute",
    "file": "the nodes are not those that an export of this module writes",
    "weights": "the nodes are right, the weights of the file are not those of the module",
    "engine": "the nodes are right, an engine computes them wrongly",
    "ties": "PyTorch leaves open which of equal numbers is taken, and the file takes others",
    "rounding": "every node is right by itself; what rounding changes adds up",
}
"""Each stage, and what is wrong in it."""

MOST_NODES = 12
"""Nodes that ``describe`` lists."""


@public_methods
@dataclass(frozen=True, repr=False)
class FirstWrong(Shown):
    """The first value of a file that differs from PyTorch's, and what makes it.

    ``stage`` is a key of ``STAGES``. ``nodes`` are names in the file, the likeliest first; of a fault in capture, those of
    the ATen graph. ``where`` and ``module_path`` are the user's, ``aten`` has the ATen calls. ``blame`` says which code
    (``file:line``), rewrite or engine is at fault, ``why`` how that was found. ``on`` names the inputs where these are not
    the given ones.
    """

    stage: str
    nodes: tuple[str, ...]
    value: str
    where: SourceLocation | None
    module_path: str
    aten: tuple[str, ...]
    difference: NodeDifference
    blame: str
    why: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    op_types: tuple[str, ...] = ()
    engines: dict[str, str] = field(default_factory=dict)
    """The result of each engine for the nodes, fed with PyTorch's values."""
    case: Case | None = field(default=None, repr=False, compare=False)
    """The nodes with PyTorch's values, to be run anywhere."""
    on: str = ""
    faults: tuple[FaultEntry, ...] = ()
    """The entries for the table of the target whose engine is at fault."""

    def describe(self) -> str:
        """All of it as text, in the form of an error."""
        lines = [f"first wrong: {self._heading()} ({self.stage}: {STAGES[self.stage]})"]
        if self.where is not None:
            lines += ["", *self.where.excerpt(self.module_path)]
        type_text = f"{self.dtype}{list(self.shape)}" if self.dtype else ""
        rows = [
            ("value", " ".join(filter(None, (self.value, type_text)))),
            ("aten", _joined(self.aten)),
            ("nodes", _joined([f"{name} ({kind})" if kind else name for name, kind in self._named()])),
            ("on", self.on),
            ("error", self.difference.describe()),
            *(("", line) for line in self.difference.histogram()),
            *((name, text) for name, text in self.engines.items()),
            ("blame", self.blame),
            ("why", self.why),
            *((f"fault of {each.runtime}", json.dumps(each.as_dict())) for each in self.faults),
            ("next", self._next()),
        ]
        width = max(len(label) for label, text in rows if text)
        lines += ["", *(f"  {label:<{width}} {text}" for label, text in rows if text)]
        return "\n".join(lines)

    def _shown(self) -> dict[str, Any]:
        where = "" if self.where is None else str(self.where)
        return {"stage": self.stage, "node": self._heading(), "value": self.value, "line": where, "blame": self.blame}

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, without the case."""
        fields = {
            name: getattr(self, name)
            for name in ("stage", "value", "module_path", "blame", "why", "dtype", "engines", "on")
        }
        fields |= {name: list(getattr(self, name)) for name in ("nodes", "op_types", "aten", "shape")}
        fields["where"] = None if self.where is None else self.where.as_dict()
        fields["faults"] = [each.as_dict() for each in self.faults]
        return fields | {"difference": asdict(self.difference)}

    def write_case(self, folder: str | os.PathLike[str], *, weights: str = "full") -> None:
        """ONNX's test directory of the nodes alone, with PyTorch's values, and a script that runs it (``write_case``)."""
        if self.case is not None:
            write_case(folder, self.case, weights=weights, heading=self.describe())

    def _heading(self) -> str:
        return self.nodes[0] if self.nodes else self.value

    def _named(self) -> list[tuple[str, str]]:
        return list(zip(self.nodes, [*self.op_types, *[""] * len(self.nodes)], strict=False))

    def _next(self) -> str:
        if self.stage == "rounding":
            return "compare with a float64 run: eager PyTorch may be as far from it as the file"
        if self.stage == "precision":
            return f"keep them in float32: fx2onnx.Precision(..., keep=[{self._heading()!r}]), --keep"
        ties = "give sort stable=True, or the scores of topk numbers that differ, where it matters which is taken"
        if self.stage == "ties":
            return ties
        if self.stage == "weights":
            return "export the module again, or give it the weights that it had"
        if self.stage == "file":
            return "export the module again"
        if {"TopK", "ArgMax", "ArgMin"} & {*self.op_types} and self.dtype == "int64":
            return f"where equal values are ordered otherwise: {ties}"
        return (
            ""
            if self.case is None
            else "first_wrong.write_case(FOLDER), or fx2onnx locate --case FOLDER, writes the nodes as a test case that runs alone"
        )


def _joined(items: Sequence[str]) -> str:
    shown = ", ".join(items[:MOST_NODES])
    return f"{shown} and {len(items) - MOST_NODES} more" if len(items) > MOST_NODES else shown
