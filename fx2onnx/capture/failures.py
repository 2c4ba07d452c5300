"""A run that failed: its error in the user's terms, whether ``torch.export`` may capture the module, and whether the module itself is wrong."""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line
from fx2onnx.base.source import lines_of
from fx2onnx.base.stack_frames import limit_reached
from fx2onnx.capture.attempt import Attempt, Baked, Failed, Outcome, Recorded
from fx2onnx.capture.python.inputs import ARGUMENT, Arguments
from fx2onnx.capture.python.misfits import TO_TENSORS
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.recording.eager_refusals import is_of_eager
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.deciding import has_turns
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.guards import unmet_equalities
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, KEEP_TENSORS, ShapeEnv
from fx2onnx.capture.shapes.size_arguments import raised_by_brackets
from fx2onnx.capture.shapes.symnode import is_of_data
from fx2onnx.capture.specializing import refused_size
from fx2onnx.sizes.assumptions import Condition, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import where_true
from fx2onnx.torchcompat.fake_tensors import DataDependentOutputException, UnsupportedOperatorException
from fx2onnx.torchcompat.frames import is_in_numpy, is_user, user_location_of
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.versions import (
    has_no_gradient,
    is_of_script,
    is_overwritten,
    operator_without_fake,
    overwritten_sizes,
)

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_SHAPE_RULES = tuple(_TORCH + part for part in ("_meta_registrations", "_prims", "_refs", "_decomp"))
_FAITHFUL = (NameError, KeyError, IndexError, AssertionError, ImportError, ValueError, ArithmeticError)
"""Exceptions that the module raises on its own account, on fake tensors as on real ones."""
_STDLIB, _PACKAGES = os.path.dirname(os.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
MOST_PROBES = 3
"""Runs that look for a mistake of the module behind a data-dependent number."""
MOST_ELEMENTS = 1 << 20
"""The largest input whose sample values such a run takes."""
MOST_UNMET = 4
MAX_PATH_CHARS = 60
"""The most characters of a module's path in an error about modules nested a thousand deep."""


def export_may_help(failed: Failed) -> bool:
    """True if torch.export, which costs seconds, may do better: it runs the module on fake tensors, too, and knows besides NumPy inside forward;
    its own code stands in for the tracer's faults.
    """
    failure = failed.error
    if not isinstance(failure, UserError):
        return True
    if failure.is_caught:
        return False
    if failure.code == "E101":
        return _may_be_due_to_fakes(failure.__cause__)
    return failure.code == "E107" or (
        failure.code == "E104" and failed.reason in (Reason.PLAIN_NUMBER, Reason.ARRAY, Reason.TURNS)
    )


def _may_be_due_to_fakes(cause: BaseException | None) -> bool:
    """Return whether the error may be due to fake tensors: not where torch refused the shapes or dtypes, nor where the
    module's own code raised."""
    if cause is None or isinstance(cause, Fx2OnnxError | RecursionError) or is_of_eager(cause):
        return False
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(cause.__traceback__)]
    if not files:  # of a branch of both that failed, which keeps no frames
        return False
    if isinstance(cause, _FAITHFUL) and not files[-1].startswith(_TORCH):
        return False
    return not any(file.startswith(_SHAPE_RULES) for file in files) or isinstance(cause, _FAITHFUL)


def mistake_behind(error: BaseException, start: Attempt, run: Callable[[Attempt], Outcome]) -> UserError | None:
    """The module's own error behind a number that it needs of an input: with the example's values of such inputs, and
    its sizes, eager PyTorch raises it, too. Of an error that it does not raise: the dynamic size that is not to be one.
    """
    if isinstance(error, UserError) and error.code == "E101":
        return _fixed_size_behind(error, start, run)
    names = error.inputs if isinstance(error, UserError) and error.code == "E104" else ()
    probe = start.at_sizes(hints_of(start.arguments))
    few = {leaf.name for leaf in start.arguments.leaves if leaf.tensor.numel() <= MOST_ELEMENTS}
    for _ in range(MOST_PROBES):
        if not names or not few.difference(probe.baked.names).issuperset(names):
            return None
        probe = replace(probe, baked=Baked((*probe.baked.names, *names), probe.baked.lines))
        outcome = run(probe)
        if not isinstance(outcome, Failed) or not isinstance(outcome.error, UserError):
            return None
        if outcome.error.code == "E101":
            return outcome.error if _is_mistake(outcome.error.__cause__) else None
        names = outcome.error.inputs
    return None


