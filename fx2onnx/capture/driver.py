"""``capture``: choose a strategy, run it, and settle which dynamic sizes really are dynamic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fx2onnx.base.changes import Changes, before_change, undone
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.capture.at_one import right_at_one
from fx2onnx.capture.at_sample import MOST_ELEMENTS, tried_at_sample
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.baking import inputs_to_bake
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.diagnosis import diagnosed
from fx2onnx.capture.fallback import is_mistake
from fx2onnx.capture.observed import Observed, observed, refuse_broken, set_observed_axes
from fx2onnx.capture.options import BAKE_AUTO, CaptureOptions
from fx2onnx.capture.patches import NO_PATCHES, Patches
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args, refuse_repeated
from fx2onnx.capture.python.module_calls import Called, call_as_one
from fx2onnx.capture.python.module_state import keep_numbers, keep_process_state, preserve
from fx2onnx.capture.shapes.dynamic import check_names, hints_of, set_dynamic_axes, shapes_of
from fx2onnx.capture.shapes.requested import Requested
from fx2onnx.capture.strategies import fake, symbolic
from fx2onnx.capture.strategies.exported import exported
from fx2onnx.torchcompat.late_imports import keep_compiler_out, with_imports
from fx2onnx.torchcompat.modules import ModuleTree

DEFAULTS = CaptureOptions()
MAX_ATTEMPTS = 100
"""Each further one settles something; a module that is not settled after so many is refused."""
MOST_PROBES = 3
"""Runs that look for a mistake of the module behind a number that only the data tells."""

_LOCK: Any = threading.RLock()
"""One thread captures at a time: a function is patched for one thread only."""


def _alone(run: Callable[[], Captured]) -> Captured:
    """``run()`` while no other thread captures; whatever it changes is as before afterwards."""
    is_outermost = not _LOCK._is_owned()

    def locked() -> Captured:
        if is_outermost:
            before_change(_let_go)
        with _LOCK:
            keep_compiler_out(_LOCK)
            return undone(run)

    return undone(locked)


def _let_go() -> None:
    """An interrupt may come on the way out of the block that holds the lock."""
    while _LOCK._is_owned():
        _LOCK.release()


def capture(
    module: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    options: CaptureOptions = DEFAULTS,
    *,
    keep: Callable[[Any], bool] = lambda overload: True,
    single_calls: tuple[tuple[type, ...], Called] | None = None,
    patches: Patches = NO_PATCHES,
    untranslated: UserError | None = None,
) -> Captured:
    """``module(*args, **kwargs)`` as a functional ATen graph; nothing of it is computed.

    ``keep(overload)`` says which overloads stay whole; others are split by PyTorch's decompositions where there are.
    ``patches`` of library functions are in place while the module runs. ``single_calls``: classes of submodules each call
    of which is one operator, and what is called for each. ``untranslated``: what could not be translated of an earlier
    graph, in which both branches of decisions by sizes were. Raises UserError E1xx.
    """
    with record("bind arguments"):
        root = as_module(module)
        positional, named = normalise_args(root, args, kwargs)
        arguments = bind(root.forward, positional, named, options.input_names)
        asked, calls = _sizes_asked_for(root, arguments, options)
        _check_baked(arguments, options.bake if options.bake != BAKE_AUTO else ())

    def run() -> Captured:
        keep_process_state()
        if single_calls is not None:
            call_as_one(root, *single_calls)
        strategy = "fake" if options.rung == "auto" else options.rung
        attempt = Attempt(
            root,
            arguments,
            options,
            keep,
            patches,
            frozenset(asked.optional),
            frozenset(asked.declared),
            strategy,
            ranges=tuple(asked.ranges.values()),
            relations=tuple(asked.relations),
            bake=tuple(options.bake) if options.bake != BAKE_AUTO else (),
            whole=not options.gradients,
            gradients=options.gradients,
            splits_by_sizes=untranslated is None,
            split_failure=untranslated,
            untranslated=untranslated,
        )
        return _compared(attempt) if strategy == "symbolic" else _succeeded(attempt, []).captured

    try:
        captured = tried_at_sample(with_imports(lambda: _alone(run)))
    except UserError as error:
        error.add_next(patches.warnings())
        raise
    refuse_broken(captured, arguments, calls)
    captured.warnings = arguments.notes + captured.warnings
    _name_outputs(captured, options.output_names)
    check_names(options.dynamic_axes, arguments.names(), [output.name for output in captured.outputs])
    return captured


def _sizes_asked_for(
    root: torch.nn.Module, arguments: Arguments, options: CaptureOptions
) -> tuple[Requested, list[Observed]]:
    """Fill ``Leaf.axes`` from what is asked for and from further calls, which are the second value."""
    shapes = shapes_of(root.forward, options.dynamic_shapes, options.dynamic_axes)
    asked = set_dynamic_axes(arguments, shapes, options.dynamic_axes)
    calls = observed(root, options.samples, shapes)
    set_observed_axes(arguments, calls, asked)
    return asked, calls


def _compared(attempt: Attempt) -> Captured:
    """The traced copy's graph. Raises UserError E102 where the module itself gives another one."""
    log: list[str] = []
    with Changes():
        traced = symbolic.as_traced(lambda: _succeeded(attempt, log))
    with record("compare with the module's own run"):
        own = replace(
            attempt, arguments=traced.attempt.arguments, strategy="fake", change="compared with the traced copy"
        )
        run = _succeeded(own, log).captured
        symbolic.check_same_program(traced.captured, run)
    if len(run.mutations) == len(traced.captured.mutations):
        return traced.captured
    is_from = replace(run, rung=traced.captured.rung, rung_reason=traced.captured.rung_reason)
    return replace(is_from, attempts=traced.captured.attempts)  # a traced copy does not assign attributes


