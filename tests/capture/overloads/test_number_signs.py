"""Numbers of a graph that are >= 0 whatever the data is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.capture.overloads.unbacked_scalars import is_nonnegative
from tests.capture.recorded import recorded

INTEGERS = (4,), torch.int64
NONNEGATIVE: dict[str, Any] = {
    "a count": lambda x: (x > 0).sum(),
    "a running count": lambda x: (x > 0).cumsum(0)[-1],
    "an index": lambda x: x.argmax(),
    "indices": lambda x: x.argsort()[0] * 2 + 1,
    "a limit": lambda x: x.clamp(min=0)[0],
    "two limits": lambda x: x.clamp(0, 5).sum(),
    "a quotient": lambda x: (x > 0).sum() // 2,
    "of booleans": lambda x: (x > 1).long().max(),
    "of bytes": lambda x: x.to(torch.uint8).sum(),
    "the larger of two": lambda x: torch.maximum(x.argmax(), (x > 2).sum()),
    "rows": lambda x: torch.nonzero(x > 0).max(),
    "with a constant": lambda x: (x > 0).sum() + torch.tensor(3),
}
OF_ANY_SIGN: dict[str, Any] = {
    "an input": lambda x: x[0],
    "a difference": lambda x: x.argmax() - 1,
    "less a constant": lambda x: (x > 0).sum() + torch.tensor(-3),
    "a sum with a number": lambda x: (x > 0).sum() + -1,
    "a scaled sum": lambda x: torch.add(x.argmax(), x.argmin(), alpha=-1),
    "a negative": lambda x: -x.argmax(),
    "below a limit": lambda x: x.argmax().clamp(max=-1),
    "limits below 0": lambda x: x.clamp(0, -5).sum(),
    "a least below 0": lambda x: x.clamp(min=-1)[0],
    "of a constant below 0": lambda x: torch.tensor([-1, 1]).index_select(0, x.argmax().reshape(1))[0],
    "one or the other": lambda x: torch.where(x > 0, 1, -1)[0],
}


@pytest.mark.parametrize(
    ("name", "is_sure"),
    [*((name, True) for name in NONNEGATIVE), *((name, False) for name in OF_ANY_SIGN)],
)
def test_signs(name: str, is_sure: bool) -> None:
    tracer, result = recorded((NONNEGATIVE | OF_ANY_SIGN)[name], INTEGERS)
    assert is_nonnegative(tracer, tracer.values.node_of(result)) == is_sure
