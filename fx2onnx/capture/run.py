"""The fake strategy: run the module itself on fake tensors and record."""

from __future__ import annotations

import contextlib
import itertools
import re
import traceback
from typing import Any, cast

import torch
import torch.fx

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line
from fx2onnx.base.recursion import limit_reached
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.captured import NEXT, RETURNS_STATE, Captured, GraphInput, GraphOutput, Mutation, symbols_of
from fx2onnx.capture.python.custom_functions import note_symbolics
from fx2onnx.capture.python.file_names import install_names
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.inputs import Leaf
from fx2onnx.capture.python.module_state import keep_gradients, preserve, weight_names
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording import control_flow, size_checks
from fx2onnx.capture.recording.decisions import DecisionTrace, IsNoBranch, NoPathsPerCall, WrittenLater, no_choices
from fx2onnx.capture.recording.meta_cache import IMMEDIATE
from fx2onnx.capture.recording.outputs import graph_outputs
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import NeedsDecomposition, tensor_info
from fx2onnx.capture.shapes.guards import unmet_equalities, with_sizes
from fx2onnx.capture.shapes.python_sizes import install_size_functions
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, KEEP_TENSORS, ShapeEnv
from fx2onnx.capture.shapes.size_arguments import IndicesOfSizes, raised_by_brackets
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import DimLike
from fx2onnx.torchcompat.capture_modes import TakesGradients, capture_modes, install_assignment_hook
from fx2onnx.torchcompat.fake_tensors import (
    DataDependentOutputException,
    UnsupportedOperatorException,
    fake_from_meta,
)
from fx2onnx.torchcompat.frames import user_location_of
from fx2onnx.torchcompat.modules import PATHS, ModuleTree, track_modules
from fx2onnx.torchcompat.pytrees import Rebuild
from fx2onnx.torchcompat.tensor_questions import install_tensor_hooks

GRADIENTS_ARE_OFF = "does not require grad and does not have a grad_fn"
"""The words of autograd where it is asked for a gradient of what it did not track: torch has no class for it."""

OVERWRITTEN = "modified by an inplace operation"
"""The words of autograd where what it saved for a gradient was written."""
MOST_UNMET = 4
MAX_PATH_CHARS = 60
"""The most characters of a module's path in an error about modules nested a thousand deep."""


def run_on_all_paths(attempt: Attempt) -> Outcome:
    """The program with both ways of Python's decisions: one run, where it decides nothing."""
    if attempt.branching.per_call:
        return cast(Outcome, road("all paths").joined_paths(run, attempt))
    trace = no_choices(attempt.branching.by_sizes, attempt.branching.by_counts)
    outcome = run(attempt, trace)
    try:
        if isinstance(outcome, Recorded) and not trace.decisions:
            return outcome
        return cast(Outcome, road("all paths").joined_paths(run, attempt, (outcome, trace)))
    finally:
        del outcome  # this frame is behind the traceback of its error, and has no name for what it returns


def run(attempt: Attempt, trace: DecisionTrace | None = None) -> Outcome:
    """One run of a module on fake tensors whose dynamic sizes are symbols with the given hints. ``trace`` has the
    choices for Python's decisions by data. Whatever cannot be captured is a UserError with the user's line.
    """
    attempt.request.budget.spend(attempt.change)
    shape_env = attempt.shape_env()
    try:
        return Recorded(attempt, _captured(attempt, shape_env, trace), shape_env)
    except (NeedsDecomposition, TakesGradients) as error:
        return Failed(attempt, error, Reason.COMPOSITE)
    except WrittenLater as error:
        return Failed(attempt, error, Reason.WRITTEN)
    except NoPathsPerCall as error:
        return Failed(attempt, error)
    except IsNoBranch as error:
        return Failed(attempt, error, Reason.NO_BRANCH)
    except UserError as error:
        reason = error.reason if isinstance(error.reason, Reason) else Reason.ERROR
        if shape_env.hints and not attempt.numbers.takes_indices and raised_by_brackets(error.__cause__):
            reason = Reason.INDEX
        if not attempt.operators.gradients and GRADIENTS_ARE_OFF in str(error.__cause__):
            reason = Reason.GRADIENTS
        library_code = attempt.request.patches.decided_by_data(error) if error.code == "E104" else None
        unmet = tuple(itertools.islice(unmet_equalities(shape_env), MOST_UNMET))
        return Failed(attempt, error, reason, library_code, frozenset(shape_env.numbers_in), unmet=unmet)
    except Exception as error:  # a fault of the tracer need not stop the user
        return Failed(attempt, error)


