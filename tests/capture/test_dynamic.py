"""Dynamic sizes: every spelling, related sizes, sizes that Python specializes."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import fx2onnx
from tests.support import check


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        z = self.fc(x).relu()
        return z if y is None else z + y


def shape_of(result: fx2onnx.ExportResult, name: str) -> list[Any]:
    values = {value.name: value for value in [*result.model.graph.inputs, *result.model.graph.outputs]}
    return [dim if isinstance(dim, int) else dim.value for dim in values[name].shape]


@pytest.mark.parametrize(
    "spelling",
    [
        {"dynamic_shapes": {"x": {0: "batch"}}},
        {"dynamic_shapes": {"x": {0: Dim("batch")}}},
        {"dynamic_shapes": {"x": (Dim("batch"), None)}},
        {"dynamic_shapes": ({0: Dim("batch")},)},
        {"dynamic_shapes": [["batch", None]]},
        {"dynamic_axes": {"x": {0: "batch"}}},
        {"dynamic_axes": {"x": {0: "batch"}, "output": {0: "batch"}}},
        {"input_names": ["x"], "dynamic_axes": {"x": {-2: "batch"}}},
    ],
)
def test_spellings(spelling: dict[str, Any]) -> None:
    result = check(Mlp(), (torch.randn(2, 4),), others=[(torch.randn(5, 4),), (torch.randn(1, 4),)], **spelling)
    assert shape_of(result, "x") == ["batch", 4]
    assert shape_of(result, "output") == ["batch", 3]


def test_auto_names() -> None:
    result = check(Mlp(), (torch.randn(2, 4),), others=[(torch.randn(7, 4),)], dynamic_shapes="auto")
    assert shape_of(result, "x") == ["x_dim_0", 4]
    assert any("4" in str(note) for note in result.report.assumptions)


def test_sample_of_size_one() -> None:
    result = check(Mlp(), (torch.randn(1, 4),), others=[(torch.randn(6, 4),)], dynamic_shapes={"x": {0: "n"}})
    assert shape_of(result, "output") == ["n", 3]


@pytest.mark.parametrize(("twice", "once"), [(2 * Dim("s"), Dim("s")), ("2*s", "s")])
def test_derived_dims(twice: Any, once: Any) -> None:
    def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1) + y

    result = check(
        pairs,
        (torch.randn(6), torch.randn(3)),
        others=[(torch.randn(10), torch.randn(5))],
        dynamic_shapes={"x": {0: twice}, "y": {0: once}},
    )
    assert shape_of(result, "x") == ["2*s"]
    assert shape_of(result, "output") == ["s"]


def test_equal_sizes_become_one() -> None:
    result = check(
        lambda x, y: x + y,
        (torch.randn(3), torch.randn(3)),
        others=[(torch.randn(5), torch.randn(5))],
        dynamic_shapes={"x": {0: "a"}, "y": {0: "b"}},
    )
    assert shape_of(result, "x") == shape_of(result, "y")
    assert any("==" in str(note) for note in result.report.assumptions)


PROGRAMS: dict[str, Any] = {
    "arange": lambda x: torch.arange(x.shape[0]) + x[:, 0].long(),
    "causal mask": lambda x: x @ x.t() + torch.triu(torch.full((x.shape[0], x.shape[0]), -1e9), 1),
    "view": lambda x: x.view(x.shape[0], 2, -1).transpose(1, 2),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x[:1].expand(x.shape[0], -1) * 2,
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "double": lambda x: torch.cat([x, x]),
    "zeros": lambda x: torch.zeros(x.shape[0], 2) + x[:, :2],
    "len": lambda x: torch.ones(len(x), 2) * len(x) + x[:, :2],
    "slice to size": lambda x: torch.arange(100)[: x.shape[0]] + x[:, 0],
    "shift": lambda x: x[1:] - x[:-1],
    "half": lambda x: x[: x.shape[0] // 2],
    "mean by size": lambda x: x.sum(0) / x.shape[0],
    "pad": lambda x: torch.nn.functional.pad(x, (0, 0, 1, 2)),
    "softmax": lambda x: x.softmax(0),
    "repeat": lambda x: x.repeat(2, 1),
    "stack": lambda x: torch.stack([x, x + 1]),
    "size in arithmetic": lambda x: x * (x.size(0) * 2 + 1),
    "returned size": lambda x: (x + 1, x.shape[0]),
    "topk of half": lambda x: x.topk(x.shape[0] // 2, dim=0).values,
    "interpolate": lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 6)),
    "interpolate bilinear": lambda x: F.interpolate(x[None, None], size=(x.shape[0] + 1, 6), mode="bilinear"),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "max_pool": lambda x: F.max_pool1d(x.t()[None], 2, stride=1, padding=1),
    "conv": lambda x: F.conv1d(x.t()[None], torch.ones(2, 4, 3), padding=1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None, None], (1, 2)),
    "split in two": lambda x: x.split([2, 2], dim=1)[1] * x.shape[0],
    "roll": lambda x: x.roll(1, 0),
    "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(0),
    "tril": lambda x: (x @ x.t()).tril(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "boolean mask by size": lambda x: x.masked_fill(torch.arange(x.shape[0])[:, None] >= x.shape[0] // 2, 0.0),
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 2)],
    "power of a size": lambda x: x * x.shape[0] ** -0.5 + x.shape[0] ** 2 + float(2) ** (x.shape[0] / 4),
    "root of a size": lambda x: x / math.sqrt(x.shape[0]),
    "sizes as a tensor": lambda x: (torch.tensor([x.shape[0], x.shape[1]]) * torch.as_tensor(x.shape[0]) + x[:, :2].long()),
    "sizes and numbers as a tensor": lambda x: torch.tensor([[x.shape[0], 2.5]], dtype=torch.float64) + x[:, :2],
    "slice from the end": lambda x: x[-5:].sum(1) * x[-5:].shape[0],
    "slice of some": lambda x: torch.zeros(x[1:5].shape[0], 4) + x[1:5],
    "slice of the middle": lambda x: x[3:-3].exp().repeat(x[3:-3].shape[0], 1),
    "slice by steps": lambda x: x[-6:6:2] + torch.arange(x[-6:6:2].shape[0])[:, None],
    "write to a slice": lambda x: (lambda y: (y[-5:].mul_(2), y[1:5].add_(1), y)[2])(x.clone()),
    "limited": lambda x: x[: min(x.shape[0], 5)] * max(x.shape[0], 6),
    "chunk": lambda x: (lambda a, b: (a[: x.shape[0] // 2] - b, a))(*x.chunk(2)),
    "tensor_split": lambda x: [part.exp() * part.shape[0] for part in x.tensor_split(2)],
    "write to a chunk": lambda x: (lambda y: (y.chunk(2)[1].zero_(), y)[1])(x.clone()),
    "split by a size": lambda x: [part * place for place, part in enumerate(torch.cat([x, x + 1]).split(x.shape[0]))],
    "linspace": lambda x: torch.linspace(-1, 1, x.shape[0])[:, None] * x,
    "in place": lambda x: x.clone().index_fill_(1, torch.tensor([0]), 5.0),
    "first of a half": lambda x: x[: x.shape[0] // 2][:1] - x[: x.shape[0] // 2],
    "first of the rest": lambda x: torch.where(x[1:][:1] > 0, x[1:], 0.0),
    "last of a half": lambda x: (x[: x.shape[0] // 2] * x[: x.shape[0] // 2][-1:]).cumsum(0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_at_other_sizes(name: str) -> None:
    torch.manual_seed(0)
    check(
        PROGRAMS[name],
        (torch.randn(4, 4),),
        others=[(torch.randn(7, 4),), (torch.randn(2, 4),)],
        dynamic_shapes=({0: "n"},),
    )


def test_a_slice_asks_nothing_of_its_start() -> None:
    def last_five(x: torch.Tensor) -> torch.Tensor:
        kept = x[torch.sym_max(x.shape[0] - 5, 0) :]  # type: ignore[no-untyped-call]
        return kept * kept.shape[0]

    others = [(torch.randn(n, 4),) for n in (7, 2)]
    result = check(last_five, (torch.randn(4, 4),), others=others, dynamic_shapes=({0: "n"},))
    assert not any("n - 5" in str(line) for line in result.report.assumptions)


SMALLEST = {
    "chunk": 2, "write to a chunk": 2, "split by a size": 1, "root of a size": 1, "power of a size": 1,
    "interpolate bilinear": 1, "view": 1, "interpolate": 1, "max_pool": 1, "conv": 1, "adaptive pool": 1,
    "attention": 1, "first of a half": 2, "first of the rest": 2, "last of a half": 2,
}  # fmt: skip
"""The programs that eager PyTorch itself refuses, or answers without elements, at smaller sizes."""


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_at_sizes_one_and_zero(name: str) -> None:
    torch.manual_seed(0)
    sizes = [size for size in (1, 0) if size >= SMALLEST.get(name, 0)]
    check(
        PROGRAMS[name],
        (torch.randn(4, 4),),
        others=[(torch.randn(size, 4),) for size in sizes],
        dynamic_shapes=({0: "n"},),
    )


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_with_dynamic_time(kind: Any) -> None:
    torch.manual_seed(0)
    result = check(
        kind(4, 3, num_layers=2, bidirectional=True),
        (torch.randn(5, 2, 4),),
        others=[(torch.randn(9, 3, 4),), (torch.randn(1, 1, 4),)],
        dynamic_shapes={"input": {0: "time", 1: "batch"}},
    )
    assert not result.report.assumptions
    assert kind.__name__ in {node.op_type for node in result.model.graph}


class Loop(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[0] * 0
        for row in range(x.shape[0]):
            total = total + x[row]
        return total


class LoopLeftEarly(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[0] * 0
        for row in range(x.shape[0]):
            total = total + x[row]
            if row > 1:
                break
        return total


def test_a_loop_over_a_dynamic_size_that_is_left_early() -> None:
    others = [(torch.rand(size, 4),) for size in (1, 2, 3, 4, 9)]
    check(LoopLeftEarly(), (torch.ones(3, 4),), others=others, dynamic_shapes={"x": {0: "n"}})


class LoopWithOneTensor(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, totals = x[0] * 0, []
        for row in range(x.shape[0]):
            total.add_(x[row])
            totals.append(total)
        return torch.stack(totals)


def test_a_loop_over_a_dynamic_size_is_refused_with_its_line() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(LoopWithOneTensor(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: "n"}})
    error = caught.value
    assert error.code in ("E104", "E105")
    assert error.where is not None
    assert "row" in "\n".join(error.where.excerpt())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * {3: 1.0}.get(x.shape[0], 2.0),
        lambda x: x * functools.lru_cache(lambda size: size + 1)(x.shape[0]),
        lambda x: x * math.factorial(x.shape[0]),
    ],
)
def test_a_size_as_a_key_or_plain_number_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(function, (torch.ones(3, 4),), dynamic_shapes=({0: "n"},))
    assert caught.value.code == "E105"
    assert caught.value.where is not None
    assert caught.value.where.function == "<lambda>"


@functools.lru_cache(maxsize=8)
def _kept(size: Any) -> Any:
    return size + 1


def test_sizes_as_keys_of_a_cache_are_not_compared() -> None:
    """Python's hashes of -1 and -2 are equal, so that factors of these would be compared, once for each pair that is kept."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * _kept(40 - x.shape[0] // 4) + _kept(40 - 2 * (x.shape[0] // 4))

    result = fx2onnx.export(function, (torch.ones(3, 4),), dynamic_shapes=({0: "n"},))
    assert not result.report.assumptions
    check(function, (torch.ones(3, 4),), others=[(torch.ones(9, 4),), (torch.ones(2, 4),)], dynamic_shapes=({0: "n"},))


