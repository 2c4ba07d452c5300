"""Calls of which eager PyTorch's values are not defined, found by rules from the call and its result."""

from __future__ import annotations

import math
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
COMPARED = {"_ctc_loss": 1}
"""The number of outputs that are compared where the others are working memory of the backward pass: alpha is not filled
beyond the sequences, and may be longer.
"""
PERTURBATIONS = 3

Wanted = list[torch.Tensor]
Run = Callable[[tuple[Any, ...], dict[str, Any]], Wanted]


def leaves(call: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]


def packet_of(call: Any) -> str:
    return str(call.overload._schema.name.partition("::")[2].rstrip("_"))


def is_free(call: Any, again: Wanted) -> bool:
    """True if the values are random or whatever was in memory: by name, or because a second run gives others."""
    name, filled = packet_of(call), fill_defaults(call.overload, call.args, call.kwargs)
    if (
        name in RANDOM
        or name in UNSET
        or name in ("random", "_standard_gamma", "binomial", "poisson", "_sample_dirichlet")
    ):
        return True
    if "drop" in name and filled.get("train") is not False and filled.get("p") not in (0, 0.0, 1, 1.0):
        return True
    return any(
        one.shape != two.shape or not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))
        for one, two in zip(call.outputs, again, strict=False)
        if one.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)
    )


