"""Lists that turns of a loop change at will (``stack.pop()``), or read as a whole (``torch.stack(out)``): a turn hands on all elements as one
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fx2onnx.capture.loops.parts import HandedOn, Kinds
from fx2onnx.capture.loops.state import Remade
from fx2onnx.capture.loops.turns import Turns, become, has_numbers, stacked
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.python.places import put
from fx2onnx.capture.recording.values import tensor_info


@dataclass(eq=False)
class ListState:
    """A list of which turns hand on all elements along the first axis of a tensor."""

    source: Remade
    carried: HandedOn
    is_number: bool
    """True if the elements are numbers of Python's."""
    marker: torch.Tensor | None = None
    is_plain: bool = False
    """True if the list was one of Python's before the turn."""

    @classmethod
    def found(cls, loop: Value, kinds: Kinds, one: Remade) -> ListState:
        """The state of a list that the turn has changed so."""
        before, items = [*one.before], [*list.__iter__(one.now())]
        whole = stacked(items or before)
        info = kinds.info(whole)
        assert info is not None
        if any(map(kinds.varies, info.dims[1:])):
            raise loop.loops.refused("a turn changes a list of tensors whose sizes differ from turn to turn")
        info = replace(info, dims=(loop.free_size(0, f"list {one.identity}"), *info.dims[1:]))
        start = (lambda: stacked(before)) if before else None
        return cls(one, HandedOn(info, whole.device, start), has_numbers(items or before))

    def begin(self, loops: Value) -> None:
        """The list has what the turns before left, of which only the type is known."""
        self.marker = loops.repeat(self.carried.given, self.is_number)
        if self.source.place is not None:
            put(self.source.place, Turns([self.marker]))
            return
        list.__setitem__(self.source.holder, slice(None), [self.marker])
        self.is_plain = type(self.source.holder) is list
        if self.is_plain:
            become(self.source.holder, Turns)

    def is_as_given(self) -> bool:
        """Return whether the list has what it had at the beginning of the turn."""
        return [*map(id, list.__iter__(self.source.now()))] == [id(self.marker)]

    def now(self, loop: Value) -> torch.Tensor:
        """All elements at this point of the turn."""
        found = self.source.now()
        if self.is_as_given():
            return self.carried.given  # type: ignore[no-any-return]
        whole = stacked(found) if list.__len__(found) else self.carried.given[:0]
        info, known = tensor_info(whole), self.carried.info
        if (info.dtype, info.dims[1:]) != (known.dtype, known.dims[1:]):
            raise loop.loops.refused("a turn changes a list of tensors of different types")
        return whole

    def items(self, loops: Value) -> list[torch.Tensor]:
        """The tensors that the turn has put into the list."""
        found = list.__iter__(self.source.now())
        return [one for one in found if isinstance(one, torch.Tensor) and id(one) not in loops.tracer.repeats]

    def leave(self) -> None:
        """The list is one of Python's again, if it was before the turn."""
        if self.is_plain:
            become(self.source.holder, list)
            self.is_plain = False

    def give(self, loops: Value, result: torch.Tensor) -> None:
        """The list has what the last turn left."""
        marker = loops.repeat(result, self.is_number)
        if self.source.place is not None:
            put(self.source.place, Turns([marker]))
            return
        list.clear(self.source.holder)
        loops.grow(self.source.holder, [marker], is_front=False)
