"""Convolutions of videos that diffusers takes in parts: all frames at once are the same numbers."""

from __future__ import annotations

import pytest
import torch

from tests.support import check

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
