"""``optimize_model``: read, fix sizes, convert, rewrite, compare, write."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import InternalError, RewriteFailed, UserError, VerificationError
from fx2onnx.base.events import record
from fx2onnx.base.memory import free_bytes
from fx2onnx.base.notices import warn
from fx2onnx.base.stack_frames import public
from fx2onnx.base.targets import check_target
from fx2onnx.files.own_metadata import metadata_of
from fx2onnx.files.staging import cannot_write, staged
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.io import Written, save, write_bytes
from fx2onnx.irx.model_files import Staged, commit
from fx2onnx.judge import Effort
from fx2onnx.judge.engines import chosen_engines
from fx2onnx.judge.feeds import conditions_of, inputs_of
from fx2onnx.judge.known_faults import KnownFaults, knowing
from fx2onnx.judge.memory import weights_bytes
from fx2onnx.judge.verdict import Verdict, check_effort
from fx2onnx.optimize.pipelines import DEFAULT_LEVEL
from fx2onnx.precision.model import Lowered
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.model import Quantized
from fx2onnx.quantize.options import Quantize
from fx2onnx.steps import stages
from fx2onnx.steps.coarser import Drawn, against_numbers, in_16_bits, same_as, with_numbers
from fx2onnx.steps.compare import Original, random_outputs
from fx2onnx.steps.dynamic import depends_on, make_dynamic
from fx2onnx.steps.list import STEPS, Wanted, fit_to_target
from fx2onnx.steps.opened import Opened, open_model
from fx2onnx.steps.opset import convert_opset
from fx2onnx.steps.result import LeftOut, OptimizePlan, OptimizeResult, Size, measured, opset_for
from fx2onnx.steps.sizes import fix_sizes, in_dead_branches, parse_sizes, refuse_contradiction
from fx2onnx.targets.form import find

MOST_LEFT_OUT = 8
"""Rewrites that are left out one after the other; then the file is written without any."""

STAGED_NAME = "optimized.onnx"
"""The name of a file that is compared before it has its own."""

MOST_INSIDE_BYTES = 2**31 - 2**26
"""Weights beyond this go to a file of their own, whatever the input has: a protobuf message holds less than 2 GiB."""


@dataclass
class Made:
    """A file that was written, and how it compares; what was done to make its numbers coarser."""

    model: ir.Model
    written: Written
    comparison: Verdict | None
    quantized: Quantized | None = None
    precision: Lowered | None = None


@public
def optimize_model(
    model: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    level: int = DEFAULT_LEVEL,
    opset: int | None = None,
    target: str | None = None,
    fix: Mapping[str, int] | str | None = None,
    dynamic: Mapping[str, str] | None = None,
    quantize: Quantize | str | None = None,
    dtype: str | Precision | None = None,
    io: str | None = None,
    external_data: bool | None = None,
    external_data_bytes: int = 1024,
    metadata: str | Mapping[str, Any] | Sequence[Any] = "keep",
    verify: bool = True,
    effort: Effort = "normal",
    engines: Sequence[str] | None = None,
    seed: int = 0,
    explain: bool = False,
    check: bool = False,
) -> OptimizeResult:
    """Optimize an ONNX file from any tool, and compare the result with it.

    model: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``, which stays as it is.
    out: where to write; None for nowhere. The model's own path replaces the file.
    level, opset: 0 to 3 (docs/optimizer.md); the version to convert to.
    target: the runtime (docs/targets.md): no newer opset than it knows, casts for kernels that it lacks, no known bugs.
    fix, dynamic: sizes by the name of a dim or of ``input:axis``; names for fixed sizes that shall vary, by ``input:axis``.
    quantize: low-bit weights of matrix products and convolutions (docs/quantization.md): a ``Quantize`` or its kind.
    dtype: ``float16``, ``bfloat16`` or ``mixed``: 16 bits, except where a measurement needs float32 (docs/precision.md).
    io: ``float32`` keeps the dtypes of inputs and outputs.
    external_data: weights of ``external_data_bytes`` or more in a file beside (True), none (False), or as in the input (None).
    metadata: ``"none"`` leaves out stack traces, source lines and other notes of exporters; a dict: own entries; a list: both.
    verify: run both on random inputs in ``engines``, as many as ``effort`` says (``quick``, ``normal``, ``full``). A rewrite that
        makes a difference is found by bisection, named and left out.
    explain, check: keep why rewrites refused; check the graph after each edit.

    Raises: ``UserError`` for arguments (E001), a file that is no model (E302, E303) or cannot be written (E301), an opset or a
    target that lacks an operator (E202, E204), sizes that the file does not take (E105, E401); ``VerificationError`` E501 where
    the result differs whatever is left out. Then nothing is written.
    """
    place = None if out is None else check_target(out)
    runtime = None if target is None else find(target)
    check_effort(effort)
    chosen = chosen_engines(engines) if verify else []
    opened = open_model(model)
    wanted = parse_sizes(fix, "fix") if isinstance(fix, str) else dict(fix or {})
    few_bits, (word, own) = Quantize.of(quantize), metadata_of(metadata, "keep", ("keep", "none"))
    version = opset_for(opened, opset, runtime, few_bits)
    plan = OptimizePlan(
        level, version, wanted, dict(dynamic or {}), external_data, external_data_bytes, explain, check, runtime,
        few_bits, Precision.of(dtype, io), keeps_metadata=word == "keep", properties=own,
    )  # fmt: skip
    stages.stages_of(level)
    job = _Job(opened, plan)
    if verify:
        with record("run the input file"):
            job.run_original(chosen, seed, effort)
    return job.finish(place)


class _Job:
    def __init__(self, opened: Opened, plan: OptimizePlan) -> None:
        self.opened = opened
        self.plan = plan
        self.first = stages.StageTrace()
        """The edits that the conversion of the opset begins with."""
        self.prepared, self.interface = self._prepare()
        self.notes = list(opened.notes)
        self.before = self._size_before()
        self.original: Original | None = None
        self.compared_in: tuple[Sequence[str], int] = ((), 0)
        self.left_out: list[LeftOut] = []
        self.derivation: dict[str, str] = {}

    def _prepare(self) -> tuple[ir.Model, stages.FileInterface]:
        """The graph before any rewrite: sizes fixed or made dynamic, opset converted."""
        model = self._sized()
        if self.plan.dynamic:
            make_dynamic(model, self.plan.dynamic)
        interface = stages.FileInterface.of(model)
        if self.plan.opset is not None:
            # What is an input in one opset is an attribute in another, so that it has to be constant.
            self.first = stages.rewrite(model, stages.stages_of(min(self.plan.level, 1), is_folding=True))
            convert_opset(model, self.plan.opset)
        return model, interface

    def _sized(self) -> ir.Model:
        model = self.opened.fresh()
        if self.plan.fix:
            before = infer_types(model)
            fix_sizes(model, self.plan.fix)
            faults = infer_types(model)
            if not (faults and self.plan.level and in_dead_branches(self.opened.fresh(), before, self.plan.fix)):
                refuse_contradiction(faults, before, self.plan.fix)
        return model

    def _size_before(self) -> Size:
        proto = self.opened.proto
        model = ir.from_proto(self.opened.plain)
        data_bytes = sum(
            value.const_value.nbytes
            for value in model.graph.initializers.values()
            if isinstance(value.const_value, ir.ExternalTensor)
        )
        return measured(self.prepared if proto.functions else model, proto.ByteSize(), data_bytes)

    def _rewritten(self, limit: stages.Limit | None = None) -> tuple[ir.Model, stages.StageTrace]:
        plan = self.plan
        model, self.interface = self._prepare()
        chosen = stages.stages_of(plan.level, growth_bytes=plan.growth_bytes, without=plan.without)
        return model, stages.rewrite(model, chosen, limit=limit, check=plan.check, explain=plan.explain)

    def _whole(self) -> tuple[ir.Model, stages.StageTrace]:
        """All edits; where one fails, without the rewrite that failed."""
        for _ in range(MOST_LEFT_OUT):
            try:
                return self._rewritten()
            except RewriteFailed as error:
                if self.plan.check or error.rewrite in self.plan.without:
                    raise
                self._leave_out(error.rewrite, error.what, "it failed")
        raise InternalError("E900", "too many rewrites fail on this file")

    def _as_written(self, model: ir.Model, wanted: Wanted | None) -> tuple[ir.Model, Counter[str]]:
        """A copy of the graph as it is written, fitted to the target, and what that took."""
        plan, model, edits = self.plan, model.clone(), Counter[str]()
        if wanted is not None and wanted.fitted_to is not None:
            infer_types(model)
            done = fit_to_target(model, wanted)
            assert done is not None
            edits.update({**done.casts, **done.forms})
        self.interface.restore(model, keeps_types=plan.keeps_types)
        self.opened.as_in_file(model)
        rounds = plan.precision is not None or plan.quantize is not None  # weights of the main graph
        if plan.level and plan.stores_inside and not rounds:
            stages.store_inside(model)
        model.metadata_props.update({**self.derivation, **(plan.properties or {})})
        if not plan.keeps_metadata:
            edits["removed origins"] += stages.leave_out_origins(model)
        return model, edits

    def _leave_out(self, name: str, where: str, why: str) -> None:
        self.plan.without.add(name)
        self.left_out.append(LeftOut(name, where, why))

    def run_original(self, engines: Sequence[str], seed: int, effort: Effort) -> None:
        """Run the input file on random inputs of the sizes that are wanted."""
        model = self._sized()
        source = self.opened.path or self.opened.proto.SerializeToString()
        outputs = [value.name or "" for value in model.graph.outputs]
        inputs = inputs_of(model)
        if "runner" in engines and weights_bytes(self.opened.proto) > free_bytes() / 4:
            engines = ["runner"]  # which maps the weights of both files
            self.notes.append("compared in the runner alone: other engines would hold the weights of both files")
        if any(0 in (each.dims or ()) for each in inputs) and "runner" in engines:
            engines = ["runner"]
            self.notes.append(
                "compared in the runner alone: onnxruntime may end the process at inputs without elements"
            )
        engines = KnownFaults(self.opened.proto, engines).survived(self.notes.append)
        engines = knowing(self.plan.opset, engines, self.notes.append)
        self.compared_in = engines, seed
        conditions = conditions_of(model)
        self.original = Original(source, inputs, outputs, random_outputs(model), engines, seed, conditions, effort)
        if self.plan.dynamic:
            names = set(self.plan.dynamic.values())
            varying = [
                value.name or ""
                for value in self.prepared.graph.outputs
                if value.shape is not None and len(value.shape) and depends_on(value.shape[0], names)
            ]
            self.original.add_parts(inputs, self.plan.dynamic, frozenset(varying), seed)

    def _is_wrong(self, limit: stages.Limit) -> bool:
        with tempfile.TemporaryDirectory(prefix="fx2onnx_") as folder:
            try:
                model, _ = self._rewritten(limit)
            except RewriteFailed:
                return True
            assert self.original is not None
            written = self._save(self._as_written(model, None)[0], os.path.join(folder, STAGED_NAME))
            return self.original.compare(written.path).is_wrong

    def _blame(self, trace: stages.StageTrace, comparison: Verdict) -> None:
        """Find the edit that makes the file differ, and leave its rewrite out. Raises VerificationError E501."""
        bad = next(row for row in comparison.rows if not row.ok)
        what = f"{bad.output or 'the file'} in {bad.engine}: {bad.problem or 'differs'}"
        if self.plan.target is not None and not self._is_wrong(stages.Limit(len(trace.steps))):
            fitted = f"the file differs from its input once it is fitted to {self.plan.target.name}"
            raise VerificationError("E501", fitted, why=what, next="report it with the file")
        guilty = stages.guilty_step(trace, self._is_wrong)
        if guilty is None and self.plan.dynamic:
            raise UserError(
                "E105", "the file is not right at other sizes than its own", why=what,
                next="export the model with this size dynamic",
            )  # fmt: skip
        if guilty is None:
            raise VerificationError(
                "E501", "the file differs from its input before anything is rewritten", why=what,
                next="report it with the file" if self.plan.opset is None else "leave out the conversion of the opset",
            )  # fmt: skip
        name, where = self._edit_at(trace, guilty)
        self._leave_out(name, where, what)

    def _edit_at(self, trace: stages.StageTrace, limit: stages.Limit) -> tuple[str, str]:
        """The rewrite or pass of the guilty edit, and the node that it ended at."""
        stage = trace.steps[limit.steps][0]
        try:
            _, partial = self._rewritten(limit)
        except RewriteFailed as error:
            return error.rewrite, error.what
        return partial.last if partial.last[1] else (stage, "")

    def _save(self, model: ir.Model, path: str, is_as_it_was: bool = False) -> Written:
        external = self.plan.external_data
        asked = (external, self.notes, self.plan.fix, self.plan.dynamic, self.plan.opset, self.opened.has_external_data)
        if is_as_it_was and not any(asked):
            content = self.opened.proto.SerializeToString()  # not a byte is added where nothing is done
            write_bytes(path, content)
            return Written(path, None, len(content), 0)
        if external is None:
            inside_bytes = sum(
                value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
            )
            external = self.opened.has_external_data or inside_bytes > MOST_INSIDE_BYTES
        return save(model, path, external_data=external, min_bytes=self.plan.external_bytes, finish=self.opened.finish)

    def finish(self, target: str | None) -> OptimizeResult:
        """The result, compared and in its place."""
        folder = os.path.dirname(os.path.abspath(target)) if target is not None else tempfile.gettempdir()
        try:
            with staged(folder) as stage:
                return self._finish(stage, target)
        except OSError as cause:
            raise cannot_write(target or folder, cause) from cause

    def _finish(self, stage: str, target: str | None) -> OptimizeResult:
        name = STAGED_NAME if target is None else os.path.basename(target)
        for attempt in range(2 * MOST_LEFT_OUT):
            place = os.path.join(stage, str(attempt))
            os.mkdir(place)
            model, trace = self._whole()
            self.derivation = self.plan.derivation(self.opened, [*self.first.applied, *trace.applied])
            wanted = self.plan.wanted(Drawn(self.original))
            final, edits = self._as_written(model, wanted)
            trace.edits.update(edits)
            written = self._save(final, os.path.join(place, name), is_as_it_was=not trace.edits.total())
            smaller, growth_bytes = (
                self.plan.smaller,
                written.model_bytes + written.data_bytes - self.before.total_bytes,
            )
            told_bytes = sum(len(key) + len(text) + 10 for key, text in self.derivation.items())
            if growth_bytes > told_bytes and smaller is not None:
                self.plan = smaller
                continue
            if 0 < growth_bytes <= told_bytes:  # a list of edits makes no file larger than its input
                self.derivation = {}
                final, _ = self._as_written(model, wanted)
                written = self._save(final, os.path.join(place, name))
            made = Made(final, written, None if self.original is None else self.original.compare(written.path))
            if made.comparison is not None and made.comparison.is_wrong:
                self._blame(trace, made.comparison)
                continue
            made = self._coarser(model, wanted, made, place, name)
            result = self._result(made, trace, target)
            warn([*result.warnings, *(result.precision.warnings if result.precision is not None else ())])
            if target is not None:
                data = made.written.data_path
                commit(Staged(made.written.path, data, os.path.basename(data) if data else None), target)
            return result
        raise VerificationError(
            "E501", "the file differs from its input whatever is left out", why=str(self.left_out[-1])
        )

    def _coarser(self, model: ir.Model, wanted: Wanted, made: Made, place: str, name: str) -> Made:
        """The file after the steps that make its numbers coarser, each compared with what stood before it."""
        exact = self.original
        for step in STEPS[:-1]:  # fitting to the target is the last of each file
            plain = model.clone()
            infer_types(model)
            done = step(model, wanted)
            if done is None:
                continue
            folder = os.path.join(place, step.__name__)
            os.mkdir(folder)
            final, _ = self._as_written(model, wanted)
            written = self._save(final, os.path.join(folder, name))
            made = dataclasses.replace(made, model=final, written=written, comparison=None)
            if done.quantized is not None:
                made.quantized = done.quantized
                if self.original is not None:
                    numbers, _ = self._as_written(with_numbers(plain, done.places), wanted)
                    path = save(numbers, os.path.join(folder, "numbers.onnx"), external_data=True).path
                    made.comparison = against_numbers(same_as(numbers, path, *self.compared_in), written.path)
                    exact = same_as(final, written.path, *self.compared_in)
            if done.precision is not None:
                made.precision = done.precision
                if exact is not None and wanted.precision is not None:
                    made.comparison = in_16_bits(exact, written.path, final, done.precision, wanted.precision)
        return made

    def _result(self, made: Made, trace: stages.StageTrace, target: str | None) -> OptimizeResult:
        model, written, comparison = made.model, made.written, made.comparison
        warnings = [*self.notes, *self.opened.dense]
        if comparison is not None:
            warnings += comparison.notes
            if not comparison.rows:
                why = "the file was not compared with its input: no engine runs it on random inputs"
                warnings.append(f"{why}; compare it with its module: fx2onnx verify")
        warnings += [f"{each.name} was left out: it made {each.why} ({each.where})" for each in self.left_out]
        return OptimizeResult(
            model,
            target or "",
            self.before,
            measured(model, written.model_bytes, written.data_bytes),
            model.graph.opset_imports.get("", 0),
            {name: count for name, count in sorted((trace.edits + self.first.edits).items()) if count},
            {name: dict(counts.most_common()) for name, counts in sorted(trace.refusals.items())},
            self.left_out,
            warnings,
            comparison,
            made.quantized,
            made.precision,
        )
