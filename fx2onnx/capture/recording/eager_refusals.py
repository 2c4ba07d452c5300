"""Operands that eager PyTorch refuses although torch's fake kernels take them: dtypes that do not go together (a Linear in half
precision of a float input), dtypes that a kernel does not have (softmax of integers), sizes that do not fit.

The real kernel is asked. Once in a process for each overload and dtypes of operands, it runs on small tensors of these
dtypes: a refusal counts where the kernel takes tensors of the same sizes and other dtypes. Of operands with few elements, it
runs at their own sizes, too: a refusal counts where the kernel takes no other numbers in their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.recording.trial_numbers import Fill, identity, ones, rising, sizes_of_batches, zeros
from fx2onnx.capture.registry import NAMESPACES, NOT_TRIED, LinAlgError
from fx2onnx.capture.shapes.shape_env import ShapeEnv, UnmetNeed
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.caught_errors import end_by_data
from fx2onnx.torchcompat.dispatch import in_function_transform, real_kernels
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.versions import is_about_cpu, is_about_dtypes

aten = torch.ops.aten

Arguments: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]

_SMALL = 8
"""The largest size of small tensors: windows, groups and heads still fit."""

_MOST_ELEMENTS = 1 << 22
"""Operands of at most so many elements are tried at their own sizes: some ten milliseconds."""

_FEW_ELEMENTS = 1 << 14
"""Calls with at most so many elements, results included, are tried at their own sizes: some ten microseconds."""

_TELL_SIZES = frozenset({"lengths", "repeats"})
"""Tensors whose numbers have to fit the sizes of others, and are not tried."""

_DRAWS = frozenset({"train", "training", "dropout", "dropout_p", "p", "generator"})
"""Arguments of operators that may draw random numbers."""


_OF_EAGER = "is_of_eager"
"""An attribute of what real kernels raised."""


_NOT_TRIED = "is_not_tried"
"""An attribute of errors of operands on which the real kernel may not run."""


def not_tried(error: Exception) -> Exception:
    """``error``, of operands beyond which the real kernel would read, so that ``as_eager`` does not ask it."""
    vars(error)[_NOT_TRIED] = True
    return error


def is_of_eager(error: BaseException) -> bool:
    """True if a real kernel raised the error."""
    return _OF_EAGER in vars(error)


def check_dtypes(env: ShapeEnv, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Raises what eager PyTorch does, where it refuses the dtypes of the operands. Returns whether it takes them at all sizes."""
    if func._schema.name in Op.CHECKS_RANKS.names:
        error = _Trial(env, func, (args, kwargs), _SMALL).error(_as(torch.float32))
        if error is not None:
            raise error
    tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
    is_asked = func.namespace in NAMESPACES and bool(tensors) and not in_function_transform() and _can_be_asked(func)
    if is_asked and all(tensor.layout == torch.strided and not tensor.is_quantized for tensor in tensors):
        error, is_of_sizes = _refusal(env, func, (args, kwargs), tensors)
        if error is not None:
            raise error
        return not is_of_sizes
    return True


def check_sizes(
    env: ShapeEnv,
    func: OpOverload,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    result: object,
    *sizes: Sequence[object],
) -> None:
    """Raises what eager PyTorch does for operands of a few elements, where it refuses them whatever numbers they hold. ``sizes``: of
    results that are no tensors yet.
    """
    tensors = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
    if in_function_transform() or any(tensor.layout != torch.strided or tensor.is_quantized for tensor in tensors):
        return
    trial = _Trial(env, func, (args, kwargs), None)
    most = _MOST_ELEMENTS if func._schema.name in Op.COPIES.names else _FEW_ELEMENTS
    if not trial.is_known() or trial.elements((result,), *sizes) > most:
        return
    if _has_numbers_of_sizes(func, args, kwargs):
        return
    schema = func._schema.arguments
    draws = torch.Tag.nondeterministic_seeded in func.tags or any(argument.name in _DRAWS for argument in schema)
    state = torch.default_generator.get_state() if draws else None
    try:
        error = trial.refusal_of_all_numbers()
    finally:
        if state is not None:
            torch.default_generator.set_state(state)
    if error is not None:
        raise error


def as_eager(
    env: ShapeEnv, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], error: BaseException
) -> BaseException:
    """``error``, or what eager PyTorch raises for the call: its own words for a need of sizes, or where all sizes are numbers. The
    words of fake kernels name dynamic sizes.
    """
    if args and isinstance(args[0], list | tuple) and not args[0] and name_of(func) in Op.NEEDS_TENSORS.names:
        try:
            end_by_data(RuntimeError(f"{func} is given an empty list of tensors"))
        except RuntimeError as refused:
            return refused
    is_tried = func.namespace in NAMESPACES and not NOT_TRIED.search(func._schema.name)
    sizes = [*_symbolic((*args, *kwargs.values()))]
    env.failed_with = frozenset().union(*(size.symbols() for size in sizes))
    if (
        is_tried
        and _NOT_TRIED not in vars(error)
        and isinstance(error, RuntimeError | IndexError | ValueError | ZeroDivisionError)
    ):
        if not isinstance(error, UnmetNeed) and sizes:
            return error
        try:
            check_sizes(env, func, args, kwargs, ())
        except Exception as found:  # torch's operators raise whatever they like
            return found
    return error


