"""NumPy in tensors: where forward makes NumPy arrays of dynamic sizes or of tensors, the user's files find a stand-in for ``numpy``, whose
arrays are those of ``torch._numpy``. Each holds a tensor of the run.
"""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable
from types import FunctionType, ModuleType

import numpy as np
import torch

from fx2onnx.base.code_patch import THREAD, Delegate, SharedReason, answers_for_caller, put_name
from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.python.stand_ins import ARRAYS, LENGTHS, SYMBOLIC, class_of, to_float, to_int
from fx2onnx.capture.shapes.numpy_functions import OF_UFUNCS, OTHERS, ndarray, tnp
from fx2onnx.capture.shapes.numpy_nodes import as_numpy
from fx2onnx.capture.shapes.shape_env import NOT_NUMPY
from fx2onnx.capture.shapes.size_arguments import WHOLE
from fx2onnx.capture.shapes.size_literals import tensor_of
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.late_imports import torch_arrays
from fx2onnx.torchcompat.pytrees import pytree

DType: Value = torch_arrays()[2]
_MAKES = frozenset(
    [
        "arange",
        "array",
        "asarray",
        "bartlett",
        "blackman",
        "broadcast_to",
        "diag_indices",
        "empty",
        "eye",
        "full",
        "geomspace",
        "hamming",
        "hanning",
        "identity",
        "indices",
        "interp",
        "kaiser",
        "linspace",
        "logspace",
        "ones",
        "ravel_multi_index",
        "repeat",
        "tile",
        "tri",
        "tril_indices",
        "triu_indices",
        "unravel_index",
        "zeros",
    ]
)
"""Functions that make arrays of sizes. Others take sizes as NumPy takes unknown objects."""
_UNLIKE = frozenset({"median", "percentile", "quantile"})
"""Functions whose results have another shape in ``torch._numpy``."""


def installed_arrays() -> dict[int, object]:
    """Until ``Changes`` end, torch's arrays are those of NumPy to the user's code. Returns the stand-in for ``numpy``, by its id."""
    (attributes,) = gc.get_referents(ndarray.__dict__)
    put_name(attributes, "__class__", property(lambda self: np.ndarray), SharedReason.PYTHON)
    put_name(ndarray, "__array_ufunc__", None, SharedReason.PYTHON)
    put_name(ndarray, "__torch_function__", classmethod(_with_tensors), SharedReason.PYTHON)
    put_name(DType, "__init__", _made_dtype, SharedReason.PYTHON)
    for function in (str, repr):
        put_name(DType, f"__{function.__name__}__", functools.partialmethod(_shown, function), SharedReason.PYTHON)
    for name, own in [*vars(ndarray).items()]:
        if isinstance(own, FunctionType):
            put_name(ndarray, name, _refusing(name, OTHERS.get(name.strip("_"), own)), SharedReason.PYTHON)
    put_name(ndarray, "__getattr__", _lacking, SharedReason.PYTHON)
    return {id(np): _SPACE}


_REFUSALS = (NotImplementedError, TypeError, ValueError, AttributeError, AssertionError, KeyError)
"""Errors of ``torch._numpy`` that NumPy may not raise."""


def _refused(name: str, why: str) -> UserError:
    what = f"Python needs the numbers of an array: NumPy's {name} is not computed in tensors"
    return UserError("E104", what, where=user_location(), why=why, next=NOT_NUMPY)


@answers_for_caller
def _lacking(_: Value, name: str) -> Value:
    """An attribute that torch's arrays have not."""
    if hasattr(np.ndarray, name) and not name.startswith("__"):
        raise _refused(f"ndarray.{name}", "fx2onnx has no tensor operation for it")
    raise AttributeError(name)


