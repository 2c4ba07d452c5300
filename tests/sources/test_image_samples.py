"""Sample images for encoders: in the layout that the method's parameters name, of the sizes that the layers take."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.sources.hf.image_samples import image_forms
from fx2onnx.sources.hf.sample_context import SampleContext
from fx2onnx.sources.source import Options
from studies.coverage_configs import shrink


class Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return vars(self)

    model_type = "any"


class Patches(torch.nn.Module):
    """A model whose layer of patches takes another width than its config says."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.text_projection = torch.nn.Linear(5, 5)
        self.patch_embedding = layer


def forms(method: Any, config: Config, module: Any = None) -> list[dict[str, torch.Tensor]]:
    call = SampleContext(config, Options(batch=2), module)
    return [
        {name: maker.make(call) for name, maker in form.items()}
        for form in image_forms(inspect.signature(method).parameters, call)
    ]


@pytest.mark.parametrize("layer", [torch.nn.Linear(75, 4), torch.nn.Conv2d(3, 4, kernel_size=5)])
def test_patches_in_rows_fit_the_layer_and_their_places(layer: torch.nn.Module) -> None:
    def method(pixel_values: Any, spatial_shapes: Any, pixel_attention_mask: Any, image_position_ids: Any) -> None: ...

    (found,) = forms(method, Config(patch_size=14), Patches(layer))
    rows, columns = found["spatial_shapes"][0].tolist()
    assert found["pixel_values"].shape == (2, rows * columns, 75)
    assert found["pixel_attention_mask"].tolist() == [[1] * (rows * columns)] * 2
    places = found["image_position_ids"]
    assert places.shape == (2, rows * columns, 2)
    assert places[1].amax(0).tolist() == [columns - 1, rows - 1]
    assert len({tuple(place) for place in places[0].tolist()}) == rows * columns


def test_grids_come_with_the_merges_of_their_images() -> None:
    def method(pixel_values: Any, image_grid_thw: Any, image_merge_sizes: Any) -> None: ...

    found = forms(method, Config(spatial_merge_size=3, patch_size=2))[0]
    assert found["image_merge_sizes"].tolist() == [3]
    assert (found["image_grid_thw"][:, 1:] % 3 == 0).all()
    assert found["pixel_values"].shape == (int(found["image_grid_thw"].prod()), 3 * 2 * 2)


def test_a_second_image_has_the_size_of_its_own_config() -> None:
    def method(pixel_values: Any, high_res_pixel_values: Any) -> None: ...

    config = Config(vision_config=Config(image_size=8), high_res_vision_config=Config(image_size=24))
    found = forms(method, config)[0]
    assert found["pixel_values"].shape == (2, 3, 8, 8)
    assert found["high_res_pixel_values"].shape == (2, 3, 24, 24)


def test_images_have_a_number_of_patches_that_the_config_lists() -> None:
    def method(pixel_values: Any) -> None: ...

    config = Config(projector_patch_to_query_dict={25: 4, 100: 9}, vision_config=Config(image_size=8, patch_size=2))
    assert (2, 3, 10, 10) in [tuple(form["pixel_values"].shape) for form in forms(method, config)]


def test_tiles_come_with_the_mask_of_tiles() -> None:
    def method(pixel_values: Any, pixel_attention_mask: Any = None) -> None: ...

    *_, found = forms(method, Config(image_size=8))
    assert found["pixel_values"].shape == (2, 1, 3, 8, 8)
    assert found["pixel_attention_mask"].tolist() == [[True], [True]]


def test_patches_of_frames_have_their_channels_last() -> None:
    def method(pixel_values: Any) -> None: ...

    config = Config(vision_config=Config(image_size=8, patch_size=4, temporal_patch_size=2))
    assert forms(method, config)[-1]["pixel_values"].shape == (2, 2, 4, 4, 3)


def test_shrinking_keeps_the_layers_that_are_read_and_what_a_shuffle_makes() -> None:
    config = {
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "global_attn_indexes": (2, 5, 8, 11),
        "deepstack_visual_indexes": [1, 3],
        "vision_feature_layer": [24, 18],
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "intermediate_size": 5632,
        "vision_output_dim": 7680,
    }
    found = shrink(config, ("depth", "width"))
    assert found["global_attn_indexes"] == [0, 1]
    assert found["deepstack_visual_indexes"] == [0]
    by_depth = shrink({"depth": 27, "deepstack_visual_indexes": [8, 16, 24]}, ("depth",))
    assert by_depth == {"depth": 2, "deepstack_visual_indexes": [0, 1]}
    assert found["vision_feature_layer"] == [-1, -2]
    assert found["intermediate_size"] == 64 * 4
    assert found["vision_output_dim"] == found["projector_output_dim"]


def test_shrinking_can_leave_encoders_their_widths() -> None:
    config = {
        "text_config": {"hidden_size": 768},
        "vision_config": {"hidden_size": 768},
        "timm_config": {"architecture": "resnet18", "hidden_size": 2048},
    }
    found = shrink(config, ("width of text",))
    assert [found[part]["hidden_size"] for part in config] == [64, 768, 2048]
    assert shrink(config, ("width",))["timm_config"]["hidden_size"] == 2048


def test_images_are_as_large_as_the_arguments_of_a_timm_model_say() -> None:
    vision = Config(model_args={"img_size": [64, 48]})
    assert SampleContext(Config(vision_config=vision), Options()).image_size() == (64, 48)
    assert SampleContext(Config(vision_config=Config(model_args=None)), Options()).image_size() == (224, 224)


def test_a_part_that_is_all_defaults_gets_what_checkpoints_have() -> None:
    empty = {"vision_use_cls_token": True, "vision_config": {"architecture": "resnet50", "model_args": None}}
    assert shrink(empty, ())["vision_config"]["model_args"]["embed_dim"] == 64
    said = {**empty, "vision_config": {"architecture": "resnet50", "model_args": {"embed_dim": 32}}}
    assert shrink(said, ())["vision_config"] == said["vision_config"]


def test_a_text_that_the_encoder_reads_is_of_its_own_vocabulary() -> None:
    def method(pixel_values: Any, qformer_input_ids: Any, qformer_attention_mask: Any = None) -> None: ...

    found = forms(method, Config(image_size=8, vocab_size=20_000, qformer_config=Config(vocab_size=12)))[0]
    assert found["qformer_input_ids"].shape == found["qformer_attention_mask"].shape
    assert 0 <= found["qformer_input_ids"].min() <= found["qformer_input_ids"].max() < 12
    assert found["qformer_attention_mask"].all()


def test_squares_of_patches_are_as_many_as_features() -> None:
    def method(pixel_values: Any, image_grid_thw: Any) -> None: ...

    found = forms(method, Config(patch_size=5, spatial_merge_size=3, num_channels=2))[-1]
    assert found["pixel_values"].shape == (int(found["image_grid_thw"].prod()), 15, 15, 2)
