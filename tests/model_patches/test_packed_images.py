"""Vision encoders for images packed in a row: exported once, right for images of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fx2onnx
from fx2onnx.base.code_patch import THREAD
from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import vision_utils  # noqa: E402
from transformers.models.glm4v import modeling_glm4v  # noqa: E402
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl  # noqa: E402
from transformers.models.qwen2_vl import modeling_qwen2_vl  # noqa: E402
from transformers.models.qwen3_vl import modeling_qwen3_vl  # noqa: E402

ATTENTION = (
    "transformers.utils.generic:is_flash_attention_requested",
    "transformers.modeling_utils:AttentionInterface.get_interface",
)
WINDOWS = "transformers.vision_utils:get_vision_window_index"
PATCHES: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
ENCODERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "Qwen2-VL": (modeling_qwen2_vl, "Qwen2VisionTransformerPretrainedModel", {"embed_dim": 32, "hidden_size": 48, "in_channels": 3, "mlp_ratio": 2}),
    "Qwen2.5-VL": (
        modeling_qwen2_5_vl,
        "Qwen2_5_VisionTransformerPretrainedModel",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "window_size": 16,
            "out_hidden_size": 40,
            "fullatt_block_indexes": [1],
        },
    ),
    "Qwen3-VL": (
        modeling_qwen3_vl,
        "Qwen3VLVisionModel",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 40,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    ),
    "GLM-4V": (modeling_glm4v, "Glm4vVisionModel", {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 40, "image_size": 32}),
}  # fmt: skip


def grid(*sizes: list[int]) -> Tensor:
    return torch.tensor(sizes)


def patches_of(images: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(int(images.prod(1).sum()), 3 * 2 * 4 * 4), images


SAMPLE = grid([1, 4, 6], [1, 8, 4])
OTHERS = [grid([1, 4, 4], [1, 4, 4]), grid([1, 12, 6], [1, 2, 2]), grid([1, 6, 10], [1, 4, 8])]
VIDEOS = [grid([2, 4, 4], [1, 4, 4]), grid([3, 6, 10], [2, 4, 8])]


class Encoder(nn.Module):
    """Every tensor that the encoder gives."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__()
        file, kind, sizes = ENCODERS[name]
        torch.manual_seed(0)
        model = getattr(file, kind)
        config = model.config_class(**PATCHES | sizes)
        config._attn_implementation = more.get("attention", "sdpa")
        self.encoder = model(config)

    def forward(self, pixel_values: Tensor, grid_thw: Tensor) -> list[Tensor]:
        outputs = self.encoder(pixel_values, grid_thw=grid_thw)
        deep = getattr(outputs, "deepstack_features", None) or []
        return [outputs.last_hidden_state, outputs.pooler_output, *deep]


@pytest.mark.long
@pytest.mark.compares(*ATTENTION)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_an_encoder_takes_images_of_other_sizes(name: str, attention: str) -> None:
    grids = OTHERS if name == "GLM-4V" else OTHERS + VIDEOS  # transformers looks up each frame of GLM-4V as an image
    result = check(
        Encoder(name, attention=attention),
        patches_of(SAMPLE),
        others=[patches_of(images) for images in grids],
        dynamic_shapes={"pixel_values": {0: "patches"}, "grid_thw": None},
    )
    assert [value.name for value in result.model.graph.inputs] == ["pixel_values", "grid_thw"]


@pytest.mark.compares(WINDOWS)
@pytest.mark.parametrize("merge", [1, 2])
def test_windows_of_images(merge: int) -> None:
    def windows(images: Tensor) -> Any:
        return vision_utils.get_vision_window_index(images, merge, 12 * merge, 4)

    check(windows, (SAMPLE,), others=[(images,) for images in OTHERS + VIDEOS])


def test_parts_of_a_known_number_are_attended_to_one_by_one() -> None:
    result = fx2onnx.export(Encoder("Qwen2-VL"), patches_of(SAMPLE), bake=["grid_thw"])
    counted = sum(node.op_type == "Softmax" for node in result.model.graph)
    assert counted == len(SAMPLE) * PATCHES["depth"]


@pytest.mark.compares("transformers.modeling_utils:AttentionInterface.get_interface")
@pytest.mark.parametrize("is_causal", [True, False])
def test_packed_attention_in_one(is_causal: bool) -> None:
    """What flash attention makes of packed parts, each by itself."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module = nn.Module()

    def packed(x: Tensor, lengths: Tensor) -> Tensor:
        ends = torch.nn.functional.pad(lengths[lengths > 0].cumsum(0), (1, 0))
        attention: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)  # type: ignore[arg-type]
        known = None if THREAD.captures else lengths[lengths > 0].tolist()
        if known is None:
            rest = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "is_causal": is_causal}
            return attention(module, x, x, x, attention_mask=None, **rest)[0] * 1
        parts = [
            attention(module, part, part, part, attention_mask=None, is_causal=is_causal)[0]
            for part in x.split(known, 2)
        ]
        return torch.cat(parts, dim=1)

    x = torch.randn(1, 2, 9, 4)
    check(packed, (x, torch.tensor([4, 0, 5])), others=[(x, torch.tensor([2, 3, 4])), (x, torch.tensor([0, 9, 0]))])


@pytest.mark.long_cases("eager")
@pytest.mark.compares("transformers.models.pixtral.modeling_pixtral:PixtralVisionModel.forward")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_batch_of_images_of_one_size(attention: str) -> None:
    config = transformers.PixtralVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=8
    )
    config._attn_implementation = attention
    with seeded(0):
        encoder = transformers.PixtralVisionModel(config).eval()
        samples = [(torch.randn(batch, 3, *sizes),) for batch, *sizes in ((2, 32, 24), (1, 32, 24), (3, 17, 40))]

    def forward(pixel_values: Tensor) -> Tensor:
        output: Tensor = encoder(pixel_values).last_hidden_state
        return output

    axes = {0: "batch", 2: "height", 3: "width"}
    check(forward, samples[0], others=samples[1:], dynamic_shapes=[axes])
