"""Bags of embeddings: rows that are not finite, bags of no rows, and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from tests.ops.judge import aten, case, judge
from tests.support import run_engines

INF, NAN = float("inf"), float("nan")
TABLE = torch.tensor([[1.0, -2.0], [INF, NAN], [NAN, 1.0], [-INF, -INF], [0.5, 3.0]])
IDS, STARTS, ENDS = torch.tensor([0, 4, 3, 2, 0, 1, 2, 0]), torch.tensor([0, 2, 2, 5]), torch.tensor([0, 2, 2, 5, 8])
GRAD = torch.tensor([[1.0, 2.0], [INF, NAN], [3.0, -INF], [4.0, 5.0]])
OPTIONS: list[dict[str, Any]] = [
    {}, {"padding_idx": 2}, {"offsets": ENDS, "include_last_offset": True},
    {"offsets": ENDS - 1, "include_last_offset": True},
]  # fmt: skip
"""The last leaves an index over, which a sum drops."""


def bags(
    table: torch.Tensor, mode: int, weights: Any, offsets: Any = STARTS, include_last_offset=False, padding_idx=-1
):
    offsets = torch.cat([offsets[:1] * 0, offsets[1:]])
    return table, IDS, offsets, False, mode, False, weights, include_last_offset, padding_idx


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("mode", "weights"), [(0, None), (0, TABLE.new_tensor([1, 0, 2, 0, -1, 1, 0.5, 3])), (1, None), (2, None)]
)
def test_rows_that_are_not_finite_stay_in_their_bags(options, mode, weights):
    dtype = torch.float16 if "padding_idx" in options else torch.float64 if len(options) > 1 else torch.float32
    weights = None if weights is None else weights.to(dtype)
    judge(case(aten._embedding_bag.default, *bags(TABLE.to(dtype), mode, weights, **options)), (11, 20))


@pytest.mark.parametrize(("mode", "padding"), [(0, -1), (0, 2), (1, 2), (2, -1), (2, 2)])
def test_gradients_that_are_not_finite_stay_with_their_rows(mode, padding):
    of = aten._embedding_bag.default(*bags(TABLE.nan_to_num(), mode, None, padding_idx=padding))[1:]
    judge(
        case(aten._embedding_bag_backward.default, GRAD, IDS, STARTS, *of, 5, False, mode, False, None, padding),
        (13, 20),
    )


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_memory_grows_with_the_indices_at_any_sizes(mode, opset):
    def of(table, ids, starts):
        return F.embedding_bag(ids, table, starts, mode=mode)

    sizes = {"dynamic_shapes": ({}, {0: "n"}, {0: "b"}), "opset_version": opset}
    result = fx2onnx.export(of, (TABLE, IDS, STARTS), **sizes)
    for values in (node.outputs for node in result.model.graph.all_nodes()):
        shapes = [{str(size) for size in value.shape} for value in values if value.shape is not None]
        assert not any({"n", "b"} <= shape for shape in shapes)
    for ids, starts in ((IDS[:3], STARTS[:2]), (IDS[:0], STARTS[:1]), (IDS[1:2], torch.tensor([0, 0, 1, 1]))):
        for found in run_engines(result.model_proto, (TABLE, ids, starts)).values():
            np.testing.assert_allclose(found[0], of(TABLE, ids, starts).numpy(), rtol=1e-6)
