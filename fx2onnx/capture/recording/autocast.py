"""Autocast regions: the casts that autocast would make, as recorded operators.

The tracer sees overloads before autocast does. To know the casts, the overload runs once on fakes below a mode that
notes which of its arguments are cast before any other operator runs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.torchcompat.dispatch import TorchDispatchMode
from fx2onnx.torchcompat.fake_tensors import DataDependentOutputException, DynamicOutputShapeException
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten


class _FirstCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the casts of the given tensors, up to the first other operator."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted = {id(tensor) for tensor in tensors}
        self.dtypes: dict[int, torch.dtype] = {}
        self.open = True

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is aten._to_copy.default and id(args[0]) in self.wanted:
            if self.open and kwargs.get("dtype") is not None:
                self.dtypes[id(args[0])] = kwargs["dtype"]
        elif func.namespace != "prim":
            self.open = False
        return func(*args, **kwargs)


def cast_arguments(
    tracer: Tracer, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...]:
    """``args`` with the casts that autocast makes for ``func``, recorded."""
    fakes, fake_kwargs = tracer.values.to_fakes(args, kwargs)
    tensors = [
        tensor
        for arg in fakes
        for tensor in (arg if isinstance(arg, list | tuple) else [arg])
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    ]
    if not tensors or func._schema.name == "aten::to":
        return args
    mode = tracer.values.fake_mode
    mode.runs_operator = True  # what it asks of its operands is not asked by forward
    try:
        with (
            _FirstCasts(tensors) as casts,
            contextlib.suppress(DynamicOutputShapeException, DataDependentOutputException),
        ):
            func(
                *fakes, **fake_kwargs
            )  # the casts come first: a result that data decides is for whoever records the call
    finally:
        mode.runs_operator = False
    return tuple(_cast(tracer, arg, casts.dtypes) for arg in args) if casts.dtypes else args


def _cast(tracer: Tracer, arg: object, dtypes: dict[int, torch.dtype]) -> object:
    if isinstance(arg, list | tuple):
        return [_cast(tracer, item, dtypes) for item in arg]
    if not isinstance(arg, torch.Tensor):
        return arg
    dtype = dtypes.get(id(tracer.values.fake_of(arg)))
    if dtype is None or dtype == arg.dtype:
        return arg
    with tracer.mode:
        return aten.to.dtype(arg, dtype)
