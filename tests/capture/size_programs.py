"""What Python does with sizes, a line each: programs of ``x``, [n, 4], that compute the same at every n."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.fft
import scipy.fftpack
import torch
import torch.nn.functional as F

Program = Callable[..., Any]


@functools.lru_cache(maxsize=8)
def cached_double(size: Any) -> Any:
    return size * 2


def keyed(x: torch.Tensor) -> torch.Tensor:
    cache: dict[Any, torch.Tensor] = {}
    for part in (x, x * 2):
        key = (part.shape[0], part.dtype)
        if key not in cache:
            cache[key] = torch.arange(part.shape[0])
        part += cache[key][:, None]
    return x


def next_power(n: Any) -> Any:
    return 2 ** math.ceil(math.log2(n))


def convolved_by_transforms(x: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([[1.0], [2.0], [3.0]])
    length = scipy.fftpack.next_fast_len(x.shape[0] + weights.shape[0] - 1)
    product = torch.fft.rfft(x, n=length, dim=0) * torch.fft.rfft(weights, n=length, dim=0)
    found = torch.fft.irfft(product, length, dim=0).roll(-1, dims=(0,))
    return found.index_select(0, torch.arange(length - x.shape[0], length)) + found[: x.shape[0]]


def ones(n: Any) -> torch.Tensor:
    return torch.ones(n, 2)


def same_shape(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return x + y if x.shape == y.shape else x


def attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=x.shape[0] > 1)


NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda n: int(n),
    "float": lambda n: float(n),
    "int of a product": lambda n: int(n * 0.5),
    "int of a quotient": lambda n: int(n / 2),
    "int of a float": lambda n: int(float(n) * 1.5 + 0.25),
    "floor": lambda n: math.floor(n / 4),
    "ceil": lambda n: math.ceil(n / 4) * 4,
    "ceil by hand": lambda n: -(-n // 4),
    "trunc": lambda n: math.trunc(n / 3),
    "round": lambda n: round(n / 3),
    "round to digits": lambda n: round(n / 3, 1),
    "round of a half": lambda n: round(n * 0.5),
    "round of a size": lambda n: round(n),
    "sqrt": lambda n: math.sqrt(n),
    "isqrt": lambda n: math.isqrt(n),
    "int of sqrt": lambda n: int(math.sqrt(n)),
    "int of a power": lambda n: int(n**0.5),
    "log2": lambda n: math.log2(n),
    "log": lambda n: math.log(n),
    "log of a base": lambda n: math.log(n, 10),
    "log10": lambda n: math.log10(n),
    "log1p": lambda n: math.log1p(n),
    "exp": lambda n: math.exp(-n),
    "sin": lambda n: math.sin(n) + math.cos(n) + math.tanh(n),
    "atan": lambda n: math.atan(n) + math.atan2(3 - n, n),
    "asin": lambda n: math.asin(1 / n) + math.asin(-2 / (n + 1)),
    "acos": lambda n: math.acos(1 / n) + math.acos(-1) * n,
    "np.arcsin": lambda n: np.arcsin(1 / n) - np.arccos(1 / n),
    "dist": lambda n: math.dist([n, 2.0, 0], (1, 1.5, n)) + math.dist((n,), (9,)),
    "hypot of quotients": lambda n: math.hypot(n / 3, 2.5) + math.cbrt(n),
    "sinh": lambda n: math.sinh(n / 7) + math.cosh(3 / n) + math.expm1(-n) + math.tan(1 / n),
    "copysign": lambda n: math.copysign(3 - n, -2.0) + math.copysign(n, 0.0),
    "pow": lambda n: math.pow(n, 0.5),
    "power": lambda n: n**-0.5 + n**2,
    "builtin pow": lambda n: pow(n, 2) + pow(2, n),
    "power of two": lambda n: 2**n,
    "fabs": lambda n: math.fabs(-n),
    "abs": lambda n: abs(3 - n),
    "hypot": lambda n: math.hypot(n, 3),
    "prod": lambda n: math.prod((n, 4)),
    "prod from": lambda n: math.prod([n, n], start=2),
    "gcd": lambda n: math.gcd(n, 4),
    "lcm": lambda n: math.lcm(n, 4),
    "comb": lambda n: math.comb(n, 2),
    "fmod": lambda n: math.fmod(n, 4),
    "isfinite": lambda n: math.isfinite(n) + n,
    "next power of two": lambda n: 2 ** math.ceil(math.log2(n)),
    "next power by bits": lambda n: 1 << (n - 1).bit_length(),
    "bit_length": lambda n: n.bit_length(),
    "fast length": lambda n: scipy.fftpack.next_fast_len(n + 3),
    "fast complex length": lambda n: scipy.fft.next_fast_len(n + 3),
    "fast real length": lambda n: scipy.fft.next_fast_len(n + 3, real=True),
    "shift right": lambda n: n >> 1,
    "shift left": lambda n: n << 1,
    "one shifted": lambda n: 1 << n,
    "and": lambda n: n & 3,
    "and of itself": lambda n: n & (n - 1),
    "or": lambda n: n | 1,
    "xor": lambda n: n ^ 1,
    "invert": lambda n: ~n,
    "is a power of two": lambda n: 5 if n & (n - 1) == 0 else 3,
    "divmod": lambda n: sum(divmod(n, 4)),
    "divmod by a size": lambda n: divmod(100, n)[1],
    "negative divmod": lambda n: divmod(-n, 4)[0],
    "real floordiv": lambda n: n // 2.5,
    "real mod": lambda n: n % 2.5,
    "true division": lambda n: n / 3,
    "division by a size": lambda n: 3 / n,
    "min and max": lambda n: min(n, 4) + max(n, 7, 3),
    "min of a generator": lambda n: min(size for size in (n, 4)),
    "max with key": lambda n: max([n, 4], key=lambda size: -size),
    "max with default": lambda n: max([n, 4], default=1),
    "sum": lambda n: sum([n, n, 4]),
    "sum of a generator": lambda n: sum(size for size in (n, 4)),
    "sorted": lambda n: sorted([n, 4, 7])[1],
    "sorted backwards": lambda n: sorted((n, 4), reverse=True)[0],
    "fsum": lambda n: math.fsum([n, 0.5]),
    "fstring": lambda n: (f"{n} rows", n)[1],
    "fstring with a format": lambda n: (f"{n:3d}", n)[1],
    "str": lambda n: (str(n), n)[1],
    "percent": lambda n: ("%d rows".__mod__(n), n)[1],
    "repr": lambda n: (repr(n), n)[1],
    "isinstance int": lambda n: n if isinstance(n, int) else n + 1,
    "type is int": lambda n: n if type(n) is int else n + 1,
    "type in": lambda n: n if type(n) in (int, float) else n + 1,
    "type equal": lambda n: n if type(n) == int else n + 1,  # noqa: E721
    "isinstance of several": lambda n: n if isinstance(n, (int, float)) else n + 1,
    "not a tensor": lambda n: n + 1 if isinstance(n, (float, str, torch.Tensor)) else n,
    "is_integer": lambda n: n + 1 if (n / 2).is_integer() else n,
    "np.prod": lambda n: np.prod((n, 4)),
    "np.sqrt": lambda n: np.sqrt(n),
    "np.log2": lambda n: np.log2(n),
    "np.ceil": lambda n: np.ceil(n / 4),
    "np.floor": lambda n: int(np.floor(n / 4)),
    "np.array": lambda n: np.array([n, 4]).sum(),
    "np.int64": lambda n: np.int64(n),
    "lru_cache": lambda n: cached_double(n),
    "equal to a number": lambda n: 5 if n == 6 else 3,
    "in a tuple": lambda n: 5 if n in (1, 3) else 3,
    "in a list": lambda n: 5 if n in [6, 13] else 3,
    "in a range": lambda n: 5 if n in range(3, 9) else 3,
    "in a set": lambda n: 5 if n in {1, 3} else 3,
    "key of a dict": lambda n: {n: 3}[n],
    "looked up": lambda n: {6: 3.0}.get(n, 2.0),
    "product is a multiple": lambda n: 5 if n * 3 % 4 == 0 else 3,
    "product is zero": lambda n: 5 if n * 4 == 0 else 3,
    "is odd": lambda n: 5 if n % 2 else 3,
    "truth": lambda n: 5 if n else 3,
    "truth of a difference": lambda n: 5 if n - 6 else 3,
    "not": lambda n: 5 if not n - 3 else 3,
    "bool": lambda n: int(bool(n > 4)) + n,
    "comparison as a number": lambda n: (n > 4) * 3 + n,
    "all and any": lambda n: 5 if all(size > 2 for size in (n, 4)) or any([n == 1]) else 3,
    "chained": lambda n: 5 if 2 < n < 7 else 3,
    "or else": lambda n: n or 4,
    "clamped": lambda n: max(1, min(n // 2, 3)),
    "complex": lambda n: complex(n, 1).real,
    "operator.index": lambda n: n.__index__(),
    "as_integer_ratio": lambda n: n.real + n.numerator,
    "conjugate": lambda n: n.conjugate(),
    "Decimal style": lambda n: int(n * 4 / 3 + 0.5),
    "sym_int": lambda n: torch.sym_int(n / 2),
    "sym_float": lambda n: torch.sym_float(n) / 2,
}
"""Numbers that Python makes of a size; the program multiplies ``x`` with the number."""

SIZES: Mapping[str, Callable[[Any], Any]] = {
    name: NUMBERS[name]
    for name in (
        "int",
        "int of a product",
        "int of a quotient",
        "floor",
        "ceil",
        "ceil by hand",
        "round",
        "isqrt",
        "int of sqrt",
        "next power of two",
        "shift right",
        "and",
        "gcd",
        "np.prod",
        "divmod",
        "sorted",
        "min and max",
        "clamped",
        "Decimal style",
        "comb",
    )
}
"""Some of these, which are sizes of a result, too."""

PROGRAMS: Mapping[str, Program] = {
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.T, x, torch.ones(4, 3)]) / len(x),
    "multi_dot of vectors": lambda x: torch.linalg.multi_dot([x[:, 0], x, x.T, x[:, 1]]),
    "chain_matmul": lambda x: torch.chain_matmul(x.T, x, x.T),
    "convolved by transforms": convolved_by_transforms,
    "numel of a shape": lambda x: x * x.shape.numel(),
    "slice of a shape": lambda x: x.reshape(x.shape[:1].__add__((2, 2))).sum(1),
    "joined shapes": lambda x: torch.ones(x.shape.__add__((2,))) * x[..., None],
    "joined with a list": lambda x: torch.ones([*x.shape, 2]) * x[..., None],
    "torch.Size": lambda x: torch.ones(torch.Size((x.shape[0], 2))),
    "torch.Size of a list": lambda x: torch.ones(torch.Size([x.shape[0], x.shape[1]])),
    "tuple of a shape": lambda x: torch.zeros(tuple(x.shape)) + x,
    "list of a shape": lambda x: torch.zeros(list(x.shape)) + x,
    "shape index": lambda x: x * x.shape.index(4),
    "shape count": lambda x: x * x.shape.count(4),
    "reversed shape": lambda x: torch.zeros(tuple(reversed(x.shape))) + x.t(),
    "unpacked": lambda x: (lambda n, c: x.view(c, n) * n)(*x.shape),
    "starred": lambda x: (lambda *sizes: torch.zeros(*sizes))(*x.shape) + x,
    "equal shapes": same_shape,
    "shape equal to a tuple": lambda x: x * 2 if x.shape == (6, 4) else x,
    "shape in a tuple": lambda x: x * 2 if x.shape[0] in (1, 3) else x,
    "one of two": lambda x: x * 2 if (x.shape[0] > 4) ^ (x.shape[1] > 6) else x,
    "a truth or a plain one": lambda x: x * 2 if True ^ (x.shape[0] > 4) else x,
    "a truth as an index": lambda x: x * [1.0, 2.0][x.shape[0] > 4],
    "the largest truth": lambda x: x + max(x.shape[0] > 4, x.shape[1] > 6),
    "arithmetic of truths": lambda x: x * ((x.shape[0] > 4) + (x.shape[1] > 3) * 2 - (x.shape[0] == 6)) ** 2,
    "shape ordered": lambda x: x * 2 if x.shape > (4, 4) else x,
    "np.prod of a shape": lambda x: x * float(np.prod(x.shape)),
    "np.prod of a part": lambda x: x.reshape(int(np.prod(x.shape[:2]))),
    "reduce": lambda x: x.reshape(functools.reduce(lambda a, b: a * b, x.shape)),
    "tensor of a shape": lambda x: torch.tensor(x.shape),
    "tensor of sizes": lambda x: torch.tensor([x.shape[0], x.shape[1]]),
    "real tensor of sizes": lambda x: torch.tensor([x.shape[0], 2.0]),
    "tensor of a dtype": lambda x: torch.tensor(x.shape, dtype=torch.float32),
    "Tensor of sizes": lambda x: torch.Tensor([x.shape[0], x.shape[1]]),
    "Tensor of a list": lambda x: torch.Tensor([size * 2 for size in x.shape]).long(),
    "LongTensor": lambda x: torch.LongTensor([x.shape[0], 2]),
    "FloatTensor": lambda x: torch.FloatTensor([x.shape[0]]),
    "Tensor by sizes": lambda x: torch.Tensor(x.shape[0], 2).zero_() + x[:, :2],
    "new_tensor": lambda x: x.new_tensor([x.shape[0], 2]),
    "new": lambda x: x.new(x.shape[0], 2).zero_() + x[:, :2],
    "new_zeros": lambda x: x.new_zeros(x.shape[0]) + x[:, 0],
    "new_full": lambda x: x.new_full((x.shape[0],), x.shape[0]),
    "asarray": lambda x: torch.asarray([x.shape[0], 2]),
    "scalar_tensor": lambda x: torch.scalar_tensor(x.shape[0]) + x,
    "from_numpy": lambda x: torch.from_numpy(np.array([x.shape[0], 2])),
    "tensor of np": lambda x: torch.tensor(np.array(x.shape)),
    "as_tensor to": lambda x: torch.as_tensor(x.shape[0] // 2).to(x) * x,
    "_shape_as_tensor": lambda x: torch._shape_as_tensor(x),
    "arange": lambda x: torch.arange(x.shape[0]) + x.long()[:, 0],
    "real arange": lambda x: torch.arange(0, x.shape[0], dtype=torch.float32) + x[:, 0],
    "arange of a half": lambda x: torch.arange(0, 1, 1 / x.shape[0]).sum(),
    "arange backwards": lambda x: torch.arange(x.shape[0] - 1, -1, -1),
    "arange of a float": lambda x: torch.arange(float(x.shape[0])),
    "arange of a root": lambda x: torch.arange(math.sqrt(x.shape[0])),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0]) + x[:, 0],
    "linspace to a size": lambda x: torch.linspace(0, x.shape[0] - 1, 5),
    "logspace": lambda x: torch.logspace(0, 1, x.shape[0]) + x[:, 0],
    "full": lambda x: torch.full((x.shape[0],), x.shape[0]),
    "full of a float": lambda x: torch.full((x.shape[0],), 1 / x.shape[0]),
    "full_like": lambda x: torch.full_like(x, x.shape[0]),
    "zeros": lambda x: torch.zeros(x.shape[0], int(x.shape[1])) + x,
    "eye": lambda x: torch.eye(x.shape[0]),
    "empty": lambda x: torch.empty(x.shape[0] * 2, 3).fill_(1.0),
    "randn of a shape": lambda x: torch.randn(x.shape, generator=None) * 0 + x,
    "rand": lambda x: torch.rand(x.shape[0], 2, generator=None) * 0 + x[:, :2],
    "randint": lambda x: torch.randint(0, 5, (x.shape[0],), generator=None) * 0,
    "randperm": lambda x: torch.randperm(x.shape[0]) * 0,
    "randn of a generator": lambda x: torch.randn(x.shape, generator=torch.Generator()) * 0 + x,
    "randint of a generator": lambda x: torch.randint(0, 5, (x.shape[0], 4), generator=torch.Generator()) * 0 + x,
    "randperm of a generator": lambda x: torch.randperm(x.shape[0], generator=torch.Generator()) * 0,
    "exponential of a generator": lambda x: (x * 1).exponential_(generator=torch.Generator()) * 0 + x,
    "divided": lambda x: x / x.shape[0],
    "divided twice": lambda x: x / (x.shape[0] / 2),
    "scaled": lambda x: x * (x.shape[0] ** -0.5),
    "scaled by a root": lambda x: x / math.sqrt(x.shape[0]),
    "in-place scale": lambda x: (x * 1).div_(x.shape[0]),
    "power by a size": lambda x: x.abs() ** (1 / x.shape[0]),
    "clamp by a size": lambda x: (x * 10).clamp(-x.shape[0], x.shape[0]),
    "where a size": lambda x: torch.where(x > 0, x.shape[0], 0),
    "masked by a size": lambda x: x.masked_fill(x > 0, x.shape[0]),
    "compared with a size": lambda x: (x * 10 > x.shape[0]).float(),
    "added with alpha": lambda x: torch.add(x, x, alpha=x.shape[0]),
    "lerp by a size": lambda x: torch.lerp(x, x * 2, 1 / x.shape[0]),
    "text times a size": lambda x: (("abc" * x.shape[0]), x * 2)[1],
    "list of a range": lambda x: torch.tensor(list(range(x.shape[0]))) + x[:, 0],
    "causal attention": attend,
    "causal attention of a scale": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=1 / math.sqrt(x.shape[0])),
    "keys": keyed,
    "range": lambda x: sum(x[row] for row in range(x.shape[0])),
    "loop over rows": lambda x: sum(row * 2 for row in x),
    "list of a size": lambda x: torch.stack([x] * x.shape[0]),
    "len": lambda x: ones(len(x)) * len(x),
    "len of a list": lambda x: x * len([x, x]),
    "len of a shape": lambda x: x * len(x.shape),
    "end by a tensor": lambda x: x[: torch.tensor(x.shape[0] // 2)],
    "end by a constant tensor": lambda x: x[: torch.tensor(2)],
    "start by a tensor": lambda x: x[torch.as_tensor(x.shape[0] // 2) :],
    "row by a size": lambda x: x[x.shape[0] - 1] * 2,
    "selected row by a size": lambda x: x.select(0, x.shape[0] - 1) * 2,
    "rows by sizes": lambda x: x[[0, x.shape[0] // 2]],
    "rows by a tensor of sizes": lambda x: x[torch.tensor([0, x.shape[0] - 1])],
    "zero elements": lambda x: x * 2 if x.shape[0] * x.shape[1] == 0 else x * 3,
    "item of a size": lambda x: x * torch.tensor(x.shape[0]).item(),
    "number of a tensor": lambda x: x * int(torch.tensor(x.shape[0])),
    "real number of a tensor": lambda x: x * float(torch.tensor(x.shape[0])),
    "part to the number of a tensor": lambda x: x[: int(torch.tensor(x.shape[0] // 2))],
    "end of a row by a size": lambda x: (x @ x.t())[..., x.shape[0] - 1] * x[-x.shape[0]].sum(),
    "row by a size and columns": lambda x: x[x.shape[0] // 2, torch.tensor([1, 2])],
    "written row by a size": lambda x: (lambda y: (y.__setitem__(x.shape[0] // 2, 1.0), y)[1])(x * 1),
    "tolist": lambda x: torch.zeros(torch.tensor([x.shape[0], 2]).tolist()) + x[:, :2],
    "numpy of sizes": lambda x: x * int(torch.tensor([x.shape[0], 2]).prod()),
    "stacked sizes": lambda x: torch.stack([torch.tensor(x.shape[0]), torch.tensor(3)]),
    "dims": lambda x: x.sum(dim=tuple(range(x.dim()))),
    "slice object": lambda x: x[slice(0, x.shape[0] // 2)],
    "negative slice": lambda x: x[-(x.shape[0] // 2) :],
    "size with a dim": lambda x: x * x.size(0) + x.size(dim=1),
    "nelement": lambda x: x * x.nelement() / x.numel(),
    "stride": lambda x: x * x.t().contiguous().stride(0),
    "ndim": lambda x: x * x.ndim,
    "bytes": lambda x: x * (x.element_size() * x.nelement()),
    "nbytes": lambda x: x * x.nbytes,
    "interpolated by sizes": lambda x: F.interpolate(x[None, None], size=(int(x.shape[0] * 1.5), 4)),
    "interpolated by a factor": lambda x: F.interpolate(x[None, None], scale_factor=(8 / x.shape[0], 1.0)),
    "padded to a multiple": lambda x: F.pad(x, (0, 0, 0, math.ceil(x.shape[0] / 4) * 4 - x.shape[0])),
    "padded to a power": lambda x: F.pad(x, (0, 0, 0, next_power(x.shape[0]) - x.shape[0])),
    "einsum": lambda x: torch.einsum("ni,mi->nm", x, x),
    "repeated": lambda x: x[None].repeat(x.shape[0], 1, 1).sum(0),
    "normal": lambda x: torch.zeros(x.shape[0], 3).normal_(0, 1, generator=None) * 0,
    "size compared with a tensor": lambda x: torch.arange(10) < x.shape[0],
    "print": lambda x: (print(x.shape, end=""), x * 2)[1],
    "format": lambda x: ("{} of {:>4}".format(*x.shape), x * 2)[1],
    "zip of sizes": lambda x: x * sum(a * b for a, b in zip(x.shape, (1, 2), strict=True)),
    "dict of sizes": lambda x: x * {"rows": x.shape[0], "columns": 4}["rows"],
    "max of shapes": lambda x: x * max(x.shape),
    "sum of a shape": lambda x: x * sum(x.shape),
    "min over shapes": lambda x: torch.zeros(min(x.shape), max(y.shape[0] for y in (x, x[1:]))),
    "enumerate": lambda x: x * sum(place * size for place, size in enumerate(x.shape)),
    "map int": lambda x: torch.zeros(*map(int, x.shape)) + x,
    "list of ints": lambda x: torch.zeros([int(size) for size in x.shape]) + x,
    "isinstance of a shape": lambda x: x * 2 if isinstance(x.shape, tuple) else x,
    "type of a shape": lambda x: x * 2 if type(x.shape) is torch.Size else x,
    "all of int": lambda x: x * 2 if all(isinstance(size, int) for size in x.shape) else x,
    "broadcast_shapes": lambda x: torch.zeros(torch.broadcast_shapes(x.shape, (1, 4))) + x,
    "hash": lambda x: x * 2 if hash(x.shape[1]) else x,
    "view by float": lambda x: x.view(int(x.numel() / 2), 2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
    "layer_norm of the size": lambda x: F.layer_norm(x.t(), (x.shape[0],)),
    "comprehension": lambda x: torch.stack([row * 2 for row in x]),
    "unbind": lambda x: torch.stack(x.unbind(0)[::-1]),
    "split": lambda x: torch.cat(x.split(1)[::-1]),
}  # fmt: skip

NEEDS_A_NUMBER: Mapping[str, Program] = {
    "pow modulo": lambda x: x * pow(3, x.shape[0], 7),
    "factorial": lambda x: x * math.factorial(x.shape[0]),
    "hex": lambda x: x * len(hex(x.shape[0])),
    "index into a list": lambda x: x * list(range(100))[x.shape[0]],
    "parsed": lambda x: x * len(f"{x.shape[0]:b}"),
    "to_bytes": lambda x: x * x.shape[0].to_bytes(2, "big")[1],
}
"""Python itself needs the number."""

OF_EVERY_OPSET = (
    "bit_length", "fast length", "and of itself", "xor", "log2", "log10", "exp", "real mod", "power of two", "gcd", "isqrt",
)  # fmt: skip
"""Programs whose operators differ from opset to opset."""
