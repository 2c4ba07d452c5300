"""Fourier transforms of dynamic sizes, and of signals cut or filled with zeros to a size; istft of any number of frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check


class Restored(torch.nn.Module):
    def __init__(self, normalized: bool) -> None:
        super().__init__()
        self.normalized = normalized
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.stft(x, 64, 16, window=self.window, return_complex=True, normalized=self.normalized)
        options: dict[str, Any] = {"window": self.window, "normalized": self.normalized}
        to_length = torch.istft(z, 64, 16, **options, length=k.shape[0])
        return to_length, torch.istft(z, 64, hop_length=16, **options), z.istft(64, 16, **options, length=x.shape[-1])


@pytest.mark.parametrize("normalized", [False, True])
def test_istft_at_other_sizes(normalized: bool) -> None:
    module = Restored(normalized)
    n, k = torch.export.Dim("n", min=200), torch.export.Dim("k", min=40)
    others = [
        (torch.randn(2, length), torch.zeros(count))
        for length, count in ((512, 500), (301, 200), (640, 650), (640, 640), (1000, 64))
    ]
    sample = (torch.randn(2, 500), torch.zeros(480))
    check(module, sample, others=others, rtol=1e-7, atol=3e-5, dynamic_shapes=({1: n}, {0: k}))


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x + 1)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fft": lambda x, k: torch.view_as_real(torch.fft.fft(x, n=k.shape[0])),
    "rfft": lambda x, k: torch.view_as_real(torch.fft.rfft(x, n=k.shape[0])),
    "irfft": lambda x, k: torch.fft.irfft(_complex(x)) + k[0],
    "irfft to a size": lambda x, k: torch.fft.irfft(_complex(x), n=k.shape[0], norm="ortho"),
    "hfft": lambda x, k: torch.fft.hfft(_complex(x), n=k.shape[0]),
    "irfft2": lambda x, k: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]) + k[0],
    "combinations": lambda x, k: torch.combinations(k) + x[0, 0],
    "combinations with replacement": lambda x, k: torch.combinations(k, 2, True) + x[0, 0],
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("opset", [17, 20, 23])
def test_at_other_sizes(function: Callable[..., torch.Tensor], opset: int) -> None:
    n, k = torch.export.Dim("n", min=2, max=50), torch.export.Dim("k", min=2, max=50)
    sample, *others = [
        (torch.randn(2, length), torch.randn(count))
        for length, count in ((8, 6), (7, 7), (3, 12), (12, 5), (2, 3), (9, 20))
    ]
    shapes = ({1: n}, {0: k})
    check(function, sample, others=others, rtol=1e-7, atol=1e-4, dynamic_shapes=shapes, opset_version=opset)


@pytest.mark.parametrize("rows", [4, 5])
def test_sizes_of_transforms_that_are_equal_at_the_sample_are_free(rows: int) -> None:
    """With 4 columns the result has as many rows as columns at the sample only: the fake kernel compares them."""

    def both_ways(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rounds = torch.fft.irfft(torch.fft.rfft(x, dim=0), dim=0), torch.fft.hfft(torch.fft.ihfft(x, dim=0), dim=0)
        return (
            *rounds,
            torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 0)), dim=(1, 0)),
            torch.fft.ifft2(torch.fft.fft2(x)).real,
        )

    others = [(torch.randn(n, 4),) for n in (2, 3, 7, 8)]
    result = check(both_ways, (torch.randn(rows, 4),), others=others, rtol=1e-6, atol=1e-5, dynamic_shapes=[{0: "n"}])
    assert [str(each).partition("   ")[0] for each in result.report.assumptions] == ["n >= 2"]


SIGNALS = [
    *itertools.product([torch.bfloat16, torch.float32, torch.float64], [torch.float16, torch.float32, torch.float64]),
    *itertools.product([torch.float16], [torch.float32, torch.float64]),  # eager PyTorch transforms no float16 on a CPU
]


@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize(("dtype", "window"), SIGNALS)
def test_signals_and_windows_of_several_dtypes(dtype: torch.dtype, window: torch.dtype, opset: int) -> None:
    """PyTorch transforms in the wider one of both."""

    class Frames(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shape = torch.hann_window(64, dtype=window)
            return torch.view_as_real(torch.stft(x, 64, 16, window=shape, return_complex=True))

    x = torch.randn(2, 400, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = fx2onnx.export(Frames(), (x,), opset_version=opset, verify=True)
    assert {"onnxruntime", "runner"} <= set(result.report.verdict["versions"])


PHASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rfft": torch.fft.rfft,
    "rfft of columns": lambda x: torch.fft.rfft(x, dim=0, norm="ortho"),
    "fft": torch.fft.fft,
    "ihfft": torch.fft.ihfft,
    "stft": lambda x: torch.stft(x, 10, 5, window=torch.hann_window(10), center=False, return_complex=True),
    "stft of both sides": lambda x: torch.stft(
        x, 10, 5, window=torch.ones(10), center=False, onesided=False, return_complex=True
    ),
}


@pytest.mark.parametrize("size", [19, 20, 32])
@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("name", PHASES)
def test_phases_where_a_spectrum_is_real(name: str, opset: int, size: int) -> None:
    """At frequency 0, and at half of an even size, rounding leaves no imaginary part whose sign would turn pi to -pi."""
    x = torch.randn(24, size, generator=torch.Generator().manual_seed(size))
    dynamic = ({0: "rows", 1: "n"},) if opset > 16 and "columns" not in name else None

    def program(x: torch.Tensor) -> torch.Tensor:
        return PHASES[name](x).angle()

    assert (program(x) == torch.pi).any() or (program(x) == -torch.pi).any()
    check(program, (x,), opset_version=opset, dynamic_shapes=dynamic, rtol=1e-3, atol=1e-2)
