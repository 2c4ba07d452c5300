"""Shape and dtype errors that can be known before anything runs.

Kernels' own ``infer`` functions run over abstract arrays, of stride 0, which have a shape and dtype and no memory. Bodies
that surely run are looked at like the graph around them. ONNX's C++ shape inference is not used, because a malformed
model can make it crash the process.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.limits import memory_limit
from fx2onnx.semantics.reading.abstract import (
    AbstractState,
    AbstractValues,
    DimKey,
    declared_dims,
    entries_of,
    holds_values,
    outcome_of,
)
from fx2onnx.semantics.reading.program import (
    KERNEL_FAULTS,
    Program,
    Slot,
    Step,
    check_operands,
    node_line,
    reason,
    with_node,
)
from fx2onnx.semantics.registry import outputs_of
from fx2onnx.semantics.types import Array, Spec, Value, abstract_array, as_value

MAX_KNOWN = 1024
"""Values of up to this many elements are computed: they are shapes, axes and pads."""


MAX_COMPUTED_BYTES = 1 << 20
"""The largest computed value; larger ones are left to the run."""


TRIAL_SIZES = (61, 89)
"""Two sizes that unknown sizes are taken to be, once each: dims that differ between the two follow from unknown
sizes."""

MAX_TRIALS = 2000
"""Assignments of sizes to the unknown dims of one step that are tried before its operands are said not to fit."""

_ONLY_SHAPES_MATTER = frozenset({"MatMul", "Gemm", "Concat", "Where", "Conv", "LayerNormalization"})
"""Operators beside the elementwise ones whose operands fit or not by equality of dims."""


SEARCH_SIZES = (1, 0, 2, 3, 4, 8, 16, 32, 100, 300, 1000, 5000)
"""Sizes tried for a shape that fits, beside those that occur in the model, before a step is refused."""

MAX_NUMBERS = 20
"""Numbers of the model that are tried as sizes, too."""

MAX_NUMBER = 1 << 20
"""Larger ones are no sizes of inputs."""

MAX_MIXED = 12
"""Tries where unknown sizes differ from each other."""

MAX_SEARCH_STEPS = 300_000
"""Steps looked at in all such searches of one session: some microseconds each. What is not searched is left to the run."""


def check_static_shapes(program: Program, fixed: Mapping[str, int]) -> None:
    """Raises: UserError E303 for a step whose operands cannot fit, whatever the sizes that are not known yet."""
    unknown = {key for key in declared_dims(program, fixed) if not isinstance(key, int)}
    trials = TRIAL_SIZES if unknown else (0,)
    states = [AbstractState(program, fixed, dict.fromkeys(unknown, size)) for size in trials]
    _Check(program, fixed, sorted(unknown, key=str)).walk(states, True)


def sizes_of_outputs(program: Program, fixed: Mapping[str, int]) -> list[list[int | None] | None]:
    """The sizes of each output that are the same whatever the unknown sizes of inputs; None where the rank is not known."""
    unknown = {key for key in declared_dims(program, fixed) if not isinstance(key, int)}
    shapes: list[list[tuple[int, ...] | None]] = []
    for size in (*SEARCH_SIZES[:2], *TRIAL_SIZES) if unknown else (0,):
        state = AbstractState(program, fixed, dict.fromkeys(unknown, size))
        _Check(program, fixed, sorted(unknown, key=str)).walk([state], False)
        values = state.results()
        shapes.append([getattr(value.array, "shape", None) if value is not None else None for value in values])
    found: list[list[int | None] | None] = []
    for each in zip(*shapes, strict=True):
        known = [shape for shape in each if shape is not None]
        if not known or len({len(shape) for shape in known}) > 1:
            found.append(None)
            continue
        is_sure = len(known) == len(each)
        found.append([dims[0] if is_sure and len(set(dims)) == 1 else None for dims in zip(*known, strict=True)])
    return found


class _Passed(Exception):
    """The step that a search asks for fits, or no more may be tried."""


class _Check:
    """One walk over a program and its bodies, in all states side by side."""

    def __init__(
        self,
        program: Program,
        fixed: Mapping[str, int],
        unknown: Sequence[DimKey],
        sought: Step | None = None,
        steps_left: int = MAX_SEARCH_STEPS,
    ) -> None:
        self.program = program
        self.fixed = fixed
        self.unknown = unknown
        self.sought = sought
        self.steps_left = steps_left

    def walk(self, states: Sequence[AbstractState], is_sure: bool) -> None:
        """Note what follows in each state.

        Raises: UserError E303 for a step that cannot fit, where ``is_sure`` says that the program runs; _Passed.
        """
        for step in states[0].program.steps:
            if step.bodies:
                self.enter(step, states, is_sure)
            else:
                self.visit(step, states, is_sure)
            if self.sought is not None:
                self.steps_left -= 1
                if step is self.sought or self.steps_left < 0:
                    raise _Passed

    def visit(self, step: Step, states: Sequence[AbstractState], is_sure: bool) -> None:
        operands = [args for state in states if (args := state.operands(step)) is not None]
        if len(operands) < len(states):
            return
        for state, args in zip(states, operands, strict=True):
            error = _visit(step, args, state.known, state.abstract)
            if error is not None:
                self.refuse(step, states, operands, error, is_sure)
                return

    def refuse(
        self,
        step: Step,
        states: Sequence[AbstractState],
        operands: Sequence[list[Value]],
        error: UserError,
        is_sure: bool,
    ) -> None:
        """Raise the error where it is certain; else nothing is known of what the step makes."""
        if is_sure:
            if self.sought is not None or not self.unknown:
                raise error
            if _can_never_fit(step, operands) and not self.fits_somehow(step, operands):
                raise error
        for state in states:
            state.forget(step)

    def enter(self, step: Step, states: Sequence[AbstractState], is_sure: bool) -> None:
        """Walk through the bodies that the step may run."""
        operands = [[None if value is None else value.array for value in state.values(step)] for state in states]
        try:
            check_operands(step, operands[0], "E303")
            entries = [entries_of(step, state) for state in states]
        except UserError as error:
            self.refuse(step, states, operands, error, is_sure)
            return
        except KERNEL_FAULTS as error:
            self.refuse(step, states, operands, _misfit(step, operands[0], error), is_sure)
            return
        if [entry.body for entry in entries[0]] != [entry.body for entry in entries[-1]]:
            return
        results: list[list[AbstractValues]] = [[] for _ in states]
        for together in zip(*entries, strict=True):
            body = step.bodies[together[0].body]
            is_sure_inside = is_sure and all(entry.is_sure for entry in together)
            if len(body.inputs) != len(together[0].inputs):
                if is_sure_inside:
                    given = f"takes {len(body.inputs)} inputs and is given {len(together[0].inputs)}"
                    raise UserError("E303", f"the body {body.name!r} {given}", node=node_line(step, operands[0]))
                return
            inner = [state.inside(body, entry.inputs) for state, entry in zip(states, together, strict=True)]
            self.walk(inner, is_sure_inside)
            for result, state in zip(results, inner, strict=True):
                result.append(state.results())
        try:
            outcomes = [outcome_of(step, *each) if each[0] else [] for each in zip(entries, results, strict=True)]
        except KERNEL_FAULTS as error:
            self.refuse(step, states, operands, _misfit(step, operands[0], error), is_sure)
            return
        for state, outcome in zip(states, outcomes, strict=True):
            state.note(step.outputs, outcome)

    def fits_somehow(self, step: Step, operands: Sequence[list[Value]]) -> bool:
        """Return whether some sizes let the step pass, or too few could be tried.

        Two states are not enough where sizes are cut, compared or decide a branch: ``x[:50]`` has 50 rows in both.
        """
        sizes = list(dict.fromkeys([*SEARCH_SIZES[:4], *_numbers(self.program, operands), *SEARCH_SIZES[4:]]))
        trials = [dict.fromkeys(self.unknown, size) for size in sizes]
        if len(self.unknown) > 1:
            chance = random.Random(0)
            trials += [{key: chance.choice(sizes) for key in self.unknown} for _ in range(MAX_MIXED)]
        for trial in trials:
            search = _Check(self.program, self.fixed, self.unknown, step, self.steps_left)
            try:
                search.walk([AbstractState(self.program, self.fixed, trial)], True)
            except _Passed:
                return True
            except UserError:
                continue
            finally:
                self.steps_left = search.steps_left
            return True  # not reached: with these sizes, another branch runs
        return False


def _numbers(program: Program, operands: Sequence[list[Value]]) -> list[int]:
    """Sizes that may matter: the operands' dims and the model's small constants, and their neighbours."""
    dims = [dim for args in operands for arg in args if isinstance(arg, np.ndarray) for dim in arg.shape]
    consts = [slot.const for slot in _slots(program) if isinstance(slot.const, np.ndarray)]
    dims += [int(n) for const in consts if const.dtype.kind in "iu" and const.size <= 4 for n in const.ravel()]
    around = [size for dim in dict.fromkeys(dims) for size in (dim, dim - 1, dim + 1)]
    return [size for size in dict.fromkeys(around) if 0 <= size < MAX_NUMBER][:MAX_NUMBERS]


def _slots(program: Program) -> Iterator[Slot]:
    yield from program.slots
    for step in program.steps:
        for body in step.bodies.values():
            yield from _slots(body)


def _visit(step: Step, args: list[Value], known: dict[int, Value], abstract: dict[int, Array]) -> UserError | None:
    """Note what follows of the step's outputs; the error where the operands do not fit."""
    kernel = step.kernel
    try:
        check_operands(step, args, "E303")
        if kernel.op_type in ("Shape", "Size") and not kernel.domain:
            known[step.outputs[0]] = kernel.fn(*args, **step.attrs)
        elif kernel.infer is not None:
            specs = kernel.infer(args, step.attrs)
            is_size = specs[0][1].kind in "iub" and _are_known(step, known) and _are_small(args)
            if is_size and _compute_small(step, args, specs, known):
                return None
            for index, (shape, dtype) in zip(step.outputs, specs, strict=False):
                if max(shape, default=0) < 1 << 31:
                    abstract[index] = abstract_array(tuple(shape), dtype)
        elif kernel.shape_inputs is None or kernel.is_random:
            return None
        elif kernel.kind == "view":
            deciding = [step.inputs[p] for p in kernel.shape_inputs if p < len(step.inputs)]
            if all(index < 0 or index in known for index in deciding):
                _record(step, kernel.fn(*args, **step.attrs), _are_known(step, known), known, abstract)
        elif _are_known(step, known) and _are_small(args):
            with memory_limit(MAX_COMPUTED_BYTES):
                _record(step, kernel.fn(*args, **step.attrs), True, known, abstract)
    except UserError as error:
        if error.code in ("E402", "E404"):
            return None  # large, but perhaps within the limit, or a form that has no kernel: the run decides
        found = with_node(error, step, args)
        found.code = "E303" if error.code == "E403" else error.code  # nothing ran so far
        return found
    except KERNEL_FAULTS as error:
        return _misfit(step, args, error)
    return None


