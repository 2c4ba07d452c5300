"""What a program needs of its dynamic sizes: solved, as loose as it is, and no size pinned that others may take."""

from __future__ import annotations

import operator
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.assumptions import Condition, Guard
from tests.support import check


def conditions_of(result: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for assumed in result.report.assumptions:
        if isinstance(assumed, Condition):
            found.setdefault(assumed.name, set()).add(assumed.expression)
    return found


def test_strides_need_nothing_of_sizes() -> None:
    """A sum of truths is one of integers, which torch makes after it has sorted the axes by their strides."""
    result = check(lambda x: (x[:, 1:] > 0).sum(1), (torch.randn(2, 9),), others=[(torch.randn(3, 2),)],
                   dynamic_shapes=({0: "a", 1: "b"},))  # fmt: skip
    assert result.report.assumptions == []


@pytest.mark.parametrize("batch", [2, 3, 4, 8])
def test_a_view_that_mixes_axes_needs_nothing_of_them(batch: int) -> None:
    """torch compares axis by axis: a batch that fits the new axes there was a condition."""
    others = [(torch.randn(rows, 2, 8),) for rows in (1, 5, 6)]
    for reshape in (lambda x: x.reshape(4, len(x), 4), lambda x: x.view(2, len(x), 8) + x.view(2, len(x), 8).flip(0)):
        result = check(reshape, (torch.randn(batch, 2, 8),), others=others, dynamic_shapes=({0: "batch"},))
        assert result.report.assumptions == []


class UNet(torch.nn.Module):
    def __init__(self, depth: int, how: str, channels: int = 4) -> None:
        super().__init__()
        self.how, c = how, channels
        self.first = torch.nn.Conv2d(3, c, 3, padding=1)
        self.down = torch.nn.ModuleList(torch.nn.Conv2d(c, c, 3, stride=2, padding=1) for _ in range(depth))
        self.up = torch.nn.ModuleList(torch.nn.ConvTranspose2d(c, c, 2, stride=2) for _ in range(depth))
        self.mix = torch.nn.ModuleList(torch.nn.Conv2d(2 * c, c, 1) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(x), []
        for down in self.down:
            kept.append(x)
            x = F.max_pool2d(x, 2) if self.how == "pool" else down(x)
        for up, mix in zip(self.up, self.mix, strict=True):
            x = up(x) if self.how == "transposed" else F.interpolate(x, scale_factor=2)
            x = mix(torch.cat([kept.pop(), x], 1))
        return x


def images(*sizes: tuple[int, int, int]) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(batch, 3, height, width),) for batch, height, width in sizes]


