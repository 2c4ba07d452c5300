"""Run eager PyTorch and the engines on the same inputs and compare their outputs (docs/verify.md)."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch

from fx2onnx.base.errors import first_line
from fx2onnx.base.events import record
from fx2onnx.base.stack_frames import public
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.inputs import bind, normalise_args
from fx2onnx.judge import Effort
from fx2onnx.judge.engines import ENGINES, Array, Run, chosen_engines, slowness, within
from fx2onnx.judge.known_faults import KnownFaults
from fx2onnx.judge.memory import is_exhausted, too_large, weights_bytes
from fx2onnx.judge.tolerance import is_near
from fx2onnx.judge.verdict import PLACEHOLDER, Range, Row, Tried, Verdict
from fx2onnx.verify.answers import Task
from fx2onnx.verify.arrays import is_finite, to_numpy
from fx2onnx.verify.case import MOST_TIMEOUTS, NOT_PRECISE_NOTE, Trial, opened, refused, versions_of
from fx2onnx.verify.eager import Eager, failed_on_arguments, in_mode, leave, on_cpu, placed, takes_gradients
from fx2onnx.verify.float_values import BY_ANY_ENGINE, NEAR_FLOAT64, NEEDS_RANGE, SPOILING, WITHOUT_NUMBERS
from fx2onnx.verify.interface import Interface, as_file, assign, vanished
from fx2onnx.verify.marks import Marks, joined
from fx2onnx.verify.module_state import NothingToCompare, Unsteady, compare_weights, with_state
from fx2onnx.verify.noise import Draw, Outgrown, RandomNodes, Recording, drawn_outputs
from fx2onnx.verify.outputs import ComparedOutputs
from fx2onnx.verify.rounded_weights import OVERFLOWS, ExactCodes, as_input, as_quantized, rounded_inputs
from fx2onnx.verify.samples import Maker, Rows, TriedSample, cheapest_first, planned
from fx2onnx.verify.steps import compare_steps
from fx2onnx.verify.work import WorkBudget

TYPES_ONLY = "an engine's random numbers are its own: of outputs that depend on them only the type is compared"
"""A note of the verdict."""

LAST_STOP = 120.0
LATEST_FORWARDS = 40.0
"""Seconds of processor time, or runs of eager PyTorch on the example inputs, after which nothing more is tried."""
SMALL_SHARE = 0.25
"""Inputs of so few numbers, as a share of the example's, run in every engine where a run at other sizes is due."""
LONGER_LOOPS = 100
"""Times that loops may turn more often than on the example inputs."""
EXACT_ENGINE = "runner"
"""The engine that does as eager PyTorch does at the ends of what numbers may be."""
EMPTY_ENGINES = (EXACT_ENGINE,)
"""Engines that run on inputs of size 0: onnxruntime ends the process at an LSTM without rows."""
NEVER_TAMER = {"signs", "wide"} | BY_ANY_ENGINE
"""Kinds of values in whose place nothing else is tried, where eager PyTorch does not take them."""
MOST_WRONG = 3
"""Sets of wrong inputs: more of them tell nothing new."""
SAMPLE = TriedSample("sample")
ON_DEVICE = (
    "the module runs on its own device alone ({}), where inputs that it does not take may stop the device: no other sizes "
    "and no other integers are tried; to have them tried, verify the module on the CPU"
)
VANISHED = "the file has no input for it, and nothing says that it was baked (bake=)"


