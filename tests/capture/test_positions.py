"""Positions that Python lists one by one: the stand-ins give those of every length."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.torchvision_compat import prepare
from tests.support import check

prepare()
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.funnel import modeling_funnel as funnel  # noqa: E402
from transformers.models.reformer import modeling_reformer as reformer  # noqa: E402

AXES = {"x": {0: "batch", 1: "length"}}


FUNNELS = [*itertools.product((True, False), (True, False), [(12, 8, 9, 23)]), (True, True, (5, 2))]


@pytest.mark.parametrize(("separate_cls", "truncate", "lengths"), FUNNELS)
def test_distances_of_every_block(separate_cls: bool, truncate: bool, lengths: tuple[int, ...]) -> None:
    config = transformers.FunnelConfig(
        block_sizes=[1] * min(len(lengths), 3), d_model=8, separate_cls=separate_cls, truncate_seq=truncate
    )
    structure = funnel.FunnelAttentionStructure(config).eval()

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        blocks = structure.get_position_embeds(x.size(1), x.dtype, x.device)
        return [table for block in blocks for table in block if table is not None]

    others = [(torch.ones(1, length),) for length in lengths[1:]]
    check(forward, (torch.ones(2, lengths[0]),), others=others, dynamic_shapes=AXES)


def test_axial_positions_of_every_row() -> None:
    config = transformers.ReformerConfig(axial_pos_shape=[4, 8], axial_pos_embds_dim=[3, 5], hidden_size=8)
    with seeded(0):
        embeddings = reformer.AxialPositionEmbeddings(config).eval()
        for weight in embeddings.weights:
            torch.nn.init.normal_(weight)

    def sample(batch: int, length: int) -> tuple[Any, ...]:
        return (torch.randint(0, 32, (batch, length)),)

    result = check(lambda x: embeddings(x), sample(2, 9), others=[sample(3, 32), sample(1, 1)], dynamic_shapes=AXES)
    assert not any("batch" in str(note) for note in result.report.assumptions)
