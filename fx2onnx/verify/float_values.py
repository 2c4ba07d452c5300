"""Floats of each kind that a sample has none of: of other sizes, behind a large mean, without a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from fx2onnx.verify.marks import Marks, near

FLOAT_ENDS = ("far", "signed", "offset", "nan", "infinite", "huge", "tiny")
"""Kinds that every input of floats has. ``far``: 65,536 times the example's. ``signed``: zeros of either sign among
others. ``offset``: behind a mean of 256 deviations. ``nan``, ``infinite``: a few that are no number, or infinite, in
every other row. ``huge``, ``tiny``: whose squares float32 does not hold, or takes for nothing."""
NEEDS_RANGE = frozenset({"far", "offset", "huge", "tiny"})
"""Kinds for which half precision has no room."""
WITHOUT_NUMBERS = frozenset({"signed", "nan", "infinite"})
"""Kinds on which eager PyTorch may give NaN and infinities."""
NEAR_FLOAT64 = frozenset({"offset", "huge", "tiny", "between"})
"""Kinds that say something only where eager PyTorch gives what it gives in float64: that is what it means to compute."""
BY_ANY_ENGINE = WITHOUT_NUMBERS | NEAR_FLOAT64
"""Kinds on which an output is right where some engine gives it: engines have habits of their own there, of which ONNX says
nothing, such as the NaN that a maximum drops."""
BY_ANY_ENGINE_IN_HALF = BY_ANY_ENGINE | {"masked", "hidden"}
"""Kinds, as above, for a file in float16: where a whole row is masked it is the digits that a runtime keeps between
nodes which say whether -65504 swallows the scores."""
SPOILING = frozenset({"nan", "infinite"})
"""Kinds on which integers, such as the place of the largest, say nothing."""
_UNSPOKEN_OF = (
    "geqrf", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex",
    "linalg_inv_ex", "linalg_qr", "_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_cholesky_ex",
    "cholesky", "cholesky_solve", "cholesky_inverse", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lstsq",
    "triangular_solve", "linalg_solve_triangular", "linalg_householder_product", "ormqr", "linalg_matrix_exp", "mode",
    "max_pool2d_with_indices_backward", "max_unpool2d", "max_unpool3d", "unique_dim",
)  # fmt: skip
_TO_CODES = (
    "quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic", "quantize_per_token",
    "quantize_per_channel_group", "quantize_affine", "choose_qparams", "choose_qparams_per_token",
    "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask", "linear_dynamic",
    "linear_relu_dynamic",
)  # fmt: skip
_MASKING = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
_MASKING_IN_ONE = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
"""The operators that the layers run without gradients: a row whose keys are all masked is NaN there, and zero
elsewhere."""
SAYS_NOTHING = {
    **dict.fromkeys((*_UNSPOKEN_OF, *_TO_CODES, *_MASKING), SPOILING),
    **dict.fromkeys(_MASKING_IN_ONE, WITHOUT_NUMBERS),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), frozenset({"infinite"})),
    **dict.fromkeys(("std", "std_mean", "special_zeta"), frozenset({"huge", "tiny"})),
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), frozenset({"infinite", "huge"})),
}
"""Kinds that are not tried of a module, by an operator that it has: what eager PyTorch makes of NaN is what its pivots come
to, a NaN has no code, a deviation is summed in float64, distances of many rows are a difference of squares, which
infinity makes NaN, and the sign of an infinite product with the cosine of a right angle is chance.
"""
_ATTENTION = frozenset(
    {"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention", "PagedAttention"}
)
"""Operators that leave out what is masked, where zero times NaN would be NaN."""
NO_WHOLE_NUMBER = SPOILING | {"huge"}
"""Kinds that are not tried where floats are turned into integers: C says nothing of what has no room there."""

_SCALES = {"large": 16.0, "small": 1 / 512}
_NARROW_SCALES = {"large": 4.0, "small": 1 / 16}
"""The scales for files in float16: products of several such numbers have room there, and all their digits."""
_FAR = 2.0**16
_HUGE, _TINY = 2.0**66, 2.0**-80
_MEAN = 256.0
"""A variance as the mean of squares less the square of the mean is off by 2**16 units there, other forms are by none."""
_FEW_PLACES = 4
"""The least count of numbers that stand at marks, where an input has so many."""
_LEAST_SPECIAL = 8
"""One number of so many."""
_FEW = 16
"""The share of numbers that spoil whatever is computed of them: one of so many."""


class Spread(Protocol):
    """The spread of the example's numbers."""

    @property
    def mean(self) -> float: ...

    @property
    def deviation(self) -> float: ...

    @property
    def marks(self) -> Marks: ...

    @property
    def is_narrow(self) -> bool: ...

    @property
    def turn(self) -> int: ...


