"""Calls of which eager PyTorch's values are not defined, told by rules from the call and its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx2onnx.aten_map.table.registry import fill_defaults
from tests.ops.comparing import RANDOM, UNSET

CONDITIONED = re.compile(
    r"linalg|lstsq|solve|inverse|det|eig|svd|qr|cholesky|matrix|lu_|norm|cond|rank|var|std|cov|corrcoef|similarity|fft"
    r"|geqrf|ormqr|orgqr|householder|gamma|psi|erfinv|ndtri|zeta|bessel|airy|polynomial|cdist|dist|logit|renorm|rsqrt"
)
"""Operators whose result may depend on the last bit of an argument."""
UP_TO_SIGN = re.compile(r"svd|eigh?\.|eig\.|_eigh|qr\.|pca|lobpcg|symeig")
"""Decompositions whose vectors are free in sign: magnitudes are compared."""
PERTURBATIONS = 3

Wanted = list[torch.Tensor]
Run = Callable[[tuple[Any, ...], dict[str, Any]], Wanted]


def leaves(call: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]


def packet_of(call: Any) -> str:
    return str(call.overload._schema.name.partition("::")[2].rstrip("_"))


def is_free(call: Any, again: Wanted) -> bool:
    """Whether the values are random or whatever was in memory: by name, or because a second run gives others."""
    if packet_of(call) in RANDOM or packet_of(call) in UNSET:
        return True
    return any(
        one.shape != two.shape or not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))
        for one, two in zip(call.outputs, again, strict=False)
        if one.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)
    )


def reasons(call: Any) -> Iterator[str]:
    """Why values of the call are not defined; nothing where they are."""
    name, filled = packet_of(call), fill_defaults(call.overload, call.args, call.kwargs)
    if name in ("searchsorted", "bucketize"):
        edges = filled.get("sorted_sequence", filled.get("boundaries"))
        if filled.get("sorter") is not None or not bool((edges[..., 1:] >= edges[..., :-1]).all()):
            yield "boundaries are not sorted"
    if _has_duplicates(name, filled):
        yield "two values for one place"
    if _is_beyond_integers(call, filled):
        yield "a float that the integer dtype cannot hold"
    if "shift" in name and _shifts_too_far(filled):
        yield "a shift beyond the number of bits"
    if re.search(r"unique|mode|histc|kthvalue|isin|searchsorted|bucketize", name) and any(map(_has_nan, leaves(call))):
        yield "NaN among what is ordered"


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _has_duplicates(name: str, filled: dict[str, Any]) -> bool:
    """Whether a write without accumulation gives two values to one place."""
    if name in ("index_put", "_index_put_impl", "_unsafe_index_put", "put"):
        if filled.get("accumulate"):
            return False
        places = filled.get("indices", [filled.get("index")])
        return _repeats(places)
    if name == "index_copy":
        return filled["index"].unique().numel() < filled["index"].numel()
    if name == "scatter" and filled.get("reduce") is None:
        index = filled["index"]
        if index.dim() == 0:
            return False
        ordered = index.sort(filled["dim"]).values
        return bool((ordered.diff(dim=filled["dim"]) == 0).any())
    return name in ("as_strided_scatter",)


def _repeats(places: Any) -> bool:
    given = [place for place in places if place is not None and place.dtype not in (torch.bool, torch.uint8)]
    if not given:
        return False
    rows = torch.stack([place.reshape(-1) for place in torch.broadcast_tensors(*given)], 1)
    return rows.unique(dim=0).shape[0] < rows.shape[0] or any(bool((place < 0).any()) for place in given)


def _is_beyond_integers(call: Any, filled: dict[str, Any]) -> bool:
    outputs = [leaf.dtype for leaf in call.outputs if not (leaf.is_floating_point() or leaf.is_complex())]
    limits = [torch.iinfo(dtype) for dtype in outputs if dtype != torch.bool]
    if not limits:
        return False
    low, high = max(limit.min for limit in limits), min(limit.max for limit in limits)
    if re.search(r"^(arg|topk|sort|median|nanmedian|max|min|cummax|cummin|aminmax|frexp|.*pool)", packet_of(call)):
        return False
    numbers = [leaf.double() for leaf in leaves(call) if leaf.is_floating_point() and leaf.numel()]
    numbers += [torch.tensor(value) for value in filled.values() if isinstance(value, float)]
    return any(bool((~value.isfinite() | (value < low) | (value > high)).any()) for value in numbers)


def _shifts_too_far(filled: dict[str, Any]) -> bool:
    by = filled.get("other")
    by = by if isinstance(by, torch.Tensor) else torch.tensor(by)
    bits = filled["self"].element_size() * 8 if isinstance(filled["self"], torch.Tensor) else 64
    return bool(((by < 0) | (by >= bits - 1)).any()) or (by.is_floating_point())


def moved(call: Any, run: Run) -> list[torch.Tensor] | None:
    """How far each output moves where the float arguments change in their last bits; None where its shape changes."""
    furthest = [torch.zeros(leaf.shape, dtype=torch.float64) for leaf in call.outputs]
    generator = torch.Generator().manual_seed(0)

    def perturbed(leaf: Any) -> Any:
        if (
            not isinstance(leaf, torch.Tensor)
            or not (leaf.is_floating_point() or leaf.is_complex())
            or not leaf.numel()
        ):
            return leaf
        epsilon = 4 * torch.finfo(leaf.dtype).eps
        noise = torch.rand(leaf.shape, generator=generator, dtype=torch.float64) * 2 - 1
        finite = leaf[leaf.isfinite()]
        scale = finite.abs().max().double().item() if finite.numel() else 0.0
        return (leaf + (noise * epsilon * (leaf.abs().double() + scale)).to(leaf.dtype)).to(leaf.dtype)

    for _ in range(PERTURBATIONS):
        args, kwargs = pytree.tree_map(perturbed, (call.args, call.kwargs))
        try:
            found = run(args, kwargs)
        except Exception:  # what eager PyTorch raises beside the argument says that it is at an edge
            return None
        for index, (before, after) in enumerate(zip(call.outputs, found, strict=True)):
            if before.shape != after.shape:
                return None
            change = (after.to(torch.complex128) - before.to(torch.complex128)).abs()
            furthest[index] = torch.maximum(furthest[index], torch.where(change.isnan(), float("inf"), change))
    return furthest
