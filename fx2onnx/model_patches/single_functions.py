"""Libraries of which one function has a patch: gpytorch's kernel matrices and mambapy's parallel scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER


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
