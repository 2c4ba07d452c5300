"""``locate``: capture beside eager PyTorch, then the file beside capture, then who is to blame."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.fx

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.base.source import PACKAGE_FOLDER
from fx2onnx.base.stack_frames import public
from fx2onnx.capture.captured import carried, where_of
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args
from fx2onnx.judge import Effort
from fx2onnx.judge.engines import ENGINES, Array, chosen_engines, lacks_operator
from fx2onnx.judge.verdict import Verdict, check_effort
from fx2onnx.verify.compare import verify
from fx2onnx.verify.eager import as_array, failed_on_arguments, in_mode, on_cpu, outputs_of
from fx2onnx.verify.interface import as_file, assign
from fx2onnx.verify.locating import blame, by_values
from fx2onnx.verify.locating.aten_values import AtenGraph, AtenValues, ValueStore
from fx2onnx.verify.locating.blame import with_entries
from fx2onnx.verify.locating.dumped import in_dump
from fx2onnx.verify.locating.first_wrong import FirstWrong, NodeDifference, Once, difference
from fx2onnx.verify.locating.program import ModuleProgram, OnnxFile, Settings, is_ours
from fx2onnx.verify.locating.side_by_side import SideBySide, Suspect, case_of, missing, reordered
from fx2onnx.verify.module_state import NothingToCompare
from fx2onnx.verify.rounded_weights import as_quantized

SEED = 0
"""The seed of the random numbers that forward draws."""


@public
def locate(
    model: Any,
    module: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    engines: Sequence[str] | None = None,
    training: bool | None = False,
    input_names: Sequence[str] | None = None,
    bake: Sequence[str] = (),
    memory_bytes: int | None = None,
    verdict: Verdict | None = None,
    effort: Effort = "normal",
    dump: Any = None,
) -> FirstWrong | None:
    """The first node of ``model`` (as ``verify`` takes it) that differs from ``module(*args, **kwargs)``.

    Where nothing differs on these arguments, the file is verified and the first inputs that fail are searched; None where none fails.
    Raises: ``UserError`` where the module or the file does not run.

    verdict: an earlier verification. effort: as in ``verify``. input_names, bake: those of the export. memory_bytes: of the values kept.
    dump: a device's values, .npy files in a folder by names of values or nodes: the first that does not follow from those before.
    """
    check_effort(effort)
    chosen, root = chosen_engines(engines), as_module(module)
    with as_file(model) as path:
        file = OnnxFile.read(path)
        settings = Settings.of(model, file.proto, training, input_names)
        asked = settings.capture
        bake = bake or (() if isinstance(asked.bake, str) else asked.bake)
        if dump is not None:
            arguments = bind(root.forward, *normalise_args(root, args, kwargs), asked.input_names)
            return in_dump(dump, file, arguments, bake, chosen[0])

        def search(on: by_values.OtherCall, wide: bool = True) -> FirstWrong | None:
            of_file = partial(_Search, root, module, on.args, on.kwargs, settings, chosen, memory_bytes, bake, wide)
            found = of_file(path, file).run()
            if found is not None and found.stage == "file" and on.name:
                found = blame.as_captured(found, ModuleProgram.of(module, args, kwargs, settings).exported, of_file)
            return None if found is None else with_entries(replace(found, on=on.name))

        with in_mode(root, asked.training), on_cpu(root, (args, kwargs)) as (args, kwargs):
            is_here = verdict is None or by_values.where_failed(verdict) is None
            if is_here and (found := search(by_values.OtherCall(args, kwargs))) is not None:
                return found
            if verdict is None:
                run: dict[str, Any] = {"training": asked.training, "input_names": asked.input_names}
                with contextlib.suppress(UserError):  # of a file that takes buffers
                    verdict = verify(path, module, args, kwargs, engines=engines, bake=bake, effort=effort, **run)
            if verdict is None or verdict.ok:
                return None
            failed = by_values.where_failed(verdict)
            arguments = bind(root.forward, *normalise_args(root, args, kwargs), asked.input_names)
            others = by_values.without_inputs(root, arguments, file.inputs, verdict.baked)
            last = () if failed is None else ((failed, True), (failed, False))
            for on, wide in itertools.chain(((each, True) for each in others), last):
                with contextlib.suppress(UserError):  # such inputs fit together by chance alone: no export takes them
                    if (found := search(on, wide)) is not None:
                        return found
            return None


ONE_EXPORT = "custom_translations= is of one export: register with fx2onnx.translates what later checks need"
"""Advice where an operator has no translation in a check of a file."""


@dataclass
class _Search:
    """One call of ``locate``."""

    root: torch.nn.Module
    module: Any
    args: Any
    kwargs: Mapping[str, Any] | None
    settings: Settings
    engines: list[str]
    memory_bytes: int | None
    bake: Sequence[str]
    wide: bool
    """False where outputs that float64 gives are wrong, too: an operator of the module may choose otherwise there."""
    path: str
    file: OnnxFile
    wants: list[Array] = field(default_factory=list)
    """Eager PyTorch's outputs."""

    def run(self) -> FirstWrong | None:
        """The first wrong node beside the module with its weights as a quantized file has them."""
        asked, call = self.settings.capture, (self.args, self.kwargs)
        rounded = (os.path.dirname(self.path), self.root, call, asked.training, asked.input_names)
        try:
            with as_quantized(Verdict(), self.file.proto, *rounded):
                return self._compared()
        except NothingToCompare as cause:
            raise UserError("E502", "the file cannot be compared node by node", why=str(cause)) from cause

    def _compared(self) -> FirstWrong | None:
        call = normalise_args(self.root, self.args, self.kwargs)
        arguments = bind(self.root.forward, *call, self.settings.capture.input_names, needs_numbers=True)
        program = ModuleProgram.of(self.module, self.args, self.kwargs, self.settings)
        tensors = {leaf.path: leaf.tensor.detach() for leaf in arguments.leaves}
        inputs = {each.node: tensors.get(each.path, each.sample).detach() for each in program.captured.inputs}
        expected = self._eager(arguments)
        graph = AtenGraph(program.captured)
        try:
            _, mapped = program.lowered()
        except UserError as error:
            if error.code == "E201":
                error.add_next([ONE_EXPORT])
            raise
        present = {name: place for name, place in mapped.items() if name in self.file.producer}
        narrow = self.file if self.file.grain.epsilon else None
        aten = AtenValues.of(graph, inputs, present, ValueStore(self.memory_bytes), narrow)
        results, state = _aten_outputs(aten, self.settings.lifts_state)
        wrong = _unlike(expected, results, lambda: _wide_outputs(program, inputs))
        if wrong:
            return self._capture_fault(arguments, program, graph, inputs, expected, wrong)
        feeds = {name: aten.as_in_file(name, array) for name, array in self._feeds(program, inputs).items()}
        self.wants = [as_array(value) for value in (*expected, *state)]
        if len(self.wants) != len(self.file.outputs):
            return missing(self.file, len(self.wants))
        self.wants = [aten.as_in_file(name, want) for name, want in zip(self.file.outputs, self.wants, strict=True)]
        exact = Once(partial(_wide_outputs, program, inputs)) if self.wide else None
        right: list[str] = []
        for engine in self.engines:
            problem = self._problem(engine, feeds)
            if problem or not self.file.random.isdisjoint(self.file.outputs):
                is_wrong = partial(self._problem, engine, feeds, exact)
                if is_ours(self.file.proto):
                    found = self._file_fault(program, SideBySide(self.file, engine, aten, feeds), is_wrong, right)
                else:
                    found = self._foreign_fault(program, aten, feeds, engine) if is_wrong() else None
                if found is not None:
                    return found
            right.append(engine)
        return None

    def _eager(self, arguments: Arguments) -> list[Any]:
        torch.manual_seed(SEED)
        try:
            return outputs_of(self.root, arguments, [leaf.tensor.detach() for leaf in arguments.leaves])
        except Exception as cause:  # forward is the user's code
            raise failed_on_arguments(cause) from cause

    def _feeds(self, program: ModuleProgram, inputs: Mapping[torch.fx.Node, torch.Tensor]) -> dict[str, Array]:
        """The file's inputs: by name where it has the names, else in order; buffers that it takes keep their values."""
        arrays = {each.name: as_array(inputs[each.node]) for each in program.captured.inputs}
        state = {name: as_array(weight.tensor) for name, weight in program.captured.weights.items()}
        names = self.file.inputs
        if all(name in arrays or name in state for name in names):
            return {name: arrays.get(name, state.get(name)) for name in names}  # type: ignore[misc]
        taken = assign(list(arrays), names, self.bake)
        return {name: array for name, array in zip(taken, arrays.values(), strict=True) if name is not None}

    def _problem(self, engine: str, feeds: Mapping[str, Array], exact: Once | None = None) -> str:
        """The problem with the outputs of an engine, by float64 where it is given; nothing where it lacks an operator."""
        try:
            results = ENGINES[engine](self.path)(dict(feeds))
        except Exception as cause:  # each engine has classes of its own
            return "" if lacks_operator(cause) else f"{engine} fails: {first_line(cause)[:300]}"
        for index, (name, got, want) in enumerate(zip(self.file.outputs, results, self.wants, strict=True)):
            found = difference(got, want, None if exact is None else partial(exact.at, index), self.file.grain)
            if found.is_wrong and name not in self.file.random:
                return f"{name}: {found.describe()}"
        return ""

    def _file_fault(
        self, program: ModuleProgram, side: SideBySide, problem: Callable[[], str], right: Sequence[str]
    ) -> FirstWrong | None:
        """The first value that is wrong by itself and in the file; where there is none, but still a ``problem``, nobody's."""
        suspect = _first_deviating(side)
        if suspect is not None:
            return self._guilty(program, side, suspect)
        text = problem()
        return (self._reordered(side) or self._nobody(program, side, text, right)) if text else None

    def _reordered(self, side: SideBySide) -> FirstWrong | None:
        try:
            results = ENGINES[side.engine](self.path)(dict(side.feeds))
        except Exception:  # each engine has classes of its own
            return None
        return reordered(self.file, [np.asarray(result) for result in results], self.wants)

    def _nobody(self, program: ModuleProgram, side: SideBySide, problem: str, right: Sequence[str]) -> FirstWrong:
        """Every node is right by itself."""
        texts = {side.engine: problem} | {
            engine: self._problem(engine, side.feeds) for engine in self.engines if engine not in (*right, side.engine)
        }
        agreeing = [*right, *(engine for engine, text in texts.items() if not text)]
        texts |= dict.fromkeys(agreeing, blame.AGREES)
        verdict = blame.nobodys(side, agreeing)
        deviating = side.other_choices if verdict.stage == "ties" else side.deviating
        unknown = ("", NodeDifference(0.0, 0.0, 0, 0, problem=problem))
        name, found = next((pair for pair in deviating.items() if side.is_deviating(pair[0])), unknown)
        return self._report(program, side, name, found, verdict, texts)

    def _foreign_fault(
        self, program: ModuleProgram, aten: AtenValues, feeds: Mapping[str, Array], engine: str
    ) -> FirstWrong:
        """The first wrong node of another exporter's file: values that are like PyTorch's are compared as in a file of
        our own; where each of them is right, the first nodes whose values are nowhere in PyTorch.
        """
        problem = self._problem(engine, feeds)
        torch.manual_seed(SEED)
        right = next((other for other in self.engines if other != engine and not self._problem(other, feeds)), engine)
        found = by_values.matched(self.file, right, feeds, by_values.sketched(aten.graph, aten.inputs))
        alike = AtenValues.of(aten.graph, aten.inputs, found.mapped(), ValueStore(self.memory_bytes))
        _aten_outputs(alike, self.settings.lifts_state)
        side = SideBySide(self.file, engine, alike, feeds)
        suspect = _first_deviating(side)
        if suspect is None:
            return by_values.unmatched_fault(self.file, found, program.captured.graph, problem, engine)
        texts, verdict = blame.engine_blame(side, suspect.name, self._engines_and_reference())
        why = "the nodes are fed with PyTorch's values, and give none that it has"
        verdict = verdict or blame.Blame("translation", by_values.producer(self.file), why)
        report = self._report(program, side, suspect.name, suspect.difference, verdict, texts)
        nodes, _ = side.given(suspect.name)
        call = by_values.likely_call(self.file, nodes[0], found, program.captured.graph)
        if call not in alike.calls_between(suspect.name):
            return report
        assert call is not None
        named = f"{call.target} (%{call.name})"
        return replace(report, where=where_of(call), module_path=str(call.meta.get("module") or ""), aten=(named,))

    def _engines_and_reference(self) -> list[str]:
        return [*self.engines, *(engine for engine in ("reference",) if engine not in self.engines)]

    def _guilty(self, program: ModuleProgram, side: SideBySide, suspect: Suspect) -> FirstWrong:
        texts, verdict = blame.engine_blame(side, suspect.name, self._engines_and_reference())
        if verdict is None:
            verdict = blame.export_blame(side, suspect.name, program)
        return self._report(program, side, suspect.name, suspect.difference, verdict, texts)

    def _report(
        self,
        program: ModuleProgram,
        side: SideBySide,
        name: str,
        found: NodeDifference,
        verdict: blame.Blame,
        engines: dict[str, str],
    ) -> FirstWrong:
        if name not in side.aten.mapped:
            return FirstWrong(verdict.stage, (), name, None, "", (), found, verdict.place, verdict.why, engines=engines)
        nodes, given = side.given(name)
        if verdict.stage in ("translation", "rewrite", "weights", "file") and is_ours(self.file.proto):
            nodes = blame.changed_first(self.file, nodes, OnnxFile.of_model(program.exported))
        if verdict.stage == "precision":
            nodes.sort(key=lambda index: self.file.nodes[index].op_type == "Cast")
        calls = [node for node in side.aten.calls_between(name) if node.op == "call_function"]
        last, _ = side.aten.mapped[name]
        want = side.aten.store[name]
        return FirstWrong(
            verdict.stage,
            tuple(self.file.nodes[index].name or self.file.nodes[index].output[0] for index in nodes),
            name,
            where_of(last),
            str(last.meta.get("module") or ""),
            tuple(f"{node.target} (%{node.name})" for node in calls),
            found,
            verdict.place.replace(os.path.dirname(PACKAGE_FOLDER) + os.sep, ""),
            verdict.why,
            want.shape,
            str(want.dtype),
            tuple(self.file.nodes[index].op_type for index in nodes),
            engines,
            case_of(side.file, sorted(nodes), given, name, want),
        )

    def _capture_fault(
        self,
        arguments: Arguments,
        program: ModuleProgram,
        graph: AtenGraph,
        inputs: Mapping[torch.fx.Node, torch.Tensor],
        expected: Sequence[Any],
        wrong: Mapping[int, NodeDifference],
    ) -> FirstWrong:
        with by_values.Seen() as seen:
            self._eager(arguments)
        outputs = [program.captured.outputs[index].value for index in wrong]
        nodes = [value for value in outputs if isinstance(value, torch.fx.Node)]
        torch.manual_seed(SEED)
        found = by_values.first_unseen(graph, inputs, seen, nodes)
        with by_values.places_noted() as places:
            ModuleProgram.of(self.module, self.args, self.kwargs, self.settings)
        index, first = next(iter(wrong.items()))
        why = f"output {program.captured.outputs[index].name} of the captured graph differs from eager PyTorch's"
        if found is None:
            name = program.captured.outputs[index].name
            return FirstWrong("capture", (), name, None, "", (), first, "", why)
        node, value = found
        array = as_array(value) if isinstance(value, torch.Tensor) else np.empty(0)
        return FirstWrong(
            "capture",
            (node.name,),
            node.name,
            where_of(node),
            str(node.meta.get("module") or ""),
            (f"{node.target} (%{node.name})",),
            first,
            places.get(node.name, ""),
            f"{why}; eager PyTorch computes no value like that of %{node.name}, but all that it is computed from",
            array.shape,
            str(array.dtype) if array.size else "",
        )