@pytest.mark.parametrize("how", ["interpolated", "transposed", "pool"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_unet_takes_every_size_that_it_can_halve(how: str, depth: int) -> None:
    step = 2**depth
    sample, *others = images(
        (2, 4 * step, 8 * step), (1, step, step), (3, 2 * step, 5 * step), (1, 9 * step, 3 * step), (2, 16, 24)
    )
    names = {0: "batch", 2: "height", 3: "width"}
    result = check(UNet(depth, how).eval(), sample, others=others, dynamic_shapes=(names,))
    assert [str(dim) for dim in result.model.graph.outputs[0].shape] == ["batch", "4", "height", "width"]
    assert conditions_of(result) == {name: {f"{name} % {step} == 0"} for name in ("height", "width")}
    assert all(found.where.excerpt() for found in result.report.assumptions)


@pytest.mark.long
def test_a_file_says_what_it_needs_and_who_runs_it_obeys(tmp_path: Path) -> None:
    ((image,),) = images((2, 32, 64))
    names = {0: "batch", 2: "height", 3: "width"}
    path = str(tmp_path / "unet.onnx")
    module = UNet(3, "pool").eval()
    fx2onnx.export(module, (image,), path, dynamic_shapes=(names,), verify=True)
    session = InferenceSession(path)
    session.run(None, {"x": np.zeros((1, 3, 8, 8), np.float32)})
    with pytest.raises(fx2onnx.UserError, match=r"E401.*height % 8 == 0") as caught:
        session.run(None, {"x": np.zeros((1, 3, 30, 8), np.float32)})
    assert "height is 30 (dim 2 of 'x')" in str(caught.value)
    assert "test_conditions.py" in str(caught.value)


class Windows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, channels, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1)
        return x.reshape(-1, 16, channels).softmax(-1)


def test_windows_need_multiples_of_their_size() -> None:
    sample, *others = images((2, 16, 24), (1, 4, 8), (3, 12, 4))
    result = check(Windows(), sample, others=others, dynamic_shapes=({0: "batch", 2: "height", 3: "width"},))
    assert conditions_of(result) == {"height": {"height % 4 == 0"}, "width": {"width % 4 == 0"}}
    assert [str(dim) for dim in result.model.graph.outputs[0].shape][1:] == ["16", "3"]


def test_a_number_that_several_sizes_give() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * operator.index(x.shape[0] // 4)

    sample, *others = [(torch.randn(size, 2),) for size in (9, 8, 10, 11)]
    result = check(program, sample, others=others, dynamic_shapes=({0: "n"},))
    assert conditions_of(result) == {"n": {"n >= 8 and n <= 11"}}


def test_half_of_a_size_is_a_whole_quotient() -> None:
    sample, *others = [(torch.randn(size, 2),) for size in (9, 8, 1, 30)]
    result = check(lambda x: x[: int(x.shape[0] * 0.5)] + 1, sample, others=others, dynamic_shapes=({0: "n"},))
    assert not result.report.assumptions


def test_a_declared_range_settles_a_decision() -> None:
    def decides(x: torch.Tensor) -> torch.Tensor:
        return x[:5] if x.shape[0] > 5 else x * 2

    at_least = torch.export.Dim("n", min=6)
    samples = [(torch.randn(size, 2),) for size in (8, 6, 30)]
    result = check(decides, samples[0], others=samples[1:], dynamic_shapes=({0: at_least},))
    assert [str(found) for found in result.report.assumptions] == ["n >= 6"]
    with pytest.raises(fx2onnx.UserError, match=r"E105.*n is 4 in the example inputs, which its declaration excludes"):
        fx2onnx.export(decides, (torch.randn(4, 2),), dynamic_shapes=({0: at_least},))


class Decides(torch.nn.Module):
    """Ways to decide by a size of ``x``, [n, 2]."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if self.how == "cut":
            return x[:5] if n > 5 else x * 2
        if self.how == "pads":
            if n % 4:
                x = F.pad(x, (0, 0, 0, 4 - n % 4))
            return x.view(-1, 4, 2).flip(1).reshape(-1, 2)
        if self.how == "returns early":
            if n == 2:
                return x * 3
            if n > 10:
                return x.flip(0)
            return x - 1 if n > 3 else x
        if self.how == "asks again":
            for _ in range(3):
                x = x * 2 if n > 4 else x + 1
            return x if n <= 4 else -x
        if self.how == "in a loop":
            for _ in range(2):
                if n > 4:
                    x, n = x[: n // 2] + 1, n // 2
            return x
        if self.how == "counts":
            for _ in range(20):
                x = x + 1
                if x.numel() * 1.5 > pow(2, 31):
                    x = x.contiguous()
            return x
        assert self.how == "alike"
        return x.relu() if n > 5 else torch.relu(x)


@pytest.mark.parametrize("how", ["cut", "pads", "returns early", "asks again", "in a loop", "counts", "alike"])
@pytest.mark.parametrize("at", [2, 5, 8])
def test_both_branches_of_a_decision_by_a_size(how: str, at: int) -> None:
    torch.manual_seed(0)
    sample, *others = [(torch.randn(size, 2),) for size in (at, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 16, 40)]
    result = check(Decides(how), sample, others=others, dynamic_shapes=({0: "n"},))
    branches = sum(node.op_type == "If" for node in result.model.graph.all_nodes())
    assert branches == {"alike": 0, "counts": 0, "returns early": 3}.get(how, branches)
    assert branches < 4


@pytest.mark.parametrize("lengths", [(3, 6), (6, 3), (4, 4)])
def test_a_decision_by_two_sizes(lengths: tuple[int, int]) -> None:
    def longer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[0] < b.shape[0]:
            a, b = b, a
        return a.sum(0) * 2 + b.sum(0)

    torch.manual_seed(0)
    pairs = [
        (torch.randn(one, 2), torch.randn(two, 2)) for one, two in (lengths, (1, 5), (5, 1), (3, 3), (2, 9), (9, 2))
    ]
    check(longer, pairs[0], others=pairs[1:], dynamic_shapes=({0: "m"}, {0: "n"}))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_longest_of_several_sequences(side: str, batch_first: bool) -> None:
    def padded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        sequences = [a, b, a[1:]]
        return torch.nn.utils.rnn.pad_sequence(sequences, batch_first, padding_value=2.0, padding_side=side)

    torch.manual_seed(0)
    pairs = [(torch.randn(m, 2), torch.randn(n, 2)) for m, n in ((5, 3), (3, 6), (6, 3), (1, 1), (4, 4))]
    result = check(padded, pairs[0], others=pairs[1:], dynamic_shapes=({0: "m"}, {0: "n"}))
    assert not result.report.assumptions


def test_what_is_raised_for_some_sizes_is_a_condition() -> None:
    def limited(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 50:
            raise ValueError("too long")
        assert x.shape[0] != 7
        return x + 1

    samples = [(torch.randn(size, 2),) for size in (4, 50, 1)]
    result = check(limited, samples[0], others=samples[1:], dynamic_shapes=({0: "n"},))
    assert conditions_of(result) == {"n": {"n <= 50", "n != 7"}}


def test_branches_that_cannot_be_joined_name_the_range_to_declare() -> None:
    def ranks(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] > 5 else x.sum(1)

    x = torch.randn(8, 2)
    with pytest.raises(fx2onnx.UserError, match=r"E105.*Python branches on the dynamic size n") as caught:
        fx2onnx.export(ranks, (x,), dynamic_shapes=({0: "n"},))
    assert caught.value.where is not None
    assert 'Dim("n", min=6)' in str(caught.value)
    proposed = fx2onnx.export(ranks, (x,), dynamic_shapes="auto")
    assert "x_dim_0 > 5" in str(proposed.report.assumptions[0])
    check(ranks, (x,), others=[(torch.randn(6, 2),)], dynamic_shapes=({0: torch.export.Dim("n", min=6)},))


def drawn(seed: int) -> tuple[Any, list[int]]:
    """A program of some steps of size arithmetic on [1, 2, n], and the sizes, two at least, at which eager PyTorch runs it."""
    draw = random.Random(seed)
    while True:
        program = _drawn(draw)
        fitting = [size for size in range(1, 65) if runs(program, size) is not None]
        if len(fitting) > 1:
            return program, fitting


def _drawn(draw: random.Random) -> Any:
    steps: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["conv", "pool", "pad", "slice", "window", "up", "keep", "join", "pair", "odd"])
        steps.append((kind, draw.randint(1, 4), draw.randint(1, 3), draw.randint(0, 2)))
    steps.append(("join", 1, 1, 0))

    def program(x: torch.Tensor) -> torch.Tensor:
        kept = [x]
        for kind, a, b, c in steps:
            size = x.shape[-1]
            if kind == "conv":
                x = F.conv1d(x, torch.ones(2, 2, a) / 4, stride=b, padding=c)
            elif kind == "pool":
                x = F.max_pool1d(x, a, stride=b, ceil_mode=c == 1)
            elif kind == "pad":
                x = F.pad(x, (a, b))
            elif kind == "slice":
                x = x[..., c::b]
            elif kind == "window":
                x = x.view(1, 2, size // (a + 1), a + 1).flip(-1).reshape(1, 2, -1)
            elif kind == "up":
                x = F.interpolate(x, scale_factor=b + 1)
            elif kind == "keep":
                kept.append(x)
            elif kind == "join" and len(kept) > 1:
                x = torch.cat([x, kept.pop()], 1)[:, :2]
            elif kind == "pair":
                x = torch.stack([x[..., : size // 2], x[..., (size + 1) // 2 :]]).sum(0)
            elif kind == "odd":
                x = x[..., : size // a * a]
        return x * 2

    return program


def runs(program: Any, size: int) -> torch.Tensor | None:
    try:
        result: torch.Tensor = program(torch.linspace(-1, 1, 2 * size).reshape(1, 2, size))
    except (RuntimeError, ZeroDivisionError, ValueError):
        return None
    return result if result.numel() else None


def allowed(result: Any, size: int) -> bool:
    """Return whether the conditions in the file take ``n == size``."""
    properties = result.model.metadata_props
    found = size_conditions.read(properties.get(size_conditions.METADATA_KEY, "[]"))
    return all(condition.holds({"n": size}) for condition in found)


def unchecked(result: Any) -> InferenceSession:
    """A session that takes sizes against the conditions, too."""
    proto = result.model_proto
    del proto.metadata_props[:]
    return InferenceSession(proto.SerializeToString())


@pytest.mark.long_cases(but=[*map(str, range(40))])
@pytest.mark.parametrize("seed", range(120))
def test_conditions_are_right_and_loose_at_every_size_up_to_64(seed: int) -> None:
    program, fitting = drawn(seed)
    sample = fitting[len(fitting) * 2 // 3]
    x = torch.linspace(-1, 1, 2 * sample).reshape(1, 2, sample)
    result = fx2onnx.export(program, (x,), dynamic_shapes=({2: "n"},))
    assert not [found for found in result.report.assumptions if isinstance(found, Guard) and found.by_user]
    session = unchecked(result)
    for size in fitting:
        want = runs(program, size)
        assert want is not None
        try:
            (got,) = session.run(None, {"x": torch.linspace(-1, 1, 2 * size).reshape(1, 2, size).numpy()})
            right = got.shape == tuple(want.shape) and bool(np.allclose(got, want.numpy(), atol=1e-5))
        except Exception:  # what the runner raises at a size that the program is not for
            right = False
        assert right == allowed(result, size), (size, sample, [str(found) for found in result.report.assumptions])


@pytest.mark.parametrize("size", [8, 9, 12])
def test_writes_with_a_step_that_depends_on_sizes(size: int) -> None:
    def stepped(x: torch.Tensor) -> torch.Tensor:
        x, n = x * 1, x.shape[0]
        x[n // 2 - 1 : n : n // 2] *= 3
        x[:, 1::2] = 0.5
        return x

    torch.manual_seed(0)
    shapes = ((4, 9), (9, 4), (16, 5), (3, 3))
    others = [(torch.randn(*shape),) for shape in shapes]
    check(stepped, (torch.randn(size, 7),), others=others, dynamic_shapes=({0: "n", 1: "m"},))


def test_a_decision_far_from_the_samples_sizes() -> None:
    """Kernels decide in that branch as for sizes that come there: ``m`` is no 3 where there are more than 50,000 elements."""

    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] * x.shape[1] > 50_000:
            return x.reshape(-1)[:7] * 2
        return x.sum(1)[:3]

    others = [(torch.randn(*sizes),) for sizes in ((300, 200), (200, 300), (3, 5), (250, 200), (60_000, 1))]
    check(program, (torch.randn(4, 3),), others=others, dynamic_shapes=({0: "n", 1: "m"},), rtol=1e-4)


def test_what_one_branch_needs_is_no_condition_on_the_other() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 10:
            return x.view(-1, 4, 2).sum(1)
        return x * 2

    samples = [(torch.randn(size, 2),) for size in (12, 16, 3, 5, 10)]
    result = check(program, samples[0], others=samples[1:], dynamic_shapes=({0: "n"},))
    (found,) = [found for found in result.report.assumptions if isinstance(found, Condition)]
    assert [size in found.sizes for size in (9, 10, 11, 12, 13, 16)] == [True, True, False, True, False, True]
    assert [found.relation.holds({"n": size}) for size in range(40)] == [size in found.sizes for size in range(40)]


RUNS: list[tuple[bool, bool]] = []
"""A variable of the file: what the program's own closure holds is put back after a capture."""


def test_each_path_is_run_once_the_samples_first() -> None:
    def program(x: torch.Tensor, captures: bool = False) -> torch.Tensor:
        is_odd, is_long = bool(x.shape[0] % 2 == 1), bool(x.shape[1] > 6)
        if captures:
            RUNS.append((is_odd, is_long))
        return (x.exp() if is_odd else x.tanh()) * (2 if is_long else 3)

    fx2onnx.export(program, (torch.randn(4, 5), True), dynamic_shapes=({0: "n", 1: "m"}, None))
    assert RUNS[0] == (False, False)
    assert sorted(RUNS) == [(False, False), (False, True), (True, False), (True, True)]
    others = [(torch.randn(*sizes),) for sizes in ((3, 9), (4, 9), (5, 2), (2, 2))]
    check(program, (torch.randn(4, 5),), others=others, dynamic_shapes=({0: "n", 1: "m"},))


class PaddedAsEncodec(torch.nn.Module):
    """A convolution whose padding is counted in tensors: ``ceil((n - kernel) / stride + 1)`` frames."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 3, kernel, stride)
        self.register_buffer("kernel", torch.tensor(kernel))
        self.register_buffer("stride", torch.tensor(stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.kernel - self.stride
        frames = torch.ceil((x.shape[-1] - self.kernel + total) / self.stride + 1).to(torch.int64) - 1
        more = frames * self.stride + self.kernel - total - x.shape[-1]
        left, right = total - total // 2, total // 2 + more
        if x.shape[-1] <= max(left, right):
            x = F.pad(x, (0, max(left, right) - x.shape[-1] + 1))
        return self.conv(F.pad(x, (left, right), mode="reflect"))


@pytest.mark.parametrize(("kernel", "stride"), [(7, 1), (4, 2), (8, 4), (10, 5), (6, 3)])
def test_numbers_of_tensors_that_sizes_decide_are_sizes(kernel: int, stride: int) -> None:
    others = [(torch.randn(1, 2, size),) for size in (3, 16, 17, 18, 19, 41, 100)]
    check(PaddedAsEncodec(kernel, stride), (torch.randn(2, 2, 23),), others=others, dynamic_shapes=({0: "b", 2: "n"},))


def test_a_number_that_several_sizes_round_to_keeps_them_dynamic() -> None:
    def chunked(x: torch.Tensor) -> torch.Tensor:
        parts = int(x.shape[0] * x.shape[1] * x.shape[2] / 100) + 1
        chunks = torch.chunk(x, parts, dim=1)
        return torch.cat([part.cumsum(1) for part in chunks], 1)

    others = [(torch.randn(*sizes),) for sizes in ((3, 9, 7), (1, 20, 9), (2, 14, 6), (11, 12, 1))]
    result = check(chunked, (torch.randn(2, 13, 4),), others=others, dynamic_shapes=({0: "b", 1: "n", 2: "m"},))
    (guard,) = [found for found in result.report.assumptions if isinstance(found, Guard)]
    assert [guard.relation.is_true_at({"b": b, "n": 13, "m": 4}) for b in (1, 2, 3, 4)] == [False, True, True, False]


def test_declared_ranges_settle_what_several_sizes_decide() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] * x.shape[1] > 100:
            return torch.stack(x.unbind(0))  # for a fixed number of rows
        return x * 2

    dims = {0: torch.export.Dim("n", max=10), 1: torch.export.Dim("m", max=9)}
    result = check(program, (torch.randn(4, 3),), others=[(torch.randn(10, 9),)], dynamic_shapes=(dims,))
    assert {found.expression for found in result.report.assumptions} == {"n <= 10", "m <= 9"}


def test_turns_of_a_loop_that_sizes_decide() -> None:
    """One turn whatever the size is; as many as there are parts."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return torch.cat([x[begin : begin + n] * 2 for begin in range(0, n, n)])

    def parts(x: torch.Tensor) -> torch.Tensor:
        assert isinstance(range(3), range)
        return torch.stack([x[begin : begin + 16].sum(0) for begin in range(0, x.shape[0], 16)])

    others = [(torch.randn(size, 2),) for size in (1, 9, 40)]
    result = check(whole, (torch.randn(10, 2),), others=others, dynamic_shapes=({0: "n"},))
    assert not conditions_of(result)
    others = [(torch.randn(size, 2),) for size in (1, 16, 40)]
    result = check(parts, (torch.randn(10, 2),), others=others, dynamic_shapes=({0: "n"},))
    assert not conditions_of(result)


@pytest.mark.parametrize(
    "looped",
    [
        lambda x: x + sum(x * turn for turn in range(1, x.shape[0] // 2)),
        lambda x: x[: len(list(range(x.shape[0] // 4)))] + 1,
        lambda x: torch.cat([part * turn for turn, part in enumerate(x.split(3))]),
    ],
)
def test_a_loop_whose_turns_hang_on_a_named_size_is_one_of_the_file(looped: Any) -> None:
    others = [(torch.randn(size, 2),) for size in (4, 5, 9, 12, 40)]
    check(looped, (torch.randn(10, 2),), others=others, dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize(
    ("looped", "declared"),
    [
        (lambda x: x * len({turn: turn for turn in range(x.shape[0] // 3)}), "min=9, max=11"),
    ],
)
def test_a_loop_whose_turns_hang_on_a_named_size_is_refused(looped: Any, declared: str) -> None:
    """onnxruntime, which knows no conditions, would give the sample's turns at every size."""
    sample = (torch.randn(10, 2),)
    with pytest.raises(fx2onnx.UserError, match="n is used as the fixed number 10") as caught:
        fx2onnx.export(looped, sample, dynamic_shapes=({0: "n"},))
    assert "Python loops there as often as " in caught.value.why
    assert f'Dim("n", {declared})' in str(caught.value)
    low, high = (int(bound.partition("=")[2]) for bound in declared.split(", "))
    dims = {0: torch.export.Dim("n", min=low, max=high)}
    check(looped, sample, others=[(torch.randn(low, 2),), (torch.randn(high, 2),)], dynamic_shapes=(dims,))
    assert fx2onnx.export(looped, sample, dynamic_shapes="auto").report.assumptions


@pytest.mark.long
@pytest.mark.parametrize(
    "until", [lambda x, turn: turn < x.shape[0], lambda x, turn: x.shape[0] // 2**turn > 1], ids=["up", "down"]
)
def test_a_loop_until_a_size_is_one_of_the_file(until: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        turn = 0
        while until(x, turn):
            x, turn = x * 2, turn + 1
        return x

    others = [(torch.randn(size, 2),) for size in (1, 2, 3, 4, 7, 8, 9, 33)]
    check(program, (torch.randn(10, 2),), others=others, dynamic_shapes=({0: "n"},))


def test_ranges_are_proposed_that_settle_a_decision_by_several_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] * x.shape[1] * 4 / 1024 > 2:
            return x * len(str(x.sum().tolist()))  # no file can have this
        return x * 2

    with pytest.raises(fx2onnx.UserError, match=r"E105.*Python branches on the dynamic size m, n") as caught:
        fx2onnx.export(program, (torch.randn(5, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    assert 'Dim("m", min=1, max=12) and Dim("n", min=1, max=20)' in str(caught.value)
    dims = {0: torch.export.Dim("n", min=1, max=20), 1: torch.export.Dim("m", min=1, max=12)}
    check(program, (torch.randn(5, 3),), others=[(torch.randn(20, 12),)], dynamic_shapes=(dims,))


def test_a_branch_that_cannot_be_captured_is_no_reason_to_be_wrong_there() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            return x * len(str(x.sum().tolist()))  # no file can have this
        return x * 2

    with pytest.raises(fx2onnx.UserError, match=r"E105.*Python branches on the dynamic size n") as caught:
        fx2onnx.export(program, (torch.randn(5, 2),), dynamic_shapes=({0: "n"},))
    assert 'Dim("n", max=8)' in str(caught.value)
    dims = {0: torch.export.Dim("n", max=8)}
    check(program, (torch.randn(5, 2),), others=[(torch.randn(8, 2),)], dynamic_shapes=(dims,))


def test_what_torchs_modules_raise_ends_the_run_in_eager_too() -> None:
    norm = torch.nn.InstanceNorm1d(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return norm(x[..., :: 2 if x.shape[-1] > 6 else 8])  # of one value there is no deviation

    others = [(torch.randn(2, 3, size),) for size in (7, 20)]
    result = check(program, (torch.randn(2, 3, 10),), others=others, dynamic_shapes=({2: "n"},))
    assert conditions_of(result) == {"n": {"n >= 7"}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("goes", "why"),
    [
        (lambda n: [n > limit for limit in range(4, 64, 2)], "more than 24 decisions on a path"),
        (lambda n: [n % p < 2 for p in (3, 4, 5, 7, 11, 13, 17)], "more than 64 paths"),
    ],
)
def test_no_more_paths_are_run_than_are_kept(goes: Any, why: str) -> None:
    runs: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        runs.append(len(runs))
        for turn, test in enumerate(goes(x.shape[0])):
            if test:
                x = x + turn
        return x

    with pytest.raises(fx2onnx.UserError, match=why):
        fx2onnx.export(program, (torch.randn(2, 2),), dynamic_shapes=({0: "n"},))
    assert len(runs) <= 65


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_a_small_type_wraps_around(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        number = (torch.tensor(90) * x.shape[0]).to(dtype)
        return x * 2 + torch.ones(abs(int(number.item())) + 1).sum()

    others = [(torch.randn(size, 2),) for size in (1, 2, 3, 4)]
    check(program, (torch.randn(2, 2),), others=others, dynamic_shapes=({0: "n"},))


INDICES: dict[str, Any] = {
    "from the end": lambda x: x[x.shape[0] - 1],
    "negative": lambda x: x[-(x.shape[0] // 2)],
    "in a middle axis": lambda x: x[None, :, x.shape[0] // 3, ..., 1],
    "two": lambda x: x[x.shape[0] // 2, x.shape[0] // 4] * 2,
    "behind an ellipsis": lambda x: x[..., x.shape[0] // 4, :],
    "to a tensor": lambda x: x[: torch.tensor(2) * x.shape[0] // 3],
    "from a tensor": lambda x: x[..., torch.ceil(x.shape[0] / torch.tensor(4)).long() :, :],
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_that_are_sizes(name: str) -> None:
    others = [(torch.randn(size, 9, 3),) for size in (3, 4, 7, 8)]
    check(INDICES[name], (torch.randn(6, 9, 3),), others=others, dynamic_shapes=({0: "n"},))


def test_sizes_that_repeat_later_than_can_be_listed_are_told_apart() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        for turn, period in enumerate((401, 503)):
            if n % period < 2:
                x = x + 10**turn
        return x

    others = [(torch.zeros(size, 1),) for size in (3, 401, 402, 503, 504, 401 * 503, 401 * 503 + 1)]
    check(program, (torch.zeros(2, 1),), others=others, dynamic_shapes=({0: "n"},))


def test_conditions_that_repeat_later_than_can_be_listed_are_all_stated() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 401).sum() + x.reshape(-1, 503).sum()

    result = fx2onnx.export(program, (torch.zeros(2 * 401 * 503),), dynamic_shapes=({0: "n"},))
    assert conditions_of(result) == {"n": {"n % 401 == 0", "n % 503 == 0"}}


@pytest.mark.parametrize("sample", [(56, 84), (56, 28), (28, 28)])
def test_sizes_of_two_dims_are_as_many_as_eager_takes(sample: tuple[int, int]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[0] // 4, x.shape[1] // 4
        if height % 7 or width % 7:
            return x * 2
        windows = x[:height, :width].reshape(height // 7, 7, width // 7, 7)
        return windows.transpose(1, 2).reshape(height, width)

    others = [(torch.randn(size),) for size in ((28, 59), (30, 31), (56, 85), (27, 28), (33, 60), (12, 112))]
    result = check(program, (torch.randn(sample),), others=others, dynamic_shapes=({0: "H", 1: "W"},))
    assert conditions_of(result) == {}


def test_what_torch_asserts_ends_the_run_beside_other_decisions() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.shape[0] % 4 == 0, "a multiple of 4")
        return x * 2 if x.shape[0] // 4 == 3 else x.reshape(-1, 4).flip(0).reshape(-1)

    others = [(torch.randn(size),) for size in (4, 8, 16, 20)]
    result = check(program, (torch.randn(12),), others=others, dynamic_shapes=({0: "n"},))
    assert conditions_of(result) == {"n": {"n % 4 == 0"}}


def test_sizes_around_a_multiple_are_written_by_it() -> None:
    table = torch.randn(4, 8)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool1d(x, 7, 4, 3)
        size = x.shape[-1]
        x = x + table.tile((1, size // 8))
        windows = x.reshape(x.shape[0], 4, size // 8, 8).softmax(2)
        return windows.reshape(x.shape[0], 4, size)[..., ::2].reshape(x.shape[0], -1, size // 8, 4)

    others = [(torch.randn(batch, 4, size),) for batch, size in ((1, 29), (3, 62), (2, 96), (1, 255))]
    dims = ({0: "batch", 2: "n"},)
    result = check(program, (torch.randn(2, 4, 64),), others=others, dynamic_shapes=dims)
    assert conditions_of(result) == {"n": {"n % 32 in (0, 29, 30, 31)"}}


def test_that_there_are_several_is_a_condition_where_one_cannot_be_captured() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        tokens = F.avg_pool2d(x, 4).flatten(2)
        if tokens.shape[2] > 1:
            return tokens.softmax(2)
        return tokens * len(str(tokens.sum().tolist()))  # no file can have this

    dims = ({0: "batch", 2: "H", 3: "W"},)
    result = check(program, (torch.randn(2, 3, 16, 12),), others=[(torch.randn(1, 3, 5, 9),)], dynamic_shapes=dims)
    assert "(H // 4)*(W // 4) > 1" in [each.expression for each in result.report.assumptions]
    session = InferenceSession(result.model_proto.SerializeToString())
    with pytest.raises(fx2onnx.UserError, match=r"E401.*\(H // 4\)\*\(W // 4\) > 1"):
        session.run(None, {"x": np.zeros((1, 3, 4, 7), np.float32)})


@pytest.mark.parametrize(
    "forward",
    [
        torch.cov,
        torch.corrcoef,
        lambda x: torch.cov(x, correction=0, aweights=torch.ones(x.shape[1])),
        lambda x: torch.cov(x[:, :4].long()),
    ],
)
def test_the_covariance_of_one_variable_has_no_rank(forward: Any) -> None:
    args, others = (torch.randn(3, 8),), [(torch.randn(5, 6),)]
    result = check(forward, args, others=others, dynamic_shapes=({0: "n", 1: "m"},))
    assert conditions_of(result) == {"n": {"n != 1"}}


_TABLE = torch.randn(24)
PRODUCTS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "of patches": (lambda x: F.avg_pool2d(x, 8).flatten(1) + _TABLE[:16], ((1, 32, 32),), ({1: "h", 2: "w"},)),
    "of a map": (lambda x: x.flatten() * _TABLE, ((4, 6),), ({0: "h", 1: "w"},)),
    "in torch.where": (lambda x: torch.where(x.flatten() > 0, _TABLE, 0.0), ((4, 6),), ({0: "h", 1: "w"},)),
    "written in place": (lambda x: _TABLE.clone().add_(x.flatten()), ((4, 6),), ({0: "h", 1: "w"},)),
    "of two maps": (lambda x, y: x.flatten() + y.flatten(), ((4, 6), (3, 8)), ({0: "a", 1: "b"}, {0: "c", 1: "d"})),
    "for a layer": (lambda x: F.linear(x.flatten(1), _TABLE.view(1, 24)), ((2, 4, 6),), ({1: "h", 2: "w"},)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_equality_of_several_sizes_stands_in_the_file(name: str) -> None:
    """Also where eager PyTorch broadcasts a product of sizes that is 1: the file declares other sizes there."""
    forward, shapes, dims = PRODUCTS[name]
    result = fx2onnx.export(forward, tuple(map(torch.randn, shapes)), dynamic_shapes=dims, verify=True)
    stated = size_conditions.read(dict(result.model.metadata_props)[size_conditions.METADATA_KEY])
    assert (
        [each.text for each in stated if len(each.names) > 1]
        == [each.expression for each in result.report.assumptions if isinstance(each, Guard)]
        != []
    )
    feeds = {value.name: np.ones([8] * len(value.shape), np.float32) for value in result.model.graph.inputs}
    feeds["y" if "y" in feeds else "x"] = feeds["x"][..., :5]
    with pytest.raises(fx2onnx.UserError, match="E401"):
        InferenceSession(result.model_proto.SerializeToString()).run(None, feeds)
