"""Decisions by a size of which one branch serves both sizes are one program, and many of them no more paths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.base.dims import Dim
from fx2onnx.base.relations import Relation
from fx2onnx.base.size_sets import where_true
from fx2onnx.capture.recording.served import Within
from tests.support import check

B, N = Dim.symbol("b"), Dim.symbol("n")


class Encoder(nn.Module):
    """Pads to a multiple of the stride where it is none."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(channels, 3, 2 * stride, stride, padding=stride // 2)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        if length % self.stride != 0:
            x = F.pad(x, (0, self.stride - (length % self.stride)))
        return F.gelu(self.conv(x))


class Codec(nn.Module):
    """As HDemucs: an encoder that pads in each layer, a decoder that cuts what was padded."""

    def __init__(self, layers: int, stride: int) -> None:
        super().__init__()
        channels = [2] + [3] * layers
        self.encoders = nn.ModuleList(Encoder(one, stride) for one in channels[:-1])
        self.decoders = nn.ModuleList(nn.ConvTranspose1d(3, one, 2 * stride, stride) for one in reversed(channels[:-1]))
        self.cut = stride // 2

    def forward(self, x: Tensor) -> Tensor:
        saved, lengths = [], []
        for encoder in self.encoders:
            lengths.append(x.shape[-1])
            x = encoder(x)
            saved.append(x)
        x = torch.zeros_like(x)
        for decoder in self.decoders:
            x = decoder(x + saved.pop())[..., self.cut : self.cut + lengths.pop()]
        return x


@pytest.mark.parametrize(("layers", "stride", "sample"), [(1, 4, 16), (2, 4, 77), (3, 2, 64), (5, 2, 96), (5, 2, 77)])
def test_layers_that_pad_to_multiples_are_one_program(layers: int, stride: int, sample: int) -> None:
    torch.manual_seed(0)
    others = [(torch.randn(2, 2, size),) for size in (64, 65, 66, 67, 68, 72, 80, 95, 96, 97, 128, 333)]
    module = Codec(layers, stride).eval()
    result = check(module, (torch.randn(1, 2, sample),), others=others, dynamic_shapes=({0: "b", 2: "n"},))
    assert "If" not in [node.op_type for node in result.model.graph]


def odd_then(x: Tensor, done: Callable[[Tensor], Tensor], factors: tuple[int, ...] = (2, 3, 5)) -> Tensor:
    for factor in factors:
        if x.shape[0] % factor != 0:
            x = done(F.pad(x, (0, 0, 0, factor - x.shape[0] % factor)))
    return x


def remembered(x: Tensor) -> Tensor:
    """What was padded is multiplied later: no padding by nothing does that."""
    padded = x.shape[0] % 2 != 0
    if padded:
        x = F.pad(x, (0, 0, 0, 1))
    if x.shape[0] % 3 != 0:
        x = F.pad(x, (0, 0, 0, 3 - x.shape[0] % 3))
    return x * 2 if padded else x


def filled(x: Tensor) -> Tensor:
    rest = x.shape[0] % 4
    return torch.cat([x, x.new_ones(4 - rest, 3)]) if rest else x


def padded_by_the_rest(x: Tensor) -> Tensor:
    for factor in (2, 3, 5):
        more = -x.shape[0] % factor
        if more > 0:
            x = F.pad(x, (0, 0, 0, more))
    return x


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "padded": (lambda x: odd_then(x, lambda y: y), False),
    "padded the other way round": (lambda x: odd_then(x, lambda y: y, (7, 5, 3, 2, 4)), False),
    "padded by the rest": (padded_by_the_rest, False),
    "padded and doubled": (lambda x: odd_then(x, lambda y: y * 2), True),
    "remembered": (remembered, True),
    "with ones": (filled, True),
    "cut to a multiple": (lambda x: x[: x.shape[0] - x.shape[0] % 4] if x.shape[0] % 4 != 0 else x, False),
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("sample", [30, 31])
def test_at_every_size_it_is_what_the_branch_gives(name: str, sample: int) -> None:
    program, has_if = PROGRAMS[name]
    others = [(torch.randn(size, 3),) for size in range(4, 40)]
    result = check(program, (torch.randn(sample, 3),), others=others, dynamic_shapes=({0: "n"},))
    assert ("If" in [node.op_type for node in result.model.graph]) == has_if


def test_expressions_are_one_where_they_are_equal_at_every_size_of_a_set() -> None:
    multiples = where_true(Relation("eq", (N % 4, 0)))
    assert multiples is not None
    within = Within("n", multiples)
    assert within.written((-N) % 4) == 0
    first = within.written(N)
    assert [within.written(4 * (N // 4)), within.written(N + (-N) % 4)] == [first, first]
    assert within.written(2 * (N // 8)) != within.written(N // 4)
    assert within.written(B * N) == within.written(B * 4 * (N // 4))
    assert within.written(B * N) != within.written(B * N + B * (N % 8))
    least = where_true(Relation("ge", (N, 5)))
    assert least is not None
    far = Within("n", least)
    late = far.written((N // 1000) * 1000)
    assert far.written(0 * N + 0) != late  # 0 at each of the first sizes that are tried, and not at all


def test_what_was_supposed_on_the_way_does_not_answer_what_is_asked_of_size_one() -> None:
    """1 is no size at which anything is padded."""

    def program(x: Tensor) -> Tensor:
        size = x.shape[0]
        for factor in (2, 3, 5):
            rest = (x.shape[0] - 1) % factor
            if rest != 0:
                x = F.pad(x, (0, 0, 0, factor - rest))
        return x.exp() if size == 1 else x * 2

    others = [(torch.randn(size, 3),) for size in (1, 2, 3, 4, 5, 6, 7, 30, 31, 61)]
    check(program, (torch.randn(9, 3),), others=others, dynamic_shapes=({0: "n"},))
