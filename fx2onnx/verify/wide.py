"""A module in float64 without a copy of it: operators get their operands as doubles, and their results stay doubles.

Weights are widened where an operator reads them and dropped behind it, so that no more than one of them is there twice.
Python sees the dtypes that it sees without: the module takes the same branches, ``torch.finfo(x.dtype).min`` is the number
that the file has, and a cast to float32 in its middle does not round.

Operators whose errors are those of operands that are off by rounding (systems of equations, factorizations, special functions, sums of
large terms) stand here, too: what they give may be off by as much as it moves where an operand moves by its last place.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fx2onnx.base.changes import Changes
from fx2onnx.judge.memory import LARGE_BYTES
from fx2onnx.torchcompat.capture_modes import install_assignment_hook, set_data
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.torchcompat.reference import Widened, narrowed

aten = torch.ops.aten

WIDE: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_AS_COMPLEX = {torch.float16: torch.complex32, torch.bfloat16: torch.complex64, torch.float32: torch.complex64}
_AS_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_TAKES = frozenset([aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default])
"""Operators that pick numbers of a weight: these alone are widened."""
_MATRIX = {aten.mm.default: 1, aten.addmm.default: 2}
"""Operators by whose columns the result can be computed piece by piece, and the place of that operand."""
_PIECE_BYTES = 16 << 20
"""The bytes of a large matrix that are widened at once."""
_NO_KERNEL = (RuntimeError, NotImplementedError, AssertionError, TypeError)
"""The exceptions of operators that do not take doubles."""


class InFloat64(EagerMode):
    """Operators inside compute in float64; those that cannot, in the dtype that they have without."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        given, rebuild = pytree.tree_flatten((args, kwargs or {}))
        has_wide = any(isinstance(value, Widened) for value in given)
        if not has_wide and (func.is_view or func in _TAKES):
            return func(*args, **kwargs)
        if _writes_plain(func, args, kwargs or {}) or func is aten.view.dtype:
            narrow_args, narrow_kwargs = pytree.tree_unflatten([_narrow(value) for value in given], rebuild)
            return func(*narrow_args, **narrow_kwargs)
        try:
            if _is_large_matrix(func, args):
                result = _by_columns(func, args, kwargs or {})
            else:
                wide_args, wide_kwargs = pytree.tree_unflatten([_widen(value) for value in given], rebuild)
                result = func(*wide_args, **wide_kwargs)
        except _NO_KERNEL:
            if _writes(func):
                raise
            narrow_args, narrow_kwargs = pytree.tree_unflatten([_narrow(value) for value in given], rebuild)
            result = func(*narrow_args, **narrow_kwargs)
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():
                func(*args, **kwargs)  # the claimed sizes follow those of the doubles
        known = {id(value.wide): value for value in given if isinstance(value, Widened)}
        dtype = _claimed(given)
        return pytree.tree_map(lambda value: _wrap(value, dtype, known), result)


def _is_large_matrix(func: Any, args: Sequence[Any]) -> bool:
    matrix = args[_MATRIX[func]] if func in _MATRIX else None
    return isinstance(matrix, torch.Tensor) and not isinstance(matrix, Widened) and matrix.nbytes > LARGE_BYTES


