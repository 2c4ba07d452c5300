"""What overloads and control flow need of the recorder: symbols for sizes that depend on data, and nested graphs."""

from __future__ import annotations

import contextlib
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import Symbol, symbols_of
from fx2onnx.capture.rare_roads import RARE_ROADS, road
from fx2onnx.capture.recording.meta_cache import MetaCache
from fx2onnx.capture.recording.tensor_tracker import Arguments, TensorTracker
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.assumptions import Assumed
from fx2onnx.sizes.expr import Dim, DimLike, Scalar
from fx2onnx.torchcompat.dispatch import PreDispatchMode, SplitMode, no_dispatch
from fx2onnx.torchcompat.fake_tensors import CPU, FakeMode, fake_from_meta
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.tensor_questions import ATTRIBUTES, Own

aten = torch.ops.aten


def _dtype_of_number(value: object) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.float32 if isinstance(value, float) else torch.int64


class BaseRecorder(TensorTracker):
    """The graph of one run and what is known of its values. ``Recorder`` adds how calls are recorded; the files that it
    imports know it by this class.
    """

    mode: PreDispatchMode | SplitMode
    """To be active while code runs whose calls are to be recorded."""
    statistics: Any
    """The ``RunningStatistics`` of the run, whose updates wait; None above autograd."""
    written: dict[int, SourceLocation | None]
    """Memories that were written, by id, with the first writer's line."""

    def __init__(
        self, shape_env: ShapeEnv, weight_names: dict[int, tuple[str, str, torch.Tensor]], whole: bool
    ) -> None:
        super().__init__(FakeMode(), weight_names, whole)
        self.shape_env = shape_env
        self.meta_cache = MetaCache(
            self.fake_mode, shape_env, weakref.WeakMethod(self.fake_of), is_above_autograd=whole
        )
        self.quantized: dict[int, tuple[torch.Tensor, object]] = {}
        """By the id of integers that stand for numbers, these integers and how they do (``capture/quantized/operands.py``)."""
        self._dense: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the id of a sparse tensor, that tensor and the dense one that stands for it."""
        self.holds_sparse = any(tensor.layout is not torch.strided for tensor in self._module_tensors)
        """True once a sparse tensor was recorded."""
        self.symbols: dict[str, Symbol] = {}
        self.warnings: list[str] = []
        self.symbolics: dict[type, str] = {}
        """A warning for each ``torch.autograd.Function`` whose ``symbolic`` has no effect."""
        self.unbacked_scalars: dict[torch.fx.Node, Scalar] = {}
        """The symbol of an integer that Python read from a tensor, by its node, and expressions over sizes and such symbols."""
        self.nonzero_rows: dict[tuple[torch.fx.Graph, torch.fx.Node], Dim] = {}
        """The unknown number of nonzero elements of a value, so that two selections by one mask have one size."""
        self.scope: torch.fx.Graph | None = None
        """Of the call of a submodule whose paths are joined by themselves, while it runs."""
        self.checks: list[torch.fx.Node] = []
        """Those of the graph, of what is taken for true of sizes."""
        self.packed_batches: dict[torch.fx.Node, DimLike] = {}
        """The number of packed sequences, by the node of their batch sizes."""

    @abstractmethod
    def handle(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What one call of an ATen overload inside the module becomes: nodes, and fakes for the module to go on with."""

    @abstractmethod
    def finish(self, func: OpOverload, args: tuple[object, ...], nodes: Arguments, result: object) -> object:
        """Add the node of ``func`` with the arguments ``nodes``, and tie the results of the call with ``args`` to it."""

    @abstractmethod
    def write(self, tensor: torch.Tensor, value: torch.fx.Node, is_one_number: bool = False) -> None:
        """Give ``tensor`` the value of a node of its dtype and shape. ``is_one_number``: all its elements are equal."""

    # -- plugins --------------------------------------------------------------------------------------------------
    def plugin(self, name: str) -> Any:
        """The plugin of a rare road, made when the run first needs it."""
        found = self.plugins.get(name)
        if found is None:
            found = self.plugins[name] = road(name).PLUGIN(self)
        return found

    def notes_of_plugins(self) -> list[Assumed]:
        """What the report says of rare roads, in the order of their table."""
        return [note for name in RARE_ROADS if name in self.plugins for note in self.plugins[name].notes]

    def end_plugins(self) -> None:
        """Let go of the plugins, which hold the recorder, as the run is over."""
        for plugin in self.plugins.values():
            plugin.end()
        self.plugins.clear()

    @answers_for_caller
    def answer(self, name: str, own: Own, asked: Any, *args: Any, **kwargs: Any) -> Any:
        """The answer to the question ``name`` that Python asks of a tensor, a storage or a class without an operator; ``own``: torch's
        answer.
        """
        mode = self.fake_mode
        if mode.computes or mode.runs_operator:
            return own(asked, *args, **kwargs)
        if isinstance(asked, torch.Tensor) and (name in ATTRIBUTES or name == "data_ptr"):
            if not mode.holds(asked):
                return own(asked)
            if name == "is_quantized":
                return id(asked) in self.quantized
        return self.plugin("what Python asks").answer(name, own, asked, *args, **kwargs)

    # -- tensors --------------------------------------------------------------------------------------------------
    def dense_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The dense tensor of the same numbers and the same name, a constant of the file."""
        known = self._dense.get(id(tensor))
        if known is None:
            self.holds_sparse = True
            with no_dispatch():
                known = self._dense[id(tensor)] = tensor, tensor.detach().to_dense()
            if id(tensor) in self._weight_names:
                self._weight_names[id(known[1])] = (self._weight_names[id(tensor)][0], "constant")
        return known[1]

    def is_alone(self, tensor: torch.Tensor) -> bool:
        """Whether forward made ``tensor`` and no view of it. (A factory's result has an alias, which nobody else has.)"""
        memory = self.view_of(tensor).memory
        is_made = self.fake_mode.holds(tensor) and all(source.memory is not memory for source in self.sources.values())
        shown = (view for view in self.views.values() if view.memory is memory)
        return is_made and not any(view.steps for view in shown)

    def place_of_call(self) -> SourceLocation | None:
        """The user's line of the present call."""
        return self._where

    @contextlib.contextmanager
    def at(self, where: SourceLocation | None) -> Iterator[None]:
        """Calls that are recorded inside belong to that line, and to no module."""
        before = self._where, self._module
        self._where, self._module = where, ""
        try:
            yield
        finally:
            self._where, self._module = before

    # -- sizes ----------------------------------------------------------------------------------------------------
    def unknown_size(self) -> Dim:
        """A new symbol for a number that depends on data; ``tie_symbols`` says later where it comes from."""
        env = self.shape_env
        size = Dim.unbacked(env.next_unknown)
        env.next_unknown += 1
        env.know(unbacked=env.unbacked | {str(size)})
        env.hints[str(size)] = 11 + 2 * len(env.unbacked)
        return size

    def tie_symbols(self, node: torch.fx.Node) -> None:
        """New symbols among the sizes of ``node`` stand for those axes of it."""
        for symbol in symbols_of(node):
            if symbol.name in self.shape_env.unbacked:
                self.symbols.setdefault(symbol.name, symbol)

    def new_fake(self, dims: Sequence[Scalar], dtype: torch.dtype, device: torch.device = CPU) -> torch.Tensor:
        """A contiguous fake tensor with memory of its own."""
        sizes = [sym_int(self.shape_env, size) for size in dims]
        return fake_from_meta(self.fake_mode, sizes, dtype, device)

    def is_outermost(self) -> bool:
        """Whether what is recorded now is part of no branch or loop of an operator."""
        return self.graph is self.root or self.graph is self.scope

    # -- nested graphs --------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def nested(self) -> Iterator[torch.fx.Graph]:
        """Nodes made inside go to a graph of their own. Writes to tensors of the outer graph are refused."""
        if self.statistics is not None:
            self.statistics.settle()
        outer, outer_where = self.graph, self._where
        unchecked, self.shape_env.unchecked = self.shape_env.unchecked, {}
        views = [(view, view.node, view.version) for view in self.views.values()]
        memories = {id(view.memory): (view.memory, view.memory.version) for view, _, _ in views}
        self.graph = torch.fx.Graph()
        try:
            yield self.graph
            for source in self.sources.values():  # weights that were first met inside
                memories.setdefault(id(source.memory), (source.memory, 0))
            if any(memory.version != version for memory, version in memories.values()):
                raise self.writes_outside()
        finally:
            self.graph, self._where = outer, outer_where
            self.shape_env.unchecked = unchecked
            for view, node, version in views:
                view.node, view.version = node, version

    def writes_outside(self) -> UserError:
        return self.refuse(
            "E103",
            "a branch or loop body writes into a tensor from outside it",
            next="return the new value from the function instead",
        )

    def another(self, tensor: torch.Tensor) -> object:
        """Below autograd, another tensor over the memory of ``tensor``, which shows what that shows; else NotImplemented."""
        if self._whole:
            return NotImplemented
        try:
            made = self.meta_cache.alias(tensor)
        except TypeError:
            return NotImplemented
        self._same_view(made, self.view_of(tensor))
        return made

    def as_tensor(self, value: object) -> torch.Tensor:
        """A tensor for a number among the operands of control flow."""
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, torch.SymInt | int | float | bool):
            with self.mode:
                made: torch.Tensor = aten.scalar_tensor.default(value, dtype=_dtype_of_number(value))
            return made
        raise self.refuse(
            "E107",
            f"control flow handles a {type(value).__name__}",
            next="give and return tensors",
        )

    def mark(self) -> None:
        """Remember the user's line for the nodes that follow."""
        self._where = user_location()
