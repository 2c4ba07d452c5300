"""Records the ATen overloads that a module calls while it runs on fake tensors, as a functional graph."""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base import events
from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture import aliasing, autocast, functional, recurrent, strided, unbacked
from fx2onnx.capture.aliasing import Memory, Step, View
from fx2onnx.capture.assumptions import Assumptions
from fx2onnx.capture.captured import Symbol, TensorInfo, Weight
from fx2onnx.capture.constants import evaluate
from fx2onnx.capture.frames import PATHS, asked_by_user, asserted_by_user, user_location
from fx2onnx.capture.replay import MISSING, Replay
from fx2onnx.capture.symnode import sym_int, unwrap
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


SPECIAL = {
    **functional.SPECIAL,
    **unbacked.SPECIAL,
    **recurrent.SPECIAL,
    aten.as_strided.default: strided.as_strided,
}


def _dtype_of_number(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.float32 if isinstance(value, float) else torch.int64


class NeedsSplit(BaseException):
    """The module transforms functions (``torch.vmap``) or takes gradients: composite overloads cannot be seen whole. Not an
    Exception, so that no ``except Exception`` of the module swallows it.
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
        self.root = self.graph = torch.fx.Graph()
        self.assumptions = assumptions
        assumptions.locate = lambda: (user_location(), asked_by_user())
        assumptions.advise = self._advice
        assumptions.is_asserted = asserted_by_user
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fake_mode.cache_enabled = not assumptions.hints
        self._spans = events.details()
        handle = self.handle if self._spans is None else self._handle_timed
        self.mode = PreDispatchMode(handle) if whole else SplitMode(handle)
        self._whole = whole
        self.replay = Replay(self.fake_mode, assumptions)
        self.weights: dict[str, Weight] = {}
        self.symbols: dict[str, Symbol] = {}
        self.warnings: list[str] = []
        self.stood_in: list[str] = []
        """The library functions that were said in tensors, and how."""
        self.written: dict[int, SourceLocation | None] = {}
        """Memories that were written, by id, with the first writer's line."""
        self.sources: dict[torch.fx.Node, View] = {}
        """The view of each input and weight, by its node."""
        self.nonzero_rows: dict[tuple[torch.fx.Graph, torch.fx.Node], Dim] = {}
        """The unknown number of nonzero elements of a value, so that two selections by one mask have one size."""
        self._weight_names = {key: (name, kind) for key, (name, kind, _) in weight_names.items()}
        self._module_tensors = [tensor for _, _, tensor in weight_names.values()]
        self.storage_offsets: dict[int, int] = {}
        """Where the samples of inputs begin in their storage, by the id of the fake, if not at its beginning."""
        self._keep = keep
        self._views: dict[int, View] = {}
        self._memories: dict[int, View] = {}
        self._fakes: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        """Real tensors whose ids are keys of ``_fakes``: they must not be freed."""
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
            if type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_quantized:
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
            raise NeedsSplit  # autograd keeps tensors that it makes inside composite overloads
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

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether only constants lead to the tensor's value."""
        return evaluate(self.node_of(tensor), self.weights) is not None

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

    # -- dispatch -------------------------------------------------------------------------------------------------
    def _handle_timed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._spans is not None
        self._spans.begin(func, PATHS.current)
        try:
            return self.handle(func, args, kwargs)
        finally:
            self._spans.end(self._where)

    def handle(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What one call of an ATen overload inside the module becomes: nodes, and fakes for the module to go on with."""
        if self._whole and in_function_transform():
            raise NeedsSplit
        self._where = user_location()
        self.assumptions.during = func._schema.name
        if func in TO_PYTHON:
            return self._to_python(func, args[0])
        if func.namespace == "prim" or func in functional.QUERIES:
            return func(*map(self.to_fake, args), **{name: self.to_fake(arg) for name, arg in kwargs.items()})
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self.constant(args[0])
        special = SPECIAL.get(func) or unbacked.SPECIAL_BY_NAME.get(func._schema.name)
        if func._schema.is_mutable and special is None:
            return functional.mutate(self, func, args, kwargs)
        if autocast.is_active():
            args = autocast.cast_arguments(self, func, args, kwargs)
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
        node_args = tuple(self.to_node(arg) for arg in args)
        node_kwargs = {name: self.to_node(arg) for name, arg in kwargs.items()} if kwargs else {}
        fake_args = tuple(self.to_fake(arg) for arg in args)
        fake_kwargs = {name: self.to_fake(arg) for name, arg in kwargs.items()} if kwargs else {}
        key = self.replay.key(func, fake_args, fake_kwargs)
        result = self.replay.again(key, fake_args) if key is not None else MISSING
        if result is not MISSING:
            return self.finish(func, args, node_args, node_kwargs, result)
        start_ns = time.perf_counter_ns()
        try:
            result = func(*fake_args, **fake_kwargs)
        except DynamicOutputShapeException as cause:
            raise self.refuse(
                "E107",
                f"the size of {func}'s result depends on data",
                next="use an operator whose result has a fixed size, such as torch.where or topk",
            ) from cause
        finally:
            if self._spans is not None:
                self._spans.add("fake op", start_ns)
        if key is not None:
            self.replay.remember(key, fake_args, result)
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
            if isinstance(arg, torch.Tensor) and storage_key(self.to_fake(arg)) == key:
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

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
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
        if node.target is aten._is_all_true.default or (tensor.dtype == torch.bool and asserted_by_user()):
            self.assumptions.take_for_true(f"%{node.name} is true", self._where)
            return True
        if tensor.dtype.is_floating_point or tensor.dtype == torch.bool or func is aten.is_nonzero.default:
            raise self.refuse(
                "E104",
                "Python control flow depends on tensor data",
                node=f"{func} of %{node.name}",
                why="the number is known only when the model runs",
                next=("torch.cond for two branches", "torch.where to select values", *self._baking_advice(node)),
            )
        dim = self.unknown_size()
        self.symbols[str(dim)] = Symbol(str(dim), node, None)
        return sym_int(self.assumptions, dim)

    def _advice(self, names: frozenset[str]) -> list[str]:
        nodes = [self.symbols[name].node for name in sorted(names) if name in self.symbols]
        return self._baking_advice(nodes[0]) if nodes else []

    def _baking_advice(self, node: torch.fx.Node) -> list[str]:
        """Which inputs decide the number: their sample values could be fixed."""
        pending, seen, names = [node], {node}, []
        while pending:
            current = pending.pop()
            if current.op == "placeholder":
                names.append(str(current.target))
            pending += [operand for operand in current.all_input_nodes if operand not in seen]
            seen.update(current.all_input_nodes)
        quoted = ", ".join(f'"{name}"' for name in sorted(names))
        return [f"bake=[{quoted}] to fix the sample's values in the file"] if names else []

    def unknown_size(self) -> Dim:
        """A new symbol for a number that only the data tells; ``tie_symbols`` says later where it comes from."""
        env = self.assumptions
        name = f"u{len(env.unbacked)}"
        env.unbacked.add(name)
        env.hints[name] = 11 + 2 * len(env.unbacked)
        self.fake_mode.cache_enabled = False
        return Dim.symbol(name)

    def tie_symbols(self, node: torch.fx.Node) -> None:
        """New symbols among the sizes of ``node`` stand for those axes of it."""
        for axis, dim in enumerate(node.meta["val"].dims):
            name = dim.as_symbol() if isinstance(dim, Dim) else None
            if name in self.assumptions.unbacked and name not in self.symbols:
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
            for memory, version in memories.values():
                if memory.version != version:
                    raise self.refuse(
                        "E103",
                        "a branch or loop body writes into a tensor from outside it",
                        next="return the new value from the function instead",
                    )
        finally:
            self.graph, self._where = outer, outer_where
            for view, node, version in views.values():
                view.node, view.version = node, version

    def nested_input(self, name: str, fake: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        info = tensor_info(fake)
        node.meta["val"] = info
        self._views[id(fake)] = view = View(Memory(node, info), (), node, info, 0, fake)
        self._memories[storage_key(fake)] = view
        return node

    def info_of(self, tensor: torch.Tensor) -> TensorInfo:
        return tensor_info(tensor)

    def fake_like(self, info: TensorInfo, tensor: torch.Tensor | None) -> torch.Tensor:
        """A new fake of the given type."""
        device = tensor.device if tensor is not None else torch.device("cpu")
        return fake_from_meta(
            self.fake_mode, [sym_int(self.assumptions, size) for size in info.dims], info.dtype, device
        )

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
        if isinstance(arg, torch.Tensor):
            return self.node_of(arg)
        if isinstance(arg, list):
            return [self.to_node(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_node(item) for item in arg)
        return unwrap(arg)

    def to_fake(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return arg if isinstance(arg, FakeTensor) else self.fake_of(arg)
        if isinstance(arg, list):
            return [self.to_fake(item) for item in arg]
        if isinstance(arg, tuple):
            return tuple(self.to_fake(item) for item in arg)
        return arg
