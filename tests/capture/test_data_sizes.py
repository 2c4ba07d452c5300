"""Sizes that data decides: a grid of image sizes as a true input, as vision encoders take it, at other sizes than the sample's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fx2onnx
from fx2onnx.sizes.assumptions import Assumption
from tests.support import check, run_engines

GRID = torch.tensor([[1, 4, 6], [2, 8, 2]])
"""The frames, rows and columns of patches of each image."""
GRIDS = [
    torch.tensor([[1, 2, 2], [1, 2, 4]]),
    torch.tensor([[3, 6, 4], [1, 10, 2]]),
    torch.tensor([[1, 8, 8], [2, 2, 2]]),
]


def patches_of(grid: Tensor) -> Tensor:
    return torch.randn(int(grid.prod(1).sum()), 8, generator=torch.Generator().manual_seed(0))


def positions(grid: Tensor) -> Tensor:
    """As the first vision encoders with such grids have them: rows and columns in blocks of 2 by 2."""
    found = []
    for t, h, w in grid:
        rows = torch.arange(h).unsqueeze(1).expand(-1, w)
        rows = rows.reshape(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).flatten()
        columns = torch.arange(w).unsqueeze(0).expand(h, -1)
        columns = columns.reshape(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).flatten()
        found.append(torch.stack([rows, columns], dim=-1).repeat(t, 1))
    return torch.cat(found, dim=0)


def ends(grid: Tensor) -> Tensor:
    lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    return F.pad(lengths.cumsum(0), (1, 0), value=0)


def rotary(x: Tensor, grid: Tensor) -> Tensor:
    """Angles by the largest side, looked up by position."""
    table = torch.outer(torch.arange(grid[:, 1:].max()), torch.tensor([1.0, 0.5]))
    return x * torch.cat([table[positions(grid)].flatten(1)] * 2, dim=-1).cos()


def masked_attention(x: Tensor, grid: Tensor) -> Tensor:
    """Each frame attends to itself."""
    frame = torch.bucketize(torch.arange(x.shape[0]), ends(grid)[1:], right=True)
    return F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=(frame[:, None] == frame)[None])[0]


def attention_by_images(x: Tensor, grid: Tensor) -> Tensor:
    parts = torch.split(x, grid.prod(-1).tolist(), dim=0)
    return torch.cat([F.scaled_dot_product_attention(part[None], part[None], part[None]) for part in parts], dim=1)


def merged(x: Tensor, grid: Tensor) -> list[Tensor]:
    """Four patches a token, a list of tokens for each image."""
    tokens = (x + 1).view(-1, 4 * x.shape[1])
    return list(torch.split(tokens, (grid.prod(-1) // 4).tolist()))


def windows(x: Tensor, grid: Tensor) -> Tensor:
    """Windows of 3 by 3, those at the edges padded; the patches in their order."""
    order, before = [], 0
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w).reshape(t, h, w)
        padded = F.pad(index, (0, 3 - w % 3, 0, 3 - h % 3), "constant", -100)
        rows, columns = (h + 3 - h % 3) // 3, (w + 3 - w % 3) // 3
        padded = padded.reshape(t, rows, 3, columns, 3).permute(0, 1, 3, 2, 4).reshape(-1)
        order.append(padded[padded != -100] + before)
        before += t * h * w
    return x[torch.cat(order)]


def unpacked(x: Tensor, grid: Tensor) -> Tensor:
    """Each image as a map of its own, pooled."""
    maps = [
        part.view(t, h, w, -1).permute(0, 3, 1, 2)
        for part, (t, h, w) in zip(x.split(grid.prod(1).tolist()), grid.tolist(), strict=True)
    ]
    return torch.cat([F.avg_pool2d(image, 2).flatten(2).transpose(1, 2).reshape(-1, x.shape[1]) for image in maps])


def places(x: Tensor, grid: Tensor) -> Tensor:
    """Rows and columns of all patches at once, by counting."""
    counts = grid.prod(1)
    rows, columns = grid[:, 1].repeat_interleave(counts), grid[:, 2].repeat_interleave(counts)
    first = F.pad(counts.cumsum(0)[:-1], (1, 0)).repeat_interleave(counts)
    within = (torch.arange(counts.sum()) - first) % (rows * columns)
    return x + torch.stack([within // columns, within % columns], dim=-1).sum(-1, keepdim=True)


MODULES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "positions": lambda x, grid: x + positions(grid).sum(-1, keepdim=True),
    "positions alone": lambda x, grid: (positions(grid), x * 2),
    "ends of frames": lambda x, grid: (ends(grid), x * 2),
    "rotary": rotary,
    "masked attention": masked_attention,
    "attention by images": attention_by_images,
    "merged": merged,
    "windows": windows,
    "unpacked": unpacked,
    "places": places,
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_grid_is_an_input(name: str) -> None:
    others = [(patches_of(grid), grid) for grid in GRIDS]
    check(MODULES[name], (patches_of(GRID), GRID), others=others, dynamic_shapes=({0: "patches"}, None))


def both_signs(x: Tensor) -> tuple[Tensor, Tensor]:
    """As many numbers of one sign as of the other."""
    return x[x > 0], x[x < 0]


EQUAL: dict[str, Callable[[Tensor], Any]] = {
    "added": lambda x: torch.add(*both_signs(x)),
    "stacked": lambda x: torch.stack(both_signs(x)).flatten(),
    "joined along another axis": lambda x: torch.cat([part[:, None] for part in both_signs(x)], dim=1).reshape(-1, 2),
    "multiplied as matrices": lambda x: both_signs(x)[0][None] @ both_signs(x)[1][:, None],
    "chosen": lambda x: torch.where(both_signs(x)[0] > 2, *both_signs(x)),
    "reshaped to fixed sizes": lambda x: torch.cat(both_signs(x)).reshape(3, 2) + torch.ones(3, 2),
    "scaled dot product": lambda x: F.scaled_dot_product_attention(*(part[None, :, None] for part in (*both_signs(x), x[x > 0]))),
    "reshaped, added, reshaped": lambda x: (torch.stack(both_signs(x)).T.reshape(-1) + torch.cat(both_signs(x))).view(2, -1),
}  # fmt: skip
BROADCAST: dict[str, Callable[[Tensor], Any]] = {
    "written": lambda x: torch.zeros(6).copy_(torch.cat(both_signs(x))),
    "expanded": lambda x: torch.cat(both_signs(x)).expand(2, 6) + 1,
}
SIGNS = torch.tensor([[1.0, -2.0, 3.0, -4.0], [5.0, -6.0, 0.0, 0.0]])


@pytest.mark.parametrize("name", sorted(EQUAL))
def test_sizes_that_an_operator_needs_to_be_equal_are_equal(name: str) -> None:
    result = check(EQUAL[name], (SIGNS,), others=[(-SIGNS,), (SIGNS.flip(0, 1),)])
    stated = [line for line in result.report.assumptions if isinstance(line, Assumption) and line.kind == "assertion"]
    is_broadcast = name == "written"  # to 6 elements, which may be of 1: the engine sees to that
    assert any("==" in line.expression for line in stated) != is_broadcast


@pytest.mark.parametrize("name", sorted(BROADCAST))
def test_a_size_that_is_1_or_another_is_broadcast_or_equal(name: str) -> None:
    others = [(-SIGNS,), (torch.tensor([[0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]),)]
    result = check(BROADCAST[name], (SIGNS,), others=others)
    assert not [each for each in result.report.assumptions if each.kind == "assertion"]


def test_other_numbers_of_elements_than_the_samples() -> None:
    other = torch.cat([SIGNS, SIGNS])
    check(EQUAL["stacked"], (SIGNS,), others=[(other,), (other[:3],)], dynamic_shapes=({0: "rows"},))


@pytest.mark.parametrize(
    "module",
    [lambda x: x[x > 0].reshape(2, 3) + torch.ones(3, 2), lambda x: torch.stack([x[x > 0], torch.ones(2, 3)])],
    ids=["fixed sizes", "ranks"],
)
def test_what_no_equality_mends_is_refused(module: Callable[[Tensor], Any]) -> None:
    with pytest.raises(fx2onnx.UserError):
        fx2onnx.export(module, (SIGNS,))


def number(x: Tensor) -> Any:
    return x[0].long().item()


def written_at(x: Tensor, place: int) -> Tensor:
    x[place] = 4.0
    x.select(0, place).add_(1)
    return x


BY_NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "to": lambda x: x[: number(x)] * 2,
    "from": lambda x: x[number(x) :] * 2,
    "from and to": lambda x: x[number(x) : x[1].long().item()] * 2,
    "every second": lambda x: x[: number(x) : 2] * 2,
    "from before": lambda x: x[number(x) - 1 :] * 2,
    "then its size": lambda x: torch.zeros(x[: number(x)].shape[0] + 1) + 1,
    "then reshaped": lambda x: x[: number(x)].reshape(-1, 1) @ torch.ones(1, 2),
    "narrowed": lambda x: x.narrow(0, number(x) // 2, 1) * 2,
    "at least": lambda x: torch.ones(max(number(x), 0)) * 2,
    "at most": lambda x: x[: max(min(number(x), 3), 1)] * 2,
    "rounded down": lambda x: x[: number(x) // 2] * 2,
    "decided": lambda x: x * 2 if number(x) >= 0 else x - 1,
    "written": lambda x: x.clone().index_fill_(0, torch.arange(6)[: number(x)], 9.0),
    "selected": lambda x: x.select(0, number(x)) * 2,
    "selected and written": lambda x: written_at(x.clone(), number(x)),
    "padded": lambda x: F.pad(x, (number(x), 0)),
}


@pytest.mark.parametrize("name", sorted(BY_NUMBERS))
def test_numbers_of_either_sign(name: str) -> None:
    feeds = [torch.tensor([float(first), 3.0, -1.0, 2.0, 5.0, 7.0]) for first in (-5, -3, -2, -1, 0, 1, 2, 5)]
    check(BY_NUMBERS[name], (feeds[6],), others=[(feed,) for feed in feeds], data_branches="if")


KERNEL = torch.linspace(-1, 1, 108).reshape(4, 3, 3, 3)
OF_AN_IMAGE: dict[str, Callable[[Tensor], Any]] = {
    "convolution": lambda x: F.conv2d(x, KERNEL, padding=1, stride=2),
    "pooling": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, (2, 2)),
    "interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolation to a size": lambda x: x + F.interpolate(torch.ones(1, 3, 3, 3), size=x.shape[-2:], mode="bilinear"),
    "pixels to channels": lambda x: F.pixel_unshuffle(x, 2),
    "windows": lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(1, 3, -1, 4),
    "windows by a view": lambda x: (x.permute(0, 2, 3, 1).reshape(1, x.shape[2] // 2, 2, x.shape[3] // 2, 2, 3).transpose(2, 3).reshape(-1, 4, 3)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.flatten(2).transpose(1, 2)] * 3),
    "padding to even sizes": lambda x: F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)),
    "einsum": lambda x: torch.einsum("bchw,bcxy->bhx", x, x),
    "rows in a stack": lambda x: torch.stack([x[0, 0, 0], x[0, 1, 0]]),
    "positions": lambda x: torch.stack(torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")).flatten(1),
    "reversed": lambda x: x[:, :, torch.arange(x.shape[2] - 1, -1, -1)],
    "a view as another": lambda x: (x * 2).flatten().view_as(x),
    "unflattened": lambda x: x.unflatten(2, (2, -1)),
    "half of it": lambda x: x[:, :, : x.shape[2] // 2].flatten(1),
}  # fmt: skip
CROPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cropped": lambda x, sizes: x[:, :, : sizes[0].item(), : sizes[1].item()],
    "made": lambda x, sizes: x[:, :, :1, :1] + torch.zeros(1, 3, *sizes.tolist()),
}


@pytest.mark.parametrize("crop", sorted(CROPS))
@pytest.mark.parametrize("name", sorted(OF_AN_IMAGE))
def test_images_of_sizes_from_data(name: str, crop: str) -> None:
    image = torch.linspace(-1, 2, 432).reshape(1, 3, 12, 12).sin()
    others = [(image, torch.tensor(sizes)) for sizes in ([6, 4], [8, 10], [12, 12], [2, 8])]
    check(lambda x, sizes: OF_AN_IMAGE[name](CROPS[crop](x, sizes)), (image, torch.tensor([4, 6])), others=others)


ROWS = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 2.0]])
COUNTED: dict[str, Callable[[Tensor], Any]] = {
    "nonzero of one number": lambda x: x[0, 0].nonzero(),
    "nonzero of one number as a tuple": lambda x: torch.nonzero(x[0, 0], as_tuple=True),
    "where of one number": lambda x: torch.where(x[0, 0] > 0),
    "argwhere of one number": lambda x: torch.argwhere(x[0, 0]),
    "bincount": lambda x: torch.bincount(x[x > 2].long()),
    "bincount of nothing": lambda x: torch.bincount(x[:0, 0].long()) + x.sum().long(),
    "bincount of nothing, so many": lambda x: torch.bincount(x[:0, 0].long(), minlength=3) + x.sum().long(),
    "one_hot": lambda x: F.one_hot(x.abs().long()),
    "one_hot of so many": lambda x: F.one_hot(x.abs().long(), x.abs().long().max().item() + 1),
    "tensor_split": lambda x: torch.tensor_split(x.flatten(), x[:, 0].long()),
    "tensor_split by a list": lambda x: torch.tensor_split(x.flatten(), [(x > 0).sum().item(), -1]),
    "tensor_split of rows": lambda x: torch.tensor_split(x, x[:1, 0].long(), dim=1),
}


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_results_by_data(name: str) -> None:
    first = [ROWS[:, :1] * 0, ROWS[:, :1] - 3, ROWS[:, :1] * 9 - 4]
    others = [(torch.cat([column, ROWS[:, 1:]], dim=1),) for column in first] + [(ROWS * 0,)]
    check(COUNTED[name], (ROWS,), others=others)


@pytest.mark.long_cases("parts", "chunks")
@pytest.mark.parametrize(
    "module",
    [
        lambda x: torch.tensor_split(x.flatten(), (x > 0).sum()),
        lambda x: x[x > 0].chunk(2),
        lambda x: x[x > 0].split(2),
    ],
    ids=["parts", "chunks", "a split"],
)
def test_what_needs_a_plain_number_says_what_to_bake(module: Callable[[Tensor], Any]) -> None:
    with pytest.raises(fx2onnx.UserError, match=r'bake=\["x"\]'):
        fx2onnx.export(module, (ROWS,))


def by_frames(x: Tensor, sizes: Tensor, scale: Tensor) -> Tensor:
    return torch.stack([part.sum() for part in x.split(sizes[0].item())]) * scale[: sizes[1].item()].sum()


def test_auto_bakes_what_has_to_be_and_warns() -> None:
    args = torch.arange(6.0), torch.tensor([2, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    others = [(args[0] * 2, args[1], args[2] + 1)]
    eager = [by_frames(*case) for case in (args, *others)]
    result = fx2onnx.export(by_frames, args, bake="auto")
    assert result.report.baked == ["sizes"]
    assert [value.name for value in result.model.graph.inputs] == ["x", "scale"]
    assert any("sizes is fixed to the sample's values" in line for line in result.report.warnings)
    for (x, _, scale), expected in zip((args, *others), eager, strict=True):
        for outputs in run_engines(result.model_proto, [x, scale]).values():
            torch.testing.assert_close(torch.from_numpy(outputs[0]), expected)


def test_auto_bakes_nothing_that_need_not_be() -> None:
    result = fx2onnx.export(rotary, (patches_of(GRID), GRID), dynamic_shapes=({0: "patches"}, None), bake="auto")
    assert result.report.baked == []
    assert not any("fixed" in line for line in result.report.warnings)


@pytest.mark.long
def test_auto_bakes_no_input_of_dynamic_size() -> None:
    with pytest.raises(fx2onnx.UserError, match=r'bake=\["x"\]'):
        fx2onnx.export(lambda x: x[x > 0].chunk(2), (ROWS,), dynamic_shapes=({0: "rows"},), bake="auto")


def test_a_list_of_as_many_rows_as_data_says() -> None:
    others = [(ROWS + 1,), (ROWS.abs() + 1,), (torch.cat([ROWS, ROWS]),)]
    check(lambda x: torch.stack(list(x[x > 0])), (ROWS,), others=others, dynamic_shapes=({0: "rows"},))


def plain(x: Tensor, grid: Tensor) -> Tensor:
    """Sizes made of numbers, as code has them that was written before ``item()`` could be one."""
    parts, begin = [], 0
    for t, h, w in grid.tolist():
        t, h, w = int(t), int(h), int(w)
        assert isinstance(begin, int) or begin is not None
        count = int(t * h * w / 2) * 2
        parts.append(x[begin : begin + count].reshape(t, h, w, -1).mean((1, 2)))
        begin = begin + count
    return torch.cat(parts)


def test_int_of_a_size_is_that_size() -> None:
    others = [(patches_of(grid), grid) for grid in GRIDS]
    result = check(plain, (patches_of(GRID), GRID), others=others, dynamic_shapes=({0: "patches"}, None))
    assert "of a number that only the data tells take that number" in result.report.attempts[-1]


def starts_of_patches(entropies: Tensor) -> Tensor:
    """As byte models cut their text: the slice ends at a tensor."""
    batch = entropies.shape[0]
    begins = entropies > 0.3
    length = begins.shape[1]
    places = torch.arange(length).expand(batch, -1)
    padded = torch.cat([places, torch.full_like(places, length)], 1)
    starts = padded[torch.cat([begins, ~begins], 1)].reshape(batch, length)
    return starts[:, : begins.sum(1).max()] + 2


def test_a_slice_to_a_tensor_that_the_data_decides() -> None:
    others = [(torch.rand(size),) for size in ((3, 6), (1, 20), (2, 4))]
    check(starts_of_patches, (torch.rand(2, 9),), others=others, dynamic_shapes=({0: "batch", 1: "length"},))
    assert int is int


def test_int_of_a_tensor_is_a_size() -> None:
    check(lambda x: torch.arange(int((x > 0).sum())) * 2, (ROWS,), others=[(-ROWS,), (ROWS * 0,)])


@pytest.mark.parametrize(
    "looped",
    [
        lambda x: x + sum(x * step for step in range(int((x > 0).sum()))),
        lambda x: torch.stack(list(number * 2 for number in x[x > 0])),  # noqa: C400
    ],
)
def test_loops_that_data_counts_are_loops_of_the_file(looped: Callable[[Tensor], Any]) -> None:
    check(looped, (ROWS,), others=[(ROWS + 1,), (ROWS.abs() + 1,), (-ROWS,)])


def test_a_name_to_bake_stands_in_a_list() -> None:
    with pytest.raises(fx2onnx.UserError, match="bake='x' is not known"):
        fx2onnx.export(rotary, (patches_of(GRID), GRID), bake="x")


def test_the_number_of_rows_that_python_goes_through_is_said() -> None:
    result = fx2onnx.export(windows, (patches_of(GRID), GRID), dynamic_shapes=({0: "patches"}, None))
    (note,) = [line for line in result.report.assumptions if "Python goes through the 2 rows" in str(line)]
    assert note.where is not None
    assert note.where.function == "windows"


class Longest(torch.nn.Module):
    """As many rows as the longest of several selections, as found by ``max`` over a generator."""

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.nonzero(row > 0.5).to(x.dtype) for row in x]
        rows = x.new_zeros(len(parts), max(part.shape[0] for part in parts), 1)
        for place, part in enumerate(parts):
            rows[place, : part.shape[0]] = part
        return rows


def test_the_longest_of_many_is_one_expression() -> None:
    """Six selections: compared one by one, they would be 32 paths, more than are captured."""
    torch.manual_seed(0)
    x, others = torch.rand(6, 8), [(torch.rand(6, 5),), (torch.rand(6, 13),)]
    result = check(Longest(), (x,), others=others, dynamic_shapes={"x": {1: "n"}})
    assert "If" not in {node.op_type for node in result.model_proto.graph.node}


def places(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x > 0).flatten()


@pytest.mark.parametrize(
    "function",
    [
        lambda at: at % at.shape[0],
        lambda at: (at // at.shape[0], at.to(torch.int32).div(at.shape[0], rounding_mode="trunc")),
        lambda at: (torch.fmod(at, at.shape[0]), torch.fmod(at.to(torch.uint8), at.shape[0])),
        lambda at: torch.unique_consecutive(at // 2, return_inverse=True, return_counts=True),
    ],
    ids=["remainder", "quotients", "fmod", "runs"],
)
def test_nothing_divided_by_its_size_and_runs_of_nothing(function: Any) -> None:
    others = [(-torch.ones(4),), (torch.tensor([1.0, 2.0, -1.0, 4.0, 5.0, 6.0]),), (torch.ones(1),)]
    check(lambda x: function(places(x)), (torch.tensor([1.0, 2.0, -1.0]),), others=others, dynamic_shapes=({0: "n"},))


def test_runs_along_an_input_that_may_be_empty() -> None:
    def runs(x: torch.Tensor) -> Any:
        return torch.unique_consecutive(x, return_inverse=True, return_counts=True)

    check(
        runs,
        (torch.tensor([3, 3, 1]),),
        others=[(torch.zeros(0).long(),), (torch.arange(9) // 2,)],
        dynamic_shapes=({0: "n"},),
    )
