"""UDOP joins patches and words by where the words lie: the patch computes what the function does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.udop.modeling_udop import combine_image_text_embeddings

SIDE, WIDTH = 3, 5


def _sample(words: int) -> tuple[torch.Tensor, ...]:
    """Patches, words, and boxes: some in one patch, one of a special token (0), one at the far edge (1)."""
    boxes = torch.rand(2, words, 4)
    boxes[0, 0], boxes[1, 0], boxes[:, 1] = 0.0, 1.0, boxes[:, 2]
    return torch.randn(2, SIDE * SIDE, WIDTH), torch.randn(2, words, WIDTH), boxes, torch.ones(2, words)


@pytest.mark.compares("transformers.models.udop.modeling_udop:combine_image_text_embeddings")
@pytest.mark.parametrize(("max_len", "given"), [(0, False), (0, True), (20, False), (10, True)])
def test_words_and_free_patches(max_len: int, given: bool) -> None:
    def forward(patches: torch.Tensor, words: torch.Tensor, boxes: torch.Tensor, mask: torch.Tensor) -> Any:
        visual = patches[..., :4].double() if given else None
        size = {"num_patches": SIDE, "image_size": SIDE * 4, "patch_size": 4}
        return combine_image_text_embeddings(patches, words * 1, boxes, visual, mask, max_len=max_len, **size)

    torch.manual_seed(0)
    others = [_sample(4), _sample(4)]
    result = check(forward, _sample(4), others=others)
    assert any("sorted to the front" in str(note) for note in result.report.assumptions)
