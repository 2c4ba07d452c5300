"""The faults that ``studies.planted`` plants: where, how, and the context in which each is there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch


@dataclass(frozen=True)
class Plant:
    """A fault: where, how, and the context in which it is there. ``blamed`` stands in what has to be blamed."""

    what: str
    how: str
    blamed: str
    planted: Callable[[], contextlib.AbstractContextManager[Any]]


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda op, value: op.Mul(value, op.const(np.asarray(1.25), value.dtype)),
    "negated": lambda op, value: op.Neg(value),
    "shifted": lambda op, value: op.Add(value, op.const(np.asarray(0.5), value.dtype)),
    "small numbers lost": lambda op, value: op.Relu(value),
}
"""Changes of a result of floats, in ONNX."""
IN_NUMPY: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda array: array * array.dtype.type(1.25),
    "negated": lambda array: -array,
    "shifted": lambda array: array + array.dtype.type(0.5),
    "small numbers lost": lambda array: np.maximum(array, 0),
    "last axis turned": lambda array: np.flip(array, -1) if array.ndim else array,
}


OTHER = "other argument"
"""The name of a change of an argument of a translation, or of an attribute of a kernel or of a rewrite's node."""


def _other(value: Any) -> Any:
    """A different number for a number, a list in a different order; None for other values."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 if value > 0 else value + 1
    if isinstance(value, float):
        return value * 1.5 + 0.25
    is_list = isinstance(value, list | tuple) and all(isinstance(each, int) for each in value)
    return type(value)(value[::-1]) if is_list and list(value) != list(value)[::-1] else None


def _with_another(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, the first that has another being that one."""
    for place, value in enumerate(args):
        if (other := _other(value)) is not None:
            return (*args[:place], other, *args[place + 1 :]), kwargs
    for name, value in kwargs.items():
        if (other := _other(value)) is not None and name not in ("n_outputs", "version"):
            return args, kwargs | {name: other}
    return args, kwargs


