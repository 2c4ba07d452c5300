"""The origin of a wrong value: an engine, a rewrite, a translation, or none: the weights are others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import first_line
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.base.source import place_of
from fx2onnx.irx.names import source_of
from fx2onnx.judge.arrays import close_problem
from fx2onnx.judge.constants import FOLDED_RTOL
from fx2onnx.judge.engines import Array, lacks_operator
from fx2onnx.optimize import pipelines
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.targets import faults
from fx2onnx.targets.fault_entries import FaultEntry, entry_of
from fx2onnx.targets.form import find, names
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.interface import as_file
from fx2onnx.verify.locating.first_wrong import FirstWrong, NodeDifference, difference
from fx2onnx.verify.locating.program import ModuleProgram, OnnxFile, reads_of
from fx2onnx.verify.locating.side_by_side import SideBySide, run_cut
from fx2onnx.verify.testcase import Case

AGREES, LACKS = "agrees with PyTorch", "lacks an operator"
"""The words for an engine that is right, and for one that lacks an operator."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A stage, the code that is at fault, and how that was found."""

    stage: str
    place: str
    why: str


def nobodys(side: SideBySide, agreeing: Sequence[str]) -> Blame:
    """The blame where every node is right by itself: PyTorch took other ones of equal numbers, the engine is wrong on
    the whole file (others are ``agreeing``), or rounding adds up.
    """
    if any(side.is_deviating(name) for name in side.other_choices):
        why = "each node is right by itself; these name places of other numbers than PyTorch does, which are exactly as large"
        return Blame("ties", "", why)
    if agreeing:
        why = f"its nodes are right by themselves, the whole file is not; {', '.join(agreeing)} agrees with PyTorch"
        return Blame("engine", side.engine, why)
    return Blame("rounding", "", "every node agrees with PyTorch where it is fed with PyTorch's values")


def judged_in(side: SideBySide, name: str, engine: str) -> NodeDifference | None:
    """The value with PyTorch's values fed, in any engine; None where the engine lacks an operator."""
    nodes, given = side.given(name)
    try:
        results = run_cut(side.file, side.file.cut(nodes, given, [name]), given, engine)
    except Exception as cause:  # each engine has classes of its own
        if lacks_operator(cause):
            return None
        return NodeDifference(float("inf"), 0.0, 0, 0, problem=f"fails: {first_line(cause)[:300]}")
    return side.judged(name, results[name], lambda: side.aten.exact(name))


def engine_blame(side: SideBySide, name: str, engines: Sequence[str]) -> tuple[dict[str, str], Blame | None]:
    """The output of every engine, and the blame where some are wrong and others agree with PyTorch."""
    found = {engine: judged_in(side, name, engine) for engine in engines}
    texts = {
        engine: LACKS if each is None else each.describe() if each.is_wrong else AGREES
        for engine, each in found.items()
    }
    wrong = [engine for engine, each in found.items() if each is not None and each.is_wrong]
    right = [engine for engine, each in found.items() if each is not None and not each.is_wrong]
    nodes, _ = side.given(name)
    if not wrong or not right or any(side.file.may_draw(index) for index in nodes):
        return texts, None
    places = [_engine_place(engine, side.file, nodes) for engine in wrong]
    why = f"{', '.join(wrong)} differs from PyTorch on the nodes alone, {', '.join(right)} agrees with it"
    return texts, Blame("engine", "; ".join(places), why)


def _engine_place(engine: str, file: OnnxFile, nodes: Sequence[int]) -> str:
    """The engine's version; of the runner, the kernels of the nodes."""
    if engine != "runner":
        import importlib.metadata

        package = "onnxruntime" if engine.startswith("onnxruntime") else "onnx"
        return f"{engine} ({package} {importlib.metadata.version(package)})"
    opsets = {each.domain: each.version for each in file.proto.opset_import}
    kernels = {}
    for index in nodes:
        node = file.nodes[index]
        kernel = find_kernel(node.domain, node.op_type, opsets.get(node.domain, 1))
        if kernel is not None:
            kernels[node.op_type] = place_of(kernel.fn)
    return "runner: " + ", ".join(f"{op_type} at {place}" for op_type, place in kernels.items())


