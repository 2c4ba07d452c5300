"""Loops that run as often as a size says, ``for t in range(x.shape[1]): h = cell(x[:, t], h)``, become loops of the file as the module runs.

One turn is run to see what it changes: variables, attributes and elements, lists that grow, tensors that are written. Another one,
for which these are values that the loop carries, is the body. A first turn is run by itself where it differs from the others.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import torch
import torch.fx

from fx2onnx.base.code_patch import SharedReason, answers_for_caller, put_name
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.loops import turns
from fx2onnx.capture.loops.elements import Elements, Repeat, copied
from fx2onnx.capture.loops.functions import NAMES, OF_MODULES, sorted_list
from fx2onnx.capture.loops.loop import Loop
from fx2onnx.capture.loops.ragged import JOINS, ragged
from fx2onnx.capture.loops.state import COMPREHENSIONS, frames_of_turn, is_at_head, is_passed_on, makes_tuple, takes_all
from fx2onnx.capture.loops.turns import Turns
from fx2onnx.capture.loops.whiles import LoopTests
from fx2onnx.capture.python import held
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import MISSING, Value
from fx2onnx.capture.rare_roads import RunPlugin
from fx2onnx.capture.recording.decisions import FirstTurnDiffers, Test
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, dims_of
from fx2onnx.capture.shapes.deciding import LOOP_IN_TENSORS, NO_LOOP, few
from fx2onnx.capture.shapes.size_arguments import WHOLE
from fx2onnx.capture.shapes.size_literals import tensor_of
from fx2onnx.capture.shapes.symnode import may_be_size, sym_int, unwrap
from fx2onnx.sizes.expr import Dim, apply
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import is_user, user_frame, user_location
from fx2onnx.torchcompat.loop_statements import is_at_loop
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten
Node = torch.fx.Node


@answers_for_caller
class TurnsIterator:
    """Gives the elements to a ``for``, whose turns are those of the file; or the tensors that stand for them to anything else."""

    def __init__(self, loops: Loops, series: Elements | None, held: list[Value] | None) -> None:
        self._loops, self._series, self._held = loops, series, held
        self._loop: Loop | None = None
        self._plain: Iterator[Value] | None = None
        self._copies: list[Value] = []
        """Stand-ins that only what takes them all has."""

    def __iter__(self) -> TurnsIterator:
        return self

    def series(self) -> Elements:
        """The elements by their numbers."""
        return self._series or turns.series_of(self._held)  # type: ignore[return-value]

    def __next__(self) -> Value:
        if self._plain is not None:
            one = next(self._plain, MISSING)
            if one is not MISSING:
                return one
            turns.took_all(self._copies)
            raise StopIteration
        if self._loop is not None:
            return self._loop.next()
        frame = sys._getframe(1)
        is_loop = is_at_head(frame)
        if not is_loop and self._held is None:
            raise self._loops.refused("Python makes a list of as many elements as a size says")
        frames = frames_of_turn(frame, self._loops.collected_by) if is_loop else [frame]
        is_each = not frames if is_loop else is_user(frame.f_code) and not takes_all(frame)
        if is_each or (is_passed_on(self) and frame.f_globals is not vars(held)):
            raise self._loops.refused(
                "a generator or an iterator of Python's goes through as many elements as a size says"
            )
        if self._held is not None and not is_loop:
            if makes_tuple(frame):
                raise self._loops.refused("Python makes a tuple of as many elements as a size says")
            self._copies = [*map(copied, list.__iter__(self._held))] if takes_all(frame) else []
            self._plain = iter(self._copies or [*list.__iter__(self._held)])
            return next(self)
        self._loop = self._loops.tests.entered(Loop(self._loops, frames, self.series()))
        return self._loop.next()


WHOLE[Turns] = Turns.whole


def _range_of(start: Value, length: Value, step: Value) -> turns.Counted:
    """The numbers of a ``range``."""
    return turns.Counted(Elements(length, lambda index: start + index * step))


@answers_for_caller
class Loops(RunPlugin):
    """The loops of one run that are loops of the file."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.open: list[Loop] = []
        self.over: set[torch.fx.Graph] = set()
        """Graphs of turns that are over: what they made is used in them only."""
        self.fixed: dict[int, Memory] = {}
        """Memories, by id, that a loop gives to more than one tensor."""
        self.turned: list[Turns] = []
        """The lists of Python's that have become such."""
        self.lent: list[tuple[Turns, list[Value], list[Value]]] = []
        """Lists that are elements of such, each with what it had in it."""
        self._numbers: dict[object, SourceLocation | None] = {}
        """Tensors in the place of which Python has a plain number where no turn adds to it, with the lines that make them."""
        self._collecting: dict[FrameType, list[Value]] = {}
        """The lists that take all that generators give, by their frames."""
        self.tests = LoopTests(self)

    def end(self) -> None:
        for found in self.turned:
            turns.become(found, list)
        self.turned.clear()
        self.open.clear()
        self.lent.clear()
        del self.tests  # which refers to this
        self.tracer.repeats.clear()

    def installed(self, stand_ins: dict[int, Value]) -> dict[str, Value]:
        """Until ``Changes`` end, tensors of dynamic sizes are gone through in loops. Returns names for the user's files, and adds what stands
        for functions, by the id of each, to ``stand_ins``.
        """
        functions = {"unbind": self._unbound, "split": self._split, "chunk": self._chunked}
        for name, instead in {"__iter__": self._iterated, "__len__": self._hinted, **functions}.items():
            put_name(torch.Tensor, name, instead(getattr(torch.Tensor, name)), SharedReason.SIZES)
        for name, instead in functions.items():
            put_name(torch, name, instead(getattr(torch, name)), SharedReason.SIZES)
        for name in ("__mul__", "__rmul__"):
            put_name(torch.SymInt, name, self._repeating(getattr(torch.SymInt, name)), SharedReason.SIZES)
        for space, name, value in OF_MODULES:
            stand_ins[id(getattr(space, name))] = value
            put_name(space, name, value, SharedReason.SIZES)
        return NAMES

    def _repeating(self, own: Callable[..., Value]) -> Callable[..., Value]:
        @answers_for_caller
        def multiplied(self: torch.SymInt, other: Value) -> Value:
            return (
                turns.repeated_list(other, self) if type(other) is list and loops.may_loop(self) else own(self, other)
            )

        loops = self
        return multiplied

    def _iterated(self, own: Callable[..., Value]) -> Callable[..., Value]:
        loops = self

        @answers_for_caller
        def __iter__(self: torch.Tensor) -> Value:
            found = turns.series_of(self)
            return own(self) if found is None else loops.iterator(found, loops.repeated(self))

        return __iter__

    def _hinted(self, own: Callable[..., Value]) -> Callable[..., Value]:
        @answers_for_caller
        def __len__(self: torch.Tensor) -> int:
            if turns.series_of(self) is not None and takes_all(sys._getframe(1)):
                raise TypeError("no hint of the length, where Python takes all elements")
            return own(self)  # type: ignore[no-any-return]

        return __len__

    def _unbound(self, own: Callable[..., Value]) -> Callable[..., Value]:
        @answers_for_caller
        def unbind(input: torch.Tensor, dim: int = 0) -> Value:
            is_loop = input.dim() > 0 and self.may_loop(input.shape[dim])
            return self.repeated(input.movedim(dim, 0)) if is_loop else own(input, dim)

        return unbind

    def _split(self, own: Callable[..., Value]) -> Callable[..., Value]:
        @answers_for_caller
        def split(tensor: torch.Tensor, split_size_or_sections: Value = None, dim: int = 0, **kwargs: Value) -> Value:
            size = kwargs.pop("split_size", split_size_or_sections)
            if type(size) is int and size == 1 and self.may_loop(tensor.shape[dim]):
                return self.repeated(tensor.unsqueeze(dim).movedim(dim if dim < 0 else dim + 1, 0))
            sizes = self._sizes_of_parts(tensor, size, dim)
            if sizes is None:
                return own(tensor, size, dim=dim)
            axis, whole = dim % tensor.dim(), size if type(size) is int else 0
            return Turns([ragged(self.tracer, tensor.movedim(axis, 0), sizes, axis, whole)])

        return split

    def _sizes_of_parts(self, tensor: torch.Tensor, size: Value, dim: int) -> torch.Tensor | None:
        """The sizes of the parts of a tensor, if as many as a size says."""
        if isinstance(size, Turns):
            sizes = size.whole()
            total = Relation("eq", (unwrap(sizes.sum().item()), unwrap(tensor.shape[dim])))
            self.tracer.sizes.assume(total, user_location())
            return sizes
        whole = tensor.shape[dim]
        if type(size) is not int or size < 1 or not self.may_loop((whole + size - 1) // size):
            return None
        return (whole - torch.arange(0, whole, size)).clamp(max=size)

    def _chunked(self, own: Callable[..., Value]) -> Callable[..., Value]:
        @answers_for_caller
        def chunk(input: torch.Tensor, chunks: Value, dim: int = 0) -> Value:
            size = input.shape[dim] if input.dim() else 1
            is_each = may_be_size(chunks) and self.may_loop(size) and unwrap(chunks) == unwrap(size)
            return torch.split(input, 1, dim) if is_each else own(input, chunks, dim)

        return chunk

    def may_loop(self, count: Value) -> bool:
        """Return whether a number of turns is a size that not only a few are."""
        if not may_be_size(count):
            return type(count) is int and self._may_branch(count)
        dim = unwrap(count)
        return isinstance(dim, Dim) and not dim.is_real and (dim.as_symbol() is not None or not self._few(dim))

    def _few(self, dim: Dim) -> bool:
        return not dim.symbols() & self.tracer.sizes.unbacked and few(self.tracer.sizes, dim) is not None

    def range_of(self, start: Value, count: Value, step: Value) -> Value:
        """The stand-in for a ``range``."""
        env, dim = self.tracer.sizes, unwrap(count)
        if not env.certain("ge", dim, 0):
            count = sym_int(env, apply("max", dim, 0))
        return _range_of(start, count, step)

    def left_range(self, plain: range) -> Value:
        """The stand-in for a ``range`` of a fixed length, if data decides in its turns."""
        is_loop = self._may_branch(len(plain))
        return _range_of(plain.start, len(plain), plain.step) if is_loop else plain

    def _may_branch(self, count: int) -> bool:
        """Return whether Python is at a loop of a fixed length whose turns have branches by data, or are left by data."""
        frame = user_frame() if self.tracer.branching.has_exits and count > 1 else None
        if frame is None:
            return False
        return is_at_loop(frame, self.lines_of_branches(frame))

    def lines_of_branches(self, frame: FrameType) -> list[int]:
        """The lines of the frame's file at which data decided before; also those of comprehensions and functions in a loop."""
        file = frame.f_code.co_filename
        return [each.line for each in self.tracer.branching.branches if each is not None and each.file == file]

    def iterator(self, series: Elements | None, held: list[Value] | None) -> TurnsIterator:
        return TurnsIterator(self, series, held)

    @contextlib.contextmanager
    def collecting(self, generator: Value, found: list[Value]) -> Iterator[None]:
        """Inside, the list takes all that the generator gives."""
        frame = getattr(generator, "gi_frame", None)
        if frame is not None:
            self._collecting[frame] = found
        try:
            yield
        finally:
            if frame is not None:
                del self._collecting[frame]

    def collected_by(self, frame: FrameType) -> list[Value] | None:
        """The list that takes all that a generator gives, or a comprehension that is within a loop of its own."""
        within = self.open[-1] if self.open and frame.f_code.co_name in COMPREHENSIONS else None
        if within is not None and within.frame is frame:
            return within.held.filled()
        return self._collecting.get(frame)

    def sorted(self, found: Turns, key: Value, reverse: bool) -> Value:
        """A list of a dynamic length as Python sorts it."""
        return sorted_list(found, key=key, reverse=reverse)

    def expects_some(self, count: Value) -> None:
        """Note that a list is not empty: the result of an empty one would be another."""
        env, some = self.tracer.sizes, Relation("ge", (unwrap(count), 1))
        if env.facts.is_settled(some) is None:
            note = env.assume if some.symbols() & env.unbacked else env.note
            note(some, user_location())

    def as_tensor(self, item: Value) -> torch.Tensor:
        """A number of Python's as a tensor."""
        return item.tensor.reshape(()) if type(item) is DataNumber else tensor_of(item, real=torch.float64)

    def repeat(self, stacked: torch.Tensor, is_number: bool = False, is_list: bool = False) -> torch.Tensor:
        """A tensor that stands for those along the first axis of another one."""
        values = self.tracer.values
        marker: torch.Tensor = values.new_fake(dims_of(stacked)[1:], stacked.dtype, stacked.device)
        one = Repeat(marker, stacked.shape[0], lambda: stacked, is_number=is_number, is_list=is_list)
        self.tracer.repeats[id(marker)] = one
        return marker

    def repeated(self, stacked: torch.Tensor, is_number: bool = False) -> Turns:
        """A list of what there is along the first axis of a tensor."""
        found = Turns([self.repeat(stacked, is_number)])
        return found

    def grow(self, found: list[Value], markers: Sequence[Value], is_front: bool) -> None:
        """Add what stands for all that the turns added to a list."""
        list.__setitem__(found, slice(None), [*markers, *found] if is_front else [*found, *markers])
        if type(found) is list:
            turns.become(found, Turns)
            self.turned.append(found)  # type: ignore[arg-type]

    def seen(self, func: OpOverload, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """The result of a call that joins a list of a dynamic length; refuses another call of its elements."""
        known = self.tracer.repeats
        leaves, _ = flatten((args, kwargs))
        if not any(id(leaf.value) in known for leaf in leaves if isinstance(leaf.value, torch.Tensor)):
            return NotImplemented
        join = JOINS.get(func)
        if join is None or not isinstance(args[0], list | tuple):
            raise self.refused(f"{func} takes an element of a list of a dynamic length")
        with self.tracer.mode:
            return join([known.get(id(one), one) for one in args[0]], *args[1:], **kwargs)

    def check_lent(self, holder: Turns | None = None, since: int = 0) -> None:
        """Raises where an element was changed of a list that is read now, or of which a turn took others, too."""
        held = [id(each[0]) for each in self.lent[since:]]
        for one, given, before in self.lent[since:]:
            is_read = one is holder if holder is not None else held.count(id(one)) > 1
            if is_read and [*map(id, list.__iter__(given))] != [*map(id, before)]:
                raise self.refused(
                    "Python changes a list that is an element of a list of a dynamic length",
                    "fill new lists, new.append([...]), in the place of changing the elements of one",
                )

    def refused(self, what: str, *steps: str) -> UserError:
        """The error of a loop that cannot be a loop of the file; ``steps`` to take before all others."""
        error: UserError = self.tracer.values.refuse("E105", NO_LOOP + what, next=(*steps, LOOP_IN_TENSORS))
        return error

    def may_be_number(self, tensor: torch.Tensor, number: Value) -> None:
        """Note that Python has that number in the place of a tensor where no turn gives it another value."""
        is_same = tensor.dtype is torch.int64 and isinstance(number, int) and not tensor.dim()
        if not is_same and type(number) in (int, float):
            self._numbers[self.tracer.values.node_of(tensor)] = user_location()

    def saw_call(self, node: Node) -> None:
        if self._numbers and node.all_input_nodes and self._numbers.keys() >= {*node.all_input_nodes}:
            self._numbers[node] = self._numbers[node.all_input_nodes[0]]
        if self.over and any(operand.graph in self.over for operand in node.all_input_nodes):
            raise self.refused("a tensor that one turn made is used behind the loop")

    def before_write(self, memory: Memory) -> None:
        if id(memory) in self.fixed:
            raise self.refused("a tensor is written that a turn gave on as it is")

    def failed(self, error: Exception) -> None:
        """Raises FirstTurnDiffers where a turn that is not the first failed before there was a first."""
        for loop in self.open:
            if loop.wants_first:
                raise FirstTurnDiffers(loop.where) from error

    def gave(self, values: Sequence[object]) -> None:
        if self.open:
            raise self.refused("Python leaves the loop before its end")
        if any(isinstance(value, Node) and value.graph in self.over for value in values):
            raise self.refused("the module returns what one turn of a loop made")
        for where in dict.fromkeys(self._numbers[value] for value in values if value in self._numbers):
            self.tracer.warnings.append(
                f"an output is a number of Python's where no turn of a loop adds to it, and in the file always a tensor: {where}"
            )

    def answer(self, test: Test) -> bool | None:
        """The answer to whether a turn is the first one, which is run by itself, or the last one, which the file tells; None to another
        question.
        """
        at_head = self.tests.at_head(test, in_call=True)
        if at_head is not None or not self.open:
            return at_head
        loop = self.open[-1]
        stays = loop.stays(test)
        return loop.answer(test) if stays is None and isinstance(test, Relation) else stays

    def decide(self, test: Test) -> bool | None:
        """The outcome of a data-dependent decision in a turn, which is run once for each outcome; None outside of
        turns."""
        if not self.open:
            self.tests.check_has_tensors()
            return None
        return self.open[-1].paths.decide(test)


PLUGIN = Loops
