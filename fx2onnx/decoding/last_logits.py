"""Graphs that give the logits of the last position alone, which generation asks for."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.manifest.names import LOGITS


def give_last_logits(module: torch.nn.Module) -> None:
    """Let ``module``, which takes any number of tokens, give logits [batch, 1, vocabulary]; encoders give none."""
    if _last not in module._forward_hooks.values():
        module.register_forward_hook(_last)


def _last(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    """``PickEarly`` then leaves of the head, and of the last layer, what the last position needs."""
    return outputs | {LOGITS: outputs[LOGITS][:, -1:]} if LOGITS in outputs else outputs