def test_a_loop_over_a_static_size_is_unrolled() -> None:
    check(Loop(), (torch.randn(3, 4),))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0][:5].repeat(x[x > 0][:5].shape[0]),
        lambda x: x[x > 0][1:].repeat(x[x > 0][1:].shape[0]),
        lambda x: x[x > 0][-3:] * x[x > 0][-3:].shape[0],
    ],
)
def test_slices_of_what_the_data_chooses(function: Any) -> None:
    samples = [(torch.tensor([-1.0, 2.0] * count + [-1.0]),) for count in (6, 2, 1, 0)]
    check(function, samples[0], others=samples[1:], dynamic_shapes=({0: "n"},))


def test_auto_specializes_what_python_needs() -> None:
    result = check(Loop(), (torch.randn(3, 4),), dynamic_shapes="auto")
    assert shape_of(result, "x")[0] == 3
    assert any("x_dim_0 == 3" in str(note) and "test_dynamic.py" in str(note) for note in result.report.assumptions)


BOTH = "both branches of a decision by sizes are in the file"


def test_both_branches_of_a_decision_by_a_size_are_in_the_file() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 2 else x

    others = [(torch.ones(size),) for size in (1, 2, 3, 7)]
    result = check(branch, (torch.ones(4),), others=others, dynamic_shapes={"x": {0: "n"}})
    (found,) = result.report.assumptions
    assert str(found).startswith(BOTH)
    assert "test_dynamic.py" in str(found)


