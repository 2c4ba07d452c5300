"""The methods of ``torch.onnx.ONNXProgram`` on a finished export: call it, rename its sizes, give it other weights."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.notices import warn
from fx2onnx.judge.engines import Array, chosen_engines, open_session
from fx2onnx.lower.weights import ModuleWeight
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.verify.arrays import to_numpy, to_tensor


def opened(source: str | bytes) -> Any:
    """An ``InferenceSession`` of onnxruntime, or of the runner where that is not installed."""
    available = chosen_engines(None)
    return open_session("onnxruntime" if "onnxruntime" in available else available[0], source)


def feeds_of(
    inputs: Sequence[str], known: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Array]:
    """Arguments of the module as the model's inputs: keywords by name, others in order; ``known`` are values of inputs that nobody
    gives. Raises UserError E401 where they do not fit.
    """
    named = {name: _tensors(value) for name, value in kwargs.items()}
    feeds = {name: leaves[0] for name, leaves in named.items() if name in inputs and len(leaves) == 1}
    rest = _tensors((tuple(args), {name: value for name, value in kwargs.items() if name not in feeds}))
    left = [name for name in inputs if name not in feeds and name not in known]
    if len(left) != len(rest):
        raise UserError(
            "E401",
            f"the arguments have {len(feeds) + len(rest)} tensors, the model has {len(inputs) - len(known)} inputs",
            why=f"the inputs are {', '.join(inputs)}",
            next="give the module's arguments in its order, without those whose values are constants of the file",
        )
    found = {name: _array(leaf) for name, leaf in (feeds | dict(zip(left, rest, strict=True))).items()}
    return {name: _array(known[name]) for name in inputs if name in known and name not in found} | found


def _tensors(value: Any) -> list[Any]:
    leaves, _ = flatten(value)
    return [leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor | np.ndarray)]


def _array(value: Any) -> Array:
    return to_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def as_tensors(outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Arrays as tensors; sequences and texts as they are."""
    return tuple(
        to_tensor(each) if isinstance(each, np.ndarray) and each.dtype.kind not in "OSU" else each for each in outputs
    )


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy whose outputs are the values of those names. Raises UserError E001 for a name that the main graph does not have."""
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    values |= {value.name: value for value in copy.graph.inputs}
    missing = [name for name in names if name not in values]
    if missing:
        close = difflib.get_close_matches(missing[0], [name for name in values if name], 3)
        raise UserError(
            "E001",
            f"the model has no value {missing[0]!r}",
            next=f"did you mean {' or '.join(close)}?" if close else (),
        )
    copy.graph.outputs[:] = [values[name] for name in names]
    return copy


def apply_weights(model: ir.Model, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Give the module's weights in the model other numbers. Raises UserError E001 for one of another shape or dtype."""
    held: dict[str, list[ModuleWeight]] = {}
    for value in model.graph.initializers.values():
        for weight in _weights_of(value.const_value):
            held.setdefault(weight.name or "", []).append(weight)
    for name, tensor in state_dict.items():
        for weight in held.get(name, ()):
            if (tensor.shape, tensor.dtype) != (weight.raw.shape, weight.raw.dtype):
                one, other = (f"{t.dtype} {list(t.shape)}" for t in (tensor, weight.raw))
                raise UserError("E001", f"the weight {name} is {one}", why=f"the model has {other}")
    missing = [name for name in state_dict if name not in held]
    if missing:
        warn([f"the model has no weight {name}, which was not applied" for name in missing])
    for name, weights in held.items():
        for weight in weights:
            if name in state_dict:
                weight.put(state_dict[name])


def _weights_of(tensor: Any) -> Iterator[ModuleWeight]:
    if isinstance(tensor, ModuleWeight):
        yield tensor
    elif isinstance(tensor, DerivedTensor):
        for source in tensor.sources:
            yield from _weights_of(source)