def silent_on(op_types: Iterable[str], *, has_codes: bool) -> frozenset[str]:
    """Kinds that are not tried of a file with such operators. ``has_codes``: it rounds what it computes to codes."""
    if has_codes:
        return BY_ANY_ENGINE
    return frozenset() if _ATTENTION.isdisjoint(op_types) else SPOILING


Kind = Callable[[Spread, torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]
"""A function of normally distributed numbers and the example's."""


def draw_floats(values: Spread, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Numbers of the kind in the shape and dtype of ``like``."""
    if kind == "zeros":
        return torch.zeros_like(like)
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    scales = _NARROW_SCALES if values.is_narrow else _SCALES
    found = _KINDS.get(kind, _scaled(scales.get(kind, 1.0)))(values, drawn, like, generator).to(like.dtype)
    given = like.cpu()
    is_number = torch.isfinite(given)  # what is infinite in the example inputs, such as in a mask, stays
    return found if is_number.all() else torch.where(is_number, found, given)


def _usual(values: Spread, drawn: torch.Tensor) -> torch.Tensor:
    return drawn * values.deviation + values.mean


def _scaled(scale: float) -> Kind:
    return lambda values, drawn, like, generator: _usual(values, drawn) * scale


def _wide(most: float) -> Kind:
    """Numbers from one side more than from the other, so that sums grow, too."""

    def draw(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        scale = min(most, torch.finfo(like.dtype).max / (16 * values.deviation))
        return (drawn + 1) * values.deviation * scale

    return draw


def _ties(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _usual(values, drawn.round())


def _offset(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _usual(values, drawn + _MEAN)


def _special(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The threshold values that the module looks for."""
    picked = torch.rand(like.shape, generator=generator) < 1 / _LEAST_SPECIAL
    picked.reshape(-1)[0] = True
    return torch.where(picked, _one_of(values.marks.special, like, generator), _usual(values, drawn))


def _signed(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    picked = torch.rand(like.shape, generator=generator) < 0.5
    return torch.where(picked, _one_of((0.0, -0.0), like, generator), _usual(values, drawn))


def _few(special: tuple[float, ...]) -> Kind:
    """A few of them in every other row of the first axis: what they spoil is a part of the outputs, where rows are apart."""

    def draw(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        picked = torch.rand(like.shape, generator=generator) < 1 / _FEW
        first = picked[0] if like.dim() else picked
        first.view(-1)[int(torch.randint(first.numel(), (1,), generator=generator))] = True
        if like.dim():
            picked[1::2] = False
        return torch.where(picked, _one_of(special, like, generator), _usual(values, drawn))

    return draw


def _one_of(found: tuple[float, ...], like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.tensor(found)[torch.randint(len(found), like.shape, generator=generator)]


def _even_rows(like: torch.Tensor) -> torch.Tensor:
    """The places of the rows that stand at marks."""
    rows = torch.Size([*like.shape[:-1], 1]) if like.dim() else torch.Size([])
    is_odd = (torch.arange(rows.numel()) % 2 == 1).reshape(rows).expand(like.shape)
    return torch.nonzero(is_odd.reshape(-1).logical_not()).reshape(-1)


def turns_at_marks(values: Spread, like: torch.Tensor) -> int:
    """The count of sets of inputs in which every number at or beside a mark stands once."""
    count = len(_even_rows(like))
    places = min(count, max(count // 2, _FEW_PLACES))
    return math.ceil(len(near(values.marks.numbers, 0.5)) / max(places, 1))


def _at_marks(values: Spread, drawn: torch.Tensor, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of the numbers, or a few, at a mark, next to it or between marks; every other row is as large as a mark."""
    marks = torch.tensor(values.marks.numbers, dtype=torch.float64)
    at = torch.tensor(near(values.marks.numbers, torch.finfo(like.dtype).eps), dtype=torch.float64)
    result = _usual(values, drawn).double()
    places = _even_rows(like)
    is_odd = torch.ones(like.numel(), dtype=torch.bool).index_fill(0, places, False).reshape(like.shape)
    places = places[torch.randperm(len(places), generator=generator)[: max(len(places) // 2, _FEW_PLACES)]]
    result.reshape(-1)[places] = at[(torch.arange(len(places)) + values.turn * len(places)) % len(at)]
    rows = torch.Size([*like.shape[:-1], 1]) if like.dim() else torch.Size([])
    large = drawn * marks[torch.randint(len(marks), rows, generator=generator)]
    return torch.where(is_odd, large, result)


_KINDS: dict[str, Kind] = {
    "ties": _ties, "marks": _at_marks, "special": _special, "far": _wide(_FAR), "signed": _signed, "offset": _offset,
    "nan": _few((torch.nan,)), "infinite": _few((torch.inf, -torch.inf)), "huge": _wide(_HUGE), "tiny": _wide(_TINY),
}  # fmt: skip
