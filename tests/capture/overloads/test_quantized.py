"""Quantised tensors: integers, and how they are read back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from tests.capture.recorded import calls, info, recorded

QUANTIZE = {
    "per tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.qint8),
    "per channel": lambda x: torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.qint8),
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_the_integers_are_read_back_with_their_scale(name: str) -> None:
    def both(x: Any) -> Any:
        quantized = QUANTIZE[name](x)
        return quantized.int_repr(), quantized.dequantize()

    tracer, (integers, floats) = recorded(both, (2, 3))
    assert tracer.values.node_of(integers).meta["val"] == info(2, 3, dtype=torch.int8)
    assert tracer.values.node_of(floats).meta["val"] == info(2, 3)
    written, read = tracer.values.node_of(integers), tracer.values.node_of(floats)
    assert written.target is torch.ops.aten.clone.default
    written = written.args[0]
    assert isinstance(written, torch.fx.Node)
    assert read.args == (written, *written.args[1:])
    packages = [name.partition(".")[0] for name in calls(tracer)]
    assert packages.count("quantized_decomposed") == 2


def test_dequantize_of_floats_is_left_to_torch() -> None:
    tracer, result = recorded(lambda x: x.dequantize(), (2, 3))
    assert tracer.values.node_of(result).meta["val"] == info(2, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint4x2),
        lambda x: torch.ops.quantized.add(x, x, 0.1, 3),
    ],
    ids=["dtype", "not quantised"],
)
def test_what_is_not_followed_is_refused(function: Any) -> None:
    with pytest.raises(UserError) as caught:
        recorded(function, (2, 3))
    assert caught.value.code == "E203"
