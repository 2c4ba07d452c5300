"""Libraries of which one function has a patch: gpytorch's kernel matrices, and the parallel scans of mambapy, gateloop_transformer and
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import pytree


@patches("mambapy.pscan:PScan.forward", around=True)
def pscan(original: Any, ctx: Any, A_in: Tensor, X_in: Tensor) -> Tensor:
    """``h[t] = A_in[t] * h[t - 1] + X_in[t]``, from 0.

    Shapes:    A_in, X_in [B, L, D, N] -> [B, L, D, N].
    Source:    mambapy.pscan.PScan.forward.
    """
    if not isinstance(X_in.shape[1], torch.SymInt):
        return original(ctx, A_in, X_in)  # type: ignore[no-any-return]

    def step(state: Tensor, factor: Tensor, added: Tensor) -> list[Tensor]:
        state = factor * state + added
        return [state, state.clone()]

    inputs = [A_in.transpose(0, 1), X_in.transpose(0, 1)]
    _, states = HIGHER_ORDER["scan"](step, [torch.zeros_like(X_in[:, 0])], inputs, [])
    ctx.save_for_backward(A_in, states.permute(1, 2, 0, 3))
    return states.transpose(0, 1)


_IN_TURNS = "steps along the axis, whose size is dynamic, where the library halves it again and again"


@patches("gateloop_transformer.associative_scan:associative_scan", reason=_IN_TURNS, around=True)
def gate_loop_scan(original: Any, operator: Any, elems: Sequence[Tensor]) -> Sequence[Tensor]:
    """``out[:, t] = operator(out[:, t - 1], elems[:, t])``.

    Shapes:    each of elems [B, L, *] -> [B, L, *].
    Source:    gateloop_transformer.associative_scan.associative_scan.
    """
    is_dynamic = isinstance(elems[0].shape[1], torch.SymInt)
    return _in_turns(operator, elems, 1) if is_dynamic else original(operator, elems)


@patches("torch._higher_order_ops.associative_scan:generic_associative_scan", reason=_IN_TURNS, around=True)
def associative_scan(
    original: Any, operator: Any, leaves: Sequence[Tensor], dim: int = 0, additional_inputs: tuple[Any, ...] = ()
) -> Sequence[Tensor]:
    """``out[t] = operator(*out[t - 1], *leaves[t], *additional_inputs)`` along ``dim``.

    Shapes:    each of leaves [*, L, *] -> [*, L, *].
    Source:    torch._higher_order_ops.associative_scan.generic_associative_scan.
    """
    if not any(isinstance(size, torch.SymInt) for each in leaves for size in each.shape):  # of which it asks all
        return original(operator, leaves, dim, additional_inputs)  # type: ignore[no-any-return]
    return _in_turns(lambda left, right: operator(*left, *right, *additional_inputs), leaves, dim)


def _in_turns(operator: Callable[..., Sequence[Tensor]], elems: Sequence[Tensor], dim: int) -> list[Tensor]:
    """``out[t] = operator(out[t - 1], elems[t])`` along ``dim``, which each of them keeps with size 1."""
    first, count = [each.narrow(dim, 0, 1) for each in elems], len(elems)

    def step(*parts: Tensor) -> list[Tensor]:
        state = pytree.tree_leaves(operator([*parts[:count]], [each.unsqueeze(dim) for each in parts[count:]]))
        return [*state, *(each.clone() for each in state)]

    rest = [each.narrow(dim, 1, each.shape[dim] - 1).movedim(dim, 0) for each in elems]
    results = HIGHER_ORDER["scan"](step, first, rest, [])[count:]
    pairs = zip(first, results, strict=True)
    return [torch.cat([one, others.squeeze(dim + 1).movedim(0, dim)], dim) for one, others in pairs]


@patches(
    "gpytorch.models.exact_prediction_strategies:DefaultPredictionStrategy.exact_prediction",
    reason="computes kernel matrices whole for any number of points; gpytorch takes those above a size in parts",
)
def exact_prediction(self: Any, test_mean: Tensor, test_test_covar: Any, test_train_covar: Any) -> tuple[Tensor, Any]:
    """The mean and the covariance of the predictive posterior, from dense matrices.

    Shapes:    test_mean [*, N], test_test_covar [*, N, N], test_train_covar [*, N, M] -> [*, N], [*, N, N].
    Source:    gpytorch.models.exact_prediction_strategies.DefaultPredictionStrategy.exact_prediction.
    """
    between, within = test_train_covar.to_dense(), test_test_covar.to_dense()
    return self.exact_predictive_mean(test_mean, between), self.exact_predictive_covar(within, between)
