"""torch's packed sequences: what the patches give is what torch gives, for plain sizes and for symbolic ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.model_patches.support import patched
from tests.support import check

X, LENGTHS = torch.linspace(-1, 1, 24).reshape(3, 4, 2), torch.tensor([2, 4, 1])


@pytest.mark.compares("torch.nn.utils.rnn:pad_packed_sequence")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("total", [None, 4, 7])
def test_padding_of_a_packed_sequence(batch_first: bool, total: int | None) -> None:
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    want = pad_packed_sequence(packed, batch_first, -2.0, total)
    with patched():
        got = pad_packed_sequence(packed, batch_first, -2.0, total)
        with pytest.raises(ValueError, match="total_length"):
            pad_packed_sequence(packed, total_length=3)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(nn.GRU, name, marks=pytest.mark.compares(f"torch.nn.modules.rnn:RNNBase.{name}"))
        if name == "get_expected_hidden_size"
        else pytest.param(nn.LSTM, name, marks=pytest.mark.compares(f"torch.nn.modules.rnn:LSTM.{name}"))
        for name in ("get_expected_hidden_size", "get_expected_cell_size")
    ],
)
def test_sizes_of_a_state(kind: Any, name: str) -> None:
    expected = getattr(kind(2, 3, num_layers=2, bidirectional=True, batch_first=True), name)
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    given = [(X, None), (packed.data, packed.batch_sizes)]
    want = [expected(*one) for one in given]
    with patched():
        assert [expected(*one) for one in given] == want


@pytest.mark.compares(
    "torch.nn.modules.rnn:RNNBase.get_expected_hidden_size", "torch.nn.modules.rnn:LSTM.get_expected_cell_size"
)
def test_a_state_for_any_batch() -> None:
    class Stated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lstm = nn.LSTM(2, 3, batch_first=True, proj_size=2)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> Any:
            return self.lstm(x, (hidden, cell))

    def sample(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 4, 2), torch.randn(1, batch, 2), torch.randn(1, batch, 3)

    shapes = ({0: "batch"}, {1: "batch"}, {1: "batch"})
    check(Stated(), sample(3), others=[sample(1), sample(5)], dynamic_shapes=shapes)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=pytest.mark.compares(f"torch.ao.nn.quantized.dynamic.modules.rnn:{kind.__name__}.forward_impl"),
        )
        for kind in (nn.LSTM, nn.GRU)
    ],
)
def test_quantised_layers(kind: Any) -> None:
    torch.manual_seed(0)
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(kind(2, 3, 2, batch_first=True)).eval(), {kind})[0]
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    state = torch.randn(2, 3, 3)
    given = [(packed,), (packed, (state, state * 2) if kind is nn.LSTM else state), (X,)]
    want = [torch.utils._pytree.tree_leaves(layer(*one)) for one in given]
    with patched():
        got = [torch.utils._pytree.tree_leaves(layer(*one)) for one in given]
    for one, other in zip(want, got, strict=True):
        assert all(map(torch.equal, one, other))
