"""Values of variables and lists behind a statement that is a branch of the file, where it ran and where it did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fx2onnx.capture.branches.other_side import added_to, appended, as_tensor, is_number
from fx2onnx.capture.python.held import LIST, Value
from fx2onnx.capture.python.places import VARIABLE, Place
from fx2onnx.capture.recording.decisions import IsNoBranch
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of

_MISSING = object()


class Replaced(NamedTuple):
    """A tensor that a variable has behind a body, with what there is where the body does not run."""

    after: torch.Tensor
    before: object
    place: Place | None = None
    """A place that gets another object, which stands for the two."""
    is_number: bool = False
    """True if that is a number of Python's."""


def replaced_in(tracer: Tracer, body: Value, later: frozenset[str]) -> list[Replaced]:
    """The tensors and numbers of variables that differ with the body and without. Raises IsNoBranch where another variable differs
    that may be read later.
    """
    replaced: dict[int, Replaced] = {}
    now = body.frame.f_locals
    for name in sorted({**body.variables, **now}.keys() & later):
        before, after = body.other.get(name, body.variables.get(name, _MISSING)), now.get(name, _MISSING)
        if before is after or _is_equal_number(before, after):
            continue
        tensor, are_numbers = _pair(name, before, after, is_number(before) or name in body.other)
        is_pair = tensor is after and not body.other and isinstance(before, torch.Tensor)
        if not is_pair and not body.is_in_turn:
            raise IsNoBranch(f"the variable {name} is another one")
        if is_pair and not (body.is_in_turn and _is_before(tracer, body, tensor)):
            if replaced.setdefault(id(tensor), Replaced(tensor, before)).before is not before:
                raise IsNoBranch("a tensor takes the place of two")
            _check_pair(tracer, body, tensor, before)  # type: ignore[arg-type]
        else:
            _check_types(tensor, before)
            replaced[len(replaced)] = Replaced(tensor, before, Place(VARIABLE, body.frame, name), are_numbers)
    return [*replaced.values(), *_appended(body)]


def _appended(body: Value) -> Iterator[Replaced]:
    """The elements that both sides append to lists."""
    for name in appended(body.statement.other):
        found = body.lists().get(name)
        if found is None:
            raise IsNoBranch("a body appends to something else than a list")
        last = list.__len__(found) - 1
        before = body.other[added_to(name)]
        tensor, are_numbers = _pair(name, before, list.__getitem__(found, last), True)
        _check_types(tensor, before)
        yield Replaced(tensor, before, Place(LIST, found, last), are_numbers)


def _pair(name: str, before: object, after: object, may_be_number: bool) -> tuple[torch.Tensor, bool]:
    """A value as a tensor that can stand for it and another one, and whether both are numbers. Raises IsNoBranch where there is none."""
    tensor = as_tensor(after, before if isinstance(before, torch.Tensor) else None)
    if tensor is None or as_tensor(before, tensor) is None:
        raise IsNoBranch(f"the variable {name} is another one")
    return tensor, is_number(after) and may_be_number


def _is_before(tracer: Tracer, body: Value, tensor: torch.Tensor) -> bool:
    """Return whether a tensor was there before the body."""
    view = tracer.values.views.get(id(tensor))
    return view is None or id(view.memory) in body.before.memories


def _check_types(tensor: torch.Tensor, other: object) -> None:
    if isinstance(other, torch.Tensor) and (
        type(tensor) is not type(other) or tensor.device != other.device or _layout(tensor) != _layout(other)
    ):
        raise IsNoBranch("a variable has a tensor of another type")


def returned_in(tracer: Tracer, body: Value, value: object) -> list[Replaced]:
    """The tensor that the function returns, with the one that it returns where the body does not run."""
    if value is None and body.returned is None:
        return []
    if not isinstance(value, torch.Tensor) or body.returned is None:
        raise IsNoBranch("a function returns something else than a tensor")
    if value is body.returned:
        return []
    _check_pair(tracer, body, value, body.returned)
    return [Replaced(value, body.returned)]


def _check_pair(tracer: Tracer, body: Value, after: torch.Tensor, before: torch.Tensor) -> None:
    """Raises IsNoBranch where the tensor that a variable has may not stand for the one that it had, too."""
    memories = body.before.memories
    was, is_now = tracer.values.views.get(id(before)), tracer.values.views.get(id(after))
    if was is None or is_now is None or id(was.memory) not in memories or id(is_now.memory) in memories:
        raise IsNoBranch("a variable has a tensor that was there before")
    _check_types(after, before)
    if was.memory.version != memories[id(was.memory)][2]:
        raise IsNoBranch("a tensor is written and replaced")


def _layout(tensor: torch.Tensor) -> object:
    return tensor.dtype, dims_of(tensor), [size if type(size) is int else str(size) for size in tensor.stride()]


def _is_equal_number(one: object, other: object) -> bool:
    return type(one) is type(other) and isinstance(one, bool | int | float | str | None) and one == other
