"""The fake strategy: run the module itself on fake tensors and record."""

from __future__ import annotations

import contextlib
import itertools
import re
import traceback

import torch
import torch.fx

from fx2onnx.base.changes import Changes
from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line
from fx2onnx.base.recursion import limit_reached
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Reason, Recorded
from fx2onnx.capture.captured import NEXT, RETURNS_STATE, Captured, GraphInput, GraphOutput, Mutation, symbols_of
from fx2onnx.capture.python.custom_functions import note_symbolics
from fx2onnx.capture.python.file_names import take_names
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import Leaf
from fx2onnx.capture.python.module_state import keep_gradients, preserve, weight_names
from fx2onnx.capture.python.outputs import graph_outputs
from fx2onnx.capture.recording import control_flow, size_checks
from fx2onnx.capture.recording.changed_state import Containers, mutations
from fx2onnx.capture.recording.choices import Branches, NoScope
from fx2onnx.capture.recording.conditional_bodies import ConditionalBodies, IsNoBranch
from fx2onnx.capture.recording.given import take_given
from fx2onnx.capture.recording.idle_statements import IdleStatements, WrittenLater
from fx2onnx.capture.recording.questions import Questions
from fx2onnx.capture.recording.recorder import Recorder
from fx2onnx.capture.recording.repeats import take_repeats
from fx2onnx.capture.recording.scopes import Scopes
from fx2onnx.capture.recording.tensor_tracker import NeedsDecomposition, tensor_info
from fx2onnx.capture.shapes.guards import unmet_equalities, with_sizes
from fx2onnx.capture.shapes.python_sizes import install_size_functions
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, KEEP_TENSORS, ShapeEnv
from fx2onnx.capture.shapes.size_arguments import IndicesOfSizes, raised_by_brackets
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import DimLike
from fx2onnx.torchcompat.capture_modes import TakesGradients, capture_modes, take_assignments
from fx2onnx.torchcompat.fake_tensors import (
    DataDependentOutputException,
    UnsupportedOperatorException,
    fake_from_meta,
)
from fx2onnx.torchcompat.frames import user_location_of
from fx2onnx.torchcompat.modules import PATHS, ModuleTree, track_modules
from fx2onnx.torchcompat.pytrees import Rebuild
from fx2onnx.torchcompat.tensor_questions import take_questions

GRADIENTS_ARE_OFF = "does not require grad and does not have a grad_fn"
"""What autograd says where it is asked for a gradient of what it did not track."""

OVERWRITTEN = "modified by an inplace operation"
"""What autograd says where what it saved for a gradient was written."""
MOST_UNMET = 4
MAX_PATH_CHARS = 60
"""Of a module's path, in an error about modules nested a thousand deep."""


def run(attempt: Attempt, branches: Branches | None = None) -> Outcome:
    """One run of a module on fake tensors whose dynamic sizes are symbols with the given hints. ``branches`` has the
    choices for Python's decisions by data. Whatever cannot be captured is a UserError with the user's line.
    """
    shape_env = attempt.shape_env()
    try:
        return Recorded(attempt, _captured(attempt, shape_env, branches), shape_env)
    except (NeedsDecomposition, TakesGradients) as error:
        return Failed(attempt, error, Reason.COMPOSITE)
    except WrittenLater as error:
        return Failed(attempt, error, Reason.WRITTEN)
    except NoScope as error:
        return Failed(attempt, error)
    except IsNoBranch as error:
        return Failed(attempt, error, Reason.NO_BRANCH)
    except UserError as error:
        wanted = {shape_env.wanted_number: Reason.PLAIN_NUMBER, shape_env.wanted_real: Reason.REAL_NUMBER}
        reason = wanted.get(str(error), Reason.ERROR)
        if shape_env.hints and not attempt.takes_indices and raised_by_brackets(error.__cause__):
            reason = Reason.INDEX
        if not attempt.gradients and GRADIENTS_ARE_OFF in str(error.__cause__):
            reason = Reason.GRADIENTS
        library_code = attempt.patches.decided_by_data(error) if error.code == "E104" else None
        unmet = tuple(itertools.islice(unmet_equalities(shape_env), MOST_UNMET))
        return Failed(attempt, error, reason, library_code, frozenset(shape_env.numbers_in), unmet=unmet)
    except Exception as error:  # a fault of the recorder need not stop the user
        return Failed(attempt, error)


