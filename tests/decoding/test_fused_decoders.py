"""Decoders with onnxruntime's GroupQueryAttention: the tokens of ``model.generate``, in every engine and in onnxruntime-genai."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

import fx2onnx
from fx2onnx.base.errors import UserError

GENAI = "onnxruntime-genai"
CONTRIB = "com.microsoft"
PROMPT = [[1, 5, 77, 12, 9, 31, 4, 8]]
TOKENS = 16
SIZES = {
    "vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 5},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5},
    "phi": {"hidden_size": 128},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "sliding_window": 5},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3},
}
EXPERTS = ("gpt_oss", "mixtral", "qwen3_moe", "olmoe")
LIGHT = ("llama", "gemma2", "phi", "mixtral")
OTHERS = ("mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "phi3", "gpt_oss", "granite", "olmo2", "smollm3", "glm", "stablelm",
          "starcoder2", "cohere", "qwen3_moe", "olmoe")  # fmt: skip


def checkpoint(kind: str, folder: Path, **more: Any) -> Any:
    """A model with random weights, none of which is a number that changes nothing, saved with a tokenizer."""
    config = transformers.AutoConfig.for_model(kind, **SIZES | MORE.get(kind, {}) | more)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data = 3 * weight.data if weight.dim() > 1 else weight.data + 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = models.WordLevel({f"w{place}": place for place in range(99)}, unk_token="w0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), bos_token="w1", eos_token="w2")
    tokenizer.save_pretrained(folder)


def operators(folder: Path) -> Counter[str]:
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)


def tokens_of_genai(folder: Path) -> list[int]:
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    options = genai.GeneratorParams(model)
    options.set_search_options(max_length=len(PROMPT[0]) + TOKENS, do_sample=False)
    generator = genai.Generator(model, options)
    generator.append_tokens(np.array(PROMPT, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def check(kind: str, folder: Path) -> Counter[str]:
    model = checkpoint(kind, folder / "in")
    done = fx2onnx.export_folder(f"hf:{folder / 'in'}", folder / "out", target=GENAI, verify=True)
    assert done.verdicts["model.onnx"].ok, done.verdicts["model.onnx"].summary()
    ids = torch.tensor(PROMPT)
    wanted = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)[0].tolist()
    for engine in ("onnxruntime", "runner"):
        found = fx2onnx.load(folder / "out", engine=engine).generate(ids, max_new_tokens=TOKENS)
        assert found[0].tolist() == wanted, engine
    if find_spec("onnxruntime_genai") is not None:
        found = tokens_of_genai(folder / "out")
        assert found == wanted[: len(found)]
        assert len(found) == len(wanted) or wanted[len(found) - 1] == 2
    return operators(folder / "out")


@pytest.mark.long
@pytest.mark.parametrize("kind", LIGHT)
def test_tokens(kind: str, tmp_path: Path) -> None:
    found = check(kind, tmp_path)
    assert found["GroupQueryAttention"] == SIZES["num_hidden_layers"]
    assert found["Softmax"] == found["RotaryEmbedding"] == found["Loop"] == 0
    assert found["MoE"] == (SIZES["num_hidden_layers"] if kind in EXPERTS else 0)
    assert found["Concat"] == (kind in EXPERTS)  # the sizes of the tokens in rows


@pytest.mark.long
def test_four_bits_compute_as_the_model_builders_own(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "in")
    quantize = fx2onnx.Quantize("int4", accuracy=False)
    done = fx2onnx.export_folder(
        f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI, quantize=quantize, verify=True
    )
    assert done.verdicts["model.onnx"].ok, done.verdicts["model.onnx"].summary()
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    levels = [entry.i for node in graph.node for entry in node.attribute if entry.name == "accuracy_level"]
    assert levels == [4] * (5 * SIZES["num_hidden_layers"] + 1)
    if find_spec("onnxruntime_genai") is not None:
        assert len(tokens_of_genai(tmp_path / "out")) > len(PROMPT[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_tokens_of_other_types(kind: str, tmp_path: Path) -> None:
    found = check(kind, tmp_path)
    assert found["GroupQueryAttention"] == SIZES["num_hidden_layers"]
    assert found["MoE"] == (SIZES["num_hidden_layers"] if kind in EXPERTS else 0)


@pytest.mark.long
def test_one_product_in_front_of_attention(tmp_path: Path) -> None:
    """The form of a Llama: seven products of a layer are five, norms take the sums in front of them."""
    checkpoint("llama", tmp_path / "in")
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI)
    found = operators(tmp_path / "out")
    assert (found["MatMul"], found["SkipSimplifiedLayerNormalization"], found["RMSNormalization"]) == (16, 6, 1)
    assert found["Transpose"] == found["Reshape"] == found["Add"] == 0
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    assert decoder["inputs"].keys() == {"input_ids", "attention_mask", "past_key_names", "past_value_names"}
    assert (decoder["head_size"], decoder["num_key_value_heads"], decoder["num_hidden_layers"]) == (16, 2, 3)
    assert (config["model"]["type"], config["model"]["eos_token_id"], config["search"]["max_length"]) == (
        "llama",
        2,
        128,
    )
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.long
def test_windows_and_caps_are_those_of_the_model(tmp_path: Path) -> None:
    checkpoint("gemma2", tmp_path / "in")
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    found = [
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for node in graph.node
        if node.op_type == "GroupQueryAttention"
    ]
    assert [each["local_window_size"] for each in found] == [5, -1, 5]
    assert {each["softcap"] for each in found} == {50.0}


@pytest.mark.long
def test_tables_that_the_operator_does_not_take(tmp_path: Path) -> None:
    """Four angles a head: onnxruntime's attention turns by tables of a multiple of eight columns."""
    checkpoint("phi", tmp_path / "in", hidden_size=64)
    done = fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI, verify=True)
    assert done.verdicts["model.onnx"].ok
    assert operators(tmp_path / "out")["RotaryEmbedding"] == 6