def _succeeded(attempt: Attempt, log: list[str]) -> Recorded:
    """Try, diagnose, change one thing of the attempt, and try again until there is nothing to change. ``log`` gets a line for
    each attempt. Raises the failure that cannot be mended.
    """
    start = attempt.at_sample()
    step: Attempt | Outcome = start
    while isinstance(step, Attempt):
        if len(log) >= MAX_ATTEMPTS:
            raise UserError(
                "E105",
                f"the dynamic sizes are not settled after {MAX_ATTEMPTS} runs of the module",
                why=f"the last change was: {step.change}",
                next="export with fewer dynamic sizes: leave some out of dynamic_shapes",
            )
        before, step = step, diagnosed(_outcome(step, log), start)
        step = _with_mistake(before, step, start)
    if isinstance(step, Failed):
        try:
            raise step.error
        finally:
            del step  # this frame is in the error's traceback
    step = right_at_one(step, lambda further: _outcome(further, log), lambda other: _succeeded(other, log))
    step.captured.attempts = log
    step.captured.rung_reason = step.attempt.reason()
    return step


def _with_mistake(before: Attempt, step: Attempt | Outcome, start: Attempt) -> Attempt | Outcome:
    """``step``, or the module's mistake in its place where the module's own run is given up."""
    error = step.error if isinstance(step, Failed) else step.first_failure if isinstance(step, Attempt) else None
    if error is None or error is before.first_failure:
        return step
    mistake = _mistake_behind(error, start)
    return step if mistake is None else Failed(before, mistake)