def is_taken(env: ShapeEnv, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Return whether the real kernel is known to take the call at the hints' sizes, which takes few elements."""
    trial = _Trial(env, func, (args, kwargs), None)
    can_be = func.namespace in NAMESPACES and _can_be_asked(func) and not NOT_TRIED.search(func._schema.name)
    return can_be and trial.is_known() and trial.elements() <= _FEW_ELEMENTS and trial.refusal_of_all_numbers() is None


def _has_numbers_of_sizes(func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Return whether the call has a tensor whose values must fit the sizes of others, such as lengths or a mask as index: zeros in
    its place would say nothing."""
    is_in_a_row = False
    for place, argument in enumerate(func._schema.arguments):
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        tensors = [*tensors_in((given,))]
        if tensors and argument.name in _TELL_SIZES:
            return True
        is_in_a_row = is_in_a_row or (bool(tensors) and argument.name == "targets" and tensors[0].dim() == 1)
        if tensors and argument.name == "target_lengths" and is_in_a_row:
            return True  # the targets are as many as their lengths add up to
        is_index = argument.name == "indices" and isinstance(given, list | tuple)
        if is_index and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors):
            return True
    return False


def refusal_of_node(node: torch.fx.Node, sizes: Mapping[str, int]) -> Exception | None:
    """Return the error that eager PyTorch raises for a captured node at the example's sizes with every set of trial values, else None."""
    if not isinstance(node.target, OpOverload) or node.target.namespace not in NAMESPACES:
        return None
    env = ShapeEnv(dict(sizes))

    def plain(arg: object) -> object:
        if isinstance(arg, torch.fx.Node):
            arg = arg.meta["val"]
        if isinstance(arg, TensorInfo):
            return torch.empty([int(env.hint(size)) for size in arg.dims], dtype=arg.dtype, device="meta")
        if isinstance(arg, list | tuple):
            return [plain(item) for item in arg]
        return env.hint(unwrap(arg))

    try:
        args = tuple([plain(arg) for arg in node.args])
        trial = _Trial(env, node.target, (args, {name: plain(arg) for name, arg in node.kwargs.items()}), None)
    except (KeyError, ZeroDivisionError):  # only the data tells
        return None
    return None if trial.elements() > _MOST_ELEMENTS else trial.refusal_of_all_numbers()


def _can_be_asked(func: OpOverload) -> bool:
    """Return whether a real run tells of dtypes and changes nothing: no view, which takes all of them, no random numbers, and no kernel
    that reads beyond operands that do not fit.
    """
    returns = func._schema.returns
    is_view = bool(returns) and returns[0].alias_info is not None
    if func._schema.name == "aten::_ctc_loss_backward":
        return False
    return not is_view and not func._schema.is_mutable and torch.Tag.nondeterministic_seeded not in func.tags


def _refusal(
    env: ShapeEnv, func: OpOverload, arguments: Arguments, tensors: list[torch.Tensor]
) -> tuple[Exception | None, bool]:
    """The error of these dtypes, or None, and whether small operands are refused where these are taken."""
    is_pointwise = torch.Tag.pointwise in func.tags
    small = _Trial(env, func, arguments, 1 if is_pointwise else _SMALL)
    error = small.error()
    if error is None:
        return None, False
    is_certain = small.is_of_dtypes(error)
    dtypes = {tensor.dtype for tensor in tensors}
    is_ordinary = len(dtypes) == 1 and next(iter(dtypes)).is_floating_point
    if (is_ordinary and not is_certain) or small.elements() > _MOST_ELEMENTS:
        return error if is_certain else None, False
    whole = _Trial(env, func, arguments, None)
    own = whole.error()
    if own is not None and (is_certain or whole.is_of_dtypes(own)):
        return own if is_about_dtypes(own) else error, False
    return None, is_certain


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype


class _Trial:
    """Real runs of a call with tensors that are no larger than ``most`` along any axis; None: of their own sizes."""

    def __init__(self, env: ShapeEnv, func: OpOverload, arguments: Arguments, most: int | None) -> None:
        self.env = env
        self.func = func
        self.arguments = arguments
        self.most = most
        self.fill: Fill | None = None

    def refusal_of_all_numbers(self) -> Exception | None:
        """Return the kernel's error if it refuses these sizes and dtypes with every set of trial values, else None."""
        error = self.error()
        if error is None or isinstance(error, LinAlgError):
            return None
        kept = self._apart() if is_about_cpu(error) else _same
        for fill in (zeros, ones, identity, rising, *self._fitting_batches()):
            found = self.error(kept, fill)
            if found is None or isinstance(found, LinAlgError) or is_about_cpu(found):
                return None  # a matrix that has no inverse says nothing of others
        return error

    def _apart(self) -> Callable[[torch.dtype], torch.dtype]:
        """Wider dtypes in the place of those of half precision, so that what differs still does."""
        dtypes = {tensor.dtype for tensor in self._operands()}
        wide = [dtype for dtype in (torch.float32, torch.float64) if dtype not in dtypes]
        halves = [dtype for dtype in dtypes if dtype in (torch.float16, torch.bfloat16)]
        if len(halves) > len(wide) or not halves:
            return _in_float32
        return _by(dict(zip(halves, wide, strict=False)))

    def _fitting_batches(self) -> Iterator[Fill]:
        """Fills for calls with packed data."""
        names = [argument.name for argument in self.func._schema.arguments]
        if "batch_sizes" not in names or "data" not in names:
            return
        found = [self.arguments[0][names.index(name)] for name in ("data", "batch_sizes")]
        sizes = [
            self._size(tensor.shape[0], None) for tensor in found if isinstance(tensor, torch.Tensor) and tensor.dim()
        ]
        if len(sizes) == 2:
            yield from sizes_of_batches(*sizes)

    def error(
        self, dtype_of: Callable[[torch.dtype], torch.dtype] = _same, fill: Fill | None = None
    ) -> Exception | None:
        """The error that the kernel raises for tensors of the dtypes that ``dtype_of`` gives for those that they
        have.
        """
        self.fill = fill
        args, kwargs = self.arguments
        with real_kernels():
            try:
                self.func(
                    *[self._real(arg, dtype_of) for arg in args],
                    **{name: self._real(arg, dtype_of) for name, arg in kwargs.items()},
                )
            except Exception as error:  # torch's operators raise whatever they like
                vars(error)[_OF_EAGER] = True
                return error.with_traceback(None)
        return None

    def is_of_dtypes(self, error: Exception) -> bool:
        """Return whether the kernel takes tensors of these sizes that have other dtypes."""
        if not is_about_dtypes(error):
            return False
        if is_about_cpu(error):
            in_float32 = self.error(self._apart())
            return in_float32 is not None and not is_about_cpu(in_float32) and self.is_of_dtypes(in_float32)
        count = sum(1 for _ in self._operands())
        others = (*_OTHERS, *(_one_in_int64(place) for place in range(count)))
        return any(self.error(dtype_of) is None for dtype_of in others)

    def is_known(self) -> bool:
        """Return whether the example tells all sizes and numbers of the call."""
        args, kwargs = self.arguments
        return not any(dim.symbols() & self.env.unbacked for dim in _symbolic((*args, *kwargs.values())))

    def elements(self, more: tuple[object, ...] = (), *sizes: Sequence[object]) -> int:
        """The number of elements of all operands, of ``more``, and of tensors of ``sizes``."""
        found = 0
        tensors = (*self._operands(), *tensors_in(more))
        for shape in (*(tensor.shape for tensor in tensors), *sizes):
            count = 1
            for size in shape:
                count *= self._size(size, None)
            found += count
        return found

    def _operands(self) -> Iterator[torch.Tensor]:
        args, kwargs = self.arguments
        return tensors_in((*args, *kwargs.values()))

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
        if isinstance(arg, torch.Generator):  # the caller's, whose state a run would change
            return None
        value = unwrap(arg)
        if isinstance(value, Dim):
            return float(self.env.hint(value)) if value.is_real else self._size(value, self.most)
        return value

    def _tensor(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        sizes = [self._size(size, self.most) for size in like.shape]
        if self.fill is not None:
            return self.fill(sizes, dtype)
        if self.most == 1:  # no number is divided by 0
            return ones(sizes, dtype)
        return zeros(sizes, dtype) if self.most is None else identity(sizes, dtype)


def _as(dtype: torch.dtype) -> Callable[[torch.dtype], torch.dtype]:
    return lambda _: dtype


def _by(others: Mapping[torch.dtype, torch.dtype]) -> Callable[[torch.dtype], torch.dtype]:
    return lambda dtype: others.get(dtype, dtype)


def _in_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point or dtype.is_complex else dtype


def _one_in_int64(place: int) -> Callable[[torch.dtype], torch.dtype]:
    """The dtypes of a call's tensors in their order, with int64 for the one at ``place``."""
    places = itertools.count()
    return lambda dtype: torch.int64 if next(places) == place else dtype


_OTHERS = (_in_float32, _as(torch.float32), _as(torch.int64), _as(torch.bool), _as(torch.complex64))
"""The dtypes with which a kernel is tried that refuses those of a call."""


def tensors_in(args: tuple[object, ...]) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_in(tuple(arg))


def _numbers(args: tuple[object, ...]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from _numbers(tuple(arg))
        elif not isinstance(arg, torch.Tensor):
            yield arg


def _symbolic(args: tuple[object, ...]) -> Iterator[Dim]:
    """The sizes and numbers among ``args``, in tensors too, that are no plain numbers."""
    sizes = (size for tensor in tensors_in(args) for size in tensor.shape)
    symbolic = (
        value for value in itertools.chain(sizes, _numbers(args)) if type(value) in (torch.SymInt, torch.SymFloat)
    )
    return (value for value in map(unwrap, symbolic) if isinstance(value, Dim))
