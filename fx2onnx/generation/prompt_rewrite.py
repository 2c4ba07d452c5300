"""How a model's own ``generate`` changes a prompt before its language model gets it: BLIP's replaces the first token and
leaves out the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.manifest.names import IDS, MASK


def rewritten(rewrite: PromptRewrite | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, its ``input_ids`` and ``attention_mask`` [batch, length] without the last tokens, another one first.

    Raises:   UserError E401 where no token is left.
    """
    inputs = dict(given)
    ids = inputs.get(IDS)
    if rewrite is None or ids is None or ids.ndim != 2:
        return inputs
    kept = ids.shape[1] - rewrite.left_out
    if kept < 1:
        raise UserError(
            "E401",
            f"the prompt of {ids.shape[1]} tokens is too short",
            why=f"the model's own generate leaves out its last {rewrite.left_out}: processors end a text with a token for that",
        )
    inputs |= {name: inputs[name][:, :kept] for name in (IDS, MASK) if name in inputs}
    if rewrite.first_token is not None:
        first = np.full_like(ids[:, :1], rewrite.first_token)
        inputs[IDS] = np.concatenate([first, inputs[IDS][:, 1:]], axis=1)
    return inputs
