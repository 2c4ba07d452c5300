"""Weights of a file beside those of the module that have their names.

An output says little about a row of a table that no input picked, and about one number among a million: so what the file
has under the name of a parameter or buffer has to be that one's numbers. What the exporter computes from weights has
names of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.judge.engines import Array
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.verify.arrays import to_numpy

_TURNED = ".T"
_BLOCK = 1 << 18
_COLUMNS = 128
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes."""


def compare_weights(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> None:
    """A row for each weight that is not the module's. Of files that others wrote a note: their optimizers keep names."""
    with record("compare weights"):
        for problem, name in _differences(model, folder, root):
            if model.producer_name == PRODUCER:
                verdict.rows.append(Row.failed("weights", name, "weights", problem))
            else:
                verdict.note(f"the weight {name}: {problem}")


def _differences(model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> Iterator[tuple[str, str]]:
    tensors = {
        **dict(root.named_parameters(remove_duplicate=False)),
        **dict(root.named_buffers(remove_duplicate=False)),
    }
    for value in model.graph.initializer:
        name = value.name
        own = tensors.get(name, tensors.get(name.removesuffix(_TURNED)))
        if own is None or own.is_quantized or own.layout != torch.strided:
            continue
        is_turned = name not in tensors
        if is_turned and own.dim() != 2:
            continue
        problem = _difference(ir.serde.deserialize_tensor(value, folder).numpy(), own, is_turned)
        if problem:
            yield problem, name


def _difference(found: Array, own: torch.Tensor, is_turned: bool) -> str:
    array = to_numpy(own.t() if is_turned else own)
    if found.shape != array.shape:
        return f"shape {list(found.shape)}, the module's is {list(array.shape)}"
    if found.dtype != array.dtype:
        return ""  # the file is of another precision: its outputs say whether that is right
    if is_turned and _is_equal_turned(found, own):
        return ""
    off = sum(int(np.count_nonzero(left != right)) for left, right in _parts(found, array))
    return f"{off} of {found.size} numbers are not the module's" if off else ""


def _is_equal_turned(found: Array, own: torch.Tensor) -> bool:
    """Return whether all bits are the same, piece by piece: what a piece takes stays in the cache, along its other axis, too."""
    bits = _BITS.get(own.element_size())
    if bits is None or own.is_complex() or own.device.type != "cpu" or not found.flags.c_contiguous:
        return False
    with warnings.catch_warnings(action="ignore"):  # the file's bytes may not be written, and are not
        stored = torch.from_numpy(found.view(f"i{own.element_size()}"))
    turned = own.detach().view(bits).t()
    return all(
        torch.equal(turned[start : start + _COLUMNS], stored[start : start + _COLUMNS])
        for start in range(0, len(stored), _COLUMNS)
    )


def _parts(one: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    """Both piece by piece, as bits: NaN is NaN."""
    bits = f"u{one.dtype.itemsize}" if one.dtype.kind in "fV" and one.dtype.itemsize in (1, 2, 4, 8) else one.dtype
    left, right = (np.ascontiguousarray(array).reshape(-1).view(bits) for array in (one, other))
    for start in range(0, left.size, _BLOCK):
        yield left[start : start + _BLOCK], right[start : start + _BLOCK]
