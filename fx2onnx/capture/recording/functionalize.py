"""In-place and ``out=`` overloads as functional ones: the value is computed, then given to the tensor that is written."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.fx

from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Values, ViewStep, dims_of, tensor_info
from fx2onnx.capture.registry import Call, Kind, overloads_of, register
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

_REFUSED = {
    "set_": "it makes the tensor share other memory",
    "resize_": "it changes the tensor's size in place",
    "resize_as_": "it changes the tensor's size in place",
    "_resize_output_": "it changes the tensor's size in place",
}
_VIEWS_IN_PLACE = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.swapaxes_.default: aten.transpose.int,
    aten.swapdims_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
_RENAMED = {aten.floor_divide_.Tensor: aten.floor_divide.default, aten.random_.default: None}


def mutate(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """A write of an overload without a ``Kind.WRITE`` of its own: compute the functional overload, then give the value to
    the written tensor(s).
    """
    form = _form_of(func)
    if form is None:
        for known in (_form_of, functional_overload):
            known.cache_clear()  # the operator that lacks may be defined before the next export
        raise tracer.values.refuse(
            "E103",
            f"{func} writes into its arguments and has no functional form",
            node=str(func._schema),
            next="use the operator that returns a new tensor",
        )
    outs = form.outs
    written = [kwargs.get(name, args[index] if index < len(args) else None) for index, name in form.written]
    call_kwargs = {key: value for key, value in kwargs.items() if key not in outs} if kwargs else {}
    if form.makes_tensors:
        assert isinstance(written[0], torch.Tensor)
        call_kwargs |= {"dtype": written[0].dtype, "device": written[0].device}
    results = tracer.handle(form.target, args[: form.inputs], call_kwargs, is_placed=True)
    results = list(results) if isinstance(results, tuple | list) else [results]
    for tensor, result in zip(written[0] if isinstance(written[0], list) else written, results, strict=False):
        assert tensor is not None
        store(tracer, func, tensor, result, bool(outs))
    if not form.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


class _Form(NamedTuple):
    """The way in which a call that writes becomes one of a functional overload."""

    target: OpOverload
    written: tuple[tuple[int, str], ...]
    """The positions and names of the arguments that are written."""
    inputs: int
    """The number of arguments in front of those that are ``out``."""
    outs: frozenset[str]
    makes_tensors: bool
    """True if ``target`` needs arguments that the overload takes from its ``out``."""
    returns: bool


_OF_FACTORIES = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Keywords of a factory that stand for its ``out`` argument."""


@lru_cache(maxsize=4096)
def _makes_tensors(func: OpOverload, target: OpOverload) -> bool:
    """Return whether ``target`` needs arguments that ``func`` takes from its ``out``."""
    names, own = ({argument.name for argument in each._schema.arguments} for each in (target, func))
    return names - own >= _OF_FACTORIES


@lru_cache(maxsize=4096)
def _form_of(func: OpOverload) -> _Form | None:
    target, arguments = functional_overload(func), func._schema.arguments
    if target is None:
        return None
    is_written = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
    written = [(index, argument.name) for index, argument in enumerate(arguments) if is_written[index]]
    outs = frozenset(argument.name for argument in arguments if argument.is_out)
    inputs = len(arguments) - len(outs)
    return _Form(target, tuple(written), inputs, outs, _makes_tensors(func, target), bool(func._schema.returns))


@register(Kind.WRITE, *(overload for name in _REFUSED for overload in overloads_of(getattr(aten, name))))
def _refused(tracer: Tracer, call: Call) -> None:
    name = call.func._schema.name.split("::")[1]
    raise tracer.values.refuse(
        "E103", f"{call.func} cannot be exported", why=_REFUSED[name], next="make a new tensor instead"
    )


@register(Kind.WRITE, aten.detach_.default, aten.requires_grad_.default)
def _unchanged(tracer: Tracer, call: Call, self: torch.Tensor) -> torch.Tensor:
    return self


