"""Tensors without data, on which a module runs while it is captured, and their mode.

The module's tensors are plain ``torch.Tensor`` objects, so that it sees what it sees in eager PyTorch. Only while torch
computes the type of an operator's result are they ``FakeTensor``, of whose attributes they hold nothing otherwise.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fx2onnx.torchcompat.dispatch import ASKS_DEVICE, Named, Operands, Types, UnnotedMode, no_dispatch
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import pytree

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
DataDependentOutputException = fake_tensor.DataDependentOutputException
DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException
UnsupportedOperatorException = fake_tensor.UnsupportedOperatorException
CPU = torch.device("cpu")

Sizes: TypeAlias = Sequence[int | torch.SymInt]


class _PlainMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """``FakeTensorMode`` at its defaults, whose constructor does not run before something asks for what only it sets: for two
    of its settings it imports ``torch._dynamo``, a compiler, which takes longer than an export.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.allow_fallback_kernels = self.allow_non_fake_inputs = self.static_shapes = self.allow_meta = True
        self.propagate_real_tensors = self.allow_scalar_outputs = self._allow_unsafe_data_ptr_access = False
        self.cache_enabled = False  # it grows for ever, and its keys cost more than it saves
        self.cache_crosscheck_enabled = self.in_kernel_invocation = False
        self.fake_tensor_converter = fake_tensor.FakeTensorConverter()
        self.enter_stack = []
        self.shape_env = self._stack = None
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __getattr__(self, name: str) -> object:
        own = vars(FakeTensorMode(allow_non_fake_inputs=True))
        if name not in own:
            raise AttributeError(name)
        return vars(self).setdefault(name, own[name])


class Leftover(FakeTensor):
    """A tensor without data after its capture. It has no mode of its own: one for all serves to say what it is."""

    fake_mode = _PlainMode()


for _name, _value in vars(FakeTensor(Leftover.fake_mode, torch.empty((), device="meta"), CPU)).items():
    if _name != "fake_mode":
        setattr(Leftover, _name, _value)


