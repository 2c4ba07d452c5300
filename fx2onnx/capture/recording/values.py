"""The values of a run: which tensor of the running program is which value of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import Symbol, TensorInfo, Weight, symbols_of
from fx2onnx.capture.rare_roads import RunPlugin, road
from fx2onnx.capture.recording.known_values import Known, evaluate
from fx2onnx.capture.recording.meta_cache import IMMEDIATE, PLAIN
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode, sym_int, unwrap
from fx2onnx.sizes.expr import DimLike, Scalar
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.fake_tensors import CPU, FakeMode, fake_from_meta, shares_converted_memory, storage_key
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.tensor_questions import is_quantized, real_address

Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of one call, positional and named."""


@dataclass(slots=True, eq=False)
class Memory:
    """A storage: the current value of its base tensor and how often it was written."""

    node: torch.fx.Node
    info: TensorInfo
    version: int = 0
    late: Callable[[], None] | None = None
    """Records a write that ``version`` counts already; ``node`` is what was before."""

    def present(self) -> torch.fx.Node:
        """The node of the base's present value."""
        if self.late is not None:
            self.late()
        return self.node


@dataclass(slots=True, eq=False)
class ViewStep:
    """One view operator: ``func(*args, **kwargs)`` with the viewed tensor first in ``args``."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    info: TensorInfo
    """The type of the view."""
    output: int | None
    """The index of the output, for an operator with several."""
    siblings: tuple[TensorInfo | None, ...] = ()
    """All outputs' types, where there are several."""


@dataclass(slots=True, eq=False)
class View:
    """A tensor of the program: which memory, through which views, and its node at ``version``."""

    memory: Memory
    steps: tuple[ViewStep, ...]
    node: torch.fx.Node
    info: TensorInfo
    version: int
    tensor: torch.Tensor
    """Keeps the tensor alive, so that its id stays its own."""


class Write(NamedTuple):
    """One write into a memory."""

    sizes: list[DimLike | torch.SymInt]
    """The sizes of what was written."""
    where: SourceLocation | None
    memory: Memory
    before: torch.fx.Node
    """The memory's base, and behind the write ``after``."""
    after: torch.fx.Node
    last: torch.fx.Node
    """The last node of the graph so far, where there are dynamic sizes."""


class Copy(NamedTuple):
    """A copy that is a view of its ``source`` in eager PyTorch where sizes have other values."""

    source: torch.Tensor
    made: torch.Tensor
    node: torch.fx.Node
    target: list[DimLike] | None
    """The sizes of a reshape; None for ``contiguous``."""
    order: tuple[int, ...] = ()
    """The axes that ``contiguous`` has dense, the innermost first; as they stand where there are none."""


class NeedsDecomposition(BaseException):
    """The module transforms functions (``torch.vmap``) or takes gradients: composite overloads cannot be seen whole. Not an
    Exception, so that no ``except Exception`` of the module swallows it.
    """


