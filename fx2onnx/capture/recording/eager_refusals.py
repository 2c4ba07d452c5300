"""Operands that eager PyTorch refuses although torch's fake kernels take them: dtypes that do not go together (a Linear in half
precision of a float input), dtypes that a kernel does not have (softmax of integers), sizes that do not fit.

The real kernel is asked, once in a process for each overload and dtypes of operands: it runs on small tensors of these
dtypes. A refusal counts where the kernel takes tensors of the same sizes and other dtypes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch

from fx2onnx.base.bounded import Bounded
from fx2onnx.base.dims import Dim
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.capture.torch_private.dispatch import in_function_transform, real_kernels
from fx2onnx.capture.torch_private.operators import OpOverload

aten = torch.ops.aten

Arguments: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]

_TAKEN: Bounded[tuple[object, ...], None] = Bounded(20_000)
"""Calls that eager PyTorch takes, or of which small tensors say nothing."""

_NAMESPACES = frozenset({"aten", "torchvision"})
"""Of operators whose real kernels may be run: those of others may do anything."""

_CHECKS_RANKS = frozenset([aten.addmm.default, aten.addmv.default])
_CHECKS_SIZES = frozenset([aten.diagonal_scatter.default, aten.select_scatter.default, aten.slice_scatter.default])
"""Overloads whose real kernels check ranks, or sizes, that their fake kernels do not."""

_SMALL = 8
"""The largest size of small tensors: windows, groups and heads still fit."""

_MOST_ELEMENTS = 1 << 22
"""Operands of at most so many elements are tried at their own sizes: some ten milliseconds."""

_IS_OF_DTYPES = re.compile(
    r"dtype|type|not implemented for '|floating|integral|integer|\b(bool|boolean|float|half|double|long|complex)\b",
    re.I,
)
"""What kernels say of dtypes, rather than of sizes or numbers."""

_IS_OF_CPU = re.compile(
    r"not implemented for '(Half|BFloat16|ComplexHalf|Float8|Float4|UInt16|UInt32|UInt64|Bits)|MKL FFT|Could not run"
    r"|half.*(CPU|GPU)|deterministic",
    re.I,
)
"""Refusals that say nothing of other devices."""


def check_operands(env: ShapeEnv, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raises what eager PyTorch does, where it refuses the operands."""
    if func in _CHECKS_SIZES:
        _check_sizes(env, func, (args, kwargs), None)
    key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else ())
    if key in _TAKEN:
        return
    if func in _CHECKS_RANKS:
        _check_sizes(env, func, (args, kwargs), _SMALL)
    tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    is_asked = func.namespace in _NAMESPACES and bool(tensors) and not in_function_transform() and _can_be_asked(func)
    if is_asked and all(tensor.layout == torch.strided and not tensor.is_quantized for tensor in tensors):
        error = _refusal(env, func, (args, kwargs), tensors)
        if error is not None:
            raise error
    _TAKEN[key] = None


def _check_sizes(env: ShapeEnv, func: OpOverload, arguments: Arguments, most: int | None) -> None:
    """Raises what eager PyTorch does for float32 tensors of the example's sizes, or of at most ``most`` along any axis. Nothing
    is tried where only the data tells a size.
    """
    trial = _Trial(env, func, arguments, most)
    is_tried = most is not None or (trial.is_known() and trial.elements() <= _MOST_ELEMENTS)
    error = trial.error(_as(torch.float32)) if is_tried else None
    if error is not None:
        raise error


def _can_be_asked(func: OpOverload) -> bool:
    """Whether a real run tells of dtypes and changes nothing: no view, which takes all of them, and no random numbers."""
    returns = func._schema.returns
    is_view = bool(returns) and returns[0].alias_info is not None
    return not is_view and not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags


def _refusal(env: ShapeEnv, func: OpOverload, arguments: Arguments, tensors: list[torch.Tensor]) -> Exception | None:
    is_pointwise = torch.Tag.pointwise in func.tags
    small = _Trial(env, func, arguments, 1 if is_pointwise else _SMALL)
    error = small.error()
    if error is None:
        return None
    is_certain = small.is_of_dtypes(error)
    dtypes = {tensor.dtype for tensor in tensors}
    is_ordinary = len(dtypes) == 1 and next(iter(dtypes)).is_floating_point
    if (is_ordinary and not is_certain) or small.elements() > _MOST_ELEMENTS:
        return error if is_certain else None
    whole = _Trial(env, func, arguments, None)
    own = whole.error()
    if own is not None and (is_certain or whole.is_of_dtypes(own)):
        return own if _IS_OF_DTYPES.search(str(own)) else error
    return None


