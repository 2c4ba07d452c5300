"""Programs of the subjects of PyTorch's own exporter tests with dynamic shapes, written anew: a line or a function each.

What each is called says which subject; ``torch.export`` captures most of them, with ranges and hints of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim

Shapes = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Case:
    program: Any
    """A function, or what makes a module."""
    args: tuple[Any, ...]
    shapes: Any
    others: Sequence[tuple[Any, ...]] = field(default=())


def t(*sizes: int) -> torch.Tensor:
    """Numbers around 0, the same for the same sizes."""
    return torch.linspace(-2, 2.5, math.prod(sizes)).reshape(sizes)


def ints(*sizes: int, below: int = 5) -> torch.Tensor:
    return (torch.arange(math.prod(sizes)) * 7 % below).reshape(sizes)


def grown(program: Any, sizes: Sequence[Sequence[int]], *others: Sequence[Sequence[int]], shapes: Any) -> Case:
    """Inputs by their sizes."""
    return Case(program, tuple(t(*each) for each in sizes), shapes, [tuple(t(*each) for each in one) for one in others])


def batch(program: Any, *rest: int) -> Case:
    """One input of [b, *rest], ``b`` dynamic."""
    shapes = ((4, *rest),), ((1, *rest),), ((3, *rest),), ((9, *rest),)
    return grown(program, *shapes, shapes=({0: "b"},))


b, s = Dim("b"), Dim("s")


class Linears(torch.nn.Module):
    """Branches of a model under one batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        self.second = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU())
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x) + self.scale, self.second(y)


class ConvNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).flatten(2).mean(-1)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class Counter(torch.nn.Module):
    """A buffer that forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum())
        return x + self.seen


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 16, 4))

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        places = start + torch.arange(x.shape[1])
        return self.cache.index_copy(1, places, x).sum(1)


def cond_by_size(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 4, lambda y: y.cos(), lambda y: y.sin(), (x,))


def cond_by_data(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y + y.shape[0], lambda y: y - y.shape[0], (x,))


def cond_nested(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return torch.cond(y.sum() > 3, lambda z: z * 3, lambda z: z * 2, (y,))

    return torch.cond(x[0, 0] < 0, inner, lambda y: y - 1, (x,))


def while_loop(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops import while_loop as loop

    return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x))[1]


def mapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch_map(lambda row, other: row + other, x, y)


def branch_on_size(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        return x[:3] * 2
    return x + 1


def branch_on_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == y.shape[0] - 1:
        return x + y[1:]
    return x * 2


def item_as_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count] * 2


def items_as_sizes(n: torch.Tensor) -> torch.Tensor:
    rows, columns = n.tolist()
    return torch.ones(rows, columns) * rows


def item_in_view(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    count = n.item()
    torch._check(count > 0)
    return x.view(count, x.shape[0] // count, 2).sum(1)


def padded_by_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0, 0, n.item()))


def filled_by_item(n: torch.Tensor) -> torch.Tensor:
    return torch.full((n.item(), 3), 2.0).softmax(-1)


def expanded_by_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x[None].expand(n.item(), -1, -1).sum(0)


def masked(x: torch.Tensor) -> torch.Tensor:
    chosen = x[x > 0]
    return chosen.reshape(-1, 1).expand(-1, 2) * 2


def masked_and_linear(x: torch.Tensor) -> torch.Tensor:
    rows = x[x.sum(1) > 0]
    weight = torch.arange(5.0)[:, None].expand(-1, x.shape[1]).cos()
    return F.layer_norm(F.linear(rows, weight), (5,))


def nonzero_rows(x: torch.Tensor) -> torch.Tensor:
    places = (x > 0).nonzero()
    return places.sum(1) + places.shape[0]


def kth(x: torch.Tensor) -> torch.Tensor:
    chosen = x[x > -1]
    torch._check(chosen.shape[0] > 2)
    return chosen.kthvalue(2).values


def unrolled(x: torch.Tensor) -> torch.Tensor:
    for layer in range(x.shape[1]):
        x = x + layer * x.shape[0]
    return x


def checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] >= 3)
    torch._check(x.shape[0] % 2 == 0)
    return x.view(-1, 2, x.shape[1]).sum(1)


def asserted(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] <= 20, "too long"
    return x * x.shape[0]


def attend(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.shape[0], x.shape[1], 2, x.shape[2] // 2).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(x.shape)


def grouped_attention(x: torch.Tensor) -> torch.Tensor:
    query = x.view(x.shape[0], x.shape[1], 4, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(query, query[:, :2], query[:, 2:], enable_gqa=True)


def sliced_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x[:, : y.shape[1]]
    return x[:, :-1] + y[:, 1:]


def rotary(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1], dtype=torch.float32)
    angles = torch.outer(places, torch.tensor([1.0, 0.1]))
    table = torch.cat([angles, angles], -1)
    half = torch.cat([-x[..., 2:], x[..., :2]], -1)
    return x * table.cos() + half * table.sin()


def causal_mask(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    mask = torch.full((n, n), float("-inf")).triu(1)
    return (x @ x.transpose(1, 2) + mask).softmax(-1)


def dataclassed(x: dict[str, Any]) -> torch.Tensor:
    return x["a"] + x["more"][0].sum(0)


def with_vmap(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: row.sum() * row)(x)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 0] = x.shape[0]
    y[1:] += 1
    return y.mul_(2)


def einsum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bsh,bth->bst", x, y)


def sym_math(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x * (torch.sym_sqrt(n) + torch.sym_max(n, 3) + torch.sym_min(n, 5) + torch.sym_int(n / 2) + math.ceil(n / 3))


CASES: Mapping[str, Case] = {
    # dims: named, derived, of containers
    "basic linear": grown(Linears, ((4, 8), (4, 6)), ((1, 8), (1, 6)), ((7, 8), (7, 6)), shapes=({0: b}, {0: b})),
    "convolutional": batch(ConvNet, 3, 8, 8),
    "convolution of any image": grown(ConvNet, ((2, 3, 8, 10),), ((1, 3, 2, 7),), ((3, 3, 9, 5),), shapes=({0: b, 2: Dim("h"), 3: Dim("w")},)),
    "a derived dim": grown(lambda x, y: x + y[1:], ((4,), (5,)), ((1,), (2,)), ((9,), (10,)), shapes=({0: s}, {0: s + 1})),
    "a nested derived dim": grown(lambda x, y: x + y[1::2], ((4,), (9,)), ((1,), (3,)), ((9,), (19,)), shapes=({0: s}, {0: 2 * s + 1})),
    "a derived dim, the root nowhere": grown(lambda x: x.view(-1, 4) * 2, ((8,),), ((4,),), ((40,),), shapes=({0: 4 * s},)),
    "derived dims out of order": grown(lambda x, y, z: x[2:] + y[1:] + z, ((6,), (5,), (4,)), ((3,), (2,), (1,)), ((9,), (8,), (7,)), shapes=({0: s + 2}, {0: s + 1}, {0: s})),
    "a derived dim twice": grown(lambda x, y, z: x + y[1:] + z[1:], ((4,), (5,), (5,)), ((2,), (3,), (3,)), shapes=({0: s}, {0: s + 1}, {0: s + 1})),
    "divisible": grown(lambda x: x.view(x.shape[0] // 4, 4).sum(1), ((8,),), ((4,),), ((20,),), shapes=({0: "n"},)),
    "a range": grown(lambda x: x.view(-1, 2) * 2, ((8,),), ((4,),), ((16,),), shapes=({0: Dim("n", min=4, max=16)},)),
    "one or two": grown(lambda x: x + x.shape[0], ((2, 3),), ((1, 3),), shapes=({0: Dim("n", min=1, max=2)},)),
    "equal dims": grown(lambda x, y: x @ y, ((3, 4), (4, 5)), ((2, 7), (7, 3)), shapes=({0: "m", 1: "k"}, {0: "k", 1: "n"})),
    "equal dims under two hints": grown(lambda x, y: x + y, ((3, 4), (3, 4)), ((2, 7), (2, 7)), shapes=({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO})),
    "a dynamic hint": grown(lambda x: x * x.shape[0], ((3, 4),), ((2, 7),), shapes=({0: Dim.DYNAMIC, 1: Dim.AUTO},)),
    "equal sizes of two dims": grown(lambda x, y: x.sum() + y, ((3,), (3,)), ((2,), (5,)), shapes=({0: Dim("p")}, {0: Dim("q")})),
    "a dict": Case(dataclassed, ({"a": t(3, 4), "more": [t(5, 3, 4)]},), ({"a": {0: b}, "more": [{0: s, 1: b}]},), [({"a": t(2, 4), "more": [t(1, 2, 4)]},)]),
    "a constant in a dict": Case(lambda x: x["a"] * x["k"], ({"a": t(3, 4), "k": 3},), ({"a": {0: b}, "k": None},), [({"a": t(5, 4), "k": 3},)]),
    "None beside": Case(lambda x, y=None: x * 2 if y is None else x + y, (t(3, 4), None), ({0: b}, None), [(t(6, 4), None)]),
    "broadcasting": grown(lambda x, y: x[:, None] + y[None], ((3, 2), (4, 2)), ((1, 2), (5, 2)), ((2, 2), (1, 2)), shapes=({0: "m"}, {0: "n"})),
    # size arithmetic
    "intermediate shapes": grown(lambda x: torch.ones(x.shape[0] * 2, x.shape[1] + 1).sum() + x, ((3, 4),), ((2, 7),), shapes=({0: "m", 1: "n"},)),
    "reshape by a product": grown(lambda x: x.reshape(x.shape[0] * x.shape[1], -1), ((3, 4, 2),), ((2, 7, 2),), shapes=({0: "m", 1: "n"},)),
    "reshape into one more": grown(lambda x, y: x.reshape(-1, y.shape[0] + 1), ((12,), (3,)), ((10,), (4,)), ((6,), (1,)), shapes=({0: "m"}, {0: "n"})),
    "flatten and unflatten": grown(lambda x: x.flatten(0, 1).unflatten(0, x.shape[:2]), ((3, 4, 2),), ((2, 7, 2),), shapes=({0: "m", 1: "n"},)),
    "slice by a quotient": grown(lambda x: x[x.shape[0] // 2 :] + x[: (x.shape[0] + 1) // 2], ((7, 2),), ((4, 2),), ((1, 2),), shapes=({0: "n"},)),
    "slices of slices": grown(sliced_twice, ((2, 9), (2, 6)), ((1, 5), (1, 3)), shapes=({0: "b", 1: "m"}, {0: "b", 1: "n"})),
    "negative slices": batch(lambda x: x[-2:, :-1] * 2, 3),
    "a slice with steps": batch(lambda x: x[::2] * 2, 3),
    "a slice beyond the end": batch(lambda x: x[:100, 1:100] * 2, 3),
    "numel": batch(lambda x: x * x.numel(), 3),
    "strides": batch(lambda x: x * x.t().stride(1), 3),
    "symbolic functions": batch(sym_math, 3),
    "a root": batch(lambda x: x / math.sqrt(x.shape[0]), 3),
    "floor of a clean quotient": grown(lambda x: x.view(-1, x.shape[0] // 3 * 3 // (x.shape[0] // 3)), ((9,),), ((3,),), ((15,),), shapes=({0: "n"},)),
    "bits": batch(lambda x: x * (x.shape[0] & 3) + (x.shape[0] | 8), 3),
    "a modulus": batch(lambda x: x * (x.shape[0] % 3), 3),
    "a power": batch(lambda x: x * x.shape[0] ** 2, 3),
    "a size as scalar": batch(lambda x: torch.add(x, x, alpha=x.shape[0]), 3),
    "a comparison as number": batch(lambda x: x * (x.shape[0] > 2), 3),
    "sym_ite": batch(lambda x: x * torch.sym_ite(x.shape[0] > 3, 2, 5), 3),
    "sym_not, sym_and": batch(lambda x: x * 2 if torch.sym_not(x.shape[0] > 3) else x * 3, 3),
    "sizes as an output": batch(lambda x: (x * 2, torch.tensor(x.shape[0])), 3),
    "factories": batch(lambda x: torch.zeros(x.shape[0], 2) + torch.full((x.shape[0], 1), 3.0) + torch.arange(x.shape[0])[:, None], 3),
    "new tensors": batch(lambda x: x.new_zeros(x.shape[0], 2) + x.new_full((x.shape[0], 1), 2.0) + x.new_ones(x.shape)[:, :1], 3),
    "empty_like": batch(lambda x: torch.empty_like(x).fill_(x.shape[0]), 3),
    "linspace": batch(lambda x: torch.linspace(0, x.shape[0], 5) + x.sum(), 3),
    "arange of a step": batch(lambda x: torch.arange(0, x.shape[0] * 3, x.shape[0]) + x.sum(), 3),
    "a size of a float": batch(lambda x: x[: int(x.shape[0] * 0.75)] * 2, 3),
    "interpolated": grown(lambda x: F.interpolate(x, scale_factor=1.5), ((1, 2, 4, 6),), ((1, 2, 5, 3),), shapes=({2: "h", 3: "w"},)),
    "interpolated to sizes": grown(lambda x, y: F.interpolate(x, size=y.shape[-2:], mode="bilinear"), ((1, 2, 4, 6), (1, 2, 7, 5)), ((1, 2, 5, 3), (1, 2, 2, 9)), shapes=({2: "h", 3: "w"}, {2: "p", 3: "q"})),
    "adaptive pooling": grown(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ((1, 2, 4, 6),), ((1, 2, 5, 3),), ((1, 2, 9, 7),), shapes=({2: "h", 3: "w"},)),
    "padding by a size": batch(lambda x: F.pad(x, (0, 0, x.shape[0], 1)), 3),
    "padding to a multiple": batch(lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 3), 3),
    "unfolded": grown(lambda x: x.unfold(1, 3, 2).sum(-1), ((2, 9),), ((1, 3),), ((3, 6),), shapes=({0: "b", 1: "n"},)),
    "windows": grown(lambda x: x.view(x.shape[0], x.shape[1] // 4, 4).transpose(1, 2).reshape(x.shape), ((2, 8),), ((1, 4),), ((3, 20),), shapes=({0: "b", 1: "n"},)),
    "repeat and tile": batch(lambda x: x.repeat(x.shape[0], 2).sum(0) + x.tile(2, 2).sum(0), 3),
    "repeat_interleave": batch(lambda x: x.repeat_interleave(2, 0), 3),
    "expanded": batch(lambda x: x[:1].expand(x.shape[0], -1) + x, 3),
    "split by sizes": batch(lambda x: torch.cat(x.split([1, x.shape[0] - 1])[::-1]), 3),
    "tensor_split": batch(lambda x: [part * 2 for part in x.tensor_split((1, 3))], 3),
    "stack and cat": batch(lambda x: torch.cat([torch.stack([x, x]).flatten(0, 1), x[:1]]), 3),
    "permuted": grown(lambda x: x.permute(2, 0, 1).contiguous().view(-1, x.shape[1]), ((2, 3, 4),), ((1, 5, 4),), shapes=({0: "b", 1: "n"},)),
    "roll and flip": batch(lambda x: x.roll(1, 0) + x.flip(0), 3),
    "diagonal": grown(lambda x: x.diagonal() * x.trace(), ((4, 4),), ((2, 2),), shapes=({0: "n", 1: "n"},)),
    "matrix products": grown(lambda x, y: torch.baddbmm(x, y, y.transpose(1, 2)), ((2, 3, 3), (2, 3, 4)), ((1, 5, 5), (1, 5, 4)), shapes=({0: "b", 1: "n", 2: "n"}, {0: "b", 1: "n"})),
    "einsum": grown(einsum, ((2, 3, 4), (2, 5, 4)), ((1, 6, 4), (1, 2, 4)), shapes=({0: "b", 1: "s"}, {0: "b", 1: "t"})),
    "topk of a size": batch(lambda x: x.topk((x.shape[0] + 1) // 2, 0).values, 3),
    "sorted": batch(lambda x: x.sort(0, descending=True).values, 3),
    "scattered": batch(lambda x: torch.zeros(x.shape[0], 3).scatter(0, torch.arange(x.shape[0])[:, None].expand(-1, 3).flip(0), x), 3),
    "index_put": batch(in_place, 3),
    "embedded": Case(lambda x, w: F.embedding(x, w), (ints(2, 3), t(5, 4)), ({0: "b", 1: "s"}, {0: "v"}), [(ints(1, 7), t(9, 4))]),
    "a loss": Case(lambda x, y: F.cross_entropy(x, y), (t(4, 5), ints(4)), ({0: "b"}, {0: "b"}), [(t(2, 5), ints(2)), (t(7, 5), ints(7))]),
    "normalised by sizes": grown(lambda x: F.layer_norm(x, x.shape[1:]), ((2, 3, 4),), ((3, 5, 4),), shapes=({0: "b", 1: "n"},)),
    "complex numbers": batch(lambda x: torch.view_as_real(torch.complex(x, x * 2) * 1j), 3),
    "a Fourier transform": grown(lambda x: torch.fft.rfft(x, dim=0).abs(), ((8, 3),), ((5, 3),), shapes=({0: "n"},)),
    # models
    "attention": grown(Attention, ((2, 5, 8),), ((1, 3, 8),), ((3, 9, 8),), shapes=({0: "b", 1: "s"},)),
    "an encoder": grown(Encoder, ((2, 5, 8),), ((1, 3, 8),), ((3, 9, 8),), shapes=({0: "b", 1: "s"},)),
    "attention over heads": grown(attend, ((2, 5, 8),), ((1, 3, 8),), ((3, 1, 8),), shapes=({0: "b", 1: "s"},)),
    "grouped attention": grown(grouped_attention, ((2, 5, 8),), ((1, 3, 8),), shapes=({0: "b", 1: "s"},)),
    "rotary positions": grown(rotary, ((2, 5, 4),), ((1, 3, 4),), ((3, 1, 4),), shapes=({0: "b", 1: "s"},)),
    "a causal mask": grown(causal_mask, ((2, 5, 4),), ((1, 3, 4),), ((3, 1, 4),), shapes=({0: "b", 1: "s"},)),
    "a recurrent layer": grown(Recurrent, ((2, 5, 4),), ((1, 3, 4),), ((3, 1, 4),), shapes=({0: "b", 1: "s"},)),
    "a buffer written": batch(Counter, 3),
    "a cache": Case(Cache, (t(2, 3, 4), torch.tensor(2)), ({1: "s"}, None), [(t(2, 5, 4), torch.tensor(4)), (t(2, 1, 4), torch.tensor(0))]),
    # control flow
    "a condition by a size": grown(cond_by_size, ((3, 2),), ((5, 2),), ((4, 2),), shapes=({0: "n"},)),
    "a condition by data": grown(cond_by_data, ((3, 2),), ((5, 2),), shapes=({0: "n"},)),
    "nested conditions": grown(cond_nested, ((3, 2),), ((5, 2),), ((1, 2),), shapes=({0: "n"},)),
    "a loop": grown(while_loop, ((3, 2),), ((5, 2),), shapes=({0: "n"},)),
    "a map": grown(mapped, ((3, 2), (2,)), ((5, 2), (2,)), shapes=({0: "n"}, None)),
    "a branch by a size": grown(branch_on_size, ((5, 2),), ((3, 2),), ((1, 2),), shapes=({0: "n"},)),
    "a branch by two sizes": grown(branch_on_two, ((3, 2), (4, 2)), ((5, 2), (3, 2)), ((1, 2), (2, 2)), shapes=({0: "m"}, {0: "n"})),
    "an unrolled loop": batch(unrolled, 3),
    "a check": grown(checked, ((6, 2),), ((4, 2),), ((20, 2),), shapes=({0: "n"},)),
    "an assertion": grown(asserted, ((6, 2),), ((4, 2),), ((20, 2),), shapes=({0: "n"},)),
    "a transform": batch(with_vmap, 3),
    # sizes that the data tells
    "an item": Case(item_as_size, (t(6, 2), torch.tensor(3)), ({0: "n"}, None), [(t(4, 2), torch.tensor(4)), (t(9, 2), torch.tensor(0))]),
    "items": Case(items_as_sizes, (torch.tensor([2, 3]),), (None,), [(torch.tensor([4, 1]),)]),
    "an item in a view": Case(item_in_view, (t(6, 2), torch.tensor(3)), ({0: "n"}, None), [(t(8, 2), torch.tensor(2))]),
    "an item in a padding": Case(padded_by_item, (t(6, 2), torch.tensor(3)), ({0: "n"}, None), [(t(8, 2), torch.tensor(0))]),
    "an item in a factory": Case(filled_by_item, (torch.tensor(3),), (None,), [(torch.tensor(5),)]),
    "an item in an expansion": Case(expanded_by_item, (t(6, 2), torch.tensor(3)), ({0: "n"}, None), [(t(8, 2), torch.tensor(1))]),
    "a mask": grown(masked, ((3, 4),), ((5, 4),), shapes=({0: "n"},)),
    "a mask and a layer": grown(masked_and_linear, ((4, 4),), ((7, 4),), shapes=({0: "n"},)),
    "nonzero": grown(nonzero_rows, ((3, 4),), ((5, 4),), shapes=({0: "n"},)),
    "masked_select": grown(lambda x: x.masked_select(x > 0).sum() + x, ((3, 4),), ((5, 4),), shapes=({0: "n"},)),
    "the k-th of a mask": grown(kth, ((12,),), ((30,),), shapes=({0: "n"},)),
    "counts": Case(lambda x: x.bincount() * 2, (ints(9),), ({0: "n"},), [(ints(3),), (ints(30, below=9),)]),
    "unique": Case(lambda x: x.unique() * x.shape[0], (ints(9),), ({0: "n"},), [(ints(3),), (ints(30, below=9),)]),
    "repeats by data": Case(lambda x, n: x.repeat_interleave(n, 0), (t(3, 2), torch.tensor([1, 0, 2])), ({0: "n"}, {0: "n"}), [(t(2, 2), torch.tensor([3, 1]))]),
    "one_hot by data": Case(lambda x: F.one_hot(x) * 2, (ints(4),), ({0: "n"},), [(ints(9, below=7),)]),
    "where": grown(lambda x: torch.where(x > 0)[0] + x.shape[0], ((3, 4),), ((5, 4),), shapes=({0: "n"},)),
}  # fmt: skip
