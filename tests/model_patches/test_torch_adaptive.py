"""Adaptive softmax with its loss: the patch gives what torch gives, for rows of any clusters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.model_patches.support import patched
from tests.support import check

TARGET = "torch.nn.modules.adaptive:AdaptiveLogSoftmaxWithLoss.forward"


@pytest.mark.compares(TARGET)
@pytest.mark.parametrize("targets", [[1, 6, 12, 3, 19, 0], [0, 1], [19], 7])
@pytest.mark.parametrize("options", [{}, {"head_bias": True, "div_value": 2.0}])
def test_as_torch(targets: object, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    layer, target = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], **options), torch.tensor(targets)  # type: ignore[arg-type]
    x = torch.randn(*target.shape, 8)
    want = layer(x, target)
    with patched():
        got = layer(x, target)
    torch.testing.assert_close(tuple(got), tuple(want))


@pytest.mark.compares(TARGET)
def test_shapes_that_do_not_fit() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])
    for x, target in ((torch.ones(3, 8), (2,)), (torch.ones(3, 2, 8), (3,)), (torch.ones(3, 8), (3, 2))):
        with pytest.raises(RuntimeError) as theirs:
            layer(x, torch.zeros(target, dtype=torch.int64))
        with patched(), pytest.raises(RuntimeError) as ours:
            layer(x, torch.zeros(target, dtype=torch.int64))
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_an_export(is_dynamic: bool) -> None:
    torch.manual_seed(0)
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])
    sample, *others = (
        (torch.randn(len(rows), 8), torch.tensor(rows)) for rows in ([1, 6, 12, 3], [1, 2, 0, 19], [19], [7, 7])
    )
    check(
        layer,
        sample,
        others=others if is_dynamic else others[:1],
        dynamic_shapes=({0: "n"}, {0: "n"}) if is_dynamic else None,
    )
