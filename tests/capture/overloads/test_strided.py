"""``as_strided`` of a tensor whose storage the graph has, and of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from tests.capture.recorded import calls, info, recorded


def test_a_contiguous_tensor_is_its_storage() -> None:
    tracer, result = recorded(lambda x: x.as_strided((2, 2), (3, 1), 1), (2, 3))
    assert calls(tracer) == ["as_strided.default"]
    assert tracer.values.node_of(result).args[1:] == ([2, 2], [3, 1], 1)
    assert tracer.values.node_of(result).meta["val"] == info(2, 2)


@pytest.mark.parametrize(("offset", "expected"), [(None, 3), (0, 0)])
def test_of_a_view_it_is_said_of_what_is_viewed(offset: int | None, expected: int) -> None:
    tracer, result = recorded(lambda x: x[1:].t().as_strided((3,), (1,), offset), (2, 3))
    node = tracer.values.node_of(result)
    assert (node.args[0].op, node.args[3]) == ("placeholder", expected)  # type: ignore[union-attr]


def test_of_another_order_in_the_storage_it_is_said_of_the_axes_in_that_order() -> None:
    def strided(x: Any) -> Any:
        turned = torch.full((2, 3), 1.0).t().clone(memory_format=torch.preserve_format)
        return turned.as_strided((2,), (1,), 0)

    tracer, _ = recorded(strided, (2,))
    assert calls(tracer)[-2:] == ["permute.default", "as_strided.default"]


def test_of_a_part_of_a_larger_storage_it_is_refused() -> None:
    def strided(x: Any) -> Any:
        return torch.empty_strided((2, 3), (5, 1)).as_strided((2,), (1,), 0)

    with pytest.raises(UserError, match="whose storage the graph does not have") as caught:
        recorded(strided, (2,))
    assert caught.value.code == "E203"