class Values:
    """Inputs, weights, constants and results met so far, fake and real, each with its node. Tensors over the same memory
    are views of one ``Memory``. ``pre_dispatch``: composite operators are recorded whole.
    """

    def __init__(
        self,
        sizes: ShapeEnv,
        weight_names: dict[int, tuple[str, str, torch.Tensor]],
        plugins: dict[str, RunPlugin],
        pre_dispatch: bool,
    ) -> None:
        self.sizes, self.plugins, self._pre_dispatch = sizes, plugins, pre_dispatch
        self.root = RecordedGraph()
        self.graph: torch.fx.Graph = self.root
        self.path_graph: torch.fx.Graph | None = None
        """The graph of a submodule's call whose paths are joined by themselves, while it runs."""
        self.fake_mode = FakeMode()
        self.weights: dict[str, Weight] = {}
        self.symbols: dict[str, Symbol] = {}
        self.sources: dict[torch.fx.Node, View] = {}
        """The view of each input and weight, by its node."""
        self.names = {key: (name, kind) for key, (name, kind, _) in weight_names.items()}
        """The names and kinds of real tensors, by their ids."""
        self._named: dict[str, torch.Tensor] = {}
        """Constants by the names that ``name_constant`` gave them."""
        self._module_tensors = [tensor for _, _, tensor in weight_names.values()]
        self.storage_offsets: dict[int, int] = {}
        """The offset of an input's example in its storage, by the id of the fake, if it is not 0."""
        self.views: dict[int, View] = {}
        """The view of each tensor, by its id."""
        self._memories: dict[int, View] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        """The fake of each real tensor, by its id."""
        self._kept: list[object] = []
        """Real tensors whose ids are keys of ``fakes``: they must not be freed."""
        self._by_address: dict[tuple[object, ...], View] = {}
        self._unlisted: list[View] = []
        """Views that ``_memories`` and ``_by_address`` lack so far: only tensors of unknown origin are looked up there."""
        self.shown_by_input: Callable[[torch.Tensor], View | None] | None = None
        """The view of a real tensor over the memory of one that is an input, where there are such."""
        self.holds_sparse = any(tensor.layout is not torch.strided for tensor in self._module_tensors)
        """True once a sparse tensor was recorded."""
        self.dense: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Each sparse tensor and the dense one that stands for it, by the id of the sparse one."""
        self._known: Known = {}
        """The results of ``value_of``."""
        self._constants = 0
        self._first_call: torch.fx.Node | None = None
        self.where: SourceLocation | None = None
        """The user's line of the present call."""
        self.module: str | None = None
        """The path of the module that the present call belongs to, where it is not the one that runs."""
        self.detached, self.replaced = set[int](), dict[int, int | torch.SymInt]()
        """Ids of tensors that are ``.data`` of others, and of parameters and buffers whose ``.data`` forward has set."""
        self.wants_grad: set[torch.fx.Node] = set()
        """Inputs whose samples require gradients."""
        self.without_grad: set[torch.fx.Node] = set()
        """Calls that were made where gradients are off."""
        self.written: dict[int, SourceLocation | None] = {}
        """Memories that were written, by id, with the first writer's line."""
        self.writes: list[Write] = []
        self.copies: list[Copy] = []
        self.checks: list[torch.fx.Node] = []
        """The nodes that check what is taken for true of sizes."""

    def call(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], info: TensorInfo | tuple[TensorInfo | None, ...]
    ) -> torch.fx.Node:
        """Add a node whose type is known; nothing runs."""
        node = self.graph.create_node("call_function", func, tuple(args), kwargs)
        if self._first_call is None and self.graph is self.root:
            self._first_call = node
        meta = node.meta
        meta["val"] = info
        meta["where"] = self.where
        paths = PATHS.stack
        meta["module"] = self.module if self.module is not None else paths[-1] if paths else ""
        if not torch.is_grad_enabled():
            self.without_grad.add(node)
        for plugin in self.plugins.values():
            plugin.saw_call(node)
        return node

    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        """The error with the user's present line."""
        path = PATHS.current if self.module is None else self.module
        return UserError(code, what, where=self.where or user_location(), module_path=path, **fields)

    def mark(self) -> None:
        """Remember the user's line for the nodes that follow."""
        self.where = user_location()

    @contextlib.contextmanager
    def at(self, where: SourceLocation | None) -> Iterator[None]:
        """Calls that are recorded inside belong to that line, and to no module."""
        before = self.where, self.module
        self.where, self.module = where, ""
        try:
            yield
        finally:
            self.where, self.module = before

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that holds the tensor's present value."""
        view = self.view_of(tensor)
        memory = view.memory
        if view.version != memory.version:
            view.node = road("writes").regenerated(self, memory.present(), view.steps)
            view.version = memory.version
        return view.node

    def value_of(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The node's real value, where only constants lead to it."""
        return evaluate(node, self.weights, self._known)

    def to_node(self, arg: object) -> object:
        """``arg`` with nodes in the place of tensors."""
        if type(arg) in IMMEDIATE:
            return arg
        if isinstance(arg, torch.Tensor):
            return self.node_of(arg)
        if isinstance(arg, list):
            return [self.to_node(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_node(item) for item in arg)
        return unwrap(arg)

    def to_nodes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments:
        to_node, views = self.to_node, self.views
        nodes: list[object] = []
        for arg in args:
            if type(arg) in IMMEDIATE:
                nodes.append(arg)
            else:
                view = views.get(id(arg))
                nodes.append(to_node(arg) if view is None or view.version != view.memory.version else view.node)
        return tuple(nodes), {name: to_node(arg) for name, arg in kwargs.items()} if kwargs else {}

    def tie_symbols(self, node: torch.fx.Node) -> None:
        """New symbols among the sizes of ``node`` stand for those axes of it."""
        for symbol in symbols_of(node):
            if symbol.name in self.sizes.unbacked:
                self.symbols.setdefault(symbol.name, symbol)

    def new_fake(self, dims: Sequence[Scalar], dtype: torch.dtype, device: torch.device = CPU) -> torch.Tensor:
        """A contiguous fake tensor with memory of its own."""
        return fake_from_meta(self.fake_mode, [sym_int(self.sizes, size) for size in dims], dtype, device)

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, one per tensor; a fake tensor itself."""
        if self.fake_mode.holds(tensor):
            return tensor
        fake = self.fakes.get(id(tensor))
        if fake is None:
            if tensor.layout is not torch.strided:
                return self.fake_of(road("sparse operands").dense_of(self, tensor))
            if tensor.storage_offset():
                self.storage_offsets[id(tensor)] = int(tensor.storage_offset())
            if type(tensor) in PLAIN and not is_quantized(tensor):
                fake = fake_from_meta(self.fake_mode, tensor.shape, tensor.dtype, tensor.device, tensor.stride())
            else:
                with no_dispatch():
                    plain = tensor.detach()
                fake = self.fake_mode.from_real(plain)
            self.has_fake(tensor, fake)
        return fake

    def has_fake(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """Let ``fake`` be the fake of a real tensor, which is kept, so that its id stays its own."""
        self.fakes[id(real)] = fake
        self._kept.append(real)

    def to_fake(self, arg: object) -> object:
        """``arg`` with fake tensors in the place of real ones."""
        if type(arg) in IMMEDIATE:
            return arg
        if isinstance(arg, torch.Tensor):
            return self.fake_of(arg)
        if isinstance(arg, list):
            return [self.to_fake(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_fake(item) for item in arg)
        if type(arg) is torch.SymInt and type(arg.node) is not DimNode:  # one of NumPy's: sizes of tensors are Python's
            return sym_int(self.sizes, arg.node.value)
        return arg

    def to_fakes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments:
        to_fake = self.to_fake
        return tuple(map(to_fake, args)), {name: to_fake(arg) for name, arg in kwargs.items()} if kwargs else {}

    def add_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        view = self._memory_of(fake, node)
        if self.graph is self.root:
            self.sources[node] = view
        return node

    def behind_input(self, node: torch.fx.Node) -> torch.fx.Node:
        """A node with the value of an input of a nested graph: what a symbol comes from is none. Any other node itself."""
        if node.op != "placeholder" or node.graph is self.root or node.graph is self.path_graph:
            return node
        graph, self.graph = self.graph, node.graph
        made: torch.fx.Node = self.call(torch.ops.aten.alias.default, (node,), {}, node.meta["val"])
        self.graph = graph
        return made

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that forward built from Python numbers."""
        with no_dispatch():
            kept = tensor.detach().clone()
        fake = self.fake_mode.from_real(kept)
        self.same_view(fake, self.weight_view(kept))
        return fake

    def name_constant(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """A real tensor that will be called so, with a number behind it where another is; the one that has these numbers already."""
        taken = {given for given, _ in self.names.values()}
        free, count = name, 0
        while free in taken:
            same = self._named.get(free)
            if same is not None and same.dtype == tensor.dtype and torch.equal(same, tensor):
                return same
            count += 1
            free = f"{name}_{count}"
        self.names[id(tensor)] = (free, "constant")
        self._named[free] = tensor
        return tensor

    def weight_view(self, tensor: torch.Tensor) -> View:
        """The view of a real tensor: a parameter, a buffer, or a constant that forward reached some other way."""
        view = self.views.get(id(tensor))
        if view is not None:
            return view
        if tensor.layout is not torch.strided:
            return self.weight_view(road("sparse operands").dense_of(self, tensor))
        name, kind = self.names.get(id(tensor), ("", "constant"))
        if not name:
            self._list_views()
            same = self._by_address.get(_address(tensor))
            if same is not None:
                view = self.same_view(tensor, same)
                self.fakes[id(tensor)] = self.fake_of(same.tensor)
        if view is None and self.shown_by_input is not None:
            view = self.shown_by_input(tensor)
        if view is None:
            if not name:
                name = f"constant_{self._constants}"
                self._constants += 1
            node = self.root.weight(name, self._first_call)
            view = self.sources[node] = self._memory_of(tensor, node)
            self.weights[name] = Weight(name, tensor, node, kind)
        return view

    def view_of(self, tensor: torch.Tensor) -> View:
        view = self.views.get(id(tensor))
        if view is not None:
            return view
        if not self.fake_mode.holds(tensor):
            return self.weight_view(tensor)
        self._list_views()
        base = self._memories.get(storage_key(tensor))
        if base is not None and tensor.shape == base.tensor.shape and tensor.stride() == base.tensor.stride():
            self.detached.add(id(tensor))
            return self.same_view(tensor, base)
        for real in (*self._module_tensors, *(weight.tensor for weight in self.weights.values())):
            if tensor.shape == real.shape and shares_converted_memory(self.fake_mode, real, tensor):
                self.detached.add(id(tensor))  # as its .data was before forward replaced it
                before = (view for view in self.sources.values() if view.tensor is real and self.is_replaced(real))
                return self.same_view(tensor, next(before, None) or self.weight_view(real))
        if self._pre_dispatch:
            raise NeedsDecomposition  # autograd keeps tensors that it makes inside composite overloads
        raise self.refuse(
            "E107",
            "a tensor reached an operator from outside the recorded program",
            why="it was made in a way that no operator shows",
            next="make the tensor inside forward, or register it as a buffer",
        )

    def leave_memory(self, tensor: torch.Tensor) -> None:
        """The tensor will be one over other memory; its memory of before is known, and kept, so that its key stays its own."""
        self._list_views()
        self._kept.append(tensor.untyped_storage())

    def view_at(self, key: int) -> View | None:
        """A view of the memory with that ``storage_key``."""
        self._list_views()
        return self._memories.get(key)

    def _list_views(self) -> None:
        """Bring ``_memories`` and ``_by_address`` up to date."""
        for view in self._unlisted:
            if self.fake_mode.holds(view.tensor):
                self._memories.setdefault(storage_key(view.tensor), view)
            else:
                self._by_address.setdefault(_address(view.tensor), view)
        self._unlisted.clear()

    def _memory_of(self, tensor: torch.Tensor, node: torch.fx.Node) -> View:
        """The view of a tensor with memory of its own."""
        node.meta["val"] = info = tensor_info(tensor)
        return self.add_view(View(Memory(node, info), (), node, info, 0, tensor))

    def is_over_its_own(self, tensor: torch.Tensor) -> bool:
        """Return whether a real tensor is over the memory that it had before forward, which may have set its ``.data``."""
        view = self.views.get(id(tensor))
        return view is None or any(
            source.memory is view.memory and storage_key(source.tensor) == storage_key(tensor)
            for source in self.sources.values()
        )

    def is_replaced(self, tensor: torch.Tensor) -> bool:
        """Return whether forward replaced the ``.data`` of a parameter or buffer."""
        return id(tensor) in self.replaced and not self.is_over_its_own(tensor)

    def same_view(self, tensor: torch.Tensor, view: View) -> View:
        """``tensor`` is another object for what ``view`` shows."""
        self.views[id(tensor)] = same = replace(view, tensor=tensor)
        return same

    def bind(
        self,
        tensor: torch.Tensor,
        node: torch.fx.Node,
        func: OpOverload,
        args: tuple[object, ...],
        nodes: Arguments,
        info: TensorInfo,
        output: int | None = None,
        siblings: tuple[TensorInfo | None, ...] = (),
        is_fresh: bool = False,
    ) -> None:
        """Tie ``tensor`` to ``node``, as a view of the argument whose storage it shares or as memory of its own, which it
        is known to have where it ``is_fresh``.
        """
        arg = args[0] if args and not is_fresh else None
        if isinstance(arg, torch.Tensor) and storage_key(self.fake_of(arg)) == storage_key(tensor):
            base = self.view_of(arg)
            step = ViewStep(func, *nodes, info, output, siblings)
            self.add_view(View(base.memory, (*base.steps, step), node, info, base.memory.version, tensor))
        else:
            self.add_view(View(Memory(node, info), (), node, info, 0, tensor))

    def add_view(self, view: View) -> View:
        """Know the view's tensor."""
        self.views[id(view.tensor)] = view
        self._unlisted.append(view)
        return view

    def write(self, tensor: torch.Tensor, value: torch.fx.Node, is_one_number: bool = False) -> None:
        """Give ``tensor`` the value of a node of its dtype and shape. ``is_one_number``: all its elements are equal."""
        view = self.view_of(tensor)
        memory = view.memory
        for plugin in self.plugins.values():
            plugin.before_write(memory)
        self.written.setdefault(id(memory), self.where)
        before = memory.present()
        memory.node = road("writes").carried_back(self, view, value, is_one_number) if view.steps else value
        last = next(reversed(self.graph.nodes)) if self.sizes.hints else value
        self.writes.append(Write(list(tensor.shape), self.where, memory, before, memory.node, last))
        memory.version += 1
        view.node, view.version = value, memory.version

    def is_outermost(self) -> bool:
        """Return whether what is recorded now is part of no branch or loop of an operator."""
        return self.graph is self.root or self.graph is self.path_graph

    def settle(self) -> None:
        """Have all that is pending recorded, before a turn of a loop is recorded into another graph."""
        for plugin in [*self.plugins.values()]:
            plugin.before_nested()
        for view in [*self.views.values()]:
            view.memory.present()


def _address(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two tensor objects over the same elements (``p`` and ``p.data``)."""
    where = id(tensor) if tensor.is_meta else real_address(tensor)
    return (
        where or id(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()) if tensor.layout == torch.strided else (),
    )


def dims_of(tensor: torch.Tensor) -> list[DimLike]:
    """The sizes as the graph has them."""
    return [size if type(size) is int else unwrap(size) for size in tensor.shape]


def axis_of(rank: int, dim: int) -> int:
    """``dim`` of a tensor of ``rank`` axes, counted from the front. Raises IndexError, as eager PyTorch does, for a dim that it lacks."""
    count = max(rank, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(dims_of(tensor)))
