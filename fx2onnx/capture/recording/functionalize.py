"""In-place, ``out=`` and state-changing overloads as functional ones, and PyTorch's own decompositions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.fx

from fx2onnx.capture.recording.aliasing import Step
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.recording.tensor_tracker import dims_of, tensor_info
from fx2onnx.capture.registry import Call, Kind, overloads_of, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.torchcompat.operators import OpOverload, decompositions

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
_RENAMED = {
    aten.floor_divide_.Tensor: aten.floor_divide.default,
    aten.random_.default: None,
}


def mutate(recorder: BaseRecorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """A write of an overload without a ``Kind.WRITE`` of its own: compute the functional overload, then give the value to
    the written tensor(s).
    """
    target = functional_overload(func)
    if target is None:
        raise recorder.refuse(
            "E103",
            f"{func} writes into its arguments and has no functional form",
            node=str(func._schema),
            next="use the operator that returns a new tensor",
        )
    arguments = _arguments_of(func)
    written = [
        kwargs.get(argument.name, args[index] if index < len(args) else None)
        for index, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    keep = sum(not argument.is_out for argument in arguments[: len(args)])
    outs = {argument.name for argument in arguments if argument.is_out}
    call_kwargs = {key: value for key, value in kwargs.items() if key not in outs}
    if _makes_tensors(func, target):
        assert isinstance(written[0], torch.Tensor)
        call_kwargs |= {"dtype": written[0].dtype, "device": written[0].device}
    results = recorder.handle(target, args[:keep], call_kwargs)
    results = list(results) if isinstance(results, tuple | list) else [results]
    for tensor, result in zip(written[0] if isinstance(written[0], list) else written, results, strict=False):
        assert tensor is not None
        _store(recorder, func, tensor, result, bool(outs))
    if not func._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


_OF_FACTORIES = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Keywords of a factory that stand for its ``out`` argument."""


@lru_cache(maxsize=4096)
def _makes_tensors(func: OpOverload, target: OpOverload) -> bool:
    """Whether ``target`` has to be told what of ``func`` its ``out`` says."""
    names, own = ({argument.name for argument in each._schema.arguments} for each in (target, func))
    return names - own >= _OF_FACTORIES


@lru_cache(maxsize=4096)
def _arguments_of(func: OpOverload) -> list[torch.Argument]:
    """The schema's arguments, which torch makes anew at each access."""
    return func._schema.arguments


@register(Kind.WRITE, *(overload for name in _REFUSED for overload in overloads_of(getattr(aten, name))))
def _refused(recorder: BaseRecorder, call: Call) -> None:
    name = call.func._schema.name.split("::")[1]
    raise recorder.refuse(
        "E103", f"{call.func} cannot be exported", why=_REFUSED[name], next="make a new tensor instead"
    )