def _first_deviating(side: SideBySide) -> Suspect | None:
    """The first value that is wrong by itself and in the file."""
    return next((each for each in side.suspects() if side.is_deviating(each.name)), None)


def _aten_outputs(aten: AtenValues, lifts_state: bool) -> tuple[list[Any], list[Any]]:
    """Run the captured graph; keeps what the file has, and returns the outputs and the state afterwards."""
    torch.manual_seed(SEED)
    values: dict[torch.fx.Node, Any] = {}
    outputs = aten.graph.captured.outputs
    wanted = {output.value for output in outputs if isinstance(output.value, torch.fx.Node)}
    wanted |= {mutation.node for mutation in carried(aten.graph.captured, lifts_state)}
    for node, value in aten.graph.run(aten.inputs):
        aten.keep(node, value)
        if node in wanted:
            values[node] = value
    results = [values.get(output.value) for output in outputs]  # type: ignore[arg-type]
    return results, [values[mutation.node] for mutation in carried(aten.graph.captured, lifts_state)]


def _wide_outputs(program: ModuleProgram, inputs: Mapping[torch.fx.Node, torch.Tensor]) -> list[Any] | None:
    """The outputs in float64; None where the module does not run so."""
    torch.manual_seed(SEED)
    wanted = [output.value for output in program.captured.outputs]
    values: dict[Any, Any] = {}
    try:
        for node, value in AtenGraph(program.captured, is_wide=True).run(inputs):
            if node in wanted and isinstance(value, torch.Tensor):
                values[node] = as_array(value)
    except Exception:  # operators without float64, and those of users
        return None
    return [values.get(node) for node in wanted]


def _unlike(expected: Sequence[Any], results: Sequence[Any], wide: Any) -> dict[int, NodeDifference]:
    """The outputs in which the captured graph and eager PyTorch differ by more than the graph is off from its own float64 run;
    numbers that are sizes are not looked at.
    """
    exact = Once(wide)
    wrong: dict[int, NodeDifference] = {}
    for index, (want, got) in enumerate(zip(expected, results, strict=False)):
        if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
            found = difference(as_array(want), as_array(got), partial(exact.at, index))
            if found.is_wrong:
                wrong[index] = found
    return wrong
