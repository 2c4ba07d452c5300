"""The one file that knows torch's private names. Checked with torch 2.13."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeAlias

import torch
import torch.fx
from torch._decomp import core_aten_decompositions
from torch._decomp import decompositions as torch_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops import utils as higher_order_utils
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx2onnx.base.bounded import Bounded
from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import THREAD, CodePatch, put_name

__all__ = [
    "HIGHER_ORDER",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeMode",
    "FakeTensor",
    "FakeTensorMode",
    "NoDraws",
    "PreDispatchMode",
    "RecordedGraph",
    "SplitMode",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "capture_modes",
    "decompositions",
    "fake_from_meta",
    "fake_view",
    "forget_sizes",
    "in_function_transform",
    "no_dispatch",
    "pytree",
    "registered_overloads",
    "shares_converted_memory",
    "storage_key",
    "take_assignments",
]

OpOverload = torch._ops.OpOverload

PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

HIGHER_ORDER: dict[str, Any] = {
    "cond": torch.ops.higher_order.cond,
    "while_loop": while_loop_op,
    "scan": scan_op,
    "map_impl": map_impl,
}
"""Control-flow operators whose arguments are functions."""


Handler: TypeAlias = Callable[[], Any]
"""Gives what is told of each call of an operator: a ``weakref.WeakMethod``, as the method's object has the mode."""

_SEEN: dict[OpOverload, None] = {}
"""Operators that a ``PreDispatchMode`` has seen."""
_MANY = 10_000
"""So many operators are remembered."""


class _ModesOfThread(threading.local, torch._ops._ModeStackStateForPreDispatch):
    """Which modes are on the PreDispatch key: torch has one note of it for all threads, though the key is each one's own, so
    that what one thread captures would be told to another that calls ``torch.export``.
    """


_ops: Any = torch._ops
if _ops._mode_stack_state_for_pre_dispatch.count() == 0:
    _ops._mode_stack_state_for_pre_dispatch = _ModesOfThread()  # type: ignore[no-untyped-call]


class _Unnoted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is on in its thread and nowhere noted: torch notes in variables of the process that a mode is on, and
    functions compiled in other threads look there.
    """

    def __enter__(self) -> Any:
        torch._C._push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *_: object) -> None:
        torch._C._pop_torch_dispatch_stack(self.__dict__.get("_mode_key"))


class PreDispatchMode(SchemaCheckMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees operators before composite ones are split.

    torch admits only modes of its own classes on the PreDispatch key, hence the base class, whose checks are replaced.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._dispatch_key = PRE_DISPATCH
        self._handler = handler

    def __enter__(self) -> Any:
        _ops._set_mode_pre_dispatch(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ops.unset_mode_pre_dispatch(None, schema_check=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if PRE_DISPATCH not in func._dispatch_cache:
            func._dispatch_cache[PRE_DISPATCH] = partial(self._directly, func)
            _SEEN[func] = None
        return self._handler()(func, args, kwargs or {})

    def call_directly(self) -> None:
        """Operators that came here before come by the short way from the first time on."""
        for func in tuple(_ops.get_cached_ops()):
            func._uncache_dispatch(PRE_DISPATCH)  # as torch does where modes change; other threads may add to the set
        for func in _SEEN:
            func._dispatch_cache[PRE_DISPATCH] = partial(self._directly, func)

    def _directly(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """What torch does between an operator's call and this mode's handler, without the search for modes and for
        tensor subclasses that it makes at every call.
        """
        stack = _ops._mode_stack_state_for_pre_dispatch
        if stack._schema_check_mode is not self or _is_excluded(torch._C.DispatchKey.Python):
            func._dispatch_cache.pop(PRE_DISPATCH, None)
            return func(*args, **kwargs)
        stack._schema_check_mode = None
        _include(PRE_DISPATCH, False)
        try:
            return self._handler()(func, args, kwargs)
        finally:
            stack._schema_check_mode = self
            _include(PRE_DISPATCH, True)

    def call_directly_no_more(self) -> None:
        """Operators are as torch has them again."""
        for func in _SEEN:
            func._dispatch_cache.pop(PRE_DISPATCH, None)
        if len(_SEEN) > _MANY:
            _SEEN.clear()


class _Traceback:
    """``traceback`` for torch's file of fake tensors: a mode notes the stack that made it, which takes longer than the rest."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def extract_stack() -> traceback.StackSummary:
        return traceback.StackSummary() if THREAD.captures else traceback.extract_stack(sys._getframe(1))


_TRACEBACK = _Traceback()


