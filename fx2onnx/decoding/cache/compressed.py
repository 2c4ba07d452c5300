"""Cache layers that keep one entry for every so many tokens beside a window of the last ones (DeepSeek V4).

A layer holds, by name, the tokens behind the last whole group (``buffer_kv``, ``buffer_gate``: fewer than
``compress_rate``), the entries made so far (``compressed_kv``), and where groups overlap what the last of them leaves to
the next (``overlap_kv``, ``overlap_gate``). Here the numbers of both are sizes, and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

OWN_SIZES = ("past_buffer_", "past_entries_")
"""How the names begin of sizes that are no number of past tokens."""
_BUFFERS, _ENTRIES = ("buffer_kv", "buffer_gate"), ("compressed_kv",)


def compresses(kind: type) -> bool:
    """Return whether ``kind`` is a layer of this sort: by the methods that its model calls."""
    return hasattr(kind, "store_compression_weights") and hasattr(kind, "update_compressor_states")


def tokens_for_an_entry(layer: Compressing) -> int:
    """So many tokens until the layer holds all that it may hold; 0 for other layers."""
    return int(layer.compress_rate) if compresses(type(layer)) else 0


def sizes_of_their_own(layer: Compressing) -> Iterator[tuple[torch.Tensor, str, int]]:
    """The tensors whose axis 1 is no number of past tokens, the name of that size, and a sample that makes no entry or
    group the only one.
    """
    ratio = layer.compress_rate
    for fields, word, sample in ((_BUFFERS, OWN_SIZES[0], 2 * ratio + 1), (_ENTRIES, OWN_SIZES[1], 3)):
        for field in fields:
            for tensor in getattr(layer, field).values():
                yield tensor, f"{word}{ratio}_length", sample


class Compressing:
    """Goes before such a layer's class: the same, for any number of tokens and of entries, none included."""

    compress_rate: int
    buffer_kv: dict[str, torch.Tensor]
    buffer_gate: dict[str, torch.Tensor]
    compressed_kv: dict[str, torch.Tensor]
    overlap_kv: dict[str, torch.Tensor]
    overlap_gate: dict[str, torch.Tensor]

    def store_compression_weights(
        self, name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Shapes: kv, gate [batch, tokens, width] -> those of whole groups twice, and the place of the first token."""
        kv, gate = torch.cat([self.buffer_kv[name], kv], dim=1), torch.cat([self.buffer_gate[name], gate], dim=1)
        whole = kv.shape[1] // self.compress_rate * self.compress_rate
        self.buffer_kv[name], self.buffer_gate[name] = kv[:, whole:], gate[:, whole:]
        return kv[:, :whole], gate[:, :whole], self.compressed_kv[name].shape[1] * self.compress_rate

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Shapes: compressed [batch, new entries, width] -> [batch, all entries, width]."""
        self.compressed_kv[name] = torch.cat([self.compressed_kv[name], compressed], dim=1)
        return self.compressed_kv[name]

    def update_overlap_state(
        self, name: str, chunk_kv: torch.Tensor, chunk_gate: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The state that the last group left, which has no weight where there was none.

        Shapes:  chunk_kv, chunk_gate [batch, groups, tokens of one, 2 * head_dim] -> twice [batch, tokens of one, head_dim].
        """
        is_first = torch.scalar_tensor(self.compressed_kv[name].shape[1]) == 0
        kv, gate = self.overlap_kv[name], torch.where(is_first, -torch.inf, self.overlap_gate[name])
        self.overlap_kv[name] = torch.cat([kv[:, None], chunk_kv[..., :head_dim]], dim=1)[:, -1]
        self.overlap_gate[name] = torch.cat([gate[:, None], chunk_gate[..., :head_dim]], dim=1)[:, -1]
        return kv, gate
