"""Functions of Python and torch that want plain numbers, made to take symbolic sizes while a module is captured."""

from __future__ import annotations

import abc
import builtins
import functools
import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

from fx2onnx.base.code_patch import THREAD, NameGroup, Patched, SharedReason, WithHashOf, answers_for_caller, put_name
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.stand_ins import SYMBOLIC
from fx2onnx.capture.shapes import size_arguments, size_literals, size_tensors
from fx2onnx.capture.shapes.number_methods import ATTRIBUTES, REDUCTIONS, Function
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.size_keys import hashing
from fx2onnx.capture.shapes.size_math import IS_FINITE, MATH, NEEDS, OF_LIBRARIES, Formula, Number, has_result
from fx2onnx.capture.shapes.symnode import may_be_size, size_node, sym_number, unwrap
from fx2onnx.sizes.expr import Scalar, apply
from fx2onnx.torchcompat.frames import asked_by_user, is_of_modules
from fx2onnx.torchcompat.thread_state import list_device_constructors
from fx2onnx.torchcompat.versions import SYMBOLIC_SHAPES


def install_size_functions() -> dict[int, object]:
    """Until ``Changes`` end, and for this thread, symbolic sizes go where Python's own functions need plain numbers: ``min``
    and ``max`` of sizes, ``math.sqrt(n)``, ``torch.linspace(0, 1, n)``, ``torch.tensor([n, 2])``; and they have what Python's
    numbers have. A size that is a key is specialized. Returns what stands for functions, by the id of each.
    """
    list_device_constructors()
    loaded = tuple([place for place in _LIBRARIES if hasattr(sys.modules.get(place[0]), place[1])])
    originals = tuple([getattr(space, name) for space, name, *_ in (*_WRAPPED, *_of_libraries(loaded))])
    group, functions = _wrapped(loaded, originals)
    functions = functions | {id(getattr(torch, name)): value for name, value in size_literals.TYPES.items()}
    group.put_in()
    for kind, number in SYMBOLIC.items():
        _class_is(kind, number)
    _named().put_in()
    return functions


@functools.lru_cache(maxsize=4)
def _wrapped(
    loaded: tuple[tuple[str, str], ...], originals: tuple[Function, ...]
) -> tuple[NameGroup, dict[int, object]]:
    """The functions that take sizes, too, with those of libraries that are ``loaded``, and what stands for each, by the id of the original."""
    rows = zip((*_WRAPPED, *_of_libraries(loaded)), originals, strict=True)
    names = [_for_thread(original, wrap, space, name, why) for (space, name, wrap, why), original in rows]
    return NameGroup(names), {id(original): each.replacement for original, each in zip(originals, names, strict=True)}


@functools.cache
def _named() -> NameGroup:
    """The methods and types of tensors that take sizes, and what symbolic sizes have as Python's numbers do."""
    sizes = ((torch.Tensor, size_tensors.METHODS), (torch.Tensor, _METHODS), (torch, size_literals.TYPES))
    return NameGroup(
        Patched(holder, name, value, why)
        for why, table in ((SharedReason.SIZES, sizes), (SharedReason.METHODS, ATTRIBUTES.items()))
        for holder, names in table
        for name, value in names.items()
    )


@answers_for_caller
def _for_thread(original: Function, wrap: Callable[..., Function], space: object, name: str, why: str) -> Patched:
    """The function that replaces ``original`` during captures: it takes sizes in threads that capture."""
    wrapped = wrap(original)

    @functools.wraps(original)
    def chosen(*args: object, **kwargs: object) -> object:
        return (wrapped if THREAD.captures else original)(*args, **kwargs)

    return Patched(space, name, WithHashOf(original, chosen) if name == "_op" else chosen, why)


def are_numbers_of_data(items: Sequence[Number]) -> bool:
    """Return whether there is a tensor of one number, and with it tensors of its dtype and numbers that have room in it: the answer has
    that dtype, whichever it is.
    """
    first = next((item for item in items if isinstance(item, torch.Tensor)), None)
    if first is None or first.dtype is torch.bool or first.is_complex():
        return False
    return all(
        item.dim() == 0 and item.dtype == first.dtype
        if isinstance(item, torch.Tensor)
        else _has_room(first.dtype, item)
        for item in items
    )


def _has_room(dtype: torch.dtype, number: Number) -> bool:
    if type(number) is torch.SymInt:
        return dtype == torch.int64 or dtype.is_floating_point
    if type(number) is int or (type(number) is float and dtype.is_floating_point):
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        return bool(limits.min <= number <= limits.max)
    return False


def extreme_of_data(op: str, items: Sequence[Number]) -> Number:
    """Python's ``min`` or ``max`` of tensors of one number, such as ``max(1, mask.sum())``, as a choice in the graph: the first of those that no other is beyond, as Python finds it: NaN is beyond nothing. That of sizes is a size again."""
    like = next(item for item in items if isinstance(item, torch.Tensor))
    tensors = [
        item if isinstance(item, torch.Tensor) else torch.scalar_tensor(item, dtype=like.dtype, device=like.device)
        for item in items
    ]
    if not like.is_floating_point():
        return functools.reduce(torch.maximum if op == "max" else torch.minimum, tensors)
    is_beyond = torch.gt if op == "max" else torch.lt
    return functools.reduce(lambda best, item: torch.where(is_beyond(item, best), item, best), tensors)