def reasons(call: Any) -> Iterator[str]:
    """The reasons why values of the call are not defined; none where they are."""
    name, filled = packet_of(call), fill_defaults(call.overload, call.args, call.kwargs)
    is_finite = all(bool(leaf.isfinite().all()) for leaf in leaves(call))
    if not is_finite and any(leaf.is_complex() for leaf in (*leaves(call), *call.outputs)):
        yield "complex numbers of infinities or NaN, which kernels multiply and divide by parts or as a whole"
    if not is_finite and "fft" in name:
        yield "a Fourier transform of infinities or NaN, which algorithms spread differently"
    if not is_finite and re.search(
        r"var|std|norm|cov|corrcoef|linalg|qr|matrix_exp|cdist|dist|inverse|solve|lstsq|similarity|det$|lu_|svd|cholesky|eig",
        name,
    ):
        yield "infinities or NaN among what is squared and summed, which formulas turn to NaN or to infinity"
    if "histogram" in name and any(not _is_sorted(edges) for edges in pytree.tree_leaves(filled["bins"]) if isinstance(edges, torch.Tensor)):  # fmt: skip
        yield "boundaries are not sorted"
    if name.startswith("_unsafe_masked_index") and not filled["self"].numel():
        yield "a masked index of nothing, whose shape the CPU's kernel and its fake one tell differently"
    if name.startswith("_fft_") and _is_no_spectrum(filled):
        yield "axes counted from the last, or half a spectrum of another size, of which a private kernel reads what it finds"
    if "batch_norm" in name and _has_other_channels(filled):
        yield "statistics of another number of channels, beyond which a kernel reads"
    if name in ("histogram", "histc") and isinstance(filled["bins"], int) and _is_at_an_edge(filled):
        yield "a value at the edge of two bins, whose place is rounded"
    if re.search(r"(cholesky|inv|solve|lu_factor)_ex$", name) and bool(call.outputs[-1].any()):
        yield "the factor of a matrix that has none, of which the last output tells"
    if "ctc_loss" in name and bool(
        ((filled["targets"] >= filled["log_probs"].shape[-1]) | (filled["targets"] < 0)).any()
    ):
        yield "an index that is out of range"
    if "ctc_loss" in name and not bool((filled["log_probs"] < math.inf).all()):
        yield "a log probability that is NaN or plus infinity"
    if re.search("upsample|interpolate|grid_sampl", name) and not is_finite:
        yield "infinities or NaN among what is resampled, by which weights of 0 are multiplied, and NaN as a place"
    if name in ("softplus", "soft_margin_loss") and is_finite and not bool(call.outputs[0].isfinite().all()):
        yield "an exponential that overflows in PyTorch's formula"
    if name == "soft_margin_loss_backward" and bool((filled["self"].double() * _negative(filled["target"]) > 88).any()):
        yield "an exponential that overflows in PyTorch's formula"
    if "scaled_dot_product" in name and not all(bool(filled[of].isfinite().all()) for of in ("query", "key", "value")):
        yield "infinite queries or keys, whose scores may all be minus infinity, or values that a weight of 0 multiplies"
    has_last = "bag_size" in filled and filled["offsets"].numel() > filled["bag_size"].numel()
    if "embedding_bag" in name and (has_last or filled.get("include_last_offset")) and _ends_elsewhere(filled):
        yield "a last offset that is not the number of indices"
    if "embedding_bag" in name and filled["offsets"].dim() and not _is_sorted(filled["offsets"]):
        yield "offsets of bags that are not sorted"
    if name == "lu_unpack" and filled["LU_pivots"].shape[-1:] != (min(filled["LU_data"].shape[-2:]),):
        yield "more or fewer pivots than a factorisation gives"
    if "fractional_max_pool" in name and not set(filled["random_samples"].shape[:2]) <= {1, *filled["self"].shape[:2]}:
        yield "samples of another batch"
    if "ctc_loss" in name and bool((filled["targets"] == filled["blank"]).any()):
        yield "the blank among the targets"
    factors = [filled.get(key) for key in ("scale", "alpha", "beta")]
    if re.search("attention|addb?m|baddbmm|addr", name) and not all(math.isfinite(each or 0) for each in factors):
        yield "an infinite scale, by which either operand or their product is multiplied"
    if any(isinstance(filled.get(key), float) and math.isnan(filled[key]) for key in ("p", "ord", "norm_type")):
        yield "a norm whose power is NaN"
    if name == "gradient" and any(
        leaf.dim() and not bool(leaf.diff().all() and (leaf[2:] - leaf[:-2]).all())
        for leaf in pytree.tree_leaves(filled.get("spacing"))
        if isinstance(leaf, torch.Tensor)
    ):
        yield "a gradient between equal coordinates, whose difference is divided by 0"
    if name.startswith(("fake_quantize", "_fake_quantize")) and any(
        bool((leaf.abs() < 1e9).logical_not().any()) for leaf in leaves(call)[:1]
    ):
        yield "a float that the integer dtype cannot hold"
    if "fake_quantize" in name and isinstance(zero := filled.get("zero_point"), torch.Tensor) and bool(((zero < filled["quant_min"]) | (zero > filled["quant_max"])).any()):  # fmt: skip
        yield "a zero point that the quantised dtype cannot hold"
    if "polynomial" in name and bool(torch.as_tensor(filled["x"]).isnan().any()):
        yield "a polynomial at NaN, whose loop ends before the result is written"
    if "polynomial" in name and not bool(call.outputs[0].isfinite().all()):
        yield "a recurrence that overflows"
    if (
        name == "isin"
        and filled["assume_unique"]
        and any(leaf.unique().numel() < leaf.numel() for leaf in leaves(call))
    ):
        yield "elements that repeat, where the call says that none does"
    if name == "linalg_cond" and bool((call.outputs[0] > 0.05 / torch.finfo(call.outputs[0].dtype).eps).any()):
        yield "the condition number of a matrix that is singular up to rounding"
    if "prelu" in name and not bool(filled["weight"].isfinite().all()):
        yield "a slope of infinity or NaN, by which PyTorch multiplies 0 and PRelu does not"
    if "max_pool" in name and is_finite and not bool(call.outputs[0].isfinite().all()):
        yield "the index of a maximum in a window beyond the tensor"
    if "pool" in name and not is_finite:
        yield "the index of a maximum among infinities"
    if "conv" in name and not bool(filled["weight"].isfinite().all()):
        yield "a weight that is not finite, by which kernels multiply the zeros around, or do not"
    signed = filled.get("other") if name == "copysign" else filled["self"] if name == "signbit" else 0.0
    if bool(torch.as_tensor(signed).isnan().any()):
        yield "the sign of NaN, which arithmetic of each processor gives otherwise"
    if re.search("bilinear$|trilinear$|einsum|multi_dot|chain_matmul", name) and not is_finite:
        yield "infinities or NaN in a product of several, whose order is open"
    if re.search("inv$|inverse$|solve|det$", name) and is_finite and any(map(_is_singular, leaves(call))):
        yield "a matrix that is singular up to rounding"
    if re.search("matrix_rank|pinv", name) and is_finite and _is_near_a_cutoff(filled):
        yield "a singular value that is as near to the cutoff as its rounding"
    if name == "topk" and not filled["sorted"]:
        yield "the order of elements that need not be sorted"
    if name == "pow" and _overflows(filled):
        yield "an integer power that overflows"
    if name == "_pack_padded_sequence" and bool(
        (filled["lengths"] > filled["input"].shape[int(filled["batch_first"])]).any()
    ):
        yield "sequences longer than what they lie in"
    if name == "segment_reduce" and filled["unsafe"]:
        yield "segments that are not checked"
    if "batch_sizes" in filled and int(filled["batch_sizes"].sum()) != filled["data"].shape[0]:
        yield "sizes of batches that do not add up"
    if "2d_aa" in name and any(1 in leaf.shape[-1:] for leaf in (*leaves(call)[:1], *call.outputs)):
        yield "antialias along an axis of size 1, of which PyTorch reads the first element alone"
    if name in ("searchsorted", "bucketize"):
        edges = filled.get("sorted_sequence", filled.get("boundaries"))
        if filled.get("sorter") is not None or not _is_sorted(edges):
            yield "boundaries are not sorted"
    if _is_out_of_range(name, filled):
        yield "an index that is out of range"
    if _has_duplicates(name, filled):
        yield "two values for one place"
    if name == "unique_dim" and not is_finite:
        yield "an order of rows that hold NaN"
    if "embedding_bag" in name and filled["mode"] == 2 and not is_finite:
        yield "the index of a maximum among infinities"
    if _is_beyond_integers(call, filled):
        yield "a float that the integer dtype cannot hold"
    if re.search("t_shift|shift__$", name) and _shifts_too_far(filled):
        yield "a shift beyond the number of bits"
    if re.search(r"unique|mode|histc|kthvalue|isin|searchsorted|bucketize", name) and any(map(_has_nan, leaves(call))):
        yield "NaN among what is ordered"