@register(Kind.WRITE, aten.normal_.default)
def _normal(tracer: Tracer, call: Call, self: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    with tracer.mode:
        return self.copy_(torch.randn_like(self) * std + mean)


def store(tracer: Tracer, func: OpOverload, tensor: torch.Tensor, result: torch.Tensor, is_out: bool = False) -> None:
    """Give ``tensor`` the value ``result``. One that ``is_out`` takes the sizes of the result, too."""
    if result is tensor:
        return
    is_same = dims_of(result) == dims_of(tensor)
    is_resized = is_out and not is_same and _is_alone(tracer.values, tensor)
    if not is_same and not is_resized and tuple(result.shape) != tuple(tensor.shape):  # torch compares each pair
        raise tracer.values.refuse(
            "E103",
            f"{func} would change the size of the tensor it writes to",
            why=f"the tensor is {list(tensor.shape)}, the value {list(result.shape)}",
            next="make a new tensor instead",
        )
    if result.dtype != tensor.dtype:
        if not torch.can_cast(result.dtype, tensor.dtype):
            raise tracer.values.refuse(
                "E101",
                f"{func} writes {result.dtype} into a tensor of {tensor.dtype}",
                why="eager PyTorch refuses it, too",
                next="use the operator that returns a new tensor",
            )
        with tracer.mode:
            result = result.to(tensor.dtype)
    if is_resized:  # whatever the sizes are, the tensor has those of the result
        with tracer.mode:
            tensor.data = result.clone() if tracer.values.view_of(result).steps else result
        return
    tracer.values.write(tensor, tracer.values.node_of(result))


def _is_alone(values: Values, tensor: torch.Tensor) -> bool:
    """Return whether forward made ``tensor`` and no view of it. (A factory's result has an alias, which nobody else has.)"""
    memory = values.view_of(tensor).memory
    is_made = values.fake_mode.holds(tensor) and all(source.memory is not memory for source in values.sources.values())
    shown = (view for view in values.views.values() if view.memory is memory)
    return is_made and not any(view.steps for view in shown)


@register(Kind.WRITE, aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
def _assign(
    tracer: Tracer, call: Call, self: torch.Tensor, src: torch.Tensor | None = None, value: float | torch.Tensor = 0
) -> torch.Tensor:
    """copy_, fill_, zero_: the new value does not depend on the old one."""
    source = value if src is None else src
    with tracer.mode:
        if isinstance(source, torch.Tensor):
            source = tracer.values.fake_of(source) if id(source) in tracer.values.fakes else source
            source = source.to(self.dtype) if source.dtype != self.dtype else source
            sizes = [dims_of(one) if tracer.sizes.unbacked else tuple(one.shape) for one in (source, self)]
            if sizes[0] != sizes[1]:  # of sizes from data, as expressions: whether they are equal is no decision
                source = source.expand(self.shape)
        else:
            source = torch.full_like(self, source)
    tracer.values.write(self, tracer.values.node_of(source), is_one_number=src is None)
    return self


@register(Kind.WRITE, *_VIEWS_IN_PLACE)
def _view_in_place(tracer: Tracer, call: Call, self: torch.Tensor) -> torch.Tensor:
    """``t_``, ``squeeze_``, ...: the tensor itself becomes a view of its memory."""
    func, args, kwargs = call
    view = tracer.values.view_of(self)
    before = tracer.values.node_of(self)
    func(*args, **kwargs)
    tracer.types.forget(self)
    target = _VIEWS_IN_PLACE[func]
    info = tensor_info(self)
    view.node = tracer.values.call(target, (before, *args[1:]), kwargs, info)
    view.info = info
    view.steps = (*view.steps, ViewStep(target, (before, *args[1:]), kwargs, info, None))
    return self


@lru_cache(maxsize=4096)
def functional_overload(func: OpOverload) -> OpOverload | None:
    """The overload that returns what ``func`` writes: same arguments, less the ``out`` ones."""
    if func in _RENAMED:
        return _RENAMED[func]
    namespace, name = func._schema.name.split("::")
    plain = name
    if name.startswith("__i") and name.endswith("__"):
        plain = "__" + name[3:]
    elif name.endswith("_") and not name.endswith("__"):
        plain = name[:-1]
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    if packet is None:
        return None
    wanted = [argument for argument in func._schema.arguments if not argument.is_out]
    is_out = len(wanted) < len(func._schema.arguments)
    candidates = [getattr(packet, overload) for overload in packet.overloads()]
    for same in (
        lambda argument: (argument.name, str(argument.type)),
        lambda argument: argument.name,
        lambda argument: str(argument.type),
    ):
        for candidate in candidates:
            arguments = candidate._schema.arguments
            if is_out and _makes_tensors(func, candidate):
                arguments = [argument for argument in arguments if argument.name not in _OF_FACTORIES]
            if not candidate._schema.is_mutable and list(map(same, arguments)) == list(map(same, wanted)):
                return candidate  # type: ignore[no-any-return]
    return None
