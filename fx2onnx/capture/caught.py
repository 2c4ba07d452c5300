"""Errors that forward catches: conditions of sizes, data-dependent decisions, and what eager PyTorch does not raise."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.capture.failures import explained
from fx2onnx.capture.recording.decisions import MOST_NEEDED, ONE_BRANCH
from fx2onnx.capture.recording.size_checks import behind
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.registry import load_family, traits_of
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.caught_errors import end_by_data, is_caught, is_of_data
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.eager_modes import WatchingMode
from fx2onnx.torchcompat.frames import is_user, user_location
from fx2onnx.torchcompat.operators import OpOverload, decompose
from fx2onnx.torchcompat.versions import is_of_fakes

aten = torch.ops.aten
_STDLIB, _PACKAGES = os.path.dirname(os.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"


def check_caught(made: Sequence[Fx2OnnxError], tracer: Tracer) -> None:
    """Find what an ``except`` of forward's caught in a run that came to its end. An error that other sizes do not raise is a condition,
    with a warning. Raises the first of the errors ``made`` in the run, and of fake tensors, that eager PyTorch does not raise.
    """
    caught = [failed for failed in tracer.failed if _is_caught_by_user(failed[0])]
    foreign = next((error for error in made if _is_caught_by_user(error)), None)
    of_fakes = next((error for error, *_ in caught if isinstance(error, Exception) and is_of_fakes(error)), None)
    if foreign is None and of_fakes is not None:
        foreign = explained(of_fakes)
    if foreign is not None:
        foreign.is_caught = True
        raise foreign from of_fakes
    env = tracer.sizes
    asked = [each for error, since, until in caught if not is_of_data(error) for each in env.asked[since:until]]
    asked += [each for each in env.asked if each[0] == "check" and each[2] is False]
    for relation, holds in dict.fromkeys((what, holds) for _, what, holds in asked if isinstance(what, Relation)):
        true = relation if holds else relation.negated()
        if true.symbols() & env.unbacked or env.facts.is_settled(true) is not None:
            continue
        noted = env.guards.get((relation, bool(holds)))
        env.note(true, None if noted is None else noted.where)
        place = f"   ({noted.where})" if noted is not None and noted.where else ""
        tracer.warnings.append(f"forward catches an error that eager PyTorch raises only where {true}{place}")


def _is_caught_by_user(error: BaseException) -> bool:
    """Return whether the frame that caught the error is the module's, or a library's other than torch and Python's own."""
    code = None if error.__traceback__ is None else error.__traceback__.tb_frame.f_code
    return (
        code is not None
        and is_user(code)
        and (_PACKAGES in code.co_filename or not code.co_filename.startswith(_STDLIB))
    )