def _translated(function: Any, how: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a translation with the fault."""
    if how != OTHER:
        return _changed(op, function(op, *args, **kwargs), how)
    args, kwargs = _with_another(args, kwargs)
    return function(op, *args, **kwargs)


def _rewritten(build: Any, how: str, self: Any, op: Any, match: Any) -> Any:
    """The result of a rewrite with the fault."""
    import onnx_ir as ir

    built = build(self, op, match)
    if how != OTHER:
        return _changed(op, built, how)
    first = built if isinstance(built, ir.Value) else next(iter(built))
    producer = first.producer()
    if producer is not None and producer in op.builder.nodes:
        for name, attribute in producer.attributes.items():
            value = attribute.value
            other = _other(list(value) if isinstance(value, tuple) else value)
            if other is not None:
                producer.attributes[name] = ir.convert_attribute(name, other)
                break
    return built


def _is_float(value: Any) -> bool:
    import onnx_ir as ir

    return isinstance(value, ir.Value) and value.dtype == ir.DataType.FLOAT


def _changed(op: Any, result: Any, how: str) -> Any:
    """The first float of the results changed."""
    several = isinstance(result, tuple | list)
    values = list(result) if several else [result]
    for place, value in enumerate(values):
        if _is_float(value):
            values[place] = CHANGES[how](op, value)
            break
    return type(result)(values) if several else values[0]


def translations(captured: Any, opset: int) -> Iterator[Plant]:
    """Faults in the translations of the overloads that the model calls."""
    from fx2onnx.aten_map import TABLE

    overloads = dict.fromkeys(node.target for node in captured.graph.nodes if node.op == "call_function")
    for overload in overloads:
        entry = TABLE.find(overload, opset)
        for how in (*CHANGES, OTHER) if entry is not None else ():
            wrong = functools.partial(_translated, entry.function, how)
            forms = [replace(entry, function=functools.update_wrapper(wrong, entry.function))]
            yield Plant(
                str(overload),
                how,
                str(overload),
                functools.partial(mock.patch.dict, TABLE.entries, {overload: forms}),
            )


def rewrites(edits: Sequence[str]) -> Iterator[Plant]:
    """Faults in the rewrites that edit the model."""
    from fx2onnx.optimize import pipelines

    stages = [stage for stage in pipelines.LEVELS[pipelines.DEFAULT_LEVEL] if isinstance(stage, pipelines.Rewrites)]
    classes = {item.name: type(item) for stage in stages for item in stage.rewrites}
    for name in edits:
        if name not in classes:
            continue
        for how in (*CHANGES, OTHER):
            wrong = _as_method(classes[name].build, how)
            yield Plant(name, how, name, functools.partial(mock.patch.object, classes[name], "build", wrong))


def _as_method(build: Any, how: str) -> Callable[..., Any]:
    return lambda self, op, match: _rewritten(build, how, self, op, match)


def kernels(op_types: Sequence[str]) -> Iterator[Plant]:
    """Faults in the kernels of the operators that the file has."""
    from fx2onnx.semantics import registry

    for op_type in op_types:
        versions = registry._table.get(("", op_type), {})
        if not versions or any(kernel.kind == "view" for kernel in versions.values()):
            continue
        for how in (*IN_NUMPY, OTHER):
            broken = {since: _broken(kernel, how) for since, kernel in versions.items()}
            yield Plant(op_type, how, op_type, functools.partial(_in_table, ("", op_type), broken))


def _broken(kernel: Any, how: str) -> Any:
    change = IN_NUMPY.get(how, lambda array: array)

    def other(*inputs: Any, **attributes: Any) -> Any:
        return kernel.fn(*inputs, **_with_another((), attributes)[1])

    def into(out: Any, *inputs: Any, **attributes: Any) -> Any:
        result = kernel.fn(out, *inputs, **attributes)
        target = out[0] if isinstance(out, list | tuple) else out
        if target.dtype == np.float32:
            target[...] = change(target)
        return result

    def alloc(*inputs: Any, **attributes: Any) -> Any:
        result = kernel.fn(*inputs, **attributes)
        first = result[0] if isinstance(result, tuple) else result
        if not isinstance(first, np.ndarray) or first.dtype != np.float32:
            return result
        return (change(first), *result[1:]) if isinstance(result, tuple) else change(first)

    wrong = other if how == OTHER else into if kernel.kind == "into" else alloc
    function = functools.wraps(kernel.fn)(wrong)
    return replace(kernel, fn=function, prepare=None, elementwise=False)


@contextlib.contextmanager
def _in_table(key: tuple[str, str], broken: dict[int, Any]) -> Iterator[None]:
    from fx2onnx.semantics import registry

    with mock.patch.dict(registry._table, {key: broken}):
        registry._count_change()
        try:
            yield
        finally:
            registry._count_change()
    registry._count_change()


def captures(captured: Any) -> Iterator[Plant]:
    """Faults in single nodes of the graph: a number that becomes another, operands that change places, a step that is
    lost."""
    nodes = [node for node in captured.graph.nodes if node.op == "call_function"]
    for place, node in enumerate(nodes):
        for how, harm in HARMS.items():
            if harm(node, try_only=True):
                yield Plant(f"node {place} {node.target}", how, "", functools.partial(_captured_wrong, place, how))


def _numbers(node: Any, try_only: bool = False) -> bool:
    """A number among the arguments becomes another."""
    for place, value in enumerate(node.args):
        if isinstance(value, float) and not isinstance(value, bool):
            if not try_only:
                node.update_arg(place, value * 1.5 + 0.25)
            return True
    return False


def _swapped(node: Any, try_only: bool = False) -> bool:
    """The first two operands change places."""
    if len(node.args) < 2 or not all(isinstance(each, torch.fx.Node) for each in node.args[:2]):
        return False
    one, two = (each.meta.get("val") for each in node.args[:2])
    names = ("sub", "div", "mm", "bmm", "matmul", "pow", "atan2", "remainder")
    is_other = any(f"aten.{name}." in str(node.target) for name in names)
    if not is_other or str(one) != str(two) or node.args[0] is node.args[1]:
        return False
    if not try_only:
        node.args = (node.args[1], node.args[0], *node.args[2:])
    return True


def _lost(node: Any, try_only: bool = False) -> bool:
    """The node gives its first operand as it is."""
    first = next((each for each in node.args if isinstance(each, torch.fx.Node)), None)
    if first is None or str(first.meta.get("val")) != str(node.meta.get("val")) or "float" not in str(node.meta["val"]):
        return False
    if not try_only:
        node.replace_all_uses_with(first)
    return True


HARMS: dict[str, Callable[..., bool]] = {"other number": _numbers, "operands swapped": _swapped, "step lost": _lost}


@contextlib.contextmanager
def _captured_wrong(place: int, how: str) -> Iterator[None]:
    from fx2onnx.capture.driver import capture
    from fx2onnx.exporting import build
    from fx2onnx.verify.locating import program

    def wrong(*args: Any, **kwargs: Any) -> Any:
        captured = capture(*args, **kwargs)
        node = [each for each in captured.graph.nodes if each.op == "call_function"][place]
        first = next((each for each in node.args if isinstance(each, torch.fx.Node)), None)
        HARMS[how](node)
        if how == "step lost":
            for output in [*captured.outputs, *captured.mutations]:
                name = "value" if hasattr(output, "value") else "node"
                if getattr(output, name) is node:
                    setattr(output, name, first)
        return captured

    with mock.patch.object(build, "capture", wrong), mock.patch.object(program, "capture", wrong):
        yield
