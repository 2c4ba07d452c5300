"""The kinds of ``fx2onnx export``, and the options that have a meaning with each."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    import typer


class Kind(enum.Enum):
    """What is written, in the words of messages."""

    FILE = "one model"
    FILES = "several models"
    GENERATION = "a generation task"
    TRAINING = "training"


_INFERS = frozenset(Kind) - {Kind.TRAINING}
_OF_QUANTIZE = (
    "quantize", "block", "exclude", "format", "embeddings", "keep_worst", "accuracy", "calibration", "method", "act_order",
    "activations",
)  # fmt: skip
_ONLY = {
    "dynamic": frozenset(Kind) - {Kind.GENERATION},
    "capture": frozenset({Kind.FILE, Kind.FILES}),
    "bake": frozenset({Kind.FILE, Kind.FILES}),
    "cache": frozenset({Kind.GENERATION}),
    "logits": frozenset({Kind.GENERATION}),
    "training": frozenset({Kind.TRAINING}),
    "loss": frozenset({Kind.TRAINING}),
    "optimizer": frozenset({Kind.TRAINING}),
    "learning_rate": frozenset({Kind.TRAINING}),
    "target": _INFERS,
    "fused": _INFERS,
    "functions": _INFERS,
    "checks": _INFERS,
    "io": _INFERS,
    "keep": _INFERS,
    **dict.fromkeys(_OF_QUANTIZE, _INFERS),
    "cluster": frozenset({Kind.FILES}),
    "limit": frozenset({Kind.FILES}),
    "again": frozenset({Kind.FILES}),
}
"""Parameters of the command, and the kinds that they have a meaning with; the others have one with all."""

_NEXT = {Kind.TRAINING: "add --training", Kind.GENERATION: "add --task text-generation-with-past"}
_DEFAULTS = {"dynamic": ("default",), "capture": "auto", "cache": "dynamic", "logits": "all"}
"""Words that ask for nothing when they are written."""


def refuse_others(kind: Kind, context: typer.Context) -> None:
    """Raise UserError E001 for an option on the command line that has no meaning with ``kind``."""
    names = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    for name, kinds in _ONLY.items():
        source = context.get_parameter_source(name)
        value = context.params[name]
        # of several words, typer's versions make a list or a tuple
        asked = tuple(value) if isinstance(value, list) else value
        is_given = source is not None and source.name != "DEFAULT" and asked != _DEFAULTS.get(name)
        if kind in kinds or not is_given:
            continue
        option = names[name]
        if len(kinds) == 1:
            (only,) = kinds
            raise UserError("E001", f"{option} is for {only.value}", next=_NEXT.get(only, f"leave out {option}"))
        raise UserError("E001", f"{option} has no meaning with {kind.value}", next=f"leave out {option}")
