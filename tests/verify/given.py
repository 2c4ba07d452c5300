"""A module of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]


class Given(nn.Module):
    def __init__(self, given: Forward) -> None:
        super().__init__()
        self.given = given

    def forward(self, *args: torch.Tensor) -> Any:
        return self.given(*args)