def _captured(attempt: Attempt, shape_env: ShapeEnv, branches: Branches | None) -> Captured:
    control_flow.register()
    arguments, bake = attempt.arguments, attempt.bake
    program = attempt.root if attempt.program is None else attempt.program
    tree = ModuleTree(program)
    recorder = Recorder(shape_env, weight_names(tree), attempt.keep, attempt.whole, branches)
    recorder.idle = IdleStatements() if attempt.runs_idle else None
    if attempt.has_bodies and attempt.whole and branches is not None:
        recorder.bodies = ConditionalBodies()
        recorder.check_call = recorder.bodies.check_use
    fakes = [
        recorder.constant(leaf.tensor) if leaf.name in bake else _fake_input(recorder, leaf)
        for leaf in arguments.leaves
    ]
    for leaf, fake in zip(arguments.leaves, fakes, strict=True):
        if leaf.tensor.layout == torch.strided and leaf.tensor.storage_offset():
            recorder.storage_offsets[id(fake)] = int(leaf.tensor.storage_offset())
    inputs = [
        GraphInput(leaf.name, tensor_info(fake), recorder.add_input(leaf.name, fake), leaf.tensor, leaf.path)
        for leaf, fake in zip(arguments.leaves, fakes, strict=True)
        if leaf.name not in bake
    ]
    for graph_input in inputs:
        if graph_input.sample.requires_grad:
            recorder.wants_grad.add(graph_input.node)
        for symbol in symbols_of(graph_input.node):
            recorder.symbols.setdefault(symbol.name, symbol)
    args, kwargs = arguments.rebuilt(fakes)
    scopes = Scopes(recorder, attempt, tree)
    try:
        with Changes():
            held = arguments.held(fakes)
            outputs, restore, changed = _run_module(recorder, attempt, program, scopes, args, kwargs, held, inputs)
            notes = [*attempt.patches.notes(), *(recorder.bodies.notes if recorder.bodies is not None else ())]
            notes += scopes.notes
            recorder.warnings += [*recorder.symbolics.values(), *attempt.patches.warnings()]
    finally:
        recorder.failure = None
        if recorder.bodies is not None:
            recorder.bodies.end()
    return Captured(
        graph=recorder.graph,
        inputs=inputs,
        outputs=outputs,
        weights=recorder.weights,
        symbols=recorder.symbols,
        mutations=changed,
        rung=attempt.strategy,
        warnings=[*attempt.baked_for, *recorder.warnings],
        baked=list(bake),
        assumptions=[*notes],
        sizes=shape_env.sizes(),
        numbers_read=recorder.numbers_read,
        states_guards=attempt.options.data_branches == "if",
        restore=restore,
    )


