"""TorchScript graphs run by Python, which keeps sizes symbolic: torch's own interpreter makes plain numbers of them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from fx2onnx.base.code_patch import SharedReason, answers_for_caller, instead_of
from fx2onnx.torchcompat.dispatch import no_dispatch

Value: TypeAlias = Any
"""A value of TorchScript: tensors, numbers, lists, objects."""
Function: TypeAlias = Callable[..., Value]


@functools.cache
def _dtype(number: int | None) -> torch.dtype | None:
    """The dtype that TorchScript has as a number."""
    with no_dispatch():
        return None if number is None else torch.ops.aten.empty.memory_format([0], dtype=number).dtype


def _number(value: Value) -> Value:
    return value.item() if isinstance(value, torch.Tensor) else value


def _added(one: Value, two: Value, factor: Value = 1) -> Value:
    return one + (two if factor == 1 else two * factor)


def _stored(values: Value, key: Value, value: Value) -> Value:
    values[key] = value
    return values


def _raise(text: str, *_: Value) -> None:
    raise RuntimeError(text)


_OF_NUMBERS: dict[str, Function] = {
    "aten::add": _added, "aten::sub": lambda one, two, factor=1: one - two * factor, "aten::mul": operator.mul,
    "aten::div": operator.truediv, "aten::floordiv": operator.floordiv, "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod, "aten::neg": operator.neg, "aten::pow": operator.pow, "aten::eq": operator.eq,
    "aten::ne": operator.ne, "aten::lt": operator.lt, "aten::gt": operator.gt, "aten::le": operator.le,
    "aten::ge": operator.ge, "aten::__and__": lambda one, two: one and two, "aten::__or__": lambda one, two: one or two,
    "aten::ceil": lambda one: math.ceil(one), "aten::floor": lambda one: math.floor(one), "aten::abs": abs,
    "aten::sqrt": lambda one: one**0.5, "prim::min": lambda *all: min(*all), "prim::max": lambda *all: max(*all),
    "aten::__range_length": lambda low, high, step: max((high - low + step - 1) // step, 0),
    "aten::__derive_index": lambda index, start, step: start + index * step, "prim::abs": abs,
}  # fmt: skip
"""Operators of numbers, which ``torch.ops`` would take as plain ones."""
_OF_LISTS: dict[str, Function] = {
    "aten::append": lambda values, value: (values.append(value), values)[1],
    "aten::__getitem__": operator.getitem, "aten::add": operator.add, "aten::mul": operator.mul,
    "aten::_set_item": _stored, "aten::eq": operator.eq, "aten::ne": operator.ne,
    "aten::slice": lambda values, start=None, end=None, step=1: values[start:end:step],
    "aten::__contains__": operator.contains, "aten::keys": lambda table: [*table], "aten::list": list,
    "aten::values": lambda table: [*table.values()], "prim::min": lambda values: min(values), "prim::max": max,
    "aten::tensor": lambda data, dtype=None, *_: torch.tensor(data, dtype=_dtype(dtype)),
    "aten::format": lambda text, *values: text.format(*values),
}  # fmt: skip
_OF_ANYTHING: dict[str, Function] = {
    "prim::ListConstruct": lambda *values: [*values], "prim::TupleConstruct": lambda *values: values,
    "prim::DictConstruct": lambda *values: dict(zip(values[::2], values[1::2], strict=True)),
    "prim::unchecked_cast": lambda value: value, "prim::unchecked_unwrap_optional": lambda value: value,
    "aten::len": lambda value: value.shape[0] if isinstance(value, torch.Tensor) else len(value),
    "aten::wait": lambda value: value, "prim::NumToTensor": lambda value: value, "aten::Int": _number, "aten::IntImplicit": _number,
    "aten::ScalarImplicit": _number, "aten::Float": lambda value: _number(value) * 1.0,
    "aten::Bool": lambda value: bool(_decided(_number(value))), "aten::FloatImplicit": _number,
    "prim::Uninitialized": lambda: None, "prim::TupleIndex": operator.getitem, "aten::warn": lambda *_: None,
    "aten::__not__": lambda value: not _decided(value), "aten::__is__": operator.is_, "aten::__isnot__": operator.is_not,
    "aten::dim": lambda value: value.dim(), "aten::numel": lambda value: value.numel(),
    "aten::size": lambda value, axis=None: [*value.shape] if axis is None else value.shape[axis],
    "prim::shape": lambda value: [*value.shape], "prim::dtype": lambda value: value.dtype, "prim::device": lambda value: value.device,
    "prim::is_cuda": lambda value: False, "prim::requires_grad": lambda value: False, "prim::RaiseException": _raise,
}  # fmt: skip
_STRUCTURE = frozenset(
    {"prim::Constant", "prim::GetAttr", "prim::If", "prim::Loop", "prim::TupleUnpack", "prim::ListUnpack"}
)


def _overload(node: torch._C.Node) -> torch._ops.OpOverload | None:
    """The operator that the node calls; None where it calls none."""
    schema = node.schema()
    namespace, _, rest = schema.partition("(")[0].partition("::")
    name, _, kind = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if rest else None
    return getattr(packet, kind or "default", None)


def _is_known(block: Value) -> bool:
    """Return whether Python can run all nodes of a graph or block."""
    for node in block.nodes():
        kind = node.kind()
        has_rule = kind in _STRUCTURE or kind in _OF_ANYTHING or kind in _OF_NUMBERS or kind in _OF_LISTS
        if not (has_rule or _overload(node) is not None) or not all(map(_is_known, node.blocks())):
            return False
    return True


def _loops(block: Value) -> bool:
    """Return whether there is a loop, of which the file may have one where Python runs it."""
    return any(node.kind() == "prim::Loop" or any(map(_loops, node.blocks())) for node in block.nodes())


def _is_alike(function: Value, written: Function) -> bool:
    """Return whether the function was made of all that is ``written``: a trace has one way of it only."""
    is_scripted = "__qualname__" in vars(function)  # as torch.jit.script sets it, and torch.jit.trace does not
    return is_scripted and "is_scripting" not in written.__code__.co_names


def _forked(function: Function, *args: Value, **kwargs: Value) -> torch.futures.Future[Value]:
    future: torch.futures.Future[Value] = torch.futures.Future()
    future.set_result(function(*args, **kwargs))
    return future


_FORK = instead_of(torch.jit.fork, _forked, SharedReason.SCRIPT)
"""The code that torch's threads would run is run here."""


