"""The number of an integer tensor as a size: a symbol for each value, and arithmetic of symbols for that of values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import line_of
from fx2onnx.capture.captured import Symbol, TensorInfo
from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.overloads.uniform import truth_of_uniform
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import Reason, because, with_inputs
from fx2onnx.capture.recording.size_checks import CHECKED, behind
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.shape_env import BOUNDED, DATA_DECIDES, KEEP_BOTH, KEEP_TENSORS, NOT_NUMPY
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.asked_code import asserted_by_user, calls_numpy, is_in_while, refused_by_torch, subscripts
from fx2onnx.torchcompat.caught_errors import is_caught
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

_ADD, _SUBTRACT = (aten.add.Tensor, aten.add.Scalar), (aten.sub.Tensor, aten.sub.Scalar)
_TO_WHOLE = {aten.ceil.default: "ceil", aten.floor.default: "floor"}
_SAME = frozenset(
    getattr(aten, name).default
    for name in ("alias", "clone", "detach", "lift_fresh_copy", "reshape", "squeeze", "view")
)
"""One-element tensors of the number of their first argument."""
_INTEGERS, _FLOATS = (torch.int64, torch.int32), (torch.float32, torch.float64)
DEEPEST = 100
"""Operators behind each other that are gone through for an expression."""
EXACT = 1 << 24
"""The bound to which float32 holds every integer, and rounds no quotient of two up to the next integer."""


def number_of(tracer: Tracer, node: torch.fx.Node) -> Scalar:
    """The number of the one-element integer ``node``, which depends on data; the same node has the same symbol."""
    if tracer.packed_batches and node.target is aten.select.int and node.args[1:] == (0, 0):
        batch = tracer.packed_batches.get(node.all_input_nodes[0])
        if batch is not None:  # the first of the batch sizes of packed sequences: all run at the first step
            return batch
    known = _derived(tracer, node)
    if known is not None and not _is_real(known):
        return known
    symbol = tracer.unbacked_scalars[node] = tracer.sizes.new_unbacked()
    if not is_nonnegative(tracer, node):
        tracer.sizes.know(signed=tracer.sizes.facts.signed | {str(symbol)})
    tracer.values.symbols[str(symbol)] = Symbol(str(symbol), tracer.values.behind_input(node), None)
    return symbol


def _derived(tracer: Tracer, node: torch.fx.Node, depth: int = 0) -> Scalar | None:
    """The expression over sizes and over symbols that other nodes already have; None where there is none."""
    if node in tracer.unbacked_scalars:
        return tracer.unbacked_scalars[node]
    node = _element_of(node)
    if node.meta["val"].dtype not in _INTEGERS + _FLOATS:
        return None  # a smaller type wraps around
    if node.target is aten.scalar_tensor.default and not subscripts():
        number = node.args[0]
        return number if type(number) is int or (isinstance(number, Dim) and not number.is_real) else None
    rule = _RULES.get(node.target)
    if rule is None or set(node.kwargs) - {"rounding_mode", "dtype"} or depth > DEEPEST:
        return None
    operands = []
    for arg in node.args:
        if not isinstance(arg, torch.dtype | list | tuple | bool):
            operand = _operand(tracer, arg, depth + 1)
            if operand is None:
                return None
            operands.append(operand)
    found = rule(tracer, node, *operands)
    if found is not None:
        tracer.unbacked_scalars[node] = found
    return found


def _element_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node that was stacked at the place that ``node`` is taken from; ``node`` itself where it is taken from nothing else."""
    node = behind(node)
    if node.target is aten.select.int:
        held, axis, place = node.args
    elif node.target is operator.getitem and getattr(node.args[0], "target", None) is aten.unbind.int:
        held, axis, place = node.args[0].args[0], (*node.args[0].args, 0)[1], node.args[1]  # type: ignore[union-attr]
    else:
        return node
    if not isinstance(held, torch.fx.Node) or held.target is not aten.stack.default or (*held.args, 0)[1] != axis:
        return node
    found = held.args[0][place] if type(place) is int else node  # type: ignore[index]
    return found if isinstance(found, torch.fx.Node) else node


def _sum(left: int, right: int) -> Callable[..., Scalar | None]:
    def rule(tracer: Tracer, node: torch.fx.Node, one: Scalar, two: Scalar = 0) -> Scalar | None:
        """A sum; None where one of two quotients is, which float32 may round."""
        return None if _is_real(one) and _is_real(two) else left * one + right * two

    return rule


def _product(tracer: Tracer, node: torch.fx.Node, one: Scalar, two: Scalar) -> Scalar | None:
    return None if _is_real(one) or _is_real(two) else one * two


