"""Run eager PyTorch and the engines on the same inputs and judge the differences.

float32 rounding is not a fixed number: it depends on the model. So the module also runs in float64, and an engine may
be off by a small multiple of what float32 PyTorch itself is off by.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.base.events import record
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args
from fx2onnx.capture.torch_private.pytrees import flatten
from fx2onnx.verify.engines import ENGINES, Array, Run, available_engines, to_numpy
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.noise import Draw, RandomNodes, Recording, Replaying, drawn_outputs
from fx2onnx.verify.rounding import nudged
from fx2onnx.verify.samples import Sample, samples
from fx2onnx.verify.verdict import Row, Verdict

ERROR_RATIO = 16.0
"""An engine may be this many times as far from float64 as float32 PyTorch is: other summation orders and other erf or exp
approximations stay below 8 over the zoo, wrong attributes are thousands off."""

SCALE_EPSILONS = 32.0
"""Besides, so many units in the last place of the output's largest number, for outputs that float32 hits exactly."""

MOVEMENT_RATIO = 2.0
"""An engine may be this many times as far as the largest of the movements seen where weights and inputs are off by as many
units as ``ERROR_RATIO``: it is one more draw from the same distribution."""

TYPES_ONLY = "an engine's random numbers are its own: of outputs that depend on them only the type is compared"
"""A note of the verdict."""

UNJUDGED_EPSILONS = 4096.0
"""The same where the module does not run in float64 and it is not known how far float32 is off."""


def verify(
    model: Any,
    module: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    engines: Sequence[str] | None = None,
    seeds: Sequence[int] = (1,),
    training: bool = False,
    input_names: Sequence[str] | None = None,
) -> Verdict:
    """Compare ``model`` (a path, or an ``ExportResult``) with ``module(*args, **kwargs)``.

    Every engine runs on the sample, on other numbers of its kind, and, where sizes are dynamic, at another size. dtype,
    shape and order of the outputs are part of the comparison; integer and bool outputs must be equal, save for as many
    as eager PyTorch itself chooses otherwise where its numbers move by rounding. ``input_names``
    are those of the export; arguments that the file has no input for, since they were baked, keep their values. An
    engine without a kernel for a node of the model fails where ``engines`` names it, and is noted otherwise.
    """
    root = as_module(module)
    positional, named = normalise_args(args, kwargs)
    arguments = bind(root.forward, positional, named, input_names)
    chosen = available_engines() if engines is None else list(engines)
    verdict = Verdict()
    with _as_file(model) as path, _eval_mode(root, training):
        with record("open in the engines"):
            runs = _opened(path, chosen, verdict, must_open=engines is not None)
        file = Interface.of(path)
        names = file.inputs
        if len(names) > len(arguments.leaves):
            raise UserError(
                "E001",
                f"the model has {len(names)} inputs, the module gets {len(arguments.leaves)} tensors",
                why=f"the model's are {', '.join(names)}",
                next="give the arguments that the model was exported with",
            )
        fed = _inputs_of([leaf.name for leaf in arguments.leaves], names)
        judge = _in_float64(root, verdict)
        random = RandomNodes.of(path)
        if random is not None and random.has_no_spread and "onnxruntime" in runs:
            del runs["onnxruntime"]
            verdict.note("onnxruntime is left out: it ends the process at random numbers without spread")
        case = _Case(root, judge, arguments, fed, file.outputs, runs, random)
        symbolic_axes = [file.axes[name] if name else None for name in fed]
        for sample in samples(arguments, symbolic_axes, seeds, file.conditions, verdict.note):
            _compare_sample(verdict, case, sample)
    return verdict


@dataclass(frozen=True, slots=True)
class _Case:
    """What is compared with what, on every sample."""

    root: torch.nn.Module
    judge: torch.nn.Module | None
    arguments: Arguments
    names: Sequence[str | None]
    """The input of the file for each argument."""
    outputs: Sequence[str]
    runs: Mapping[str, Run]
    random: RandomNodes | None