@pytest.mark.long
def test_padded_prompts_are_refused(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "in")
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", fused=True)
    assert not (tmp_path / "out" / "genai_config.json").exists()
    model = fx2onnx.load(tmp_path / "out")
    ids, mask = torch.tensor([[0, 5, 6], [7, 8, 9]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(UserError, match="the prompts are padded"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2)
    several = model.generate(ids.clamp(min=3), max_new_tokens=4)
    for row in (0, 1):
        alone = model.generate(ids.clamp(min=3)[row : row + 1], max_new_tokens=4)
        assert several[row].tolist() == alone[0].tolist()


@pytest.mark.long
def test_attention_of_another_kind_stays_plain(tmp_path: Path) -> None:
    """BLOOM computes its own attention, with a bias for each head."""
    config = transformers.BloomConfig(
        vocab_size=99, hidden_size=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "in")
    done = fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI)
    assert any("plain attention" in note for note in done.notes)
    assert operators(tmp_path / "out")["GroupQueryAttention"] == 0


@pytest.mark.parametrize(
    ("spec", "asked", "code", "message"),
    [
        (
            "hf:t5",
            {"target": GENAI, "task": "text2text-generation-with-past"},
            "E001",
            "makes no folder for onnxruntime-genai",
        ),
        ("hf:llama", {"target": GENAI, "task": "text-generation"}, "E001", "makes no folder for onnxruntime-genai"),
        ("hf:llama", {"target": "openvino", "fused": True}, "E001", "fused forms are not for the target 'openvino'"),
        ("hf:llama", {"target": "onnx", "fused": True}, "E001", "fused forms are not for the target 'onnx'"),
    ],
)
def test_what_is_refused(spec: str, asked: Any, code: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        fx2onnx.export_folder(spec, tmp_path / "out", **asked)
    assert caught.value.code == code
    assert not (tmp_path / "out").exists()


OTHER_CACHES: list[tuple[Any, str]] = [
    (transformers.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8), "no decoder alone|none that onnxruntime-genai has"),
    (transformers.XLNetConfig(vocab_size=99, d_model=32, n_layer=2, n_head=2, d_inner=64), "no decoder alone"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("config", "message"), OTHER_CACHES, ids=["mamba", "xlnet"])
def test_models_that_onnxruntime_genai_cannot_run(config: Any, message: str, tmp_path: Path) -> None:
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "in")
    with pytest.raises(UserError, match=message) as caught:
        fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", target=GENAI)
    assert caught.value.code == "E601"
    assert not (tmp_path / "out").exists()
