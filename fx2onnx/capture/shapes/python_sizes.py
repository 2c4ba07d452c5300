"""Functions of Python and torch that want plain numbers, made to take symbolic sizes while a module is captured."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.dims import Dim, Scalar, apply
from fx2onnx.base.relations import Relation
from fx2onnx.capture.python.cached_calls import calls_cached
from fx2onnx.capture.python.frames import asking_frame, is_user
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode, sym_int, unwrap
from fx2onnx.capture.torch_private.thread_state import list_device_constructors

Function: TypeAlias = Callable[..., object]


def take_sizes() -> None:
    """Until ``Changes`` end, and for this thread, symbolic sizes go where Python's own functions need plain numbers: ``min``
    and ``max`` of sizes, ``math.sqrt(n)``, ``torch.linspace(0, 1, n)``, ``torch.tensor([n, 2])``,
    ``one_hot(x, n)``; a size that is a key is
    specialized.
    """
    list_device_constructors()
    for space, name, wrap in _WRAPPED:
        put_name(space, name, _for_thread(getattr(space, name), wrap))


@functools.lru_cache(maxsize=64)
@answers_for_caller
def _for_thread(original: Function, wrap: Callable[..., Function]) -> Function:
    """What stands for ``original`` during captures: it takes sizes in threads that capture."""
    wrapped = wrap(original)

    @functools.wraps(original)
    def chosen(*args: object, **kwargs: object) -> object:
        return (wrapped if THREAD.captures else original)(*args, **kwargs)

    return chosen


@answers_for_caller
def _extreme(op: str, original: Function) -> Function:
    def extreme(*values: Any, **keywords: object) -> object:
        items = values[0] if len(values) == 1 and type(values[0]) in (list, tuple) else values
        node = None if keywords else next(filter(None, map(_size_node, items)), None)
        if node is None or not all(isinstance(item, int | float | torch.SymInt | torch.SymFloat) for item in items):
            return original(*values, **keywords)
        found = functools.reduce(functools.partial(_extreme_of_two, op, node.env), map(unwrap, items))
        if isinstance(found, Dim) and found.is_real:
            return torch.SymFloat(DimNode(node.env, found, float))  # type: ignore[no-untyped-call]
        return sym_int(node.env, found)

    return extreme


def _extreme_of_two(op: str, env: ShapeEnv, one: Scalar, two: Scalar) -> Scalar:
    """``min`` or ``max``; one of the two where it is that at every ordinary size."""
    for first, second in ((one, two), (two, one)):
        relation = Relation("le" if op == "min" else "ge", (first, second))
        if not relation.symbols() & env.unbacked and env.holds_at_ordinary_sizes(relation):
            return first
    return apply(op, one, two)


def _size_node(item: object) -> DimNode | None:
    node = item.node if type(item) in (torch.SymInt, torch.SymFloat) else None  # type: ignore[attr-defined]
    return node if isinstance(node, DimNode) else None


@answers_for_caller
def _square_root(original: Function) -> Function:
    return lambda value: value**0.5 if type(value) in (torch.SymInt, torch.SymFloat) else original(value)


@answers_for_caller
def _linspace(original: Function) -> Function:
    """linspace(start, end, steps): start + i * (end - start) / (steps - 1), from the nearer end, as torch does it."""

    def linspace(start: Any, end: Any, steps: Any, **kwargs: Any) -> object:
        node = _size_node(steps)
        if node is None or not kwargs.keys() <= {"dtype", "device"}:
            return original(start, end, steps, **kwargs)
        index = torch.arange(steps, dtype=kwargs.get("dtype") or torch.get_default_dtype(), device=kwargs.get("device"))
        step = (end - start) / sym_int(node.env, apply("max", node.value - 1, 1))
        return torch.where(index * 2 < steps, start + step * index, end - step * (steps - 1 - index))

    return linspace


@answers_for_caller
def _one_hot(original: Function) -> Function:
    """one_hot(tensor, num_classes), whose number of classes has to be a plain one for torch."""

    def one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> object:
        if _size_node(num_classes) is None:
            return original(tensor, num_classes)
        return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)

    return one_hot


@answers_for_caller
def _tensor(original: Function) -> Function:
    """``torch.tensor`` and ``torch.as_tensor`` of numbers, or nested lists of them, with sizes among them."""

    def tensor(data: object, *args: object, **kwargs: Any) -> object:
        if not _holds_size(data) or args or not kwargs.keys() <= {"dtype", "device", "requires_grad"}:
            return original(data, *args, **kwargs)
        made = _stacked(data)
        return made.to(kwargs.get("device") or made.device, kwargs.get("dtype") or made.dtype)

    return tensor


def _holds_size(data: Any) -> bool:
    kind = type(data)
    return kind is torch.SymInt or kind is torch.SymFloat or (kind in (list, tuple) and any(map(_holds_size, data)))


@answers_for_caller
def _stacked(data: Any) -> torch.Tensor:
    if isinstance(data, list | tuple):
        parts = [_stacked(part) for part in data]
        dtype = functools.reduce(torch.promote_types, {part.dtype for part in parts})
        return torch.stack([part.to(dtype) for part in parts])
    if isinstance(data, torch.Tensor):
        return data
    is_real = isinstance(data, float | torch.SymFloat)
    dtype = torch.bool if isinstance(data, bool) else torch.get_default_dtype() if is_real else torch.int64
    return torch.scalar_tensor(data, dtype=dtype)


@answers_for_caller
def _hash(original: Callable[[torch.SymInt], int]) -> Function:
    """A key of a dict has to be a plain number; a function that keeps its results keeps them by expression. torch itself
    counts on sizes that have no hash.
    """

    def hashed(self: torch.SymInt) -> int:
        frame = asking_frame()
        if frame is None or not is_user(frame.f_code):
            return int(original(self))
        node = _size_node(self)
        return hash(int(self)) if node is None or not calls_cached(frame) else hash(("size", node.value))

    return hashed


_WRAPPED: tuple[tuple[object, str, Callable[..., Function]], ...] = (
    (builtins, "min", functools.partial(_extreme, "min")),
    (builtins, "max", functools.partial(_extreme, "max")),
    (math, "sqrt", _square_root),
    (torch, "linspace", _linspace),
    (torch.nn.functional, "one_hot", _one_hot),
    (torch, "tensor", _tensor),
    (torch, "as_tensor", _tensor),
    (torch.SymInt, "__hash__", _hash),
)
