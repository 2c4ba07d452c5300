"""Positions that Python lists one by one: the patches give those of every length."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.cpmant import modeling_cpmant as cpmant  # noqa: E402
from transformers.models.funnel import modeling_funnel as funnel  # noqa: E402
from transformers.models.prophetnet import modeling_prophetnet as prophetnet  # noqa: E402
from transformers.models.reformer import modeling_reformer as reformer  # noqa: E402

AXES = {"x": {0: "batch", 1: "length"}}


FUNNELS = [*itertools.product((True, False), (True, False), [(12, 8, 9, 23)]), (True, True, (5, 2))]


@pytest.mark.compares(f"{funnel.__name__}:FunnelAttentionStructure.get_position_embeds")
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


@pytest.mark.compares(f"{reformer.__name__}:AxialPositionEmbeddings.forward")
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


@pytest.mark.compares(f"{cpmant.__name__}:CpmAntModel._prepare_attention_mask")
def test_tokens_counted_from_the_last() -> None:
    class Mask(torch.nn.Module):
        prompt_length = 2

        def forward(self, ids: torch.Tensor, span: torch.Tensor, context: torch.Tensor, length: torch.Tensor) -> Any:
            return cpmant.CpmAntModel._prepare_attention_mask(self, ids, span, context, length)  # type: ignore[arg-type]

    def sample(batch: int, tokens: int) -> tuple[torch.Tensor, ...]:
        with seeded(tokens):
            ids, span, context = (torch.randint(0, 2, (batch, 2 + tokens)) for _ in range(3))
            return ids, span, context > 0, torch.randint(1, tokens + 1, (batch,))

    axes = {0: "batch", 1: "all"}
    check(Mask(), sample(2, 5), others=[sample(3, 1), sample(1, 9)], dynamic_shapes=(axes, axes, axes, {0: "batch"}))


@pytest.mark.compares(f"{prophetnet.__name__}:ProphetNetPositionalEmbeddings.forward")
@pytest.mark.parametrize("kind", ["mask", "past", "neither"])
def test_learned_positions(kind: str) -> None:
    config = transformers.ProphetNetConfig(hidden_size=4, max_position_embeddings=12, pad_token_id=1)
    with seeded(0):
        embeddings = prophetnet.ProphetNetPositionalEmbeddings(config).eval()

    def forward(x: torch.Tensor, before: torch.Tensor) -> Any:
        mask = (x > 0).long() if kind == "mask" else None
        past = SimpleNamespace(get_seq_length=lambda: before.shape[1]) if kind == "past" else None
        return embeddings(x.shape, x.device, mask, past)

    def sample(batch: int, length: int, before: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, length), torch.randn(batch, before)

    shapes = {"x": {0: "batch", 1: "length"}, "before": {0: "batch", 1: "past"}}
    others = [sample(3, 2, 7), sample(1, 1, 1), *([] if kind == "past" else [sample(2, 14, 2)])]
    check(forward, sample(2, 3, 4), others=others, dynamic_shapes=shapes)


@pytest.mark.compares("transformers.models.sam3.modeling_sam3:Sam3ViTEmbeddings._tile_position_embeddings")
def test_positions_are_tiled() -> None:
    from transformers.models.sam3.modeling_sam3 import Sam3ViTEmbeddings

    table = torch.randn(1, 9, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape
        return Sam3ViTEmbeddings._tile_position_embeddings(None, table, height, width)

    others = [(torch.zeros(sizes),) for sizes in ((1, 1), (2, 3), (3, 7), (6, 6), (7, 2))]
    result = check(forward, (torch.zeros(3, 3),), others=others, dynamic_shapes=[{0: "height", 1: "width"}])
    assert not [each for each in result.report.assumptions if each.kind == "condition"]