def _extreme(op: str) -> Callable[..., Scalar | None]:
    def rule(tracer: Tracer, node: torch.fx.Node, one: Scalar, two: Scalar) -> Scalar | None:
        return None if _is_real(one) or _is_real(two) else apply(op, one, two)

    return rule


def _divided(tracer: Tracer, node: torch.fx.Node, top: Scalar, bottom: Scalar) -> Scalar | None:
    rounding = node.kwargs.get("rounding_mode") if node.target is not aten.floor_divide.default else "floor"
    if type(bottom) is not int or bottom <= 0 or _is_real(top):
        return None
    is_exact = apply("mod", top, bottom) == 0
    if rounding is None and not is_exact:
        return _quotient(tracer, top, bottom)
    if rounding == "trunc" and not is_exact and not tracer.sizes.certain("ge", top, 0):
        return None
    return apply("floordiv", top, bottom)


def _quotient(tracer: Tracer, top: Scalar, bottom: int) -> Scalar:
    if isinstance(top, Dim) and not top.symbols() & tracer.sizes.unbacked:
        tracer.sizes.note(Relation("lt", (top, EXACT)), user_location())
    return apply("truediv", top, bottom)


def _whole(tracer: Tracer, node: torch.fx.Node, number: Scalar) -> Scalar:
    return apply(_TO_WHOLE[node.target], number)  # type: ignore[index]


def _converted(tracer: Tracer, node: torch.fx.Node, number: Scalar) -> Scalar | None:
    """A conversion to an integer leaves out the fraction."""
    if not _is_real(number) or node.meta["val"].dtype in _FLOATS:
        return number
    return apply("floor", number) if tracer.sizes.certain("ge", number, 0) else None


_RULES: dict[object, Callable[..., Scalar | None]] = {
    **dict.fromkeys(_ADD, _sum(1, 1)),
    **dict.fromkeys(_SUBTRACT, _sum(1, -1)),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), _sum(-1, 1)),
    aten.neg.default: _sum(-1, 1),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _product),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode), _divided),
    aten.floor_divide.default: _divided,
    aten.maximum.default: _extreme("max"),
    aten.minimum.default: _extreme("min"),
    **dict.fromkeys(_TO_WHOLE, _whole),
    **dict.fromkeys((aten.to.dtype, aten._to_copy.default, *_SAME), _converted),
}
"""The number of a result, from the numbers of its operands."""


_COMPARED = {
    overload: op
    for op in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in (getattr(aten, op).Tensor, getattr(aten, op).Scalar)
}


def truth_of(tracer: Tracer, node: torch.fx.Node) -> bool | Relation | None:
    """The truth of a comparison of numbers or of a uniform tensor that sizes decide, or the comparison; None where it depends on data."""
    op = _COMPARED.get(node.target)
    if op is None or node.kwargs:
        return truth_of_uniform(tracer, node)
    left, right = (_operand(tracer, arg) for arg in node.args)
    if left is None or right is None:
        return None
    known = tracer.sizes.certain(op, left, right)
    relation = Relation(op, (left, right))
    return relation if known is None and not relation.symbols() & tracer.sizes.unbacked else known


def _is_real(number: Scalar) -> bool:
    return isinstance(number, Dim) and number.is_real


def _operand(tracer: Tracer, arg: object, depth: int = 0) -> Scalar | None:
    """A number that is exact in float32: an integer, or a quotient of two."""
    if isinstance(arg, Dim):
        return arg
    if not isinstance(arg, torch.fx.Node):
        return _integer(arg) if isinstance(arg, int | float) else None
    if arg.meta["val"].dtype not in _INTEGERS + _FLOATS or any(size != 1 for size in arg.meta["val"].dims):
        return None
    value = tracer.values.value_of(arg)
    if value is None:
        return _derived(tracer, arg, depth)
    with no_dispatch():
        return _integer(value.item())


def _integer(number: float) -> int | None:
    if isinstance(number, float):
        return int(number) if abs(number) < EXACT and number.is_integer() else None
    return None if isinstance(number, bool) else number


DEEPEST_SIGN = 40
"""Operators between a number and what tells its sign."""

_WITH_LEAST = (aten.clamp.default, aten.clamp_min.default)
"""Overloads whose first number is the least that a result has."""


def is_nonnegative(tracer: Tracer, node: torch.fx.Node) -> bool:
    """Return whether all numbers of the node's value are >= 0."""
    seen: dict[torch.fx.Node, bool] = {}

    def holds(node: torch.fx.Node, depth: int) -> bool:
        if node not in seen:
            seen[node] = depth < DEEPEST_SIGN and _holds(tracer, node, lambda operand: holds(operand, depth + 1))
        return seen[node]

    return holds(node, 0)


