"""Packed sequences whose lengths are an input of the file: any lengths, any batch, any time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import fx2onnx
from tests.support import check

X = torch.linspace(-2, 2, 60).reshape(3, 5, 4)
LENGTHS = torch.tensor([2, 5, 3])
SHAPES = {"x": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
OTHERS = [
    (X.flip(1), torch.tensor([1, 1, 4])),
    (X[:2].repeat(1, 2, 1), torch.tensor([7, 10])),
    (X[:1, :1], torch.tensor([1])),
]


class Packed(nn.Module):
    """Pack, run, pad; subclasses change one step."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, total: bool = False, **arguments: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = kind(4, 3, batch_first=True, **arguments)
        self.total = total

    def lengths(self, given: torch.Tensor) -> Any:
        return given

    def between(self, packed: PackedSequence) -> PackedSequence:
        return packed

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, self.lengths(lengths), batch_first=True, enforce_sorted=False)
        packed, state = self.rnn(self.between(packed))
        total = x.shape[1] if self.total else None
        padded, found = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0, total_length=total)
        seen = torch.arange(padded.shape[1])[None] < found[:, None]
        return padded, found, state, (padded * seen[..., None]).sum(1) / lengths[:, None]


class FromMask(Packed):
    def lengths(self, given: torch.Tensor) -> Any:
        return (torch.arange(100)[None] < given[:, None]).sum(1).cpu()


class Between(Packed):
    def between(self, packed: PackedSequence) -> PackedSequence:
        return PackedSequence(packed.data.relu(), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


@pytest.mark.parametrize(
    "made",
    [
        Packed(),
        Packed(nn.GRU),
        Packed(nn.RNN, nonlinearity="relu"),
        Packed(num_layers=2, bidirectional=True),
        Packed(nn.GRU, num_layers=2, bidirectional=True),
        Packed(proj_size=2),
        Packed(total=True),
        FromMask(),
        Between(),
    ],
    ids=["lstm", "gru", "rnn", "lstm 2 both", "gru 2 both", "projected", "total length", "from a mask", "between"],
)
def test_lengths_are_an_input(made: nn.Module) -> None:
    result = check(made, (X, LENGTHS), others=OTHERS, dynamic_shapes=SHAPES)
    assert result.report.strategy == "fake"
    assert result.report.input_names == ["x", "lengths"]
    check(made, (X, LENGTHS), others=OTHERS[:1])


class ListOfLengths(Packed):
    def lengths(self, given: torch.Tensor) -> Any:
        return given.tolist()


def test_lengths_as_a_list_of_numbers() -> None:
    check(ListOfLengths(), (X, LENGTHS), others=OTHERS[:1])


class Sorted(Packed):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return self.rnn(packed)[0].data, pad_packed_sequence(packed)[0]


def test_that_lengths_are_sorted_is_reported() -> None:
    result = check(
        Sorted(),
        (X, torch.tensor([4, 3, 2])),
        others=[(X[:2], torch.tensor([5, 1]))],
        dynamic_shapes=SHAPES,
    )
    assert any(str(note).startswith("asserted: lengths") for note in result.report.assumptions)
    assert not fx2onnx.export(Packed(), (X, LENGTHS)).report.assumptions