def _run_module(
    recorder: Recorder,
    attempt: Attempt,
    program: torch.nn.Module,
    scopes: Scopes,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    given: dict[str, torch.Tensor],
    inputs: list[GraphInput],
) -> tuple[list[GraphOutput], Rebuild, list[Mutation]]:
    """What the run changes is as before when the caller's ``Changes`` end."""
    tree = scopes.tree
    held = preserve(tree, attempt.options.training, attempt.arguments.objects())
    Names(held).put(given)
    if not attempt.whole:
        keep_gradients(tree)
    track_modules(tree)
    take_names(tree, attempt.numbers_in, install_size_functions())
    attempt.patches.apply(attempt.traced, recorder.is_known)
    take_assignments(recorder.take_data)
    take_questions(Questions(recorder))
    take_repeats(recorder)
    take_given(recorder)
    note_symbolics(recorder.symbolics)
    scopes.put_in()
    containers = Containers(attempt.arguments, args, kwargs)
    indices = IndicesOfSizes() if attempt.numbers_in or attempt.takes_indices else contextlib.nullcontext()
    with capture_modes(recorder.fake_mode, recorder.mode, attempt.gradients), indices:
        try:
            result = program(*args, **kwargs)
        except Exception as error:  # forward is the user's code: chained under the error with its line
            wants_number = str(error) in (recorder.shape_env.wanted_number, recorder.shape_env.wanted_real)
            if recorder.bodies is not None and recorder.bodies.are_open and not wants_number:
                raise IsNoBranch("a body fails") from error
            if isinstance(error, Fx2OnnxError):
                raise
            raise _raised(error, recorder) from error
        outputs, restore = graph_outputs(recorder, result, attempt.arguments)
        size_checks.settle(recorder, outputs)
        if recorder.bodies is not None:
            recorder.bodies.check_ends([output.value for output in outputs])
        named = {output.name for output in outputs}
        snapshot = None if RETURNS_STATE in vars(attempt.root) else held
        found = mutations(recorder, inputs, snapshot, attempt.arguments, given)
        found += containers.changes(
            recorder, {output.value for output in outputs if isinstance(output.value, torch.fx.Node)}
        )
        return outputs, restore, [each for each in found if each.name + NEXT not in named]


def _fake_input(recorder: Recorder, leaf: Leaf) -> torch.Tensor:
    tensor, mode = leaf.tensor, recorder.fake_mode
    sizes: list[DimLike] = [leaf.axes.get(axis, int(size)) for axis, size in enumerate(tensor.shape)]
    strides: list[int | torch.SymInt] | None = None
    steps: tuple[int, ...] = tensor.stride()
    if sizes == list(tensor.shape):
        return fake_from_meta(mode, tensor.shape, tensor.dtype, tensor.device, steps)
    order = sorted(range(tensor.dim()), key=lambda axis: (-steps[axis], axis))
    if order != list(range(tensor.dim())) and 0 not in steps:
        strides, step = [0] * tensor.dim(), 1
        for axis in reversed(order):
            strides[axis], step = sym_int(recorder.shape_env, step), step * sizes[axis]  # type: ignore[assignment]
    return fake_from_meta(
        mode, [sym_int(recorder.shape_env, size) for size in sizes], tensor.dtype, tensor.device, strides
    )


def _raised(error: Exception, recorder: Recorder) -> BaseException:
    """The user's error, or what an operator raised where the TorchScript interpreter made another exception of it."""
    is_of_script = str(error).startswith("The following operation failed in the TorchScript interpreter")
    if not is_of_script or recorder.failure is None:
        return _of_forward(error, recorder)
    if isinstance(recorder.failure, Fx2OnnxError) or not isinstance(recorder.failure, Exception):
        return recorder.failure
    return _of_forward(recorder.failure, recorder)


def _of_forward(cause: Exception, recorder: Recorder) -> UserError:
    error = _overwritten(cause, recorder) if OVERWRITTEN in str(cause) else _explained(cause)
    return with_sizes(error, recorder.shape_env) if error.code == "E101" and cause is recorder.failure else error


def _overwritten(cause: Exception, recorder: Recorder) -> UserError:
    """A gradient needs a value that is no more: the line is that of the last write into a tensor of its sizes."""
    found = re.search(r"Tensor \[([\d, ]*)\]", str(cause))
    sizes = [] if found is None else [int(size) for size in found[1].split(",") if size.strip()]
    lines = [where for _, where in recorder.writes]
    lines += [where for written, where in recorder.writes if written == sizes]
    return UserError(
        "E101",
        "a value that a gradient needs is written in place",
        where=lines[-1] if lines else user_location_of(cause),
        why=f"{type(cause).__name__}: {first_line(cause)[:300]}",
        next=("compute a new tensor there: x = x + 1 in the place of x += 1", "or write into x.clone()"),
    )


_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\((?P<name>[\w:.]+)\)>")
"""What torch raises for an operator made by ``torch.library.custom_op``."""


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