def _of_libraries(loaded: Iterable[tuple[str, str]]) -> list[_Row]:
    """Functions of libraries that are loaded: lengths of fast Fourier transforms, and opt_einsum's ``contract_path``."""
    return [(sys.modules[module], name, _LIBRARIES[module, name], _LIBRARY) for module, name in loaded]


@answers_for_caller
def _planned(original: Function) -> Function:
    """torch asks for plans of products of three tensors and more. They are made for the sizes of the example inputs; the result is
    right at every size, whatever the order of a contraction is.
    """

    def contract_path(subscripts: Number, *operands: Number, **kwargs: Number) -> Number:
        if not isinstance(subscripts, str):  # operands and lists of indices in turn
            return original(subscripts, *operands, **kwargs)
        are_shapes = kwargs.pop("shapes", False)
        shapes = [tuple(map(_at_sample, each if are_shapes else each.shape)) for each in operands]
        first, plan = original(subscripts, *shapes, shapes=True, **kwargs)
        is_plan_alone = are_shapes or not kwargs.get("einsum_call")
        return (first if is_plan_alone else list(operands)), plan

    return contract_path


def _at_sample(size: Number) -> Number:
    node = getattr(size, "node", None)
    return size if node is None else node.env.hint(node.value)


@answers_for_caller
def _guarded(original: Function) -> Function:
    """The condition's own truth, as in eager PyTorch."""
    return lambda condition: bool(condition) if asked_by_user() else original(condition)


@answers_for_caller
def _constraining(original: Function) -> Function:
    return lambda a, *, min, max=None: size_arguments.constrain(a, min, max)


@answers_for_caller
def _extreme(op: str, original: Function) -> Function:
    def extreme(*values: Number, **keywords: object) -> object:
        if len(values) == 1 and isinstance(values[0], Iterator):
            values = (tuple(values[0]),)
        items = values[0] if len(values) == 1 and type(values[0]) in (list, tuple, torch.Size) else values
        if not keywords and type(items) in (list, tuple) and are_numbers_of_data(items):
            return extreme_of_data(op, items)
        node = None if keywords else next(filter(None, map(size_node, items)), None)
        if node is None or not all(isinstance(item, int | float | torch.SymInt | torch.SymFloat) for item in items):
            return original(*values, **keywords)
        return sym_number(
            node.env, functools.reduce(functools.partial(_extreme_of_two, op, node.env), map(unwrap, items))
        )

    return extreme


def _extreme_of_two(op: str, env: ShapeEnv, one: Scalar, two: Scalar) -> Scalar:
    """``min`` or ``max``; one of the two where it is that at every size."""
    for first, second in ((one, two), (two, one)):
        if env.certain("le" if op == "min" else "ge", first, second):
            return first
    return apply(op, one, two)


@answers_for_caller
def _formula(formula: Formula, original: Function) -> Function:
    """``original`` of sizes by an expression; of their plain numbers where there is none."""
    needs = NEEDS.get(original.__name__)

    def computed(*args: Number, **kwargs: Number) -> Number:
        node = next(filter(None, map(size_node, args)), None)
        if node is None:
            return original(*args, **kwargs)
        values = [*map(unwrap, args)]
        if needs is not None and not has_result(node.env, needs(*values)):
            original(*map(_at_sample, args))
            raise ValueError("math domain error")
        found = formula(*values, **kwargs)
        return original(*args) if found is None else sym_number(node.env, found)

    return computed


@answers_for_caller
def _distance(original: Function) -> Function:
    """``math.dist`` by ``math.hypot``, where there are sizes among the coordinates."""

    def distance(one: Sequence[Number], other: Sequence[Number], /) -> Number:
        if not any(size_node(each) is not None for each in (*one, *other)):
            return original(one, other)
        return math.hypot(*(left - right for left, right in zip(one, other, strict=True)))

    return distance


@answers_for_caller
def _finite(answer: bool, original: Function) -> Function:
    asks = _OF_DATA[original.__name__]

    def answered(value: object) -> bool:
        if isinstance(value, torch.Tensor):
            value = value.item()
        if type(value) is DataNumber:
            return asks(value)
        return answer if size_node(value) is not None else original(value)

    return answered


_OF_DATA: Mapping[str, Callable[[DataNumber], bool]] = {
    "isnan": DataNumber.is_nan,
    "isinf": DataNumber.is_infinite,
    "isfinite": DataNumber.is_finite,
}


@answers_for_caller
def _power(original: Function) -> Function:
    """``pow(a, n, m)`` is counted with plain numbers."""

    def power(*args: Number, **kwargs: Number) -> Number:
        if len(args) == 3 and any(size_node(arg) is not None for arg in args):
            args = tuple(map(int, args))
        return original(*args, **kwargs)

    return power


