"""The parts that small diffusers pipelines share, with random weights, and the table of these pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

PIPELINES: dict[str, Callable[[], Any]] = {}


def pipeline(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register the pipeline that ``make`` builds; PyTorch's random numbers are seeded before."""

    def seeded() -> Any:
        torch.manual_seed(0)
        return make()

    PIPELINES[make.__name__] = seeded
    return seeded


def tokenizer(length: int = 16) -> CLIPTokenizer:
    """A tokenizer of single characters, with texts of ``length`` tokens."""
    characters = [chr(code) for code in range(33, 127)]
    words = [*characters, *(character + "</w>" for character in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=length)


def text_encoder(kind: Any = CLIPTextModel, width: int = 32) -> Any:
    config = CLIPTextConfig(
        vocab_size=190,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        max_position_embeddings=16,
        bos_token_id=188,
        eos_token_id=189,
        pad_token_id=189,
    )
    return kind(config).eval()


def unet(**more: Any) -> Any:
    settings = {
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "sample_size": 16,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 32,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**(settings | more)).eval()


def vae(**more: Any) -> Any:
    settings = {
        "block_out_channels": (8, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 4,
        "latent_channels": 4,
    }
    return diffusers.AutoencoderKL(**(settings | more)).eval()


def t5(kind: str = "T5") -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=190,
        d_model=32,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_heads=4,
        dense_act_fn="gelu_new",
        is_gated_act=True,
    )
    return getattr(transformers, f"{kind}EncoderModel")(config).eval()


def t5_wide() -> Any:
    config = transformers.T5Config(vocab_size=190, d_model=64, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config).eval()


def words(kind: Any = transformers.T5Tokenizer, length: int = 16) -> Any:
    """A tokenizer of words and single characters for the encoders of other classes than CLIP's."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = ["<pad>", "</s>", "<unk>", *(chr(code) for code in range(33, 127))]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=length
    )


def gemma(width: int) -> Any:
    config = transformers.Gemma2Config(
        vocab_size=190,
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=width // 2,
        attn_implementation="eager",
    )
    return transformers.Gemma2Model(config).eval()
