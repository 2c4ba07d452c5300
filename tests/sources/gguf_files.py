"""Small GGUF files for tests, written by the ``gguf`` package from transformers models of one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY = 288
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 64}),
    "gemma2": ("Gemma2Config", {"num_key_value_heads": 2, "head_dim": 64, "sliding_window": 64}),
    "phi3": ("Phi3Config", {"num_key_value_heads": 4, "pad_token_id": 0}),
    "gpt2": ("GPT2Config", {}),
    "qwen2moe": ("Qwen2MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
                                    "shared_expert_intermediate_size": 256, "num_key_value_heads": 2}),
    "falcon": ("FalconConfig", {"bias": False}),
    "mamba": ("MambaConfig", {}),
}  # fmt: skip
"""By the architecture in GGUF: class of the config, and what it gets beside ``SIZES``."""


def model_of(architecture: str) -> Any:
    """A model of that architecture with random weights."""
    import transformers

    torch.manual_seed(0)
    name, more = CONFIGS[architecture]
    config = getattr(transformers, name)(
        **SIZES, **more, vocab_size=VOCABULARY, max_position_embeddings=128, bos_token_id=1, eos_token_id=2
    )
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


_STEPS: dict[str, dict[int, float]] = {
    "Q2_K": {80: 2.5e-3, 82: 3.7e-3},
    "Q3_K": {108: 5e-4},
    "Q4_K": {0: 1e-4, 2: 7.5e-4},
    "Q5_K": {0: 5e-5, 2: 7.5e-4},
    "Q6_K": {208: 1.5e-5},
    "IQ4_NL": {0: 3e-4},
    "IQ4_XS": {0: 2e-5},
    "IQ2_XXS": {0: 1e-3},
}
"""Layouts that the ``gguf`` package does not write: places of float16 steps, and steps that give weights of about 0.02."""


def blocks(numbers: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """Rows in blocks: by the ``gguf`` package where it can, else random codes with small scales."""
    kind = gguf.GGMLQuantizationType[layout]
    try:
        return gguf.quantize(numbers, kind)
    except NotImplementedError:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        draw = np.random.default_rng(len(numbers))
        raw = draw.integers(0, 256, (numbers.size // elements, size), dtype=np.uint8)
        for place, step in _STEPS[layout].items():
            raw[:, place : place + 2] = (draw.uniform(0.5, 1, (len(raw), 1)) * step).astype(np.float16).view(np.uint8)
        return raw.reshape(*numbers.shape[:-1], -1)


def permuted(numbers: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of queries and keys as llama.cpp has them. Source: convert_hf_to_gguf.py, LlamaModel.permute."""
    parts = numbers.reshape(heads, 2, numbers.shape[0] // heads // 2, *numbers.shape[1:])
    return parts.swapaxes(1, 2).reshape(numbers.shape)


def write(
    path: Path, architecture: str, layout: str, model: Any | None = None, *, tokens: bool = True, **more: Any
) -> Any:
    """Write a model into a file, its matrices in ``layout``; gives transformers' model with the numbers of the file's blocks."""
    model = model or model_of(architecture)
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("small")
    _metadata(writer, architecture, config)
    if tokens:
        _tokenizer(writer)
    for key, value in more.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture), 2)
    state = model.state_dict()
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add(writer, names, name, value, layout, config, architecture, state)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add(
    writer: Any, names: Any, name: str, value: torch.Tensor, layout: str, config: Any, architecture: str, state: Any
) -> None:
    """One tensor of the model, and in the model the numbers that its blocks stand for."""
    base, _, suffix = name.rpartition(".")
    if base.endswith("mixer") or "conv1d" in base:  # Mamba's, which are no matrices
        place = base.replace("backbone.layers", "blk").replace("mixer.conv1d", "ssm_conv1d").replace(".mixer", "")
        full = {"A_log": f"{place}.ssm_a", "D": f"{place}.ssm_d"}.get(suffix, f"{place}.{suffix}")
        writer.add_tensor(
            full,
            -np.exp(value.numpy())
            if suffix == "A_log"
            else value.squeeze(1).numpy()
            if value.ndim == 3
            else value.numpy(),
        )
        return
    if value.ndim == 2 and value.shape[1] % 256:  # no whole blocks
        layout = "F32"
    is_expert = suffix in ("gate_up_proj", "down_proj")
    found = names.get_name(name if is_expert else base)
    array: Any = value.numpy()
    is_turned = architecture == "gpt2" and array.ndim == 2 and ".h." in name
    if is_turned:
        array = np.ascontiguousarray(array.T)
    heads = {".q_proj": config.num_attention_heads, ".k_proj": getattr(config, "num_key_value_heads", 0)}
    head = heads.get(base[base.rfind(".") :]) if architecture == "llama" else None
    if "norm" in base and architecture == "gemma2":
        array = array + 1
    parts = {found: array}
    if suffix == "gate_up_proj":
        layer = name.split(".")[2]
        gate, up = np.split(array, 2, axis=1)
        parts = {f"blk.{layer}.ffn_gate_exps": gate, f"blk.{layer}.ffn_up_exps": up}
    made = []
    for target, part in parts.items():
        assert target is not None, name
        full = f"{target}.{'weight' if is_expert else suffix}"
        if (
            part.ndim < 2
            or "router" in name
            or (".gate." in f"{name}." and "mlp.gate." in name)
            or "shared_expert_gate" in name
        ):
            writer.add_tensor(full, part.reshape(-1) if "shared_expert_gate" in name else part)
            made.append(part)
            continue
        part = permuted(part, head) if head else part
        if layout in ("F16", "F32", "BF16"):
            kind = gguf.GGMLQuantizationType[layout]
            stored = gguf.quantize(np.ascontiguousarray(part), kind)
            writer.add_tensor(full, stored, raw_dtype=kind)
            numbers = gguf.dequantize(stored, kind)
        else:
            stored = blocks(np.ascontiguousarray(part), layout)
            kind = gguf.GGMLQuantizationType[layout]
            writer.add_tensor(full, stored, raw_dtype=kind)
            numbers = gguf.dequantize(stored, kind)
        if head:
            numbers = numbers.reshape(head, -1, 2, numbers.shape[-1]).swapaxes(1, 2).reshape(numbers.shape)
        made.append(numbers)
    whole = np.concatenate(made, axis=1) if len(made) > 1 else made[0]
    if "norm" in base and architecture == "gemma2":
        whole = whole - 1
    value.copy_(torch.from_numpy(np.ascontiguousarray(whole.T if is_turned else whole)).reshape(value.shape))


def _metadata(writer: Any, architecture: str, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_vocab_size(config.vocab_size)
    if architecture == "mamba":
        writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_inner_size(config.intermediate_size)
        writer.add_ssm_state_size(config.state_size)
        writer.add_ssm_time_step_rank(config.time_step_rank)
        return
    writer.add_head_count(config.num_attention_heads)
    if architecture in ("gpt2", "falcon"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        if architecture == "falcon":
            writer.add_head_count_kv(1)
            writer.add_key_length(config.head_dim)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if architecture in ("gemma2", "qwen3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "llama":
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    if architecture == "gemma2":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "qwen2moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _tokenizer(writer: Any) -> None:
    """Byte-level BPE with one merge: a token a byte, and three special ones."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = [*bytes_to_unicode().values()]
    tokens = ["<unk>", "<s>", "</s>", *letters, "he"]
    tokens += [f"<extra{number}>" for number in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(letters) + 1) + [3] * (VOCABULARY - 4 - len(letters)))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