def _fixed_size_behind(error: UserError, start: Attempt, run: Callable[[Attempt], Outcome]) -> UserError | None:
    """The refusal of a size of 0 or 1, asked for by name, with which alone the module runs: in one that is broadcast, say."""
    sizes = hints_of(start.arguments)
    for name in sorted(name for name in start.sizes.hints.keys() - start.request.optional if sizes.get(name, 2) < 2):
        change = Specialization(Dim.symbol(name), sizes[name], error.where)
        outcome = run(start.specialized(change))
        if isinstance(outcome, Recorded):
            return refused_size(start, name, change, outcome.shape_env)
    return None


def _is_mistake(cause: BaseException | None) -> bool:
    """True if eager PyTorch raises ``cause``, too, where every size and every number that Python takes is plain."""
    if cause is None:
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(cause.__traceback__)]
    if isinstance(cause, TypeError | AttributeError):
        return bool(codes) and is_user(codes[-1])
    is_of_call = not isinstance(cause, RuntimeError) or Tracer.handle.__code__ in codes
    return is_of_call and not _may_be_due_to_fakes(cause)


def failed(attempt: Attempt, error: UserError, env: ShapeEnv) -> Failed:
    """The failure of a run, with what remedies ask of it."""
    reason = error.reason if isinstance(error.reason, Reason) else Reason.ERROR
    if env.hints and not attempt.numbers.takes_indices and raised_by_brackets(error.__cause__):
        reason = Reason.INDEX
    if not attempt.operators.gradients and has_no_gradient(error.__cause__):
        reason = Reason.GRADIENTS
    library_code = attempt.request.patches.decided_by_data(error) if error.code == "E104" else None
    unmet = tuple(itertools.islice(unmet_equalities(env), MOST_UNMET))
    turns = has_turns(env, attempt.may_have_loops())
    return Failed(attempt, error, reason, library_code, frozenset(env.numbers_in), unmet=unmet, has_turns=turns)


def raised(error: Exception, tracer: Tracer) -> BaseException:
    """The user's error, or what an operator raised where the TorchScript interpreter made another exception of it."""
    if not is_of_script(error) or tracer.failure is None:
        return _of_forward(error, tracer)
    if isinstance(tracer.failure, Fx2OnnxError) or not isinstance(tracer.failure, Exception):
        return tracer.failure
    return _of_forward(tracer.failure, tracer)


def of_path(error: Exception) -> BaseException:
    """The error of a path through a call, as that of a run of the module."""
    if isinstance(error, Fx2OnnxError):
        return error
    found = explained(error)
    found.__cause__ = error
    return found


def _of_forward(cause: Exception, tracer: Tracer) -> UserError:
    error = _overwritten(cause, tracer) if is_overwritten(cause) else _of_numpy(cause, tracer) or explained(cause)
    if error.code == "E101" and _calls_numpy(cause):
        error.reason = Reason.ARRAY
    return _with_sizes(error, tracer.sizes) if error.code == "E101" and cause is tracer.failure else error


def _calls_numpy(cause: Exception) -> bool:
    """Return whether the innermost function of the user's in the error's traceback names NumPy."""
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__) if is_user(frame.f_code)]
    own = next((frame for frame in reversed(frames) if not is_in_numpy(frame.f_code)), None)
    return own is not None and any(own.f_globals.get(name) is np for name in own.f_code.co_names)