def _opened(path: str, names: Sequence[str], verdict: Verdict, *, must_open: bool) -> dict[str, Run]:
    """The engines that open the file; of the others a row, or a note where only a kernel is missing."""
    runs: dict[str, Run] = {}
    for name in names:
        try:
            runs[name] = ENGINES[name](path)
        except Exception as cause:  # each engine has classes of its own
            problem = f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0][:300]}"
            if type(cause).__name__ == "NotImplemented" and not must_open:
                verdict.notes.append(f"{name} cannot run the model ({problem})")
            else:
                verdict.rows.append(Row(name, "(all)", float("inf"), 0.0, False, "no inputs", problem))
    return runs


def _inputs_of(arguments: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """For each argument the input of the file that takes it, by name or else in order; None for one that is no input."""
    if set(names) <= set(arguments):
        return [name if name in names else None for name in arguments]
    return [*names, *[None] * (len(arguments) - len(names))]


def _compare_sample(verdict: Verdict, case: _Case, sample: Sample) -> None:
    recording = Recording()  # also where the file draws nothing: the judge has to draw what eager PyTorch drew
    try:
        with record("eager PyTorch"), recording:
            expected = _run_eager(case.root, case.arguments, sample.tensors)
    except Exception as cause:  # forward is the user's code
        if sample.name == "sample":
            raise UserError(
                "E101",
                "eager PyTorch itself fails on the sample arguments",
                why=f"{type(cause).__name__}: {str(cause)[:300]}",
                next="check that module(*args, **kwargs) runs, in eval mode, with these arguments",
            ) from cause
        verdict.notes.append(f"{sample.name}: eager PyTorch itself fails ({first_line(cause)[:120]})")
        return
    draws = recording.draws
    exact = _exact(verdict, case, sample, draws)
    feeds = {name: np.ascontiguousarray(to_numpy(tensor)).reshape(tuple(to_numpy(tensor).shape))
             for name, tensor in zip(case.names, sample.tensors, strict=True) if name is not None}  # fmt: skip
    drawn = case.random.inputs_for(draws) if case.random is not None and draws else None
    unknown = _random_outputs(case, sample, expected) if draws and drawn is None else frozenset()
    if unknown:
        verdict.note(TYPES_ONLY)
    with _runs_on(case, drawn) as runs:
        result = {
            engine: _run_engine(verdict, engine, run, feeds | (drawn or {}), sample) for engine, run in runs.items()
        }
    rows = []
    for engine, results in result.items():
        if results is None:
            continue
        for index, (name, want) in enumerate(zip(case.outputs, expected, strict=False)):
            reference = exact[index] if exact is not None and index < len(exact) else None
            if index in unknown:
                rows.append((index, _judge_type(engine, name, sample.name, results[index], want)))
            else:
                rows.append((index, _judge(engine, name, sample.name, results[index], want, reference)))
        if len(expected) != len(results):
            problem = f"{len(results)} outputs, eager PyTorch has {len(expected)}"
            rows.append((-1, Row(engine, "(all)", float("inf"), 0.0, False, sample.name, problem)))
    verdict.rows += _judged_again(verdict, case, sample, draws, expected, rows)


def _random_outputs(case: _Case, sample: Sample, expected: Sequence[Array]) -> frozenset[int]:
    """The outputs that depend on random numbers in the file and in the module."""
    if case.random is None:
        return frozenset()
    asked = frozenset(i for i, name in enumerate(case.outputs[: len(expected)]) if name in case.random.tainted)
    with record("eager PyTorch, other draws"):
        return drawn_outputs(lambda: _run_eager(case.root, case.arguments, sample.tensors), expected, asked)


def _exact(verdict: Verdict, case: _Case, sample: Sample, draws: Sequence[Draw]) -> list[Array] | None:
    """What float64 PyTorch gives, with the same draws."""
    if case.judge is None:
        return None
    try:
        with record("eager PyTorch in float64"), Replaying(draws) if draws else contextlib.nullcontext():
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in sample.tensors]
            return _run_eager(case.judge, case.arguments, wide)
    except Exception as cause:  # forward is the user's code, in a dtype it may not know
        verdict.note(f"no float64 judge: the module does not run in float64 ({first_line(cause)[:120]})")
        return None


