"""Data-dependent real numbers of tensors in Python, for code that compares them (``float(t) > 3``, ``math.isnan(t.item())``), computes with them beside tensors (``x * t.item()``), returns or prints them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol, TypeAlias, TypeVar

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.torchcompat.pytrees import flatten

Of: TypeAlias = "torch.Tensor | int | float | torch.SymInt | torch.SymFloat"
"""The operands from which a data-dependent number is computed."""
Mark = TypeVar("Mark", str, float)
Operator: TypeAlias = Callable[[Of, Of], torch.Tensor]


def _comparison(op: Operator) -> Callable[[DataNumber, object], bool]:
    @answers_for_caller
    def compared(self: DataNumber, other: object) -> bool:
        if isinstance(other, torch.Tensor):
            return NotImplemented  # type: ignore[no-any-return]
        return bool(op(self.tensor, self.number_of(other)))

    return compared


def _equality(op: Operator) -> Callable[[DataNumber, object], bool]:
    @answers_for_caller
    def compared(self: DataNumber, other: object) -> bool:
        if isinstance(other, torch.Tensor):
            return NotImplemented  # type: ignore[no-any-return]
        if not _is_number(other):
            return op is operator.ne
        return bool(op(self.tensor, self.number_of(other)))

    return compared


_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})


def _arithmetic(op: Operator, order: int = 1) -> Callable[[DataNumber, object], DataNumber]:
    """``order``: -1 where the other operand comes first."""

    @answers_for_caller
    def computed(self: DataNumber, other: object) -> DataNumber:
        if isinstance(other, torch.Tensor):
            return NotImplemented  # type: ignore[no-any-return]  # it answers by its own operator
        one, two = (self.tensor, self.number_of(other))[::order]
        if op in _DIVISIONS and isinstance(two, torch.Tensor):
            self.unknown.expect(two != 0, "a number that Python divides by is not 0", ZeroDivisionError)
        elif op in _DIVISIONS:
            1 / two  # which raises where Python does
        return DataNumber(op(one, two), self.unknown)

    return computed


def _of_one(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[DataNumber], DataNumber]:
    return answers_for_caller(lambda self: DataNumber(op(self.tensor), self.unknown))


LARGEST = float(2**63 - 2**10)
"""Integers of Python have no end, int64 has: places and sizes beyond are as good as the largest of its numbers in float64."""


def _rounded_by(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., int | float]:
    @answers_for_caller
    def rounded(self: DataNumber, digits: object = None) -> int | float:
        if digits is not None:
            return self._shown_as(math.nan)
        self.unknown.expect(self.tensor.isfinite(), "a number that Python rounds is finite", ValueError)
        return op(self.tensor).clamp(-LARGEST, LARGEST).to(torch.int64).item()

    return rounded


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | DataNumber)


UNKNOWN = "?"
"""The text that is printed for a data-dependent number."""


class Unknown(Protocol):
    """The action to take where Python asks for a data-dependent number."""

    def refuse(self) -> NoReturn: ...

    def expect(self, holds: torch.Tensor, text: str, error: type[Exception]) -> None:
        """Note that Python raises an error where the tensor ``holds`` is false, to be checked in the file."""

    def is_shown(self) -> bool:
        """Return whether it is asked for in a statement that only prints, logs or raises, which is then reported."""


@answers_for_caller
class DataNumber:
    """The number of a one-element tensor in float64, as Python has it. Python may compute with it, return it, print it and compare
    it, of which both answers are in the file; for everything else it would have to be known.
    """

    __slots__ = ("tensor", "unknown")

    def __init__(self, tensor: torch.Tensor, unknown: Unknown) -> None:
        self.tensor = tensor
        self.unknown = unknown

    @property
    def refuse(self) -> Callable[[], NoReturn]:
        """Raises UserError E104."""
        return self.unknown.refuse

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def number_of(self, other: object) -> Of:
        if type(other) is DataNumber:
            return other.tensor
        if not isinstance(other, int | float | torch.SymInt | torch.SymFloat):
            self.refuse()
        return other

    def is_nan(self) -> bool:
        return bool(self.tensor.isnan())

    def is_infinite(self) -> bool:
        return bool(self.tensor.isinf())

    def is_finite(self) -> bool:
        return bool(self.tensor.isfinite())

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)

    def __pos__(self) -> DataNumber:
        return self

    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __eq__, __ne__ = _equality(operator.eq), _equality(operator.ne)
    __add__ = __radd__ = _arithmetic(operator.add)
    __mul__ = __rmul__ = _arithmetic(operator.mul)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, -1)
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv), _arithmetic(operator.truediv, -1)
    __floordiv__, __rfloordiv__ = _arithmetic(operator.floordiv), _arithmetic(operator.floordiv, -1)
    __mod__, __rmod__ = _arithmetic(operator.mod), _arithmetic(operator.mod, -1)
    __neg__, __abs__ = _of_one(operator.neg), _of_one(operator.abs)

    rounded_to_int = __trunc__ = _rounded_by(torch.trunc)
    __round__, __floor__, __ceil__ = _rounded_by(torch.round), _rounded_by(torch.floor), _rounded_by(torch.ceil)
    """The data-dependent size that ``int()``, ``round()`` and ``math`` give."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: object = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """A number beside tensors is a tensor of one element, in a dtype that gives the result that a number would."""
        found, rebuild = flatten((args, kwargs or {}))
        leaves = [leaf.value for leaf in found]
        dtypes = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point]
        wide = torch.float64 if torch.float64 in (dtypes or [torch.get_default_dtype()]) else torch.float32

        values = rebuild([leaf.tensor.to(wide) if type(leaf) is cls else leaf for leaf in leaves])
        return function(*values[0], **values[1])

    def _refused(self, *_: object, **__: object) -> NoReturn:
        self.refuse()

    def _text(self, *_: object) -> str:
        """A mark in the number's place, where it is only looked at."""
        return self._shown_as(UNKNOWN)

    def _shown_as(self, mark: Mark) -> Mark:
        if not self.unknown.is_shown():
            self.refuse()
        return mark

    def __float__(self) -> float:
        """For ``"%f" % number``."""
        return float(self._shown_as(math.nan))

    __str__ = __repr__ = __format__ = _text
    __int__ = __index__ = __hash__ = _refused
    __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __reduce_ex__ = _refused
    as_integer_ratio = is_integer = hex = conjugate = real = _refused
