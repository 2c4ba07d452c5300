"""Cache layers that keep the whole prompt, and of what follows a window of the last tokens (Unlimited-OCR).

A layer holds ``prefill_keys`` and ``prefill_values`` of the prompt, which is whatever it was given first, and ``keys`` and
``values`` of the window. Here the lengths of both are sizes, and nothing is decided by them.
"""

from __future__ import annotations

import torch

PROMPT_LENGTH = "past_prompt_length"
PROMPT_FIELDS = {"prefill_keys": "keys", "prefill_values": "values"}
"""The fields that hold the prompt, and those of the window that belong to them."""
_WITHOUT_END = 2**31


def keeps_prompt(kind: type) -> bool:
    """Whether ``kind`` is a layer of this sort: by the method that says how long the prompt is."""
    from transformers.cache_utils import DynamicLayer

    return issubclass(kind, DynamicLayer) and hasattr(kind, "set_prefill_length")


class KeepingPrompt:
    """Goes before such a layer's class: the same, for a prompt and a window of any length, none included."""

    prefill_keys: torch.Tensor
    prefill_values: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    prefill_cumulative_length: int
    """Here of all tokens so far."""
    sliding_window: int

    @property
    def prefill_length(self) -> int:
        """How many keys no window hides; before the prompt all of them."""
        return self._kept + _WITHOUT_END * self._is_first

    @property
    def _kept(self) -> int:
        return self.prefill_keys.shape[-2]

    @property
    def _is_first(self) -> int:
        """1 before the prompt, 0 behind it."""
        kept: int = torch.sym_min(self._kept, 1)  # type: ignore[no-untyped-call]
        return 1 - kept

    def get_seq_length(self) -> int:
        return self.prefill_cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = self._kept + self.keys.shape[-2]
        return length + query_length, self.prefill_cumulative_length - length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: key, value [batch, heads, tokens, size] -> those of the prompt, the window and the tokens."""
        keys = torch.cat([self.prefill_keys, self.keys, key], dim=-2)
        values = torch.cat([self.prefill_values, self.values, value], dim=-2)
        total = keys.shape[-2]
        end = self._kept + total * self._is_first
        first = torch.sym_max(total - (self.sliding_window - 1), end)  # type: ignore[no-untyped-call]
        self.prefill_keys, self.prefill_values = keys[:, :, :end], values[:, :, :end]
        self.keys, self.values = keys[:, :, first:], values[:, :, first:]
        self.prefill_cumulative_length = self.prefill_cumulative_length + key.shape[-2]
        return keys, values