@public
def verify(
    model: Any,
    module: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    engines: Sequence[str] | None = None,
    seeds: Sequence[int] = (1,),
    training: bool | None = False,
    input_names: Sequence[str] | None = None,
    bake: Sequence[str] = (),
    effort: Effort = "normal",
    data: Any = None,
    metric: Any = None,
) -> Verdict:
    """Compare ``model`` (a path, or any model that ``fx2onnx.diff`` takes) with ``module(*args, **kwargs)`` in eager PyTorch.

    Inputs are the example inputs, other values and other shapes. Integers and bools must be equal, except where rounding changes
    what eager PyTorch itself returns. An argument without an input fails, unless the file or ``bake`` has it as a constant.

    engines: the runner and onnxruntime by default; ``reference`` (of the onnx package) and ``openvino`` may be named, too. An
        engine without a kernel for a node fails if it was named.
    seeds: of the other values; none: the example inputs' values at all shapes. input_names: those of the export.
    effort: ``quick``, ``normal``, or ``full``, which leaves no inputs out; ``verdict.tried`` and ``verdict.left_out`` list them.
    data, metric: your own inputs by name (a .npz file or arrays, with ``labels`` beside them) and top1, tokens, wer, psnr or a
        function: ``verdict.moved`` says how far answers move from eager PyTorch's (weights as they are), and from the labels.
    """
    asked, budget, start = Task.of(data, metric), WorkBudget(effort), time.process_time()
    root = as_module(module)
    call = normalise_args(root, args, kwargs)
    arguments = bind(root.forward, *call, input_names, needs_numbers=True)
    chosen, verdict = chosen_engines(engines), Verdict(seeds=list(seeds), effort=effort)
    with as_file(model) as path, in_mode(root, training), on_cpu(root, call):
        proto = onnx.load(path, load_external_data=False)
        file = Interface.of(proto)
        verdict.notes += [*arguments.notes, *filter(None, (file.narrowed,))]
        arguments = with_state(root, arguments, file.state, file.inputs, file.outputs)
        names = [leaf.name for leaf in arguments.leaves]
        verdict.baked = [*dict.fromkeys([*file.baked, *getattr(getattr(model, "report", None), "baked", ()), *bake])]
        verdict.assumptions = [f"{each.text}   ({each.where})" if each.where else each.text for each in file.conditions]
        verdict.unverified = too_large(proto)
        if verdict.unverified:
            return verdict
        fed = assign(names, file.inputs, verdict.baked)
        verdict.rows += [Row.failed("file", lost, "inputs", VANISHED) for lost in vanished(names, fed, verdict.baked)]
        try:
            with record("open in the engines"):
                known = KnownFaults(proto, chosen)
                runs = opened(path, proto, known.survived(verdict.note), verdict, must_open=engines is not None)
            compare_weights(verdict, proto, os.path.dirname(path), root)
            compare_steps(verdict, proto, os.path.dirname(path), root)
            verdict.versions = versions_of(runs)
            with as_quantized(verdict, proto, os.path.dirname(path), root, call, training, input_names) as unrounded:
                case = Trial(Eager(root, arguments), path, fed, file, runs, RandomNodes.of(path, proto), budget=budget)
                asked.check(case)
                budget.open(weights_bytes(proto) // 4)
                _compare(verdict, case, seeds, start)
                asked.measure(verdict, case, unrounded)
            known.explain(verdict)
        except (Unsteady, NothingToCompare) as cause:
            verdict.give_up(str(cause))
        except Exception as cause:  # of all that runs here, and has classes of its own
            if not is_exhausted(cause):
                raise
            verdict.ran_out(f"memory is not enough: {first_line(cause)[:300]}")
        verdict.conclude(NOT_PRECISE_NOTE)
    return verdict


def _compare(verdict: Verdict, case: Trial, seeds: Sequence[int], start: float) -> None:
    """The example, then the other sets of inputs as far as their work may go on."""
    originals = [leaf.tensor.detach().cpu() for leaf in case.eager.arguments.leaves]
    originals = rounded_inputs(originals, case.names, case.file)
    axes = [
        {axis: dim for axis, dim in case.file.axes[name].items() if axis < each.dim()} if name else None
        for name, each in zip(case.names, originals, strict=True)
    ]
    rows, marks, rising = _first(verdict, case, originals)
    maker = Maker.of(originals, axes, rows, marks, is_narrow=case.file.is_narrow, rising=rising)
    usual = max(maker.numbers(SAMPLE), 1)
    budget, latest = case.budget, start + max(LAST_STOP, LATEST_FORWARDS * case.seconds["eager"])
    left_out = (NEEDS_RANGE if case.file.is_half else frozenset()) | case.says_nothing
    if EXACT_ENGINE not in case.runs:
        left_out |= BY_ANY_ENGINE
    ends = [kind for kind in maker.ends() if kind not in left_out]
    conditions, at = [*case.file.conditions, *maker.conditions], (*map(abs, marks.whole), *marks.lengths)
    plan = planned(maker.sizes, conditions, seeds, ends, at, tuple(case.file.bounds.sizes), maker.turns())
    if case.eager.on_device:
        has_integers = any(not tensor.is_floating_point() and not tensor.is_complex() for tensor in originals)
        plan = (each for each in plan if not (each.sizes or has_integers or each.values in SPOILING))
    shares = [(sample, maker.numbers(sample) / usual) for sample in plan]
    if sum(budget.cost(1 + len(case.runs), share) for _, share in shares) > budget.most:
        shares = cheapest_first(shares, seeds)
    for sample, share in shares:
        engines = list(case.runs)
        needed = bool(sample.sizes) and not sample.is_empty and not any(each.sizes for each in verdict.tried)
        if sample.is_empty:
            engines = [name for name in engines if name in EMPTY_ENGINES]
            if not engines:
                continue
        if not budget.allows(1 + len(engines), share) and not (needed and share <= SMALL_SHARE):
            is_exact = sample.values in case.file.by_any_engine and EXACT_ENGINE in engines
            engines = [EXACT_ENGINE] if is_exact else [min(engines, key=slowness)]
        if len({row.inputs for row in verdict.rows if not row.ok}) >= MOST_WRONG:
            verdict.left_out.append(f"{sample.name}: the file is wrong on others")
            continue
        if needed and case.refuses_sizes and 1 in sample.sizes.values():
            verdict.left_out.append(f"{sample.name}: eager PyTorch refuses other sizes, and would broadcast this one")
            continue
        is_late = time.process_time() > latest
        if is_late or case.timeouts >= MOST_TIMEOUTS or not case.runs:
            verdict.leave_out_late(
                f"{sample.name}: {'the verification takes' if is_late else 'runs before took'} too long"
            )
            continue
        if not needed and not budget.allows(1 + len(engines), share, len(verdict.tried), judging=True):
            verdict.left_out.append(f"{sample.name}: effort={verdict.effort} leaves it out")
            continue
        _other(verdict, case, maker, sample, engines, budget.most_of_run(len(engines), share))
        budget.note(share)
    if case.eager.codes is not None and case.eager.codes.overflowed:
        verdict.note(OVERFLOWS.format(", ".join(case.eager.codes.overflowed)))


def _first(verdict: Verdict, case: Trial, tensors: Sequence[torch.Tensor]) -> tuple[Rows, Marks, frozenset[int]]:
    """The user's sample. Gives integers that pick rows, numbers that the module compares with, places of sorted inputs."""
    were_on = takes_gradients(case.eager.root)
    try:
        expected, recording = _on_cpu_or_device(verdict, case, tensors)
        if takes_gradients(case.eager.root) != were_on:  # time and draws were those of two runs
            expected, recording = _eager(case, tensors, timed=True)
    except Exception as cause:  # forward is the user's code
        raise failed_on_arguments(cause) from cause
    if recording.has_placeholders:
        raise NothingToCompare(PLACEHOLDER)
    if recording.has_codes:
        case.eager = replace(case.eager, codes=ExactCodes())
        expected, recording = _eager(case, tensors, timed=True)
    case.says_nothing = case.file.says_nothing | recording.says_nothing
    case.finite = [is_finite(want) for want in expected]
    _judge_all(verdict, case, SAMPLE, tensors, (expected, recording), list(case.runs))
    bounds, marks = case.file.bounds, recording.marking.found()
    numbers, whole = joined(marks.numbers, bounds.numbers), map(int, joined(marks.whole, bounds.whole))
    if bounds.rounds:
        numbers = marks.numbers
    marks = replace(marks, numbers=numbers, whole=tuple(whole), is_wide=bounds.turned.more_than(recording.turned))
    return [recording.rows(tensor) for tensor in tensors], marks, recording.sorted_among(tensors)


def _on_cpu_or_device(verdict: Verdict, case: Trial, tensors: Sequence[torch.Tensor]) -> tuple[list[Array], Recording]:
    try:
        return _eager(case, tensors, timed=True)
    except Exception as cause:  # forward is the user's code
        if not leave(case.eager.root):
            raise
        verdict.note(ON_DEVICE.format(first_line(cause)[:120]))
    case.eager = replace(case.eager, on_device=True)
    return _eager(case, tensors, timed=True)


def _other(
    verdict: Verdict, case: Trial, maker: Maker, sample: TriedSample, engines: Sequence[str], most_work: float
) -> None:
    """Compare on another set of inputs: of the kind of values that ``sample`` asks for, milder ones, or the example's
    own values at its sizes, whichever eager PyTorch runs on first within ``most_work``.
    """
    tries = [(sample, False), (sample, True), (replace(sample, values="sample"), False)]
    problem = ""
    tries = tries[2:] if sample.values == "sample" else tries[:1] if sample.values in NEVER_TAMER else tries
    for asked, mild in tries:
        if asked.values == "sample" and not asked.sizes:
            break  # the example itself
        tensors = rounded_inputs(maker.make(asked, mild=mild), case.names, case.file)
        try:
            expected, recording = _eager(case, tensors, most_work=most_work)
        except Outgrown as cause:
            problem = problem or str(cause)
            continue
        except Exception as cause:  # forward is the user's code
            problem = problem or f"eager PyTorch itself fails ({first_line(cause)[:120]})"
            if isinstance(cause, TimeoutError):
                case.timeouts += 1
                verdict.incomplete = verdict.incomplete or f"{sample.name}: {problem}"
            continue
        unlike = _unlike_the_sample(case, asked, tensors, expected, recording.draws)
        if unlike:
            problem = problem or unlike
            continue
        if problem:
            verdict.left_out.append(f"{sample.name}: {problem}; milder values instead")
        _judge_all(verdict, case, asked if not mild else sample, tensors, (expected, recording), engines)
        return
    verdict.left_out.append(f"{sample.name}: {problem}")
    case.refuses_sizes |= bool(sample.sizes) and not sample.is_empty


def _unlike_the_sample(
    case: Trial, sample: TriedSample, tensors: Sequence[torch.Tensor], expected: Sequence[Array], draws: Sequence[Draw]
) -> str:
    """The reason why the results of eager PyTorch say nothing of the file; empty where they do."""
    was_finite = case.finite if len(expected) == len(case.finite) and sample.values not in WITHOUT_NUMBERS else ()
    if any(was and not is_finite(want) for was, want in zip(was_finite, expected, strict=False)):
        return "eager PyTorch itself gives NaN or infinity"
    if sample.values in NEAR_FLOAT64:
        try:
            case.budget.spend(2)
            exact = case.eager.in_float64(tensors, draws, case.longest("eager", on_sample=False))
        except Exception as cause:  # forward is the user's code, on tensors of a kind that it may not know
            return f"the module does not run in float64 ({first_line(cause)[:120]})"
        if not all(map(is_near, expected, exact)):
            return "eager PyTorch itself gives other numbers than in float64"
    return ""


def _eager(
    case: Trial, tensors: Sequence[torch.Tensor], *, timed: bool = False, most_work: float = math.inf
) -> tuple[list[Array], Recording]:
    recording = Recording(tensors if timed else (), most_work)
    if not timed:
        recording.most_turns = LONGER_LOOPS * (case.turns + LONGER_LOOPS)  # some inputs let a loop never end
        recording.end_seconds = time.monotonic() + case.longest("eager", on_sample=False)
    start = time.process_time()
    with record("eager PyTorch"), case.eager.exactly(), recording:
        expected = case.eager.run(tensors)
    case.budget.last = recording.work
    case.budget.spend(1)
    if timed:
        case.seconds, case.budget.sample = {"eager": time.process_time() - start}, recording.work
        case.turns = recording.turns
    return expected, recording


def _judge_all(
    verdict: Verdict,
    case: Trial,
    sample: TriedSample,
    tensors: Sequence[torch.Tensor],
    found: tuple[list[Array], Recording],
    engines: Sequence[str],
) -> None:
    """Run the engines on the inputs, and compare their outputs."""
    expected, recording = found
    draws = recording.draws
    before = len(verdict.rows)
    feeds = {
        name: np.ascontiguousarray(array := as_input(to_numpy(tensor), name, case.file)).reshape(array.shape)
        for name, tensor in zip(case.names, tensors, strict=True)
        if name is not None
    }
    _note_ranges(verdict, case, feeds, tensors)
    drawn = case.random.inputs_for(draws) if case.random is not None and draws else None
    unknown = frozenset(case.random_outputs)
    if draws and drawn is None:
        unknown |= _random_outputs(case, tensors, expected)
    if unknown:
        case.random_outputs |= unknown
        verdict.note(TYPES_ONLY)
    results: dict[str, list[Any]] = {}
    with _runs_on(case, drawn, engines) as runs:
        for engine, run in runs.items():
            given = _run_engine(verdict, case, engine, run, feeds | (drawn or {}), sample)
            if given is not None:
                results[engine] = given
    if results or not sample.is_empty:
        verdict.tried.append(Tried(sample.name, dict(sample.sizes), sample.values, list(results)))
    longest = case.longest("eager", on_sample=sample is SAMPLE)
    outputs = ComparedOutputs(case.eager, case.file, tensors, recording, expected, unknown, verdict, sample, longest)
    outputs.judge(results)
    case.budget.spend(outputs.runs)
    if verdict.wrong_on is None and not all(row.ok for row in verdict.rows[before:]):
        verdict.wrong_on = placed(case.eager.arguments, tensors)


def _note_ranges(verdict: Verdict, case: Trial, feeds: Mapping[str, Array], tensors: Sequence[torch.Tensor]) -> None:
    for leaf, name, tensor in zip(case.eager.arguments.leaves, case.names, tensors, strict=True):
        array = feeds[name] if name is not None else to_numpy(tensor)
        known = verdict.ranges.setdefault(name or leaf.name, Range(str(array.dtype), constant=name is None))
        known.add(array)


def _random_outputs(case: Trial, tensors: Sequence[torch.Tensor], expected: Sequence[Array]) -> frozenset[int]:
    """The outputs that depend on random numbers in the file and in the module."""
    if case.random is None:
        return frozenset()
    asked = frozenset(i for i, name in enumerate(case.file.outputs[: len(expected)]) if name in case.random.tainted)
    with record("eager PyTorch, other draws"):
        return drawn_outputs(lambda later: case.eager.redrawn(tensors, later), expected, asked)


@contextlib.contextmanager
def _runs_on(case: Trial, drawn: dict[str, Array] | None, engines: Sequence[str]) -> Iterator[Mapping[str, Run]]:
    """The engines on the file, or on a copy of it that takes random numbers as inputs."""
    if drawn is None or case.random is None:
        yield {engine: case.runs[engine] for engine in engines}
        return
    with tempfile.TemporaryDirectory(prefix="fx2onnx-verify-", ignore_cleanup_errors=True) as folder:
        path = case.random.with_inputs(drawn, folder)
        yield {engine: ENGINES[engine](path) for engine in engines}


def _run_engine(
    verdict: Verdict, case: Trial, engine: str, run: Run, feeds: dict[str, Array], sample: TriedSample
) -> list[Any] | None:
    start, longest = time.process_time(), case.longest(engine, on_sample=sample is SAMPLE)
    try:
        with record(engine), within(longest):
            return run(feeds)
    except TimeoutError:
        case.runs.pop(engine, None)
        text = f"{sample.name}: {engine} did not end within {longest:.0f} s, and is left out of what follows"
        (verdict.ran_out if sample is SAMPLE else verdict.leave_out_late)(text)
        return None
    except Exception as cause:  # an engine that fails is a row of the verdict
        problem = f"{type(cause).__name__}: {first_line(cause)[:300]}"
        if is_exhausted(cause):
            verdict.ran_out(f"{sample.name}: {engine} runs out of memory ({problem})")
        elif what := refused(sample, case.path, str(cause), feeds):  # it says so, which is no wrong result
            verdict.left_out.append(f"{sample.name}: {engine} refuses {what} ({problem})")
        else:
            verdict.rows.append(Row.failed(engine, "(all)", sample.name, problem))
        return None
    finally:
        case.budget.spend(1)
        if sample is SAMPLE:
            case.seconds[engine] = time.process_time() - start
