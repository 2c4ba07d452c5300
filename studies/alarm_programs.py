"""Small programs whose sound files are easily taken for wrong, each with a fault of its own that has to be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from studies.alarm_functions import (
    Forward,
    best_of_masked,
    best_row,
    beta,
    by_distance,
    cepstrum,
    clamped_mel,
    counted,
    decibels,
    distinct,
    distinct_counted,
    experts,
    heaviside,
    in_bfloat16,
    least_squares,
    lengthened,
    log_mel,
    neighbours,
    ordered,
    pooled,
    repeated,
    solved,
    spiking,
    stretched,
    taken_along,
    warped,
)

Axes = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Program:
    """A function, its inputs of a generator, and the same function with a fault."""

    right: Forward
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]]
    wrong: Forward
    axes: Sequence[Axes | None] = ()
    """The dynamic axes of each input."""


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def randn(*sizes: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(sizes, generator=generator)


def rand(*sizes: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.rand(sizes, generator=generator)


def whole(low: int, high: int, *sizes: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(low, high, sizes, generator=generator)


def given(*tensors: Callable[[torch.Generator], Tensor]) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: tuple(make(generator) for make in tensors)


def special(name: str) -> Program:
    func = getattr(torch.special, name)
    return Program(lambda x: func(x * 4), given(randn(3, 5)), lambda x: func(x * 4.04))


def polynomial(name: str) -> Program:
    func = getattr(torch.special, name)
    return Program(lambda x, n: func(x, n), given(rand(2, 6), whole(0, 6, 6)), lambda x, n: func(x, n + 1))


PROGRAMS: dict[str, Program] = {
    "nearest rows": Program(
        neighbours, given(randn(5, 4), randn(9, 4)), lambda x, y: neighbours(x, y).flip(1), [{0: "n"}, {0: "m"}]
    ),
    "nearest rows by distance": Program(
        by_distance,
        given(randn(5, 4), randn(9, 4)),
        lambda x, y: by_distance(x, y.roll(1, 0)).roll(1, 0),
        [{0: "n"}, {0: "m"}],
    ),
    "values beside the best": Program(
        taken_along, given(randn(4, 6), randn(4, 6)), lambda x, y: taken_along(-x, y), [{0: "n"}, {0: "n"}]
    ),
    "experts": Program(
        experts,
        given(randn(6, 4), randn(4, 5), randn(5, 4)),
        lambda x, g, w: experts(x, g, w.roll(1, 0)),
        [{0: "n"}, None, None],
    ),
    "best of what is not masked": Program(
        best_of_masked,
        given(randn(4, 6), whole(0, 2, 4, 6)),
        lambda x, m: best_of_masked(x, m).flip(-1),
        [{0: "n"}, {0: "n"}],
    ),
    "rows in order": Program(
        ordered, given(randn(6, 3), randn(6, 3)), lambda x, y: ordered(x, y, False), [{0: "n"}, {0: "n"}]
    ),
    "best row": Program(
        best_row, given(randn(5, 4), randn(9, 4)), lambda x, y: best_row(x, y, torch.argmin), [{0: "n"}, {0: "m"}]
    ),
    "mean of the largest rows": Program(pooled, given(randn(2, 7, 4)), lambda x: pooled(x, 4), [{0: "b", 1: "n"}]),
    "places counted": Program(counted, given(randn(4, 6)), lambda x: counted(x, 3), [{0: "n"}]),
    "distinct": Program(distinct, given(randn(3, 5)), lambda x: torch.unique(x.abs()), [{0: "n"}]),
    "distinct and counted": Program(
        distinct_counted,
        given(lambda g: randn(3, 5)(g).round()),
        lambda x: (*distinct_counted(x)[:2], distinct_counted(x)[2] + 1),
        [{0: "n"}],
    ),
    "neighbours that differ": Program(
        torch.unique_consecutive,
        given(lambda g: randn(12)(g).round()),
        lambda x: torch.unique_consecutive(x.flip(0)),
        [{0: "n"}],
    ),
    "solve": Program(solved, given(randn(2, 4, 4), randn(2, 4, 3)), lambda a, b: solved(a.mT, b), [{0: "n"}, {0: "n"}]),
    "inverse": Program(torch.linalg.inv, given(randn(3, 4, 4)), lambda a: torch.linalg.inv(a).mT, [{0: "n"}]),
    "inverse, any size": Program(
        torch.linalg.inv, given(randn(4, 4)), lambda a: torch.linalg.inv(a).mT, [{0: "n", 1: "n"}]
    ),
    "warped by an inverse": Program(
        warped,
        given(rand(2, 1, 5, 6), randn(2, 2, 2)),
        lambda x, a: warped(x, a.mT),
        [{0: "n", 2: "h", 3: "w"}, {0: "n"}],
    ),
    "determinant": Program(torch.linalg.det, given(randn(3, 4, 4)), lambda a: torch.linalg.det(a) * 1.01, [{0: "n"}]),
    "logarithm of the determinant": Program(
        torch.linalg.slogdet, given(randn(3, 4, 4)), lambda a: torch.linalg.slogdet(a * 1.01), [{0: "n"}]
    ),
    "pseudo-inverse": Program(
        torch.linalg.pinv, given(randn(3, 4, 3)), lambda a: torch.linalg.pinv(a) * 1.01, [{0: "n"}]
    ),
    "Cholesky": Program(
        lambda a: torch.linalg.cholesky(a @ a.mT + 0.1 * torch.eye(4)),
        given(randn(3, 4, 4)),
        lambda a: torch.linalg.cholesky(a @ a.mT + 0.11 * torch.eye(4)),
        [{0: "n"}],
    ),
    "triangular system": Program(
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        given(randn(2, 4, 4), randn(2, 4, 3)),
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b.flip(1), upper=False),
        [{0: "n"}, {0: "n"}],
    ),
    "least squares": Program(least_squares, given(randn(6, 3), randn(6, 2)), lambda a, b: least_squares(a * 1.01, b)),
    "least squares of an exact solution": Program(
        lambda a, b: least_squares(a, a @ b),
        given(randn(6, 3), randn(3, 2)),
        lambda a, b: least_squares(a, a @ b) * 1.01,
    ),
    "residuals of an exact solution": Program(
        lambda a, b: torch.linalg.lstsq(a, a @ b),
        given(randn(6, 3), randn(3, 2)),
        lambda a, b: torch.linalg.lstsq(a, a @ b * 1.01),
    ),
    "residual of a solution": Program(
        lambda a, b: a @ solved(a, b) - b, given(randn(4, 4), randn(4, 2)), lambda a, b: a @ solved(a, b) - b + 1e-3
    ),
    "durations": Program(repeated, given(randn(5, 3), rand(5)), lambda x, d: repeated(x, d, 1.2), [{0: "n"}, {0: "n"}]),
    "durations from a half": Program(
        repeated,
        given(randn(5, 3), lambda g: torch.tensor([2.5, 1.5, 3.5, 4.5, 2.5]).log()),
        lambda x, d: repeated(x, d, 1.2),
        [{0: "n"}, {0: "n"}],
    ),
    "path of durations": Program(
        lengthened, given(randn(5, 3), rand(5)), lambda x, d: lengthened(x, d, 1.2), [{0: "n"}, {0: "n"}]
    ),
    "spiking neurons": Program(
        spiking, given(rand(8, 3, 6), randn(10, 6)), lambda x, w: spiking(x, w, 1.01), [{1: "n"}, None]
    ),
    "spikes at the threshold": Program(
        lambda x: spiking(x, torch.eye(6) * 0.1, 1.0, 1.0),
        given(lambda g: torch.ones(12, 3, 6)),
        lambda x: spiking(x, torch.eye(6) * 0.1, 1.15, 1.0),
        [{1: "n"}],
    ),
    "decay of what spikes at the threshold": Program(
        lambda x: spiking(x, torch.eye(6), 1.0, 0.5),
        given(lambda g: torch.ones(12, 3, 6)),
        lambda x: spiking(x, torch.eye(6), 1.0, 0.6),
        [{1: "n"}],
    ),
    "step function": Program(
        heaviside, given(rand(8, 3, 6), randn(10, 6)), lambda x, w: heaviside(x, w, 0.505), [{1: "n"}, None]
    ),
    "log mel": Program(log_mel, given(randn(2, 640)), lambda x: log_mel(x, scale=1.02), [{0: "n", 1: "t"}]),
    "log mel of Whisper": Program(
        clamped_mel, given(randn(2, 640)), lambda x: clamped_mel(x, scale=1.01), [{0: "n", 1: "t"}]
    ),
    "log mel of a tone": Program(
        log_mel,
        given(lambda g: torch.sin(torch.arange(640.0) * 0.3)[None] * rand(2, 1)(g)),
        lambda x: log_mel(x, scale=1.02),
        [{0: "n", 1: "t"}],
    ),
    "log mel of nothing": Program(
        clamped_mel, given(lambda g: torch.zeros(1, 640)), lambda x: clamped_mel(x, scale=1.01), [{0: "n", 1: "t"}]
    ),
    "cepstrum": Program(cepstrum, given(randn(2, 640)), lambda x: cepstrum(x, 1.01), [{0: "n", 1: "t"}]),
    "decibels": Program(decibels, given(randn(2, 640)), lambda x: decibels(x, 1.01), [{0: "n", 1: "t"}]),
    "phase vocoder": Program(stretched, given(randn(1, 640)), lambda x: stretched(x, 1.32), [{1: "t"}]),
    "Beta": Program(
        beta, given(randn(4, 3), randn(4, 3), randn(4, 3)), lambda x, a, b: beta(x, a, b, 0.01), [{0: "n"}] * 3
    ),
    "autocast": Program(
        in_bfloat16, given(randn(4, 8), randn(8, 8)), lambda x, w: in_bfloat16(x.flip(1), w), [{0: "n"}, None]
    ),
    **{
        name: special(name)
        for name in (
            "bessel_j0",
            "bessel_j1",
            "bessel_y0",
            "bessel_y1",
            "modified_bessel_i0",
            "modified_bessel_i1",
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
            "spherical_bessel_j0",
            "airy_ai",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "digamma",
            "gammaln",
            "erfcx",
            "ndtri",
            "log_ndtr",
            "ndtr",
            "erfinv",
            "entr",
            "sinc",
            "psi",
        )
    },
    "least squares of many exact solutions": Program(
        lambda a, b: torch.linalg.lstsq(a, a @ b)[0],
        given(randn(3, 6, 3), randn(3, 3, 1)),
        lambda a, b: torch.linalg.lstsq(a, a @ b)[0] * 1.01,
    ),
    "values in order": Program(
        lambda x: torch.sort(x, -1)[0], given(randn(4, 6)), lambda x: torch.sort(x, -1, descending=True)[0], [{0: "n"}]
    ),
    "rows in the order of scores": Program(
        lambda x, y: torch.gather(y, 0, torch.sort(x, 0)[1]),
        given(randn(6, 3), randn(6, 3)),
        lambda x, y: torch.gather(y, 0, torch.sort(x, 0)[1]).flip(0),
        [{0: "n"}] * 2,
    ),
    "row of the median": Program(
        lambda x, y: y[x.median(-1)[1]], given(randn(5, 7), randn(7, 3)), lambda x, y: y[x.min(-1)[1]], [{0: "n"}, None]
    ),
    "row of the largest": Program(
        lambda x, y: torch.take_along_dim(y, x.argmax(-1, keepdim=True), -1),
        given(randn(5, 7), randn(5, 7)),
        lambda x, y: torch.take_along_dim(y, x.argmin(-1, keepdim=True), -1),
        [{0: "n"}] * 2,
    ),
    "buckets": Program(
        lambda x, y: y[torch.bucketize(x, torch.linspace(-1, 1, 5))],
        given(randn(5, 7), randn(6, 3)),
        lambda x, y: y[torch.bucketize(x, torch.linspace(-1, 1.1, 5))],
        [{0: "n"}, None],
    ),
    "buckets of an input": Program(
        lambda x, b: torch.bucketize(x, b),
        lambda generator: (torch.randn(5, 7, generator=generator), torch.linspace(-1, 1, 4)),
        lambda x, b: torch.bucketize(x, b, right=True),
        [{0: "n"}, {0: "b"}],
    ),
    "buckets of a scaled input": Program(
        lambda x, b: torch.searchsorted(b * 2 + 1, x, right=True),
        lambda generator: (torch.randint(0, 20, (2, 7), generator=generator), torch.arange(12).reshape(2, 6)),
        lambda x, b: torch.searchsorted(b * 2 + 1, x - 1, right=True),
        [{1: "n"}, {1: "b"}],
    ),
    "buckets of steps": Program(
        lambda x, w: torch.searchsorted(w.cumsum(0), x),
        given(rand(7), rand(5)),
        lambda x, w: torch.searchsorted(w.cumsum(0), x * 1.1),
        [{0: "n"}, {0: "b"}],
    ),
    "zeta": Program(
        lambda x, q: torch.special.zeta(x.abs() + 1.5, q.abs() + 0.5),
        given(randn(3, 5), randn(3, 5)),
        lambda x, q: torch.special.zeta(x.abs() + 1.5, q.abs() + 0.51),
    ),
    "polygamma": Program(
        lambda x: torch.polygamma(2, x.abs() + 0.5), given(randn(3, 5)), lambda x: torch.polygamma(2, x.abs() + 0.51)
    ),
    "incomplete gamma": Program(
        lambda a, x: torch.special.gammainc(a.abs() + 0.1, x.abs()),
        given(randn(3, 5), randn(3, 5)),
        lambda a, x: torch.special.gammainc(a.abs() + 0.11, x.abs()),
    ),
    "incomplete gamma from above": Program(
        lambda a, x: torch.special.gammaincc(a.abs() + 0.1, x.abs()),
        given(randn(3, 5), randn(3, 5)),
        lambda a, x: torch.special.gammaincc(a.abs() + 0.11, x.abs()),
    ),
    "multigammaln": Program(
        lambda x: torch.special.multigammaln(x.abs() + 3, 3),
        given(randn(3, 5)),
        lambda x: torch.special.multigammaln(x.abs() + 3.02, 3),
    ),
    **{
        name: polynomial(name)
        for name in (
            "chebyshev_polynomial_t",
            "chebyshev_polynomial_u",
            "chebyshev_polynomial_v",
            "chebyshev_polynomial_w",
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
            "shifted_chebyshev_polynomial_t",
            "shifted_chebyshev_polynomial_u",
            "shifted_chebyshev_polynomial_v",
            "shifted_chebyshev_polynomial_w",
        )
    },
}
