"""Fake tensors, which have a shape and no data, and their mode."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch._subclasses import fake_tensor

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, Delegate, put_name
from fx2onnx.capture.torch_private.dispatch import Named, Operands, Types, UnnotedMode, no_dispatch
from fx2onnx.capture.torch_private.operators import OpOverload

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
DataDependentOutputException = fake_tensor.DataDependentOutputException
DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException
UnsupportedOperatorException = fake_tensor.UnsupportedOperatorException
Sizes: TypeAlias = Sequence[int | torch.SymInt]


class _Traceback(Delegate):
    """``traceback`` for torch's file of fake tensors: a mode notes the stack that made it, which takes longer than the rest."""

    @staticmethod
    def extract_stack() -> traceback.StackSummary:
        return traceback.StackSummary() if THREAD.captures else traceback.extract_stack(sys._getframe(1))


_TRACEBACK = _Traceback(traceback)


class FakeMode(FakeTensorMode, UnnotedMode):  # type: ignore[no-untyped-call, misc]
    """``FakeTensorMode``, which answers at once what torch itself asks most: a tensor's device (at each index), and the
    alias of a tensor that a factory has just made.
    """

    def __init__(self) -> None:
        with Changes():
            put_name(THREAD, "captures", True)
            put_name(vars(fake_tensor), "traceback", _TRACEBACK)
            super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False  # it grows for ever, and its keys cost more than it saves

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if func is _device_of and type(args[0]) is FakeTensor and not self.in_kernel_invocation:
            return args[0].fake_device
        if func is _detach and type(args[0]) is FakeTensor and args[0].fake_mode is self:
            with torch._C._DisableTorchDispatch():
                return _fake(self, args[0], args[0].fake_device)
        return super().__torch_dispatch__(func, types, args, kwargs or {})


_device_of, _detach = torch.ops.prim.device.default, torch.ops.aten.detach.default


def fake_from_meta(
    mode: FakeTensorMode, sizes: Sizes, dtype: torch.dtype, device: torch.device, strides: Sizes | None = None
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


def fake_view(
    mode: FakeTensorMode, base: torch.Tensor, sizes: Sizes, strides: Sizes, offset: int | torch.SymInt
) -> FakeTensor:
    """A view of a fake tensor's memory."""
    plain = base.__dict__.get(_META)
    if plain is not None:
        with torch._C._DisablePythonDispatcher(), torch._C._DisableTorchDispatch():
            meta = torch.as_strided(plain, sizes, strides, offset)
        return _over(mode, meta, base.fake_device)  # type: ignore[attr-defined]
    device = base.device
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta = torch.as_strided(base, sizes, strides, offset)
    return _fake(mode, meta, device)


def shares_converted_memory(mode: FakeTensorMode, real: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether ``fake`` is what the mode itself makes of ``real``'s memory (as for ``parameter.data``)."""
    with no_dispatch():
        plain = real.detach()
    return storage_key(mode.from_tensor(plain, static_shapes=True)) == storage_key(fake)


def storage_key(tensor: torch.Tensor) -> int:
    """What tells whether two tensors share memory."""
    return int(tensor.untyped_storage()._cdata)
