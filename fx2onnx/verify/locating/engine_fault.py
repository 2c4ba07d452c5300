"""What an engine computes wrongly, as an entry of its target's table of faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import onnx_ir as ir

from fx2onnx.base.errors import first_line
from fx2onnx.irx.origin import source_of
from fx2onnx.judge.engines import Array
from fx2onnx.targets import faults
from fx2onnx.targets.fault_entries import FaultEntry, entry_of
from fx2onnx.targets.find import find, names
from fx2onnx.verify.locating.blame import AGREES, LACKS
from fx2onnx.verify.locating.difference import difference
from fx2onnx.verify.locating.first_wrong import FirstWrong
from fx2onnx.verify.locating.onnx_file import OnnxFile, reads_of
from fx2onnx.verify.locating.side_by_side import run_cut
from fx2onnx.verify.testcase import Case

OWN = "runner"
"""Of the bundled runner a fault is one of this package, for nobody's table."""
MOST_NODES = 12
"""Of one entry."""


def release_of(engine: str) -> str:
    """The version that is installed; empty for what comes without a package of its name."""
    try:
        return version(engine)
    except PackageNotFoundError:
        return ""


def with_entries(found: FirstWrong) -> FirstWrong:
    """With what is known of the engine that is at fault, or with entries for its target's table."""
    if found.stage != "engine" or found.case is None:
        return found
    right = [engine for engine, text in found.engines.items() if text == AGREES]
    wrong = [engine for engine, text in found.engines.items() if text not in (AGREES, LACKS)]
    known = known_faults(found.case, wrong)
    entries = () if known else tuple(new_entries(found.case, wrong, right))
    return replace(found, why="; ".join([found.why, *known]), faults=entries)


def known_faults(case: Case, engines: Sequence[str]) -> list[str]:
    """What is known of the engines' faults at the nodes of a case."""
    found: dict[str, None] = {}
    for engine in engines:
        target = find(f"{engine}-{release_of(engine)}") if engine in faults.runtimes() and release_of(engine) else None
        for fault, _ in faults.met(case.model, target) if target is not None else ():
            found[f"a known fault of {engine}: {fault.what}"] = None
    return list(found)


def new_entries(case: Case, wrong: Sequence[str], right: Sequence[str]) -> Iterator[FaultEntry]:
    """Of each wrong engine that is a target: the node that it computes otherwise than one that is right, or all the nodes
    together where it does only that wrongly.
    """
    for engine in wrong:
        if engine == OWN or engine not in names() or not release_of(engine) or not right:
            continue
        found = _wrong_alone(case, engine, right[0]) or _wrong_together(case, engine)
        if found is not None:
            node, what = found
            yield entry_of(node, engine, release_of(engine), what)


def _wrong_alone(case: Case, engine: str, right: str) -> tuple[ir.Node, str] | None:
    """The first node that is wrong on what the right engine gives for those before it."""
    file = OnnxFile.of_model(case.model)
    nodes = list(range(len(file.nodes)))
    made = [name for node in file.nodes for name in node.output if name]
    try:
        values: Mapping[str, Array] = {
            **case.feeds,
            **run_cut(file, file.cut(nodes, case.feeds, made), case.feeds, right),
        }
    except Exception:  # an engine that does not give all that lies between
        return None
    for index in nodes:
        outputs = [name for name in file.nodes[index].output if name]
        given = {name: values[name] for name in reads_of(file.nodes[index]) if name in values}
        try:
            results = run_cut(file, file.cut([index], given, outputs), given, engine)
        except Exception as cause:  # each engine has classes of its own
            return _of_case(case, outputs[0]), f"it fails: {first_line(cause)[:200]}"
        for name in outputs:
            found = difference(results[name], values[name])
            if found.is_wrong:
                return _of_case(case, name), _said(case, name, found.describe())
    return None


def _wrong_together(case: Case, engine: str) -> tuple[ir.Node, str] | None:
    if len(case.model.graph) > MOST_NODES:
        return None
    file = OnnxFile.of_model(case.model)
    name = next(iter(case.outputs))
    try:
        results = run_cut(file, file.cut(range(len(file.nodes)), case.feeds, [name]), case.feeds, engine)
    except Exception as cause:  # each engine has classes of its own
        return _of_case(case, name), f"it fails: {first_line(cause)[:200]}"
    found = difference(results[name], case.outputs[name])
    return (_of_case(case, name), _said(case, name, found.describe())) if found.is_wrong else None


def _of_case(case: Case, name: str) -> ir.Node:
    return next(node for node in case.model.graph for value in node.outputs if value.name == name)


def _said(case: Case, name: str, text: str) -> str:
    source = source_of(_of_case(case, name).metadata_props)
    return f"{text}, as seen at {source}" if source else text
