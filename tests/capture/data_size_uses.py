"""What programs do with a number that data tells: each takes tokens ``x``, [batch, rows, 4], and a number ``n``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Use = Callable[[Tensor, Any], Any]


def written(change: Callable[[Tensor, Any], object]) -> Use:
    """The tokens after ``change`` has written into a copy of them."""

    def use(x: Tensor, n: Any) -> Tensor:
        y = x.clone()
        change(y, n)
        return y

    return use


def put(y: Tensor, place: Any, value: Any) -> None:
    y[place] = value


def _add(y: Tensor, n: Any) -> None:
    y[:, :n] += 1


def _add_at(y: Tensor, n: Any) -> None:
    y[:, n] += 1


def _add_elsewhere(y: Tensor, n: Any) -> None:
    y[:, n - 1] = y[:, n - 1] * 2 + y[:, 0]


def _branch(x: Tensor, n: Any) -> Tensor:
    return x * 2 if n > 3 else x - 1


def _branch_of_all(x: Tensor, n: Any) -> Tensor:
    return x * 2 if n == x.shape[1] else x[:, :n].sum(1, keepdim=True) + x


def _cropped(x: Tensor, n: Any) -> Tensor:
    return x[:, :n] if x.shape[1] > n else x


def _padded_if_short(x: Tensor, n: Any) -> Tensor:
    more = n - x.shape[1]
    return F.pad(x, (0, 0, 0, more)) if more > 0 else x[:, :n]


SLICES: Mapping[str, Use] = {
    "narrow": lambda x, n: x.narrow(1, 0, n),
    "narrow at n": lambda x, n: x.narrow(1, n, 1),
    "narrow and mean": lambda x, n: x.narrow(1, 0, n).mean(1),
    "[:n]": lambda x, n: x[:, :n],
    "[n:]": lambda x, n: x[:, n:],
    "[-n:]": lambda x, n: x[:, -n:],
    "[:-n]": lambda x, n: x[:, :-n],
    "[1:n]": lambda x, n: x[:, 1:n],
    "[n:n + 2]": lambda x, n: x[:, n : n + 2],
    "[::n]": lambda x, n: x[:, ::n],
    "[n // 2:n]": lambda x, n: x[:, n // 2 : n],
    "[:rows - n]": lambda x, n: x[:, : x.shape[1] - n],
    "[..., :n, 0]": lambda x, n: x[..., :n, 0],
    "select": lambda x, n: x.select(1, n),
    "[n]": lambda x, n: x[:, n],
    "[n - 1]": lambda x, n: x[:, n - 1],
    "[-n]": lambda x, n: x[:, -n],
    "[0, n]": lambda x, n: x[0, n],
    "[n % 3]": lambda x, n: x[:, n % 3],
    "[n, None]": lambda x, n: x[:, n, None] + x,
    "[[0, n - 1]]": lambda x, n: x[:, [0, n - 1]],
    "[tensor([0, n - 1])]": lambda x, n: x[:, torch.tensor([0, n - 1])],
    "cropped if longer": _cropped,
    "padded if shorter": _padded_if_short,
}

WRITES: Mapping[str, Use] = {
    "[:n] = 0": written(lambda y, n: y[:, :n].zero_()),
    "[:n] = number": written(lambda y, n: put(y, (slice(None), slice(None, n)), 0.5)),
    "[n:] = number": written(lambda y, n: put(y, (slice(None), slice(n, None)), -1.0)),
    "[n] = number": written(lambda y, n: put(y, (slice(None), n), 1.0)),
    "[n] = rows": written(lambda y, n: put(y, (slice(None), n), y[:, 0] * 2)),
    "[n - 1] = number": written(lambda y, n: put(y, (slice(None), n - 1), 1.0)),
    "[:n] += 1": written(_add),
    "[n] += 1": written(_add_at),
    "[n - 1] = sum": written(_add_elsewhere),
    "[:n] = twice": written(lambda y, n: put(y, (slice(None), slice(None, n)), y[:, :n] * 2)),
    "[n:] = other end": written(lambda y, n: put(y, (slice(None), slice(n, None)), y[:, : y.shape[1] - n] * 3)),
    "[0, :n, 1] = number": written(lambda y, n: put(y, (0, slice(None, n), 1), 7.0)),
    "narrow.mul_": written(lambda y, n: y.narrow(1, 0, n).mul_(2)),
    "select.copy_": written(lambda y, n: y.select(1, n).copy_(y[:, 0] * 2)),
    "into zeros": lambda x, n: torch.zeros(x.shape[0], n, 4).copy_(x[:, :n]),
    "slice_scatter": lambda x, n: torch.slice_scatter(x, x[:, :n] * 2, 1, 0, n),
    "select_scatter": lambda x, n: torch.select_scatter(x, x[:, 0], 1, n),
    "index_fill": lambda x, n: x.index_fill(1, torch.arange(n), 2.0),
    "index_copy": lambda x, n: x.index_copy(1, torch.arange(n), x[:, :n] * 2),
    "index_add": lambda x, n: x.index_add(1, torch.arange(n), x[:, :n] * 2),
    "scatter into n": lambda x, n: torch.zeros(x.shape[0], n + 1, 4).scatter_add(
        1, (torch.arange(x.shape[1]) % (n + 1))[None, :, None].expand_as(x), x
    ),
}

SPLITS: Mapping[str, Use] = {
    "split([n, rows - n])": lambda x, n: x.split([n, x.shape[1] - n], 1),
    "split in three": lambda x, n: x.split([n, 1, x.shape[1] - n - 1], 1),
    "split(n)[0]": lambda x, n: x.split(n, 1)[0],
    "chunk(n)[0]": lambda x, n: x.chunk(n, 1)[0],
    "chunk of the slice": lambda x, n: x[:, :n].chunk(2, 1)[0] * 2,
    "tensor_split([n])": lambda x, n: x.tensor_split([n], 1),
    "tensor_split(n)[0]": lambda x, n: x.tensor_split(n, 1)[0],
    "unfold(n, 1)": lambda x, n: x.unfold(1, n, 1),
    "unfold(n, n)": lambda x, n: x.unfold(1, n, n),
    "unfold(2, n)": lambda x, n: x.unfold(1, 2, n),
    "cat of both": lambda x, n: torch.cat([x[:, :n] * 2, x[:, n:]], 1),
    "cat turned": lambda x, n: torch.cat([x[:, n:], x[:, :n]], 1),
    "stack of slices": lambda x, n: torch.stack([x[:, :n], x[:, :n] * 2]),
    "cat with zeros": lambda x, n: torch.cat([x, torch.zeros(x.shape[0], n, 4)], 1),
}

VIEWS: Mapping[str, Use] = {
    "reshape(-1)": lambda x, n: x[:, :n].reshape(-1),
    "reshape(batch, n * 4)": lambda x, n: x[:, :n].reshape(x.shape[0], n * 4),
    "flatten": lambda x, n: x[:, :n].flatten(1),
    "unflatten": lambda x, n: x[:, :n].unflatten(1, (n, 1)),
    "reshape to pairs": lambda x, n: x[:, :n].reshape(x.shape[0], n, 2, 2),
    "view(batch * n)": lambda x, n: x[:, :n].contiguous().view(x.shape[0] * n, 4),
    "view of repeats": lambda x, n: x.repeat(1, n, 1).view(x.shape[0], n, x.shape[1], 4),
    "view by n": lambda x, n: x.flatten(1)[:, : n * 4].view(x.shape[0], n, 4),
    "view(-1, n)": lambda x, n: x[:, :n].mT.reshape(-1, n),
    "transpose": lambda x, n: x[:, :n].transpose(1, 2) + 1,
    "expand": lambda x, n: x[:, :1].expand(-1, n, -1),
    "expand in full": lambda x, n: x[:, 0, None].expand(x.shape[0], n, 4),
    "expand a new axis": lambda x, n: x.unsqueeze(1).expand(-1, n, -1, -1),
    "expand to rows": lambda x, n: x[:, n : n + 1].expand(-1, x.shape[1], -1) + x,
    "expand_as": lambda x, n: x[:, :1].expand_as(x[:, :n]),
    "broadcast_to": lambda x, n: torch.broadcast_to(x[:, :1], (x.shape[0], n, 4)),
    "repeat": lambda x, n: x.repeat(1, n, 1),
    "tile": lambda x, n: x.tile(1, n, 1),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n, dim=1),
    "flip": lambda x, n: x[:, :n].flip(1),
    "squeeze of another axis": lambda x, n: x[:, :n, :1].squeeze(-1),
}

CREATION: Mapping[str, Use] = {
    "arange(n)": lambda x, n: torch.arange(n) + x.sum().long() * 0,
    "arange(rows) < n": lambda x, n: torch.arange(x.shape[1]) < n,
    "mask times x": lambda x, n: x * (torch.arange(x.shape[1]) < n)[None, :, None],
    "arange(n, rows)": lambda x, n: torch.arange(n, x.shape[1]),
    "arange(0, rows, n)": lambda x, n: torch.arange(0, x.shape[1], n),
    "zeros(n)": lambda x, n: torch.zeros(n) + x[0, 0, 0],
    "zeros(n, rows)": lambda x, n: torch.zeros(n, x.shape[1]) + x[0, :, 0],
    "ones and rows": lambda x, n: torch.ones(x.shape[0], n, 4) * x[:, :1],
    "full": lambda x, n: torch.full((n,), 2.0) + x[0, 0, 0],
    "full with n": lambda x, n: torch.full((2,), n) + x[0, 0, 0],
    "new_zeros": lambda x, n: x.new_zeros(n, 4),
    "new_ones": lambda x, n: x.new_ones((x.shape[0], n)),
    "new_full": lambda x, n: x.new_full((n,), 3.0),
    "zeros_like": lambda x, n: torch.zeros_like(x[:, :n]),
    "full_like with n": lambda x, n: torch.full_like(x, n),
    "shape of empty_like": lambda x, n: torch.empty_like(x[:, :n]).fill_(1),
    "shape of rand": lambda x, n: torch.rand(n, 3) * 0,
    "eye(n)": lambda x, n: torch.eye(n) + x[0, 0, 0],
    "eye(n, rows)": lambda x, n: torch.eye(n, x.shape[1]),
    "linspace": lambda x, n: torch.linspace(0, 1, n) + x[0, 0, 0],
    "tensor of n": lambda x, n: torch.tensor([n, 2]) + x.shape[1],
    "x * n": lambda x, n: x * n + n,
    "x / n": lambda x, n: x.sum(1) / (n + 1),
    "tril(n)": lambda x, n: x.tril(n),
    "triu(n)": lambda x, n: x.triu(n),
    "diagonal(n)": lambda x, n: x.transpose(1, 2).diagonal(n, 1, 2),
    "causal mask": lambda x, n: torch.ones(n, n).tril() + x[0, 0, 0],
    "tril_indices": lambda x, n: torch.tril_indices(n, n),
    "one_hot": lambda x, n: F.one_hot(torch.tensor([0, 1]), n + 2) + x[0, 0, 0],
    "bincount": lambda x, n: torch.bincount(torch.arange(x.shape[1]) % 3, minlength=n),
    "meshgrid": lambda x, n: torch.meshgrid(torch.arange(n), torch.arange(x.shape[1]), indexing="ij"),
}

MOVES: Mapping[str, Use] = {
    "roll(n)": lambda x, n: x.roll(n, 1),
    "roll(-n)": lambda x, n: x.roll(-n, 1),
    "pad by n": lambda x, n: F.pad(x, (0, 0, 0, n)),
    "pad before": lambda x, n: F.pad(x, (0, 0, n, 0), value=1.0),
    "pad to rows": lambda x, n: F.pad(x[:, :n], (0, 0, 0, x.shape[1] - n)),
    "pad by -n": lambda x, n: F.pad(x, (0, 0, 0, -n)),
    "pad by reflection": lambda x, n: F.pad(x.mT, (n - 1, 0), mode="reflect"),
    "pad by the edge": lambda x, n: F.pad(x.mT, (0, n), mode="replicate"),
    "interpolate": lambda x, n: F.interpolate(x.mT, size=n),
    "interpolate linearly": lambda x, n: F.interpolate(x.mT, size=n, mode="linear"),
    "interpolate to corners": lambda x, n: F.interpolate(x.mT, size=n + 1, mode="linear", align_corners=True),
    "interpolate the slice": lambda x, n: F.interpolate(x[:, :n].mT, size=x.shape[1], mode="linear"),
    "adaptive_avg_pool1d": lambda x, n: F.adaptive_avg_pool1d(x.mT, n),
    "adaptive_max_pool1d": lambda x, n: F.adaptive_max_pool1d(x.mT, n),
    "avg_pool1d(n)": lambda x, n: F.avg_pool1d(x.mT, n),
    "max_pool1d(2, n)": lambda x, n: F.max_pool1d(x.mT, 2, n),
}

REDUCTIONS: Mapping[str, Use] = {
    "topk": lambda x, n: x.topk(n, 1),
    "kthvalue": lambda x, n: x.kthvalue(n, 1),
    "sort of the slice": lambda x, n: x[:, :n].sort(1),
    "cumsum": lambda x, n: x[:, :n].cumsum(1),
    "softmax": lambda x, n: x[:, :n].softmax(1),
    "logsumexp": lambda x, n: x[:, :n].logsumexp(1),
    "mean": lambda x, n: x[:, :n].mean(1),
    "sum": lambda x, n: x[:, :n].sum(1),
    "max": lambda x, n: x[:, :n].max(1),
    "argmax": lambda x, n: x[:, :n].argmax(1),
    "std": lambda x, n: x[:, :n].std(1),
    "norm": lambda x, n: x[:, :n].norm(dim=1),
    "matmul": lambda x, n: x[:, :n] @ x[:, :n].mT,
    "matmul over n": lambda x, n: x[:, :n].mT @ x[:, :n],
    "einsum": lambda x, n: torch.einsum("bnc,bmc->bnm", x[:, :n], x),
    "linear": lambda x, n: F.linear(x[:, :n], torch.ones(3, 4)),
    "cdist": lambda x, n: torch.cdist(x[:, :n], x),
    "sum of slices": lambda x, n: x[:, :n] + x[:, :1],
    "slice and slice": lambda x, n: x[:, :n] + x[:, -n:] if n else x,
}

LAYERS: Mapping[str, Use] = {
    "gather": lambda x, n: x.gather(1, torch.arange(n)[None, :, None].expand(x.shape[0], n, 4)),
    "index_select": lambda x, n: x.index_select(1, torch.arange(n)),
    "[arange(n)]": lambda x, n: x[:, torch.arange(n)],
    "take_along_dim": lambda x, n: x.take_along_dim(torch.arange(n)[None, :, None] % x.shape[1], 1),
    "masked_fill": lambda x, n: x.masked_fill(torch.arange(x.shape[1])[None, :, None] >= n, 0.0),
    "where": lambda x, n: torch.where(torch.arange(x.shape[1])[:, None] < n, x, 0.0),
    "mask as index": lambda x, n: x[:, torch.arange(x.shape[1]) < n],
    "embedding": lambda x, n: F.embedding(torch.arange(n), torch.ones(20, 4)) + x[:, :1],
    "positions": lambda x, n: x[:, :n] + torch.ones(20, 4).cumsum(0)[:n],
    "conv1d": lambda x, n: F.conv1d(x[:, :n].mT, torch.ones(3, 4, 3), padding=1),
    "layer_norm": lambda x, n: F.layer_norm(x[:, :n], (4,)),
    "attention under a mask": lambda x, n: F.scaled_dot_product_attention(x, x, x, attn_mask=(torch.arange(x.shape[1]) <= n)[None]),
    "attention over the slice": lambda x, n: F.scaled_dot_product_attention(x, x[:, :n], x[:, :n]),
    "causal attention": lambda x, n: F.scaled_dot_product_attention(x[:, :n], x[:, :n], x[:, :n], is_causal=True),
    "unfold and fold": lambda x, n: F.fold(F.unfold(x[:, None, :n], (2, 1)), (n, 4), (2, 1)),
    "pairs": lambda x, n: x[:, :n, None] - x[:, None],
    "branch": _branch,
    "branch of all": _branch_of_all,
}  # fmt: skip

USES: Mapping[str, Use] = {
    **SLICES,
    **WRITES,
    **SPLITS,
    **VIEWS,
    **CREATION,
    **MOVES,
    **REDUCTIONS,
    **LAYERS,
}
