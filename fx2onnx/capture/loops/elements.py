"""Elements of which there are as many as a size says: by their numbers, and the stand-ins for them in lists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fx2onnx.base.code_patch import THREAD
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.values import dims_of

Index = Value
"""A number of an element: an int or a symbolic size."""


@dataclass(frozen=True)
class Elements:
    """Elements by their numbers, of which there are ``length``."""

    length: Index
    at: Callable[[Index], Value]

    def turned(self) -> Elements:
        """From the last to the first."""
        return Elements(self.length, lambda index: self.at(self.length - 1 - index))


@dataclass(frozen=True, eq=False)
class Repeat:
    """The stand-in for one tensor in a list: ``length`` tensors of its type."""

    marker: torch.Tensor
    length: Index
    stacked: Callable[[], torch.Tensor]
    """All of them along a new first axis."""
    element: Callable[[Index], torch.Tensor] | None = None
    """The one of a number, where that needs not all of them."""
    is_number: bool = False
    """True if they are numbers of Python's, or lists of such."""
    is_list: bool = False
    """True if they are lists."""

    def at(self, index: Index) -> Value:
        """The one of a number."""
        one = self.stacked().select(0, index) if self.element is None else self.element(index)
        if self.is_list:
            return current_loops().repeated(one, self.is_number)
        return one.item() if self.is_number else one


def element_at(one: Value, index: Index) -> Value:
    """The element of a number, where each is a tensor, or a list or tuple of such."""
    if isinstance(one, Repeat):
        return one.at(index)
    return type(one)(element_at(part, index) for part in one) if isinstance(one, list | tuple) else one


def all_of(one: Value) -> torch.Tensor:
    """All elements along a new first axis."""
    if isinstance(one, Repeat):
        return one.stacked()
    parts = [all_of(part) for part in one]
    dtype = functools.reduce(torch.promote_types, {part.dtype for part in parts})
    return torch.stack([part.to(dtype) for part in parts], 1)


def length_of(one: Value) -> Index | None:
    """The number of elements that an entry of a list stands for; None for one element."""
    if isinstance(one, list | tuple):
        return next((found for found in map(length_of, one) if found is not None), None)
    return one.length if isinstance(one, Repeat) else None


def mapped(one: Value, change: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    """The stand-ins for other elements: ``change`` makes them of all along the first axis, part by part where they are tuples."""
    if isinstance(one, Repeat):
        return current_loops().repeat(change(one.stacked()), one.is_number, one.is_list)
    return type(one)(mapped(part, change) for part in one)


def copied(one: Value) -> Value:
    """A new stand-in for the same elements."""
    if isinstance(one, list | tuple):
        return type(one)(map(copied, one)) if type(one) in (list, tuple) else one
    repeat = THREAD.tracer.repeats.get(id(one))
    if repeat is None:
        return one
    marker = THREAD.tracer.values.new_fake(dims_of(one), one.dtype, one.device)
    THREAD.tracer.repeats[id(marker)] = replace(repeat, marker=marker)
    return marker


def known(one: Value) -> Value:
    """The value that an element of a list stands for."""
    if isinstance(one, list | tuple):
        return type(one)(map(known, one)) if type(one) in (list, tuple) else one
    return THREAD.tracer.repeats.get(id(one), one)


def current_loops() -> Value:
    """The loops of the run that this thread captures."""
    return THREAD.tracer.plugin("loops")
