"""Tensors of several lengths as one: PyTorch looks for the longest, which is another one at other sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import dims_of
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply


@register(Kind.RECORD, torch.ops.aten.pad_sequence.default)
def _pad_sequence(
    recorder: BaseRecorder,
    call: Call,
    sequences: Sequence[torch.Tensor],
    batch_first: bool,
    padding_value: float,
    padding_side: str,
) -> object:
    """Each padded to the largest of the lengths, and stacked."""
    lengths: list[DimLike] = [dims_of(each)[0] for each in sequences]
    if not any(isinstance(length, Dim) for length in lengths) or padding_side not in ("left", "right"):
        return NotImplemented
    longest: Scalar = lengths[0]
    for length in lengths[1:]:
        longest = apply("max", longest, length)
    with recorder.mode:
        padded = []
        for each, length in zip(sequences, lengths, strict=True):
            missing = sym_int(recorder.shape_env, longest - length)
            around = [0, missing] if padding_side == "right" else [missing, 0]
            pad = torch.nn.functional.pad(each, [0, 0] * (each.dim() - 1) + around, value=padding_value)
            padded.append(pad)
        return torch.stack(padded, 0 if batch_first else 1)