def _of_numpy(cause: Exception, tracer: Tracer) -> UserError | None:
    """The error for what NumPy or SciPy raised since a variable beside an array is a number from data; None for another."""
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    own = next((frame for frame in reversed(frames) if is_user(frame.f_code) and not is_in_numpy(frame.f_code)), None)
    if own is None or not isinstance(cause, IndexError | TypeError | ValueError):
        return None
    names = sorted(name for name, value in own.f_locals.items() if is_of_data(value, tracer.sizes))
    has_array = any(isinstance(value, np.ndarray) for value in own.f_locals.values())
    if not names or not (has_array or is_in_numpy(frames[-1].f_code)):
        return None
    return UserError(
        "E104",
        "NumPy and SciPy take no number from data",
        where=user_location_of(cause),
        why=f"{', '.join(names)}: known only when the model runs; {type(cause).__name__}: {first_line(cause)[:300]}",
        next=(
            "use PyTorch there: torch.zeros(k) in the place of np.zeros(k), torch.hann_window(n) in the place of SciPy's",
            "or pass what NumPy makes as an argument of forward",
        ),
    )


def _overwritten(cause: Exception, tracer: Tracer) -> UserError:
    """A gradient needs a value that is no more: the line is that of the last write into a tensor of its sizes."""
    sizes = overwritten_sizes(cause)
    lines = [write.where for write in tracer.values.writes]
    lines += [write.where for write in tracer.values.writes if write.sizes == sizes]
    return UserError(
        "E101",
        "a value that a gradient needs is written in place",
        where=lines[-1] if lines else user_location_of(cause),
        why=f"{type(cause).__name__}: {first_line(cause)[:300]}",
        next=("compute a new tensor there: x = x + 1 in the place of x += 1", "or write into x.clone()"),
    )


def explained(cause: Exception) -> UserError:
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
    name = str(cause.func) if isinstance(cause, UnsupportedOperatorException) else operator_without_fake(cause)
    if any(
        str(frame.f_globals.get("__name__")).startswith("torch.nested")
        for frame, _ in traceback.walk_tb(cause.__traceback__)
    ):
        return UserError(
            "E107",
            "nested tensors have no form here",
            where=where,
            why=f"{type(cause).__name__}: {first_line(cause)[:300]}",
            next="pad to one size and pass a mask, or keep the rows in one tensor beside their offsets",
        )
    if "dispatch_on_subclass called with NO overloaded args" in str(cause):
        return UserError(
            "E107",
            "a tensor of a subclass of torch.Tensor has no form here",
            where=where,
            why="its class, or a __torch_function__ of it, makes other results than the operators show",
            next="use plain tensors in forward: tensor.as_subclass(torch.Tensor)",
        )
    if name:
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


def steps_before(root: torch.nn.Module, arguments: Arguments, error: UserError) -> list[str]:
    """Steps to take before all others where a capture fails: what is wrong around the call and the failure itself does not show."""
    names = [name for name, value in arguments.objects() if isinstance(value, np.ndarray)]
    steps = [TO_TENSORS.format(name.removeprefix(ARGUMENT)) for name in names]
    if "must be Tensor, not list" in error.why or "must be Tensor, not tuple" in error.why:
        steps.append("pass tensors: torch.tensor(numbers) for a list of numbers")
    if "must be Tensor, not float" in error.why or "must be Tensor, not int" in error.why:
        steps.append("pass tensors: torch.tensor(number) for a number")
    if error.code == "E101" and ("dtype" in error.why or "scalar type" in error.why):
        steps += _other_dtypes(root, arguments)
    if any(isinstance(value, str) and value.endswith(".onnx") for _, value in arguments.objects()):
        steps.insert(0, "give the example inputs before the path: export(module, args, path)")
    if error.code in ("E104", "E105") and error.where is not None and not lines_of(error.where.file):
        steps.insert(
            0,
            f"save the code in a file and import it: a loop or a branch needs its source, and {error.where.file} has none",
        )
    return [CONVERT, *steps[:2]] if observers_of(root) else steps[:2]


