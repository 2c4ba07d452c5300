"""What was found: the first wrong node, and who is to blame."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fx2onnx.base.source import SourceLocation
from fx2onnx.targets.fault_entries import FaultEntry
from fx2onnx.verify.locating.difference import Difference
from fx2onnx.verify.testcase import Case, write_case

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


@dataclass(frozen=True)
class FirstWrong:
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
    difference: Difference
    blame: str
    why: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    op_types: tuple[str, ...] = ()
    engines: dict[str, str] = field(default_factory=dict)
    """What each engine gives for the nodes, fed with PyTorch's values."""
    case: Case | None = field(default=None, repr=False, compare=False)
    """The nodes with PyTorch's values, to be run anywhere."""
    on: str = ""
    faults: tuple[FaultEntry, ...] = ()
    """Of an engine that is at fault: what to put into its target's table."""

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
        if self.stage == "ties":
            return "give sort stable=True, or the scores of topk numbers that differ, where it matters which is taken"
        if self.stage == "weights":
            return "export the module again, or give it the weights that it had"
        if self.stage == "file":
            return "export the module again"
        return (
            ""
            if self.case is None
            else "first_wrong.write_case(FOLDER), or fx2onnx locate --case FOLDER, writes the nodes as a test case that runs alone"
        )


def _joined(items: Sequence[str]) -> str:
    shown = ", ".join(items[:MOST_NODES])
    return f"{shown} and {len(items) - MOST_NODES} more" if len(items) > MOST_NODES else shown
