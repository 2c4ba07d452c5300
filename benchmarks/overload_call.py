"""One drawn call: eager PyTorch, an export of a module that makes it, both engines, and what the comparison says."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import fx2onnx
from benchmarks.overload_arguments import drawer, draws
from benchmarks.overload_backward import backward_calls, is_backward
from benchmarks.overload_moved import moved_calls, with_other_numbers
from benchmarks.overload_sweep import DRAWINGS
from benchmarks.overload_undefined import (
    COMPARED,
    CONDITIONED,
    UP_TO_SIGN,
    depends_on_memory,
    is_free,
    leaves,
    moved,
    packet_of,
    reasons,
)
from fx2onnx.base.errors import UserError
from fx2onnx.judge.engines import lacks_operator, open_onnxruntime, open_runner
from fx2onnx.torchcompat.versions import is_about_cpu
from fx2onnx.verify.arrays import to_numpy
from tests.ops.comparing import (  # fmt: skip
    ANY_INDEX,
    TOLERANCES,
    difference,
    in_float64,
    is_nearer,
    real_pair,
    resolve_indices,
    tolerance_of,
)
from tests.ops.harness import Call

TRIES = 60
"""Sets of arguments that eager PyTorch is offered for one call."""
MOVES = 8
RIGHT, WRONG, CRASHED, REFUSED, NO_KERNEL, UNDEFINED, NOT_DRAWN = (
    "right", "wrong", "internal error", "refused", "no kernel in an engine", "undefined", "not drawn",
)  # fmt: skip
AT_NAN = "NaN in onnxruntime alone"
WARNED = "another value, with a warning"
WRITTEN = "eager refuses, a file is written"
BOTH_REFUSE, NUMBERS_ALONE, CPU_ALONE = "eager refuses, and so does the export", "eager refuses the numbers alone", "the CPU alone refuses"  # fmt: skip
FAULTS = (WRONG, CRASHED, WRITTEN)
FITTING, EDGE, MISFIT = DRAWINGS


@dataclass(slots=True)
class Outcome:
    """``kind``: one of ``CLASSES``; ``reason``: in words that group like calls; ``detail``: of this call."""

    kind: str
    reason: str = ""
    detail: str = ""
    call: str = ""


class OneCall(torch.nn.Module):
    """A module that makes one call with its inputs in the places of the call's tensors."""

    def __init__(self, overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.overload = overload
        self.is_mutable = overload._schema.is_mutable
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        if self.is_mutable:
            filled = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in filled]
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return [leaf for leaf in pytree.tree_leaves(self.overload(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]


def _fresh(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def run_eager(overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors of the result."""
    args, kwargs = _fresh((args, kwargs))
    with torch.no_grad():
        found = overload(*args, **kwargs)
    return [leaf.detach().resolve_conj().resolve_neg().clone() for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]  # fmt: skip


def drawn_call(
    overload: torch._ops.OpOverload, seed: int, index: int, is_offered: Callable[..., bool] = lambda *_: True
) -> Call | None:
    """The first set of arguments that eager PyTorch takes; None where it takes none. ``is_offered`` leaves some out, by overload and them."""

    def drawn(of: torch._ops.OpOverload) -> Iterator[tuple[Any, Any]]:
        return (call for found in draws(of, seed, index, TRIES) if is_offered(of, *(call := found.call())))

    for args, kwargs in backward_calls(overload, index, drawn) if is_backward(overload) else drawn(overload):
        call = _accepted(overload, args, kwargs)
        if call is not None:
            return call
    return None


def _leaves_memory(overload: torch._ops.OpOverload, args: Any) -> bool:
    """Return whether the kernel, which checks nothing, would write beyond memory, or read a number that nobody wrote."""
    if overload in (torch.ops.aten.to.prim_dtype, torch.ops.aten.to.prim_Device):
        place = 1 + int(overload is torch.ops.aten.to.prim_Device)
        return list(args[place : place + 1]) in ([], [None]) and any(args[place + 2 :])
    is_checked = overload is not torch.ops.aten._stack.default
    return not is_checked and (
        len({leaf.shape for leaf in args[0]}) > 1 or not all(leaf.is_contiguous() for leaf in args[0])
    )


def _has_no_end(overload: torch._ops.OpOverload, args: Any) -> bool:
    """Return whether the kernel, which checks nothing, may draw for ever: trials whose number or probability is none."""
    if overload is not torch.ops.aten.binomial.default:
        return False
    count, probability = args[:2]
    return not bool((count >= 0).all() & (count < 1 << 20).all() & (probability >= 0).all() & (probability <= 1).all())


def _accepted(overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> Call | None:
    if _leaves_memory(overload, args):
        return None
    try:
        if _has_no_end(overload, args):
            return None
        outputs = run_eager(overload, args, kwargs)
    except Exception:  # eager PyTorch refuses arguments by classes of every kind
        return None
    if not outputs or any(
        leaf.layout != torch.strided or leaf.is_quantized or leaf.numel() > 1 << 20 for leaf in outputs
    ):
        return None
    return Call(overload, tuple(args), kwargs, outputs)


def edge_call(overload: torch._ops.OpOverload, seed: int, index: int, is_taken: bool) -> Call | None:
    """A drawn call that was moved, and that eager PyTorch takes, or refuses; None where none is found. Each ``MOVES`` calls that follow
    each other move one call.
    """
    rng = random.Random(zlib.crc32(f"{overload}/{seed}/{index}/{is_taken}".encode()))
    candidates: Iterator[tuple[Any, Any]]
    if not is_taken and rng.random() < 0.3:
        candidates = (found.call() for found in draws(overload, seed, index, TRIES))
    elif is_taken and is_backward(overload):  # whose kernels check nothing: those of the forward overload are moved
        candidates = backward_calls(overload, index, lambda forward: _near(forward, seed, index, True))
    else:
        candidates = _near(overload, seed, index)
    for args, kwargs in candidates:
        if not is_taken and _refusal(overload, args, kwargs) is not None:
            return Call(overload, tuple(args), kwargs, [])
        call = _accepted(overload, args, kwargs) if is_taken else None
        if call is not None:
            return call
    return None


def _near(overload: torch._ops.OpOverload, seed: int, index: int, is_real: bool = False) -> Iterator[tuple[Any, Any]]:
    """Moves of a drawn call, of real numbers where a gradient needs them."""
    for first in range(index // MOVES, index // MOVES + 4):
        call = drawn_call(overload, seed, first)
        if call is not None and (not is_real or any(leaf.is_floating_point() for leaf in leaves(call))):
            return moved_calls(call, seed, index, TRIES // 2, drawer(overload, seed, index))
    return iter(())


def _refusal(overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> Exception | None:
    if _leaves_memory(overload, args):
        return None
    args, kwargs = _fresh((args, kwargs))
    try:
        with torch.no_grad():
            overload(*args, **kwargs)
    except Exception as error:  # eager PyTorch refuses arguments by classes of every kind
        return error
    return None


def examine(
    overload: torch._ops.OpOverload, seed: int, index: int, stage: Callable[[str], None], drawing: str = FITTING
) -> Outcome:
    """The outcome of one drawn call. ``stage`` hears what is about to run, in case the process ends there."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        stage("eager")
        if drawing == FITTING:
            call = drawn_call(overload, seed, index)
        else:
            call = edge_call(overload, seed, index, drawing == EDGE)
        if call is None:
            return Outcome(NOT_DRAWN)
        outcome = judge_misfit(call, stage) if drawing == MISFIT else judge(call, stage)
    outcome.call = call.describe()
    return outcome


def judge_misfit(call: Call, stage: Callable[[str], None] = lambda _: None) -> Outcome:
    """Export a call that eager PyTorch refuses."""
    refusal = _refusal(call.overload, call.args, call.kwargs)
    sentence = _first_line(refusal)
    if "INTERNAL ASSERT" in str(refusal) or "can't allocate memory" in str(refusal):
        return Outcome(NOT_DRAWN, "an assertion of PyTorch's own fails, or memory ends")
    stage("export")
    try:
        fx2onnx.export(
            OneCall(call.overload, call.args, call.kwargs).eval(), tuple(leaf.clone() for leaf in leaves(call))
        )
    except UserError as error:
        return Outcome(BOTH_REFUSE, error.code, f"{error.what}; {error.why}"[:300])
    except Exception as error:  # whatever is not a UserError is a fault
        return Outcome(CRASHED, _first_line(error), f"{error} (eager: {sentence})"[:1500])
    stage("rerun")
    if isinstance(refusal, torch.linalg.LinAlgError) or any(
        _refusal(call.overload, args, kwargs) is None for args, kwargs in with_other_numbers(call.args, call.kwargs)
    ):
        return Outcome(NUMBERS_ALONE, sentence)
    if is_about_cpu(sentence):
        return Outcome(CPU_ALONE, sentence)
    return Outcome(WRITTEN, sentence)


def _first_line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


def judge(call: Call, stage: Callable[[str], None] = lambda _: None) -> Outcome:
    """Export the call, run both engines and compare."""
    stage("export")
    tensors = [leaf.clone() for leaf in leaves(call)]
    try:
        result = fx2onnx.export(OneCall(call.overload, call.args, call.kwargs).eval(), tuple(tensors))
        model, warnings_given = result.model_proto, " ".join(map(str, result.report.warnings))
    except UserError as error:
        return Outcome(REFUSED, error.code, f"{error.what}; {error.why}"[:300])
    except Exception as error:  # whatever is not a UserError is a fault
        return Outcome(CRASHED, _first_line(error), f"{type(error).__name__}: {error}"[:1500])
    feeds = {value.name: to_numpy(tensor) for value, tensor in zip(model.graph.input, tensors, strict=True)}
    stage("rerun")
    try:
        is_random = is_free(call, run_eager(call.overload, call.args, call.kwargs))
    except RuntimeError:
        is_random = False
    found: dict[str, Outcome] = {}
    for engine, open_engine in (("runner", open_runner), ("onnxruntime", open_onnxruntime)):
        stage(engine)
        found[engine] = _judged(call, engine, open_engine, model.SerializeToString(), feeds, is_random, warnings_given)
    return _together(call, found)


def _judged(call: Call, engine: str, open_engine: Any, proto: bytes, feeds: Any, is_random: bool, told: str) -> Outcome:
    try:
        outputs = [np.asarray(value) for value in open_engine(proto)(feeds)]
    except Exception as error:  # an engine raises classes of its own
        code = getattr(error, "code", "")
        text = f"{type(error).__name__}: {error}"
        lacks = lacks_operator(error) or "Could not find an implementation" in text or code == "E402"
        return Outcome(NO_KERNEL if lacks else WRONG, f"{engine} {'has no kernel' if lacks else 'fails'}", text[:500])
    faults = faults_of(call, outputs, is_random)
    if faults and "compute in float32" in told and not faults_of(call, outputs, is_random, (1e-4, 1e-5)):
        return Outcome(WARNED, "as far off as float32 is: onnxruntime has no kernel in float64")
    if faults and "gives something else" in told and kind_of(faults[0]) == "values":
        return Outcome(WARNED, "an algorithm that ONNX's operators do not have")
    return Outcome(WRONG, f"{engine}: {kind_of(faults[0])}", "; ".join(faults)[:400]) if faults else Outcome(RIGHT)


def kind_of(fault: str) -> str:
    return fault.split()[0] if fault.startswith(("dtype", "shape", "number")) else "values"


def _together(call: Call, found: dict[str, Outcome]) -> Outcome:
    """One outcome of two engines: the worse, unless the call is undefined."""
    wrong = [outcome for outcome in found.values() if outcome.kind == WRONG]
    if wrong:
        fault = Outcome(WRONG, " and ".join(outcome.reason for outcome in wrong), wrong[0].detail)
        if any("dtype" in outcome.reason for outcome in wrong):
            return fault
        for reason in reasons(call):
            return Outcome(UNDEFINED, reason, fault.detail)
        if depends_on_memory(call):
            return Outcome(UNDEFINED, "kernels of PyTorch that differ by how a tensor lies in memory", fault.detail)
        if found["runner"].kind == RIGHT and not all(bool(leaf.isfinite().all()) for leaf in leaves(call)):
            return Outcome(AT_NAN, "onnxruntime's kernel of the operator", fault.detail)
        return fault
    if all(outcome.kind == NO_KERNEL for outcome in found.values()):
        return Outcome(WRONG, "no engine has a kernel", found["runner"].detail)
    return next((outcome for outcome in found.values() if outcome.kind != RIGHT), Outcome(RIGHT))


def faults_of(
    call: Call, outputs: list[np.ndarray[Any, Any]], is_random: bool, limit: tuple[float, float] | None = None
) -> list[str]:
    """The differences from eager PyTorch; of free values dtype and shape alone. ``limit``: a tolerance in place of the
    usual."""
    wanted = call.outputs
    if len(outputs) != len(wanted):
        return [f"number of outputs {len(outputs)}, not {len(wanted)}"]
    compared = COMPARED.get(packet_of(call))
    outputs, wanted = outputs[:compared], wanted[:compared]
    for got, want in zip(outputs, wanted, strict=True):
        expected = to_numpy(want)
        if got.dtype != expected.dtype:
            return [f"dtype {got.dtype}, not {expected.dtype}"]
        if got.shape != expected.shape:
            return [f"shape {got.shape}, not {expected.shape}"]
    if is_random:
        return []
    outputs = [got.astype(np.float32) if got.dtype.name == "bfloat16" else got for got in outputs]
    if UP_TO_SIGN.search(str(call.overload)):
        wanted = [leaf.abs() if leaf.is_floating_point() or leaf.is_complex() else leaf for leaf in wanted]
        outputs = [_magnitudes(got, leaf) for got, leaf in zip(outputs, call.outputs, strict=True)]
    if call.overload in ANY_INDEX:
        resolve_indices(call, outputs, wanted)
    limits = [
        limit or tolerance_of(call, want.dtype) or TOLERANCES.get(real_pair(want).dtype, (0.0, 0.0)) for want in wanted
    ]
    faults = [difference(got, want, limit) for got, want, limit in zip(outputs, wanted, limits, strict=True)]
    if any(faults):
        _forgive(call, outputs, wanted, limits, faults)
    return [fault for fault in faults if fault]


def _magnitudes(got: np.ndarray[Any, Any], like: torch.Tensor) -> np.ndarray[Any, Any]:
    if like.is_complex():
        return np.asarray(np.hypot(got[..., 0], got[..., 1]))
    return np.abs(got) if like.is_floating_point() else got


def _forgive(call: Call, outputs: Any, wanted: Any, limits: Any, faults: list[str]) -> None:
    """Drop faults that eager PyTorch's own rounding explains: nearer to float64, or moved as far by the last bits."""
    exact = in_float64(call)
    for index, value in enumerate(exact or []):
        if index < len(faults) and faults[index] and is_nearer(outputs[index], wanted[index], value, limits[index]):
            faults[index] = ""
    if not any(faults) or not CONDITIONED.search(packet_of(call)):
        return
    changes = moved(call, lambda args, kwargs: run_eager(call.overload, args, kwargs))
    for index, want in enumerate(wanted):
        if not faults[index]:
            continue
        if changes is None:
            faults[index] = ""
            continue
        change = changes[index].unsqueeze(-1) if want.is_complex() else changes[index]
        gap = np.abs(outputs[index].astype(np.float64) - to_numpy(real_pair(want).double()))
        relative, absolute = limits[index]
        allowed = 8 * change.numpy() + absolute + relative * np.abs(to_numpy(real_pair(want).double()))
        if bool((np.isnan(gap) & ~np.isinf(allowed) | (gap > allowed)).any()):
            continue
        faults[index] = ""
