"""Modules that have every kind of weight that can be quantised."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """A table shared with a head, products with and without a bias, rows of an odd length, a convolution with a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(100, 128)
        self.up = nn.Linear(128, 96)
        self.down = nn.Linear(96, 128, bias=False)
        self.odd = nn.Linear(77, 128)
        self.conv = nn.Conv1d(128, 64, 3)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(128, 100, bias=False)
        self.head.weight = self.table.weight
        self.norm.running_var.uniform_(0.5, 2)
        self.norm.weight.data.normal_()
        self.eval()

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.table(ids)
        hidden = hidden + self.down(torch.relu(self.up(hidden))) + self.odd(x)
        return self.head(hidden), self.norm(self.conv(hidden.transpose(1, 2)))


SAMPLE = (
    torch.randint(0, 100, (2, 7), generator=torch.Generator().manual_seed(0)),
    torch.linspace(-2, 2, 1078).reshape(2, 7, 77),
)
DYNAMIC = {"ids": {0: "b", 1: "s"}, "x": {0: "b", 1: "s"}}