def _graph_of(function: Value) -> torch._C.Graph | None:
    """The graph with all calls inlined, where Python can run it."""
    graph = function.graph.copy()
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_inline_fork_wait(graph)
    torch._C._jit_pass_inline(graph)  # calls within what was forked
    return graph if _is_known(graph) else None


def _decided(value: Value) -> Value:
    """The value; for a SymBool the decision of its node."""
    return value.node.as_argument() if type(value) is torch.SymBool else value


@answers_for_caller
class _Run:
    """One run of a graph."""

    def __init__(self, inputs: Sequence[torch._C.Value], given: Sequence[Value]) -> None:
        self.values: dict[str, Value] = {}
        self._take(inputs, given)

    def _take(self, names: Sequence[torch._C.Value], values: Sequence[Value]) -> None:
        for name, value in zip(names, values, strict=True):
            self.values[name.debugName()] = value

    def _of(self, names: Sequence[torch._C.Value]) -> list[Value]:
        return [self.values[name.debugName()] for name in names]

    def block(self, block: Value) -> list[Value]:
        for node in block.nodes():
            outputs = [*node.outputs()]
            found = self._node(node, self._of([*node.inputs()]))
            self._take(outputs, [found] if len(outputs) == 1 else found if outputs else [])
        return self._of([*block.outputs()])

    def _node(self, node: torch._C.Node, given: list[Value]) -> Value:
        kind = node.kind()
        if kind == "prim::Constant":
            return node.output().toIValue()
        if kind == "prim::GetAttr":
            return (
                given[0].getattr(node.s("name")) if hasattr(given[0], "getattr") else getattr(given[0], node.s("name"))
            )
        if kind == "prim::If":
            then, otherwise = node.blocks()
            found = self.block(then if _decided(given[0]) else otherwise)
            return found[0] if len(found) == 1 else found
        if kind == "prim::Loop":
            return self._loop(node, *given)
        if kind in ("prim::TupleUnpack", "prim::ListUnpack"):
            return given[0][0] if len([*node.outputs()]) == 1 else given[0]
        if kind in _OF_ANYTHING:
            return _OF_ANYTHING[kind](*given)
        if given and isinstance(given[0], list | dict | tuple | str) and kind in _OF_LISTS:
            return _OF_LISTS[kind](*given)
        if kind in _OF_NUMBERS and not any(isinstance(value, torch.Tensor) for value in given):
            return _OF_NUMBERS[kind](*given)
        overload = _overload(node)
        assert overload is not None
        return _called(overload, given)

    def _loop(self, node: torch._C.Node, most: Value, goes_on: Value, *carried: Value) -> Value:
        (body,) = node.blocks()
        turn, state = 0, [*carried]
        count = most if isinstance(most, int) else operator.index(most)
        while turn < count and _decided(goes_on):
            self._take([*body.inputs()], [turn, *state])
            goes_on, *state = self.block(body)
            turn += 1
        return state[0] if len(state) == 1 else state


def _called(overload: torch._ops.OpOverload, given: Sequence[Value]) -> Value:
    """Numbers that a trace keeps as tensors are tensors for an operator that takes some."""
    args: list[Value] = []
    kwargs: dict[str, Value] = {}
    for argument, value in zip(overload._schema.arguments, given, strict=False):
        if str(argument.type) == "Tensor" and not isinstance(value, torch.Tensor):
            value = torch.scalar_tensor(value, dtype=torch.int64 if isinstance(value, int | torch.SymInt) else None)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return overload(*args, **kwargs)


def result_of(function: Value, args: Sequence[Value], kwargs: dict[str, Value], original: Function) -> Value:
    """The result of a call of a scripted function or method: by Python, from the function as it was written where it has loops, or by
    ``original`` where Python cannot run it.
    """
    graph = _graph_of(function)
    written = getattr(function, "_torchdynamo_inline", None)
    if written is not None and (graph is None or _loops(graph)) and _is_alike(function, written):
        _FORK.put_in()
        return written(*args, **kwargs)
    if graph is None:
        return original(function, *args, **kwargs)
    owner = [function.owner] if isinstance(function, torch._C.ScriptMethod) else []
    schema = function.schema.arguments[len(owner) :]
    given = [
        args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(schema)
    ]
    found = _Run([*graph.inputs()], [*owner, *given]).block(graph)
    return found[0] if len(found) == 1 else tuple(found)
