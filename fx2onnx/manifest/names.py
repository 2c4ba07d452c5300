"""The names of the graphs of an exported folder, of their inputs and outputs, and of their sizes: written here
alone."""

from __future__ import annotations

import re

MODEL_FILE, DECODER_FILE, PROMPT_FILE = "model.onnx", "decoder_model.onnx", "prompt_model.onnx"
ENCODER_FILE, EMBED_FILE = "encoder_model.onnx", "embed_tokens.onnx"
IMAGE_FILE, AUDIO_FILE = "vision_encoder.onnx", "audio_encoder.onnx"
DRAFT_FILE = "draft_model.onnx"

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
EMBEDDED, DECODER_IDS, LOGITS = "inputs_embeds", "decoder_input_ids", "logits"
LENGTH, STREAM, TABLE = "past_length", "audio_stream", "block_table"
HIDDEN, HIDDEN_BEFORE = "hidden_states", "previous_hidden_states"
ENCODER_STATES, ENCODER_MASK, LAST_STATES = "encoder_hidden_states", "encoder_attention_mask", "last_hidden_state"
HANDED_ON = "encoder_"
"""The prefix of the names of what an encoder gives and its decoder takes beside the states."""
PAST, PRESENT = "past_key_values.", "present."
"""The prefixes of the inputs and the outputs that hold a cache."""

BATCH, SEQUENCE, TOTAL = "batch_size", "sequence_length", "total_sequence_length"
PAST_SIZE, ENCODER_SIZE, STREAM_SIZE = "past_sequence_length", "encoder_sequence_length", "audio_sequence_length"
CAPACITY = "max_length"
"""The size of a cache that does not grow, which the caller chooses."""
PAGES, BLOCKS = "num_pages", "blocks"
"""The number of pages of a paged cache, and of those that a row has."""
ADAPTER_RANK = "lora_rank"
"""The rank of an adapter's products, 0 where there is none."""


def window_size(window: int) -> str:
    """The name of the size of what a sliding window of ``window`` tokens leaves of the past: at most one less."""
    return f"past_window_{window}_length"


def kept_by_window(size: str) -> int | None:
    """The largest number of tokens of the size of that name; None for other sizes."""
    found = re.fullmatch(window_size(0).replace("0", r"(\d+)"), size)
    return int(found[1]) - 1 if found else None
