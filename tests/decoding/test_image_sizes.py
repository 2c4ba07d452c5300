"""Folders of models that take images in grids: exported once, and right for images of other sizes than the sample's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as T

from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.recipes.modality import modalities_of
from fx2onnx.decoding.recipes.multimodal import _grid_of, feature_forms
from fx2onnx.decoding.reference_generate import generate_eagerly, reference_model, tokens_of
from fx2onnx.exporting.contract import _as_exported
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.exporting.result import ExportedFolder
from fx2onnx.generation import LoadedModel, load
from fx2onnx.generation.engine import Graph
from fx2onnx.manifest.form import GraphForm, Grid, Medium, Port
from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import Options, Source

ENGINES = ("onnxruntime", "runner")
IMAGE, START = 59, 57
PATCHES = {"depth": 1, "num_heads": 2, "patch_size": 4, "hidden_size": 32, "in_channels": 3}
OUT = {"intermediate_size": 48, "out_hidden_size": 32}
VISION: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"embed_dim": 32, "mlp_ratio": 2},
    "Qwen2_5_VL": OUT | {"window_size": 16, "fullatt_block_indexes": []},
    "Qwen3VL": OUT | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    "Glm4v": OUT | {"image_size": 32},
}
SIZES: list[list[list[tuple[int, int]]]] = [
    [[(4, 4)]],
    [[(2, 10)], [(12, 4)]],
    [[(8, 2), (6, 6)], [(2, 2)]],
]
"""The rows and columns of patches of each prompt's images; the sample has 4 and 4."""


def model_of(name: str) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"vocab_size": 60, "num_key_value_heads": 2, "head_dim": 8, "rope_parameters": rope}
    ends = {"image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": 58}
    with seeded(0):
        config = getattr(T, f"{name}Config")(text_config=text, vision_config=PATCHES | VISION[name], **ends)
        model = getattr(T, f"{name}ForConditionalGeneration")(config).eval()
    move_constants(model)
    for weight in model.parameters():
        weight.data.mul_(4 if weight.dim() > 1 else 1)  # so that tokens tell a wrong position
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    return model


def exported(model: Any, folder: Path) -> ExportedFolder:
    return export_assembly(Assembly(model, cached_parts(Source("model", model)), None, ""), folder)


def prompts(images: list[list[tuple[int, int]]], numbers: int) -> dict[str, torch.Tensor]:
    """A prompt for each list of images, padded on the left; ``numbers`` are those of a patch."""
    generator = torch.Generator().manual_seed(len(images))
    rows = []
    for number, sizes in enumerate(images):
        row = [5 + number]
        for high, wide in sizes:
            row += [8, START, *[IMAGE] * (high * wide // 4), 9]
        rows.append([*row, 6, 7])
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    grid = torch.tensor([[1, *size] for sizes in images for size in sizes])
    patches = torch.randn(int(grid.prod(1).sum()), numbers, generator=generator)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "pixel_values": patches, "image_grid_thw": grid}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ExportedFolder]:
    model = model_of("Qwen2VL")
    return model, exported(model, tmp_path_factory.mktemp("sizes") / "out")


