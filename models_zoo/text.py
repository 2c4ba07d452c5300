"""Language models of transformers, from configs at their published sizes and as tiny variants of the same shape."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, DEFAULT_SEQ, Source

from .registry import zoo_model

_TEXT_AXES = {0: "batch", 1: "sequence"}
_DECODER_AXES = {0: "batch", 1: "decoder_sequence"}


def _transformers() -> Any:
    import transformers

    return transformers


def _text_source(
    name: str,
    module_class: Any,
    config: Any,
    batch: int,
    seq: int,
    seed: int,
    *,
    outputs: tuple[str, ...] = ("logits",),
    decoder_seq: int | None = None,
) -> Source:
    """``input_ids`` and ``attention_mask`` [batch, seq], for encoder-decoders ``decoder_input_ids`` [batch, decoder_seq].

    The last row of the mask hides its last quarter (padding on the right), so that a dropped mask shows.
    """
    with seeded(seed):
        module = module_class(config).eval()
        move_constants(module, seed)
        mask = torch.ones(batch, seq, dtype=torch.int64)
        mask[-1, seq - seq // 4 :] = 0
        kwargs = {"input_ids": torch.randint(1, config.vocab_size, (batch, seq)), "attention_mask": mask}
        axes = {"input_ids": _TEXT_AXES, "attention_mask": _TEXT_AXES}
        if decoder_seq is not None:
            kwargs["decoder_input_ids"] = torch.randint(1, config.vocab_size, (batch, decoder_seq))
            axes["decoder_input_ids"] = _DECODER_AXES
    return Source(name, module, (), kwargs, axes, outputs, f"zoo, random weights, seed {seed}")


def _bert(name: str, batch: int, seq: int, seed: int, **sizes: int) -> Source:
    library = _transformers()
    return _text_source(name, library.BertForMaskedLM, library.BertConfig(**sizes), batch, seq, seed)


def _gpt2(name: str, batch: int, seq: int, seed: int, **sizes: int) -> Source:
    library = _transformers()
    config = library.GPT2Config(use_cache=False, **sizes)
    return _text_source(name, library.GPT2LMHeadModel, config, batch, seq, seed)


def _t5(name: str, batch: int, seq: int, seed: int, **sizes: int) -> Source:
    library = _transformers()
    config = library.T5Config(use_cache=False, decoder_start_token_id=0, **sizes)
    return _text_source(
        name,
        library.T5ForConditionalGeneration,
        config,
        batch,
        seq,
        seed,
        outputs=("logits", "encoder_last_hidden_state"),
        decoder_seq=max(1, seq * 3 // 4),
    )


@zoo_model("bert_base_mlm")
def bert_base_mlm(*, batch: int = DEFAULT_BATCH, seq: int = 128, seed: int = 0) -> Source:
    """BERT-base, masked language model (transformers)"""
    return _bert("bert_base_mlm", batch, seq, seed)


@zoo_model("gpt2")
def gpt2(*, batch: int = DEFAULT_BATCH, seq: int = 64, seed: int = 0) -> Source:
    """GPT-2, 124 million parameters, without cache (transformers)"""
    return _gpt2("gpt2", batch, seq, seed)


@zoo_model("t5_small")
def t5_small(*, batch: int = DEFAULT_BATCH, seq: int = 64, seed: int = 0) -> Source:
    """T5-small, encoder and decoder, without cache (transformers)"""
    return _t5("t5_small", batch, seq, seed)


@zoo_model("llama_small")
def llama_small(*, batch: int = DEFAULT_BATCH, seq: int = 64, seed: int = 0) -> Source:
    """A Llama of 15 million parameters: grouped-query attention, tied embeddings, without cache (transformers)"""
    library = _transformers()
    config = library.LlamaConfig(
        vocab_size=8192,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return _text_source("llama_small", library.LlamaForCausalLM, config, batch, seq, seed)


@zoo_model("bert_tiny")
def bert_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """The architecture of BERT-base, 2 layers of width 32, for fast tests"""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    return _bert("bert_tiny", batch, seq, seed, vocab_size=120, max_position_embeddings=64, **sizes)


@zoo_model("gpt2_tiny")
def gpt2_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """The architecture of GPT-2, 2 layers of width 32, for fast tests"""
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "vocab_size": 120}
    return _gpt2("gpt2_tiny", batch, seq, seed, bos_token_id=0, eos_token_id=0, **sizes)


@zoo_model("t5_tiny")
def t5_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """The architecture of T5-small, 2 layers of width 32, for fast tests"""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    return _t5("t5_tiny", batch, seq, seed, vocab_size=120, **sizes)


@zoo_model("llama_tiny")
def llama_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """A Llama with grouped-query attention, 2 layers of width 32, without cache, for fast tests"""
    library = _transformers()
    config = library.LlamaConfig(
        vocab_size=120,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
        tie_word_embeddings=False,
    )
    return _text_source("llama_tiny", library.LlamaForCausalLM, config, batch, seq, seed)