@contextlib.contextmanager
def _runs_on(case: _Case, drawn: dict[str, Array] | None) -> Iterator[Mapping[str, Run]]:
    """The engines on the file, or on a copy of it that takes random numbers as inputs."""
    if drawn is None or case.random is None:
        yield case.runs
        return
    with tempfile.TemporaryDirectory(prefix="fx2onnx-verify-") as folder:
        path = case.random.with_inputs(drawn, folder)
        yield {engine: ENGINES[engine](path) for engine in case.runs}


def _run_engine(verdict: Verdict, engine: str, run: Run, feeds: dict[str, Array], sample: Sample) -> list[Any] | None:
    try:
        with record(engine):
            return run(feeds)
    except Exception as cause:  # an engine that fails is a row of the verdict
        problem = f"{type(cause).__name__}: {first_line(cause)[:300]}"
        verdict.rows.append(Row(engine, "(all)", float("inf"), 0.0, False, sample.name, problem))
        return None


def _judged_again(
    verdict: Verdict,
    case: _Case,
    sample: Sample,
    draws: Sequence[Draw],
    expected: Sequence[Array],
    rows: Sequence[tuple[int, Row]],
) -> list[Row]:
    """The rows; those of too large an error with what float32 is off by where its numbers are nudged. Of integers and
    bools that is how many are others: what was chosen among nearly equal numbers.
    """
    failing = {index for index, row in rows if not row.ok and row.max_abs_error < float("inf")}
    own = dict.fromkeys(failing, 0.0)
    if failing and case.judge is not None:
        try:
            for module, tensors in nudged(case.root, sample.tensors, ERROR_RATIO):
                with record("eager PyTorch, nudged"), Replaying(draws) if draws else contextlib.nullcontext():
                    moved = _run_eager(module, case.arguments, tensors)
                for index in failing:
                    if moved[index].shape == expected[index].shape:
                        own[index] = max(own[index], _moved_by(moved[index], expected[index]))
        except Exception as cause:  # forward is the user's code
            verdict.note(f"no second judge: the module does not run on nudged numbers ({first_line(cause)[:120]})")
    judged = []
    for index, row in rows:
        allowed = MOVEMENT_RATIO * own.get(index, 0.0)
        if index in failing and not row.ok and row.max_abs_error <= allowed:
            what = f"float32 moves by {own[index]:.2g}"
            if expected[index].dtype.kind in "biu":
                what = f"{own[index]:.0f} numbers are others"
            verdict.note(f"{row.output}: {what} where float32's numbers move by rounding")
            row = replace(row, allowed=allowed, ok=True, problem="")
        judged.append(row)
    return judged


def _moved_by(moved: Array, expected: Array) -> float:
    """The largest difference; of integers and bools, how many differ."""
    if expected.dtype.kind in "biu":
        return float(np.count_nonzero(moved != expected))
    gap = np.abs(moved.astype(np.float64) - expected)
    return float(np.nan_to_num(gap).max(initial=0.0))


def _judge_type(engine: str, name: str, inputs: str, got: Any, want: Array) -> Row:
    """dtype and rank, of an output whose numbers, and sizes perhaps, are random."""
    got = np.asarray(got)
    problem = ""
    if got.ndim != want.ndim:
        problem = f"shape {list(got.shape)}, eager PyTorch has {list(want.shape)}"
    elif got.dtype != want.dtype and want.dtype.kind != "V":
        problem = f"dtype {got.dtype}, eager PyTorch has {want.dtype}"
    return Row(engine, name, float("inf") if problem else 0.0, 0.0, not problem, inputs, problem)


