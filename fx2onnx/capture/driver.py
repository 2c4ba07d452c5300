"""``capture``: choose a rung, run it, and settle which dynamic sizes really are dynamic."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from fx2onnx.base.assumptions import Guard, Relation, Specialization
from fx2onnx.base.changes import Changes, before_change, undone
from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import record
from fx2onnx.base.tracebacks import empty_frames
from fx2onnx.capture.attempt import Attempt
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.fallback import export_may_help
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.patches import NO_PATCHES, Patches
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args, refuse_repeated
from fx2onnx.capture.python.module_calls import Called, call_as_one
from fx2onnx.capture.python.module_state import keep_buffers, preserve
from fx2onnx.capture.python.module_tree import ModuleTree
from fx2onnx.capture.python.process_state import keep_process_state
from fx2onnx.capture.recording import branches
from fx2onnx.capture.recording.branches import Branches
from fx2onnx.capture.recording.tensor_tracker import NeedsDecomposition
from fx2onnx.capture.shapes import zero_one
from fx2onnx.capture.shapes.dynamic import set_dynamic_axes
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.strategies import fake, symbolic
from fx2onnx.capture.strategies.exported import exported

DEFAULTS = CaptureOptions()
MAX_RUNS = 16
"""Each further run settles at least one size; a module that specializes more sizes than this is refused."""

_LOCK: Any = threading.RLock()
"""One thread captures at a time: a function is patched for one thread only."""


def _alone(run: Callable[[], Captured]) -> Captured:
    """``run()`` while no other thread captures; whatever it changes is as before afterwards."""
    is_outermost = not _LOCK._is_owned()

    def locked() -> Captured:
        if is_outermost:
            before_change(_let_go)
        with _LOCK:
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
) -> Captured:
    """``module(*args, **kwargs)`` as a functional ATen graph; nothing of it is computed.

    ``keep(overload)`` says which overloads stay whole; others are split by PyTorch's decompositions where there are.
    ``patches`` of library functions are in place while the module runs. ``single_calls``: classes of submodules each call
    of which is one operator, and who is told of it. Raises UserError E1xx.
    """
    with record("bind arguments"):
        root = as_module(module)
        positional, named = normalise_args(args, kwargs)
        arguments = bind(root.forward, positional, named, options.input_names)
        optional = set_dynamic_axes(arguments, options.dynamic_shapes, options.dynamic_axes)
        _check_baked(arguments, options.bake)

    def run() -> Captured:
        keep_process_state()
        if single_calls is not None:
            call_as_one(root, *single_calls)
        attempt = Attempt(root, arguments, options, keep, patches)
        return _RUNS[options.rung](Driver(frozenset(optional)), attempt)

    try:
        captured = _alone(run)
    except UserError as error:
        error.add_next(patches.warnings())
        raise
    captured.warnings = arguments.notes + captured.warnings
    _name_outputs(captured, options.output_names)
    return captured


def _by_symbolic(driver: Driver, attempt: Attempt) -> Captured:
    with record("symbolic trace"), Changes():
        tree = ModuleTree(attempt.root)
        preserve(tree, attempt.options.training)
        with Changes():
            keep_buffers(tree)
            copy = symbolic.traced(attempt.root, attempt.arguments)
        captured, last = symbolic.as_traced(lambda: driver.run(replace(attempt, root=copy, strategy="symbolic")))
    with record("compare with the module's own run"):
        again = replace(attempt, arguments=last.arguments, change="compared with the traced copy")
        symbolic.check_same_program(captured, driver.run(again)[0])
    captured.rung, captured.rung_reason = "symbolic", "asked for; checked against the module's own run"
    return captured


def _by_fake(driver: Driver, attempt: Attempt) -> Captured:
    captured, _ = driver.run(attempt)
    captured.rung_reason = "asked for"
    return captured


def _by_export(driver: Driver, attempt: Attempt) -> Captured:
    with record("torch.export"), Changes():
        preserve(ModuleTree(attempt.root), attempt.options.training)
        program = exported(attempt.root, attempt.arguments)
    captured, _ = driver.run(replace(attempt, root=program, strategy="export"))
    captured.rung, captured.rung_reason = "export", "asked for"
    return captured


def _by_best(driver: Driver, attempt: Attempt) -> Captured:
    """The module's own run; where that fails and torch.export may help, torch.export; the first failure is the one raised."""
    try:
        captured, _ = driver.run(attempt)
    except Exception as found:  # ours too: a fault of the recorder need not stop the user
        if not export_may_help(found):
            raise
        empty_frames(found)
        failure = found
    else:
        captured.rung_reason = "the module ran on fake tensors as it is: its own Python, no traced copy to compare with"
        return captured
    why = f"the module's own run on fake tensors failed: {_in_a_line(failure)}"
    second: Captured | None = None
    with contextlib.suppress(Exception):  # what torch.export raises says less than the failure of the module's own run
        second = _by_export(driver, replace(attempt, change=why))
    if second is None:
        raise failure from failure.__cause__
    second.rung_reason = why
    del failure  # its traceback leads to this frame
    return second


