"""Positions of tokens among images of any size, beside those of the model's own ``get_rope_index``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.decoding.mrope import GridLayout, grid_layout
from tests.support import check

SAMPLE = {"pixel_values": torch.zeros(24, 96), "image_grid_thw": torch.tensor([[1, 4, 6]])}
IMAGE, START = 59, 57
PROMPTS: list[list[tuple[list[int], list[tuple[int, int]]]]] = [
    [([5, 6, -1, 7], [(2, 3)])],
    [([5, -1, 6, -1, 7, 8], [(4, 1), (1, 1)]), ([-1, 9], [(3, 5)])],
    [([5, 6, 7], []), ([-1, -1, 8], [(1, 4), (4, 1)]), ([9, -1], [(2, 2)])],
    [([5, 6], []), ([7], [])],
]
"""Rows of words, of which -1 is an image, and the rows and columns of features of each."""


def _model(name: str = "Qwen2VL", merge: int = 2) -> Any:
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    text |= {"vocab_size": 60, "num_key_value_heads": 2}
    vision = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": merge}
    ends = {"image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": 58}
    with torch.device("meta"):
        config = getattr(T, f"{name}Config")(text_config=text, vision_config=vision, **ends)
        return getattr(T, f"{name}ForConditionalGeneration")(config)


def _prompt(rows: list[tuple[list[int], list[tuple[int, int]]]], merge: int) -> dict[str, torch.Tensor]:
    """The tokens, padded on the left, the mask, and the grids."""
    words = []
    for text, images in rows:
        sides = iter(images)
        words.append([token for word in text for token in (_placed(*next(sides)) if word < 0 else [word])])
    longest = max(map(len, words))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in words])
    grids = [[1, high * merge, wide * merge] for _, images in rows for high, wide in images]
    grid = torch.tensor(grids, dtype=torch.int64).reshape(-1, 3)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "image_grid_thw": grid}


def _placed(high: int, wide: int) -> list[int]:
    return [START, *[IMAGE] * (high * wide)]


@pytest.mark.parametrize("rows", PROMPTS, ids=str)
@pytest.mark.parametrize(("name", "merge"), [("Qwen2VL", 2), ("Qwen2VL", 3), ("Glm4v", 2)])
def test_positions_are_those_of_the_model(name: str, merge: int, rows: Any) -> None:
    model, prompt = _model(name, merge), _prompt(rows, merge)
    layout = grid_layout(model, SAMPLE)
    assert layout == GridLayout(merge)
    ids = prompt["input_ids"]
    expected, _ = model.model.get_rope_index(**prompt, mm_token_type_ids=(ids == IMAGE).int())
    found = layout.positions(ids == IMAGE, prompt["attention_mask"].bool(), prompt["image_grid_thw"])
    assert torch.equal(found, expected)


def test_positions_are_computed_in_the_graph() -> None:
    class Positions(torch.nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return GridLayout(2).positions(ids == IMAGE, mask != 0, grid)

    prompts = [tuple(_prompt(rows, 2).values()) for rows in PROMPTS]
    shapes = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}, "grid": {0: "images"}}
    nothing = (*prompts[0][:2], torch.zeros(1, 3, dtype=torch.int64))  # which no engine may divide by
    check(Positions(), prompts[1], others=[prompts[0], *prompts[2:], nothing], dynamic_shapes=shapes)


@pytest.mark.parametrize("what", ["behind the rows", "columns first", "none at all", "not to be asked"])
def test_other_rules_are_seen(what: str) -> None:
    model = _model()
    own = model.model.get_rope_index

    def count(input_ids: torch.Tensor, image_grid_thw: torch.Tensor, **beside: Any) -> Any:
        if what == "behind the rows":
            found, delta = own(input_ids=input_ids, image_grid_thw=image_grid_thw, **beside)
            return found + (image_grid_thw[0, 1] < image_grid_thw[0, 2]) * (input_ids == 3), delta
        if what == "columns first":
            return own(input_ids=input_ids, image_grid_thw=image_grid_thw, **beside)[0][[0, 2, 1]], None
        if what == "none at all":
            return torch.zeros(3, *input_ids.shape), None
        raise ValueError(what)

    def asked(input_ids: torch.Tensor, mm_token_type_ids: torch.Tensor, image_grid_thw: torch.Tensor) -> Any:
        return count(input_ids, image_grid_thw, mm_token_type_ids=mm_token_type_ids)

    model.model.get_rope_index = asked
    assert grid_layout(model, SAMPLE) is None


def test_a_model_whose_positions_follow_no_grid() -> None:
    assert grid_layout(_model(), {"target_sizes": torch.tensor([[8, 12]])}) is None
    with torch.device("meta"):
        llava = T.LlavaForConditionalGeneration(T.LlavaConfig())
    assert grid_layout(llava, SAMPLE) is None