@pytest.mark.long_cases(but=["Glm4v"])
@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", pytest.param("Glm4v", marks=pytest.mark.slow)])
def test_images_of_other_sizes(name: str, qwen: tuple[Any, ExportedFolder], tmp_path: Path) -> None:
    model, done = qwen if name == "Qwen2VL" else (made := model_of(name), exported(made, tmp_path / "out"))
    assert done.reports["vision_encoder.onnx"].baked == []
    stated = json.loads((done.path / "fx2onnx.json").read_text())
    assert stated["media"][0]["grid"] == {"input": "image_grid_thw", "merge_size": 2}
    assert stated["baked"] == {}
    numbers = done.sources["vision_encoder.onnx"].kwargs["pixel_values"].shape[1]
    engines = [load(done.path, engine) for engine in ENGINES]
    for images in SIZES:
        inputs = prompts(images, numbers)
        told = {"mm_token_type_ids": (inputs["input_ids"] == IMAGE).int()}
        expected = generate_eagerly(model, inputs | told, 6)
        with torch.no_grad():
            logits = model(**inputs, **told).logits
        shown = inputs["attention_mask"].bool()
        for loaded in engines:
            assert torch.equal(loaded.generate(**inputs, max_new_tokens=6), expected), (loaded, images)
            torch.testing.assert_close(loaded(**inputs).logits[shown], logits[shown], rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_each_graph_is_that_of_its_module(qwen: tuple[Any, ExportedFolder]) -> None:
    _, done = qwen
    for file, source in done.sources.items():
        verify(str(done.path / file), source.module, source.args, source.kwargs).raise_if_failed()


def test_what_generation_is_compared_with_knows_where_images_are(tmp_path: Path) -> None:
    model, inputs = model_of("Qwen2VL"), prompts([[(12, 4)]], 96)
    model.save_pretrained(tmp_path)
    told = {"mm_token_type_ids": (inputs["input_ids"] == IMAGE).int()}
    expected, without = (generate_eagerly(model, given, 8) for given in (inputs | told, inputs))
    assert not torch.equal(expected, without), "else nothing is tested"
    arrays = {name: value.numpy() for name, value in inputs.items()}
    found = tokens_of(reference_model(f"hf:{tmp_path}", "image-text-to-text-with-past", 0), arrays, 8)
    assert np.array_equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_text_alone(engine: str, qwen: tuple[Any, ExportedFolder]) -> None:
    model, done = qwen
    inputs = {"input_ids": torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]]), "attention_mask": torch.ones(2, 4).long()}
    inputs["attention_mask"][0, :2] = 0
    expected = generate_eagerly(model, inputs, 5)
    assert torch.equal(load(done.path, engine).generate(**inputs, max_new_tokens=5), expected)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


GOOD = prompts([[(4, 6), (2, 4)]], 96)
SWAPPED = GOOD["image_grid_thw"].flip(0)
WRONG: list[tuple[dict[str, Any], str]] = [
    (_without("image_grid_thw"), "vision_encoder.onnx needs image_grid_thw"),
    (_without("pixel_values"), "vision_encoder.onnx needs pixel_values"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 4, 6], [1, 3, 4]])}, r"says \[1, 3, 4\], which no image has"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 4, 6], [2, 2, 2]])}, r"says \[2, 2, 2\], which no image has"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 4, 6], [1, -2, -4]])}, r"says \[1, -2, -4\], which no image has"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 4, 6], [1, 2, 6]])}, r"pixel_values is \[32, 96\], .* says 24 \+ 12 rows"),
    (GOOD | {"image_grid_thw": torch.tensor([1, 4, 6])}, r"image_grid_thw is \[3\], not a row"),
    (GOOD | {"image_grid_thw": torch.zeros(0, 3).long()}, r"image_grid_thw is \[0, 3\], not a row"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 4, 8]])}, "have 8 features, the prompts have runs of 6, 2 places"),
    (GOOD | {"image_grid_thw": SWAPPED}, "have 2, 6 features, the prompts have runs of 6, 2 places"),
    (GOOD | {"image_grid_thw": torch.tensor([[1, 6, 4], [1, 2, 2], [1, 2, 2]])}, "have 6, 1, 1 features, the prompts have runs of 6, 2 places"),
    (GOOD | {"input_ids": GOOD["input_ids"][:, :-6]}, "have 6, 2 features, the prompts have runs of 6 places"),
    (GOOD | {"pixel_values": torch.ones(32, 95)}, r"pixel_values is \[24, 95\], vision_encoder.onnx takes"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("inputs", "text"), WRONG, ids=[text for _, text in WRONG])
def test_a_grid_that_contradicts_is_one_clear_error(
    inputs: dict[str, Any], text: str, engine: str, qwen: tuple[Any, ExportedFolder]
) -> None:
    loaded = load(qwen[1].path, engine)
    given = inputs | {"attention_mask": torch.ones_like(inputs["input_ids"])}

    def called(model: LoadedModel) -> Any:
        return model(**given)

    for call in (called, lambda model: model.generate(**given, max_new_tokens=2)):
        with pytest.raises(UserError, match=text) as caught:
            call(loaded)
        assert caught.value.code == "E401"