_RUNS = {"auto": _by_best, "symbolic": _by_symbolic, "fake": _by_fake, "export": _by_export}


def _in_a_line(failure: Exception) -> str:
    if not isinstance(failure, Fx2OnnxError):
        return f"{type(failure).__name__}: {str(failure)[:200]}"
    return f"[{failure.code}] {failure.what}" + (f"   ({failure.where})" if failure.where else "")


def _check_baked(arguments: Arguments, bake: Sequence[str]) -> None:
    names = [leaf.name for leaf in arguments.leaves]
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
    original = getattr(module, "_orig_mod", None)
    if isinstance(original, torch.nn.Module):
        return original
    if isinstance(module, torch.nn.DataParallel):
        return as_module(module.module)
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError(
            "E001",
            "a torch.jit.ScriptModule cannot be exported",
            why="its Python is gone; only TorchScript's own graph is left",
            next="export the nn.Module that was scripted",
        )
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


class Driver:
    """Tries, diagnoses, changes one thing of the attempt, and tries again. ``log`` has every attempt."""

    def __init__(self, optional: frozenset[str]) -> None:
        self._optional = optional
        """Sizes that may become static, since nobody asked for them by name."""
        self.log: list[str] = []

    def run(self, attempt: Attempt) -> tuple[Captured, Attempt]:
        """Until no dynamic size is specialized any more: the graph, and the attempt that gave it. A size that Python
        specializes becomes static, or is refused.
        """
        specializations: list[Specialization] = []
        attempt = attempt.at_sample()
        for _ in range(MAX_RUNS):
            hints = attempt.hints
            captured, shape_env = self._outcome(attempt)
            with record("settle dynamic sizes"):
                change = _specialized(shape_env, hints)
            may_differ: frozenset[Any] = frozenset()
            larger = zero_one.sizes_above_one(shape_env, hints) if change is not None else {}
            if larger:
                again = self._unless_refused(
                    replace(attempt, larger=larger, change=f"with the sizes {_listed(larger)}")
                )
                if again is not None and zero_one.user_guards_hold_at(again[1], hints):
                    left = _specialized(again[1], {**hints, **larger})
                    if left is None or left.size.as_symbol() not in larger:
                        (captured, shape_env), change = again, left
                        may_differ = zero_one.kernels_differ_at(shape_env, hints)
            if change is None:
                captured.assumptions += [
                    *specializations,
                    *shape_env.assertions,
                    *(
                        guard
                        for key, guard in shape_env.guards.items()
                        if key not in may_differ and (guard.by_user or not _is_harmless(guard, hints))
                    ),
                ]
                captured.attempts = self.log
                return captured, attempt
            self._refuse_static(change)
            specializations.append(change)
            attempt = attempt.specialized(change)
        why = "; ".join(map(str, specializations))
        raise UserError("E105", f"more than {MAX_RUNS} dynamic sizes are specialized by the module", why=why)

    def _refuse_static(self, change: Specialization) -> None:
        """Raise UserError E105 where the size must not become a number."""
        name = str(change.size.as_symbol())
        if isinstance(change.value, int) and name not in self._optional:
            raise UserError(
                "E105",
                f"the dynamic size {name} is used as the fixed number {change.value}",
                where=change.where,
                why="Python or an operator there needs a plain number, so the graph holds only for that size",
                next=(
                    f"make the size static (leave {name} out of dynamic_shapes)",
                    "or keep it symbolic: no int(), no loop over it, no comparison with a number",
                ),
            )

    def _outcome(self, attempt: Attempt) -> Outcome:
        self.log.append(str(attempt))
        run = functools.partial(self._path, attempt)
        with record("run on fake tensors"):
            return branches.joined_paths(run) if attempt.options.data_branches == "if" else run()

    def _unless_refused(self, attempt: Attempt) -> Outcome | None:
        try:
            return self._outcome(attempt)
        except UserError as error:
            empty_frames(error)
            return None

    def _path(self, attempt: Attempt, branches: Branches | None = None) -> Outcome:
        """One run of the module, again while a failure says what to do otherwise."""
        while True:
            try:
                return fake.run(attempt, branches)
            except NeedsDecomposition:
                attempt = replace(
                    attempt, whole=False, change="composite operators are recorded by what they consist of"
                )
            except UserError as error:
                code = attempt.patches.decided_by_data(error) if error.code == "E104" else None
                if code is None:
                    raise
                empty_frames(error)
                change = f"{code.co_qualname} takes its branch for traced code"
                attempt = replace(attempt, traced=attempt.traced | {code}, change=change)
            self.log.append(str(attempt))


