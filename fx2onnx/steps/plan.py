"""What is wanted of a file: the arguments of ``optimize_model``, and what was found out to be left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import Quantize
from fx2onnx.steps.coarser import Drawn
from fx2onnx.steps.list import Wanted
from fx2onnx.steps.opened import Opened
from fx2onnx.targets.find import DEFAULT, chosen_opset, find
from fx2onnx.targets.form import Target


@dataclass
class Plan:
    """What is wanted, and what was found out to be left out."""

    level: int
    opset: int | None
    fix: dict[str, int]
    dynamic: dict[str, str]
    external_data: bool | None
    external_bytes: int
    explain: bool
    check: bool
    target: Target | None = None
    quantize: Quantize | None = None
    precision: Precision | None = None
    without: set[str] = field(default_factory=set)
    growth_bytes: int | None = None
    stores_inside: bool = True
    keeps_metadata: bool = True
    properties: Mapping[str, str] | None = None
    """The user's own entries in the metadata of the file."""
    keeps_types: bool = True

    @property
    def smaller(self) -> Plan | None:
        """What asks for less where the file would grow: first without types between nodes, then without copies of constants in
        bodies, then without folded constants; None where nothing is left.
        """
        if self.keeps_types:
            return dataclasses.replace(self, keeps_types=False)
        if self.stores_inside:
            return dataclasses.replace(self, stores_inside=False)
        return dataclasses.replace(self, growth_bytes=0) if self.growth_bytes is None else None

    def wanted(self, drawn: Drawn) -> Wanted:
        """What is wanted of the rewritten graph."""
        usual, is_asked = self.target or find(DEFAULT), self.target is not None
        fitted_to = usual if is_asked or self.precision is not None else None
        return Wanted(drawn, usual, fitted_to, is_asked, is_asked, self.quantize, self.precision)


def opset_for(opened: Opened, asked: int | None, target: Target | None, quantize: Quantize | None) -> int | None:
    """The opset to convert to; None where the target takes the file's, and has the operators that codes need."""
    own = next((each.version for each in opened.proto.opset_import if each.domain in ("", "ai.onnx")), 0)
    chosen = asked
    if target is not None:
        fitting = chosen_opset(target.name, asked, own)
        chosen = fitting if asked is not None or fitting != own else None
    return quantize.least_opset if quantize is not None and chosen is None and own < quantize.least_opset else chosen