class FakeMode(FakeTensorMode, _Unnoted):  # type: ignore[no-untyped-call, misc]
    """``FakeTensorMode``, which answers at once what torch itself asks most: a tensor's device (at each index), and the
    alias of a tensor that a factory has just made.
    """

    def __init__(self) -> None:
        with Changes():
            _note_capture()
            put_name(vars(fake_tensor), "traceback", _TRACEBACK)
            super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False  # it grows for ever, and its keys cost more than it saves

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _device_of and type(args[0]) is FakeTensor and not self.in_kernel_invocation:
            return args[0].fake_device
        if func is _detach and type(args[0]) is FakeTensor and args[0].fake_mode is self:
            with torch._C._DisableTorchDispatch():
                return _fake(self, args[0], args[0].fake_device)
        return super().__torch_dispatch__(func, types, args, kwargs or {})


_device_of, _detach = torch.ops.prim.device.default, torch.ops.aten.detach.default


class SplitMode(_Unnoted):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees operators after autograd, functorch and composite ones are dealt with."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handler()(func, args, kwargs or {})


class NoDraws(_Unnoted):  # type: ignore[no-untyped-call]
    """Refuses random numbers: a trace would draw them once, for every run of the file."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RuntimeError(f"{func} would be drawn once, while the module is traced")
        return func(*args, **(kwargs or {}))


def _call_directly(function: Callable[..., Any], args: Any, *_: Any, **__: Any) -> Any:
    if (
        function.__name__ == "_cond_op_wrapper"
    ):  # takes tensors only; compiling it would have taken nested operands apart
        *rest, operands = args
        leaves, structure = pytree.tree_flatten(tuple(operands))
        pred, *branches = rest
        args = (pred, *(_on_leaves(branch, structure) for branch in branches), tuple(leaves))
    return function(*args)


def _on_leaves(branch: Callable[..., Any], structure: Any) -> Callable[..., Any]:
    return lambda *leaves: branch(*pytree.tree_unflatten(leaves, structure))


def in_function_transform() -> bool:
    """Whether ``torch.vmap``, ``torch.func.grad`` or the like is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def take_assignments(assigned: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Until ``Changes`` end, ``assigned(x, y)`` is called before ``x.data = y`` in this thread, which no dispatcher shows."""
    plain: Any = torch._C.TensorBase.data
    thread = threading.get_ident()

    def replace(self: torch.Tensor, value: torch.Tensor) -> None:
        if threading.get_ident() == thread:
            assigned(self, value)
        plain.__set__(self, value)

    put_name(torch.Tensor, "data", property(plain.__get__, replace))


class _EagerHere:
    """A stance of ``torch.compile`` (``torch.compiler.set_stance``) under which this thread's captures run functions as they
    were written: compiled code would read memory that fake tensors do not have.
    """

    def __init__(self, stance: Any) -> None:
        self._elsewhere = stance

    @property
    def stance(self) -> str:
        return "force_eager" if THREAD.captures else str(self._elsewhere.stance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._elsewhere, name)


def _run_as_written() -> None:
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(eval_frame, "_stance", None)
    if stance is not None and not isinstance(stance, _EagerHere):
        put_name(eval_frame, "_stance", _EagerHere(stance))


def _as_written(model: Any = None, **_: Any) -> Any:
    """``torch.compile``, also as a decorator with arguments."""
    return _as_written if model is None else model


def _instead(function: Any, instead: Callable[..., Any]) -> CodePatch:
    return CodePatch(function, lambda original: instead)


_CODE_PATCHES = (
    _instead(torch.backends.mha.get_fastpath_enabled, lambda: False),
    _instead(higher_order_utils._hop_compile_and_call, _call_directly),
    _instead(torch.compile, _as_written),
)
"""Attention's fused inference path is off, and nothing is compiled."""

_LSTM = _instead(torch_decompositions.select_one_layer_lstm_function, lambda *_: torch_decompositions.one_layer_lstm)
"""Recurrent layers that are not recorded whole split into ATen overloads, not into oneDNN's own."""

_FAKE_TENSOR_LOG = logging.getLogger("torch._subclasses.fake_tensor")


def _unlogged(record: logging.LogRecord) -> bool:
    """A failing operator becomes our error; torch would print its own stack before."""
    return record.exc_info is None or not THREAD.captures


def _note_capture() -> None:
    before_change(partial(setattr, THREAD, "captures", THREAD.captures))
    THREAD.captures = True


@contextlib.contextmanager
def capture_modes(fake_mode: FakeTensorMode, recorder: PreDispatchMode | SplitMode) -> Iterator[None]:
    """Everything inside runs on fake tensors, seen by ``recorder``; other threads see nothing of it."""
    with Changes():
        _note_capture()
        for code_patch in (*_CODE_PATCHES, *([_LSTM] if isinstance(recorder, SplitMode) else [])):
            code_patch.put_in()
        _run_as_written()
        if _unlogged not in _FAKE_TENSOR_LOG.filters:
            before_change(partial(_FAKE_TENSOR_LOG.removeFilter, _unlogged))
            _FAKE_TENSOR_LOG.addFilter(_unlogged)
        with torch.no_grad(), fake_mode, enable_python_dispatcher(), recorder:
            if isinstance(recorder, PreDispatchMode):
                before_change(recorder.call_directly_no_more)
                recorder.call_directly()
            yield


def fake_from_meta(
    mode: FakeTensorMode, sizes: Any, dtype: torch.dtype, device: torch.device, strides: Any = None
) -> FakeTensor:
    """A fake tensor of the given sizes (ints or SymInts); nothing is allocated."""
    with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch():
        if strides is None:
            meta = torch.empty(sizes, dtype=dtype, device="meta")
        else:
            meta = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return _over(mode, meta, torch.device("cpu") if device.type == "meta" else device)


def _fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """``FakeTensor(mode, meta, device)``: the constructor, which sets some twenty attributes one by one (13 us), runs once
    for a mode and a device; after that its attributes are copied (2 us).
    """
    prototypes = mode.__dict__.setdefault("_fx2onnx_prototypes", {})
    attributes = prototypes.get(device)
    if attributes is None:
        fake = FakeTensor(mode, meta, device)
        prototypes[device] = dict(fake.__dict__)
        return fake
    fake = torch.Tensor._make_subclass(
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=attributes["_fake_device"]
    )
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(attributes)
    return fake


_META = "_fx2onnx_meta"


def _over(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """``_fake``, which keeps ``meta``: ``as_strided`` of it needs none of the care that a fake tensor's does."""
    fake = _fake(mode, meta, device)
    fake.__dict__[_META] = meta
    return fake


def forget_sizes(graph: torch.fx.Graph) -> None:
    """Empty what torch keeps with the sizes of an exported graph: results by sizes, which refer to what they are kept
    with from C++, where the collector sees no cycle.
    """
    for node in graph.nodes:
        environment = getattr(getattr(node.meta.get("val"), "fake_mode", None), "shape_env", None)
        if environment is not None:
            environment.fake_tensor_cache.clear()
            return


@lru_cache(maxsize=1)
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """PyTorch's decompositions into core ATen overloads (those into ``prims`` help nobody here)."""
    return dict(core_aten_decompositions())


def registered_overloads(namespace: str) -> Iterator[OpOverload]:
    """Every overload that is registered in a namespace; those that cannot be called from Python are left out."""
    packets = getattr(torch.ops, namespace)
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        packet_name, _, overload_name = rest.partition(".")
        packet = getattr(packets, packet_name, None) if space == namespace else None
        overload = getattr(packet, overload_name or "default", None)
        if overload is not None:
            yield overload


def fake_view(mode: FakeTensorMode, base: torch.Tensor, sizes: Any, strides: Any, offset: Any) -> FakeTensor:
    """A view of a fake tensor's memory."""
    plain = base.__dict__.get(_META)
    if plain is not None:
        with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch():
            meta = torch.as_strided(plain, sizes, strides, offset)
        return _over(mode, meta, base.fake_device)  # type: ignore[attr-defined]
    device = base.device
    with in_kernel_invocation_manager(mode):
        meta = torch.as_strided(base, sizes, strides, offset)
    return _fake(mode, meta, device)


def shares_converted_memory(mode: FakeTensorMode, real: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether ``fake`` is what the mode itself makes of ``real``'s memory (as for ``parameter.data``)."""
    with no_dispatch():
        plain = real.detach()
    return storage_key(mode.from_tensor(plain, static_shapes=True)) == storage_key(fake)


class RecordedGraph(torch.fx.Graph):
    """A graph that adds a node in 5 instead of 22 us: names by a counter for each target, no search of the arguments for
    ``SymInt``, of which a recorder gives none.
    """

    _bases: ClassVar[Bounded[Any, str]] = Bounded(_MANY)
    """The legal name of each callable target, without number."""

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> torch.fx.Node:
        """See ``torch.fx.Graph.create_node``."""
        unique = self._unique(target) if name is None else self._graph_namespace.create_name(name, None)
        node = torch.fx.Node(self, unique, op, target, args or (), kwargs or {}, type_expr)
        self._graph_namespace.associate_name_with_obj(unique, node)
        self._insert(node)
        self._find_nodes_lookup_table.insert(node)
        self._len += 1
        return node

    def _unique(self, target: Any) -> str:
        if type(target) is str:
            base = _legal_name(target)
        else:
            base = self._bases.get(target) or ""
            if not base:
                base = self._bases[target] = _legal_name(self._target_to_str(target))
        space = self._graph_namespace
        name, number = base, space._base_count.get(base, 0)
        while name in space._used_names:
            number += 1
            name = f"{base}_{number}"
        space._base_count[base] = number
        space._used_names.add(name)
        return name


@lru_cache(maxsize=65536)
def _legal_name(text: str) -> str:
    """``text`` as a name in a graph that has no other."""
    return torch.fx.graph._Namespace().create_name(torch.fx.graph._snake_case(text), None)


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Operators inside are seen by no mode and run for real. Without the Python dispatcher each takes 4 us less."""
    with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch():
        yield


def storage_key(tensor: torch.Tensor) -> int:
    """What tells whether two tensors share memory."""
    return int(tensor.untyped_storage()._cdata)