def _mistake_behind(error: BaseException, start: Attempt) -> UserError | None:
    """The module's own error behind a number that it needs of an input: with the sample's values of such inputs, and its sizes,
    eager PyTorch raises it, too.
    """
    is_of_data = isinstance(error, UserError) and error.code == "E104"
    probe, names = start.at_sizes(hints_of(start.arguments)), inputs_to_bake(error) if is_of_data else ()
    few = {leaf.name for leaf in start.arguments.leaves if leaf.tensor.numel() <= MOST_ELEMENTS}
    for _ in range(MOST_PROBES):
        if not names or not few.difference(probe.bake).issuperset(names):
            return None
        probe = replace(probe, bake=(*probe.bake, *names))
        outcome = _outcome(probe, [])
        if not isinstance(outcome, Failed) or not isinstance(outcome.error, UserError):
            return None
        if outcome.error.code == "E101":
            return outcome.error if is_mistake(outcome.error.__cause__) else None
        names = inputs_to_bake(outcome.error)
    return None


def _outcome(attempt: Attempt, log: list[str]) -> Outcome:
    if attempt.program is None:
        try:
            attempt = replace(attempt, program=_PROGRAMS[attempt.strategy](attempt))
        except Exception as error:  # torch.export's and torch.fx's faults, too: another strategy may do
            return Failed(attempt, error)
    log.append(str(attempt))
    with record("run on fake tensors"):
        if attempt.options.data_branches == "if":
            return fake.run_on_all_paths(attempt)
        return fake.run(attempt)


def _exported(attempt: Attempt) -> torch.nn.Module:
    with record("torch.export"), Changes():
        _keep_all(attempt)
        return exported(attempt.root, attempt.arguments)


def _traced(attempt: Attempt) -> torch.nn.Module:
    with record("symbolic trace"), Changes():
        _keep_all(attempt)
        return symbolic.traced(attempt.root, attempt.arguments)


def _keep_all(attempt: Attempt) -> None:
    """For a run on the real module (tracing with proxies, torch.export), which writes real tensors."""
    tree = ModuleTree(attempt.root)
    held = preserve(tree, attempt.options.training, attempt.arguments.objects())
    keep_numbers([*tree.buffers(), *held.tensors.values()])


_PROGRAMS: dict[str, Callable[[Attempt], torch.nn.Module]] = {
    "fake": lambda attempt: attempt.root,
    "symbolic": _traced,
    "export": _exported,
}
"""What each strategy runs on fake tensors."""


def _check_baked(arguments: Arguments, bake: Sequence[str]) -> None:
    names = arguments.names()
    for name in bake:
        if name not in names:
            raise UserError(
                "E001", f"bake names {name!r}, which is no input", next=f"the inputs are {', '.join(names)}"
            )
    for leaf in arguments.leaves:
        if leaf.name in bake and leaf.axes:
            raise UserError("E001", f"{leaf.name} is baked and dynamic", next="leave it out of one of the two")


def as_module(module: Any) -> torch.nn.Module:
    """An ``nn.Module`` for whatever can be exported. Raises UserError E001."""
    if isinstance(module, torch.export.ExportedProgram):
        return module.module()
    parts = vars(module).get("_modules") if isinstance(module, torch.nn.Module) else None
    if isinstance(parts, dict) and "_orig_mod" in parts:  # of torch.compile
        return as_module(parts["_orig_mod"])
    if isinstance(module, torch.nn.DataParallel):
        return as_module(module.module)
    if isinstance(module, torch.nn.Module):
        return module
    if callable(module):
        return _FunctionModule(module)
    raise UserError(
        "E001", f"an object of type {type(module).__name__} cannot be exported", next="pass an nn.Module or a function"
    )


class _FunctionModule(torch.nn.Module):
    """A plain function as a module; ``forward`` is the function, so that its signature names the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def _name_outputs(captured: Captured, output_names: Sequence[str] | None) -> None:
    if output_names is None:
        return
    if len(output_names) > len(captured.outputs):
        raise UserError(
            "E001",
            f"output_names has {len(output_names)} names, the module returns {len(captured.outputs)} tensors",
            next="give one name for each tensor that forward returns",
        )
    refuse_repeated("output_names", output_names)
    for output, name in zip(captured.outputs, output_names, strict=False):
        output.name = name