def raised_by_data(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """A call whose kernel raises for some numbers, in a ``try`` of forward's. Where operators can check the numbers, data decides and
    both branches are in the file; else a warning says that the file has the one without the error.
    """
    traits = traits_of(func)
    name = traits.name.removeprefix("aten::")
    if name in _DIVISIONS and not all(map(_is_whole, args[:2])):
        return NotImplemented
    if name == "div" and not kwargs.get("rounding_mode"):
        return NotImplemented
    check = _CHECKS.get(name)
    if name in _COMPOSITE and decides(tracer):
        with tracer.mode:
            return decompose(func, args, kwargs)
    if check is None or not decides(tracer):
        warn_of_one_branch(tracer, f"an error that {func} raises for some numbers", tracer.values.where)
        return NotImplemented
    with tracer.mode:
        node = behind(tracer.values.node_of(check(*args)))
    value = tracer.values.value_of(node)
    with no_dispatch():
        holds = None if value is None else bool(value)
    if holds is None:
        unknown = load_family("overloads.unbacked_scalars").unknown_number
        holds = tracer.truth(node, unknown(tracer, node, aten.is_nonzero.default, is_truth=True), is_needed=True)
    if not holds:
        end_by_data((traits.raises or RuntimeError)(f"{func}: an operand has a number that the kernel does not take"))
    return NotImplemented


def decides(tracer: Tracer) -> bool:
    """Return whether an error that forward catches may be one more data-dependent decision."""
    trace = tracer.trace
    return trace is not None and tracer.values.is_outermost() and len(trace.decisions) < MOST_NEEDED


def warn_of_one_branch(tracer: Tracer, error: str, where: object) -> None:
    """Say that forward catches an error, and that the file does not have what it does then."""
    text = _ONE.format(error, where)
    tracer.warnings += [text] if text not in tracer.warnings else []


class CaughtCalls(WatchingMode):  # type: ignore[no-untyped-call]
    """Collects a line for each ``try`` of forward's around what raises for some numbers: torch.export goes on without the error."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        has_number = any(isinstance(each, torch.SymInt) and not each.node.has_hint() for each in args)
        if (has_number or traits_of(func).raises is not None or func in _READS) and is_caught():
            self.lines[_ONE.format(f"an error that {func} raises for some numbers", user_location())] = None
        return func(*args, **(kwargs or {}))


_READS = frozenset({torch.ops.aten._assert_async.msg, torch.ops.aten._local_scalar_dense.default})
"""The operators of which Python raises an error of its own: of an ``assert``, of ``int(x)``."""

_ONE = f"forward catches {{}}; {ONE_BRANCH}   ({{}})"
_DIVISIONS = frozenset({"div", "floor_divide", "fmod", "remainder"})
_COMPOSITE = frozenset(
    {"inverse", "matrix_power"}
    | {
        f"linalg_{name}"
        for name in ["cholesky", "inv", "lu_factor", "matrix_power", "solve", "tensorinv", "tensorsolve"]
    }
)
"""Operators made of others, the last of which is ``_linalg_check_errors``."""


def _is_whole(operand: object) -> bool:
    return isinstance(operand, torch.Tensor) and not (operand.is_floating_point() or operand.is_complex())


def _within(index: torch.Tensor, size: Any, lowest: Any = 0) -> torch.Tensor:
    return torch.logical_and(index >= lowest, index < size).all()


def _along(tensor: torch.Tensor, dim: int, index: torch.Tensor, *_: object) -> torch.Tensor:
    return _within(index, tensor.shape[dim] if tensor.dim() else 1)


def _from_both_ends(tensor: torch.Tensor, dim: int, index: torch.Tensor, *_: object) -> torch.Tensor:
    size = tensor.shape[dim] if tensor.dim() else 1
    return _within(index, size, -size)


def _at(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: object) -> torch.Tensor:
    """Each index of integers names an element of its axis; a mask has as many axes as it selects from."""
    axis, checks = 0, [torch.ones((), dtype=torch.bool)]
    for index in indices:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        if index is not None and not is_mask:
            checks.append(_from_both_ends(tensor, axis, index))
        axis += index.dim() if index is not None and is_mask else 1
    return torch.stack(checks).all()


_CHECKS: dict[str, Callable[..., torch.Tensor]] = {
    "_linalg_check_errors": lambda info, *_: (info == 0).all(),
    "cholesky": lambda matrix, upper=False: (aten.linalg_cholesky_ex(matrix, upper=upper)[1] == 0).all(),
    "cholesky_inverse": lambda factor, *_: (factor.diagonal(0, -2, -1) != 0).all(),
    **dict.fromkeys(("linalg_eig", "linalg_eigvals"), lambda matrix: matrix.isfinite().all()),
    **dict.fromkeys(
        ("svd", "linalg_svd", "_linalg_svd", "linalg_svdvals", "pinverse", "linalg_pinv", "linalg_matrix_rank"),
        lambda matrix, *_: matrix.isnan().logical_not().all(),
    ),
    **dict.fromkeys(_DIVISIONS, lambda _, other: (other != 0).all()),
    **dict.fromkeys(
        ("gather", "index_add", "index_copy", "index_select", "scatter", "scatter_add", "scatter_reduce"), _along
    ),
    "index_fill": _from_both_ends,
    **dict.fromkeys(("index", "index_put"), _at),
    "take": lambda tensor, index: _within(index, tensor.numel(), -tensor.numel()),
    "embedding": lambda weight, indices, *_: _within(indices, weight.shape[0]),
    "one_hot": lambda index, count=-1: _within(index, count) if count >= 0 else (index >= 0).all(),
    "bincount": lambda numbers, *_: (numbers >= 0).all(),
    "binary_cross_entropy": lambda share, *_: torch.logical_and(share >= 0, share <= 1).all(),
}
"""The tests, by operator, of whether its kernel takes the numbers of its operands."""
