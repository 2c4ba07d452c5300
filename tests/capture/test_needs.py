"""What operators need of sizes, also in one branch only: stated in the file, as loose as it is, and refused with the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.capture.recording import decisions
from fx2onnx.runner import InferenceSession
from tests.support import Engines, check

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 28, 29, 56)

BOUNDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "narrow": (lambda x: x.narrow(0, 1, x.shape[0] - 3) * 2, "n >= 3"),
    "reflected": (lambda x: F.pad(x.t(), (3, 2), mode="reflect"), "n >= 4"),
    "circular": (lambda x: F.pad(x.t()[None], (3, 2), mode="circular"), "n >= 3"),
    "unfold": (lambda x: x.unfold(0, 4, 2) * 2, "n >= 4"),
    "max_pool": (lambda x: F.max_pool1d(x.t()[None], 4), "n >= 4"),
    "max_pool of the ceiling": (lambda x: F.max_pool2d(x.t()[None, :, None], (1, 5), (1, 2), ceil_mode=True), "n >= 4"),
    "avg_pool": (lambda x: F.avg_pool1d(x.t()[None], 3, 1), "n >= 3"),
    "conv": (lambda x: F.conv1d(x.t()[None], torch.ones(2, 2, 4), dilation=2), "n >= 7"),
    "conv_transpose": (lambda x: F.conv_transpose1d(x.t()[None], torch.ones(2, 2, 1), padding=1), "n >= 3"),
    "interpolate": (lambda x: F.interpolate(x.t()[None, :, None], scale_factor=(1.0, 0.25)), "n >= 4"),
    "interpolate a slice": (lambda x: F.interpolate(x[1:].t()[None], scale_factor=2), "n >= 2"),
    "select": (lambda x: x[4] * 2, "n >= 5"),
    "topk": (lambda x: x.topk(4, 0).values, "n >= 4"),
    "crop": (lambda x: F.pad(x, (0, 0, -3, -2)) * 2, "n >= 5"),
    "split": (lambda x: x.split([3, x.shape[0] - 3])[1] * 2, "n >= 3"),
    "places": (lambda x: x[[0, 4]] * 2, "n >= 5"),
    "places from the end": (lambda x: x[[-5, 1]] * 2, "n >= 5"),
    "places that are written": (lambda x: x.index_put((torch.tensor([3, 1]),), torch.ones(2, 2)), "n >= 4"),
    "places in place": (lambda x: x.clone().index_fill_(0, torch.tensor([3]), 1.0), "n >= 4"),
    "index_select": (lambda x: x.index_select(0, torch.tensor([5, 0])) * 2, "n >= 6"),
    "gather": (lambda x: x.gather(0, torch.tensor([[2, 3]])) * 2, "n >= 4"),
    "rows of a table": (lambda x: F.embedding(torch.tensor([4, 0]), x) * 2, "n >= 5"),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool1d(x[1:].t(), 2), "n >= 2"),
    "max_pool with padding": (lambda x: F.max_pool1d(x[2:].t()[None], 3, 1, 1), "n >= 3"),
    "max of an axis": (lambda x: x[1:].max(0).values, "n >= 2"),
    "median": (lambda x: x[1:].median(0).values, "n >= 2"),
    "max of all": (lambda x: x[1:].max(), "n >= 2"),
    "amin": (lambda x: x[1:].amin(0), "n >= 2"),
    "place of the least": (lambda x: x[1:].argmin(), "n >= 2"),
    "largest norm": (lambda x: x[1:].norm(float("inf"), 0), "n >= 2"),
    "crop and pad": (lambda x: F.pad(x.t(), (-3, 2)) * 2, "n >= 3"),
    "pad and crop": (lambda x: F.pad(x.t(), (1, -4)) * 2, "n >= 4"),
    "points of a transform": (lambda x: torch.fft.rfft(x[2:], dim=0).abs(), "n >= 3"),
    "storage": (lambda x: x.as_strided((4,), (3,)) * 2, "n >= 5"),
    "storage behind an offset": (lambda x: (x * 2).as_strided((2, 2), (2, 1), 5) * 2, "n >= 5"),
    "adaptive pooling to less than nothing": (lambda x: F.adaptive_avg_pool1d(x.t(), x.shape[0] - 3), "n >= 3"),
}


def eager(program: Any, *inputs: torch.Tensor) -> torch.Tensor | None:
    try:
        result: torch.Tensor = program(*inputs)
    except (RuntimeError, ValueError, IndexError):
        return None
    return result


def at_every_size(program: Any, result: fx2onnx.ExportResult, inputs: list[torch.Tensor]) -> None:
    """The runner gives what eager PyTorch gives, and refuses with the condition where that raises."""
    session = InferenceSession(result.model_proto.SerializeToString())
    (name,) = (value.name for value in session.get_inputs())
    for x in inputs:
        want = eager(program, x)
        if want is None:
            with pytest.raises(fx2onnx.UserError, match=r"E401.*the model is for sizes"):
                session.run(None, {name: x.numpy()})
            continue
        (got,) = session.run(None, {name: x.numpy()})
        assert got.shape == tuple(want.shape), x.shape
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(tuple(x.shape)))


@pytest.mark.parametrize("name", BOUNDS)
def test_what_an_operator_ends_the_run_for_is_a_condition(name: str) -> None:
    program, needed = BOUNDS[name]
    torch.manual_seed(0)
    result = fx2onnx.export(program, (torch.randn(9, 2),), dynamic_shapes=({0: "n"},))
    assert [found.expression for found in result.report.assumptions if found.kind == "condition"] == [needed]
    at_every_size(program, result, [torch.randn(size, 2) for size in SIZES])


FEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the first part": lambda x: x.chunk(3)[0] * 2,
    "the last part": lambda x: x.chunk(3)[-1] * 2,
    "the second part": lambda x: x.chunk(2)[1] * 2,
    "all parts": lambda x: torch.cat([part * place for place, part in enumerate(x.chunk(4))]),
    "turns of a loop": lambda x: torch.stack([x[turn] * turn for turn in range(min(x.shape[0], 3))]).sum(0),
    "a list": lambda x: torch.cat([x] * (x.shape[0] % 3 + 1)),
    "parts of parts": lambda x: torch.cat([half.chunk(2)[-1] for half in x.chunk(2)]),
}


@pytest.mark.parametrize("name", FEW)
def test_a_number_of_a_few_is_each_of_them(name: str) -> None:
    """The file decides how many parts or turns there are; a part that is not there ends the run."""
    torch.manual_seed(0)
    result = fx2onnx.export(FEW[name], (torch.randn(9, 2),), dynamic_shapes=({0: "n"},))
    at_every_size(FEW[name], result, [torch.randn(size, 2) for size in SIZES])


def test_where_one_of_a_few_cannot_be_captured_it_is_left_out() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(2)
        return parts[0] * (len(str(x.sum().tolist())) if len(parts) == 1 else 2)  # no file can have the text

    result = check(program, (torch.randn(4, 2),), others=[(torch.randn(3, 2),)], dynamic_shapes=({0: "n"},))
    assert [found.expression for found in result.report.assumptions if found.kind == "condition"] == ["n >= 2"]


def test_where_the_way_for_fewer_cannot_be_captured_more_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_DECISIONS", 6)

    def program(x: torch.Tensor) -> torch.Tensor:
        y, left = x * 2, x.shape[1]
        if len(x.chunk(3)) < 3:
            while left > 1:
                y, left = y + left, left // 2
        return y

    result = fx2onnx.export(program, (torch.randn(9, 9),), dynamic_shapes=({0: "n", 1: "m"},))
    assert [found.expression for found in result.report.assumptions] == ["n >= 3 and n != 4"]


@pytest.mark.long
def test_where_few_are_too_many_the_samples_is_a_condition() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for axis in (0, 1, 0, 1, 0, 1):
            first, second = x.chunk(2, axis)
            x = torch.cat([second, first], axis) + x.chunk(3, axis)[0].sum()
        return x

    others = [(torch.randn(*sizes),) for sizes in ((9, 9), (5, 16), (12, 7))]
    check(program, (torch.randn(8, 6),), others=others, dynamic_shapes=({0: "n", 1: "m"},), rtol=1e-4)


def test_a_reshape_of_several_sizes_is_for_those_that_it_divides() -> None:
    """A sample with one window: the window is no expression of the sample's size."""

    def program(x: torch.Tensor) -> torch.Tensor:
        rows = (x[1::3] * 2)[:, x.shape[1] // 2 :]
        return rows.t().reshape(rows.shape[1], -1, 4).sum(-1)

    result = fx2onnx.export(program, (torch.randn(12, 10),), dynamic_shapes=({0: "m", 1: "n"},))
    at_every_size(program, result, [torch.randn(m, n) for m in SIZES for n in (2, 3, 9)])


@pytest.mark.parametrize("sample", [2, 4])
def test_a_condition_that_is_found_where_there_are_more(sample: int) -> None:
    """Halves that have one element at the sample."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x[: min(x.shape[0], 5)]
        return torch.stack([x[::2], x[1::2]], -1).sum(-1)

    result = fx2onnx.export(program, (torch.randn(sample, 3),), dynamic_shapes=({0: "n"},))
    at_every_size(program, result, [torch.randn(size, 3) for size in SIZES])


@pytest.mark.parametrize(
    "keeps", [lambda x: x * 2 * 2, lambda x: (x * 2).sort(-1)[0] * 2, lambda x: x.softmax(-1).exp()]
)
def test_a_size_that_is_1_at_the_sample_is_kept_in_a_branch(keeps: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        half = x[:, : (x.shape[1] + 1) // 2]
        return keeps(half) if x.shape[1] != 5 else half * 3

    others = [(torch.randn(3, size),) for size in (1, 5, 7, 12)]
    check(program, (torch.randn(3, 2),), others=others, dynamic_shapes=({1: "n"},))


def test_a_bound_that_follows_is_not_stated() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, 4).repeat_interleave(4, -1) + x

    result = check(program, (torch.randn(1, 2, 8),), others=[(torch.randn(1, 2, 4),)], dynamic_shapes=({2: "n"},))
    assert [found.expression for found in result.report.assumptions if found.kind == "condition"] == ["n % 4 == 0"]


def windows_if_tall(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.view(rows // 4, 4, columns).sum(1) if rows > columns else x * 2


def windows_if_wide(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.view(rows // 4, 4, columns).sum(1) if columns > 4 else x * 2


def pairs_if_wide(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.unfold(0, 3, 1).sum(-1) if columns >= rows else x[:, : rows - columns] * 1


def long_windows(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.view(rows, columns // 28, 28).sum(-1) if columns > 8 else x[:, :2]


def nothing_else(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[1] > 8 else x[:, :2].unfold(1, 4, 1).sum(-1)


def reads_a_part(x: torch.Tensor) -> torch.Tensor:
    x = x * 2 if x.shape[1] > 11 else x[:, :2] + 1
    return x.sum(1) * x.shape[1]


def square_if_wide(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x.narrow(1, 0, rows) * 2 if columns > 4 else x * 3


OF_BRANCHES = (
    *(windows_if_tall, windows_if_wide, pairs_if_wide, long_windows, nothing_else, reads_a_part, square_if_wide),
)


@pytest.mark.parametrize(
    ("program", "sample"),
    [
        (program, sizes)
        for program in OF_BRANCHES
        for sizes in ((12, 12), (12, 3), (4, 12), (3, 28), (4, 5))
        if eager(program, torch.zeros(sizes)) is not None
    ],
)
def test_what_one_branch_needs_is_needed_there_only(program: Any, sample: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(sample)
    result = fx2onnx.export(program, (x,), dynamic_shapes=({0: "m", 1: "n"},))
    at_every_size(program, result, [torch.randn(m, n) for m in (1, 2, 3, 4, 8, 9) for n in (1, 2, 4, 5, 12, 28, 29)])


ARGUMENTS: dict[str, Any] = {
    "a factor": lambda x: x * (x.shape[0] > 2),
    "a summand": lambda x: x + (x.shape[0] == 3) + (x.shape[0] % 2 == 0),
    "a choice": lambda x: torch.where(x > 0, x.shape[0] > 5, x.shape[0] == 3),
    "sym_ite": lambda x: x * torch.sym_ite(x.shape[0] > 3, 2, 5),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_comparison_of_sizes_as_a_number(name: str) -> None:
    others = [(torch.randn(size, 2),) for size in (1, 2, 3, 6, 9)]
    check(ARGUMENTS[name], (torch.randn(4, 2),), others=others, dynamic_shapes=({0: "n"},))


def test_a_part_of_a_difference_is_a_quotient() -> None:
    result = fx2onnx.export(
        lambda x: x[: int((x.shape[0] - 1) * 0.5)], (torch.randn(8, 2),), dynamic_shapes=({0: "n"},)
    )
    assert str(result.model.graph.outputs[0].shape[0]) == "((n + 1) // 2) - 1"


RECURRENCE = torch.nn.GRU(2, 3)
OF_DATA: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "crop and pad": lambda x, n: F.pad(x, (-n, 2)),
    "pad and crop": lambda x, n: F.pad(x[..., :n], (1, -4)),
    "reflect": lambda x, n: F.pad(x[..., :n], (2, -3), mode="reflect"),
    "replicate by data": lambda x, n: F.pad(x, (n - 8, 0), mode="replicate"),
    "replicate none": lambda x, n: F.pad(x[..., :n], (2, 1), mode="replicate"),
    "turn": lambda x, n: F.pad(x[..., :n], (2, 1), mode="circular"),
    "turn by data": lambda x, n: F.pad(x, (n, 1), mode="circular"),
    "interpolate by a factor": lambda x, n: F.interpolate(x[..., :n], scale_factor=0.5),
    "interpolate lines by a factor": lambda x, n: F.interpolate(x[..., :n], scale_factor=0.3, mode="linear"),
    "interpolate by a factor of sizes": lambda x, n: F.interpolate(x[..., :n], scale_factor=0.4, recompute_scale_factor=True),
    "transposed convolution": lambda x, n: F.conv_transpose1d(x[..., :n], torch.ones(2, 3, 3)),
    "largest of windows": lambda x, n: F.adaptive_max_pool1d(x, n - 2),
    "means of windows": lambda x, n: F.adaptive_avg_pool1d(x, n - 2),
    "largest": lambda x, n: x[..., :n].max(),
    "largest of rows": lambda x, n: x[..., :n].amax((1, 2)),
    "least and largest": lambda x, n: torch.aminmax(x[..., :n])[0],
    "place of the largest": lambda x, n: x[..., :n].argmax(),
    "largest norm": lambda x, n: torch.linalg.vector_norm(x[..., :n], float("inf"), dim=2),
    "recurrence": lambda x, n: RECURRENCE(x[..., :n].permute(2, 0, 1))[0].detach(),
    "norm of instances": lambda x, n: F.instance_norm(x[..., :n]),
    "norm of a batch": lambda x, n: F.batch_norm(x[0, :, :n].t(), None, None, training=True),
    "norm of groups": lambda x, n: F.group_norm(x[..., :n], 2),
    "transform": lambda x, n: torch.fft.rfft(x[..., :n]).abs(),
    "transform of points from data": lambda x, n: torch.fft.fft(x, n=n).abs(),
    "transform of planes": lambda x, n: torch.fft.rfft2(x, s=(n, 4)).abs(),
    "transform back": lambda x, n: torch.fft.irfft(torch.fft.rfft(x)[..., :n]),
    "differences": lambda x, n: x[..., :n].diff(),
    "differences of what is joined": lambda x, n: x[..., :n].diff(prepend=x[..., :1], append=x[..., :n]),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_DATA)
def test_a_file_of_sizes_from_data_fails_where_eager_pytorch_raises(name: str) -> None:
    """At each number, or it gives what eager PyTorch gives."""

    def program(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return OF_DATA[name](x, count.item())  # type: ignore[arg-type]

    x = torch.linspace(-2, 3, 16).reshape(1, 2, 8).sin()
    engines = Engines(fx2onnx.export(program, (x, torch.tensor(5))).model_proto)
    for count in (5, -9, -1, 0, 1, 2, 3, 4, 7, 8, 9, 11):
        want = eager(program, x, torch.tensor(count))
        for engine, session in engines.sessions.items():
            try:
                (got,) = session.run(None, {"x": x.numpy(), "count": np.array(count)})
            except Exception:  # whatever an engine raises
                assert want is None or name in FAILS_MORE.get(count, ()), (engine, count)
                continue
            assert want is not None, (engine, count, got.shape)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{engine} {count}")


NORMS = ("norm of instances", "norm of groups")
FAILS_MORE = {0: NORMS, -9: (*NORMS, "turn by data"), -1: ("turn by data", "transform of planes")}
"""Cases in which a file fails and eager PyTorch does not: of no elements onnxruntime's kernel ends the process; a
circular pad that crops, and a transform of -1 points, which stands for all."""


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "crop": lambda x: F.pad(x, (-9, 3)),
    "reflect": lambda x: F.pad(x, (-8, 0), mode="reflect"),
    "turn": lambda x: F.pad(x, (9, 0), mode="circular"),
    "interpolate": lambda x: F.interpolate(x, size=0),
    "interpolate by a factor": lambda x: F.interpolate(x, scale_factor=0.1, mode="linear"),
    "pool": lambda x: F.max_pool1d(x, 9),
    "convolution": lambda x: F.conv1d(x, torch.ones(2, 2, 9)),
    "transposed convolution": lambda x: F.conv_transpose1d(x, torch.ones(2, 2, 2), padding=5),
    "windows": lambda x: x.unfold(2, 9, 1),
    "blocks": lambda x: F.unfold(x[:, :, None], (1, 9)),
    "largest": lambda x: x[..., 8:].amax(2),
    "transform": lambda x: torch.fft.fft(x[..., 8:]).abs(),
    "less than no windows": lambda x: F.adaptive_avg_pool1d(x, x.shape[2] - 9),
}


@pytest.mark.parametrize("axes", [None, ({2: "n"},)])
@pytest.mark.parametrize("name", REFUSED)
def test_a_size_that_does_not_fit_is_refused_in_eagers_words(name: str, axes: Any) -> None:
    x = torch.randn(1, 2, 8)
    with pytest.raises(Exception, match=r"\w") as raised:
        REFUSED[name](x)
    with pytest.raises(fx2onnx.UserError) as refused:
        fx2onnx.export(REFUSED[name], (x,), dynamic_shapes=axes)
    assert refused.value.code == "E101"
    words = str(raised.value).splitlines()[0][:100]
    assert words in refused.value.why or (axes and re.search(r"\bn\b", refused.value.why))  # a fake kernel names n


def test_windows_of_an_area_are_of_every_size() -> None:
    x = torch.randn(1, 2, 9, 10)
    others = [(torch.randn(1, 2, *sizes),) for sizes in ((4, 4), (5, 30), (13, 9))]
    program = lambda x: F.interpolate(x, scale_factor=(0.25, 0.5), mode="area") + F.interpolate(x[0], scale_factor=0.5, mode="area").sum()  # fmt: skip # noqa: E731
    check(program, (x,), others=others, dynamic_shapes=({2: "h", 3: "w"},))