def _judge(engine: str, name: str, inputs: str, got: Any, want: Array, exact: Array | None) -> Row:
    got = np.asarray(got)
    problem = ""
    if got.shape != want.shape:
        problem = f"shape {list(got.shape)}, eager PyTorch has {list(want.shape)}"
    elif got.dtype.itemsize != want.dtype.itemsize or (got.dtype != want.dtype and want.dtype.kind != "V"):
        problem = f"dtype {got.dtype}, eager PyTorch has {want.dtype}"
    if problem:
        return Row(engine, name, float("inf"), 0.0, False, inputs, problem)
    if want.dtype.kind in "biu":
        off = int(np.count_nonzero(got != want))
        text = f"{off} of {want.size} numbers differ" if off else ""
        return Row(engine, name, float(off), 0.0, off == 0, inputs, text)
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(wide_got), np.isnan(wide_want)):
        return Row(engine, name, float("inf"), 0.0, False, inputs, "NaN in other places than eager PyTorch")
    same = (wide_got == wide_want) | np.isnan(wide_want)
    judged = exact is not None and _can_judge(exact, wide_want)
    truth = exact.astype(np.float64) if exact is not None and judged else wide_want
    with np.errstate(invalid="ignore"):
        error = float(np.max(np.where(same, 0.0, np.abs(wide_got - truth)), initial=0.0))
        own = float(
            np.max(np.where(same & np.isinf(wide_want), 0.0, np.nan_to_num(np.abs(wide_want - truth))), initial=0.0)
        )
    finite = np.abs(wide_want[np.isfinite(wide_want)])
    scale = float(finite.max(initial=0.0))
    epsilon = float(ml_dtypes.finfo(want.dtype).eps)
    allowed = (
        (ERROR_RATIO * own + SCALE_EPSILONS * epsilon * scale)
        if judged
        else UNJUDGED_EPSILONS * epsilon * max(scale, 1e-3)
    )
    return Row(engine, name, error, allowed, error <= allowed, inputs, scale=scale)


def _can_judge(exact: Array, want: Array) -> bool:
    """Whether the float64 result stands for what float32 PyTorch computes: of its shape, and with numbers where that has
    some (masks filled with the lowest float64 can overflow where those with the lowest float32 do not).
    """
    return exact.shape == want.shape and not bool(np.any(np.isfinite(want) & ~np.isfinite(exact)))


def _run_eager(root: torch.nn.Module, arguments: Arguments, tensors: Sequence[torch.Tensor]) -> list[Array]:
    """forward's tensors, flat. Inputs are copied, so that a forward that writes into them harms nobody."""
    args, kwargs = arguments.rebuilt([tensor.clone() for tensor in tensors])
    saved = {name: buffer.clone() for name, buffer in root.named_buffers()}
    try:
        with torch.no_grad():
            result = root(*args, **kwargs)
    finally:
        with torch.no_grad():
            for name, buffer in root.named_buffers():
                if name in saved and buffer.shape == saved[name].shape:
                    buffer.copy_(saved[name])
    leaves = [leaf.value for leaf in flatten(result)[0]]
    return [
        to_numpy(leaf)
        if isinstance(leaf, torch.Tensor)
        else np.asarray(leaf, np.float32 if isinstance(leaf, float) else None)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor | int | float)
    ]


def _in_float64(root: torch.nn.Module, verdict: Verdict) -> torch.nn.Module | None:
    try:
        return copy.deepcopy(root).double()
    except Exception as cause:  # copying runs the module's own code
        verdict.notes.append(
            f"no float64 judge: the module cannot be copied ({type(cause).__name__}: {str(cause)[:120]})"
        )
        return None


@contextlib.contextmanager
def _eval_mode(root: torch.nn.Module, training: bool) -> Iterator[None]:
    flags = [(module, module.training) for module in root.modules()]
    root.train(training)
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextlib.contextmanager
def _as_file(model: Any) -> Iterator[str]:
    """The path of the model; a result that was not written yet goes to a temporary folder."""
    if isinstance(model, str | os.PathLike):
        yield os.fspath(model)
        return
    if model.path is not None and os.path.exists(model.path):
        yield model.path
        return
    from fx2onnx.irx import io

    with tempfile.TemporaryDirectory(prefix="fx2onnx-verify-") as folder:
        path = os.path.join(folder, "exported.onnx")
        io.save(model.owned.model, path)
        yield path
