"""Programs whose composite overloads cannot be recorded whole, and sizes that baked inputs decide."""

from __future__ import annotations

import torch

from tests.support import check


class RecurrentBesideVmap(torch.nn.Module):
    """A function transform makes capture split composite overloads, an LSTM among them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row * 2)(self.layer(x)[0])


def test_a_split_lstm_has_no_operators_of_onednn() -> None:
    enabled = torch.backends.mkldnn.enabled
    check(RecurrentBesideVmap(), (torch.randn(2, 3, 4),))
    assert torch.backends.mkldnn.enabled == enabled


def test_repeats_from_a_baked_input() -> None:
    """As vision encoders count the patches of each image."""

    def lengths(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0)), x * 2

    grid = torch.tensor([[1, 4, 4], [2, 2, 3]])
    x = torch.randn(3)
    check(lambda x: lengths(x, grid), (x,))