class _Trial:
    """Real runs of a call with tensors that are no larger than ``most`` along any axis; None: of their own sizes."""

    def __init__(self, env: ShapeEnv, func: OpOverload, arguments: Arguments, most: int | None) -> None:
        self.env = env
        self.func = func
        self.arguments = arguments
        self.most = most

    def error(self, dtype_of: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype) -> Exception | None:
        """What the kernel raises for tensors of dtypes that ``dtype_of`` gives for those that they have."""
        args, kwargs = self.arguments
        with real_kernels():
            try:
                self.func(
                    *[self._real(arg, dtype_of) for arg in args],
                    **{name: self._real(arg, dtype_of) for name, arg in kwargs.items()},
                )
            except Exception as error:  # torch's operators raise whatever they like
                return error.with_traceback(None)
        return None

    def is_of_dtypes(self, error: Exception) -> bool:
        """Whether the kernel takes tensors of these sizes that have other dtypes."""
        if not _IS_OF_DTYPES.search(str(error)):
            return False
        if _IS_OF_CPU.search(str(error)):
            in_float32 = self.error(_in_float32)
            return in_float32 is not None and not _IS_OF_CPU.search(str(in_float32)) and self.is_of_dtypes(in_float32)
        return any(self.error(dtype_of) is None for dtype_of in _OTHERS)

    def is_known(self) -> bool:
        """Whether the example tells all sizes and numbers of the call."""
        args, kwargs = self.arguments
        given = (*args, *kwargs.values())
        sizes = [size for tensor in _tensors(given) for size in tensor.shape]
        numbers = [arg for arg in given if not isinstance(arg, torch.Tensor | list | tuple)]
        values = map(unwrap, [*sizes, *numbers])
        return not any(isinstance(value, Dim) and value.symbols() & self.env.unbacked for value in values)

    def elements(self) -> int:
        args, kwargs = self.arguments
        found = 0
        for tensor in (*_tensors(args), *_tensors(tuple(kwargs.values()))):
            count = 1
            for size in tensor.shape:
                count *= self._size(size, None)
            found += count
        return found

    def _size(self, size: object, most: int | None) -> int:
        value = unwrap(size)
        try:
            number = int(self.env.hint(value))
        except (KeyError, ZeroDivisionError):  # only the data tells
            number = 2
        return number if most is None else min(number, most)

    def _real(self, arg: object, dtype_of: Callable[[torch.dtype], torch.dtype]) -> object:
        if isinstance(arg, torch.Tensor):
            return self._tensor(arg, dtype_of(arg.dtype))
        if isinstance(arg, list | tuple):
            return [self._real(item, dtype_of) for item in arg]
        if isinstance(arg, torch.device):
            return torch.device("cpu")
        value = unwrap(arg)
        if isinstance(value, Dim):
            return float(self.env.hint(value)) if value.is_real else self._size(value, self.most)
        return value

    def _tensor(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        sizes = [self._size(size, self.most) for size in like.shape]
        if self.most == 1:  # no number is divided by 0
            return aten.ones.default(sizes, dtype=dtype, device="cpu")  # type: ignore[no-any-return]
        made: torch.Tensor = aten.zeros.default(sizes, dtype=dtype, device="cpu")
        if self.most is not None and len(sizes) > 1 and dtype.is_floating_point:  # a matrix that has an inverse
            aten.fill_.Scalar(aten.diagonal.default(made, 0, -2, -1), 1)
        return made


def _as(dtype: torch.dtype) -> Callable[[torch.dtype], torch.dtype]:
    return lambda _: dtype


def _in_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point or dtype.is_complex else dtype


_OTHERS = (_in_float32, _as(torch.float32), _as(torch.int64), _as(torch.bool), _as(torch.complex64))
"""The dtypes with which a kernel is tried that refuses those of a call."""


def _tensors(args: tuple[object, ...]) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _tensors(tuple(arg))


def _key(arg: object) -> object:
    """What decides whether eager PyTorch refuses dtypes: those of tensors, their ranks, and kinds of numbers."""
    if isinstance(arg, torch.Tensor):
        return (arg.dtype, arg.dim())
    if isinstance(arg, list | tuple):
        return tuple([_key(item) for item in arg])
    if arg is None or isinstance(arg, bool | str | torch.dtype):
        return arg
    return type(arg)
