"""``capture``: choose a strategy, run it, and settle which dynamic sizes really are dynamic."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import put_name
from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.events import record
from fx2onnx.base.stack_frames import empty_frames
from fx2onnx.capture.attempt import (
    Attempt,
    Baked,
    Failed,
    Operators,
    Outcome,
    Recorded,
    Request,
    RunProgram,
    RunSizes,
    asked_of_small,
)
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.options import CaptureOptions, Patches
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args, refuse_repeated
from fx2onnx.capture.python.module_calls import Called, call_as_one
from fx2onnx.capture.python.module_state import keep_numbers, keep_process_state, preserve
from fx2onnx.capture.python.outside import MET, outside_of
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.recording.decisions import Branching
from fx2onnx.capture.run import run, run_on_all_paths
from fx2onnx.capture.settle import after_run
from fx2onnx.capture.shapes.dynamic import Requested, is_plain, set_dynamic_axes, shapes_of, unknown_names
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.frames import know_places
from fx2onnx.torchcompat.late_imports import CompilerStop, ImportNeeded, import_compiler
from fx2onnx.torchcompat.modules import ModuleTree

if TYPE_CHECKING:
    from fx2onnx.capture.observed import Observed

DEFAULTS, NO_PATCHES = CaptureOptions(), Patches()

_LOCK: Any = threading.RLock()
"""One thread captures at a time: a function is patched for one thread only."""


def _wait_for_others() -> None:
    """No other thread captures until ``Changes`` end."""
    if not _LOCK._is_owned():
        before_change(_let_go)
        _LOCK.acquire()


_UNSCRIPTED = "pass the module itself: what torch.jit.script was for, such as loops, is exported from Python"


def _let_go() -> None:
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
    of which is one operator, and what is called for each. ``untranslated``: what of an earlier graph, with both branches
    of shape-dependent decisions, could not be translated. Raises UserError E1xx.
    """
    with record("bind arguments"):
        tree = _tree_of(root := as_module(module))
        _refuse_lazy(tree)
        positional, named = normalise_args(root, args, kwargs)
        arguments = bind(root.forward, positional, named, options.input_names)
        asked, calls = _sizes_asked_for(root, arguments, options)
        _check_baked(arguments, options.baked)
    request = Request(
        root,
        tree,
        options,
        keep,
        patches,
        frozenset(asked.optional),
        frozenset(asked.declared),
        tuple(asked.relations),
        untranslated,
        outside=outside_of(tree.modules),
    )
    attempt = _first_attempt(request, arguments, asked)
    has_ended = False
    try:
        while (captured := _alone(attempt, single_calls)) is None:
            import_compiler()
        if captured.has_sizes_of_data() or captured.broken_at(captured.sample_sizes()):
            road("the example inputs").try_at_sample(captured)
        has_ended = True
    except UserError as error:
        if isinstance(root, torch.jit.ScriptModule) and error.code == "E104":
            raise UserError(error.code, "the module is TorchScript", why=error.what, next=_UNSCRIPTED) from error
        error.add_next(patches.warnings(), before=road("a failed run").steps_before(root, arguments, error))
        raise
    finally:
        request.outside.put_back(has_ended)
    if calls:
        road("several calls").refuse_broken(captured, arguments, calls)
    if captured.mutations:
        captured.warnings = [*road("a failed run").notes_on_observers(root), *captured.warnings]
    captured.warnings = [*arguments.notes, *captured.warnings, *request.outside.notes]
    _name_outputs(captured, options.output_names)
    captured.warnings += unknown_names(options.dynamic_axes, [*arguments.names(), *(o.name for o in captured.outputs)])
    return captured


def _alone(attempt: Attempt, single_calls: tuple[tuple[type, ...], Called] | None) -> Captured | None:
    """The result of all attempts, while no other thread captures; what they change is as before afterwards. None where the module
    needs PyTorch's compiler, which is not imported yet.
    """
    stop = CompilerStop(_LOCK)
    try:
        with Changes(), Changes():
            _wait_for_others()
            stop.put()
            may_have_drawn = keep_process_state()
            put_name(MET, "clocks", [])
            if single_calls is not None:
                call_as_one(attempt.root, *single_calls)
            captured = _result(attempt)
            if may_have_drawn():
                captured.warnings += road("random draws").notes_on_numbers(captured, lambda: _result(attempt))
            if MET.clocks:
                captured.warnings += road("random draws").notes_on_clocks(captured, lambda: _result(attempt))
        if not stop.was_met:
            return captured
    except (ImportNeeded, Exception):
        if not stop.was_met:
            raise
    return None