@pytest.mark.long
def test_decisions_by_comparisons_of_comparisons() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if (x.shape[0] > 2) == (x.shape[1] > 4) else x
        return x * 3 if torch.sym_not((x.shape[0] > 2) & (x.shape[1] > 9)) else x

    others = [(torch.ones(*sizes),) for sizes in ((2, 5), (4, 4), (2, 3), (4, 10), (2, 10), (3, 9))]
    result = check(branch, (torch.ones(4, 5),), others=others, dynamic_shapes={"x": {0: "n", 1: "m"}})
    assert {str(found).partition("   ")[0] for found in result.report.assumptions} == {BOTH}


def test_sym_ite_of_numbers_is_a_decision() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sym_ite(x.shape[0] > 3, 2, 3)  # type: ignore[no-untyped-call]

    check(chosen, (torch.ones(5),), others=[(torch.ones(size),) for size in (1, 3, 4)], dynamic_shapes={"x": {0: "n"}})


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"dynamic_shapes": {"z": {0: "n"}}}, "z"),
        ({"dynamic_shapes": {"x": {5: "n"}}}, "axis 5"),
        ({"dynamic_shapes": {"x": {0: 3.5}}}, "3.5"),
        ({"dynamic_shapes": 7}, "dynamic_shapes"),
        ({"dynamic_shapes": "yes"}, "yes"),
        ({"dynamic_shapes": {"x": {0: "n", 1: "n"}}}, "n has two sizes"),
        ({"dynamic_shapes": {"x": {0: 9}}}, "9"),
    ],
)
def test_wrong_requests(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=part) as caught:
        fx2onnx.export(Mlp(), (torch.ones(2, 4),), **arguments)
    assert caught.value.code == "E105"


