"""In-place, ``out=`` and state-changing overloads as functional ones, and PyTorch's own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from fx2onnx.capture.recording.aliasing import Step
from fx2onnx.capture.recording.tensor_tracker import tensor_info
from fx2onnx.capture.torch_private import decompositions

if TYPE_CHECKING:
    from fx2onnx.capture.recording.recorder import Recorder

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

QUERIES = frozenset(
    {
        aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default,
        aten.is_contiguous.default, aten.is_contiguous.memory_format, aten.is_strides_like_format.default,
        aten.is_non_overlapping_and_dense.default, aten.size.default, aten.stride.default, aten.dim.default,
        aten._has_compatible_shallow_copy_type.default, aten.is_complex.default, aten.is_floating_point.default,
        aten.is_same_size.default, aten.result_type.Tensor, aten.can_cast.default, aten._has_same_storage_numel.default,
    }
)  # fmt: skip
"""Overloads that ask about a tensor's type, not its values."""

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
    aten.as_strided_.default: aten.as_strided.default,
}
_RENAMED = {
    aten.floor_divide_.Tensor: aten.floor_divide.default,
    aten.detach_.default: None,
    aten.random_.default: None,
}
_NOTHING = frozenset({aten.detach_.default, aten.requires_grad_.default})


def mutate(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A write: compute the functional overload, then give the value to the written tensor(s)."""
    name = func._schema.name.split("::")[1]
    if name in _REFUSED:
        raise recorder.refuse(
            "E103", f"{func} cannot be exported", why=_REFUSED[name], next="make a new tensor instead"
        )
    if func in _NOTHING:
        return args[0]
    if func in _VIEWS_IN_PLACE:
        return _view_in_place(recorder, func, args, kwargs)
    if func in _BY_OTHERS:
        return _BY_OTHERS[func](recorder, *args, **kwargs)
    if func in (aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default):
        return _assign(recorder, func, args, kwargs)
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
    results = recorder.handle(target, args[:keep], call_kwargs)
    results = list(results) if isinstance(results, tuple | list) else [results]
    for tensor, result in zip(written[0] if isinstance(written[0], list) else written, results, strict=False):
        assert tensor is not None
        _store(recorder, func, tensor, result)
    if not func._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


@lru_cache(maxsize=4096)
def _arguments_of(func: OpOverload) -> Any:
    """The schema's arguments, which torch makes anew at each look."""
    return func._schema.arguments


def _fill_diagonal(recorder: Recorder, tensor: torch.Tensor, value: Any, wrap: bool = False) -> torch.Tensor:
    """The diagonal of a matrix is a view; those of tall wrapped and of higher ones are left to the refusal."""
    if tensor.dim() != 2 or wrap:
        raise recorder.refuse(
            "E103", "fill_diagonal_ of this tensor is not known", next="torch.where with a mask of the diagonal"
        )
    with recorder.mode:
        tensor.diagonal().fill_(value)
    return tensor


def _normal(
    recorder: Recorder, tensor: torch.Tensor, mean: float = 0, std: float = 1, generator: Any = None
) -> torch.Tensor:
    with recorder.mode:
        return tensor.copy_(torch.randn_like(tensor) * std + mean)


_BY_OTHERS: dict[OpOverload, Callable[..., torch.Tensor]] = {
    aten.fill_diagonal_.default: _fill_diagonal,
    aten.normal_.default: _normal,
}
"""In-place overloads without a functional form, in terms of others."""


def _store(recorder: Recorder, func: OpOverload, tensor: torch.Tensor, result: torch.Tensor) -> None:
    if result is tensor:
        return
    if tuple(result.shape) != tuple(tensor.shape):
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
    recorder.write(tensor, recorder.node_of(result))


def _assign(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """``copy_``, ``fill_``, ``zero_``: the new value does not depend on the old one."""
    target: torch.Tensor = args[0]
    source = 0 if func is aten.zero_.default else args[1]
    with recorder.mode:
        if isinstance(source, torch.Tensor):
            source = recorder.to_fake(source) if id(source) in recorder._fakes else source
            value = source.to(target.dtype) if source.dtype != target.dtype else source
            if tuple(value.shape) != tuple(target.shape):
                value = value.expand(target.shape)
        else:
            value = torch.full_like(target, source)
    recorder.write(target, recorder.node_of(value), is_one_number=func is not aten.copy_.default)
    return target


def _view_in_place(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """``t_``, ``squeeze_``, ...: the tensor itself becomes a view of its memory."""
    tensor: torch.Tensor = args[0]
    view = recorder.view_of(tensor)
    before = recorder.node_of(tensor)
    func(*args, **kwargs)
    recorder.replay.forget(tensor)
    target = _VIEWS_IN_PLACE[func]
    info = tensor_info(tensor)
    view.node = recorder.call(target, (before, *args[1:]), kwargs, info)
    view.info = info
    view.steps = (*view.steps, Step(target, (before, *args[1:]), kwargs, info, None))
    return tensor


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
    outs = {argument.name for argument in func._schema.arguments if argument.is_out}
    wanted = [argument for argument in func._schema.arguments if argument.name not in outs]
    candidates = [getattr(packet, overload) for overload in packet.overloads()]
    for same in (
        lambda argument: (argument.name, str(argument.type)),
        lambda argument: argument.name,
        lambda argument: str(argument.type),
    ):
        for candidate in candidates:
            if not candidate._schema.is_mutable and list(map(same, candidate._schema.arguments)) == list(
                map(same, wanted)
            ):
                return candidate  # type: ignore[no-any-return]
    return None


def decompose(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run PyTorch's own decomposition of ``func``, or return NotImplemented."""
    known = decompositions().get(func)
    return known(*args, **kwargs) if known is not None else func.decompose(*args, **kwargs)


def is_decomposable(func: OpOverload) -> bool:
    """Whether PyTorch can split ``func`` into simpler overloads."""
    return func in decompositions() or func._can_decompose()


# -- overloads that change state without saying so in their schema ---------------------------------------------------


def _batch_norm(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """batch_norm in training mode updates the running statistics."""
    names = [argument.name for argument in _arguments_of(func)]
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given["training"] or given.get("running_mean") is None:
        return NotImplemented
    with recorder.mode:
        result, _, _, mean, var = aten._native_batch_norm_legit_functional.default(
            given["input"], given["weight"], given["bias"], given["running_mean"], given["running_var"], True,
            given["momentum"], given["eps"],
        )  # fmt: skip
    _store(recorder, func, given["running_mean"], mean)
    _store(recorder, func, given["running_var"], var)
    return result


def _batch_norm_legit(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_native_batch_norm_legit(input, weight, bias, running_mean, running_var, training, momentum, eps)."""
    with recorder.mode:
        *results, mean, var = aten._native_batch_norm_legit_functional.default(*args, **kwargs)
    if args[5]:
        _store(recorder, func, args[3], mean)
        _store(recorder, func, args[4], var)
    return tuple(results)


def _to_copy(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Nested function transforms copy a plain number as if it were a tensor."""
    if isinstance(args[0], torch.Tensor):
        return NotImplemented
    dtype = kwargs.get("dtype") or torch.tensor(args[0]).dtype
    with recorder.mode:
        return aten.scalar_tensor.default(args[0], dtype=dtype)


def max_pool1d(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own kernel asks for plain sizes; a contiguous argument is typed by formula instead."""
    if not recorder.shape_env.hints or args[0].is_contiguous():
        return NotImplemented
    with recorder.mode:
        source = args[0].contiguous()
        return func(source, *args[1:], **kwargs)


def _foreach(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``_foreach_add(self[], other)``: the operator for each element; lists among the arguments give one element each."""
    packet = getattr(aten, func._schema.name.removeprefix("aten::_foreach_"))
    with recorder.mode:
        return [
            packet(*(arg[place] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs)
            for place in range(len(args[0]))
        ]


_ELEMENTWISE = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "exp", "lerp", "log", "maximum", "minimum",
    "mul", "neg", "pow", "sqrt", "sub",
)  # fmt: skip
"""What ``_foreach_`` operators do to each element."""

SPECIAL: dict[OpOverload, Callable[[Recorder, OpOverload, tuple[Any, ...], dict[str, Any]], Any]] = {
    aten.batch_norm.default: _batch_norm,
    aten._to_copy.default: _to_copy,
    aten._native_batch_norm_legit.default: _batch_norm_legit,
    **{
        getattr(packet, overload): _foreach
        for packet in (getattr(aten, f"_foreach_{name}") for name in _ELEMENTWISE)
        for overload in packet.overloads()
        if not getattr(packet, overload)._schema.is_mutable
    },
}
