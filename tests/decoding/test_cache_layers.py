"""Cache layers whose lengths are sizes: each call gives what the library's layer gives that decides by its lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.decoding.cache import module_state, static
from fx2onnx.decoding.cache.layout import KeepingPrompt


def tokens(count: int, first: int = 0) -> torch.Tensor:
    """[batch, heads, tokens, size], each token its number."""
    return torch.arange(first, first + count, dtype=torch.float32).reshape(1, 1, count, 1)


def numbers(tensor: torch.Tensor) -> list[int]:
    return [int(value) for value in tensor.flatten()]


class TestPromptAndWindow:
    def layer(self) -> Any:
        layer = KeepingPrompt()
        layer.prefill_keys = layer.prefill_values = layer.keys = layer.values = tokens(0)
        layer.prefill_cumulative_length, layer.sliding_window = 0, 3
        return layer

    def test_the_first_tokens_are_the_prompt_and_stay(self) -> None:
        layer = self.layer()
        keys, _ = layer.update(tokens(5), tokens(5))
        assert numbers(keys) == [0, 1, 2, 3, 4]
        assert (numbers(layer.prefill_keys), numbers(layer.keys)) == ([0, 1, 2, 3, 4], [])
        assert layer.get_seq_length() == 5

    def test_of_what_follows_a_window_is_kept(self) -> None:
        layer = self.layer()
        layer.update(tokens(5), tokens(5))
        for first in (5, 6, 7):
            keys, values = layer.update(tokens(1, first), tokens(1, first))
        assert numbers(keys) == numbers(values) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert numbers(layer.keys) == [6, 7], "one less than the window"
        assert layer.get_mask_sizes(1) == (8, 1)


class TestCompressing:
    def layer(self, rate: int = 4) -> Any:
        layer = module_state.Compressing()
        layer.compress_rate = rate
        empty = {"kv": torch.zeros(1, 0, 2)}
        layer.buffer_kv, layer.buffer_gate, layer.compressed_kv = dict(empty), dict(empty), dict(empty)
        layer.overlap_kv = layer.overlap_gate = {"kv": torch.zeros(1, 4, 1)}
        return layer

    def test_whole_groups_are_given_and_the_rest_waits(self) -> None:
        layer, kv = self.layer(), torch.arange(12.0).reshape(1, 6, 2)
        whole, gate, first = layer.store_compression_weights("kv", kv, kv + 100)
        assert torch.equal(whole, kv[:, :4])
        assert torch.equal(gate, kv[:, :4] + 100)
        assert first == 0
        layer.update_compressor_states("kv", torch.zeros(1, 1, 2))
        whole, _, first = layer.store_compression_weights("kv", kv[:, :2], kv[:, :2])
        assert torch.equal(whole, torch.cat([kv[:, 4:], kv[:, :2]], dim=1))
        assert first == 4

    def test_what_no_group_left_has_no_weight(self) -> None:
        layer, chunk = self.layer(), torch.arange(8.0).reshape(1, 1, 4, 2)
        _, gate = layer.update_overlap_state("kv", chunk, chunk, 1)
        assert gate.isinf().all()
        assert torch.equal(layer.overlap_kv["kv"], chunk[:, -1, :, :1])
        layer.update_compressor_states("kv", torch.zeros(1, 1, 2))
        kv, gate = layer.update_overlap_state("kv", chunk, chunk, 1)
        assert torch.equal(kv, chunk[:, -1, :, :1])
        assert gate.isfinite().all()

    def test_sizes_of_their_own_are_named_by_the_rate(self) -> None:
        layer = self.layer(8)
        assert module_state.tokens_for_an_entry(object()) == 0  # type: ignore[arg-type]
        assert module_state.tokens_for_an_entry(layer) == 8
        assert [(word, sample) for _, word, sample in module_state.sizes_of_their_own(layer)] == [
            ("past_buffer_8_length", 17),
            ("past_buffer_8_length", 17),
            ("past_entries_8_length", 3),
        ]


class Inner(torch.nn.Module):
    state: torch.Tensor | None = None


class Holding(torch.nn.Module):
    """Adds what it is given to a state in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Inner()])
        self.layers[0].state = None

    def forward(self, value: torch.Tensor, **_: Any) -> torch.Tensor:
        layer: Any = self.layers[0]
        layer.state = value if layer.state is None else layer.state + value
        return layer.state


def test_a_step_begins_with_the_states_that_are_given_and_leaves_none_in_the_modules() -> None:
    model: Any = Holding()
    cache = {"layers": None, "held": {"layers": {0: {"state": torch.tensor(5.0)}}}}
    assert module_state.is_holding(cache)
    result, after = module_state.step(model, {"value": torch.tensor(2.0)}, cache)  # type: ignore[arg-type]
    assert result.item() == 7
    assert after["held"] == {"layers": {0: {"state": torch.tensor(7.0)}}}
    assert model.layers[0].state is None


@pytest.mark.parametrize("start", [0, 2])
def test_a_cache_of_fixed_size_is_written_at_the_length_so_far(start: int) -> None:
    past, update = torch.zeros(1, 2, 4, 3), torch.ones(1, 2, 2, 3)
    written = static.OVERLOAD(past, update, torch.tensor(start))
    assert written[0, 0, :, 0].tolist() == [float(start <= place < start + 2) for place in range(4)]
    assert not past.any()
