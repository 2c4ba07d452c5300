"""Types of recurrent layers and packed sequences, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.capture.recorded import M, N, calls, info, recorded, sizes_at

aten = torch.ops.aten
LAYERS = {
    "lstm": torch.nn.LSTM(4, 6, 2, bidirectional=True),
    "lstm with projection": torch.nn.LSTM(4, 6, proj_size=3, batch_first=True),
    "gru": torch.nn.GRU(4, 6, bidirectional=True, batch_first=True),
    "rnn": torch.nn.RNN(4, 6, 2, nonlinearity="relu"),
}


def flat(result: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(result)


@pytest.mark.parametrize("name", LAYERS)
def test_types_at_every_length(name: str) -> None:
    layer = LAYERS[name].eval()
    tracer, results = recorded(layer, (N, M, 4), hints={"n": 3, "m": 5})
    for n, m in ((3, 5), (1, 2), (7, 1)):
        expected = [part.shape for part in flat(layer(torch.ones(n, m, 4)))]
        assert [sizes_at(part, n=n, m=m) for part in flat(results)] == expected
    assert not tracer.sizes.specializations


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_known_lengths_select_rows(name: str) -> None:
    layer = LAYERS[name].eval()

    def run(x: Any) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=layer.batch_first)
        return pad_packed_sequence(layer(packed)[0], batch_first=layer.batch_first)

    shape = (2, 3, 4) if layer.batch_first else (3, 2, 4)
    tracer, (padded, lengths) = recorded(run, shape)
    assert sizes_at(padded) == run(torch.ones(shape))[0].shape
    assert tracer.values.value_of(tracer.values.node_of(lengths)).tolist() == [3, 2]
    assert "_pack_padded_sequence.default" not in calls(tracer)


def test_lengths_from_data_are_sizes_of_their_own() -> None:
    def run(x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        padded, lengths = aten._pad_packed_sequence.default(packed.data, packed.batch_sizes, False, 0.0, -1)
        return packed.data, padded, lengths

    tracer, (data, padded, lengths) = recorded(run, (5, N, 4), ((N,), torch.int64), hints={"n": 3})
    assert sizes_at(data, u0=9) == (9, 4)
    assert sizes_at(padded, u1=4, n=3) == (4, 3, 4)
    assert tracer.values.node_of(lengths).meta["val"].dims == info(N).dims
    assert not tracer.sizes.assertions, "sorted before they are packed"
