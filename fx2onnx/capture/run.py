"""The fake strategy: run the module itself on fake tensors and record."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.fx

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.escape import storable
from fx2onnx.base.notices import errors_made
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded
from fx2onnx.capture.captured import NEXT, RETURNS_STATE, Captured, GraphInput, GraphOutput, Mutation, symbols_of
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.file_names import install_names
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.python.module_state import preserve, weight_names
from fx2onnx.capture.python.stand_ins import LENGTHS
from fx2onnx.capture.python.within import tensors_within
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording import control_flow, size_checks
from fx2onnx.capture.recording.decisions import (
    DecisionTrace,
    FirstTurnDiffers,
    IsNoBranch,
    NoPathsPerCall,
    WrittenLater,
    no_choices,
)
from fx2onnx.capture.recording.meta_cache import IMMEDIATE
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import NeedsDecomposition, tensor_info
from fx2onnx.capture.settle import may_have_arrays
from fx2onnx.capture.shapes.python_sizes import install_size_functions
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.size_arguments import IndicesOfSizes
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import DimLike
from fx2onnx.torchcompat.capture_modes import (
    TakesGradients,
    capture_modes,
    install_assignment_hook,
    note_symbolics,
    say_compiling,
)
from fx2onnx.torchcompat.fake_tensors import fake_from_meta
from fx2onnx.torchcompat.modules import ModuleTree, track_modules
from fx2onnx.torchcompat.pytrees import Key, Rebuild, flatten
from fx2onnx.torchcompat.tensor_questions import install_tensor_hooks


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
    choices for Python's data-dependent decisions. Whatever cannot be captured is a UserError with the user's line.
    """
    attempt.request.budget.spend(attempt.change)
    attempt.request.outside.put_back()
    shape_env = attempt.shape_env()
    try:
        return Recorded(attempt, _captured(attempt, shape_env, trace), shape_env)
    except (NeedsDecomposition, TakesGradients) as error:
        return Failed(attempt, error, Reason.COMPOSITE)
    except WrittenLater as error:
        return Failed(attempt, error, Reason.WRITTEN)
    except FirstTurnDiffers as error:
        return Failed(attempt, error, Reason.FIRST_TURN)
    except NoPathsPerCall as error:
        return Failed(attempt, error)
    except IsNoBranch as error:
        return Failed(attempt, error, Reason.NO_BRANCH)
    except UserError as error:
        return cast(Outcome, road("a failed run").failed(attempt, error, shape_env))
    except Exception as error:  # a fault of the tracer need not stop the user
        return Failed(attempt, error)


def _captured(attempt: Attempt, shape_env: ShapeEnv, trace: DecisionTrace | None) -> Captured:
    control_flow.register()
    arguments, bake = attempt.arguments, attempt.baked.names
    program = attempt.root if attempt.program.module is None else attempt.program.module
    tree = attempt.request.tree if program is attempt.root else ModuleTree(program)
    tracer = Tracer(shape_env, weight_names(tree), attempt.request.keep, attempt.operators.pre_dispatch, trace)
    tracer.values.fake_mode.released = attempt.request.outside.tensors
    tracer.branching = branching = attempt.branching
    tracer.has_arrays, tracer.may_have_arrays = attempt.numbers.has_arrays, may_have_arrays(attempt)
    tracer.looped = attempt.may_have_loops()
    tracer.has_if_bodies = branching.has_bodies and attempt.operators.pre_dispatch and trace is not None
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
            notes = [*attempt.request.patches.notes(), *tracer.notes_of_plugins(), *_notes_of(attempt)]
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
    track_modules(tree)
    functions = install_size_functions()
    if tracer.has_arrays:
        functions |= road("NumPy in tensors").installed_arrays()
    loops = tracer.plugin("loops").installed(functions) if attempt.branching.has_loops else None
    install_names(tree, held.functions, attempt.numbers.files, functions, loops, has_arrays=tracer.has_arrays)
    attempt.request.patches.apply(attempt.operators.traced, tracer.is_known)
    if attempt.operators.compiling is not None:
        say_compiling()
    install_assignment_hook(
        lambda tensor, value: road("writes").assign_data(tracer, tensor, value),
        lambda tensor, value: id(tensor) in tracer.values.names and road("writes").read_data(tracer, tensor, value),
    )
    install_tensor_hooks(tracer.answer)
    put_name(THREAD, "tracer", tracer)
    note_symbolics(tracer.symbolics)
    if attempt.branching.per_call:
        road("paths of calls").explore_calls(tracer, attempt, tree)
    holds = not all(isinstance(arg, torch.Tensor) or type(arg) in IMMEDIATE for arg in (*args, *kwargs.values()))
    containers = road("changed state").Containers(attempt.arguments, args, kwargs) if holds else None
    indices = IndicesOfSizes() if attempt.numbers.files or attempt.numbers.takes_indices else contextlib.nullcontext()
    modes = capture_modes(tracer.values.fake_mode, tracer.mode, attempt.operators.gradients)
    with modes, indices, errors_made() as made:
        try:
            result = program(*args, **kwargs)
        except Exception as error:  # forward is the user's code: chained under the error with its line
            for plugin in tracer.plugins.values():
                plugin.failed(error)
            if isinstance(error, Fx2OnnxError):
                raise
            raise road("a failed run").raised(error, tracer) from error
        if made or tracer.failed or tracer.sizes.was_refused():
            road("errors that forward catches").check_caught(made, tracer)
        outputs, restore = graph_outputs(tracer, result, attempt.arguments, attempt.request.outside.returned)
        if tracer.values.checks or tracer.sizes.unchecked:
            size_checks.settle(tracer.values, tracer.sizes, outputs)
        if tracer.values.copies and tracer.values.writes:
            road("shared memory").check_copies(tracer, outputs)
        for plugin in tracer.plugins.values():
            plugin.gave([output.value for output in outputs])
        snapshot = None if RETURNS_STATE in vars(attempt.root) else held
        return outputs, restore, _changes(tracer, attempt, inputs, outputs, snapshot, given, containers)