@answers_for_caller
def _refusing(name: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """``function`` with NumPy's default dtype, whose own errors are refusals: forward may catch others, and go where NumPy does not."""

    of_two = vars(operator).get(name)

    @functools.wraps(function)
    def called(*args: Value, **kwargs: Value) -> Value:
        if of_two is not None and len(args) == 2 and isinstance(args[1], torch.Tensor) and _is_number(args[0]):
            return of_two(_beside(args[1], args[0]), args[1])
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return function(*args, **kwargs)
        except _REFUSALS as error:
            if type(error) not in _REFUSALS:
                raise
            raise _refused(name, f"{type(error).__name__}: {error}") from error
        finally:
            torch.set_default_dtype(before)

    return called


def array_of(tensor: torch.Tensor) -> Value:
    """``tensor.numpy()``."""
    return ndarray(tensor)


_OPERATORS = {
    "div": "truediv",
    "remainder": "mod",
    "floor_divide": "floordiv",
    "__floordiv__": "floordiv",
    "__rsub__": "rsub",
    "__rdiv__": "rtruediv",
}
"""Names of torch's functions of operators, and those of Python's."""


_TAKE_SIZES = frozenset({
    "arange", "chunk", "empty", "expand", "flatten", "full", "linspace", "movedim", "narrow", "new_empty",
    "new_full", "new_ones", "new_zeros", "ones", "pad", "permute", "rand", "randint", "randn", "repeat", "reshape",
    "roll", "select", "split", "sum", "tensor_split", "tile", "topk", "transpose", "unflatten", "unfold",
    "unsqueeze", "view", "zeros",
})  # fmt: skip
"""Names of torch's functions that take sizes, which are numbers of Python."""


def _size(leaf: Value) -> Value:
    """An integer of NumPy as a number of Python."""
    return leaf.tensor.item() if _is_number(leaf) and not leaf.tensor.is_floating_point() else leaf


@answers_for_caller
def _with_tensors(_: type, function: Callable[..., Value], __: Value, args: Value = (), kwargs: Value = None) -> Value:
    """A function of torch that is given arrays. Operators between tensors and arrays are NumPy's."""
    name = f"__{_OPERATORS.get(function.__name__, function.__name__)}__"
    beside = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    if function.__name__ in _TAKE_SIZES:
        args, kwargs = pytree.tree_map(_size, (args, kwargs))
    elif beside is not None:
        args = tuple(_beside(beside, arg) if _is_number(arg) else arg for arg in args)
    if len(args) == 2 and isinstance(args[0], torch.Tensor) and type(args[1]) is ndarray and hasattr(ndarray, name):
        return _tensor(getattr(ndarray(args[0]), name)(args[1]))
    return function(*pytree.tree_map(_tensor, args), **pytree.tree_map(_tensor, kwargs or {}))


def _is_number(value: Value) -> bool:
    """Return True for what NumPy has as a number: an element, a sum. An array without axes is made as one."""
    return type(value) is ndarray and not value.tensor.dim() and "is_made" not in vars(value)


def _beside(tensor: torch.Tensor, number: Value) -> torch.Tensor:
    """A number of NumPy as an operand of a tensor, which takes it as one of Python's."""
    own: torch.Tensor = number.tensor
    if own.dtype == torch.bool:
        raise _refused("bool", "a tensor's operand is one")
    if tensor.is_floating_point() or tensor.is_complex():
        is_half = tensor.dtype in (torch.float16, torch.bfloat16) and tensor.dim()
        return own if is_half else own.to(tensor.dtype)
    if own.is_floating_point():
        return own.to(torch.get_default_dtype())
    return own if tensor.dtype == torch.bool else own.to(tensor.dtype)


def _tensor(leaf: Value) -> Value:
    return leaf.tensor if type(leaf) is ndarray else leaf


@answers_for_caller
def _made_dtype(self: Value, arg: Value) -> None:
    """``DType(arg)``, of NumPy's own dtypes, too."""
    if isinstance(arg, np.dtype | _Kind) or (isinstance(arg, type) and issubclass(arg, np.generic)):
        own: Value = getattr(arg, "original", arg)
        arg = np.dtype(own).name.removesuffix("_")
    _OWN_DTYPE(self, arg)


_OWN_DTYPE = DType.__init__


@answers_for_caller
class _Kind(Delegate):
    """The stand-in for a class of NumPy's numbers, such as ``np.int64``."""

    @property
    def dtype(self) -> object:
        return np.dtype(self.original)

    def __call__(self, *args: Value) -> Value:
        value = args[0] if len(args) == 1 else None
        if type(value) in SYMBOLIC:
            found = (to_int if issubclass(self.original, np.integer) else to_float)(value)
            typed = as_numpy(found, self.original)
            return typed if typed is not found else ndarray(tensor_of(found)).astype(self.original)
        if type(value) is ndarray or isinstance(value, torch.Tensor):
            return tnp.asarray(value).astype(self.original)
        return self.original(*args)

    def __instancecheck__(self, value: object) -> bool:
        return issubclass(class_of(value), self.original)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self.original)

    def __eq__(self, other: object) -> bool:
        return bool(self.original == getattr(other, "original", other))

    def __hash__(self) -> int:
        return hash(self.original)


