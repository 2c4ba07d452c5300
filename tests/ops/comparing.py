"""What an output has to agree in with eager PyTorch's, and within what."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fx2onnx.aten_map.table.registry import fill_defaults

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
}
"""(relative, absolute) by dtype of the output; every other dtype must be equal."""

RANDOM = frozenset([
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal",
    "normal_", "uniform", "uniform_", "normal_functional", "randperm", "multinomial", "rrelu", "rrelu_with_noise",
    "exponential", "log_normal", "geometric", "cauchy",
])  # fmt: skip
"""Random operators: dtype and shape are compared, distributions elsewhere."""
UNSET = frozenset(
    ["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize"]
)
"""Operators whose values are whatever was in memory."""
DROPOUTS = frozenset(
    ["dropout", "dropout_", "native_dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"]
)


def real_pair(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a trailing pair of reals, others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def difference(got: np.ndarray, want: torch.Tensor, tolerance: tuple[float, float] | None = None) -> str:
    """The reason why ``got`` is not ``want``; empty where it is."""
    pair = real_pair(want)
    expected = to_numpy(pair)
    if got.dtype != expected.dtype:
        return f"dtype {got.dtype}, not {expected.dtype}"
    if got.shape != expected.shape:
        return f"shape {got.shape}, not {expected.shape}"
    if pair.dtype not in TOLERANCES:
        unequal = got != expected
        return (
            "" if not unequal.any() else f"{int(unequal.sum())} of {got.size} differ: {_first(got, expected, unequal)}"
        )
    nan = np.isnan(expected)
    if (np.isnan(got) != nan).any():
        return f"NaN elsewhere: {_first(got, expected, np.isnan(got) != nan)}"
    relative, absolute = tolerance or TOLERANCES[pair.dtype]
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.float64) - expected) <= absolute + relative * np.abs(expected.astype(np.float64))
        wrong = ~((got == expected) | nan | (near & np.isfinite(got) & np.isfinite(expected)))
    return "" if not wrong.any() else f"{int(wrong.sum())} of {got.size} differ: {_first(got, expected, wrong)}"


EAGER_ERRORS = 2.0
"""An engine may be this many times as far from float64 as eager is at its worst element."""
NARROW = (torch.float32, torch.float16, torch.bfloat16)


def in_float64(call: Any) -> list[torch.Tensor] | None:
    """The call's tensors with float64 in place of every narrower float; None where eager does not take that."""

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW:
            return leaf.double()
        return torch.float64 if leaf in NARROW else leaf

    args, kwargs = pytree.tree_map(widened, (call.args, call.kwargs))
    of_integers = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            leaves = pytree.tree_leaves(call.overload(*args, **kwargs))
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    finally:
        torch.set_default_dtype(of_integers)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_nearer(got: np.ndarray, want: torch.Tensor, exact: torch.Tensor, tolerance: tuple[float, float]) -> bool:
    """Return whether ``got`` is float64's value within ``tolerance``, or hardly further from it than eager's ``want``:
    then it is eager that rounds (or overflows) on the way."""
    if not want.is_floating_point() or exact.dtype != torch.float64 or got.shape != tuple(exact.shape):
        return False
    if not difference(got, exact.to(want.dtype), tolerance):
        return True
    truth, eager = exact.numpy(), to_numpy(want).astype(np.float64)
    if not (np.isfinite(got).all() and np.isfinite(eager).all()):
        return False
    return bool(np.abs(got - truth).max() <= EAGER_ERRORS * np.abs(eager - truth).max())


NEAR_POLES = dict.fromkeys(["digamma", "special_airy_ai"], (0.0002, 1e-05))
"""float32 tolerances where eager itself loses digits (its float32 sine beside a pole, its float32 recurrences)."""
_TRANSFORMS = [f"{kind}fft{dims}" for kind in ("", "i", "r", "ir", "h", "ih") for dims in ("", "2", "n")]
NORMWISE = frozenset(["matrix_exp", "linalg_matrix_exp", "stft", "istft", *(f"fft_{name}" for name in _TRANSFORMS)])