def export_blame(side: SideBySide, name: str, program: ModuleProgram) -> Blame:
    """Return whether the translation is wrong, a rewrite, or only this file: the module is exported again without rewrites, and
    with as many as leave the value right.
    """
    plain, _ = program.at(0)
    is_wrong = _Question(side, name)
    node, _ = side.aten.mapped[name]
    entry = program.entry_place(node)
    if is_wrong.of(plain):
        return Blame("translation", f"{node.target} at {entry}", "the value is wrong before the first rewrite, too")
    if is_wrong.of(program.exported):
        return _rewrite_blame(program, is_wrong)
    if side.file.grain.epsilon and not _is_edited(side, name, OnnxFile.of_model(program.exported)):
        return Blame("precision", "", "an export that computes in float32 gives the right value")
    return _altered_blame(side, name, program, f"{node.target} at {entry}")


class _Question:
    """The question whether a value is wrong in another model of the same module, PyTorch's values being fed to what makes it."""

    def __init__(self, side: SideBySide, name: str) -> None:
        self.side = side
        self.name = name

    def of(self, model: ir.Model) -> bool:
        """A value that the model does not have is not wrong."""
        aten = self.side.aten
        arrays = {each.name: to_numpy(aten.inputs[each.node]) for each in aten.graph.captured.inputs}
        other = SideBySide(OnnxFile.of_model(model), self.side.engine, aten, {**arrays, **self.side.feeds})
        if self.name not in other.known:
            return False
        found = judged_in(other, self.name, self.side.engine)
        return found is not None and found.is_wrong


def _rewrite_blame(program: ModuleProgram, is_wrong: _Question) -> Blame:
    """The first pass, or the first edit of a rewrite, after which the value is wrong."""
    stages = pipelines.LEVELS[program.settings.level]
    for count, stage in enumerate(stages):
        model, outcome = program.at(list(stages[: count + 1]))
        if not is_wrong.of(model):
            continue
        if isinstance(stage, pipelines.Pass):
            return Blame(
                "rewrite",
                f"{stage.name} at {place_of(stage.function)}",
                f"the value is right before the pass {stage.name}",
            )
        names = {item.name for item in stage.rewrites}
        before = sum(number for name, number in outcome.edits.items() if name in names)
        low, high = 0, before
        while low + 1 < high:
            middle = (low + high) // 2
            model, _ = program.at(list(stages[: count + 1]), stop_after=middle)
            low, high = (low, middle) if is_wrong.of(model) else (middle, high)
        _, outcome = program.at(list(stages[: count + 1]), stop_after=high)
        last, node = outcome.last or ("", "")
        rewrite = next((item for item in stage.rewrites if item.name == last), None)
        place = "" if rewrite is None else f"{rewrite.name} at {place_of(rewrite.match)}"
        return Blame("rewrite", place, f"the value is right up to edit {high - 1}; edit {high} is {last} at {node}")
    return Blame("rewrite", "", "the value is right before the rewrites and wrong after them")


def _altered_blame(side: SideBySide, name: str, program: ModuleProgram, entry: str) -> Blame:
    """The file is another than an export makes: the module was changed since, another version wrote it, or it was edited. A
    mark of a rewrite decides.
    """
    nodes, _ = side.given(name)
    weights = _other_weights(side.file, nodes, OnnxFile.of_model(program.exported), program.captured.weights)
    if weights:
        why = "an export of the module as it is gives the right value: its weights were changed since, or those of the file"
        return Blame("weights", ", ".join(weights), why)
    marks = {each.value for index in nodes for each in side.file.nodes[index].metadata_props if each.key == "rewrite"}
    why = "a new export of the module gives the right value: the file was changed, or another version wrote it"
    if marks:
        return Blame("rewrite", ", ".join(sorted(marks)), why)
    if side.file.proto.producer_name != PRODUCER:
        return Blame("translation", entry, why)
    return Blame(
        "file",
        "the file",
        f"{why}. If you exported with custom_translations=, pass the ExportResult instead of the file",
    )