def _is_singular(matrix: torch.Tensor) -> bool:
    is_square = matrix.dim() > 1 and matrix.shape[-1] == matrix.shape[-2] and matrix.numel() > 0
    if not is_square or not (matrix.is_floating_point() or matrix.is_complex()):
        return False
    values = torch.linalg.svdvals(matrix.to(torch.complex128 if matrix.is_complex() else torch.float64))
    return bool((values[..., -1] <= 20 * torch.finfo(matrix.dtype).eps * values[..., 0]).any())


def _is_near_a_cutoff(filled: dict[str, Any]) -> bool:
    matrix = next(leaf for leaf in filled.values() if isinstance(leaf, torch.Tensor))
    values = torch.linalg.svdvals(matrix.double() if not matrix.is_complex() else matrix)
    most = values.amax(-1, keepdim=True) if values.numel() else values
    given = []
    for key in ("atol", "tol", "rtol", "rcond"):
        cutoff = filled.get(key)
        given.append(torch.as_tensor(0.0 if cutoff is None else cutoff).double().reshape(-1)[:1])
    cutoff = torch.maximum(given[0] + given[1], (given[2] + given[3]) * most)
    noise = 8 * torch.finfo(matrix.dtype).eps * max(matrix.shape[-2:]) * most
    return bool(((values - cutoff).abs() <= noise).any())


def _is_no_spectrum(filled: dict[str, Any]) -> bool:
    size = filled.get("last_dim_size")
    return min(filled["dim"], default=0) < 0 or (
        size is not None and filled["self"].shape[filled["dim"][-1]] != size // 2 + 1
    )