def _by_columns(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """A product with a large weight, of which no more than some columns are there as doubles at once."""
    place, matrix = _MATRIX[func], args[_MATRIX[func]]
    wide: list[Any] = [None if at == place else _widen(value) for at, value in enumerate(args)]
    parts = []
    step = max(_PIECE_BYTES // matrix[:, :1].nbytes, 1)
    for start in range(0, matrix.shape[1], step):
        columns = slice(start, start + step)
        own = list(wide)
        own[place] = _widen(matrix[:, columns])
        if place == 2 and own[0].dim() and own[0].shape[-1] > 1:  # what addmm adds
            own[0] = own[0][..., columns]
        parts.append(func(*own, **kwargs))
    return torch.cat(parts, -1)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a module in ``InFloat64`` takes it."""
    wide = WIDE.get(tensor.dtype)
    return tensor if wide is None else Widened(tensor.to(wide), tensor.dtype)


@contextlib.contextmanager
def assignable() -> Iterator[None]:
    """A block in which ``x.data = y`` gives a tensor of the module ``y`` in its own dtype: it has no place for a wide one, without which
    torch reads memory that is none.
    """
    with Changes():
        install_assignment_hook(_assign, lambda *_: None)
        yield


def _assign(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    if isinstance(tensor, Widened):
        with no_dispatch():
            value = value if isinstance(value, Widened) else widened(value)
        tensor.wide = _widen(value)
    set_data(tensor, value if isinstance(tensor, Widened) else narrowed(value))
    return False


def _widen(value: Any) -> Any:
    if isinstance(value, Widened):
        return value.wide
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.to(WIDE[value.dtype])
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _narrow(value: Any) -> Any:
    return value.wide.to(value.dtype) if isinstance(value, Widened) else value


def _wrap(value: Any, dtype: torch.dtype | None, known: dict[int, Widened]) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, Widened):
        return value
    if id(value) in known:  # written in place
        return known[id(value)]
    if value._is_zerotensor():  # has no memory, which only torch's own class of tensors knows
        value = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    if value.dtype in WIDE:
        return Widened(value.to(WIDE[value.dtype]), value.dtype)
    if dtype is None:  # integers
        return value
    claims = dtype
    if value.dtype == torch.complex128:
        claims = _AS_COMPLEX.get(claims, claims)
    elif value.dtype == torch.float64:
        claims = _AS_REAL.get(claims, claims)
    return Widened(value, claims) if WIDE.get(claims) == value.dtype else value


def _claimed(given: Sequence[Any]) -> torch.dtype | None:
    """The dtype that the result has without: the one asked for, or what those of the operands promote to."""
    asked = [value for value in given if isinstance(value, torch.dtype)]
    if asked:
        return asked[0]
    floats = [value for value in given if isinstance(value, torch.Tensor) and value.dtype.is_floating_point]
    floats += [value for value in given if isinstance(value, torch.Tensor) and value.dtype.is_complex]
    dtypes = [value.dtype for value in floats if value.dim()] or [value.dtype for value in floats]
    return functools.reduce(torch.promote_types, dtypes) if dtypes else None


@functools.cache
def written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of the arguments that the operator writes into."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _writes(func: Any) -> bool:
    return bool(written_arguments(func))


def _writes_plain(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether it writes into a tensor of the module, which stays in its dtype."""
    targets = [args[place] if place < len(args) else kwargs.get(name) for place, name in written_arguments(func)]
    leaves = pytree.tree_leaves(targets)
    return any(
        isinstance(leaf, torch.Tensor) and not isinstance(leaf, Widened) and leaf.dtype in WIDE for leaf in leaves
    )


def _multiplied(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """The magnitude of the numbers that the operator multiplies by a share between 0 and 1, which is off by units of
    1."""
    value = args[0]
    if func._schema.name.endswith("::glu"):
        value = value.chunk(2, axis_of(func, args, kwargs))[0]
    return torch.nan_to_num(value.abs().float(), 0.0, 0.0, 0.0)


def _summed(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The size of a sum or a mean of terms as large of either sign, though these may add up to nothing."""
    value = args[0]
    if not value.is_floating_point() or not value.numel():
        return None
    squares = torch.nan_to_num(func(value.double() ** 2, *args[1:], **{**kwargs, "dtype": None}), 0.0, 0.0, 0.0)
    terms = value.numel() / max(squares.numel(), 1) if func._schema.name.endswith("::mean") else 1.0
    return (squares / terms).sqrt().float()


def _products(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The size of a sum of products as large of either sign: a product of squares. A row of one number says nothing of it."""
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if not all(each.is_floating_point() and each.numel() for each in tensors):
        return None
    squared_args = pytree.tree_map_only(torch.Tensor, lambda each: each.float().square(), tuple(args))
    factors = {key: value**2 if isinstance(value, (int, float)) else value for key, value in kwargs.items()}
    squares: torch.Tensor = func(*squared_args, **factors)
    return torch.nan_to_num(squares, 0.0, 0.0, 0.0).sqrt_()


TERMS = {
    **dict.fromkeys(("gelu", "gelu_", "silu", "silu_", "hardswish", "hardswish_", "glu"), _multiplied),
    **dict.fromkeys(("sum", "mean"), _summed),
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "_convolution", "_trilinear"),
        _products,
    ),
}
"""Operators whose results may be off by units of what they are made of, by how large that is."""


def axis_of(func: Any, args: Any, kwargs: Any) -> int:
    names = [argument.name for argument in func._schema.arguments]
    if "dim" in kwargs:
        return int(kwargs["dim"])
    place = names.index("dim") if "dim" in names else -1
    return int(args[place]) if 0 <= place < len(args) else -1


SINGULAR_SHARE = 8.0
"""A matrix is singular where its least singular value is so many units in the last place of the largest, or less, for each of its
rows."""
_SYSTEMS = frozenset(
    [
        "_linalg_solve_ex", "linalg_inv_ex", "_linalg_det", "_linalg_slogdet", "linalg_lu", "linalg_lu_factor_ex",
        "linalg_lu_solve", "linalg_lstsq", "_linalg_svd", "linalg_pinv", "linalg_qr", "linalg_cholesky_ex", "cholesky",
        "cholesky_solve", "cholesky_inverse", "linalg_ldl_factor_ex", "linalg_solve_triangular", "triangular_solve",
        "linalg_eig", "_linalg_eigh", "geqrf",
    ]
)  # fmt: skip
"""Operators of matrices that may be singular."""
_ALSO = (
    "cholesky", "triangular_solve", "geqrf", "ormqr", "polygamma", "igamma", "igammac", "i0", "lu_", "mvlgamma", "digamma",
    "lgamma", "erfinv",
)  # fmt: skip
_MATRICES = ("linalg_", "_linalg_", "cholesky", "triangular_solve", "geqrf", "ormqr", "lu_")


class Regular(EagerMode):
    """Operators of singular matrices get others, which are not: what depends on them is another one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(1)

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        if is_singular(func._schema.name.rpartition("::")[2], args):
            matrix = torch.nan_to_num(args[0], 1.0, 1.0, 1.0)
            drawn = torch.randn(matrix.shape, generator=self._generator).to(matrix)
            args = (matrix + drawn * (largest_of(matrix) + 1.0), *args[1:])
        return func(*args, **kwargs)


@functools.cache
def is_conditioned(name: str) -> bool:
    """Return whether the errors of the operator are those of moved operands."""
    if name.startswith("linalg_vector_norm"):
        return False
    return name.startswith(("special_", "linalg_", "_linalg_", *_ALSO))


@functools.cache
def is_of_matrices(name: str) -> bool:
    """Return whether each number of an operand may be off by as much as the largest of its matrix."""
    return name.startswith(_MATRICES)


def largest_of(value: torch.Tensor) -> torch.Tensor:
    """The largest finite number of each matrix."""
    finite = torch.nan_to_num(value.detach().abs(), 0.0, 0.0, 0.0)
    return finite.amax(tuple(range(max(finite.dim() - 2, 0), finite.dim())), keepdim=True) if finite.dim() else finite


def is_singular(name: str, args: Any) -> bool:
    """Return whether the operator is given a singular matrix."""
    if name not in _SYSTEMS or not isinstance(args[0], torch.Tensor) or args[0].dim() < 2 or not args[0].numel():
        return False
    matrix = args[0]
    if not bool(torch.isfinite(matrix).all()):
        return True
    values = torch.linalg.svdvals(matrix.to(torch.complex128 if matrix.is_complex() else torch.float64))
    share = SINGULAR_SHARE * max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    return bool((values[..., -1] <= share * values[..., 0]).any())