def _other_dtypes(root: torch.nn.Module, arguments: Arguments) -> list[str]:
    """The step where the parameters have one dtype of floating-point numbers, and an argument another."""
    own = {each.dtype for each in root.parameters() if each.is_floating_point()}
    other = [leaf for leaf in arguments.leaves if leaf.tensor.dtype not in own]
    other = [leaf for leaf in other if leaf.tensor.is_floating_point()] or other
    if len(own) != 1 or not other:
        return []
    name, dtype = other[0].path, other[0].tensor.dtype
    or_module = f", or export module.to({dtype})" if dtype.is_floating_point else ""
    return [
        f"{name} is {dtype}, the module's weights are {min(own, key=str)}: pass {name}.to({min(own, key=str)}){or_module}"
    ]


def notes_on_observers(root: torch.nn.Module) -> list[str]:
    """A warning where a module that is prepared for quantization was exported as it is."""
    paths = observers_of(root)
    if not paths:
        return []
    return [
        f"{len(paths)} observers ({', '.join(paths[:2])}, ...) measure and quantize each input anew in the file; {CONVERT}"
    ]


CONVERT = "convert the module first: torch.ao.quantization.convert(module.eval())"


def observers_of(root: torch.nn.Module) -> list[str]:
    """The paths of observers and of fake quantization, which a module prepared for quantization has until it is converted."""
    room = sys.modules.get("torch.ao.quantization")
    kinds = () if room is None else (room.ObserverBase, room.FakeQuantizeBase)
    return [path for path, module in root.named_modules() if isinstance(module, kinds)]


def _innermost_module(cause: BaseException) -> str:
    """The path of the module in whose call the exception was raised; of a long one, its end."""
    path = ""
    for frame, _ in traceback.walk_tb(cause.__traceback__):
        path = PATHS.name_of(frame.f_locals.get("self")) or path
    return path if len(path) <= MAX_PATH_CHARS else f"...{path[-MAX_PATH_CHARS:]}"


def _unmet(env: ShapeEnv) -> tuple[str, Condition] | None:
    """A size in the operands of the operator that raised, and what the last equality that does not hold at the
    example's sizes needs of it; None where only a single size would do.
    """
    relation = next(unmet_equalities(env), None)
    if relation is None or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    for name in sorted(relation.symbols()):
        if isinstance(gap, Dim) and len(gap.symbols()) > 1:
            rest = gap.substitute({name: 1})
            gap = rest if isinstance(rest, Dim) and rest * gap.leaf(name) == gap else gap
    if not isinstance(gap, Dim) or len(gap.symbols()) != 1:
        return None
    (name,) = gap.symbols()
    needs = Relation("eq", (gap, 0))
    sizes = where_true(needs)
    if sizes is None or sizes.is_single() or name not in env.failed_with or env.hints.get(name, 0) in sizes:
        return None
    return name, Condition(name, sizes, needs)


def _with_sizes(error: UserError, env: ShapeEnv) -> UserError:
    """``error``, an operator's about shapes, with what it needs of a size, as far as that is found; E105 where the size is
    declared with a range that has no such size.
    """
    found = _unmet(env)
    if found is None:
        return error
    name, needed = found
    declared = next((each for each in env.facts.conditions if each.name == name and each.where is None), None)
    if declared is not None and not env.facts.supposed and not (declared.sizes & needed.sizes).first(1):
        return UserError(
            "E105",
            f"of the sizes that {name} is declared with, the module takes none",
            where=error.where,
            why=f"it is declared with {declared.expression}, and {needed.expression} is needed there: {error.why}",
            next="declare it with other bounds, and give a sample within them",
        )
    return UserError(
        error.code,
        error.what,
        where=error.where,
        module_path=error.module_path,
        why=f"{error.why}; {name} is {env.hints[name]}, needed is {needed.expression}",
        next=(f"give a sample with {needed.expression}", *error.next),
    )