def tolerance_of(call: Any, dtype: torch.dtype) -> tuple[float, float] | None:
    """Half precision: absolute error in proportion to the largest operand, since eager rounds after every step.
    Matrix functions: in proportion to the largest element of the result, which bounds eager's own error."""
    if call.overload._schema.name.removeprefix("aten::") in NORMWISE:
        relative, absolute = TOLERANCES[dtype.to_real() if dtype.is_complex else dtype]
        largest = max((leaf.abs().max().item() for leaf in call.outputs if leaf.numel()), default=0.0)
        return relative, absolute + relative * largest
    if dtype == torch.float32:
        return NEAR_POLES.get(call.overload._schema.name.removeprefix("aten::"))
    if dtype not in (torch.float16, torch.bfloat16):
        return None
    leaves = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]
    sizes = [
        leaf[leaf.isfinite()].abs().max().item()
        for leaf in leaves
        if leaf.is_floating_point() and leaf.isfinite().any()
    ]
    relative, absolute = TOLERANCES[dtype]
    return relative, absolute * max([1.0, *sizes])


def _first(got: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> str:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"at {list(index)} {got[index]!r}, not {expected[index]!r}"


ANY_INDEX = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in [
        ("topk", "default"),
        ("sort", "default"),
        ("argsort", "default"),
        ("kthvalue", "default"),
        ("mode", "default"),
        ("median", "dim"),
        ("nanmedian", "dim"),
    ]
)
"""Operators that may name any of several equal elements; their last output holds indices along a dim."""


def resolve_indices(call: Any, outputs: list[np.ndarray], wanted: list[torch.Tensor]) -> None:
    """Make indices that name equal elements equal."""
    source = call.args[0]
    got, want = torch.from_numpy(outputs[-1].copy()), wanted[-1]
    if source.dim() == 0 or got.shape != want.shape or got.dtype != want.dtype:
        return
    filled = fill_defaults(call.overload, call.args, call.kwargs)
    dim = filled["dim"] % source.dim()
    if not filled.get("keepdim", True):
        got, want = got.unsqueeze(dim), want.unsqueeze(dim)
    chosen = torch.take_along_dim(source, got.clamp(0, source.shape[dim] - 1), dim)
    expected = torch.take_along_dim(source, want, dim)
    equal = (chosen == expected) | ((chosen != chosen) & (expected != expected))
    resolved = torch.where(equal, want, got)
    outputs[-1] = (resolved if filled.get("keepdim", True) else resolved.squeeze(dim)).numpy()


def has_free_values(call: Any) -> bool:
    """Return whether the values of the outputs are random or unset."""
    name = call.overload._schema.name.removeprefix("aten::")
    if name in DROPOUTS:
        filled = fill_defaults(call.overload, call.args, call.kwargs)
        return bool(filled.get("train")) and filled.get("p") not in (0, 0.0)
    if fill_defaults(call.overload, call.args, call.kwargs).get("dropout_p"):
        return True
    return name in RANDOM or name in UNSET


def is_up_to_signs(call: Any) -> bool:
    """Return whether the call gives vectors of a decomposition of real matrices."""
    name = call.overload._schema.name.rpartition("::")[2].strip("_").removeprefix("linalg_")
    return name in ("svd", "eigh") and not any(leaf.is_complex() for leaf in call.outputs)


def without_signs(call: Any, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a decomposition's vectors make, which their signs do not change: the matrix again, and that they are orthonormal."""
    name = call.overload._schema.name.rpartition("::")[2].strip("_").removeprefix("linalg_")
    if not all(value.numel() for value in values):
        return values
    if name == "eigh":
        numbers, vectors = values
        return [numbers, (vectors * numbers[..., None, :]) @ vectors.mH]
    left, numbers, right = values
    right = right.mH if call.overload._schema.name == "aten::svd" else right
    if not right.any():  # not asked for
        return values
    count = numbers.shape[-1]
    whole = (left[..., :count] * numbers[..., None, :]) @ right[..., :count, :]
    return [whole, numbers, left.mH @ left + (right @ right.mH)[..., :1, :1]]
