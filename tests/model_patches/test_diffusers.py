"""Patches of diffusers give the numbers of what they replace."""

from __future__ import annotations

import pytest
import torch

from tests.support import check

LUMINA = "diffusers.models.transformers.transformer_lumina2"
MODULE = "diffusers.models.autoencoders.autoencoder_kl_cogvideox"


@pytest.mark.long
@pytest.mark.compares(f"{MODULE}:CogVideoXSafeConv3d.forward")
def test_frames_of_any_number_and_size() -> None:
    module = pytest.importorskip(MODULE)
    torch.manual_seed(0)
    layer = module.CogVideoXSafeConv3d(2, 3, kernel_size=3).eval()
    sizes = [{2: "frames", 3: "height", 4: "width"}]
    others = [(torch.randn(1, 2, *size),) for size in ((3, 3, 3), (4, 9, 5), (7, 4, 8))]
    result = check(layer, (torch.randn(1, 2, 5, 6, 7),), others=others, dynamic_shapes=sizes)
    assert not [node for node in result.model.graph if node.op_type == "If"]


@pytest.mark.long
@pytest.mark.compares(f"{LUMINA}:Lumina2Transformer2DModel.forward")
def test_prompts_of_several_lengths() -> None:
    module = pytest.importorskip(LUMINA)
    torch.manual_seed(0)
    model = module.Lumina2Transformer2DModel(
        sample_size=4,
        hidden_size=16,
        in_channels=4,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=[4, 2, 2],
        axes_lens=[32, 16, 16],
        cap_feat_dim=8,
    ).eval()

    def inputs(lengths: list[int], tokens: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
        batch = len(lengths)
        mask = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
        return torch.randn(batch, 4, height, width), torch.rand(batch), torch.randn(batch, tokens, 8), mask

    sizes = ({0: "batch", 2: "height", 3: "width"}, {0: "batch"}, {0: "batch", 1: "length"}, {0: "batch", 1: "length"})
    padded_before = inputs([2, 9], 12, 6, 2)
    others = [inputs([7, 7, 7], 7, 4, 6), inputs([1], 3, 8, 4), (*padded_before[:3], padded_before[3].flip(1))]
    check(model, inputs([5, 3], 6, 4, 8), others=others, dynamic_shapes=sizes, atol=1e-5)