def _captured(attempt: Attempt, shape_env: ShapeEnv, trace: DecisionTrace | None) -> Captured:
    control_flow.register()
    arguments, bake = attempt.arguments, attempt.baked.names
    program = attempt.root if attempt.program.module is None else attempt.program.module
    tree = ModuleTree(program)
    tracer = Tracer(shape_env, weight_names(tree), attempt.request.keep, attempt.operators.pre_dispatch, trace)
    tracer.runs_noop_guards = attempt.branching.has_noop_guards
    tracer.has_if_bodies = attempt.branching.has_bodies and attempt.operators.pre_dispatch and trace is not None
    fakes = [
        tracer.values.constant(leaf.tensor) if leaf.name in bake else _fake_input(tracer, leaf)
        for leaf in arguments.leaves
    ]
    for leaf, fake in zip(arguments.leaves, fakes, strict=True):
        if leaf.tensor.layout == torch.strided and leaf.tensor.storage_offset():
            tracer.values.storage_offsets[id(fake)] = int(leaf.tensor.storage_offset())
    inputs = [
        GraphInput(leaf.name, tensor_info(fake), tracer.values.add_input(leaf.name, fake), leaf.tensor, leaf.path)
        for leaf, fake in zip(arguments.leaves, fakes, strict=True)
        if leaf.name not in bake
    ]
    for graph_input in inputs:
        if graph_input.sample.requires_grad:
            tracer.values.wants_grad.add(graph_input.node)
        for symbol in symbols_of(graph_input.node):
            tracer.values.symbols.setdefault(symbol.name, symbol)
    args, kwargs = arguments.rebuilt(fakes)
    try:
        with Changes():
            held = arguments.held(fakes)
            outputs, restore, changed = _run_module(tracer, attempt, program, tree, args, kwargs, held, inputs)
            notes = [*attempt.request.patches.notes(), *tracer.notes_of_plugins()]
            tracer.warnings += [*tracer.symbolics.values(), *attempt.request.patches.warnings()]
    finally:
        tracer.end()
    return Captured(
        graph=tracer.values.graph,
        inputs=inputs,
        outputs=outputs,
        weights=tracer.values.weights,
        symbols=tracer.values.symbols,
        mutations=changed,
        strategy=attempt.program.strategy,
        warnings=[*attempt.baked.lines, *tracer.warnings],
        baked=list(bake),
        assumptions=[*notes],
        sizes=shape_env.sizes(),
        numbers_read=tracer.numbers_read,
        states_guards=attempt.options.data_branches == "if",
        restore=restore,
    )


def _run_module(
    tracer: Tracer,
    attempt: Attempt,
    program: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    given: dict[str, torch.Tensor],
    inputs: list[GraphInput],
) -> tuple[list[GraphOutput], Rebuild, list[Mutation]]:
    """Run the module once. All that this changes is as before when the caller's ``Changes`` end."""
    held = preserve(tree, attempt.options.training, attempt.arguments.objects())
    if given:
        held.names().put(given)
    if not attempt.operators.pre_dispatch:
        keep_gradients(tree)
    track_modules(tree)
    install_names(tree, attempt.numbers.files, install_size_functions())
    attempt.request.patches.apply(attempt.operators.traced, tracer.is_known)
    install_assignment_hook(lambda tensor, value: road("writes").assign_data(tracer, tensor, value))
    install_tensor_hooks(tracer.answer)
    put_name(THREAD, "tracer", tracer)
    note_symbolics(tracer.symbolics)
    if attempt.branching.per_call:
        road("paths of calls").explore_calls(tracer, attempt, tree)
    holds = not all(isinstance(arg, torch.Tensor) or type(arg) in IMMEDIATE for arg in (*args, *kwargs.values()))
    containers = road("changed state").Containers(attempt.arguments, args, kwargs) if holds else None
    indices = IndicesOfSizes() if attempt.numbers.files or attempt.numbers.takes_indices else contextlib.nullcontext()
    with capture_modes(tracer.values.fake_mode, tracer.mode, attempt.operators.gradients), indices:
        try:
            result = program(*args, **kwargs)
        except Exception as error:  # forward is the user's code: chained under the error with its line
            for plugin in tracer.plugins.values():
                plugin.failed(error)
            if isinstance(error, Fx2OnnxError):
                raise
            raise _raised(error, tracer) from error
        outputs, restore = graph_outputs(tracer, result, attempt.arguments)
        if tracer.values.checks or tracer.sizes.unchecked:
            size_checks.settle(tracer.values, tracer.sizes, outputs)
        for plugin in tracer.plugins.values():
            plugin.gave([output.value for output in outputs])
        snapshot = None if RETURNS_STATE in vars(attempt.root) else held
        return outputs, restore, _changes(tracer, attempt, inputs, outputs, snapshot, given, containers)


def _changes(
    tracer: Tracer,
    attempt: Attempt,
    inputs: list[GraphInput],
    outputs: list[GraphOutput],
    snapshot: Snapshot | None,
    given: dict[str, torch.Tensor],
    containers: Any,
) -> list[Mutation]:
    """What forward changed that stays, but for what outputs already give."""
    found: list[Mutation] = []
    if tracer.values.written or (snapshot is not None and not snapshot.is_as_before()):
        found += road("changed state").mutations(tracer, inputs, snapshot, attempt.arguments, given)
    if containers is not None:
        values = {output.value for output in outputs if isinstance(output.value, torch.fx.Node)}
        found += containers.changes(tracer, values)
    named = {output.name for output in outputs}
    return [each for each in found if each.name + NEXT not in named]


