"""Which tensor of the running program is which value of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import TensorInfo, Weight
from fx2onnx.capture.python.constants import Known
from fx2onnx.capture.recording import aliasing
from fx2onnx.capture.recording.aliasing import Memory, Step, View
from fx2onnx.capture.recording.meta_cache import PLAIN
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.capture.torch_private.dispatch import no_dispatch
from fx2onnx.capture.torch_private.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    fake_from_meta,
    shares_converted_memory,
    storage_key,
)
from fx2onnx.capture.torch_private.graphs import RecordedGraph
from fx2onnx.capture.torch_private.operators import OpOverload


def _address(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensor objects over the same elements (``p`` and ``p.data``)."""
    where = tensor.data_ptr() if tensor.device.type != "meta" else id(tensor)
    return (
        where or id(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()) if tensor.layout == torch.strided else (),
    )


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(unwrap(size) for size in tensor.shape))


class NeedsDecomposition(BaseException):
    """The module transforms functions (``torch.vmap``) or takes gradients: composite overloads cannot be seen whole. Not an
    Exception, so that no ``except Exception`` of the module swallows it.
    """


class KnownTensors(ABC):
    """Inputs, weights, constants and results met so far, fake and real, each with its node; tensors over the same memory
    know of each other.
    """

    def __init__(
        self, fake_mode: FakeTensorMode, weight_names: dict[int, tuple[str, str, torch.Tensor]], whole: bool
    ) -> None:
        self.root: torch.fx.Graph = RecordedGraph()
        self.graph: torch.fx.Graph = self.root
        self.fake_mode = fake_mode
        self.weights: dict[str, Weight] = {}
        self.sources: dict[torch.fx.Node, View] = {}
        """The view of each input and weight, by its node."""
        self._weight_names = {key: (name, kind) for key, (name, kind, _) in weight_names.items()}
        self._module_tensors = [tensor for _, _, tensor in weight_names.values()]
        self.storage_offsets: dict[int, int] = {}
        """Where the samples of inputs begin in their storage, by the id of the fake, if not at its beginning."""
        self._views: dict[int, View] = {}
        self._memories: dict[int, View] = {}
        self._fakes: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        """Real tensors whose ids are keys of ``_fakes``: they must not be freed."""
        self._by_address: dict[tuple[Any, ...], View] = {}
        self._unlisted: list[View] = []
        """Views that ``_memories`` or ``_by_address`` do not list yet: they are asked for tensors of unknown origin only."""
        self.known: Known = {}
        """Numbers that Python asked for, and what led to them."""
        self._constants = 0
        self._first_call: torch.fx.Node | None = None
        self._whole = whole

    @abstractmethod
    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], info: Any) -> torch.fx.Node:
        """Add a node whose type is known; nothing runs."""

    @abstractmethod
    def to_fake(self, arg: Any) -> Any:
        """``arg`` with fake tensors in the place of real ones."""

    @abstractmethod
    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        """The error with the user's present line."""

    def add_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        self._source(node, fake, tensor_info(fake))
        return node

    def _source(self, node: torch.fx.Node, tensor: torch.Tensor, info: TensorInfo) -> View:
        node.meta["val"] = info
        view = View(Memory(node, info), (), node, info, 0, tensor)
        self._views[id(tensor)] = view
        self.sources[node] = view
        self._unlisted.append(view)
        return view

    def _list_views(self) -> None:
        """Bring ``_memories`` and ``_by_address`` up to date."""
        for view in self._unlisted:
            if isinstance(view.tensor, FakeTensor):
                self._memories.setdefault(storage_key(view.tensor), view)
            else:
                self._by_address.setdefault(_address(view.tensor), view)
        self._unlisted.clear()

    def weight_view(self, tensor: torch.Tensor) -> View:
        """The view of a real tensor: a parameter, a buffer, or a constant that forward reached some other way."""
        view = self._views.get(id(tensor))
        if view is None and id(tensor) not in self._weight_names:
            self._list_views()
            same = self._by_address.get(_address(tensor))
            if same is not None:
                view = View(same.memory, same.steps, same.node, same.info, same.version, tensor)
                self._views[id(tensor)] = view
                self._fakes[id(tensor)] = self.fake_of(same.tensor)
        if view is None:
            name, kind = self._weight_names.get(id(tensor), ("", "constant"))
            if not name:
                name = f"constant_{self._constants}"
                self._constants += 1
            with self.root.inserting_before(self._first_call or self.root._root):
                node = self.root.create_node("get_attr", name)
            view = self._source(node, tensor, tensor_info(tensor))
            self.weights[name] = Weight(name, tensor, node, kind)
        return view

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake stand-in of a real tensor, one per tensor."""
        fake = self._fakes.get(id(tensor))
        if fake is None:
            if tensor.layout == torch.strided and tensor.storage_offset():
                self.storage_offsets[id(tensor)] = int(tensor.storage_offset())
            if type(tensor) in PLAIN and tensor.layout == torch.strided and not tensor.is_quantized:
                fake = fake_from_meta(self.fake_mode, tensor.shape, tensor.dtype, tensor.device, tensor.stride())
            else:
                with no_dispatch():
                    plain = tensor.detach()
                fake = self.fake_mode.from_tensor(plain, static_shapes=True)
            self._fakes[id(tensor)] = fake
            self._kept.append(tensor)
        return fake

    def view_of(self, tensor: torch.Tensor) -> View:
        view = self._views.get(id(tensor))
        if view is not None:
            return view
        if not isinstance(tensor, FakeTensor):
            return self.weight_view(tensor)
        self._list_views()
        base = self._memories.get(storage_key(tensor))
        if base is not None and tensor.shape == base.tensor.shape and tensor.stride() == base.tensor.stride():
            view = View(base.memory, base.steps, base.node, base.info, base.version, tensor)
            self._views[id(tensor)] = view
            return view
        for real in self._real_tensors():
            if tensor.shape == real.shape and shares_converted_memory(self.fake_mode, real, tensor):
                base = self.weight_view(real)
                view = View(base.memory, base.steps, base.node, base.info, base.version, tensor)
                self._views[id(tensor)] = view
                return view
        if self._whole:
            raise NeedsDecomposition  # autograd keeps tensors that it makes inside composite overloads
        raise self.refuse(
            "E107",
            "a tensor reached an operator from outside the recorded program",
            why="it was made in a way that no operator shows",
            next="make the tensor inside forward, or register it as a buffer",
        )

    def views(self) -> Iterator[View]:
        """Every tensor met so far."""
        return iter(self._views.values())

    def _real_tensors(self) -> Iterator[torch.Tensor]:
        """The module's weights, and other real tensors met so far."""
        yield from self._module_tensors
        for weight in list(self.weights.values()):
            yield weight.tensor

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that holds the tensor's present value."""
        return aliasing.read(self, self.view_of(tensor))

    def nested_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        info = tensor_info(fake)
        node.meta["val"] = info
        self._views[id(fake)] = view = View(Memory(node, info), (), node, info, 0, fake)
        self._unlisted.append(view)
        return node

    def _bind(
        self,
        tensor: torch.Tensor,
        node: torch.fx.Node,
        func: OpOverload,
        args: tuple[Any, ...],
        node_args: tuple[Any, ...],
        node_kwargs: dict[str, Any],
        info: TensorInfo,
        output: int | None = None,
        siblings: tuple[Any, ...] = (),
        is_fresh: bool = False,
    ) -> None:
        """Tie ``tensor`` to ``node``, as a view of the argument whose storage it shares or as memory of its own, which it
        is known to have where it ``is_fresh``.
        """
        arg = args[0] if args and not is_fresh else None
        if isinstance(arg, torch.Tensor) and storage_key(self.to_fake(arg)) == storage_key(tensor):
            base = self.view_of(arg)
            step = Step(func, node_args, node_kwargs, info, output, siblings)
            view = View(base.memory, (*base.steps, step), node, info, base.memory.version, tensor)
        else:
            view = View(Memory(node, info), (), node, info, 0, tensor)
        self._views[id(tensor)] = view
        self._unlisted.append(view)

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that forward built from Python numbers."""
        with no_dispatch():
            kept = tensor.detach().clone()
        fake = self.fake_mode.from_tensor(kept, static_shapes=True)
        view = self.weight_view(kept)
        self._views[id(fake)] = View(view.memory, (), view.node, view.info, 0, fake)
        return fake

    def info_of(self, tensor: torch.Tensor) -> TensorInfo:
        return tensor_info(tensor)
