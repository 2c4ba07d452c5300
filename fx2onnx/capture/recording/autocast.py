"""Autocast regions: the casts that autocast would make, as recorded operators.

The tracer sees overloads before autocast does. To know the casts, the overload runs once on fakes below a mode that
notes which of its arguments are cast before any other operator runs.

Autocast casts a parameter once in an outermost region and keeps that cast, whatever is written into the parameter
afterwards (``KeptCasts``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

from fx2onnx.capture.rare_roads import RunPlugin
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.torchcompat.dispatch import TorchDispatchMode, no_modes, real_kernels
from fx2onnx.torchcompat.fake_tensors import DataDependentOutputException, DynamicOutputShapeException
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten

_COPIES = aten.clone.default, aten._unsafe_view.default
"""Operators that ``reshape`` becomes where it is no view."""


class _FirstCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the casts of the given tensors, up to the first other operator; and later ones, of views of them (``einsum``)."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = tensors
        self._shown = {id(tensor): (tensor, tensor) for tensor in tensors}
        """A given tensor or a view of one, and that given tensor, by the id of the view."""
        self._first: dict[int, torch.dtype] = {}
        self._later: dict[int, torch.dtype | None] = {}
        """None for what is used without a cast, too."""
        self.viewed: set[int] = set()
        """The ids of the tensors of which only views are cast: autocast keeps no cast of a view."""
        self._open = True

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        shown = self._shown.get(id(args[0])) if args else None
        if func is aten._to_copy.default and shown is not None and kwargs.get("dtype") is not None:
            view, tensor = shown
            if self._open and view is tensor:
                self._first[id(tensor)] = kwargs["dtype"]
            if view is not tensor and id(tensor) not in self._later:
                self.viewed.add(id(tensor))
            if self._later.setdefault(id(tensor), kwargs["dtype"]) != kwargs["dtype"]:
                self._later[id(tensor)] = None
        elif func.namespace != "prim":
            self._open = False
            if shown is not None and isinstance(result, torch.Tensor) and (func.is_view or func in _COPIES):
                self._shown[id(result)] = result, shown[1]
            else:
                used = (self._shown.get(id(arg)) for arg in flatten((args, kwargs))[0])
                self._later.update(
                    {id(each[1]): None for each in used if each is not None and each[1].dtype not in _LOW}
                )
        return result

    @property
    def dtypes(self) -> dict[int, torch.dtype]:
        """The dtypes of the casts, by the id of the tensor."""
        if self._first:
            return self._first
        later = {id(tensor): self._later.get(id(tensor)) or tensor.dtype for tensor in self._tensors}
        return later if self._later and len(set(later.values())) == 1 else {}


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
    dtypes = casts.dtypes
    return tuple(_cast(tracer, arg, dtypes, casts.viewed) for arg in args) if dtypes else args


def _cast(tracer: Tracer, arg: object, dtypes: dict[int, torch.dtype], viewed: set[int]) -> object:
    if isinstance(arg, list | tuple):
        return [_cast(tracer, item, dtypes, viewed) for item in arg]
    if not isinstance(arg, torch.Tensor):
        return arg
    key = id(tracer.values.fake_of(arg))
    dtype = dtypes.get(key)
    if dtype is None or dtype == arg.dtype:
        return arg
    is_kept = torch.is_autocast_cache_enabled() and key not in viewed
    if is_kept and dtype in _LOW and arg.dtype == torch.float32 and _is_leaf(tracer, arg):
        casts: KeptCasts = tracer.plugin("autocast")
        return casts.cast(arg, dtype)
    with tracer.mode:
        return aten.to.dtype(arg, dtype)


_LOW = torch.float16, torch.bfloat16


def _is_leaf(tracer: Tracer, tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a leaf that requires gradients, in eager PyTorch."""
    values = tracer.values
    if not values.fake_mode.holds(tensor):
        return tensor.requires_grad and tensor.is_leaf and tensor._base is None
    return any(node in values.wants_grad and view.tensor is tensor for node, view in values.sources.items())


class KeptCasts(RunPlugin):
    """The casts that autocast keeps until its outermost region ends: of float32 leaves that require gradients."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        with real_kernels():
            self._leaf = torch.ones(1, 1, requires_grad=True)
        self._is_kept: Callable[[], object] = lambda: None
        self._casts: dict[int, tuple[torch.Tensor, torch.fx.Node, torch.Tensor]] = {}
        """A leaf, its value when it was cast, and the cast, by the id of the leaf."""

    def cast(self, leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``leaf`` in ``dtype``: the cast that autocast keeps if it has one of another value."""
        if self._is_kept() is None:
            self._casts.clear()
            self._is_kept = _kept_cast(self._leaf)
        values = self.tracer.values
        node = values.node_of(leaf)
        cast: torch.Tensor | None
        _, before, cast = self._casts.get(id(leaf), (leaf, node, None))
        if cast is None or (before is node and cast.dtype == dtype):
            with self.tracer.mode:
                cast = aten.to.dtype(leaf, dtype)
            self._casts.setdefault(id(leaf), (leaf, node, cast))
            return cast
        if values.node_of(cast).graph not in (values.graph, values.root):
            raise values.refuse(
                "E103",
                "autocast uses a cast of a parameter from before the parameter was written",
                why="the cast was made in another branch or turn of a loop",
                next="use the parameter in autocast before the branch or loop, or pass cache_enabled=False to torch.autocast",
            )
        return cast


def _kept_cast(leaf: torch.Tensor) -> Callable[[], object]:
    """A reference to a cast of ``leaf`` that autocast keeps: it ends when autocast forgets what it kept."""
    made: list[Callable[[], object]] = []
    was_on = torch.is_autocast_enabled("cpu")
    with no_modes():
        torch.set_autocast_enabled("cpu", True)
        try:
            with _Results(made):
                torch.mm(leaf, leaf)
        finally:
            torch.set_autocast_enabled("cpu", was_on)
    return made[0]


class _Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refers weakly to the result of each operator."""

    def __init__(self, made: list[Callable[[], object]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = made

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        self._made.append(weakref.ref(result))
        return result


PLUGIN = KeptCasts
