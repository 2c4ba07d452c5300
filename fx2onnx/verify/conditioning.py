"""Operators whose errors are those of operands that are off by rounding: systems of equations, factorizations, special functions, and sums of large terms.

What they give may be off by far more than rounding, as much as it moves where an operand moves by its last place. Of a
singular system it is rounding alone that decides what comes out.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.pytrees import pytree


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