def _has_other_channels(filled: dict[str, Any]) -> bool:
    given = [filled.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    channels = filled["input"].shape[1]
    return any(leaf is not None and leaf.numel() != channels for leaf in given)


def _ends_elsewhere(filled: dict[str, Any]) -> bool:
    offsets = filled["offsets"]
    return not offsets.numel() or int(offsets[-1]) != filled["indices"].numel()


def _is_sorted(edges: torch.Tensor) -> bool:
    return bool((edges[..., 1:] >= edges[..., :-1]).all())


def _is_at_an_edge(filled: dict[str, Any]) -> bool:
    """True if a value lies on an edge between equal bins up to rounding."""
    values = filled["self"].double().flatten()
    low, high = filled.get("range") or (filled.get("min") or 0.0, filled.get("max") or 0.0)
    if low == high and values.numel():
        low, high = values.min().item(), values.max().item()
    edges = torch.linspace(low, high, filled["bins"] + 1, dtype=torch.float64)
    gaps = (values[:, None] - edges).abs()
    return bool((gaps < 1e-5 * max(abs(low), abs(high), 1e-30)).any())


def _negative(value: torch.Tensor) -> torch.Tensor:
    """In the tensor's own dtype, where unsigned integers wrap."""
    return -value.double() if value.dtype == torch.bool else (-value).double()


def _overflows(filled: dict[str, Any]) -> bool:
    base, exponent = (torch.as_tensor(filled[name]) for name in ("self", "exponent"))
    integers = [value.dtype for value in (base, exponent) if not value.is_floating_point() and value.dim()]
    if (
        not integers
        or base.is_floating_point()
        or exponent.is_floating_point()
        or base.is_complex()
        or exponent.is_complex()
    ):
        return False
    result = base.double() ** exponent.double()
    limit = torch.iinfo(torch.uint8 if torch.bool in integers else integers[0])
    return bool(((result > limit.max) | (result < limit.min)).any() or (base < limit.min).any())


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _has_duplicates(name: str, filled: dict[str, Any]) -> bool:
    """True if a write without accumulation gives two values to one place."""
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


def _is_out_of_range(name: str, filled: dict[str, Any]) -> bool:
    """True if an index along a dim names no element, which kernels that broadcast do not always check."""
    index, dim = filled.get("indices", filled.get("index")), filled.get("dim")
    if name not in ("take_along_dim", "gather", "scatter", "scatter_add") or not isinstance(dim, int):
        return False
    source = filled["self"]
    size = source.shape[dim] if source.dim() else 1
    return bool(((index >= size) | (index < -size)).any())


def _repeats(places: Any) -> bool:
    given = [place for place in places if place is not None and place.dtype not in (torch.bool, torch.uint8)]
    if not given:
        return False
    rows = torch.stack([place.reshape(-1) for place in torch.broadcast_tensors(*given)], 1)
    return rows.unique(dim=0).shape[0] < rows.shape[0] or any(bool((place < 0).any()) for place in given)


_FINDS_PLACES = re.compile(
    "arg|topk|sort|median|max|min|frexp|pool|unique|mode$|kthvalue|nonzero|embedding_bag|searchsorted|bucketize|bincount|isin|where|multinomial"
)
"""Operators whose integers are places, or counts of places, and no rounded floats."""


def _is_beyond_integers(call: Any, filled: dict[str, Any]) -> bool:
    outputs = [leaf.dtype for leaf in call.outputs if not (leaf.is_floating_point() or leaf.is_complex())]
    limits = [torch.iinfo(dtype) for dtype in outputs if dtype != torch.bool]
    if not limits:
        return False
    low, high = max(limit.min for limit in limits), min(limit.max for limit in limits)
    if _FINDS_PLACES.search(packet_of(call)):
        return False
    numbers = [leaf.double() for leaf in leaves(call) if leaf.is_floating_point() and leaf.numel()]
    numbers += [torch.tensor(value) for value in filled.values() if isinstance(value, float)]
    if packet_of(call) == "logspace":
        base = torch.tensor(filled["base"], dtype=torch.float64)
        numbers += [base ** torch.as_tensor(filled[name]).double() for name in ("start", "end")]
    return any(bool((~value.isfinite() | (value < low) | (value > high)).any()) for value in numbers)


def _shifts_too_far(filled: dict[str, Any]) -> bool:
    by = filled.get("other")
    by = by if isinstance(by, torch.Tensor) else torch.tensor(by)
    bits = filled["self"].element_size() * 8 if isinstance(filled["self"], torch.Tensor) else 64
    return bool(((by < 0) | (by >= bits - 1)).any()) or (by.is_floating_point())


def depends_on_memory(call: Any) -> bool:
    """True if PyTorch's kernel for tensors that do not lie contiguously gives other values than the one for those that
    do."""

    def spread(leaf: Any) -> Any:
        return torch.stack([leaf, leaf], -1)[..., 0] if isinstance(leaf, torch.Tensor) else leaf

    try:
        args, kwargs = pytree.tree_map(spread, (call.args, call.kwargs))
        with torch.no_grad():
            found = [
                leaf for leaf in pytree.tree_leaves(call.overload(*args, **kwargs)) if isinstance(leaf, torch.Tensor)
            ]
    except Exception:  # some kernels take contiguous tensors alone
        return False
    return any(
        one.shape == two.shape and not torch.allclose(one, two.to(one.dtype), 1e-3, 1e-5, equal_nan=True)
        for one, two in zip(call.outputs, found, strict=True)
    )


def moved(call: Any, run: Run) -> list[torch.Tensor] | None:
    """The movement of each output where the float arguments change in their last bits; None where its shape changes."""
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
