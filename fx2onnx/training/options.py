"""``Training``: what a training graph computes besides the module's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fx2onnx.base.errors import UserError, unknown_word
from fx2onnx.base.stack_frames import public_methods

if TYPE_CHECKING:
    import torch

DROPOUTS = ("off", "seeded")


@public_methods
@dataclass(frozen=True)
class Training:
    """The loss, and with it the optimizer, that ``fx2onnx.export(..., training=...)`` and ``export_training`` add to the module.
    Checked when made: UserError E001.

    loss: a module or function of ``(outputs, *targets)`` that returns a scalar.
    targets: sample tensors for the loss: a tensor, a tuple, or a dict by the names of the loss's parameters.
    optimizer: an instance of ``torch.optim`` over the module's parameters, an ``UpdateRule``, or None for gradients alone.
    inputs: names of inputs whose gradients are outputs, too.
    metrics: further results, by name: functions of ``(outputs, *targets)``.
    dropout: ``off``, or ``seeded``: masks follow from the input ``seed``.
    clip_value, clip_norm: gradients are clipped to this absolute value; to this global norm.
    frozen: parameters that stay as they are, besides those with ``requires_grad=False``: names, or beginnings of names
        that end in a dot.
    held: parameters that stay as they are and are inputs all the same, named as for ``frozen``: another graph trains them.
    returns_outputs: the module's outputs are outputs of the graph, too.
    loss_scale: the loss is multiplied by the input ``loss_scale`` before the gradients are taken, which are divided by it.
    """

    loss: Callable[..., torch.Tensor]
    targets: object = ()
    optimizer: object = None
    inputs: Sequence[str] = ()
    metrics: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    dropout: str = "off"
    clip_value: float | None = None
    clip_norm: float | None = None
    frozen: Sequence[str] = ()
    held: Sequence[str] = ()
    returns_outputs: bool = False
    loss_scale: bool = False

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise UserError(
                "E001",
                f"loss is a {type(self.loss).__name__}, which cannot be called",
                next="give a module or a function of (outputs, *targets), such as torch.nn.functional.cross_entropy",
            )
        for name in ("inputs", "frozen", "held"):
            if isinstance(given := getattr(self, name), str):
                raise UserError("E001", f"{name} is the text {given!r}, no list of names", next=f"{name}=[{given!r}]")
        if self.dropout not in DROPOUTS:
            raise unknown_word("dropout", self.dropout, DROPOUTS)
        for name in ("clip_value", "clip_norm"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise UserError("E001", f"{name} is {limit}, and gradients are clipped to more than 0")