def test_an_image_whose_places_are_in_two_prompts_is_refused(qwen: tuple[Any, ExportedFolder]) -> None:
    ids = torch.tensor([[5, IMAGE, IMAGE], [IMAGE, IMAGE, 6]])
    with pytest.raises(UserError, match="have 4 features, the prompts have runs of 2, 2 places"):
        load(qwen[1].path, "runner").generate(
            ids, pixel_values=torch.ones(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]), max_new_tokens=1
        )


@pytest.mark.parametrize(
    ("rows", "features", "grid"),
    [
        (16, 4, Grid("image_grid_thw", 2)),
        (16, 16, Grid("image_grid_thw", 1)),
        (4, 4, None),
        (16, 5, None),
        (16, 0, None),
    ],
)
def test_sizes_are_free_where_a_grid_counts_patches_and_features(rows: int, features: int, grid: Grid | None) -> None:
    class Encoder(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"image_features": pixel_values.new_zeros(features, 8)}

    sample = {"pixel_values": torch.zeros(rows, 96), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    with torch.device("meta"):
        model = T.LlavaForConditionalGeneration(T.LlavaConfig())  # whose positions are those of text
    assert _grid_of(model, Source("", Encoder(), (), sample)) == grid


def test_sizes_are_the_samples_where_positions_follow_from_no_grid() -> None:
    model = model_of("Qwen2VL")
    (image,) = modalities_of(model)
    assert [form.bake for form in feature_forms(model, image, "", Options())] == [(), ("image_grid_thw",)]
    model.model.get_rope_index = lambda input_ids, **_: (torch.zeros(3, *input_ids.shape), None)
    assert [form.bake for form in feature_forms(model, image, "", Options())] == [("image_grid_thw",)]


def test_a_grid_that_no_graph_takes_says_no_sizes() -> None:
    image = Medium("image", grid=Grid("image_grid_thw", 2))
    port = Port("image_grid_thw", "media", "int64", (1, 3))
    encoder, embed = (GraphForm(f"{kind}.onnx", kind, (port,), ()) for kind in ("image", "embed"))  # type: ignore[arg-type]
    for forms in ([encoder, embed], [encoder], [embed]):
        assert _as_exported(image, forms) == image
    assert _as_exported(image, [replace(encoder, inputs=())]) == Medium("image")


@pytest.mark.long
def test_an_encoder_whose_python_needs_the_grid_keeps_that_of_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("Qwen2VL")
    own = model.model.visual.forward

    def forward(hidden_states: torch.Tensor, grid_thw: torch.Tensor, **more: Any) -> Any:
        assert range(int(grid_thw[0, 1])) == range(4)
        return own(hidden_states, grid_thw=grid_thw, **more)

    model.model.visual.forward = forward
    done = exported(model, tmp_path / "out")
    assert done.reports["vision_encoder.onnx"].baked == ["image_grid_thw"]
    assert json.loads((done.path / "fx2onnx.json").read_text())["baked"] == {"image_grid_thw": [[1, 4, 4]]}
    assert done.notes[0].startswith("vision_encoder.onnx takes an image of the sample's size a call")
    inputs = prompts([[(4, 4)], [(4, 4), (4, 4)]], 96)
    kinds = {"mm_token_type_ids": (inputs["input_ids"] == IMAGE).int()}
    expected = generate_eagerly(model, inputs | kinds, 4)
    run, grids = Graph.run, []

    def noted(graph: Graph, feeds: Any) -> Any:
        grids.append(feeds.get("image_grid_thw"))
        return run(graph, feeds)

    monkeypatch.setattr(Graph, "run", noted)
    for engine in ENGINES:
        loaded = load(tmp_path / "out", engine)
        assert torch.equal(loaded.generate(**inputs, max_new_tokens=4), expected), engine
        grids.clear()
        left_out = {key: value for key, value in inputs.items() if key != "image_grid_thw"}
        assert torch.equal(loaded.generate(**left_out, max_new_tokens=4), expected), engine
        assert [[1, 4, 4]] * 3 in [np.asarray(grid).tolist() for grid in grids if grid is not None]
        grids.clear()
        with pytest.raises(UserError, match=r"the folder was exported for \[\[1, 4, 4\]\]"):
            loaded.generate(**prompts([[(2, 8)]], 96))
        with pytest.raises(UserError, match="rows a call"):
            loaded.generate(**left_out | {"pixel_values": inputs["pixel_values"][1:]})
