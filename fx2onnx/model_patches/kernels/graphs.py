"""Reductions by group of torch_scatter, and nearest neighbours of torch_cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.kernels.attention import refuse
from fx2onnx.model_patches.patching import patches

_SCATTER = ("torch_scatter",)
_CLUSTER = ("torch_cluster",)


def _along(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """``index``, for one axis or for several, as large as ``src``."""
    dim %= src.dim()
    if index.dim() == 1:
        index = index.reshape((1,) * dim + (-1,))
    return index.reshape(*index.shape, *(1,) * (src.dim() - index.dim())).expand(src.shape)


def _groups(index: Tensor, size: Any, out: Tensor | None, dim: int) -> Any:
    if out is not None:
        return out.shape[dim]
    return torch.cat([index.flatten(), index.new_full((1,), -1)]).max().item() + 1 if size is None else size


def _start(src: Tensor, dim: int, size: Any, out: Tensor | None, value: float) -> Tensor:
    sizes = list(src.shape)
    sizes[dim] = size
    return src.new_full(sizes, value) if out is None else out


def _reduced(src: Tensor, index: Tensor, dim: int, out: Tensor | None, size: Any, reduce: str, start: float) -> Tensor:
    """The reduction of each group, together with ``out``, or ``start`` for a group of none."""
    before = _start(src, dim, _groups(index, size, out, dim), out, start)
    is_first = reduce in ("amin", "amax") and out is None
    after = before.scatter_reduce(dim, _along(index, src, dim), src, reduce, include_self=not is_first)
    return after if out is None else out.copy_(after)


@patches("torch_scatter.scatter:scatter_sum", "torch_scatter.scatter:scatter_add", stands_in=_SCATTER)
def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Sums of the elements of each group, added to ``out`` in place if there is one.

    Shapes:  src [..., n, ...] with n at ``dim``, index [n] or as src -> [..., groups, ...].
    """
    return _reduced(src, index, dim, out, dim_size, "sum", 0)


@patches("torch_scatter.scatter:scatter_mul", stands_in=_SCATTER)
def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Products of the elements of each group; 1 for a group of none."""
    return _reduced(src, index, dim, out, dim_size, "prod", 1)


@patches("torch_scatter.scatter:scatter_mean", stands_in=_SCATTER)
def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Means of the elements of each group; 0 for a group of none."""
    total = scatter_sum(src, index, dim, out, dim_size)
    count = scatter_sum(torch.ones_like(src), index, dim, None, total.shape[dim]).clamp(min=1)
    mean = total / count if src.is_floating_point() else torch.div(total, count, rounding_mode="floor")
    return mean if out is None else out.copy_(mean)


def _extreme(reduce: str, src: Tensor, index: Tensor, dim: int, out: Tensor | None, size: Any) -> tuple[Tensor, Tensor]:
    """The least or greatest element of each group and the first place of it: 0 and n for a group of none."""
    index = _along(index, src, dim)
    values = _reduced(src, index, dim, out, size, reduce, 0)
    length = src.shape[dim]
    places = _along(torch.arange(length, device=src.device), src, dim)
    places = torch.where(src == values.gather(dim, index), places, length)
    none = torch.full_like(values, 0, dtype=torch.int64) + length
    return values, none.scatter_reduce(dim, index, places, "amin", include_self=True)


@patches("torch_scatter.scatter:scatter_min", stands_in=_SCATTER)
def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The least element of each group, and its place."""
    return _extreme("amin", src, index, dim, out, dim_size)


@patches("torch_scatter.scatter:scatter_max", stands_in=_SCATTER)
def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The greatest element of each group, and its place."""
    return _extreme("amax", src, index, dim, out, dim_size)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": scatter_sum,
    "add": scatter_sum,
    "mul": scatter_mul,
    "mean": scatter_mean,
    "min": lambda *given: scatter_min(*given)[0],
    "max": lambda *given: scatter_max(*given)[0],
}


@patches("torch_scatter.scatter:scatter", stands_in=_SCATTER)
def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """One of the reductions, by its name."""
    reduced: Tensor = _reduction(reduce)(src, index, dim, out, dim_size)
    return reduced


def _reduction(name: str) -> Callable[..., Any]:
    if name not in _REDUCTIONS:
        refuse("torch_scatter", **{f"reduce={name!r}": True})
    return _REDUCTIONS[name]


@patches("torch_scatter.composite.softmax:scatter_softmax", stands_in=_SCATTER)
def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """A softmax over the elements of each group. Shapes: as src."""
    index = _along(index, src, dim)
    exponentials = (src - scatter_max(src, index, dim, None, dim_size)[0].gather(dim, index)).exp()
    return exponentials / scatter_sum(exponentials, index, dim, None, dim_size).gather(dim, index)


@patches("torch_scatter.composite.softmax:scatter_log_softmax", stands_in=_SCATTER)
def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """The logarithm of ``scatter_softmax``. Shapes: as src."""
    index = _along(index, src, dim)
    moved = src - scatter_max(src, index, dim, None, dim_size)[0].gather(dim, index)
    sums = scatter_sum(moved.exp(), index, dim, None, dim_size)
    return moved - (sums + eps).log().gather(dim, index)