def _result(attempt: Attempt) -> Captured:
    """The result of all attempts, of which ``attempt`` is the first."""
    return _compared(attempt) if attempt.program.strategy == "symbolic" else _succeeded(attempt, []).captured


def _first_attempt(request: Request, arguments: Arguments, asked: Requested) -> Attempt:
    """The attempt that sets nothing but what the user asks for."""
    options, untranslated = request.options, request.untranslated
    return Attempt(
        request,
        arguments,
        RunProgram("fake" if options.strategy == "auto" else options.strategy),
        RunSizes(ranges=tuple(asked.ranges.values())),
        operators=Operators(pre_dispatch=not options.gradients, gradients=options.gradients),
        branching=Branching(by_sizes=untranslated is None, failure=untranslated),
        baked=Baked(options.baked),
    )


def _sizes_asked_for(
    root: torch.nn.Module, arguments: Arguments, options: CaptureOptions
) -> tuple[Requested, list[Observed]]:
    """Fill ``Leaf.axes`` from what is asked for and from further calls, which are the second value."""
    shapes = shapes_of(root.forward, options.dynamic_shapes, options.dynamic_axes)
    asked = set_dynamic_axes(arguments, shapes, options.dynamic_axes)
    if not options.samples and (is_plain(shapes) or not shape_specs.calls(shapes)):
        return asked, []
    several = road("several calls")
    calls = several.observed(root, options.samples, shapes)
    several.set_observed_axes(arguments, calls, asked)
    return asked, calls


def _compared(attempt: Attempt) -> Captured:
    """The traced copy's graph. Raises UserError E102 where the module itself gives another one."""
    log: list[str] = []
    symbolic = road("symbolic trace")
    with Changes():
        traced: Recorded = symbolic.as_traced(lambda: _succeeded(attempt, log))
    with record("compare with the module's own run"):
        own = replace(
            attempt, arguments=traced.attempt.arguments, program=RunProgram(), change="compared with the traced copy"
        )
        run = _succeeded(own, log).captured
        symbolic.check_same_program(traced.captured, run)
    if len(run.mutations) == len(traced.captured.mutations):
        return traced.captured
    is_from = replace(run, strategy=traced.captured.strategy, strategy_reason=traced.captured.strategy_reason)
    return replace(is_from, attempts=traced.captured.attempts)  # a traced copy does not assign attributes


def _succeeded(attempt: Attempt, log: list[str]) -> Recorded:
    """Try, diagnose, change one thing of the attempt, and try again until there is nothing to change. ``log`` gets a line for
    each attempt. Raises the failure that no change avoids.
    """
    start = attempt.at_sample()
    step: Attempt | Outcome = start
    while isinstance(step, Attempt):
        before, step = step, diagnosed(_outcome(step, log), start)
        step = _with_mistake(before, step, start)
    if isinstance(step, Failed):
        try:
            raise step.error
        finally:
            del step  # this frame is in the error's traceback
    if step.attempt.options.data_branches == "if" and asked_of_small(step.shape_env, step.attempt):
        run_again, capture_again = lambda further: _outcome(further, log), lambda other: _succeeded(other, log)
        step = cast(Recorded, road("a size of 0 or 1").right_at_small(step, run_again, capture_again))
    if step.shape_env.texts and not step.attempt.sizes.has_texts_of_sample:
        road("texts of sizes").note_if_they_decide(step, lambda further: _outcome(further, log))
    step.captured.attempts = log
    step.captured.strategy_reason = step.attempt.reason()
    return step


def diagnosed(outcome: Outcome, start: Attempt) -> Attempt | Outcome:
    """The next attempt after all since ``start``; the outcome, or an earlier one, where nothing is left to change."""
    if isinstance(outcome, Recorded):
        with record("settle dynamic sizes"):
            return after_run(outcome)
    following: Attempt | Outcome = road("a failed attempt").after_failure(outcome, start)
    if isinstance(following, Attempt):
        empty_frames(outcome.error)
    return following


def _with_mistake(before: Attempt, step: Attempt | Outcome, start: Attempt) -> Attempt | Outcome:
    """``step``, or the module's mistake in its place where the module's own run is given up."""
    error = step.error if isinstance(step, Failed) else step.program.own_failure if isinstance(step, Attempt) else None
    if error is None or error is before.program.own_failure:
        return step
    mistake = road("a failed run").mistake_behind(error, start, lambda probe: _outcome(probe, []))
    return step if mistake is None else Failed(before, mistake)


def _outcome(attempt: Attempt, log: list[str]) -> Outcome:
    if attempt.program.module is None:
        try:
            attempt = replace(attempt, program=replace(attempt.program, module=_program_of(attempt)))
        except Exception as error:  # torch.export's and torch.fx's faults, too: another strategy may do
            return Failed(attempt, error)
    log.append(str(attempt))
    with record("run on fake tensors"):
        if attempt.options.data_branches == "if":
            return run_on_all_paths(attempt)
        return run(attempt)


