"""Faults of engines that a file meets: those that would end the process are not tried, others are named where a row is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx.inliner import inline_local_functions

from fx2onnx.irx.inference import without_maps
from fx2onnx.irx.names import source_of
from fx2onnx.targets import faults
from fx2onnx.targets.form import Target, find

if TYPE_CHECKING:
    from fx2onnx.judge.verdict import Verdict


class KnownFaults:
    """The known faults of each engine that one file meets."""

    def __init__(self, proto: onnx.ModelProto, engines: Sequence[str]) -> None:
        self.by_engine = {engine: _met(proto, engine) for engine in engines}

    def survived(self, note: Callable[[str], object]) -> list[str]:
        """The engines that the file does not end; ``note`` is called with a sentence on each that is left out."""
        kept = []
        for engine, found in self.by_engine.items():
            fatal = next((text for fault, text in found if fault.ends_process), "")
            if fatal:
                note(f"{engine} is left out: {fatal}")
            else:
                kept.append(engine)
        return kept

    def explain(self, verdict: Verdict) -> None:
        """Name the faults of engines that have a wrong row."""
        wrong = {row.engine for row in verdict.rows if not row.ok}
        for engine, found in self.by_engine.items():
            for _, text in found if engine in wrong else ():
                verdict.note(f"a known fault of {engine}: {text}")


def _met(proto: onnx.ModelProto, engine: str) -> list[tuple[faults.Fault, str]]:
    """The faults of the engine that nodes of the file meet, with the node's name and line."""
    target = _target(engine)
    if target is None or not faults.may_meet(proto, target):
        return []
    model = ir.from_proto(without_maps(inline_local_functions(proto) if proto.functions else proto))
    return [
        (fault, f"{fault.what}   ({node.name or node.op_type}{_where(node)})")
        for fault, node in faults.met(model, target)
    ]


def _where(node: ir.Node) -> str:
    source = source_of(node.metadata_props)
    return f", {source}" if source else ""


def _target(engine: str) -> Target | None:
    """The release that is installed, where the engine has known faults."""
    if engine not in faults.runtimes():
        return None
    try:
        return find(f"{engine}-{version(engine)}")
    except PackageNotFoundError:
        return find(engine)


def knowing(opset: int | None, engines: Sequence[str], note: Callable[[str], object]) -> list[str]:
    """The engines that open files of ``opset``; ``note`` is called with a sentence on each that is older."""
    kept = []
    for engine in engines:
        target = _target(engine)
        if opset is None or target is None or target.opset is None or opset <= target.opset:
            kept.append(engine)
        else:
            note(f"not compared in {target.name}, which knows opset {target.opset} at most")
    return kept
