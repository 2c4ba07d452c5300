"""NumPy in forward, of dynamic sizes: its arrays are tensors of the file, and so are lists of sizes; else E105 at the line."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable

import numpy as np
import pytest
import torch

import fx2onnx
from tests.support import check, run_engines

X = torch.randn(4, 6)


def _causal(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-2]
    mask = torch.from_numpy(np.triu(np.ones((1, n, n)), k=1).astype("uint8")) == 0
    return (x @ x.transpose(-1, -2)).masked_fill(~mask, float("-inf")).softmax(-1) @ x


def _lengths(x: torch.Tensor) -> torch.Tensor:
    mask = np.arange(x.shape[0])[None] < np.array([1, 3, 2])[:, None]
    return x * torch.from_numpy(mask.astype(np.float32)).sum(0)[:, None]


def _positions(x: torch.Tensor) -> torch.Tensor:
    """A sinusoidal table that is written in place."""
    table, place = np.zeros((x.shape[1], 4)), np.arange(x.shape[1])[:, None]
    steps = np.exp(np.arange(0, 4, 2) * -(math.log(10000.0) / 4))
    table[:, 0::2], table[:, 1::2] = np.sin(place * steps), np.cos(place * steps)
    return x @ torch.from_numpy(table).float()


def _listed_positions(x: torch.Tensor) -> torch.Tensor:
    table = np.array([[place / np.power(100, j / 4) for j in range(4)] for place in range(x.shape[1])])
    table[:, 0::2] = np.sin(table[:, 0::2])
    return x @ torch.FloatTensor(table)


def _of_grids(x: torch.Tensor) -> torch.Tensor:
    across, down = np.meshgrid(np.linspace(0, 1, x.shape[1]), np.arange(x.shape[0]))
    return x + torch.from_numpy(
        across * down - np.mgrid[0 : x.shape[0], 0 : x.shape[1]][1] / np.int64(x.shape[1] * 0.5)
    )


def _with_classes(x: torch.Tensor) -> torch.Tensor:
    places = np.arange(x.shape[1])
    is_right = isinstance(places, np.ndarray) and places.dtype == np.int64 and np.issubdtype(places.dtype, np.integer)
    return x * places.astype(np.float32) if is_right else x


def _of_data(x: torch.Tensor) -> torch.Tensor:
    numbers = x.abs().mean(0).detach().cpu().numpy()
    order = np.argsort(-numbers)[:2]
    return x + torch.as_tensor(np.where(numbers > 0.5, numbers, 0)) + torch.from_numpy(order.copy()).sum()


def _of_dtypes(x: torch.Tensor) -> torch.Tensor:
    small, bits = (x.abs() * 90).to(torch.uint8).numpy(), (x * 9).int().numpy()
    mixed = np.where(x.numpy() > 0, x.long().numpy(), x.numpy())
    found = [small.cumsum(0), np.cumprod(bits, 1), np.cumsum(bits > 0), *np.divmod(bits, 3), divmod(bits, 2)[0]]
    texts = [str(each.dtype) for each in (bits.cumsum(0), mixed, np.rint(bits), *found[3:])]
    assert texts == ["int64", "float64", "float64", "int32", "int32", "int32"]
    return x + torch.as_tensor(mixed) + sum(torch.as_tensor(each.astype(np.float64)).sum() for each in found)


def _of_upper(x: torch.Tensor) -> torch.Tensor:
    rows, columns = np.triu_indices(x.shape[1], 1)
    return x[:, rows] * x[:, columns]


ARRAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "positions": _positions,
    "listed positions": _listed_positions,
    "grids": _of_grids,
    "classes": _with_classes,
    "data": _of_data,
    "an upper triangle": _of_upper,
    "tiles and windows": lambda x: (
        x + torch.FloatTensor(np.tile(np.array(range(x.shape[1])), [x.shape[0], 1])) * np.hanning(x.shape[1])
    ),
    "indices": lambda x: x[:, np.arange(x.shape[1])[::-1].copy()] + np.arange(x.shape[1]),
    "integers that are halved": lambda x: (
        x + torch.from_numpy(np.arange(x.shape[1]) / 2 + np.round(np.arange(x.shape[1]) / 3))
    ),
    "sizes that are halved": lambda x: x.sum() + torch.from_numpy(np.array([x.shape[0] * 0.5, 1.0])),
    "an element and a sum, which keep the tensor's dtype": lambda x: (
        x * np.arange(x.shape[1])[-1]
        + np.linspace(0, 1, x.shape[1]).sum()
        - np.arange(x.shape[1]).mean() / (x.abs() + 1)
    ),
    "a number beside integers": lambda x: (x * 5).int() * np.arange(x.shape[1]).max(),
    "a number beside truths": lambda x: (x > 0) + np.linspace(0, 1, x.shape[1])[-1],
    "an array without axes, which does not": lambda x: x // np.array(np.arange(x.shape[1])[-1] + 0.5),
    "whole numbers between two": lambda x: torch.from_numpy(np.linspace(-3, 8, x.shape[1], dtype=int)) + x,
    "LongTensor": lambda x: (
        x[:, torch.LongTensor(list(range(x.shape[1] - 1, -1, -1)))] * torch.FloatTensor([*x.shape]).sum()
    ),
    "ByteTensor": lambda x: (
        x * torch.ByteTensor([i % 2 for i in range(x.shape[1])]) + torch.IntTensor(range(x.shape[1]))
    ),
    "BoolTensor": lambda x: x * torch.BoolTensor([i % 2 == 0 for i in range(x.shape[1])]),
    "truths": lambda x: (
        x * np.array([1 < i < 4 for i in range(x.shape[1])]) + torch.tensor([x.shape[1] > 5, True]).sum()
    ),
    "dtypes of NumPy": _of_dtypes,
    "a causal mask": _causal,
    "a mask of lengths": _lengths,
    "tril": lambda x: x + torch.tensor(np.tril(np.ones(x.shape)), dtype=x.dtype),
    "eye": lambda x: x @ torch.from_numpy(np.eye(x.shape[1], dtype="float32")),
    "linspace without its end": lambda x: (
        x * torch.from_numpy(np.linspace(0, 1, x.shape[1], endpoint=False))
        + torch.from_numpy(np.linspace(9, x.shape[1], 4, False, dtype=np.float32)).sum()
        + torch.from_numpy(np.logspace(0, 1, x.shape[0], endpoint=False))[:, None]
    ),
    "linspace and its step": lambda x: (
        x * np.linspace(0, 1, x.shape[1], retstep=True)[1] + np.linspace(0, 3, x.shape[0], False, True)[1]
    ),
    "interp with a period": lambda x: (
        x * torch.from_numpy(np.interp(np.arange(x.shape[1]), [7, 3, 15], [0.5, 1.0, 3.0], period=-10))
        + float(np.interp(x.shape[0], [-190, 5], [2.0, 3.0], left=9, period=360))
    ),
    "interp": lambda x: (
        x * torch.from_numpy(np.interp(np.arange(x.shape[1]), [1, 3, 9], [0.5, 1.0, 3.0], left=7))
        + float(np.interp(x.shape[0], [0, 5, 6], [0.0, 1.0, 3.0]))
        + torch.from_numpy(np.interp([-1.0, 0.5, 1.5, 40], np.arange(x.shape[0]), np.arange(x.shape[0]) * 2.0)).sum()
    ),
    "outer": lambda x: (
        x * np.add.outer(np.arange(x.shape[0]), np.arange(x.shape[1]))
        - torch.from_numpy(np.subtract.outer(np.arange(x.shape[0]), np.ones((2, x.shape[1])))).sum(1)
    ),
    "reduce and accumulate": lambda x: (
        x * float(np.maximum.reduce(np.arange(x.shape[1]))) * int(np.add.reduce(np.array(x.shape)))
        + np.logical_and.reduce([np.arange(x.shape[1]) > 1, np.arange(x.shape[1]) < 4])
        + np.add.accumulate(np.arange(x.shape[1]))
        + np.multiply.reduce(np.ones(x.shape) * 1.5, axis=1)[:, None]
    ),
    "unravel_index": lambda x: (
        x * x[np.unravel_index(2, x.shape)]
        + x[tuple(map(torch.from_numpy, np.unravel_index(np.arange(x.shape[1]), x.shape)))]
        + np.unravel_index(1, (2, x.shape[0]), "F")[0]
    ),
    "ravel_multi_index": lambda x: (
        x * x.flatten()[np.ravel_multi_index((1, 2), x.shape)] + np.ravel_multi_index((1, 0), x.shape, order="F")
    ),
    "float of a number of NumPy": lambda x: x * float(np.arange(x.shape[1]).max()) + int(np.arange(x.shape[0])[-1]),
    "repeat": lambda x: x + torch.from_numpy(np.repeat(np.arange(2.0), x.shape[0])).view(2, -1).sum(0)[:, None],
}
FIXED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a function that has no method": lambda x: x * float(np.fmod(3.0, 2.0 * x.shape[0])),
    "an array and a real size": lambda x: x + float(np.hypot(np.array([1.0, 2.0]), x.shape[0] / 2).sum()),
    "a function with another shape in torch": lambda x: x * float(np.median(np.arange(x.shape[0]))),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_dynamic_sizes_are_in_the_file(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result = fx2onnx.export(make, (X,), dynamic_shapes=({0: "n", 1: "m"},))
    for rows, columns in ((4, 6), (2, 5), (7, 9)):
        x = torch.randn(rows, columns)
        for (got,) in run_engines(result.model_proto, [x]).values():
            torch.testing.assert_close(torch.from_numpy(got), make(x), rtol=1e-4, atol=1e-5)
    assert "export" not in "".join(result.report.attempts)


@pytest.mark.long
@pytest.mark.parametrize("make", FIXED.values(), ids=FIXED)
def test_a_size_that_numpy_takes_as_a_number_is_refused_with_its_line(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(fx2onnx.UserError, match=r"(?s)E105.*fixed number 4.*test_numpy_of_sizes\.py"):
        fx2onnx.export(make, (X,), dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x * torch.from_numpy(np.setdiff1d(np.arange(x.shape[0]), [1, 2])).sum(),
        lambda x: x * torch.from_numpy(np.subtract.accumulate(np.arange(x.shape[0])))[:, None],
        lambda x: x + torch.from_numpy(np.add.reduceat(np.arange(x.shape[0]), [0, 2])).sum(),
    ],
)
def test_a_function_that_only_numpy_has_is_named(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(fx2onnx.UserError, match=r"(?s)E104.*NumPy's \w+ is not computed.*test_numpy_of_sizes\.py"):
        fx2onnx.export(make, (X,), dynamic_shapes=({0: "n"},))


def test_sizes_in_functions_of_numpy_stay_sizes() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        angles = np.arctan2(x.shape[0], x.shape[1]) + np.deg2rad(x.shape[0]) + np.arctan(x.shape[1])
        roots = float(np.hypot(x.shape[0], x.shape[1])) + np.cbrt(x.shape[0] / 3) + np.cosh(2 / x.shape[0])
        return x * np.sqrt(x.shape[0]) + np.float32(2) / x.shape[1] + np.add(x.shape[0], 1.5) + angles * roots

    result = fx2onnx.export(scaled, (X,), dynamic_shapes=({0: "n", 1: "m"},))
    for rows, columns in ((4, 6), (9, 2)):
        x = torch.randn(rows, columns)
        for (got,) in run_engines(result.model_proto, [x]).values():
            torch.testing.assert_close(torch.from_numpy(got), scaled(x))


NUMBERS: dict[str, Callable[[int], object]] = {
    "function": lambda n: np.sqrt(n),
    "of two": lambda n: np.hypot(n, 2),
    "in a list": lambda n: [np.log(n), 0.1, 2],
    "in nested lists": lambda n: [[np.exp(-n / 10), 2.0], [n, 1]],
    "float64": lambda n: np.float64(n) * 2,
    "computed on": lambda n: [n * np.sqrt(n), 1 / np.sqrt(n), -(np.sqrt(n) ** 2), np.sqrt(n) // 2, n + np.float64(0.1)],
    "constant": lambda n: np.float64(np.pi) * n,
    "behind a constant": lambda n: n / np.float64(3),
    "rounded": lambda n: [np.floor(n / 2), np.ceil(n / 2), np.round(n * 0.3)],
    "step": lambda n: np.linspace(0, 1, n, retstep=True)[1],
    "float32": lambda n: [np.sqrt(np.float32(n)), 0.5],
    "Python's": lambda n: [float(np.sqrt(n)), math.sqrt(np.sqrt(n)), n / 2],
    "whole": lambda n: [int(np.ceil(n / 2)), int(np.floor(np.sqrt(n))), n],
    "quotient of an int64": lambda n: [np.int64(n) / 2, np.int64(n) * 0.5, 1.5 + np.int64(n)],
    "int32": lambda n: [np.int32(n), np.int32(n) + 1, -np.int32(n), np.int32(n) // 2],
    "int32 with int64": lambda n: np.int32(n) * np.int64(2),
    "int32 of a real": lambda n: np.int32(n * 0.7) * 2.5,
    "narrow": lambda n: np.uint8(n),
    "half": lambda n: np.float16(n),
    "sum": lambda n: [np.sum([n, 1.5]), np.sum([n * 0.5, 2])],
    "sum with a float32": lambda n: [np.sum([n, np.float32(1.5)]), np.prod([np.float32(n), 2])],
    "sum of float32": lambda n: np.sum([np.float32(n), np.float32(2)]),
    "sum with an int32": lambda n: [np.sum([n, np.int32(3)]), np.prod([np.int32(n), np.int32(2)])],
    "least of int32": lambda n: np.min([np.int32(n), np.int32(7)]),
    "least with a truth": lambda n: np.min([n, True]),
    "product": lambda n: np.prod((n, 6)) / 4,
    "product beside sizes": lambda n: [n * np.prod((n, 6)) / 2, 0.5 * np.prod([n, n])],
    "whole again": lambda n: [int(np.prod([n, 3])) / 2, float(np.int64(n))],
}


def test_sizes_of_tensors_by_numbers_of_numpy_are_pythons() -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        n, count = np.int64(x.shape[0]), np.prod(x.shape)
        made = [x[:n], torch.arange(n), x.view(n, -1), torch.ones(count, 2), x.reshape(count)]
        return [torch.tensor(each.shape[0] / 2) for each in made]

    check(forward, (X,), others=[(torch.randn(3, 2),)], dynamic_shapes=({0: "n", 1: "m"},))


def test_numbers_of_numpy_are_of_its_classes() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        n, k, root = x.shape[0], np.int64(x.shape[0]), np.sqrt(x.shape[0])
        truths = [isinstance(root, kind) for kind in (np.floating, float, np.float32, int, np.generic)]
        truths += [isinstance(k, kind) for kind in (np.integer, int, np.int64, np.int32, float)]
        truths += [
            isinstance(k / 2, np.float64),
            isinstance(np.prod(x.shape), int),
            isinstance(np.max([n, 1]), np.integer),
        ]
        truths += [isinstance(number, numbers.Real) for number in (n, n / 2, k, root)]
        truths += [isinstance(number, numbers.Integral) for number in (n, n / 2, k, root)]
        truths += [type(root) is float, type(k) is int, type(n) is int, type(n / 2) is float]
        return x + sum(2**place for place, truth in enumerate(truths) if truth)

    check(forward, (X.double(),), others=[(torch.randn(3, 2).double(),)], dynamic_shapes=({0: "n", 1: "m"},))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("make", ["tensor", "as_tensor", "asarray"])
def test_tensors_of_numbers_of_numpy_have_its_dtype(number: str, make: str) -> None:
    """float64, of which a list is one, and not torch's default dtype."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = getattr(torch, make)(NUMBERS[number](x.shape[0]))
        return made, x * made.sum()

    others = [(torch.randn(size, 6),) for size in (2, 5, 9)]
    result = check(forward, (X,), others=others, dynamic_shapes=({0: "n"},))
    expected = forward(X)
    assert [value.type.tensor_type.elem_type for value in result.model_proto.graph.output] == [
        {torch.float64: 11, torch.float32: 1, torch.int64: 7, torch.int32: 6, torch.uint8: 2, torch.float16: 10}[
            each.dtype
        ]
        for each in expected
    ]
