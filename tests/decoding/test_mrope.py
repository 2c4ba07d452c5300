"""Positions of tokens among images: measured by asking the model's own function, and compared with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.mrope import ImageLayout, image_layout, image_positions

GRID = {"image_grid_thw": torch.tensor([[1, 4, 6]])}
TWO_BY_THREE = ImageLayout(tuple((0, row, column) for row in range(2) for column in range(3)), 3)


def _none() -> int:
    raise AssertionError("a grid says how many features there are")


def _qwen2_vl() -> Any:
    vision = T.models.qwen2_vl.Qwen2VLVisionConfig(
        embed_dim=32, hidden_size=32, depth=1, num_heads=2, patch_size=4, spatial_merge_size=2, mlp_ratio=2
    ).to_dict()
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    text |= {"vocab_size": 60, "num_key_value_heads": 2}
    ends = {"vision_start_token_id": 57, "vision_end_token_id": 58}
    config = T.Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=59, **ends)
    with torch.device("meta"):
        return T.Qwen2VLForConditionalGeneration(config)


def _rows_and_columns(ids: list[int], token: int, rows: int, columns: int) -> list[tuple[int, int, int]]:
    """Token by token: an image starts where the text before it ends, and text goes on after its longer side."""
    places, at, inside = [], 0, 0
    for word in ids:
        if word == token:
            places.append((at, at + inside // columns, at + inside % columns))
            inside = (inside + 1) % (rows * columns)
            at += 0 if inside else max(rows, columns)
        else:
            places.append((at, at, at))
            at += 1
    return places


def test_positions_are_asked_for_with_words_that_stand_for_nothing() -> None:
    model = _qwen2_vl()
    for token in (3, 4, 5, 6, 7):
        model.config.image_token_id = token
        assert image_layout(model, GRID, _none) == TWO_BY_THREE


def test_positions_that_count_images_by_the_token_before_them() -> None:
    model = _qwen2_vl()
    model.config.vision_start_token_id = start = 11
    token = model.config.image_token_id

    def count(input_ids: torch.Tensor, image_grid_thw: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        before = input_ids[0, 1:][input_ids[0, :-1] == start]
        counted = token if (before == token).sum() == len(image_grid_thw) else -1
        return torch.tensor(_rows_and_columns(input_ids[0].tolist(), counted, 2, 3)).T[:, None], None

    model.model.get_rope_index = count
    assert image_layout(model, GRID, _none) == TWO_BY_THREE


def _canvas() -> Any:
    """MiniCPM-V 4.7 with markers around its images, of as many patches as 2 rows of 3 features have."""
    config = T.MiniCPMV4_7Config(
        image_token_id=59, image_start_id=50, image_end_id=51, slice_start_id=52, slice_end_id=53, newline_id=54
    )
    with torch.device("meta"):
        return T.models.minicpmv4_7.modeling_minicpmv4_7.MiniCPMV4_7Model(config)


@pytest.mark.parametrize(
    "words",
    [
        [5, 50, 1, 51, 54, 6, 7],
        [50, 1, 51, 6],
        [5, 6, 50, 1, 51, 50, 1, 51, 7],
        [5, 50, 1, 51, 54, 50, 1, 54, 54, 51],
        [5, 6, 1, 7, 1, 8],
        [5, 51, 54, 50, 1, 6, 51, 54],
        [5, 6, 7],
    ],
    ids=str,
)
def test_a_canvas_of_markers_around_images(words: list[int]) -> None:
    model = _canvas()
    sizes = torch.tensor([[8, 12]])
    layout = image_layout(model, {"target_sizes": sizes}, lambda: 6)
    assert layout is not None
    row = [token for word in words for token in ([59] * 6 if word == 1 else [word])]
    ids = torch.tensor([[*row, 0, 0], [0, 0, *row]])  # padding on the right, then on the left
    mask = torch.tensor([[1] * len(row) + [0, 0], [0, 0] + [1] * len(row)])
    expected, _ = model.get_rope_index(ids, (ids == 59).int(), sizes.repeat(2 * words.count(1), 1), attention_mask=mask)
    found = image_positions(ids, ids == 59, mask.bool(), layout)
    assert torch.equal(found, expected)
    if 51 in words:
        assert not torch.equal(
            found, image_positions(ids, ids == 59, mask.bool(), ImageLayout(layout.inside, layout.advance))
        )


def test_an_axis_of_its_own_for_the_order_of_images() -> None:
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 1, 1]}
    text |= {"vocab_size": 60, "num_key_value_heads": 2, "head_dim": 8, "rope_parameters": rope}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
    ids = {"image_token_id": 59, "im_start_id": 57, "im_end_id": 58, "im_newline_id": 56}
    with torch.device("meta"):
        model = T.HunYuanVLForConditionalGeneration(T.HunYuanVLConfig(text_config=text, vision_config=vision, **ids))
    layout = image_layout(model, GRID, lambda: 2 * (3 + 1) + 2)  # rows end with a feature more, images with two
    assert layout is not None
    assert layout.axes == 4
    image = [59] * 10
    rows = torch.tensor([[0, 5, *image, 6, *image, 7], [5, 6, 7, *image, 8, *image]])
    mask = torch.ones_like(rows)
    mask[0, 0] = 0
    expected, _ = model.model.get_rope_index(
        rows, (rows == 59).int(), GRID["image_grid_thw"].repeat(4, 1), attention_mask=mask
    )
    assert torch.equal(image_positions(rows, rows == 59, mask.bool(), layout), expected)
    assert image_layout(_qwen2_vl(), GRID, _none) == TWO_BY_THREE, "neither still nor in order"


def test_a_model_that_wants_a_token_behind_each_image() -> None:
    """As Qwen Omni's thinkers do: images side by side are nothing to ask about, others have to agree all the same."""
    model = _qwen2_vl()
    own, token = model.model.get_rope_index, model.config.image_token_id
    shift = 0

    def count(input_ids: torch.Tensor, **beside: Any) -> Any:
        ids = input_ids[0].tolist()
        if any(ids[place : place + 3] == [token, 57, token] for place in range(len(ids))):
            raise IndexError("no token behind the first image")
        found, delta = own(input_ids=input_ids, **beside)
        found[..., -1] += shift * (ids.count(57) == 2)
        return found, delta

    model.get_rope_index = lambda input_ids, mm_token_type_ids, image_grid_thw: count(
        input_ids, mm_token_type_ids=mm_token_type_ids, image_grid_thw=image_grid_thw
    )
    assert image_layout(model, GRID, _none) == TWO_BY_THREE
    shift = 1
    with pytest.raises(UserError, match="counts positions by rules of its own"):
        image_layout(model, GRID, lambda: 6)