@answers_for_caller
class _Space(Delegate):
    """The stand-in for a module or a function of NumPy: ``instead`` is what torch has for it."""

    def __init__(self, original: Value, instead: Value) -> None:
        super().__init__(original)
        self.instead = instead

    def __getattr__(self, name: str) -> Value:
        own, instead = getattr(self.original, name), OTHERS.get(name, getattr(self.instead, name, None))
        if isinstance(self.original, np.ufunc) and name in OF_UFUNCS and self.instead is not None:
            instead = functools.partial(OF_UFUNCS[name], self.original.__name__, self.instead)
        if isinstance(own, type):
            return _Kind(own) if issubclass(own, np.integer | np.floating) else own
        return _Space(own, instead) if callable(own) or isinstance(own, ModuleType) or name in OTHERS else own

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        args, kwargs = pytree.tree_map(_own, (args, kwargs))
        leaves = pytree.tree_leaves((args, kwargs)) if THREAD.captures else []
        has_array = any(
            type(leaf) is ndarray or type(leaf) in LENGTHS or isinstance(leaf, torch.Tensor) for leaf in leaves
        )
        if not has_array and not (self.original.__name__ in _MAKES and any(type(leaf) in SYMBOLIC for leaf in leaves)):
            return self.original(*args, **kwargs)
        name = self.original.__name__
        has_tensor = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        is_of_elements = isinstance(self.original, np.ufunc)
        is_tensors = has_tensor and not is_of_elements and hasattr(torch.Tensor, name)
        if self.instead is None or is_tensors or name in _UNLIKE:
            raise _refused(self.original.__name__, "fx2onnx has no tensor operation for it")
        args, kwargs = pytree.tree_map(_array, (args, kwargs))
        found = _refusing(name, self.instead)(*args, **kwargs)
        if name in _MAKES and type(found) is ndarray and not found.tensor.dim():
            found.is_made = True
        return pytree.tree_map(_tensor, found) if has_tensor and is_of_elements else found

    def __getitem__(self, slices: Value) -> Value:
        return self.instead(slices) if THREAD.captures else self.original[slices]


def _array(leaf: Value) -> Value:
    """The list of a dynamic length as an array."""
    return ndarray(leaf.some(is_typed=True)) if type(leaf) in LENGTHS else leaf


def _own(leaf: Value) -> Value:
    """NumPy's own class or dtype."""
    return (
        leaf.original if type(leaf) is _Kind else np.dtype(leaf.name.removesuffix("_")) if type(leaf) is DType else leaf
    )


@answers_for_caller
def _shown(dtype: Value, function: Callable[[object], str]) -> str:
    return function(_own(dtype))


_SPACE = _Space(np, tnp)
WHOLE[ndarray] = _tensor
ARRAYS.add(ndarray)