@register(Kind.WRITE, aten.detach_.default, aten.requires_grad_.default)
def _unchanged(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> torch.Tensor:
    return self


@register(Kind.WRITE, aten.normal_.default)
def _normal(recorder: BaseRecorder, call: Call, self: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    with recorder.mode:
        return self.copy_(torch.randn_like(self) * std + mean)


def _store(
    recorder: BaseRecorder, func: OpOverload, tensor: torch.Tensor, result: torch.Tensor, is_out: bool = False
) -> None:
    """Give ``tensor`` the value ``result``. One that ``is_out`` takes the sizes of the result, too."""
    if result is tensor:
        return
    is_same = [*map(unwrap, result.shape)] == [*map(unwrap, tensor.shape)]
    is_resized = is_out and not is_same and recorder.is_alone(tensor)
    if not is_same and not is_resized and tuple(result.shape) != tuple(tensor.shape):  # torch compares each pair
        raise recorder.refuse(
            "E103",
            f"{func} would change the size of the tensor it writes to",
            why=f"the tensor is {list(tensor.shape)}, the value {list(result.shape)}",
            next="make a new tensor instead",
        )
    if result.dtype != tensor.dtype:
        if not torch.can_cast(result.dtype, tensor.dtype):
            raise recorder.refuse(
                "E101",
                f"{func} writes {result.dtype} into a tensor of {tensor.dtype}",
                why="eager PyTorch refuses it, too",
                next="use the operator that returns a new tensor",
            )
        with recorder.mode:
            result = result.to(tensor.dtype)
    if is_resized:  # whatever the sizes are, the tensor has those of the result
        with recorder.mode:
            tensor.data = result.clone() if recorder.view_of(result).steps else result
        return
    recorder.write(tensor, recorder.node_of(result))


@register(Kind.WRITE, aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
def _assign(
    recorder: BaseRecorder,
    call: Call,
    self: torch.Tensor,
    src: torch.Tensor | None = None,
    value: float | torch.Tensor = 0,
) -> torch.Tensor:
    """copy_, fill_, zero_: the new value does not depend on the old one."""
    source = value if src is None else src
    with recorder.mode:
        if isinstance(source, torch.Tensor):
            source = recorder.fake_of(source) if id(source) in recorder._fakes else source
            source = source.to(self.dtype) if source.dtype != self.dtype else source
            sizes = [dims_of(one) if recorder.shape_env.unbacked else tuple(one.shape) for one in (source, self)]
            if sizes[0] != sizes[1]:  # of sizes from data, as expressions: whether they are equal is no decision
                source = source.expand(self.shape)
        else:
            source = torch.full_like(self, source)
    recorder.write(self, recorder.node_of(source), is_one_number=src is None)
    return self


@register(Kind.WRITE, *_VIEWS_IN_PLACE)
def _view_in_place(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> torch.Tensor:
    """``t_``, ``squeeze_``, ...: the tensor itself becomes a view of its memory."""
    func, args, kwargs = call
    view = recorder.view_of(self)
    before = recorder.node_of(self)
    func(*args, **kwargs)
    recorder.meta_cache.forget(self)
    target = _VIEWS_IN_PLACE[func]
    info = tensor_info(self)
    view.node = recorder.call(target, (before, *args[1:]), kwargs, info)
    view.info = info
    view.steps = (*view.steps, Step(target, (before, *args[1:]), kwargs, info, None))
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


def decompose(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run PyTorch's own decomposition of ``func``, or return NotImplemented."""
    known = decompositions().get(func)
    return known(*args, **kwargs) if known is not None else func.decompose(*args, **kwargs)


def as_aten(recorder: BaseRecorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """A call of an overload of ``prims`` as the ATen calls that torch gives for it."""
    with recorder.mode:
        return func.impl_aten(*args, **kwargs)  # type: ignore[attr-defined]


def is_decomposable(func: OpOverload) -> bool:
    """Whether PyTorch can split ``func`` into simpler overloads."""
    return func in decompositions() or func._can_decompose()


# -- overloads that change state without saying so in their schema ---------------------------------------------------


@register(Kind.RECORD, aten.batch_norm.default, aten._native_batch_norm_legit.default)
def _batch_norm(
    recorder: BaseRecorder,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """batch_norm in training mode updates the running statistics."""
    is_one_result = call.func is aten.batch_norm.default
    if is_one_result and not (training and running_mean is not None and running_var is not None):
        return NotImplemented
    if is_one_result and 0 in dims_of(input):  # nothing is updated by nothing
        with recorder.mode:
            return input.clone()
    late = recorder.statistics if training else None
    if late is not None and not all(
        tensor is not None and late.may_wait(tensor) for tensor in (running_mean, running_var)
    ):
        late = None
    with recorder.mode:
        *results, mean, var = aten._native_batch_norm_legit_functional.default(
            input, weight, bias, running_mean, running_var, training, momentum if late is None else 1.0, eps
        )
    if training:
        for statistic, value in ((running_mean, mean), (running_var, var)):
            assert statistic is not None
            if late is None:
                _store(recorder, call.func, statistic, value)
            else:
                late.take(statistic, value, momentum)
    return results[0] if is_one_result else tuple(results)


@register(Kind.RECORD, aten.detach.default)
def _detach(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> object:
    """Below autograd, which detaches each result that it keeps, only another object for the same memory."""
    return recorder.another(self)


@register(Kind.RECORD, aten._to_copy.default)
def _to_copy(recorder: BaseRecorder, call: Call, self: object, dtype: torch.dtype | None) -> object:
    """Nested function transforms copy a plain number as if it were a tensor."""
    if isinstance(self, torch.Tensor):
        return NotImplemented
    with recorder.mode:
        return aten.scalar_tensor.default(self, dtype=dtype or torch.tensor(self).dtype)


_ELEMENTWISE = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "exp", "lerp", "log", "maximum", "minimum",
    "mul", "neg", "pow", "sqrt", "sub",
)  # fmt: skip
"""What ``_foreach_`` operators do to each element."""


@register(
    Kind.RECORD,
    *(
        overload
        for name in _ELEMENTWISE
        for overload in overloads_of(getattr(aten, f"_foreach_{name}"))
        if not overload._schema.is_mutable
    ),
)
def _foreach(recorder: BaseRecorder, call: Call) -> list[torch.Tensor]:
    """``_foreach_add(self[], other)``: the operator for each element; lists among the arguments give one element each."""
    func, args, kwargs = call
    packet = getattr(aten, func._schema.name.removeprefix("aten::_foreach_"))
    with recorder.mode:
        return [
            packet(*(arg[place] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs)
            for place in range(len(args[0]))
        ]