class FakeMode(_PlainMode, UnnotedMode):  # type: ignore[no-untyped-call, misc]
    """``FakeTensorMode`` for tensors of plain type. It answers at once what torch itself asks most: a tensor's device (at each
    index), and the alias of a tensor that a factory has just made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, torch.Tensor] = {}
        """The module's tensors without data, by id."""
        self.released: list[weakref.ReferenceType[torch.Tensor]] = []
        """The tensors of runs that are over, which are gone unless somebody keeps them."""
        self._devices: dict[int, torch.device] = {}
        """Devices of tensors that are not on the CPU, by id."""
        self._metas: dict[int, torch.Tensor] = {}
        """A meta tensor over the same memory, where there is one: ``as_strided`` of it needs none of the care that a fake
        tensor's does.
        """
        self._prototypes: dict[torch.device, dict[str, object]] = {}
        self.computes = False
        """True if torch computes the type of a result: the tensors are ``FakeTensor``."""
        self.slices: Callable[..., object] | None = None
        """Makes slices inside of operators of which torch does not know how long they are."""
        self.runs_operator = False
        """True while an operator runs for the type of its result: its questions to tensors are torch's own, not Python's."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is one without data, of this mode."""
        return id(tensor) in self._held

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """The device of a tensor that this mode holds."""
        return self._devices.get(id(tensor), CPU)

    def device_if_held(self, tensor: object) -> torch.device | None:
        """The device of a tensor that this mode holds, where ``tensor`` is one and plain."""
        return self._devices.get(id(tensor), CPU) if id(tensor) in self._held and type(tensor) is torch.Tensor else None

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if self.computes:
            if func is _device_of and not self.in_kernel_invocation and type(args[0]) is FakeTensor:
                return args[0].fake_device
            return self._computed(func, types, args, kwargs)
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and id(first) in self._held:
            if func is _device_of:
                return self.device_of(first)
            if func is _detach:
                with torch._C._DisableTorchDispatch():
                    return self.made(first, self.device_of(first))
        given = args, tuple(kwargs.values()) if kwargs else ()
        try:
            with self.shown(given):
                result = self._computed(func, types, args, kwargs)
        except RuntimeError as cause:
            device = self._device_beside_cpu(given)
            if device is None:
                raise
            try:
                with self.shown(given, device=device):
                    result = self._computed(func, types, args, kwargs)
            except RuntimeError:
                raise cause from None
        self._take(result)
        return result

    def _computed(self, func: OpOverload, types: Types, args: Operands, kwargs: Named) -> object:
        try:
            return self.dispatch(func, types, args, kwargs or {})
        except AssertionError:
            if func is not _slice or self.slices is None:
                raise
            return self.slices(*args, **(kwargs or {}))

    def _device_beside_cpu(self, given: object) -> torch.device | None:
        """The one device on which some tensors lie, where others lie on the CPU: what stands in the file for an operator, or for
        what data decides, makes some that eager PyTorch does not, and in the file all lie in one place.
        """
        devices = {self.device_of(each) for each in pytree.tree_leaves(given) if id(each) in self._held}
        others = devices - {CPU}
        return others.pop() if len(devices) == 2 and len(others) == 1 else None

    @contextlib.contextmanager
    def shown(self, *args: object, device: torch.device | None = None) -> Iterator[None]:
        """Inside, the tensors of this mode among ``args`` are ``FakeTensor``, as torch's own computation wants them: all on
        ``device``, where one is given.
        """
        shown: list[tuple[torch.Tensor, type, dict[str, object]]] = []
        self._show(args, shown, device)
        self.computes = True
        try:
            yield
        finally:
            self.computes = False
            for tensor, kind, attributes in shown:
                _become(tensor, kind, attributes)

    def _show(
        self,
        args: Iterable[object],
        shown: list[tuple[torch.Tensor, type, dict[str, object]]],
        device: torch.device | None = None,
    ) -> None:
        """Make the held tensors among ``args`` ``FakeTensor``, and note what they were."""
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if id(arg) in self._held and type(arg) is not FakeTensor:
                    shown.append((arg, type(arg), dict(arg.__dict__)))
                    _become(arg, FakeTensor, self._attributes(device or self.device_of(arg)))
            elif isinstance(arg, list | tuple):
                self._show(arg, shown, device)

    def _take(self, result: object) -> None:
        """Hold the fake tensors that an operator made."""
        if isinstance(result, FakeTensor):
            if result.fake_mode is self:
                device = result.fake_device
                _become(result, torch.Tensor, {})
                self._hold(result, device)
        elif isinstance(result, list | tuple):
            for part in result:
                self._take(part)

    def _hold(self, tensor: torch.Tensor, device: torch.device) -> None:
        self._held[id(tensor)] = tensor
        if device != CPU:
            self._devices[id(tensor)] = device

    def _attributes(self, device: torch.device) -> dict[str, object]:
        """The attributes of a fake tensor: its constructor, which sets some twenty one by one (13 us), runs once for a device."""
        attributes = self._prototypes.get(device)
        if attributes is None:
            with no_dispatch():
                prototype = FakeTensor(self, torch.empty((), device="meta"), device)
            attributes = self._prototypes[device] = dict(prototype.__dict__)
        return attributes

    def forget_memory(self, tensor: torch.Tensor) -> None:
        """The tensor is one over other memory now."""
        self._metas.pop(id(tensor), None)

    def made(self, meta: torch.Tensor, device: torch.device, is_plain: bool = False) -> torch.Tensor:
        """A tensor without data over the memory of ``meta``, which ``is_plain`` if it is a tensor of the meta device. On the CPU, if
        ``device`` is the meta device.
        """
        if device is not CPU and device.type == "meta":
            device = CPU
        tensor: torch.Tensor = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(tensor)
        tensor.__class__ = torch.Tensor
        self._held[id(tensor)] = tensor
        if device is not CPU and device != CPU:
            self._devices[id(tensor)] = device
        if is_plain:
            self._metas[id(tensor)] = meta
        return tensor

    def from_real(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without data for a real one, over the memory that torch itself gives to what it converts."""
        fake = self.from_tensor(tensor, static_shapes=True)
        with no_dispatch():
            device = fake.fake_device if isinstance(fake, FakeTensor) else self.device_of(fake)
            return self.made(fake, device)

    def release(self) -> None:
        """Tensors that the module keeps beyond its capture say what they are."""
        self.released += map(weakref.ref, self._held.values())
        for tensor in self._held.values():
            tensor.__class__ = Leftover
        self._held.clear()
        self._metas.clear()


def _become(tensor: torch.Tensor, kind: type, attributes: dict[str, object]) -> None:
    tensor.__class__ = kind
    own = tensor.__dict__
    own.clear()
    own.update(attributes)


_device_of, _detach, _slice = ASKS_DEVICE, torch.ops.aten.detach.default, torch.ops.aten.slice.Tensor


def fake_from_meta(
    mode: FakeMode, sizes: Sizes, dtype: torch.dtype, device: torch.device, strides: Sizes | None = None
) -> torch.Tensor:
    """A tensor without data of the given sizes (ints or SymInts); nothing is allocated."""
    with no_dispatch():
        if strides is None:
            meta = torch.empty(sizes, dtype=dtype, device="meta")
        else:
            meta = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return mode.made(meta, device, is_plain=True)


def fake_of_type(mode: FakeMode, kind: Any, base: torch.Tensor | None) -> torch.Tensor:
    """A tensor without data of the dtype, plain sizes, strides, offset and device of ``kind``: a view of ``base``, where there is one."""
    dtype, sizes, strides, offset, device = kind
    if base is not None:
        return fake_view(mode, base, sizes, strides, offset)
    with no_dispatch():
        meta = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return mode.made(meta, device, is_plain=True)


def template(sizes: Sizes, strides: Sizes, dtype: torch.dtype) -> torch.Tensor:
    """The tensor that ``fake_like`` makes tensors of these sizes from."""
    with no_dispatch():
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


def fake_like(mode: FakeMode, template: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor without data as ``fake_from_meta`` makes it. Where sizes are symbols, that asks over a hundred questions of them
    (how many bytes are these?); a copy that is made when it is written to, which is never, has memory of its own and asks none.
    """
    with no_dispatch():
        meta = torch._lazy_clone(template)
    return mode.made(meta, device, is_plain=True)


def fake_view(
    mode: FakeMode, base: torch.Tensor, sizes: Sizes, strides: Sizes, offset: int | torch.SymInt
) -> torch.Tensor:
    """A view of the memory of a tensor without data."""
    plain = mode._metas.get(id(base))
    if plain is not None:
        with no_dispatch():
            meta = torch.as_strided(plain, sizes, strides, offset)
        return mode.made(meta, mode.device_of(base), is_plain=True)
    with mode.shown(base), fake_tensor.in_kernel_invocation_manager(mode):
        meta = torch.as_strided(base, sizes, strides, offset)
    return mode.made(meta, mode.device_of(base))


def shares_converted_memory(mode: FakeTensorMode, real: torch.Tensor, fake: torch.Tensor) -> bool:
    """Return whether ``fake`` is what the mode itself makes of ``real``'s memory (as for ``parameter.data``)."""
    with no_dispatch():
        plain = real.detach()
    return storage_key(mode.from_tensor(plain, static_shapes=True)) == storage_key(fake)


def storage_key(tensor: torch.Tensor) -> int:
    """The key of a tensor's memory, equal for tensors that share it."""
    return int(tensor.untyped_storage()._cdata)
