"""How a model's own ``generate`` changes a prompt before its language model gets it: BLIP's replaces the first token and
leaves out the last. ``fx2onnx.json`` has it as ``own_prompt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError

LEFT_OUT, FIRST = "left_out", "first_token"


def changed(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, its ``input_ids`` and ``attention_mask`` [batch, length] without the last tokens, another one first.

    Raises:   UserError E401 where no token is left.
    """
    inputs = dict(given)
    ids = inputs.get("input_ids")
    if not own or ids is None or ids.ndim != 2:
        return inputs
    kept = ids.shape[1] - int(own.get(LEFT_OUT, 0))
    if kept < 1:
        raise UserError(
            "E401",
            f"the prompt of {ids.shape[1]} tokens is too short",
            why=f"the model's own generate leaves out its last {own[LEFT_OUT]}: processors end a text with a token for that",
        )
    inputs |= {name: inputs[name][:, :kept] for name in ("input_ids", "attention_mask") if name in inputs}
    if FIRST in own:
        inputs["input_ids"] = np.concatenate([np.full_like(ids[:, :1], own[FIRST]), inputs["input_ids"][:, 1:]], axis=1)
    return inputs
