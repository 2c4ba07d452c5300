"""Records the ATen overloads that a module calls while it runs on fake tensors, as a functional graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture import aliasing, functional
from fx2onnx.capture.aliasing import Memory, Step, View
from fx2onnx.capture.captured import Symbol, TensorInfo, Weight
from fx2onnx.capture.constants import evaluate
from fx2onnx.capture.frames import PATHS, asked_by_user, user_location
from fx2onnx.capture.symnode import Assumptions, sym_int, unwrap
from fx2onnx.capture.torch_private import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    PreDispatchMode,
    SplitMode,
    fake_from_meta,
    in_function_transform,
    no_dispatch,
    shares_converted_memory,
    storage_key,
)

aten = torch.ops.aten

TO_PYTHON = frozenset({aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default})
"""Overloads by which Python asks for a tensor's number."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


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


class NeedsSplit(BaseException):
    """The module transforms functions (``torch.vmap``): composite overloads cannot be seen whole. Not an Exception, so
    that no ``except Exception`` of the module swallows it.
    """


class Recorder:
    """The graph of one run. ``mode`` is the dispatch mode to be active while the module runs."""

    def __init__(
        self,
        assumptions: Assumptions,
        weight_names: dict[int, tuple[str, str, torch.Tensor]],
        keep: Callable[[OpOverload], bool],
        whole: bool = True,
    ) -> None:
        self.graph = torch.fx.Graph()
        self.assumptions = assumptions
        assumptions.locate = lambda: (user_location(), asked_by_user())
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fake_mode.cache_enabled = not assumptions.hints
        self.mode = PreDispatchMode(self._handle) if whole else SplitMode(self._handle)
        self._whole = whole
        self.weights: dict[str, Weight] = {}
        self.symbols: dict[str, Symbol] = {}
        self.warnings: list[str] = []
        self.written: dict[int, SourceLocation | None] = {}
        """Memories that were written, by id, with the first writer's line."""
        self.sources: dict[torch.fx.Node, View] = {}
        """The view of each input and weight, by its node."""
        self._weight_names = {key: (name, kind) for key, (name, kind, _) in weight_names.items()}
        self._module_tensors = [tensor for _, _, tensor in weight_names.values()]
        self._keep = keep
        self._views: dict[int, View] = {}
        self._memories: dict[int, View] = {}
        self._fakes: dict[int, torch.Tensor] = {}
        self._by_address: dict[tuple[Any, ...], View] = {}
        self._where: SourceLocation | None = None
        self._first_call: torch.fx.Node | None = None

    # -- sources of tensors ---------------------------------------------------------------------------------------
    def add_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        self._source(node, fake, tensor_info(fake))
        return node

    def _source(self, node: torch.fx.Node, tensor: torch.Tensor, info: TensorInfo) -> View:
        node.meta["val"] = info
        view = View(Memory(node, info), (), node, info, 0, tensor)
        self._views[id(tensor)] = view
        self.sources[node] = view
        if isinstance(tensor, FakeTensor):
            self._memories[storage_key(tensor)] = view
        else:
            self._by_address.setdefault(_address(tensor), view)
        return view

    def weight_view(self, tensor: torch.Tensor) -> View:
        """The view of a real tensor: a parameter, a buffer, or a constant that forward reached some other way."""
        view = self._views.get(id(tensor))
        if view is None and id(tensor) not in self._weight_names:
            same = self._by_address.get(_address(tensor))
            if same is not None:
                view = View(same.memory, same.steps, same.node, same.info, same.version, tensor)
                self._views[id(tensor)] = view
                self._fakes[id(tensor)] = self.fake_of(same.tensor)
        if view is None:
            name, kind = self._weight_names.get(id(tensor), ("", "constant"))
            if not name:
                name = f"constant_{sum(weight.kind == 'constant' for weight in self.weights.values())}"
            with self.graph.inserting_before(self._first_call or self.graph._root):
                node = self.graph.create_node("get_attr", name)
            view = self._source(node, tensor, tensor_info(tensor))
            self.weights[name] = Weight(name, tensor, node, kind)
        return view

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake stand-in of a real tensor, one per tensor."""
        fake = self._fakes.get(id(tensor))
        if fake is None:
            if type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_quantized:
                fake = fake_from_meta(self.fake_mode, tensor.shape, tensor.dtype, tensor.device, tensor.stride())
            else:
                with no_dispatch():
                    plain = tensor.detach()
                fake = self.fake_mode.from_tensor(plain, static_shapes=True)
            self._fakes[id(tensor)] = fake
        return fake

    def view_of(self, tensor: torch.Tensor) -> View:
        view = self._views.get(id(tensor))
        if view is not None:
            return view
        if not isinstance(tensor, FakeTensor):
            return self.weight_view(tensor)
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
        raise self.refuse(
            "E107",
            "a tensor reached an operator from outside the recorded program",
            why="it was made in a way that no operator shows",
            next="make the tensor inside forward, or register it as a buffer",
        )

    def _real_tensors(self) -> Iterator[torch.Tensor]:
        """The module's weights, and other real tensors met so far."""
        yield from self._module_tensors
        for weight in list(self.weights.values()):
            yield weight.tensor

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that holds the tensor's present value."""
        return aliasing.read(self, self.view_of(tensor))

    # -- nodes ----------------------------------------------------------------------------------------------------
    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], info: Any) -> torch.fx.Node:
        """Add a node whose type is known; nothing runs."""
        node = self.graph.call_function(func, tuple(args), kwargs)
        if self._first_call is None:
            self._first_call = node
        meta = node.meta
        meta["val"] = info
        meta["where"] = self._where
        meta["module"] = PATHS.current
        return node

    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        return UserError(code, what, where=self._where or user_location(), module_path=PATHS.current, **fields)

    # -- dispatch -------------------------------------------------------------------------------------------------
    def _handle(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._whole and in_function_transform():
            raise NeedsSplit
        self._where = user_location()
        self.assumptions.during = func._schema.name
        if func in TO_PYTHON:
            return self._to_python(func, args[0])
        if func.namespace == "prim" or func in functional.QUERIES:
            return func(*map(self._to_fake, args), **{name: self._to_fake(arg) for name, arg in kwargs.items()})
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._constant(args[0])
        if func._schema.is_mutable:
            return functional.mutate(self, func, args, kwargs)
        special = functional.SPECIAL.get(func)
        if special is not None:
            replaced = special(self, func, args, kwargs)
            if replaced is not NotImplemented:
                return replaced
        if not self._keep(func):
            with self.mode:
                result = functional.decompose(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return self.record(func, args, kwargs)

    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func`` on fakes and add its node(s)."""
        node_args = tuple(self._to_node(arg) for arg in args)
        node_kwargs = {name: self._to_node(arg) for name, arg in kwargs.items()} if kwargs else {}
        fake_args = tuple(self._to_fake(arg) for arg in args)
        fake_kwargs = {name: self._to_fake(arg) for name, arg in kwargs.items()} if kwargs else {}
        try:
            result = func(*fake_args, **fake_kwargs)
        except DynamicOutputShapeException as cause:
            raise self.refuse(
                "E107",
                f"the size of {func}'s result depends on data",
                next="use an operator whose result has a fixed size, such as torch.where or topk",
            ) from cause
        return self.finish(func, args, node_args, node_kwargs, result)

    def finish(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        node_args: tuple[Any, ...],
        node_kwargs: dict[str, Any],
        result: Any,
    ) -> Any:
        """Add the node of ``func`` and tie its results to it."""
        if isinstance(result, torch.Tensor):
            if any(result is arg for arg in args):
                return result
            info = tensor_info(result)
            node = self.call(func, node_args, node_kwargs, info)
            self._bind(result, node, func, args, node_args, node_kwargs, info, None, ())
            return result
        if isinstance(result, tuple | list):
            infos = tuple(tensor_info(item) if isinstance(item, torch.Tensor) else None for item in result)
            node = self.call(func, node_args, node_kwargs, infos)
            for index, (item, part_info) in enumerate(zip(result, infos, strict=True)):
                if part_info is not None and id(item) not in self._views:
                    part = self.call(operator.getitem, (node, index), {}, part_info)
                    self._bind(item, part, func, args, node_args, node_kwargs, part_info, index, infos)
            return result
        if result is None or isinstance(result, torch.dtype | torch.device | torch.layout | str):
            return result
        raise self.refuse(
            "E104",
            f"{func} gives Python a {type(result).__name__} that depends on tensor data",
            next="keep the decision in tensors: torch.where, or torch.cond for two branches",
        )

    def _bind(
        self,
        tensor: torch.Tensor,
        node: torch.fx.Node,
        func: OpOverload,
        args: tuple[Any, ...],
        node_args: tuple[Any, ...],
        node_kwargs: dict[str, Any],
        info: TensorInfo,
        output: int | None,
        siblings: tuple[Any, ...],
    ) -> None:
        """Tie ``tensor`` to ``node``, as a view of the argument whose storage it shares or as memory of its own."""
        key = storage_key(tensor)
        for arg in args[:1]:
            if isinstance(arg, torch.Tensor) and storage_key(self._to_fake(arg)) == key:
                base = self.view_of(arg)
                step = Step(func, node_args, node_kwargs, info, output, siblings)
                view = View(base.memory, (*base.steps, step), node, info, base.memory.version, tensor)
                break
        else:
            view = View(Memory(node, info), (), node, info, 0, tensor)
        self._views[id(tensor)] = view
        self._memories.setdefault(key, view)

    def write(self, tensor: torch.Tensor, value: torch.fx.Node) -> None:
        """Give ``tensor`` the value of a node of its dtype and shape."""
        view = self.view_of(tensor)
        self.written.setdefault(id(view.memory), self._where)
        aliasing.write(self, view, value)

    def was_written(self, view: View) -> tuple[bool, SourceLocation | None]:
        return id(view.memory) in self.written, self.written.get(id(view.memory))

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that forward built from Python numbers."""
        with no_dispatch():
            kept = tensor.detach().clone()
        fake = self.fake_mode.from_tensor(kept, static_shapes=True)
        view = self.weight_view(kept)
        self._views[id(fake)] = View(view.memory, (), view.node, view.info, 0, fake)
        return fake

    def _to_python(self, func: OpOverload, tensor: torch.Tensor) -> Any:
        """The number of a one-element tensor: known where only constants lead to it, else a symbol."""
        node = self.node_of(tensor)
        value = evaluate(node, self.weights)
        if value is not None:
            with no_dispatch():
                number = value.item()
            return bool(number) if func is aten.is_nonzero.default else number
        if tensor.dtype.is_floating_point or tensor.dtype == torch.bool or func is aten.is_nonzero.default:
            raise self.refuse(
                "E104",
                "Python control flow depends on tensor data",
                node=f"{func} of %{node.name}",
                why="the number is known only when the model runs",
                next=("torch.cond for two branches", "torch.where to select values"),
            )
        return self.new_symbol(node, None)

    def new_symbol(self, node: torch.fx.Node, axis: int | None) -> Any:
        """A SymInt for a number that only the data tells: ``node``'s size along ``axis``, or its value."""
        name = f"u{len(self.assumptions.unbacked)}"
        self.assumptions.unbacked.add(name)
        self.assumptions.hints[name] = 11 + 2 * len(self.assumptions.unbacked)
        self.fake_mode.cache_enabled = False
        self.symbols[name] = Symbol(name, node, axis)
        return sym_int(self.assumptions, Dim.symbol(name))

    def _to_node(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self.node_of(arg)
        if isinstance(arg, list):
            return [self._to_node(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self._to_node(item) for item in arg)
        return unwrap(arg)

    def _to_fake(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg if isinstance(arg, FakeTensor) else self.fake_of(arg)
        if isinstance(arg, list):
            return [self._to_fake(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self._to_fake(item) for item in arg)
        return arg
