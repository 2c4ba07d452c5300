"""A tracer at work, without the module, the driver and the lowering around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._dispatch.python import enable_python_dispatcher

from fx2onnx.base.changes import Changes
from fx2onnx.capture import registry
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording import control_flow
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import tensor_info
from fx2onnx.capture.registry import Kind
from fx2onnx.capture.shapes.python_sizes import install_size_functions
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.torchcompat.capture_modes import capture_modes
from fx2onnx.torchcompat.late_imports import import_compiler

import_compiler()  # the driver does so where a run asks for it
for name in registry.read_families():
    registry.load_family(name)

N, M = Dim.symbol("n"), Dim.symbol("m")
Input = tuple[Sequence[DimLike], torch.dtype]


class Entry(NamedTuple):
    """What the registry has: an overload, or the name of one of a package that may not be there."""

    overload: Any
    function: Callable[..., Any]


def entries(kind: Kind) -> list[Entry]:
    return [Entry(_overload(name), function) for name, function in registry._ENTRIES[kind].items()]


def _overload(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace not in ("aten", "quantized"):
        return name
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def tracer_of(hints: dict[str, int] | None = None, pre_dispatch: bool = True) -> Tracer:
    return Tracer(ShapeEnv(hints or {}), {}, lambda overload: True, pre_dispatch)


def inputs_of(tracer: Tracer, *shapes: Sequence[DimLike] | Input) -> list[torch.Tensor]:
    """Inputs x0, x1, ...; float32 where a shape comes without a dtype."""
    fakes = []
    for index, shape in enumerate(shapes):
        dims, dtype = shape if len(shape) == 2 and isinstance(shape[1], torch.dtype) else (shape, torch.float32)
        fakes.append(tracer.values.new_fake(dims, dtype))
        tracer.values.add_input(f"x{index}", fakes[-1])
    return fakes


def recorded(
    function: Callable[..., Any],
    *shapes: Sequence[DimLike] | Input,
    hints: dict[str, int] | None = None,
    pre_dispatch: bool = True,
) -> tuple[Tracer, Any]:
    """``function`` of inputs of the given shapes: the tracer, and what the function returned."""
    control_flow.register()
    tracer = tracer_of(hints, pre_dispatch)
    fakes = inputs_of(tracer, *shapes)
    with Changes():
        install_size_functions()
        with capture_modes(tracer.values.fake_mode, tracer.mode):
            return tracer, function(*fakes)


@contextlib.contextmanager
def handling(tracer: Tracer) -> Iterator[None]:
    """As while the tracer handles a call: its mode is off until it is entered again."""
    with torch.no_grad(), tracer.values.fake_mode, enable_python_dispatcher():
        yield


def calls(tracer: Tracer) -> list[str]:
    """The overloads called, in order."""
    return [str(node.target).removeprefix("aten.") for node in tracer.values.graph.nodes if node.op == "call_function"]


def sizes_at(tensor: torch.Tensor, **hints: int) -> tuple[int, ...]:
    """The sizes where the symbols have these values."""
    return tuple(dim.evaluate(hints) if isinstance(dim, Dim) else dim for dim in tensor_info(tensor).dims)


def info(*dims: DimLike, dtype: torch.dtype = torch.float32) -> TensorInfo:
    return TensorInfo(dtype, dims)
