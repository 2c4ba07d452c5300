"""Operators at sizes other than the sample's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.opsets import OPSET_MAX, OPSET_MIN
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.expr import Dim
from tests.ops.size_operators import OPERATORS, PAIRS, SHUFFLED
from tests.support import check

SAMPLE, OTHERS = 6, (1, 3, 5, 8, 13)
REFUSED_BELOW = {
    "F.fold": "Col2Im",
    "einsum of the trace": "Einsum",
    "interpolate antialias": "Resize with antialias",
    "grid_sample": "GridSample",
    "affine_grid": "GridSample",
    "stft": "STFT",
    "fft": "DFT",
}
"""Refused at the least opset, since it has not this operator."""
UNLIKE_ONE = {"unfold"}
"""The program compares the size with 1, which goes as at the sample."""
DIFFERS_BY_OPSET = (
    "pad circular", "pad reflect", "pad replicate", "pad to ten", "index_put added", "scatter_add", "interpolate by scale",
    "interpolate cubic", "interpolate linear", "split by sizes", "chunk", "layer_norm by the size", "group_norm", "cumsum",
    "topk", "sort", "quantile", "einsum", "unfold by steps", "F.unfold", "arange down", "arange of three", "one_hot", "triu",
    "tril", "combinations", "pdist", "fft of a size", "roll by a size", "conv1d by the input", "conv1d padded by a size", "conv1d of groups", "conv1d by a stride of sizes",
    "conv_transpose1d of groups", "repeat_interleave by a tensor", "bucketize", "adaptive pool to a size", "max_unpool",
    "written slice of steps", "slice by a step of sizes", "kron", "take_along_dim", "tril_indices", "hann_window", "embedding_bag",
    *REFUSED_BELOW,
)  # fmt: skip


def samples(name: str, fits: Any) -> list[tuple[torch.Tensor]]:
    """Those at which eager PyTorch runs."""
    torch.manual_seed(0)
    sizes = [size for size in (SAMPLE, *OTHERS) if size != 1 or name not in UNLIKE_ONE]
    return [(x,) for x in (torch.randn(size, 4) for size in sizes) if runs(fits, x)]


def runs(program: Any, *inputs: torch.Tensor) -> bool:
    try:
        program(*inputs)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def allowed(result: fx2onnx.ExportResult, sizes: dict[str, int]) -> bool:
    found = size_conditions.read(result.model.metadata_props.get(size_conditions.METADATA_KEY, "[]"))
    return all(condition.holds({"n": 0, "b": 0, "m": 0, **sizes}) for condition in found)


@pytest.mark.long_cases("F.fold", "affine_grid", "einsum", "interpolate cubic")
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_at_other_sizes(name: str) -> None:
    program = OPERATORS[name]
    sample, *others = samples(name, program)
    if name.startswith("squeeze"):
        result = fx2onnx.export(program, sample, dynamic_shapes=({0: "n"},))
        others = [(x,) for (x,) in others if allowed(result, {"n": x.shape[0]})]
        assert len(others) >= len(OTHERS) - 2
    check(program, sample, others=others, dynamic_shapes=({0: "n"},))


@pytest.mark.long_cases("affine_grid", "interpolate cubic")
@pytest.mark.parametrize("name", sorted(DIFFERS_BY_OPSET))
def test_operators_at_the_least_opset(name: str) -> None:
    program = OPERATORS[name]
    sample, *others = samples(name, program)
    if name in REFUSED_BELOW:
        with pytest.raises(fx2onnx.UserError, match=r"E20[23]") as caught:
            fx2onnx.export(program, sample, dynamic_shapes=({0: "n"},), opset_version=OPSET_MIN)
        assert caught.value.where is not None
        return
    check(program, sample, others=others, dynamic_shapes=({0: "n"},), opset_version=OPSET_MIN)


@pytest.mark.parametrize("name", sorted(SHUFFLED))
def test_images_at_other_sizes(name: str) -> None:
    program = SHUFFLED[name]
    torch.manual_seed(0)
    images = [
        torch.randn(batch, 4, size, size + 2) for batch, size in ((2, 4), (2, 2), (1, 6), (3, 12), (2, 8), (1, 3))
    ]
    (sample, *others) = [x for x in images if runs(program, x)]
    names = {0: "b", 2: "n", 3: "m"}
    if name.startswith("squeeze"):
        result = fx2onnx.export(program, (sample,), dynamic_shapes=(names,))
        others = [x for x in others if allowed(result, {axis: x.shape[place] for place, axis in names.items()})]
        assert len(others) == 3
    check(program, (sample,), others=[(x,) for x in others], dynamic_shapes=(names,))


def test_a_squeezed_size_is_not_one() -> None:
    """Its rank would be another: the runner refuses it with the line."""
    result = fx2onnx.export(lambda x: x.squeeze(0) * 2, (torch.randn(6, 4),), dynamic_shapes=({0: "n"},))
    assert not allowed(result, {"n": 1})
    (found,) = result.report.assumptions
    assert found.expression == "n != 1"
    assert found.where is not None


PAIRED = ((6, 3), (1, 2), (3, 1), (5, 5), (2, 7), (9, 4))


def pairs(program: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those at which eager PyTorch runs."""
    torch.manual_seed(0)
    return [pair for pair in ((torch.randn(n, 4), torch.randn(m, 4)) for n, m in PAIRED) if runs(program, *pair)]