def as_captured(found: FirstWrong, exported: ir.Model, search: Callable[[str, OnnxFile], Any]) -> FirstWrong:
    """``found`` as a fault of capture where an export with the given inputs, ``exported``, has it as well: it was found on other
    inputs, whose own export is right.
    """
    with as_file(exported) as path:
        if search(path, OnnxFile.read(path)).run() is None:
            return found
    why = "an export with these inputs gives the right value, one with the given inputs does not: its graph holds at other sizes only"
    return replace(found, stage="capture", blame="the graph of the given inputs", why=why)


def _is_edited(side: SideBySide, name: str, again: OnnxFile) -> bool:
    """Return whether a node of a file in 16 bits computes something else than its counterpart in float32."""
    counterparts = {node.name: node for node in again.nodes if node.name}
    nodes = [side.file.nodes[index] for index in side.given(name)[0]]
    pairs = [(node, counterparts[node.name]) for node in nodes if node.name in counterparts]
    return any(node.op_type != "Cast" and not _is_same_kind(node, other) for node, other in pairs)


def _other_weights(file: OnnxFile, nodes: Sequence[int], again: OnnxFile, own: Collection[str]) -> list[str]:
    """The weights that the nodes read and whose numbers alone are others than in ``again``; none where anything else is.

    What an export makes of a weight that is called ``own`` has that name and a suffix.
    """
    counterparts = {node.name: node for node in again.nodes if node.name}
    found: list[str] = []
    for index in nodes:
        node = file.nodes[index]
        other = counterparts.get(node.name)
        if other is None or not _is_same_kind(node, other):
            return []
        for one, two in zip(node.input, other.input, strict=True):
            if not _is_other_input(file, one, again, two):
                continue
            is_own = one == two and any(one == name or one.startswith(f"{name}.") for name in own)
            if not is_own or file.weight(one).shape != again.weight(two).shape:
                return []
            found.append(one)
    return found


def changed_first(file: OnnxFile, nodes: Sequence[int], again: OnnxFile | None) -> list[int]:
    """The nodes, those first that an export of the module makes otherwise."""
    if again is None:
        return list(nodes)
    counterparts = {node.name: node for node in again.nodes if node.name}
    changed = {index for index in nodes if _is_changed(file, file.nodes[index], again, counterparts)}
    return [index for index in nodes if index in changed] + [index for index in nodes if index not in changed]


def _is_changed(
    file: OnnxFile, node: onnx.NodeProto, again: OnnxFile, counterparts: Mapping[str, onnx.NodeProto]
) -> bool:
    if file.grain.epsilon and node.op_type == "Cast":  # such a file has them where the export in float32 has none
        return False
    other = counterparts.get(node.name)
    if other is None or not _is_same_kind(node, other):
        return True
    return any(_is_other_input(file, one, again, two) for one, two in zip(node.input, other.input, strict=True))


def _is_same_kind(node: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    """Return whether they compute the same of their inputs."""
    if (node.op_type, node.domain, len(node.input)) != (other.op_type, other.domain, len(other.input)):
        return False
    one, two = ({each.name: each.SerializeToString() for each in of.attribute} for of in (node, other))
    return one == two


def _is_other_input(file: OnnxFile, one: str, again: OnnxFile, two: str) -> bool:
    if file.is_weight(one) and again.is_weight(two):
        return bool(close_problem(file.weight(one), again.weight(two), FOLDED_RTOL, 0.0))
    return one != two or file.is_weight(one) != again.is_weight(two)


OWN = "runner"
"""The bundled runner: its faults are this package's own, and belong into no target's table."""
MOST_NODES = 12
"""The largest number of nodes of one entry."""


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
    """The known bugs of the engines at the nodes of a case."""
    found: dict[str, None] = {}
    for engine in engines:
        target = find(f"{engine}-{release_of(engine)}") if engine in faults.runtimes() and release_of(engine) else None
        for fault, _ in faults.met(case.model, target) if target is not None else ():
            found[f"a known fault of {engine}: {fault.what}"] = None
    return list(found)


def new_entries(case: Case, wrong: Sequence[str], right: Sequence[str]) -> Iterator[FaultEntry]:
    """The entry for each wrong engine that is a target: the node that it computes otherwise than one that is right, or all the
    nodes together where it does only that wrongly.
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