@answers_for_caller
def _attention(original: Function) -> Function:
    """``is_causal`` by a size is decided, and a scale that is one is multiplied first."""

    def attention(query: Number, *args: Number, **kwargs: Number) -> Number:
        if type(kwargs.get("is_causal")) is torch.SymBool:
            kwargs["is_causal"] = bool(kwargs["is_causal"])
        if type(kwargs.get("scale")) is torch.SymFloat:
            query, kwargs["scale"] = query * kwargs["scale"], 1.0
        return original(query, *args, **kwargs)

    return attention


def _with_sizes_alone(wrap: Callable[[Function], Function], original: Function) -> Function:
    """``original``, or what ``wrap`` makes of it where a number behind the first argument may be a size."""
    wrapped = wrap(original)

    @answers_for_caller
    def chosen(*args: object, **kwargs: object) -> object:
        has_size = THREAD.captures and any(map(may_be_size, (*args[1:], *kwargs.values())))
        return (wrapped if has_size else original)(*args, **kwargs)

    return chosen


_OWN_CONTIGUOUS = torch.Tensor.contiguous


@answers_for_caller
def _contiguous(self: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> Number:
    """The operator where a size is computed: torch asks first whether the example has one window."""
    if THREAD.captures and memory_format is torch.contiguous_format and any(map(_is_computed, self.shape)):
        return torch.ops.aten.contiguous.default(self)
    return _OWN_CONTIGUOUS(self, memory_format=memory_format)


def _is_computed(size: Number) -> bool:
    return (node := size_node(size)) is not None and not node.constant and not node.value.as_symbol()


_METHODS: Mapping[str, object] = {
    "contiguous": _contiguous,
    **{name: _with_sizes_alone(wrap, getattr(torch.Tensor, name)) for name, wrap in size_arguments.METHODS.items()},
}
_Wrapped: TypeAlias = tuple[object, str, Callable[..., Function]]
_Row: TypeAlias = tuple[object, str, Callable[..., Function], str]
_OF_PYTHON: tuple[_Wrapped, ...] = (
    (builtins, "min", functools.partial(_extreme, "min")),
    (builtins, "max", functools.partial(_extreme, "max")),
    (builtins, "pow", _power),
    (math, "dist", _distance),
    REDUCTIONS,
    *((math, name, functools.partial(_formula, formula)) for name, formula in MATH.items()),
    *((math, name, functools.partial(_finite, answer)) for name, answer in IS_FINITE.items()),
)
_OF_TORCH: tuple[_Wrapped, ...] = (
    (F, "scaled_dot_product_attention", _attention),
    *size_tensors.WRAPPED,
    *size_arguments.WRAPPED,
    *((space, name, functools.partial(_with_sizes_alone, wrap)) for space, name, wrap in size_arguments.OF_ARGUMENTS),
)
_QUESTIONS: tuple[_Wrapped, ...] = (
    *((SYMBOLIC_SHAPES, name, _guarded) for name in ("guard_or_false", "guard_or_true", "guard_size_oblivious")),
    (SYMBOLIC_SHAPES, "constrain_range", _constraining),
)
_WRAPPED: tuple[_Row, ...] = tuple(
    (*row, why)
    for why, rows in (
        (SharedReason.PYTHON, _OF_PYTHON),
        (SharedReason.SIZES, _OF_TORCH),
        (SharedReason.METHODS, ((torch.SymInt, "__hash__", hashing),)),
        (SharedReason.QUESTIONS, _QUESTIONS),
    )
    for row in rows
)
_LIBRARIES: Mapping[tuple[str, str], Callable[[Function], Function]] = {
    **{(name, "contract_path"): _planned for name in ("opt_einsum", "opt_einsum.contract")},
    **{place: functools.partial(_formula, formula) for place, formula in OF_LIBRARIES.items()},
}
_OF_ABSTRACT = abc.ABCMeta.__instancecheck__.__code__
"""The code that ``isinstance(n, numbers.Number)`` runs."""
_LIBRARY = "it counts with sizes: an order of products is that at the sample, a length is an expression"


def _class_is(kind: type, number: type) -> None:
    """``isinstance`` asks for ``__class__``, which of a class is set in its dict alone. It is a constant: what the interpreter
    remembers of the class stays valid until the next attribute is set.
    """
    (attributes,) = gc.get_referents(kind.__dict__)
    put_name(attributes, "__class__", _class_of(kind, number), SharedReason.METHODS)


@functools.cache
def _class_of(kind: type, number: type) -> property:
    """The user's code and that of ``torch.nn`` are answered as in eager PyTorch, torch's as it is."""

    @answers_for_caller
    def get(self: object) -> type:
        frame = sys._getframe(1)
        frame = frame.f_back if frame.f_code is _OF_ABSTRACT else frame  # type: ignore[assignment]
        is_asked = THREAD.captures and is_of_modules(frame.f_code)
        return getattr(getattr(self, "node", None), "kind", number) if is_asked else kind

    return property(get)