def _misfit(step: Step, args: Sequence[Value], error: BaseException) -> UserError:
    why = f"{reason(error)} (known before anything ran)"
    fault = UserError("E303", f"the operands of {step.op_type} do not fit", node=node_line(step, args), why=why)
    fault.__cause__ = error
    return fault


def _are_known(step: Step, known: Mapping[int, Value]) -> bool:
    return all(index < 0 or index in known for index in step.inputs)


def _compute_small(step: Step, args: list[Value], specs: Sequence[Spec], known: dict[int, Value]) -> bool:
    """The value of an operator with ``infer`` on small known integers, as sizes and axes are; False where it is large."""
    if sum(math.prod(shape) for shape, _ in specs) > MAX_KNOWN:
        return False
    out = [np.empty(shape, dtype) for shape, dtype in specs]
    step.kernel.fn(out, *args, **step.attrs)
    known.update((index, value) for index, value in zip(step.outputs, out, strict=False) if index >= 0)
    return True


def _can_never_fit(step: Step, operands: Sequence[list[Value]]) -> bool:
    """Return whether the step fails for every size of its unknown dims: each is tried as all sizes beside it, and some others."""
    first, second = operands[0], operands[-1]
    kernel = step.kernel
    shapes = [getattr(arg, "shape", None) for arg in first]
    others = [getattr(arg, "shape", None) for arg in second]
    if shapes == others:
        return all(one is other or not holds_values(one) for one, other in zip(first, second, strict=True))
    if kernel.infer is None or not (kernel.elementwise or kernel.op_type in _ONLY_SHAPES_MATTER):
        return False
    free: list[tuple[int, int]] = []
    for place, (one, other) in enumerate(zip(shapes, others, strict=True)):
        if one is None or other is None:
            continue
        if len(one) != len(other):
            return False
        free += [(place, axis) for axis, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if step.op_type == "Conv" and (0, 1) in free:
        return False  # channels may be a multiple of the weight's
    sizes = {1, *TRIAL_SIZES, *(dim for one in shapes if one is not None for dim in one)}
    if len(sizes) ** len(free) > MAX_TRIALS:
        return False
    for chosen in itertools.product(sizes, repeat=len(free)):
        trial = [list(one) if one is not None else None for one in shapes]
        for (place, axis), size in zip(free, chosen, strict=True):
            dims = trial[place]
            assert dims is not None
            dims[axis] = size
        args = [
            arg if dims is None or dims == list(arg.shape) else abstract_array(tuple(dims), arg.dtype)
            for arg, dims in zip(first, trial, strict=True)
        ]
        try:
            kernel.infer(args, step.attrs)
        except (UserError, *KERNEL_FAULTS):
            continue
        return False
    return True


def _are_small(args: list[Any]) -> bool:
    return all(arg is None or (isinstance(arg, np.ndarray) and arg.size <= MAX_KNOWN) for arg in args)


def _record(step: Step, result: Any, is_known: bool, known: dict[int, Value], abstract: dict[int, Array]) -> None:
    for index, value in zip(step.outputs, outputs_of(result), strict=False):
        array = as_value(value)
        if index < 0 or not isinstance(array, np.ndarray):
            continue
        if is_known:
            known[index] = array
        else:
            abstract[index] = array