Outcome: TypeAlias = tuple[Captured, ShapeEnv]


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _specialized(env: ShapeEnv, hints: Mapping[str, int]) -> Specialization | None:
    """A symbol that the run forced to a number (or to another symbol), and the line that did it."""
    for done in env.specializations.values():
        for name in sorted(done.size.symbols() & set(hints)):
            return Specialization(Dim.symbol(name), hints[name], done.where)
    for guard in env.guards.values():
        relation = guard.relation
        if relation.op != "eq" or any(isinstance(arg, Relation) for arg in relation.args):
            continue
        gap = relation.args[0] - relation.args[1]
        if not isinstance(gap, Dim):
            continue
        if all(isinstance(arg, Dim) for arg in relation.args) and _holds_nearby(gap, hints):
            continue
        change = _solved(gap, hints)
        if change is not None:
            return Specialization(Dim.symbol(change[0]), change[1], guard.where)
    return None


def _holds_nearby(gap: Dim, hints: Mapping[str, int]) -> bool:
    """Whether ``gap == 0`` is true of a range of sizes, such as ``min(n, 512) == n``: an assumption, but no fixed size."""
    names = gap.symbols()
    if len(names) != 1 or not names <= set(hints):
        return False
    (name,) = names
    return any(gap.evaluate({name: hints[name] + step}) == 0 for step in (-1, 1))


def _solved(gap: Dim, hints: Mapping[str, int]) -> tuple[str, DimLike] | None:
    """``gap == 0`` solved for one symbol, where that is possible without a remainder and does not hang on the data."""
    names = sorted(gap.symbols() & set(hints))
    if gap.symbols() - set(hints):
        return None
    plain = [
        (str(monomial[0].args[0]), factor)
        for monomial, factor in gap.terms.items()
        if len(monomial) == 1 and monomial[0].op == "symbol"
    ]
    if len(names) == 1:
        return names[0], hints[names[0]]
    for name, factor in plain:
        rest = gap - factor * Dim.symbol(name)
        if abs(factor) == 1 and isinstance(rest, Dim) and name not in rest.symbols() and name in hints:
            return name, rest * -int(factor)  # type: ignore[return-value]
    return None


def _is_harmless(guard: Guard, hints: Mapping[str, int]) -> bool:
    """Whether the relation is true at every size of a varied list: true of torch's checks for 0, 1 and strides."""
    if not guard.by_user and guard.during in _CHOOSES_KERNELS:
        return True
    return ShapeEnv(dict(hints)).holds_at_ordinary_sizes(guard.relation)


_CHOOSES_KERNELS = frozenset(f"aten::{name}" for name in ("conv1d", "conv2d", "conv3d", "convolution"))
"""Overloads that look at sizes to choose a kernel; their result's shape follows a formula whatever they choose."""


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