def test_one_of_two_forms_of_dynamic_sizes_is_given() -> None:
    with pytest.raises(fx2onnx.UserError, match=r"E001.*both"):
        fx2onnx.export(Mlp(), (torch.ones(2, 4),), dynamic_shapes={"x": {0: "n"}}, dynamic_axes={"x": [0]})


class Windowed(torch.nn.Module):
    """Attention within windows of 8; a short sample has one of them. ``kind`` is what else is done."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        padded = F.pad(x, (0, 0, 0, -length % 8))
        count: Any = torch.div(-8 * (-length // 8), 8, rounding_mode="trunc")
        windows = padded.view(x.shape[0], count, 8, 4)
        scores = torch.einsum("bcxd,bcyd->bcxy", windows, windows)
        if self.kind == "broadcasts":
            return scores + torch.ones(1, 3, 8, 8)
        return scores * 2 if self.kind == "decides" and length > 8 else scores


def _texts(*lengths: int) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(2, length, 4),) for length in lengths]


def test_a_derived_size_that_is_one_in_the_sample_alone() -> None:
    sample, *others = _texts(5, 8, 13, 41)
    result = check(Windowed(), sample, others=others, dynamic_shapes=({0: "batch", 1: "length"},))
    assert not result.report.assumptions


def test_one_window_is_a_condition_where_more_are_another_program() -> None:
    sample, *others = _texts(5, 1, 4, 8)
    result = check(Windowed("broadcasts"), sample, others=others, dynamic_shapes=({0: "batch", 1: "length"},))
    found = {str(assumed).partition("   ")[0] for assumed in result.report.assumptions}
    assert "length >= 1 and length <= 8" in found


def test_a_decision_where_there_is_one_window() -> None:
    sample, *others = _texts(5, 1, 4, 8, 9, 16, 30)
    check(Windowed("decides"), sample, others=others, dynamic_shapes=({0: "batch", 1: "length"},))


def test_a_text_is_a_multiple_in_every_spelling() -> None:
    x = torch.randn(2, 8)

    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 2, 2).mean(-1)

    for options in ({"dynamic_shapes": {"x": {1: "2*n"}}}, {"dynamic_axes": {"x": {1: "2*n"}}, "input_names": ["x"]}):
        assert shape_of(fx2onnx.export(halves, (x,), **options), "x") == [2, "2*n"]
