"""Texts packed into a row: told apart at every length as transformers tells them apart in eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.support import check

masking_utils = pytest.importorskip("transformers.masking_utils", reason="transformers is not installed")


class Packed(torch.nn.Module):
    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor | None = masking_utils.find_packed_sequence_indices(position_ids)
        return position_ids * 0 if found is None else found


@pytest.mark.compares("transformers.masking_utils:find_packed_sequence_indices")
def test_texts_are_told_apart_at_every_length() -> None:
    one, two = [0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 0]
    others = [torch.tensor([[0, 1, 2], [0, 0, 0]]), torch.tensor([[3]]), torch.tensor([[0, 1, 2, 3, 0]])]
    check(
        Packed(),
        (torch.tensor([one, two]),),
        others=[(other,) for other in others],
        dynamic_shapes={"position_ids": {0: "batch", 1: "length"}},
    )
