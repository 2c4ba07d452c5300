"""Generating models with their caches as tensors: tokens as transformers generates them, in both engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers as T

from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.mrope import image_layout
from fx2onnx.decoding.parts import Assembly, cached_parts
from fx2onnx.decoding.recipes.multimodal import encoders_and_embedding
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting.folder import export_assembly
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.result import ExportedFolder
from fx2onnx.generation import load
from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import Options, Source

ENGINES = ("runner", "onnxruntime")
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}
SEQ2SEQ = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 2}
SEQ2SEQ |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 60}
AUDIO = {"num_mel_bins": 8, "max_source_positions": 20, "decoder_start_token_id": 5, "pad_token_id": 0}
WINDOW = 5
DECODERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**TEXT, num_key_value_heads=2)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=WINDOW)),
    "gemma3": lambda: T.Gemma3ForCausalLM(
        T.Gemma3TextConfig(
            **TEXT,
            head_dim=8,
            num_key_value_heads=2,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "mamba": lambda: T.MambaForCausalLM(T.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=60, state_size=4)),
    "mamba2": lambda: T.Mamba2ForCausalLM(
        T.Mamba2Config(
            hidden_size=32, num_hidden_layers=2, vocab_size=60, state_size=4, num_heads=8, head_dim=8, n_groups=2
        )
    ),
    "xlstm": lambda: T.xLSTMForCausalLM(
        T.xLSTMConfig(hidden_size=64, num_hidden_layers=1, num_blocks=1, num_heads=2, qk_dim_factor=1.0, vocab_size=60)
    ),
    "lfm2": lambda: T.Lfm2ForCausalLM(T.Lfm2Config(**TEXT, num_key_value_heads=2, layer_types=["conv", "full_attention"])),
}  # fmt: skip
ENCODER_DECODERS: dict[str, Callable[[], Any]] = {
    "t5": lambda: T.T5ForConditionalGeneration(
        T.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=60, decoder_start_token_id=0)
    ),
    "bart": lambda: T.BartForConditionalGeneration(T.BartConfig(**SEQ2SEQ, decoder_start_token_id=2)),
    "whisper": lambda: T.WhisperForConditionalGeneration(T.WhisperConfig(**SEQ2SEQ, **AUDIO)),
    # Pads to blocks longer than the first sample.
    "pegasus_x": lambda: T.PegasusXForConditionalGeneration(
        T.PegasusXConfig(**SEQ2SEQ, block_size=32, num_global_tokens=4, decoder_start_token_id=2)
    ),
    # Takes single tokens once there is a past.
    "prophetnet": lambda: T.ProphetNetForConditionalGeneration(
        T.ProphetNetConfig(
            hidden_size=32,
            vocab_size=60,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            max_position_embeddings=64,
            decoder_start_token_id=2,
        )
    ),
    # The encoder hands on a pooled state, too, which has no position of its own.
    "encoder-decoder": lambda: T.EncoderDecoderModel(
        T.EncoderDecoderConfig(
            encoder=T.BertConfig(**TEXT).to_dict(),
            decoder=T.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True).to_dict(),
            decoder_start_token_id=2,
        )
    ),
}


def exported(build: Callable[[], Any], folder: Path, *, pad: int = 0, **asked: Any) -> tuple[Any, ExportedFolder]:
    with seeded(0):
        model = build().eval()
    move_constants(model)
    said = model.generation_config
    said.eos_token_id = said.forced_eos_token_id = said.suppress_tokens = said.begin_suppress_tokens = None
    said.pad_token_id = pad
    parts = cached_parts(Source("model", model), **asked)
    return model, export_assembly(Assembly(model, parts, None, ""), folder)


def prompts(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """One row a length, padded on the left."""
    longest = max(lengths)
    mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths])
    with seeded(3):
        return {"input_ids": torch.randint(5, 60, mask.shape) * mask, "attention_mask": mask}


def assert_verified(done: ExportedFolder, **options: Any) -> None:
    """``verify`` accepts every file of the folder."""
    for file, source in done.sources.items():
        verify(str(done.path / file), source.module, source.args, source.kwargs, **options).raise_if_failed()


def assert_same_tokens(model: Any, done: ExportedFolder, *prompts: Mapping[str, torch.Tensor], new: int = 7) -> None:
    """For each of ``prompts`` both engines generate the tokens that eager PyTorch generates."""
    loaded = {engine: load(done.path, engine) for engine in ENGINES}
    for inputs in prompts:
        expected = generate_eagerly(model, inputs, new)
        for engine, folder in loaded.items():
            assert torch.equal(folder.generate(**inputs, max_new_tokens=new), expected), engine


DRAWN = dict.fromkeys(DECODERS, (1,)) | {"lfm2": ()}
"""Seeds of other values. Drawn masks hide the token itself, which no step does: LFM2 decides by sizes of 1 what that means."""


@pytest.mark.long
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_generate_what_transformers_does(name: str, tmp_path: Path) -> None:
    model, done = exported(DECODERS[name], tmp_path / "out")
    assert_verified(done, seeds=DRAWN[name])
    # Also prompts longer than the window, and others that grow beyond it.
    assert_same_tokens(model, done, *map(prompts, ((1,), (4, 2), (9, 7, 3))))


@pytest.mark.long
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_generate_what_transformers_does(name: str, tmp_path: Path) -> None:
    model, done = exported(ENCODER_DECODERS[name], tmp_path / "out")
    assert {"encoder_model.onnx", "decoder_model.onnx"} <= set(done.files)
    assert len([file for file in done.files if re.fullmatch(r"weights\.[0-9a-f]{16}\.data", file)]) == 1
    assert_verified(done)
    for lengths in ((3,), (8, 5, 8)):
        inputs: dict[str, Any] = {key: value.flip(1) for key, value in prompts(lengths).items()}  # padded on the right
        if name == "whisper":
            inputs = {"input_features": torch.randn(len(lengths), 8, 40, generator=torch.Generator().manual_seed(1))}
        assert_same_tokens(model, done, inputs)


@pytest.mark.long
def test_what_encoder_and_decoder_share_is_written_once(tmp_path: Path) -> None:
    model, done = exported(ENCODER_DECODERS["t5"], tmp_path / "out")
    pages = sum(-(-value.nbytes // 4096) for value in model.parameters())
    (weights,) = (tmp_path / "out").glob("weights.*.data")
    assert weights.stat().st_size <= pages * 4096
    places = []
    for file in done.reports:
        graph = onnx.load(tmp_path / "out" / file, load_external_data=False).graph
        places.append({entry.value for w in graph.initializer for entry in w.external_data if entry.key == "offset"})
    assert places[0] & places[1]


@pytest.mark.long
def test_names_and_sizes_are_those_of_the_ecosystem(tmp_path: Path) -> None:
    exported(DECODERS["gemma3"], tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph

    def shapes(values: Any) -> dict[str, list[Any]]:
        return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}

    inputs, outputs = shapes(graph.input), shapes(graph.output)
    past, new = "past_sequence_length", "sequence_length"
    assert inputs["input_ids"] == inputs["position_ids"] == ["batch_size", new]
    assert inputs["attention_mask"] == ["batch_size", f"{past} + {new}"]
    assert inputs["past_key_values.1.key"] == ["batch_size", 2, past, 8]
    assert outputs["present.1.value"] == ["batch_size", 2, f"{past} + {new}", 8]
    assert inputs["past_key_values.0.key"][2] == f"past_window_{WINDOW}_length"
    assert outputs["logits"] == ["batch_size", new, 60]


@pytest.mark.long
def test_a_window_keeps_no_more_than_it_needs(tmp_path: Path) -> None:
    exported(DECODERS["mistral"], tmp_path / "out")
    model = load(tmp_path / "out", "runner")
    past = model(input_ids=np.full((1, 3), 7)).past_key_values
    assert past["0.key"].shape()[2] == 3
    past = model(input_ids=np.full((1, 6), 7), attention_mask=np.ones((1, 9)), past_key_values=past).past_key_values
    assert past["0.key"].shape()[2] == WINDOW - 1


@pytest.mark.long
def test_a_prompt_in_pieces_gives_what_it_gives_whole(tmp_path: Path) -> None:
    exported(DECODERS["gemma3"], tmp_path / "out")
    inputs = {name: value.numpy() for name, value in prompts((9, 6)).items()}
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    for engine in ENGINES:
        model = load(tmp_path / "out", engine)
        whole = model(**inputs)
        past: Any = None
        for start, end in ((0, 4), (4, 8), (8, 9)):
            positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, start:end]
            part = model(
                input_ids=ids[:, start:end],
                attention_mask=mask[:, :end],
                position_ids=positions,
                past_key_values=past,
            )
            past = part.past_key_values
        np.testing.assert_allclose(part.logits[:, -1], whole.logits[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_generation_stops_at_the_end_token(tmp_path: Path) -> None:
    exported(DECODERS["llama"], tmp_path / "out")
    model = load(tmp_path / "out", "runner")
    inputs = prompts((4, 2))
    free = model.generate(**inputs, max_new_tokens=6)[:, 4:]
    end = int(free[0, 2])
    stopped = model.generate(**inputs, max_new_tokens=6, eos_token_id=end, pad_token_id=1)[:, 4:]
    first = [row.tolist().index(end) + 1 if end in row else 6 for row in free]
    assert stopped.shape[1] == max(first)
    for row, length, wanted in zip(stopped, first, free, strict=True):
        assert row[:length].tolist() == wanted[:length].tolist()
        assert set(row[length:].tolist()) <= {1}


@pytest.mark.long
def test_scores_are_changed_as_generation_config_says(tmp_path: Path) -> None:
    model, _ = exported(DECODERS["llama"], tmp_path / "out")
    inputs = prompts((4, 2))
    free = generate_eagerly(model, inputs, 6)
    said = model.generation_config
    said.suppress_tokens, said.repetition_penalty = [int(free[0, 5])], 1.5
    said.save_pretrained(tmp_path / "out")
    expected = generate_eagerly(model, inputs, 6)
    assert not torch.equal(free, expected)
    assert torch.equal(load(tmp_path / "out", "runner").generate(**inputs, max_new_tokens=6), expected)


def test_models_without_a_cache_are_refused() -> None:
    model = T.BertForMaskedLM(T.BertConfig(**TEXT)).eval()
    with pytest.raises(UserError, match="keeps no cache"):
        cached_parts(Source("model", model))


@pytest.mark.long_cases("inputs0-needs input_ids", "inputs3-on the right")
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "needs input_ids"),
        ({"input_ids": np.ones((2, 0), np.int64)}, "at least one token"),
        ({"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.ones((2, 4))}, "attention_mask is"),
        ({"input_ids": np.ones((2, 2), np.int64), "attention_mask": np.array([[1, 1], [1, 0]])}, "on the right"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: dict[str, Any], text: str, tmp_path: Path) -> None:
    exported(DECODERS["llama"], tmp_path / "out")
    with pytest.raises(UserError, match=text):
        load(tmp_path / "out", "runner").generate(**inputs)


def _llava() -> Any:
    text = T.LlamaConfig(**TEXT)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = T.CLIPVisionConfig(**sizes, image_size=16, patch_size=8)
    return T.LlavaForConditionalGeneration(
        T.LlavaConfig(text_config=text, vision_config=vision, image_token_id=59, vision_feature_layer=-1)
    )


@pytest.mark.long
def test_images_go_through_an_encoder_an_embedding_and_the_language_model(tmp_path: Path) -> None:
    model, done = exported(_llava, tmp_path / "out")
    assert set(done.reports) == {"vision_encoder.onnx", "embed_tokens.onnx", "decoder_model.onnx"}
    assert done.notes == [note for note in done.notes if note.startswith("vision_encoder.onnx takes one image")]
    for file, source in done.sources.items():
        verify(str(tmp_path / "out" / file), source.module, source.args, source.kwargs).raise_if_failed()
    image = [59] * 4
    ids = torch.tensor([[0, 5, *image, 7, 8], [3, *image, 9, 9, 9]])
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    with_images = generate_eagerly(model, inputs | {"pixel_values": pixels}, 6)
    assert not torch.equal(with_images, generate_eagerly(model, inputs | {"pixel_values": pixels.flip(0)}, 6))
    for engine in ENGINES:
        loaded = load(tmp_path / "out", engine)
        assert torch.equal(loaded.generate(**inputs, pixel_values=pixels, max_new_tokens=6), with_images), engine
        text = {"input_ids": torch.tensor([[5, 6, 7]])}
        assert torch.equal(loaded.generate(**text, max_new_tokens=6), generate_eagerly(model, text, 6)), engine


@pytest.mark.long
def test_the_sample_has_one_placeholder_a_feature() -> None:
    model = _llava()
    for token in range(3, 9):
        model.config.image_token_id = token
        sample = encoders_and_embedding(model, "llava", Options())["embed_tokens.onnx"][0].kwargs
        assert int((sample["input_ids"] == token).sum()) == len(sample["image_features"])


def _qwen2_vl() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = T.models.qwen2_vl.Qwen2VLVisionConfig(
        embed_dim=32, hidden_size=32, depth=1, num_heads=2, patch_size=4, spatial_merge_size=2, mlp_ratio=2
    ).to_dict()
    text = {**TEXT, "rope_parameters": rope, "num_key_value_heads": 2}
    ends = {"vision_start_token_id": 57, "vision_end_token_id": 58}
    config = T.Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=59, **ends)
    return T.Qwen2VLForConditionalGeneration(config)


def test_positions_counted_in_another_way_are_not_exported() -> None:
    model = _qwen2_vl()
    grid = {"image_grid_thw": torch.tensor([[1, 4, 6]])}
    assert image_layout(model, grid, lambda: 0) is not None
    model.model.get_rope_index = lambda input_ids, **_: (torch.zeros(3, *input_ids.shape), None)
    with pytest.raises(UserError, match="rules of its own"):
        image_layout(model, grid, lambda: 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "cache", "opset", "written_by", "count"),
    [
        ("llama", "static", 24, "TensorScatter", 4),
        ("gemma3", "static", 18, "ScatterElements", 2),  # windows are shifted
        ("llama", "paged", 20, "ScatterND", 4),
    ],
)
def test_a_static_cache_is_written_where_it_stands(
    name: str, cache: str, opset: int, written_by: str, count: int, tmp_path: Path
) -> None:
    with seeded(0):
        model = DECODERS[name]().eval()
    move_constants(model)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    parts = cached_parts(Source("model", model), cache, in_place=opset >= 24)
    done = export_assembly(Assembly(model, parts, None, ""), tmp_path / "out", ExportOptions(opset_version=opset))
    source = done.sources["model.onnx"]
    verify(str(tmp_path / "out" / "model.onnx"), source.module, source.args, source.kwargs).raise_if_failed()
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert sum(node.op_type == written_by for node in graph.node) == count
    assert_same_tokens(model, done, prompts((1,)), prompts((9, 7, 3)))


@pytest.mark.long
def test_rows_of_a_paged_cache_share_pages_and_beams_do_not(tmp_path: Path) -> None:
    """Two rows read one page that one of them wrote, in any order of the pages; what pages of others hold changes nothing."""
    with seeded(0):
        model = DECODERS["llama"]().eval()
    move_constants(model)
    parts = cached_parts(Source("model", model), "paged")
    done = export_assembly(Assembly(model, parts, None, ""), tmp_path / "out")
    ids = torch.randint(3, 60, (2, 24), generator=torch.Generator().manual_seed(0))
    ids[1, :16] = ids[0, :16]
    wanted = model(ids).logits[:, 16:].detach().numpy()
    plain = export_assembly(Assembly(model, cached_parts(Source("model", model)), None, ""), tmp_path / "plain")
    beams = load(plain.path).generate(ids[:1].numpy(), max_new_tokens=12, num_beams=3)
    for engine in ("onnxruntime", "runner"):
        loaded = load(done.path, engine=engine)
        with seeded(1):
            pages = {
                state.name: torch.randn([5, *state.shape[1:]]).numpy()  # type: ignore[list-item]
                for state in loaded.main.form.cache
            }
        first = ids[:1, :16].numpy()
        behind = loaded(first, past_length=np.array(0), block_table=np.array([[3, 1]]), past_key_values=pages)
        table, mask = np.array([[3, 1], [3, 4]]), np.ones((2, 24), np.int64)
        given = {"past_length": np.array(16), "block_table": table, "past_key_values": behind.past_key_values}
        found = loaded(ids[:, 16:].numpy(), attention_mask=mask, **given)
        np.testing.assert_allclose(found.logits, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(loaded.generate(ids[:1].numpy(), max_new_tokens=12, num_beams=3), beams)
        with pytest.raises(UserError, match="block_table"):
            loaded(first, past_length=np.array(0), past_key_values=pages)


@pytest.mark.long_cases("<lambda>0")
@pytest.mark.parametrize("build", [DECODERS["mamba"], ENCODER_DECODERS["t5"], _llava])
def test_a_static_cache_is_for_keys_and_values_only(build: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match="fixed size"):
        cached_parts(Source("model", build().eval()), "static")


def test_layers_that_count_tokens_their_own_way_are_refused() -> None:
    from transformers.cache_utils import DynamicSlidingWindowLayer

    from fx2onnx.decoding.cache.layout import answering_by_shape

    class Reference(DynamicSlidingWindowLayer):
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            return key_states, value_states

    with pytest.raises(UserError, match="rules of its own"):
        answering_by_shape(Reference)
    assert issubclass(answering_by_shape(DynamicSlidingWindowLayer), DynamicSlidingWindowLayer)
