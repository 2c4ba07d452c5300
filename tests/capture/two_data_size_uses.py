"""What programs do with two numbers that data tells: each takes tokens ``x``, [batch, rows, 4], and numbers ``h`` and ``w``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Use = Callable[[Tensor, Any, Any], Any]


def maps(x: Tensor, h: Any, w: Any) -> Tensor:
    """The first tokens as images, [batch, 4, h, w]."""
    return x[:, : h * w].reshape(x.shape[0], h, w, 4).permute(0, 3, 1, 2)


def _center(x: Tensor, h: Any, w: Any) -> Tensor:
    top, left = (x.shape[1] - h) // 2, (4 - w) // 2
    return x[:, top : top + h, left : left + w]


def _written(x: Tensor, h: Any, w: Any) -> Tensor:
    y = x.clone()
    y[:, :h, :w] = 0.5
    return y


def _written_at(x: Tensor, h: Any, w: Any) -> Tensor:
    y = x.clone()
    y[:, h, w] = 0.5
    return y


def _pasted(x: Tensor, h: Any, w: Any) -> Tensor:
    y = torch.zeros(x.shape[0], x.shape[1] + 2, 6)
    y[:, 1 : h + 1, 1 : w + 1] = x[:, :h, :w]
    return y


def _grid(h: Any, w: Any) -> Tensor:
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    return torch.stack([columns, rows], -1)


def _windows(x: Tensor, h: Any, w: Any) -> Tensor:
    y = x[:, : h * w].view(x.shape[0], h, w, 4)
    y = F.pad(y, (0, 0, 0, -w % 2, 0, -h % 2))
    rows, columns = y.shape[1] // 2, y.shape[2] // 2
    return y.view(x.shape[0], rows, 2, columns, 2, 4).transpose(2, 3).reshape(-1, 4, 4)


def _positions(x: Tensor, h: Any, w: Any) -> Tensor:
    table = torch.arange(64.0).view(1, 4, 4, 4).permute(0, 3, 1, 2) / 64
    found = F.interpolate(table, size=(h, w), mode="bilinear", align_corners=False)
    return x[:, : h * w] + found.flatten(2).transpose(1, 2)


USES: Mapping[str, Use] = {
    "view to maps": lambda x, h, w: x[:, : h * w].view(x.shape[0], h, w, -1),
    "view to maps in full": lambda x, h, w: x[:, : h * w].view(x.shape[0], h, w, 4),
    "maps, channels first": maps,
    "view of the transposed": lambda x, h, w: x[:, : h * w].mT.reshape(x.shape[0], 4, h, w),
    "unflatten": lambda x, h, w: x[:, : h * w].unflatten(1, (h, w)),
    "maps and back": lambda x, h, w: maps(x, h, w).flatten(2).mT + x[:, : h * w],
    "windows": _windows,
    "convolution of maps": lambda x, h, w: F.conv2d(maps(x, h, w), torch.ones(2, 4, 3, 3), padding=1),
    "max_pool2d of maps": lambda x, h, w: F.max_pool2d(maps(x, h, w), 3, 2, 1),
    "mean of maps": lambda x, h, w: maps(x, h, w).mean((2, 3)),
    "unfold of maps": lambda x, h, w: F.unfold(maps(x, h, w), 3, padding=1),
    "fold": lambda x, h, w: F.fold(x[:, : h * w].mT, (h, w), 1),
    "maps resized": lambda x, h, w: F.interpolate(maps(x, h, w), scale_factor=2.0),
    "interpolated positions": _positions,
    "zeros": lambda x, h, w: torch.zeros(h, w) + x[0, 0, 0],
    "ones and batch": lambda x, h, w: torch.ones(x.shape[0], h, w) * x[:, :1, :1],
    "eye": lambda x, h, w: torch.eye(h, w) + x[0, 0, 0],
    "tril": lambda x, h, w: torch.ones(h, w).tril() + x[0, 0, 0],
    "sum of aranges": lambda x, h, w: torch.arange(h)[:, None] * 10 + torch.arange(w) + x[0, 0, 0],
    "arange as a map": lambda x, h, w: torch.arange(h * w).view(h, w) + x[0, 0, 0],
    "meshgrid": lambda x, h, w: torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"),
    "mask": lambda x, h, w: x * ((torch.arange(x.shape[1]) < h)[:, None] & (torch.arange(4) < w)),
    "grid": lambda x, h, w: F.grid_sample(x[:, None], _grid(h, w).expand(x.shape[0], h, w, 2), align_corners=False),
    "affine_grid": lambda x, h, w: F.affine_grid(torch.eye(2, 3)[None], [1, 1, h, w], align_corners=False),
    "interpolate": lambda x, h, w: F.interpolate(x[:, None], size=(h, w)),
    "interpolate bilinearly": lambda x, h, w: F.interpolate(x[:, None], size=(h, w), mode="bilinear"),
    "interpolate bicubically": lambda x, h, w: F.interpolate(x[:, None], size=(h, w), mode="bicubic"),
    "interpolate the crop": lambda x, h, w: F.interpolate(x[:, None, :h, :w], size=x.shape[1:], mode="bilinear"),
    "adaptive_avg_pool2d": lambda x, h, w: F.adaptive_avg_pool2d(x[:, None], (h, w)),
    "adaptive_max_pool2d": lambda x, h, w: F.adaptive_max_pool2d(x[:, None], (h, w)),
    "crop": lambda x, h, w: x[:, :h, :w],
    "center crop": _center,
    "crop and rest": lambda x, h, w: (x[:, :h, :w] * 2, x[:, h:, w:]),
    "[h:h + w]": lambda x, h, w: x[:, h : h + w],
    "[h:w]": lambda x, h, w: x[:, h:w],
    "[h, w]": lambda x, h, w: x[:, h, w],
    "narrow": lambda x, h, w: x.narrow(1, h, w) + 1,
    "[:h, :w] = number": _written,
    "[h, w] = number": _written_at,
    "pasted into zeros": _pasted,
    "pad": lambda x, h, w: F.pad(x, (0, w, 0, h)),
    "pad to size": lambda x, h, w: F.pad(x[:, :h, :w], (0, 4 - w, 0, x.shape[1] - h)),
    "roll": lambda x, h, w: x.roll((h, w), (1, 2)),
    "repeat": lambda x, h, w: x.repeat(h, w, 1),
    "expand": lambda x, h, w: x[:, :1, None].expand(-1, h, w, -1),
    "split": lambda x, h, w: x.split([h, w, x.shape[1] - h - w], 1),
    "cat": lambda x, h, w: torch.cat([x[:, :h], x[:, :w] * 2], 1),
    "matmul": lambda x, h, w: x[:, :h] @ x[:, :w].mT,
    "einsum": lambda x, h, w: torch.einsum("bnc,bmc->nm", x[:, :h], x[:, :w]),
    "pairs": lambda x, h, w: x[:, :h, None] + x[:, None, :w],
    "attention": lambda x, h, w: F.scaled_dot_product_attention(x[:, :h], x[:, :w], x[:, :w]),
    "larger of both": lambda x, h, w: x[:, : max(h, w)].sum(1) + x[:, : min(h, w)].sum(1),
    "outer where": lambda x, h, w: torch.where(x[:, :h, None] > 0, x[:, None, :w], 0.0),
    "outer reshaped": lambda x, h, w: (x[:, :h, None] * x[:, None, :w]).reshape(-1, h * w, 4),
    "outer and back": lambda x, h, w: (x[0, :h, None] * x[0, None, :w]).reshape(-1, 4).view(w, h, 4),
    "places of both": lambda x, h, w: x[:, torch.arange(h)[:, None], torch.arange(w)],
    "repeat_interleave": lambda x, h, w: x[:, :h].repeat_interleave(w, 1),
    "tiles": lambda x, h, w: x[:, :h].repeat(1, w, 1) + x[:, :w].repeat(1, h, 1),
    "kron": lambda x, h, w: torch.kron(x[0, :h], x[0, :w]),
    "isin": lambda x, h, w: torch.isin(x[:, :h], x[:, :w]),
    "cdist": lambda x, h, w: torch.cdist(x[:, :h], x[:, :w]),
    "block_diag": lambda x, h, w: torch.block_diag(x[0, :h], x[0, :w]),
    "linear": lambda x, h, w: F.linear(x[:, :h], x[0, :w], x[0, :w, 0]),
    "max_pool1d": lambda x, h, w: F.max_pool1d(x[:, :w].mT, h, 1),
    "expand_as": lambda x, h, w: x[0, :h].sum(0).expand_as(x[0, :w]),
}