def _program_of(attempt: Attempt) -> torch.nn.Module:
    """The program that is run on fake tensors. Tracing and torch.export run the real module, which writes real tensors: all is kept."""
    strategy, root = attempt.program.strategy, attempt.root
    if strategy == "fake":
        return root
    name = "torch.export" if strategy == "export" else "symbolic trace"
    with record(name), Changes():
        tree = ModuleTree(root)
        given = [(leaf.name, leaf.tensor) for leaf in attempt.arguments.leaves]  # torch.export sets attributes on them
        held = preserve(tree, attempt.options.training, [*attempt.arguments.objects(), *given])
        keep_numbers([*tree.buffers(), *held.tensors.values()])
        return cast(torch.nn.Module, road(name).made(root, attempt.arguments))


def _check_baked(arguments: Arguments, bake: Sequence[str]) -> None:
    names = arguments.names()
    for name in bake:
        if name not in names:
            raise UserError(
                "E001", f"bake names {name!r}, which is no input", next=f"the inputs are {', '.join(names)}"
            )
    for leaf in arguments.leaves:
        if leaf.name in bake and leaf.axes:
            raise UserError(
                "E001", f"{leaf.name} is both constant (bake) and dynamic", next="leave it out of one of the two"
            )


_NO_MODULE = (
    "pass an nn.Module or a function; ONNX files and results of fx2onnx.export go to fx2onnx.optimize(file), "
    "fx2onnx.quantize(file) or fx2onnx.verify(file, module, args)"
)


_TEXT_FOR_MODULE = (
    "pass the module itself: import or load it, or for a source such as FILE.py:make or hf:FOLDER "
    "build it with fx2onnx.sources.resolve(source), whose result has module, args and kwargs",
    "in a shell a text will do: fx2onnx export SOURCE -o model.onnx",
)


def as_module(module: Any) -> torch.nn.Module:
    """An ``nn.Module`` for whatever can be exported. Raises UserError E001."""
    if isinstance(module, torch.export.ExportedProgram):
        return know_places(module.module())
    if isinstance(module, type) and issubclass(module, torch.nn.Module):
        name = module.__name__
        raise UserError(
            "E001", f"{name} is a class, not a module", next=f"give an instance of it, such as {name}(...).eval()"
        )
    parts = vars(module).get("_modules") if isinstance(module, torch.nn.Module) else None
    if isinstance(parts, dict) and "_orig_mod" in parts:  # of torch.compile
        return as_module(parts["_orig_mod"])
    if isinstance(module, torch.nn.DataParallel):
        return as_module(module.module)
    if isinstance(module, torch.nn.Module):
        return know_places(module) if isinstance(module, torch.fx.GraphModule) else module
    if callable(module) and not isinstance(module, Shown):  # results of export are callable, too
        return _FunctionModule(module)
    is_state = isinstance(module, Mapping) and any(isinstance(value, torch.Tensor) for value in module.values())
    step: tuple[str, ...] = ("build the module, then module.load_state_dict(...)" if is_state else _NO_MODULE,)
    if isinstance(module, str | os.PathLike) and not os.fspath(module).endswith(".onnx"):
        step = _TEXT_FOR_MODULE
    raise UserError("E001", f"an object of type {type(module).__name__} is not a module", next=step)


def _tree_of(root: torch.nn.Module) -> ModuleTree:
    """The modules of ``root``. Raises UserError E107 where ``parameters()`` of the module itself fails."""
    tree = ModuleTree(root)
    try:
        {module for module in tree.modules if type(module).__hash__ is not object.__hash__}
    except TypeError as cause:
        raise UserError(
            "E107",
            f"the parameters of {type(root).__name__} cannot be listed",
            why=f"torch.nn.Module.parameters() raises TypeError: {cause}",
            next="give the class of the module a __hash__, such as torch.nn.Module.__hash__",
        ) from cause
    return tree


def _refuse_lazy(tree: ModuleTree) -> None:
    """Raise UserError E101 where a parameter or buffer gets its shape in the first call only."""
    one_of_each = {type(tensor): tensor for tensor in tree.weights}
    if any(map(torch.nn.parameter.is_lazy, one_of_each.values())):
        lazy = next(name for name, _, tensor in tree.tensors if torch.nn.parameter.is_lazy(tensor))
        what = f"the shape of {lazy} is not known before the module's first call"
        raise UserError("E101", what, next="call module(*args, **kwargs) once, then export it")


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
