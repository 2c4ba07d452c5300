"""RNN, GRU and LSTM: layers, directions, projections, packed sequences, dynamic time; single cells."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge, judge_at_other_sizes

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
X, PACKED, SIZES = R(5, 3, 4), R(10, 4), T([3, 3, 2, 1, 1])


def weights(module: torch.nn.RNNBase) -> list[torch.Tensor]:
    return [weight.detach() for weight in module._flat_weights]


CASES = []
for both, layers, bias in itertools.product((False, True), (1, 2), (True, False)):
    count = layers * (2 if both else 1)
    h, c, small = R(count, 3, 6), R(count, 3, 6), R(count, 3, 2)
    shape = {"bidirectional": both, "bias": bias, "num_layers": layers}
    rest = (bias, layers, 0.0, False, both)
    lstm = weights(torch.nn.LSTM(4, 6, **shape))
    gru = weights(torch.nn.GRU(4, 6, **shape))
    projected = weights(torch.nn.LSTM(4, 6, proj_size=2, **shape))
    CASES += [
        case(aten.lstm.input, X, [h, c], lstm, *rest, False),
        case(aten.lstm.input, X.transpose(0, 1), [h, c], lstm, *rest, True),
        case(aten.lstm.data, PACKED, SIZES, [h, c], lstm, *rest),
        case(aten.lstm.input, X, [small, c], projected, *rest, False),
        case(aten.lstm.data, PACKED, SIZES, [small, c], projected, *rest),
        case(aten.gru.input, X, h, gru, *rest, False),
        case(aten.gru.data, PACKED, SIZES, h, gru, *rest),
    ]
    for kind in ("tanh", "relu"):
        plain = weights(torch.nn.RNN(4, 6, nonlinearity=kind, **shape))
        CASES.append(case(getattr(aten, f"rnn_{kind}").input, X, h, plain, *rest, False))
CASES += [
    case(aten.lstm_cell.default, R(3, 4), [R(3, 6), R(3, 6)], R(24, 4), R(24, 6), R(24), R(24)),
    case(aten.gru_cell.default, R(3, 4), R(3, 6), R(18, 4), R(18, 6), R(18), R(18)),
    case(aten.gru_cell.default, R(3, 4), R(3, 6), R(18, 4), R(18, 6)),
    case(aten.rnn_tanh_cell.default, R(3, 4), R(3, 6), R(6, 4), R(6, 6), R(6), R(6)),
    case(aten._pack_padded_sequence.default, R(5, 3, 4), T([4, 4, 1]), False),
    case(aten._pack_padded_sequence.default, R(3, 5, 4), T([5, 2, 1]), True),
    case(aten._pad_packed_sequence.default, PACKED, SIZES, False, 0.5, 0),
    case(aten._pad_packed_sequence.default, PACKED, SIZES, True, 0.5, 7),
]


@pytest.mark.parametrize("given_case", CASES, ids=lambda item: str(item)[:90])
def test_case(given_case: Case):
    judge(given_case, opsets=(11, 20))


def test_zero_states_are_left_out():
    zeros = torch.zeros(1, 3, 6)
    call = harness.call_of(
        aten.lstm.input, X, [zeros, zeros], weights(torch.nn.LSTM(4, 6)), True, 1, 0.0, False, False, False
    )
    assert harness.check(call, fixed=True).status == "ok"
    assert "Slice" not in harness.build(call, fixed=True).op_types


def test_time_and_batch_of_other_sizes():
    params = weights(torch.nn.LSTM(4, 6, 2, bidirectional=True))
    rest = (params, True, 2, 0.0, False, True, False)
    first = (R(11, 13, 4), [R(4, 13, 6), R(4, 13, 6)], *rest)
    other = (R(7, 2, 4), [R(4, 2, 6), R(4, 2, 6)], *rest)
    judge_at_other_sizes(aten.lstm.input, first, [other], {11: "time", 13: "batch"})