def _holds(tracer: Tracer, node: torch.fx.Node, of: Callable[[torch.fx.Node], bool]) -> bool:
    info = node.meta.get("val")
    if isinstance(info, TensorInfo) and info.dtype in (torch.bool, torch.uint8):
        return True
    value = tracer.values.value_of(node)
    if value is not None:
        with no_dispatch():
            return not value.is_complex() and bool((value >= 0).all())
    if node.op != "call_function":
        return False
    if node.target in (operator.getitem, CHECKED):
        return of(node.all_input_nodes[0])
    name = name_of(node.target)
    if node.target in _WITH_LEAST:
        least = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
        if isinstance(least, int | float) and least >= 0 and not _has_negative(node):
            return True
    if name in Op.NUMBERS_COUNT.names and _has_negative(node):
        return False
    return name in Op.COUNTS.names or (name in Op.KEEPS_SIGN.names and all(map(of, node.all_input_nodes)))


def _has_negative(node: torch.fx.Node) -> bool:
    """Return whether a number among the arguments may be negative."""
    numbers = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, int | float | Dim)]
    return any(isinstance(number, Dim) or number < 0 for number in numbers)


def to_python(tracer: Tracer, func: OpOverload, tensor: torch.Tensor) -> Any:
    """The number of a one-element tensor: known where only constants lead to it, else a symbol."""
    _check_is_one(func, tensor)
    node = behind(tracer.values.node_of(tensor))
    value = tracer.values.value_of(node)
    begins_loop = tracer.branching.has_exits and tracer.plugin("loops").tests.asks_constant()
    if value is not None and not begins_loop:
        tracer.numbers_read.append((node, tracer.values.where))
        with no_dispatch():
            number = value.item()
        return bool(number) if func is aten.is_nonzero.default else number
    truth = None if begins_loop and value is not None else truth_of(tracer, node)
    if truth is not None:
        return truth if isinstance(truth, bool) else tracer.sizes.guard(truth, by_python=True, by_user=True)
    is_stated = tensor.dtype == torch.bool and asserted_by_user()
    is_refused = not is_stated and func is aten.is_nonzero.default and refused_by_torch()
    if (is_stated or is_refused) and is_caught() and road("errors that forward catches").decides(tracer):
        is_stated = is_refused = False
    if is_stated or node.target is aten._is_all_true.default:
        tracer.sizes.assume(f"%{node.name} is true", tracer.values.where)
        return True
    if is_refused:
        tracer.sizes.assume(f"%{node.name} is false", tracer.values.where)
        return False
    if tensor.dtype.is_floating_point or tensor.dtype == torch.bool or func is aten.is_nonzero.default:
        is_truth = tensor.dtype == torch.bool or func is aten.is_nonzero.default
        error = unknown_number(tracer, node, func, is_truth)
        if not is_truth:
            raise because(Reason.REAL_NUMBER, error)
        return tracer.truth(node, error)
    return sym_int(tracer.sizes, number_of(tracer, node))


def _check_is_one(func: OpOverload, tensor: torch.Tensor) -> None:
    """Raises what eager PyTorch does for a tensor of another number of elements than 1."""
    count = math.prod(tensor.shape) if all(type(size) is int for size in tensor.shape) else 1
    if count != 1 and func is aten.is_nonzero.default:
        raise RuntimeError(
            f"Boolean value of Tensor with {'more than one value' if count else 'no values'} is ambiguous"
        )
    if count != 1:
        raise RuntimeError(f"a Tensor with {count} elements cannot be converted to Scalar")


_SORTS = re.compile(r"\bsorted\(|\.sort\(|\b(min|max)\(.*key=")
_MAKES_TEXT = re.compile(r"""\bf["']|["'] *%|\.format\(|\b(str|repr|format)\(""")


def unknown_number(tracer: Tracer, node: torch.fx.Node, func: OpOverload, is_truth: bool = False) -> UserError:
    """The error where Python needs the number of ``node``."""
    where = tracer.values.where
    is_text = where is not None and not is_truth and _MAKES_TEXT.search(line_of(where.file, where.line)) is not None
    text = ["leave out the text that it becomes: a file has none, and forward may return the tensor"] if is_text else []
    if where is not None and _SORTS.search(line_of(where.file, where.line)):
        text.append("sort in tensors: x.argsort() or torch.sort(x) in the place of sorted() and key=")
    if is_in_while():
        text.append(BOUNDED)
    if not is_truth and calls_numpy():
        text.append(NOT_NUMPY)
    error = tracer.values.refuse(
        *(DATA_DECIDES if is_truth else ("E104", "Python needs a data-dependent number")),
        node=f"{func} of %{node.name}",
        why="the number is known only when the model runs",
        next=(*text, *KEEP_TENSORS, *([KEEP_BOTH] if is_truth else [])),
    )
    return with_inputs(error, tracer.inputs_behind([node]))
