"""Folders in the hands of strangers: one clear error for each wrong call, and calls as of the model itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers as T

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.decoding.cache.layout import unmistakable_sizes
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.recipes.modality import modalities_of
from fx2onnx.decoding.recipes.multimodal import EmbedPart
from fx2onnx.exporting.folder import _flaw, _limits, export_assembly
from fx2onnx.generation import load
from fx2onnx.generation.media import _cut
from fx2onnx.sizes.assumptions import Assumed, Assumption, Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import interval, where_true
from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import Source

ENGINES = ("runner", "onnxruntime")
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}


def _llava() -> Any:
    vision = T.CLIPVisionConfig(**VISION, image_size=16, patch_size=8)
    text = T.LlamaConfig(**TEXT)
    config = T.LlavaConfig(text_config=text, vision_config=vision, image_token_id=59, vision_feature_layer=-1)
    return T.LlavaForConditionalGeneration(config)


def _qwen2_vl() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    text = {**TEXT, "rope_parameters": rope, "num_key_value_heads": 2}
    config = T.Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=59, vision_start_token_id=57)
    return T.Qwen2VLForConditionalGeneration(config)


def _t5() -> Any:
    return T.T5ForConditionalGeneration(
        T.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=60, decoder_start_token_id=0)
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    made: dict[str, tuple[Any, Path]] = {}
    for name, build in (("llava", _llava), ("qwen2_vl", _qwen2_vl), ("t5", _t5)):
        with seeded(0):
            model = build().eval()
        move_constants(model)
        model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
        folder = tmp_path_factory.mktemp("folders") / name
        assembly = Assembly(model, cached_parts(Source("model", model)), None, "")
        export_assembly(assembly, folder, origin={"source": f"hf:{name}", "task": "any"})
        made[name] = model, folder
    return made


IDS = torch.tensor([[5, 59, 59, 59, 59, 7], [0, 8, 59, 59, 59, 59]])
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("llava", {"input_ids": IDS}, "8 places for an image, and there is no image input"),
    ("llava", {"input_ids": IDS, "pixel_values": PIXELS[:1]}, "8 places for an image, and the image inputs give 4"),
    ("llava", {"input_ids": IDS, "pixels": PIXELS}, "no input 'pixels'"),
    ("llava", {"input_ids": IDS, "pixel_values": PIXELS[0]}, r"pixel_values is \[3, 16, 16\]"),
    ("llava", {"input_ids": IDS, "pixel_values": PIXELS[..., :8]}, "pixel_values is|rows a call"),
    ("llava", {"input_ids": IDS + 0.5, "pixel_values": PIXELS}, "input_ids is float32"),
    ("llava", {"input_ids": IDS, "pixel_values": np.array([["a"]])}, "pixel_values is <U1"),
    ("llava", {"input_ids": IDS, "attention_mask": IDS[:1] * 0 + 1, "pixel_values": PIXELS}, "attention_mask|two sizes"),
    ("t5", {"input_ids": IDS, "attention_mask": IDS[:1] * 0 + 1}, "batch_size has two sizes|attention_mask"),
    ("t5", {"input_idz": IDS}, "needs input_ids|no input 'input_idz'"),
    ("t5", {"input_ids": IDS + 0.5}, "input_ids is float32"),
    ("qwen2_vl", {"input_ids": IDS, "pixel_values": torch.ones(32, 96), "image_grid_thw": torch.tensor([[1, 2, 6]] * 2)},
     r"pixel_values is \[32, 96\], image_grid_thw says 12 \+ 12 rows"),
]  # fmt: skip


@pytest.mark.long_cases(
    "llava-inputs0-8 places for an image, and there is no image input-runner",
    "llava-inputs0-8 places for an image, and there is no image input-onnxruntime",
    "llava-inputs1-8 places for an image, and the image inputs give 4-runner",
    "llava-inputs1-8 places for an image, and the image inputs give 4-onnxruntime",
)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "inputs", "text"), WRONG)
def test_wrong_inputs_are_one_clear_error(
    name: str, inputs: dict[str, Any], text: str, engine: str, folders: dict[str, tuple[Any, Path]]
) -> None:
    model = load(folders[name][1], engine)
    calls: list[Callable[[], Any]] = [lambda: model.generate(**inputs, max_new_tokens=2)]
    if name != "t5":
        calls.append(lambda: model(**inputs))
    for call in calls:
        with pytest.raises(UserError, match=text):
            call()


def test_places_of_images_are_the_token_that_the_manifest_names(
    folders: dict[str, tuple[Any, Path]], tmp_path: Path
) -> None:
    shutil.copytree(folders["llava"][1], tmp_path / "out")
    stated = json.loads((tmp_path / "out" / "fx2onnx.json").read_text())
    image = {"kind": "image", "is_required": False, "features": "image_features", "token": 59, "grid": None}
    assert stated["media"] == [image]
    stated["media"][0]["token"] = 7
    (tmp_path / "out" / "fx2onnx.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match="1 places for an image") as caught:
        load(tmp_path / "out", "runner").generate(IDS, pixel_values=PIXELS, max_new_tokens=1)
    assert caught.value.why == "token 7"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_takes_what_the_model_itself_does(engine: str, folders: dict[str, tuple[Any, Path]]) -> None:
    grid = torch.tensor([[1, 4, 4]] * 2)
    patches = torch.randn(32, 96, generator=torch.Generator().manual_seed(1))
    images = {"pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": (IDS == 59).int()}
    mask = (IDS > 0).long()
    cases = {
        "llava": {"input_ids": IDS, "attention_mask": mask, "pixel_values": PIXELS},
        "qwen2_vl": {"input_ids": IDS, "attention_mask": mask, **images},
        "t5": {"input_ids": IDS, "attention_mask": mask.flip(1), "decoder_input_ids": IDS[:, :3]},
    }
    bare = {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}
    for name, inputs in (*cases.items(), ("t5", bare)):
        model, folder = folders[name]
        with torch.no_grad():
            expected = model(**inputs).logits
        found = load(folder, engine)(**inputs)
        assert isinstance(found.logits, torch.Tensor)
        shown = mask.bool() if name != "t5" else torch.ones(2, 3).bool()
        torch.testing.assert_close(found.logits[shown], expected[shown], rtol=1e-4, atol=1e-4)


def test_a_call_of_a_decoder_alone_says_what_is_missing(folders: dict[str, tuple[Any, Path]]) -> None:
    model = load(folders["t5"][1], "runner")
    with pytest.raises(UserError, match=r"needs encoder_attention_mask|needs past_key_values"):
        model(input_ids=IDS)
    with pytest.raises(UserError, match=r"needs decoder_input_ids|no input 'attention_mask'"):
        model(input_ids=IDS, attention_mask=IDS * 0 + 1)
    with pytest.raises(UserError, match="is no array"):
        model(input_ids=[[1, 2], [3]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("file", ["embed_tokens.onnx", "weights.*.data", "decoder_model.onnx"])
def test_a_folder_without_a_file(file: str, engine: str, folders: dict[str, tuple[Any, Path]], tmp_path: Path) -> None:
    shutil.copytree(folders["llava"][1], tmp_path / "out")
    next((tmp_path / "out").glob(file)).unlink()
    with pytest.raises(UserError) as caught:
        load(tmp_path / "out", engine).generate(input_ids=IDS, pixel_values=PIXELS, max_new_tokens=2)
    assert file.partition("*")[0] in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', ""])
def test_corrupt_configs_are_one_clear_error(text: str, folders: dict[str, tuple[Any, Path]], tmp_path: Path) -> None:
    for file in ("config.json", "fx2onnx.json"):
        shutil.copytree(folders["t5"][1], tmp_path / file)
        assert isinstance(json.loads((tmp_path / file / file).read_text()), dict)
        (tmp_path / file / file).write_text(text)
        with pytest.raises(UserError, match=f"cannot read .*{file}"):
            load(tmp_path / file, "runner")


@pytest.mark.parametrize(
    ("given", "axis", "count"),
    [((3, 3, 14, 224), 0, 3), ((1, 3, 14, 672), 3, 3), ((1, 3, 14, 224), 0, 1)],
)
def test_images_are_cut_along_the_axis_on_which_they_lie(given: tuple[int, ...], axis: int, count: int) -> None:
    graph: Any = SimpleNamespace(
        inputs={"pixel_values": SimpleNamespace(shape=[1, 3, 14, 224])}, path=Path("vision_encoder.onnx")
    )
    assert _cut(graph, "pixel_values", np.zeros(given, np.float32)) == (axis, count)
    for wrong in ((1, 3, 14, 300), (2, 3, 14, 448), (3, 14, 224), (0, 3, 14, 224)):
        with pytest.raises(UserError, match=r"pixel_values is|no multiple"):
            _cut(graph, "pixel_values", np.zeros(wrong, np.float32))


def test_a_generated_placeholder_is_a_token_as_any_other() -> None:
    model = _llava()
    token = model.config.image_token_id
    embed = EmbedPart(model, modalities_of(model))
    table = model.get_input_embeddings()
    ids = torch.tensor([[5, token, 6], [token, token, 7]])
    features = torch.randn(2, table.weight.shape[1])
    for count in (0, 2):
        found = embed(input_ids=ids, image_features=features[:count])["inputs_embeds"]
        expected = table(ids).detach().clone()
        for row, place in zip(features[:count], [(0, 1), (1, 0)], strict=False):
            expected[place] = row
        assert torch.equal(found, expected), count


BATCH, TOKENS, PAST = map(Dim.symbol, ("batch_size", "sequence_length", "past_sequence_length"))
HERE = SourceLocation("model.py", 1, "forward")


def exported_with(assumed: Assumed) -> Any:
    graph = SimpleNamespace(inputs=[])
    return SimpleNamespace(
        owned=SimpleNamespace(model=SimpleNamespace(graph=graph)), report=SimpleNamespace(assumptions=[assumed])
    )


@pytest.mark.parametrize(
    ("op", "args", "is_flaw"),
    [
        ("ne", (TOKENS, 1), False),
        ("gt", (TOKENS + PAST, 1), False),
        ("ne", (BATCH * TOKENS, BATCH), False),
        ("ne", (BATCH, BATCH * TOKENS), False),
        ("ne", (BATCH * TOKENS, TOKENS), False),
        ("ne", (BATCH * TOKENS, PAST), True),
        ("le", (TOKENS, 4), True),
        ("gt", (TOKENS // 4, 1), True),
        ("ne", (Dim.symbol("encoder_sequence_length"), 8), True),
        ("and", (Relation("gt", (TOKENS, 1)), Relation("le", (TOKENS, 4))), True),
        ("eq", (Relation("gt", (TOKENS, 9)), True), True),
        # names that a text would hide in or be hidden by
        ("le", (Dim.symbol("rows_of_sequence_lengths"), 4), False),
        ("le", (Dim.symbol("rows\nsequence_length"), 4), False),
        ("le", (TOKENS, Dim.symbol("n != 1")), True),
        ("le", (Dim.symbol("n   (model.py"), TOKENS), True),
        ("ne", (Dim.symbol("sequence_length*n"), Dim.symbol("sequence_length")), True),
    ],
    ids=str,
)
def test_decisions_that_hold_for_every_prompt_are_no_flaw(op: str, args: tuple[Any, ...], is_flaw: bool) -> None:
    source: Any = SimpleNamespace(kwargs={"past_key_values.0.conv_state": None}, module=None)
    assert bool(_flaw(exported_with(Guard(Relation(op, args), HERE)), source)) is is_flaw


@pytest.mark.parametrize(("width", "is_flaw"), [(16, True), (0, False)])
def test_an_unread_state_is_a_flaw_where_it_has_numbers(width: int, is_flaw: bool) -> None:
    done = exported_with(Assumption("keeps what it says", HERE))
    shape = ir.Shape([None, 1, "past_sequence_length", width])
    done.owned.model.graph.inputs.append(ir.Value(name="past_key_values.1.value", shape=shape))
    assert bool(_flaw(done, SimpleNamespace(kwargs={}, module=None))) is is_flaw  # type: ignore[arg-type]


def test_only_sizes_make_a_flaw() -> None:
    source: Any = SimpleNamespace(kwargs={"past_key_values.0.conv_state": None}, module=None)
    assert "sequence_length == 7" in _flaw(exported_with(Specialization(TOKENS, 7, HERE)), source)
    for harmless in (Specialization(BATCH, 7, HERE), Assumption("keeps the sequence_length", HERE)):
        assert _flaw(exported_with(harmless), source) == ""


@pytest.mark.parametrize(
    ("op", "args", "limits"),
    [
        ("le", (PAST + 1, 512), ["past_sequence_length + 1 <= 512"]),
        ("lt", (PAST, 512), ["past_sequence_length < 512"]),
        ("gt", (PAST, 512), []),
        ("le", (PAST + TOKENS, 512), []),
        ("lt", (PAST, 5 * BATCH), []),  # a text would say: past_sequence_length < 5
        ("gt", (Dim.symbol("past_sequence_length < 7\n"), 2), []),
        ("lt", (Dim.symbol("past_sequence_length + 1 <= 7"), 9), []),
    ],
    ids=str,
)
def test_limits_of_the_past(op: str, args: tuple[Any, ...], limits: list[str]) -> None:
    assert _limits(exported_with(Guard(Relation(op, args), HERE))) == limits
    assert _limits(exported_with(Assumption(str(Relation(op, args)), HERE))) == []


@pytest.mark.parametrize(
    ("sizes", "is_flaw", "limits"),
    [
        (interval(1, None), False, []),  # no prompt has no token
        (interval(0, 512), False, ["sequence_length <= 512"]),
        (interval(1, 64), True, []),
        (interval(2, None), True, []),
        (where_true(Relation("eq", (TOKENS % 2, 0))), True, []),
    ],
    ids=str,
)
def test_conditions_on_the_length_of_a_prompt(sizes: Any, is_flaw: bool, limits: list[str]) -> None:
    done = exported_with(Condition("sequence_length", sizes, Relation("ge", (TOKENS, 0)), HERE))
    assert bool(_flaw(done, SimpleNamespace(kwargs={}, module=None))) is is_flaw  # type: ignore[arg-type]
    assert _limits(done) == limits


def test_sizes_of_trial_runs_are_no_number_of_patches() -> None:
    sizes = unmistakable_sizes(T.LlamaConfig(**TEXT))
    patches = {side * side + beside for side in range(2, 40) for beside in range(6)}
    assert not {sizes.batch, sizes.past, sizes.encoder} & patches
    assert len({sizes.batch, sizes.past, sizes.encoder}) == 3


def test_a_module_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not of a Linear") as raised:
        fx2onnx.export_folder(torch.nn.Linear(2, 2), tmp_path / "out")  # type: ignore[arg-type]
    assert raised.value.code == "E001"
    assert "save_pretrained" in str(raised.value)
    assert not (tmp_path / "out").exists()
