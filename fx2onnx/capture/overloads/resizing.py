"""Result types of resized and sampled images by formula: torch's own code goes through every tap of a filter."""

from __future__ import annotations

import torch

from fx2onnx.capture.recording.meta_cache import PooledType, TensorFacts
from fx2onnx.capture.recording.meta_rules import NONE, Number, Rule, fresh, is_contiguous
from fx2onnx.capture.registry import Kind, register
from fx2onnx.capture.shapes.size_math import rounded_to_int
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply

aten = torch.ops.aten


def _resized(rank: int) -> Rule:
    """upsample(input, output_size[, align_corners], scale_factors): one of the two lists is None. Torch's own code goes through
    every tap of a filter.
    """

    def rule(
        kind: TensorFacts, output_size: tuple[Number | Dim, ...], *rest: tuple[tuple[type, float], ...]
    ) -> TensorFacts | None:
        factors, is_of_rank = rest[-1], len(kind.sizes) == rank + 2
        is_one_given = (output_size == NONE) is not (factors == NONE)
        if not kind.dtype.is_floating_point or not is_contiguous(kind) or not is_one_given or not is_of_rank:
            return None
        if output_size == NONE:
            found = [_times(size, factor[1]) for size, factor in zip(kind.sizes[2:], factors, strict=False)]
        else:
            found = [size if isinstance(size, Dim) else size[1] for size in output_size]
        if len(found) != rank or None in found:
            return None
        return PooledType(*fresh(kind, [*kind.sizes[:2], *(size for size in found if size is not None)]))

    return rule


def _times(size: DimLike, factor: float) -> Scalar | None:
    """``int(size * factor)``; None where no expression is that at every size."""
    return size * int(factor) if factor == int(factor) else rounded_to_int("trunc", apply("float", size) * factor)


def _sampled(*ranks: int) -> Rule:
    """A grid of as many images as the input; torch's own code goes through every tap of a filter."""

    def rule(kind: TensorFacts, grid: TensorFacts, *rest: object) -> TensorFacts | None:
        rank, places = len(kind.sizes), grid.sizes
        fits = kind.dtype == grid.dtype and rank in ranks and len(places) == rank and places[-1] == rank - 2
        if not fits or places[0] != kind.sizes[0] or not is_contiguous(kind):
            return None
        return fresh(kind, (*kind.sizes[:2], *places[1:-1]))

    return rule


register(Kind.RESULT_TYPE, aten.grid_sampler.default)(_sampled(4, 5))
register(Kind.RESULT_TYPE, aten.grid_sampler_2d.default)(_sampled(4))
register(Kind.RESULT_TYPE, aten.grid_sampler_3d.default)(_sampled(5))
_RESIZE = {
    1: ("nearest1d", "nearest_exact1d", "linear1d"),
    2: ("nearest2d", "nearest_exact2d", "bilinear2d", "bicubic2d", "bilinear2d_aa", "bicubic2d_aa"),
    3: ("nearest3d", "nearest_exact3d", "trilinear3d"),
}
for _rank, _names in _RESIZE.items():
    for _name in _names:
        _prefix = "_upsample" if "exact" in _name or _name.endswith("_aa") else "upsample"
        register(Kind.RESULT_TYPE, getattr(aten, f"{_prefix}_{_name}").vec)(_resized(_rank))
