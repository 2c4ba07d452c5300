"""Operators whose result depends on a size: the file is right at every other size, or says which sizes it is for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base import size_conditions
from fx2onnx.base.opsets import OPSET_MIN
from tests.ops.size_operators import OPERATORS, SHUFFLED
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


def runs(program: Any, x: torch.Tensor) -> bool:
    try:
        program(x)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def allowed(result: fx2onnx.ExportResult, sizes: dict[str, int]) -> bool:
    found = size_conditions.read(result.model.metadata_props.get(size_conditions.METADATA_KEY, "[]"))
    return all(condition.holds({"n": 0, "b": 0, "m": 0, **sizes}) for condition in found)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_at_other_sizes(name: str) -> None:
    program = OPERATORS[name]
    sample, *others = samples(name, program)
    if name.startswith("squeeze"):
        result = fx2onnx.export(program, sample, dynamic_shapes=({0: "n"},))
        others = [(x,) for (x,) in others if allowed(result, {"n": x.shape[0]})]
        assert len(others) >= len(OTHERS) - 2
    check(program, sample, others=others, dynamic_shapes=({0: "n"},))


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
