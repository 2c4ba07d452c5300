"""Calls of ATen on sets of numbers: all numbers of narrow dtypes, all small arrays of a few numbers, and arrays of one 1.

Both engines are held against eager PyTorch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from fx2onnx.judge.engines import ENGINES
from studies.proving.graphs import ELEMENTS
from tests.ops.harness import Call, Model, build, call_of, check_engines, faults_of

Tensors = list[torch.Tensor]
ARRAYS = 1024
"""Arrays at most, which are all of a set of numbers."""
NUMBERS = {
    "float": (0.0, 1.0, -1.5, 2.0), "int": (0, 1, -1, 2), "bool": (False, True), "complex": (-1.0, 0.5j, 1.0 + 1.0j),
}  # fmt: skip
BY_ELEMENT = ELEMENTS | {
    *("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Softsign", "ThresholdedRelu", "Shrink", "Where", "IsNaN"),
    *("IsInf", "Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Identity", "Constant"),
}  # fmt: skip
LINEAR = {
    **dict.fromkeys(
        (
            *("aten._adaptive_avg_pool2d_backward.default", "aten._upsample_nearest_exact3d_backward.default"),
            *("aten.adaptive_max_pool2d_backward.default", "aten.affine_grid_generator.default"),
            *("aten.avg_pool2d_backward.default", "aten.replication_pad2d_backward.default"),
            *("aten.upsample_trilinear3d_backward.default", "aten.avg_pool2d.default"),
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            *("aten.conv_transpose3d.input", "aten.conv2d.padding", "aten.slow_conv_dilated2d.default"),
            "aten.slow_conv_transpose2d.default",
        ),
        (0, 1),
    ),
}
"""The tensors in each of which the results of an overload are linear, whatever the others hold."""
LINEAR_OPS = frozenset(
    ["MatMul", "Transpose", "Reshape", "Conv", "ConvTranspose", "Pad", "Slice", "Add", "Sub", "Neg", "Mul", "Gather", "ReduceSum", "Concat",
     "ScatterElements", "ScatterND", "Resize", "AveragePool", "Expand", "Squeeze", "Unsqueeze", "Constant", "Identity", "Split", "Div"]
)  # fmt: skip


def tensors_of(call: Call) -> Tensors:
    return [each for each in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(each, torch.Tensor)]


def with_tensors(call: Call, tensors: Tensors) -> Call:
    """The call of other tensors. Raises what eager PyTorch raises."""
    given = iter(tensors)
    args, kwargs = pytree.tree_map(
        lambda each: next(given) if isinstance(each, torch.Tensor) else each, (call.args, call.kwargs)
    )
    return call_of(call.overload, *args, **kwargs)


def grids(count: int) -> Iterator[tuple[str, Tensors]]:
    """All numbers of narrow dtypes, all pairs of narrower ones, or all triples of a few, for so many tensors."""
    some = [sign * each for sign in (1, -1) for each in (0, 0.5, 1, 1.5, 2, 3, 4, 6, 100, np.inf)]
    eighth = torch.arange(256).to(torch.uint8).view(torch.float8_e5m2).float().numpy()
    floats = {
        1: ("all numbers of float16", np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)),
        2: ("all pairs of numbers of float8", eighth[~np.isnan(eighth)]),
        3: ("all triples of 21 numbers", np.array([*some, np.nan], np.float32)),
    }
    if count not in floats:
        return
    numbers = floats[count][1]
    yield floats[count][0], _product(np.where(np.isnan(numbers), np.float32(np.nan), numbers), count)
    for dtype in (torch.int8, torch.uint8, torch.bool) if count < 3 else ():
        numbers = torch.arange(2 if dtype == torch.bool else 256).to(dtype).numpy()
        yield f"all {'pairs' if count == 2 else 'numbers'} of {str(dtype)[6:]}", _product(numbers, count)


def _product(numbers: Any, count: int) -> Tensors:
    return [torch.from_numpy(each.reshape(-1).copy()) for each in np.meshgrid(*[numbers] * count, indexing="ij")]


def by_values(call: Call, model: Model) -> tuple[list[str], str]:
    """The sets of numbers on which eager PyTorch, onnxruntime and the runner give the same, and the first difference."""
    tensors = tensors_of(call)
    done = []
    if not set(model.op_types) <= BY_ELEMENT or len({tuple(each.shape) for each in tensors}) != 1:
        return [], ""
    for name, grid in grids(len(tensors)):
        try:
            made = with_tensors(call, grid)
            found = build(made)
        except Exception:  # eager PyTorch has not this dtype, or no shape of one axis
            continue
        if set(found.op_types) <= BY_ELEMENT and all(each.shape == grid[0].shape for each in made.outputs):
            for engine, verdict in check_engines(made, ["onnxruntime", "runner"]).items():
                if verdict.status not in ("ok", "refused"):
                    return [], f"{name} in {engine}: {verdict.note}"[:200]
            done.append(name)
    return done, ""


def all_arrays(call: Call) -> Iterator[Tensors]:
    """All arrays of a few numbers in the places of the tensors of a call; none if they are too many."""
    tensors = tensors_of(call)
    moving = [place for place, each in enumerate(tensors) if _moves(each) or len(tensors) == 1]
    places = sum(tensors[place].numel() for place in moving)
    dtypes = [tensors[place] for place in moving]
    kind = "float" if any(each.is_floating_point() for each in dtypes) else "int"
    numbers: tuple[Any, ...] = NUMBERS["complex" if any(each.is_complex() for each in dtypes) else kind]
    while len(numbers) > 2 and len(numbers) ** places > ARRAYS:
        numbers = numbers[1:]
    for chosen in itertools.product(numbers, repeat=places) if len(numbers) ** places <= ARRAYS else ():
        given, left = list(tensors), list(chosen)
        for place in moving:
            shape, dtype = tensors[place].shape, tensors[place].dtype
            given[place] = torch.tensor([left.pop() for _ in range(shape.numel())]).to(dtype).reshape(shape)
        yield given


def units(call: Call, model: Model) -> Iterator[Tensors]:
    """Zeros, and all arrays of one 1, in the places of the tensors in which a call and its model are linear."""
    tensors, places = tensors_of(call), LINEAR.get(str(call.overload), ())
    if not set(model.op_types) <= LINEAR_OPS:
        return
    rows = [torch.eye(tensors[place].numel() + 1)[:, 1:].reshape(-1, *tensors[place].shape) for place in places]
    for chosen in itertools.product(*rows) if places else ():
        named = dict(zip(places, chosen, strict=True))
        yield [named[place].to(each.dtype) if place in named else each for place, each in enumerate(tensors)]


def by_arrays(call: Call, model: Model, arrays: Iterator[Tensors]) -> tuple[int, str]:
    """The number of those arrays, if both engines compute all of them as eager PyTorch does, and the first difference."""
    names = [value.name for value in onnx.load_from_string(model.proto).graph.input]
    runs, count = [], 0
    for engine in ("runner", "onnxruntime"):
        with contextlib.suppress(Exception):  # an engine may lack a kernel
            runs.append(ENGINES[engine](model.proto))
    for given in arrays if runs else ():
        try:
            made = with_tensors(call, given)
        except Exception:  # eager PyTorch refuses these numbers
            continue
        feeds = {name: _fed(each) for name, each in zip(names, given, strict=False)}
        for run in runs:
            faults = faults_of(made, model, run(feeds))
            if faults:
                return 0, faults[0][:200]
        count += 1
    return count, ""


def _moves(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool


def _fed(tensor: torch.Tensor) -> Any:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).numpy()
