"""Recurrent models: a graph for prompts of any length, and one for single tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import transformers as T

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import assemble, cached_parts
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting import folder as folders
from fx2onnx.generation import load
from fx2onnx.generation.engine import Graph
from fx2onnx.sources.source import Source
from tests.decoding.test_decoders import DECODERS, ENGINES, TEXT, exported, prompts

PROMPT, STEP = "prompt_model.onnx", "model.onnx"
JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 4, "mamba_dt_rank": 4}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MODELS = {
    "jamba": lambda: T.JambaForCausalLM(T.JambaConfig(**TEXT, **JAMBA, num_key_value_heads=2, use_mamba_kernels=False)),
    "qwen3_5": lambda: T.Qwen3_5ForCausalLM(
        T.Qwen3_5TextConfig(
            **TEXT, **LINEAR, head_dim=8, num_key_value_heads=2, layer_types=["linear_attention", "full_attention"]
        )
    ),
    "recurrent_gemma": lambda: T.RecurrentGemmaForCausalLM(
        T.RecurrentGemmaConfig(**TEXT, num_key_value_heads=1, lru_width=32, block_types=["recurrent", "attention"])
    ),
}
"""States that forward ignores where it gets several tokens, states that it goes on from, states of modules."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The file and the number of tokens of each call of a graph."""
    seen: list[tuple[str, int]] = []
    run = Graph.run

    def watched(graph: Graph, feeds: Any) -> Any:
        seen.append((graph.path.name, feeds["input_ids"].shape[1]))
        return run(graph, feeds)

    monkeypatch.setattr(Graph, "run", watched)
    return seen


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_takes_one_call(name: str, tmp_path: Path, calls: list[tuple[str, int]]) -> None:
    model, done = exported(MODELS[name], tmp_path / "out")
    assert {PROMPT, STEP} <= set(done.files)
    assert done.notes == [f"{PROMPT} takes the prompt, {STEP} each later token"]
    for lengths in ((1,), (2, 1), (37, 20, 3)):  # shorter than a convolution, and several chunks with padding
        inputs = prompts(lengths)
        expected = generate_eagerly(model, inputs, 4)
        for engine in ENGINES:
            calls.clear()
            assert torch.equal(load(tmp_path / "out", engine).generate(**inputs, max_new_tokens=4), expected), engine
            first = (PROMPT, max(lengths)) if max(lengths) > 1 else (STEP, 1)
            assert calls == [first, *[(STEP, 1)] * 3]


@pytest.mark.long
@pytest.mark.parametrize("name", [*MODELS, "llama"])
def test_logits_of_the_last_position(name: str, tmp_path: Path) -> None:
    model, _ = exported({**MODELS, **DECODERS}[name], tmp_path / "out", logits="last")
    folder = tmp_path / "out"
    file = folder / (STEP if name == "llama" else PROMPT)
    wide = [value for value in onnx.load(file, load_external_data=False).graph.value_info if _is_of_vocabulary(value)]
    assert not wide, "the head takes the last position alone"
    for lengths in ((1,), (9, 5)):
        inputs = prompts(lengths)
        expected = generate_eagerly(model, inputs, 4)
        with torch.no_grad():
            logits = model(**inputs).logits[:, -1:]
        for engine in ENGINES:
            loaded = load(folder, engine)
            assert torch.equal(loaded.generate(**inputs, max_new_tokens=4), expected), engine
            found = loaded(**inputs).logits
            assert found.shape == logits.shape
            torch.testing.assert_close(found[0], logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_gate_of_the_last_layer_takes_the_last_position_alone(tmp_path: Path) -> None:
    config = {**TEXT, "state_size": 4, "time_step_rank": 4}
    model, _ = exported(lambda: T.MambaForCausalLM(T.MambaConfig(**config)), tmp_path / "out", logits="last")
    graph = onnx.load(tmp_path / "out" / PROMPT, load_external_data=False).graph
    width = model.config.intermediate_size
    sizes = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    rows = [
        sizes[node.output[0]][1].dim_value
        for node in graph.node
        if node.op_type == "MatMul"
        and node.output[0] in sizes
        and sizes[node.output[0]][2].dim_value in (width, 2 * width)
    ]
    assert rows.count(1) == 1, "the gate's product; the first layer's, and the last one's states are of all positions"
    inputs = prompts((9, 5))
    with torch.no_grad():
        logits = model(**inputs).logits[:, -1:]
    for engine in ENGINES:
        torch.testing.assert_close(load(tmp_path / "out", engine)(**inputs).logits[0], logits[0], rtol=1e-4, atol=1e-5)


def _is_of_vocabulary(value: onnx.ValueInfoProto) -> bool:
    sizes = value.type.tensor_type.shape.dim
    return len(sizes) == 3 and sizes[2].dim_value == TEXT["vocab_size"] and sizes[1].dim_value != 1


def test_logits_that_are_not_known() -> None:
    model = T.LlamaForCausalLM(T.LlamaConfig(**TEXT))
    with pytest.raises(UserError, match=r"logits='first' is not known"):
        cached_parts(Source("model", model), logits="first")
    with pytest.raises(UserError, match=r"logits='last' has no meaning for text-generation"):
        assemble("hf:llama", "text-generation", logits="last")


@pytest.mark.long
@pytest.mark.parametrize("name", ["jamba", "qwen3_5"])
def test_a_call_goes_to_the_graph_that_takes_it(name: str, tmp_path: Path, calls: list[tuple[str, int]]) -> None:
    model, _ = exported(MODELS[name], tmp_path / "out")
    inputs = prompts((9, 5))
    loaded = load(tmp_path / "out", "onnxruntime")
    with torch.no_grad():
        expected = model(**inputs).logits
    whole = loaded(**inputs)
    torch.testing.assert_close(whole.logits[0], expected[0], rtol=1e-4, atol=1e-5)
    ids, mask = inputs["input_ids"][:1], inputs["attention_mask"][:1]
    some = loaded(input_ids=ids[:, :6], attention_mask=mask[:, :6])
    one = loaded(input_ids=ids[:, 6:7], attention_mask=mask[:, :7], past_key_values=some.past_key_values)
    torch.testing.assert_close(one.logits[0], expected[0, 6:7], rtol=1e-4, atol=1e-5)
    assert calls == [(PROMPT, 9), (PROMPT, 6), (STEP, 1)]
    if name == "qwen3_5":  # the model itself goes on from its state
        rest = loaded(input_ids=ids[:, 7:], attention_mask=mask, past_key_values=one.past_key_values)
        torch.testing.assert_close(rest.logits[0], expected[0, 7:], rtol=1e-4, atol=1e-5)
        assert calls[3:] == [(PROMPT, 2)]
    else:
        with pytest.raises(UserError, match=r"input_ids is \[1, 2\], model.onnx takes"):
            loaded(input_ids=ids[:, 7:], attention_mask=mask, past_key_values=one.past_key_values)


@pytest.mark.long
def test_without_a_graph_for_prompts_each_token_is_a_call(
    tmp_path: Path, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw = folders._flaw
    monkeypatch.setattr(folders, "_flaw", lambda result, source: flaw(result, source) or "not this one")
    model, done = exported(MODELS["jamba"], tmp_path / "out")
    assert PROMPT not in done.files
    assert "model.onnx takes one token a call" in done.notes[0]
    inputs = prompts((4, 2))
    tokens = load(tmp_path / "out", "onnxruntime").generate(**inputs, max_new_tokens=3)
    assert torch.equal(tokens, generate_eagerly(model, inputs, 3))
    assert calls == [(STEP, 1)] * 6
