"""A module whose weights are those of a quantised file, for as long as the file is compared with it.

The numbers are made from the module's own weights once more, so that wrong codes in the file show in the outputs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.judge.engines import Array
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.quantize.places import IN_FLOAT32, IN_INT8
from fx2onnx.quantize.reference import METADATA_KEY, read
from fx2onnx.verify.arrays import to_numpy

_CODES = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
)


def in_float32(model: onnx.ModelProto, note: Callable[[str], object]) -> bytes | None:
    """The file with products that round nothing to 8 bits, which ``note`` is told; None where the file asks for none that do."""
    if not _rounding(model):
        return None
    exact = onnx.ModelProto()
    exact.CopyFrom(model)
    for attribute in _rounding(exact):
        attribute.i = IN_FLOAT32
    note(f"{len(_rounding(model))} products may round what they multiply to 8 bits in onnxruntime; here they do not")
    found: bytes = exact.SerializeToString()
    return found


def has_codes(model: onnx.ModelProto) -> bool:
    """Return whether the model computes with codes: those of weights alone become floats first."""
    return not _CODES.isdisjoint(operators_of(model))


def operators_of(model: onnx.ModelProto) -> set[str]:
    """The operators of the model and of its functions, bodies left out."""
    return {node.op_type for holder in (model.graph, *model.functions) for node in holder.node}


def with_own_zero_points(model: onnx.ModelProto) -> bytes | None:
    """The file with zero points of int8 that no two nodes share, as onnxruntime needs where it turns int8 into uint8; None
    where none do.
    """
    held = {value.name: value for value in model.graph.initializer if value.data_type == onnx.TensorProto.INT8}
    readers = Counter(name for node in model.graph.node for name in node.input if name in held)
    if all(count < 2 for count in readers.values()):
        return None
    own = onnx.ModelProto()
    own.CopyFrom(model)
    met: Counter[str] = Counter()
    for node in own.graph.node:
        for place, name in enumerate(node.input):
            if readers[name] < 2:
                continue
            met[name] += 1
            if met[name] > 1:
                copied = own.graph.initializer.add()
                copied.CopyFrom(held[name])
                copied.name = node.input[place] = f"{name}.of.{node.output[0]}.{place}"
    found: bytes = own.SerializeToString()
    return found


def _rounding(model: onnx.ModelProto) -> list[onnx.AttributeProto]:
    return [
        attribute
        for holder in (model.graph, *model.functions)
        for node in holder.node
        for attribute in (node.attribute if node.op_type == "MatMulNBits" else ())
        if attribute.name == "accuracy_level" and attribute.i == IN_INT8
    ]


@contextlib.contextmanager
def as_quantized(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> Iterator[None]:
    """The module's weights as the file says that it has them; afterwards they are as they were. ``folder``: of the file."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), "")
    stated = read(text)
    tensors = {
        **dict(root.named_buffers(remove_duplicate=False)),
        **dict(root.named_parameters(remove_duplicate=False)),
    }
    held = {value.name: value for value in model.graph.initializer}

    def in_file(name: str) -> ir.TensorProtocol:
        return ir.serde.deserialize_tensor(held[name], folder)

    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with record("quantise the module's weights"):
            for name, said in stated.items():
                own = tensors.get(name)
                if own is None:
                    verdict.rows.append(Row.failed("file", name, "weights", "the module has no such weight"))
                    continue
                try:
                    numbers = said.numbers(to_numpy(own), in_file)
                except (ValueError, KeyError, TypeError) as error:
                    verdict.rows.append(Row.failed("file", name, "weights", f"{error}"))
                    continue
                if numbers.shape != own.shape:
                    verdict.rows.append(Row.failed("file", name, "weights", "its codes are of another shape"))
                    continue
                saved.append((own, own.data))
                own.data = _as_tensor(numbers, own)
        if stated:
            kinds = ", ".join(sorted({said.kind for said in stated.values()}))
            verdict.note(f"compared with the module with {len(stated)} weights rounded as the file has them ({kinds})")
        yield
    finally:
        for own, before in saved:
            own.data = before


def _as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    numbers = np.ascontiguousarray(array)
    if like.dtype == torch.bfloat16:
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(numbers).to(like.device)