@patches("torch_scatter.composite.std:scatter_std", stands_in=_SCATTER)
def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Standard deviations of the elements of each group."""
    refuse("scatter_std", out=out)
    index = _along(index, src, dim)
    total = scatter_sum(src, index, dim, None, dim_size)
    count = scatter_sum(torch.ones_like(src), index, dim, None, total.shape[dim]).clamp(min=1)
    distances = src - (total / count).gather(dim, index)
    squares = scatter_sum(distances * distances, index, dim, None, total.shape[dim])
    return (squares / ((count - 1).clamp(min=1) if unbiased else count + 0).add(1e-6)).sqrt()


@patches("torch_scatter.segment_csr:segment_csr", stands_in=_SCATTER)
def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """A reduction of each segment; the segments lie one behind the other.

    Shapes:  src [n, ...], indptr [segments + 1] -> [segments, ...]. Raises: UserError E107 for segments of several axes.
    """
    refuse("segment_csr", out=out, indptr_of_several_axes=indptr.dim() > 1)
    starts = torch.zeros(src.shape[0] + 1, dtype=torch.int64, device=src.device)
    number = starts.index_add(0, indptr, torch.ones_like(indptr, dtype=torch.int64)).cumsum(0)[:-1]
    found: Tensor = _reduction(reduce)(
        src, number, 0, None, indptr.shape[0] + 1
    )  # what is outside is before and behind
    return found[1:-1]


@patches("torch_scatter.segment_csr:gather_csr", stands_in=_SCATTER)
def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Each element as often as its segment is long: the inverse of ``segment_csr``."""
    refuse("gather_csr", out=out, indptr_of_several_axes=indptr.dim() > 1)
    return src.repeat_interleave(indptr.diff(), dim=0)


@patches("torch_scatter.segment_coo:segment_coo", stands_in=_SCATTER)
def segment_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """``scatter`` along the last axis of ``index``, whose numbers ascend."""
    return scatter(src, index, index.dim() - 1, out, dim_size, reduce)


@patches("torch_scatter.segment_coo:gather_coo", stands_in=_SCATTER)
def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """The elements of ``src`` at ``index``: the inverse of ``segment_coo``."""
    refuse("gather_coo", out=out, index_of_several_axes=index.dim() > 1)
    return src[index]


@patches("torch_sparse.spmm:spmm", stands_in=("torch_sparse",))
def spmm(index: Tensor, value: Tensor, m: int, n: int, matrix: Tensor) -> Tensor:
    """The product of a sparse matrix [m, n] with ``value`` at ``index`` [2, entries], and ``matrix`` [..., n, width]."""
    row, column = index[0], index[1]
    matrix = matrix.unsqueeze(-1) if matrix.dim() == 1 else matrix
    return scatter_sum(matrix.index_select(-2, column) * value.unsqueeze(-1), row, -2, None, m)


def _distances(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None, cosine: bool) -> Tensor:
    """Squared distances, or 1 less the cosine; inf between examples. Shapes: x [n, d], y [m, d] -> [m, n]."""
    x, y = (part.unsqueeze(-1) if part.dim() == 1 else part for part in (x, y))
    if cosine:
        found = 1 - torch.nn.functional.normalize(y, dim=-1) @ torch.nn.functional.normalize(x, dim=-1).mT
    else:
        found = (y[:, None] - x).square().sum(dim=-1)
    if batch_x is None and batch_y is None:
        return found
    first, second = (
        part.new_zeros(part.shape[0], dtype=torch.int64) if batch is None else batch
        for batch, part in ((batch_x, x), (batch_y, y))
    )
    return found.masked_fill(second[:, None] != first, torch.inf)


@patches("torch_cluster.knn:knn", stands_in=_CLUSTER)
def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """The k nearest points of x to each of y, as pairs (place in y, place in x), the nearest first.

    Shapes:  x [n, d], y [m, d] -> int64 [2, pairs]. Cost: all distances at once.
    """
    distances = _distances(x, y, batch_x, batch_y, cosine)
    count: Any = torch.sym_min(x.shape[0], k)  # type: ignore[no-untyped-call]
    values, columns = distances.topk(count, dim=1, largest=False)
    rows = torch.arange(y.shape[0], device=y.device)[:, None].expand_as(columns)
    pairs = torch.stack([rows.flatten(), columns.flatten()])
    return pairs if batch_x is None and batch_y is None else pairs[:, values.flatten() < torch.inf]


@patches("torch_cluster.radius:radius", stands_in=_CLUSTER)
def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """The points of x nearer than r to each of y, as pairs (place in y, place in x); of too many the first.

    Shapes:  x [n, d], y [m, d] -> int64 [2, pairs]. Cost: all distances at once.
    """
    is_near = _distances(x, y, batch_x, batch_y, False) < r * r
    is_kept = is_near & (is_near.cumsum(dim=1) <= max_num_neighbors)
    return is_kept.nonzero().mT


def _graph(pairs: Tensor, loop: bool, flow: str) -> Tensor:
    row, column = (pairs[1], pairs[0]) if flow == "source_to_target" else (pairs[0], pairs[1])
    found = torch.stack([row, column])
    return found if loop else found[:, row != column]


@patches("torch_cluster.knn:knn_graph", stands_in=_CLUSTER)
def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Edges from the k nearest points to each point. Shapes: x [n, d] -> int64 [2, edges]."""
    return _graph(knn(x, x, k if loop else k + 1, batch, batch, cosine), loop, flow)


@patches("torch_cluster.radius:radius_graph", stands_in=_CLUSTER)
def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Edges from the points nearer than r to each point. Shapes: x [n, d] -> int64 [2, edges]."""
    return _graph(radius(x, x, r, batch, batch, max_num_neighbors + (not loop)), loop, flow)