@pytest.mark.parametrize("opset", [OPSET_MIN, None])
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_operators_of_two_sizes(name: str, opset: int | None) -> None:
    sample, *others = pairs(PAIRS[name])
    assert len(others) == 5
    check(PAIRS[name], sample, others=others, dynamic_shapes=({0: "n"}, {0: "m"}), opset_version=opset)


BY_SIZE = ("squeeze", "repeat_interleave", "slice", "written slice", "index_put", "arange", "view", "conv1d by the input",
    "conv_transpose1d by the input", "unbind", "real arange", "repeats alone")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("opset", range(OPSET_MIN, OPSET_MAX + 1))
def test_operators_at_every_opset(opset: int) -> None:
    """The kinds whose results depend on a size in another way than most, at five sizes or more."""
    for name in sorted(OPERATORS):
        if name.startswith(BY_SIZE) and not name.startswith("squeeze"):
            sample, *others = samples(name, OPERATORS[name])
            check(OPERATORS[name], sample, others=others, dynamic_shapes=({0: "n"},), opset_version=opset)
    for program in PAIRS.values():
        first, *more = pairs(program)
        check(program, first, others=more, dynamic_shapes=({0: "n"}, {0: "m"}), opset_version=opset)
    torch.manual_seed(0)
    for name in ("squeeze", "squeeze of all", "squeeze axes", "squeeze of the size"):
        inputs = [(torch.randn(size, 4),) for size in (6, 3, 4, 5, 8, 13)]
        check(OPERATORS[name], inputs[0], others=inputs[1:], dynamic_shapes=({0: "n"},), opset_version=opset)
    for name, rest in (("pixel_shuffle", (4,)), ("pixel_unshuffle", (4,)), ("channel_shuffle", (4,))):
        images = [(torch.randn(batch, *rest, 2 * size, 2 * size + 2),) for batch, size in ((2, 2), (1, 1), (3, 6), (2, 4), (1, 3), (4, 5))]  # fmt: skip
        axes = {0: "b", 2: "n", 3: "m"}
        check(SHUFFLED[name], images[0], others=images[1:], dynamic_shapes=(axes,), opset_version=opset)


SIZES = (1, 3, 5, 8, 11)
BOUNDS = [
    (start, end, step)
    for start, end, step in itertools.product((-999, -6, -1, 2), (-3, 5, None), (1, 2))
    if torch.empty(8)[start:end:step].numel()
]


@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_a_slice_is_written_within_the_axis(start: int, end: int | None, step: int) -> None:
    def written(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, value[:, : x[:, start:end:step].shape[1]], 1, start, end, step)

    calls = [(torch.rand(2, size), -torch.rand(2, 20)) for size in SIZES]
    fitting: list[tuple[Any, ...]] = [each for each in calls if each[0][:, start:end:step].numel()]
    check(written, calls[3], others=fitting, dynamic_shapes=({1: "n"}, None))


class Stretches(torch.nn.Module):
    def __init__(self, beside: int) -> None:
        super().__init__()
        self.beside = beside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, self.beside :].reshape(x.shape[0], -1, 8)
        return rows.sum(-1) * torch.arange(rows.shape[1])


@pytest.mark.parametrize("beside", [0, 3])
def test_a_size_is_solved_from_its_multiple(beside: int, tmp_path: Path) -> None:
    shapes = {"x": {1: 8 * Dim.symbol("n") + beside}}
    module, x = Stretches(beside), torch.randn(2, 56 + beside)
    result = fx2onnx.export(module, (x,), dynamic_shapes=shapes)
    verdict = verify(result, module, (x,), {})
    verdict.raise_if_failed()
    assert any(row.inputs.startswith("sizes ") for row in verdict.rows)  # at a length that the module takes
    result.save(tmp_path / "m.onnx")
    session = InferenceSession(str(tmp_path / "m.onnx"))
    for count in (1, 11):
        other = torch.randn(2, 8 * count + beside)
        found = torch.from_numpy(session.run(None, {"x": other.numpy()})[0])
        torch.testing.assert_close(found, module(other))


class Rest(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x[:, 1:])


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda x: (x > 0).all(),
    "any": lambda x: (x > 0).any(),
    "all of rows": lambda x: (x > 0).all(1),
    "any of rows": lambda x: (x > 0).any(1, keepdim=True),
    "any of both": lambda x: (x > 0).any(dim=(0, 1)),
    "mean": lambda x: x.mean(1),
    "mean of all": lambda x: x.mean(),
    "var": lambda x: x.var(1),
    "mse": lambda x: nn.functional.mse_loss(x, x + 1),
    "product": lambda x: x @ x.T,
    "cumprod": lambda x: x.cumprod(1),
    "cumprod of columns": lambda x: x.T.cumprod(0),
    "cummax": lambda x: x.cummax(1)[0],
    "cummin": lambda x: x.cummin(1)[1],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left_at_size_one(name: str, opset: int) -> None:
    module = Rest(FUNCTIONS[name])
    result = fx2onnx.export(module, (torch.randn(3, 5),), dynamic_shapes={"x": {1: "n"}}, opset_version=opset)
    data = result.model_proto.SerializeToString()
    for size in (1, 2, 5):
        x = torch.randn(3, size)
        for open_session in (InferenceSession, onnxruntime.InferenceSession):
            (given,) = open_session(data).run(None, {"x": x.numpy()})
            want = module(x).numpy()
            assert given.shape == want.shape
            np.testing.assert_allclose(given, want, rtol=1e-5, atol=1e-6)
