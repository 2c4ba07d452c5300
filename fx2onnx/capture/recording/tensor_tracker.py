"""Which tensor of the running program is which value of the graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import TensorInfo, Weight
from fx2onnx.capture.python.constants import Known, evaluate
from fx2onnx.capture.recording import aliasing
from fx2onnx.capture.recording.aliasing import Memory, Step, View
from fx2onnx.capture.recording.meta_cache import IMMEDIATE, PLAIN
from fx2onnx.capture.recording.plugins import RunPlugin
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import DimLike
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.fake_tensors import (
    FakeMode,
    fake_from_meta,
    shares_converted_memory,
    storage_key,
)
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.graphs import RecordedGraph
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import OpOverload

_AS_STRIDED = torch.ops.aten.as_strided.default

Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]
"""Of one call."""


def _address(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two tensor objects over the same elements (``p`` and ``p.data``)."""
    where = tensor.data_ptr() if tensor.device.type != "meta" else id(tensor)
    return (
        where or id(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()) if tensor.layout == torch.strided else (),
    )


def addresses_of(tensor: torch.Tensor) -> range:
    """From the first byte of a real tensor to its last; empty where it has no memory that Python can name."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return range(0)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        with no_dispatch():
            begin = tensor.data_ptr()
    except RuntimeError:  # a wrapper of torch.func
        return range(0)
    return range(begin, begin + (reach + 1) * tensor.element_size()) if begin else range(0)


def dims_of(tensor: torch.Tensor) -> list[DimLike]:
    """The sizes as the graph has them."""
    return [unwrap(size) for size in tensor.shape]


def axis_of(rank: int, dim: int) -> int:
    """``dim`` of a tensor of ``rank`` axes, counted from the front. Raises IndexError, as eager PyTorch does, for a dim that it lacks."""
    count = max(rank, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(dims_of(tensor)))


class NeedsDecomposition(BaseException):
    """The module transforms functions (``torch.vmap``) or takes gradients: composite overloads cannot be seen whole. Not an
    Exception, so that no ``except Exception`` of the module swallows it.
    """


class TensorTracker:
    """Inputs, weights, constants and results met so far, fake and real, each with its node. Tensors over the same memory
    are views of one ``Memory``.
    """

    def __init__(
        self, fake_mode: FakeMode, weight_names: dict[int, tuple[str, str, torch.Tensor]], whole: bool
    ) -> None:
        self.root: torch.fx.Graph = RecordedGraph()
        self.graph: torch.fx.Graph = self.root
        self.fake_mode = fake_mode
        self.weights: dict[str, Weight] = {}
        self.sources: dict[torch.fx.Node, View] = {}
        """The view of each input and weight, by its node."""
        self._weight_names = {key: (name, kind) for key, (name, kind, _) in weight_names.items()}
        self._named: dict[str, torch.Tensor] = {}
        """Constants by the names that ``name_constant`` gave them."""
        self._module_tensors = [tensor for _, _, tensor in weight_names.values()]
        self.storage_offsets: dict[int, int] = {}
        """Where the samples of inputs begin in their storage, by the id of the fake, if not at its beginning."""
        self.views: dict[int, View] = {}
        """By the id of the tensor."""
        self._memories: dict[int, View] = {}
        self._fakes: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        """Real tensors whose ids are keys of ``_fakes``: they must not be freed."""
        self._by_address: dict[tuple[object, ...], View] = {}
        self._unlisted: list[View] = []
        """Views that ``_memories`` and ``_by_address`` lack so far: only tensors of unknown origin are looked up there."""
        self._given: list[tuple[range, torch.Tensor, torch.Tensor]] = []
        """Real tensors that are inputs: their addresses, they themselves, the fakes of the inputs."""
        self._known: Known = {}
        """What ``value_of`` computed."""
        self._constants = 0
        self._first_call: torch.fx.Node | None = None
        self._whole = whole
        self._where: SourceLocation | None = None
        self._module: str | None = None
        """The path of the module that the present call belongs to, where it is not the one that runs."""
        self.detached: set[int] = set()
        """Ids of tensors that are ``.data`` of others."""
        self.wants_grad: set[torch.fx.Node] = set()
        """Inputs whose samples require gradients."""
        self.without_grad: set[torch.fx.Node] = set()
        """Calls that were made where gradients are off."""
        self.plugins: dict[str, RunPlugin] = {}
        """What rare roads added to the run, by their names."""

    # -- nodes ----------------------------------------------------------------------------------------------------
    def call(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], info: TensorInfo | tuple[TensorInfo | None, ...]
    ) -> torch.fx.Node:
        """Add a node whose type is known; nothing runs."""
        node = self.graph.call_function(func, tuple(args), kwargs)
        if self._first_call is None and self.graph is self.root:
            self._first_call = node
        meta = node.meta
        meta["val"] = info
        meta["where"] = self._where
        meta["module"] = PATHS.current if self._module is None else self._module
        if not torch.is_grad_enabled():
            self.without_grad.add(node)
        for plugin in self.plugins.values():
            plugin.saw_call(node)
        return node

    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        """The error with the user's present line."""
        path = PATHS.current if self._module is None else self._module
        return UserError(code, what, where=self._where or user_location(), module_path=path, **fields)

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that holds the tensor's present value."""
        return aliasing.read(self, self.view_of(tensor))

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
        to_node = self.to_node
        return tuple([to_node(arg) for arg in args]), {name: to_node(arg) for name, arg in kwargs.items()}

    # -- fakes ----------------------------------------------------------------------------------------------------
    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor for a real one, one per tensor; a fake tensor itself."""
        if self.fake_mode.holds(tensor):
            return tensor
        fake = self._fakes.get(id(tensor))
        if fake is None:
            if tensor.layout is not torch.strided:
                return self.fake_of(self.dense_of(tensor))
            if tensor.storage_offset():
                self.storage_offsets[id(tensor)] = int(tensor.storage_offset())
            if type(tensor) in PLAIN and not tensor.is_quantized:
                fake = fake_from_meta(self.fake_mode, tensor.shape, tensor.dtype, tensor.device, tensor.stride())
            else:
                with no_dispatch():
                    plain = tensor.detach()
                fake = self.fake_mode.from_real(plain)
            self._fakes[id(tensor)] = fake
            self._kept.append(tensor)
        return fake

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
        return arg

    def to_fakes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments:
        return tuple(map(self.to_fake, args)), {name: self.to_fake(arg) for name, arg in kwargs.items()}

    # -- views ----------------------------------------------------------------------------------------------------
    def add_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        view = self._memory_of(fake, node)
        if self.graph is self.root:
            self.sources[node] = view
        return node

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that forward built from Python numbers."""
        with no_dispatch():
            kept = tensor.detach().clone()
        fake = self.fake_mode.from_real(kept)
        self._same_view(fake, self.weight_view(kept))
        return fake

    def stand_for(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        """From now on the real tensor is the input that ``fake`` is, and so is whatever else shows its memory."""
        self._unlisted.append(self._same_view(real, self.view_of(fake)))
        self._fakes[id(real)] = fake
        self._kept.append(real)
        if addresses := addresses_of(real):
            self._given.append((addresses, real, fake))

    def given_at(self, addresses: range) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The real tensor, and its fake, that is an input and has some of these addresses."""
        for own, real, fake in self._given:
            if addresses.start < own.stop and own.start < addresses.stop:
                return real, fake
        return None

    def _part_of_given(self, tensor: torch.Tensor) -> View | None:
        """The view of a real tensor over the memory of one that is an input."""
        addresses = addresses_of(tensor)
        found = self.given_at(addresses) if addresses else None
        if found is None:
            return None
        real, fake = found
        begin = tensor.data_ptr() - real.data_ptr()
        is_within = addresses.start >= real.data_ptr() and addresses.stop <= addresses_of(real).stop
        if tensor.dtype != real.dtype or begin % tensor.element_size() or not is_within:
            name = next((str(node.target) for node, view in self.sources.items() if view.tensor is fake), "a parameter")
            raise self.refuse(
                "E103",
                f"a tensor shows the memory of {name} in another way than {name} itself does",
                why=f"it is of {tensor.dtype} with the sizes {list(tensor.shape)}, {name} is an input of the graph",
                next=f"compute it from {name} inside forward",
            )
        with torch.no_grad():
            place = begin // tensor.element_size()
            part = self.record(_AS_STRIDED, (fake, list(tensor.shape), list(tensor.stride()), place), {})
        assert isinstance(part, torch.Tensor)
        self._fakes[id(tensor)] = part
        self._kept.append(tensor)
        return self.view_of(part)

    @abstractmethod
    def record(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run ``func`` on fakes and add its node(s)."""

    def name_constant(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """A real tensor that will be called so, with a number behind it where another is; the one that has these numbers already."""
        taken = {given for given, _ in self._weight_names.values()}
        free, count = name, 0
        while free in taken:
            same = self._named.get(free)
            if same is not None and same.dtype == tensor.dtype and torch.equal(same, tensor):
                return same
            count += 1
            free = f"{name}_{count}"
        self._weight_names[id(tensor)] = (free, "constant")
        self._named[free] = tensor
        return tensor

    @abstractmethod
    def dense_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The dense tensor of a sparse one."""

    def weight_view(self, tensor: torch.Tensor) -> View:
        """The view of a real tensor: a parameter, a buffer, or a constant that forward reached some other way."""
        view = self.views.get(id(tensor))
        if view is None and tensor.layout is not torch.strided:
            return self.weight_view(self.dense_of(tensor))
        if view is None and id(tensor) not in self._weight_names:
            self._list_views()
            same = self._by_address.get(_address(tensor))
            if same is not None:
                view = self._same_view(tensor, same)
                self._fakes[id(tensor)] = self.fake_of(same.tensor)
        if view is None and self._given:
            view = self._part_of_given(tensor)
        if view is None:
            name, kind = self._weight_names.get(id(tensor), ("", "constant"))
            if not name:
                name = f"constant_{self._constants}"
                self._constants += 1
            with self.root.inserting_before(self._first_call or self.root._root):
                node = self.root.create_node("get_attr", name)
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
            return self._same_view(tensor, base)
        for real in (*self._module_tensors, *(weight.tensor for weight in self.weights.values())):
            if tensor.shape == real.shape and shares_converted_memory(self.fake_mode, real, tensor):
                self.detached.add(id(tensor))
                return self._same_view(tensor, self.weight_view(real))
        if self._whole:
            raise NeedsDecomposition  # autograd keeps tensors that it makes inside composite overloads
        raise self.refuse(
            "E107",
            "a tensor reached an operator from outside the recorded program",
            why="it was made in a way that no operator shows",
            next="make the tensor inside forward, or register it as a buffer",
        )

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
        view = self.views[id(tensor)] = View(Memory(node, info), (), node, info, 0, tensor)
        self._unlisted.append(view)
        return view

    def _same_view(self, tensor: torch.Tensor, view: View) -> View:
        """``tensor`` is another object for what ``view`` shows."""
        self.views[id(tensor)] = same = replace(view, tensor=tensor)
        return same

    def _bind(
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
            step = Step(func, *nodes, info, output, siblings)
            view = View(base.memory, (*base.steps, step), node, info, base.memory.version, tensor)
        else:
            view = View(Memory(node, info), (), node, info, 0, tensor)
        self.add_view(view)

    def add_view(self, view: View) -> None:
        """Know the view's tensor."""
        self.views[id(view.tensor)] = view
        self._unlisted.append(view)
