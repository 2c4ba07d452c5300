"""Pooling with windows of symbolic sizes: at every size as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fx2onnx
import fx2onnx.runner
from tests.support import check

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "average of 2 axes": lambda x: F.avg_pool2d(x, (x.shape[2] // 4, x.shape[3] // 3)),
    "average, strides as the kernel": lambda x: F.avg_pool2d(x, x.shape[2] // 4, stride=x.shape[2] // 4),
    "average, one size a number": lambda x: F.avg_pool2d(x, (2, x.shape[3] // 3), (1, 2)),
    "average of 1 axis": lambda x: F.avg_pool1d(x[:, :, 0], x.shape[3] // 3, 2),
    "average of 3 axes": lambda x: F.avg_pool3d(x, (1, x.shape[2] // 4, 2)),
    "a module": lambda x: torch.nn.AvgPool2d((x.shape[2] // 4, 1))(x),
    "largest, windows that overlap": lambda x: F.max_pool2d(x, x.shape[2] // 4, stride=(x.shape[2] // 4, 1)),
    "largest, a stride by a size": lambda x: F.max_pool2d(x, 2, stride=x.shape[3] // 3),
}
SIZES = ((16, 18), (4, 3), (19, 11), (33, 64), (7, 9))


def _sample(height: int, width: int) -> tuple[torch.Tensor]:
    torch.manual_seed(height)
    return (torch.randn(2, 3, height, width),)


@pytest.mark.parametrize("name", PROGRAMS)
def test_windows_of_symbolic_sizes(name: str) -> None:
    sample, *others = [_sample(*sizes) for sizes in SIZES]
    check(PROGRAMS[name], sample, others=others, dynamic_shapes=[{0: "batch", 2: "height", 3: "width"}])


def test_padded_windows_need_a_number() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, x.shape[2] // 4, padding=1)

    result = fx2onnx.export(forward, _sample(16, 18), dynamic_shapes=[{2: "height"}])
    assert [each.expression for each in result.report.assumptions] == ["height >= 16 and height <= 19"]


@pytest.mark.parametrize("pool", ["avg_pool1d", "max_pool1d"])
def test_a_window_of_no_size_is_refused_as_in_eager(pool: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = getattr(F, pool)(x, x.shape[-1] - 4, stride=1)
        return pooled

    result = fx2onnx.export(program, (torch.randn(1, 2, 9),), dynamic_shapes=({2: "n"},))
    session = fx2onnx.runner.InferenceSession(result.model_proto.SerializeToString())
    with pytest.raises(RuntimeError):
        program(torch.randn(1, 2, 4))
    with pytest.raises(fx2onnx.UserError, match="n >= 5"):
        session.run(None, {"x": torch.randn(1, 2, 4).numpy()})
    for size in (5, 6, 20):
        x = torch.randn(1, 2, size)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), program(x))