def _fake_input(tracer: Tracer, leaf: Leaf) -> torch.Tensor:
    tensor, mode = leaf.tensor, tracer.values.fake_mode
    sizes: list[DimLike] = [leaf.axes.get(axis, int(size)) for axis, size in enumerate(tensor.shape)]
    strides: list[int | torch.SymInt] | None = None
    steps: tuple[int, ...] = tensor.stride()
    if sizes == list(tensor.shape):
        return fake_from_meta(mode, tensor.shape, tensor.dtype, tensor.device, steps)
    order = sorted(range(tensor.dim()), key=lambda axis: (-steps[axis], axis))
    if order != list(range(tensor.dim())) and 0 not in steps:
        strides, step = [0] * tensor.dim(), 1
        for axis in reversed(order):
            strides[axis], step = sym_int(tracer.sizes, step), step * sizes[axis]  # type: ignore[assignment]
    return fake_from_meta(mode, [sym_int(tracer.sizes, size) for size in sizes], tensor.dtype, tensor.device, strides)


def _raised(error: Exception, tracer: Tracer) -> BaseException:
    """The user's error, or what an operator raised where the TorchScript interpreter made another exception of it."""
    is_of_script = str(error).startswith("The following operation failed in the TorchScript interpreter")
    if not is_of_script or tracer.failure is None:
        return _of_forward(error, tracer)
    if isinstance(tracer.failure, Fx2OnnxError) or not isinstance(tracer.failure, Exception):
        return tracer.failure
    return _of_forward(tracer.failure, tracer)


def _of_forward(cause: Exception, tracer: Tracer) -> UserError:
    error = _overwritten(cause, tracer) if OVERWRITTEN in str(cause) else _explained(cause)
    return with_sizes(error, tracer.sizes) if error.code == "E101" and cause is tracer.failure else error


def _overwritten(cause: Exception, tracer: Tracer) -> UserError:
    """A gradient needs a value that is no more: the line is that of the last write into a tensor of its sizes."""
    found = re.search(r"Tensor \[([\d, ]*)\]", str(cause))
    sizes = [] if found is None else [int(size) for size in found[1].split(",") if size.strip()]
    lines = [where for _, where in tracer.values.writes]
    lines += [where for written, where in tracer.values.writes if written == sizes]
    return UserError(
        "E101",
        "a value that a gradient needs is written in place",
        where=lines[-1] if lines else user_location_of(cause),
        why=f"{type(cause).__name__}: {first_line(cause)[:300]}",
        next=("compute a new tensor there: x = x + 1 in the place of x += 1", "or write into x.clone()"),
    )


_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\((?P<name>[\w:.]+)\)>")
"""The words of torch for an operator made by ``torch.library.custom_op`` without a fake kernel."""


def _explained(cause: Exception) -> UserError:
    """The user's error for an exception that came out of forward."""
    where = user_location_of(cause)
    if isinstance(cause, RecursionError):
        why, raising = limit_reached(cause)
        return UserError(
            "E101",
            "forward calls deeper than Python's recursion limit",
            where=where,
            module_path=_innermost_module(cause),
            why=why,
            next=(raising, "otherwise end the recursion in forward"),
        )
    if isinstance(cause, DataDependentOutputException):
        return UserError(
            *DATA_DECIDES, where=where, why=f"{cause.func} would need the tensor's numbers", next=KEEP_TENSORS
        )
    without_fake = _NO_FAKE.search(str(cause))
    if isinstance(cause, UnsupportedOperatorException) or without_fake:
        name = str(cause.func) if isinstance(cause, UnsupportedOperatorException) else without_fake["name"]  # type: ignore[index]
        return UserError(
            "E107",
            f"{name} cannot run on fake tensors",
            where=where,
            why="the operator has no implementation that computes only shapes",
            next="register one with torch.library.register_fake, which returns empty tensors of the right shapes and dtypes"
            "   (docs/adding_an_op.md)",
        )
    return UserError(
        "E101",
        "the module failed while it was run on fake tensors (shapes only, no data)",
        where=where,
        why=f"{type(cause).__name__}: {first_line(cause)[:300]}",
        next="check that module(*args, **kwargs) runs in eager PyTorch with these arguments",
    )


def _innermost_module(cause: BaseException) -> str:
    """The path of the module in whose call the exception was raised; of a long one, its end."""
    path = ""
    for frame, _ in traceback.walk_tb(cause.__traceback__):
        path = PATHS.name_of(frame.f_locals.get("self")) or path
    return path if len(path) <= MAX_PATH_CHARS else f"...{path[-MAX_PATH_CHARS:]}"
