"""What overloads and control flow may do with the recorder: nodes, symbols for sizes that only the data tells, nested graphs."""

from __future__ import annotations

import contextlib
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import Symbol, TensorInfo
from fx2onnx.capture.python.frames import user_location
from fx2onnx.capture.recording.meta_cache import IMMEDIATE, Replay
from fx2onnx.capture.recording.tensor_tracker import KnownTensors
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.capture.torch_private.dispatch import PreDispatchMode, SplitMode
from fx2onnx.capture.torch_private.fake_tensors import FakeMode, FakeTensor, fake_from_meta
from fx2onnx.capture.torch_private.module_paths import PATHS
from fx2onnx.capture.torch_private.operators import OpOverload

aten = torch.ops.aten


def _dtype_of_number(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.float32 if isinstance(value, float) else torch.int64


class BaseRecorder(KnownTensors):
    """The graph of one run and what was learnt of its values. ``Recorder`` adds how calls are recorded; the files that it
    imports know it by this class.
    """

    mode: PreDispatchMode | SplitMode
    """To be active while code runs whose calls are to be recorded."""

    def __init__(
        self, shape_env: ShapeEnv, weight_names: dict[int, tuple[str, str, torch.Tensor]], whole: bool
    ) -> None:
        super().__init__(FakeMode(), weight_names, whole)
        self.shape_env = shape_env
        self.replay = Replay(self.fake_mode, shape_env, weakref.WeakMethod(self.to_fake))
        self.symbols: dict[str, Symbol] = {}
        self.warnings: list[str] = []
        self.numbers: dict[torch.fx.Node, Dim] = {}
        """The symbol of an integer that Python asked for, by its node."""
        self.nonzero_rows: dict[tuple[torch.fx.Graph, torch.fx.Node], Dim] = {}
        """The unknown number of nonzero elements of a value, so that two selections by one mask have one size."""
        self.packed_batches: dict[torch.fx.Node, DimLike] = {}
        """The number of packed sequences, by the node of their batch sizes."""
        self._where: SourceLocation | None = None

    @abstractmethod
    def handle(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What one call of an ATen overload inside the module becomes: nodes, and fakes for the module to go on with."""

    @abstractmethod
    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func`` on fakes and add its node(s)."""

    @abstractmethod
    def finish(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        node_args: tuple[Any, ...],
        node_kwargs: dict[str, Any],
        result: Any,
    ) -> Any:
        """Add the node of ``func`` and tie its results to it."""

    @abstractmethod
    def write(self, tensor: torch.Tensor, value: torch.fx.Node, is_one_number: bool = False) -> None:
        """Give ``tensor`` the value of a node of its dtype and shape. ``is_one_number``: all its elements are equal."""

    # -- nodes ----------------------------------------------------------------------------------------------------
    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], info: Any) -> torch.fx.Node:
        """Add a node whose type is known; nothing runs."""
        node = self.graph.call_function(func, tuple(args), kwargs)
        if self._first_call is None and self.graph is self.root:
            self._first_call = node
        meta = node.meta
        meta["val"] = info
        meta["where"] = self._where
        meta["module"] = PATHS.current
        return node

    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        return UserError(code, what, where=self._where or user_location(), module_path=PATHS.current, **fields)

    # -- sizes ----------------------------------------------------------------------------------------------------
    def unknown_size(self) -> Dim:
        """A new symbol for a number that only the data tells; ``tie_symbols`` says later where it comes from."""
        env = self.shape_env
        name = f"u{env.next_unknown}"
        env.next_unknown += 1
        env.unbacked.add(name)
        env.hints[name] = 11 + 2 * len(env.unbacked)
        return Dim.symbol(name)

    def tie_symbols(self, node: torch.fx.Node) -> None:
        """New symbols among the sizes of ``node`` stand for those axes of it."""
        for axis, dim in enumerate(node.meta["val"].dims):
            name = dim.as_symbol() if isinstance(dim, Dim) else None
            if name in self.shape_env.unbacked and name not in self.symbols:
                self.symbols[str(name)] = Symbol(str(name), node, axis)

    # -- nested graphs --------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def nested(self) -> Iterator[torch.fx.Graph]:
        """Nodes made inside go to a graph of their own. Writes to tensors of the outer graph are refused."""
        outer, outer_where = self.graph, self._where
        views = {key: (view, view.node, view.version) for key, view in self._views.items()}
        memories = {id(view.memory): (view.memory, view.memory.version) for view in self._views.values()}
        self.graph = torch.fx.Graph()
        try:
            yield self.graph
            for source in self.sources.values():  # weights that were first met inside
                memories.setdefault(id(source.memory), (source.memory, 0))
            if any(memory.version != version for memory, version in memories.values()):
                raise self.writes_outside()
        finally:
            self.graph, self._where = outer, outer_where
            for view, node, version in views.values():
                view.node, view.version = node, version

    def writes_outside(self) -> UserError:
        return self.refuse(
            "E103",
            "a branch or loop body writes into a tensor from outside it",
            next="return the new value from the function instead",
        )

    def fake_like(self, info: TensorInfo, tensor: torch.Tensor | None) -> torch.Tensor:
        """A new fake of the given type."""
        device = tensor.device if tensor is not None else torch.device("cpu")
        return fake_from_meta(self.fake_mode, [sym_int(self.shape_env, size) for size in info.dims], info.dtype, device)

    def as_tensor(self, value: Any) -> torch.Tensor:
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

    def to_nodes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self.to_node, args)), {name: self.to_node(arg) for name, arg in kwargs.items()}

    def to_node(self, arg: Any) -> Any:
        if type(arg) in IMMEDIATE:
            return arg
        if isinstance(arg, torch.Tensor):
            return self.node_of(arg)
        if isinstance(arg, list):
            return [self.to_node(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_node(item) for item in arg)
        return unwrap(arg)

    def to_fake(self, arg: Any) -> Any:
        if type(arg) in IMMEDIATE or type(arg) is FakeTensor:
            return arg
        if isinstance(arg, torch.Tensor):
            return arg if isinstance(arg, FakeTensor) else self.fake_of(arg)
        if isinstance(arg, list):
            return [self.to_fake(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_fake(item) for item in arg)
        return arg