def _notes_of(attempt: Attempt) -> list[Assumption]:
    where = attempt.operators.compiling
    what = "torch.compiler.is_compiling() is true: libraries take the code that they have for torch.compile and torch.export"
    return [] if where is None else [Assumption(what, where)]


def _changes(
    tracer: Tracer,
    attempt: Attempt,
    inputs: list[GraphInput],
    outputs: list[GraphOutput],
    snapshot: Snapshot | None,
    given: dict[str, torch.Tensor],
    containers: Any,
) -> list[Mutation]:
    """The changes of forward that stay, without those that outputs give already."""
    found: list[Mutation] = []
    written, sources = tracer.values.written, tracer.values.sources.values()
    is_written = bool(written) and any(id(view.memory) in written for view in sources)
    if is_written or (snapshot is not None and not snapshot.is_as_before()):
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


_HELD = (torch.Tensor, int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


_RETURNS_LIST = (
    "forward returns a list of a dynamic length, and no torch.stack of it",
    "return one tensor: torch.stack(out) in the place of the list out, of padded tensors where they differ",
)
"""The reason for refusing such a list, and the step to take."""


def graph_outputs(
    tracer: Tracer, result: object, arguments: Arguments, returned: list[object]
) -> tuple[list[GraphOutput], Rebuild]:
    """Every tensor and number in ``result``, named, and a function that builds ``result`` again from their values.

    Anything else but None is said in the tracer's warnings, and added to ``returned``, except for what holds tensors of
    the run, which end with it: it is None in the result. Raises: UserError E107 where nothing is left.
    """
    leaves, rebuild = flatten(result)
    outputs: list[GraphOutput] = []
    places: list[int | None] = []
    taken: set[str] = set()
    others: list[str] = []
    gone: set[int] = set()
    for leaf in leaves:
        value = _as_tensor(leaf.value)
        if not isinstance(value, _HELD):
            places.append(None)
            is_own = not _is_of(arguments, value)
            if is_own and any(id(tensor) in tracer.values.views for tensor in tensors_within(value)):
                gone.add(id(value))
            else:
                returned.append(value)
            if type(value) in LENGTHS:
                raise tracer.plugin("loops").refused(*_RETURNS_LIST)
            if value is not None and is_own:
                others.append(f"{leaf.path() or 'it'} is a {type(value).__name__}")
            continue
        wanted = name = output_name(leaf.keys)
        while name in taken:
            name += "_"
        if name != wanted:
            tracer.warnings.append(f"the output {leaf.path()} is called {name}: another one is called {wanted}")
        taken.add(name)
        node = tracer.values.node_of(value) if isinstance(value, torch.Tensor) else unwrap(value)
        places.append(len(outputs))
        outputs.append(GraphOutput(name, node, leaf.path()))
    if others and not outputs:
        raise UserError(
            "E107",
            "forward returns nothing that a file can hold",
            why=f"its result has no tensor and no number: {'; '.join(others[:5])}",
            next=(
                *([road("arguments that do not fit").MODULE_MADE] if isinstance(result, torch.nn.Module) else []),
                "return tensors, numbers, or dicts, tuples, lists and dataclasses of them",
                "or register the class with torch.utils._pytree.register_pytree_node",
            ),
        )
    tracer.warnings += [f"not in the file: forward's result {text}" for text in others]

    constants = [
        leaf.value if place is None and id(leaf.value) not in gone else None
        for leaf, place in zip(leaves, places, strict=True)
    ]

    def restore(values: Sequence[object]) -> object:
        return rebuild([constants[i] if place is None else values[place] for i, place in enumerate(places)])

    return outputs, restore


def _as_tensor(value: object) -> object:
    """A number with a fraction that data or sizes decide, in Python's float64; any other ``value`` as it is."""
    if type(value) is DataNumber:
        return value.tensor
    return torch.scalar_tensor(value, dtype=torch.float64) if type(value) is torch.SymFloat else value  # type: ignore[arg-type]


def _is_of(arguments: Arguments, value: object) -> bool:
    """Return whether arguments hold all tensors of an object: what forward changes in them is an output by itself."""
    known = {id(given) for _, given in arguments.objects()}
    if id(value) in known:
        return True
    held, found = Snapshot((), arguments.objects()).tensors, Snapshot((), [("", value)]).tensors
    return bool(found) and found.keys() <= held.keys()


def output_name(keys: tuple[Key, ...]) -> str:
    """``logits`` for a key or field, ``output_0`` for a position, ``output`` for a lone tensor."""
    text = storable("_".join(map(str, keys)))
    return text if keys and isinstance(keys[0], str) and not keys[0].isdigit() else f"output_{text}".rstrip("_")
