"""mambapy's parallel scan: a recurrence over any number of positions."""

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
