"""Weights of equal numbers -> one, however large: files store a tied weight several times."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.edit import drop_initializer, replace
from fx2onnx.irx.pieces import pieces_of
from fx2onnx.optimize.weights import lacks_data

PIECE_BYTES = 1 << 20


def merge_equal_weights(model: ir.Model) -> int:
    """Returns how many weights were replaced by another one of the same dtype, shape and numbers.

    Refuses:   weights that feeds can replace, or that are graph outputs; strings.
    Cost:      only weights of one dtype and shape are read, piece by piece.
    """
    alike: dict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or lacks_data(tensor) or value.is_graph_input() or value.is_graph_output():
            continue
        if tensor.dtype != ir.DataType.STRING and tensor.nbytes:
            alike[tensor.dtype, tuple(tensor.shape)].append(value)
    merged = 0
    for values in alike.values():
        first: dict[bytes, ir.Value] = {}
        for value in values if len(values) > 1 else ():
            same = first.setdefault(_digest(value.const_value), value)
            if same is not value:
                replace(value, same)
                drop_initializer(value)
                merged += 1
    return merged


def _digest(tensor: ir.TensorProtocol | None) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces_of(tensor, PIECE_BYTES):
        memory = np.empty(piece.length, np.uint8)
        made = piece.make(memory)
        digest.update((memory if made is None else made).data)
    return digest.digest()
