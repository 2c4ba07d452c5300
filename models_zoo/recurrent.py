"""Recurrent networks: a tagger with a bidirectional LSTM, and a translator with GRUs and attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, DEFAULT_SEQ, Source

from .registry import zoo_model

VOCABULARY = 200


class LstmTagger(nn.Module):
    """Token ids [N, T] -> scores of tags [N, T, tags]."""

    def __init__(self, width: int = 32, tags: int = 9) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))
        scores: Tensor = self.classify(states)
        return scores


class GruTranslator(nn.Module):
    """Source ids [N, S] and target ids so far [N, T] -> scores of the next tokens [N, T, vocabulary]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed_source = nn.Embedding(VOCABULARY, width)
        self.embed_target = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.join = nn.Linear(2 * width, width)
        self.classify = nn.Linear(width, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.embed_source(source))
        start = torch.cat((last[0], last[1]), -1).unsqueeze(0)
        states, _ = self.decoder(self.embed_target(target), start)
        attention = torch.softmax(states @ memory.transpose(1, 2), -1)
        mixed = torch.tanh(self.join(torch.cat((states, attention @ memory), -1)))
        scores: Tensor = self.classify(mixed)
        return scores


@zoo_model("lstm_tagger")
def lstm_tagger(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """Sequence tagger: 2 bidirectional LSTM layers"""
    with seeded(seed):
        module = LstmTagger().eval()
        move_constants(module, seed)
        tokens = torch.randint(0, VOCABULARY, (batch, seq))
    axes = {"tokens": {0: "batch", 1: "sequence"}}
    return Source("lstm_tagger", module, (tokens,), {}, axes, ("scores",), f"zoo, random weights, seed {seed}")


@zoo_model("gru_seq2seq")
def gru_seq2seq(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """Translator: bidirectional GRU encoder, GRU decoder with attention"""
    with seeded(seed):
        module = GruTranslator().eval()
        move_constants(module, seed)
        # A length of its own, so that source and target cannot be mistaken for each other.
        lengths = (seq, max(1, seq * 3 // 4))
        source, target = (torch.randint(0, VOCABULARY, (batch, length)) for length in lengths)
    axes = {"source": {0: "batch", 1: "sequence"}, "target": {0: "batch", 1: "target_sequence"}}
    return Source("gru_seq2seq", module, (source, target), {}, axes, ("scores",), f"zoo, random weights, seed {seed}")
