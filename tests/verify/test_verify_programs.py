"""Programs whose results hang on choices, NaN or systems of equations: the file is right at other sizes, and ``verify`` gives no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fx2onnx import verify
from tests.support import check

Args = tuple[Any, ...]


class Tagger(nn.Module):
    """Viterbi decoding: a loop over time forward, and one back along the best tags."""

    def __init__(self, *, is_masked: bool, tags: int = 4) -> None:
        super().__init__()
        self.is_masked, self.start, self.step = (
            is_masked,
            nn.Parameter(torch.randn(tags)),
            nn.Parameter(torch.randn(tags, tags)),
        )

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        best, history = self.start + scores[0], []
        for place in range(1, scores.shape[0]):
            found, origin = (best.unsqueeze(2) + self.step + scores[place].unsqueeze(1)).max(1)
            best = torch.where(mask[place].unsqueeze(1), found, best) if self.is_masked else found
            history.append(origin)
        tag, tags = best.argmax(1, keepdim=True), [best.argmax(1)]
        for origin in reversed(history):
            tag = origin.gather(1, tag)
            tags.append(tag.squeeze(1))
        return torch.stack(tags)


def _scores(length: int, batch: int) -> Args:
    return torch.randn(length, batch, 4), torch.arange(length)[:, None] < torch.arange(1, batch + 1).clamp(max=length)


class Deformable(nn.Module):
    """Attention that samples two levels, whose sizes are a tensor of sizes, at points or in boxes."""

    def __init__(self, *, of_boxes: bool) -> None:
        super().__init__()
        self.of_boxes, self.down, self.places = of_boxes, nn.Conv2d(4, 4, 3, 2, 1), nn.Linear(4, 12)
        self.query = nn.Parameter(torch.randn(3, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        levels = [images, self.down(images)]
        sizes = torch.as_tensor([level.shape[-2:] for level in levels])
        values = torch.cat([level.flatten(2) for level in levels], 2)
        offsets = self.places(self.query).view(1, 3, 2, 3, 2).repeat(images.shape[0], 1, 1, 1, 1)
        offsets = offsets / 6 if self.of_boxes else offsets / torch.stack([sizes[:, 1], sizes[:, 0]], -1)[:, None]
        parts, out = values.split([h * w for h, w in sizes], 2), []
        for index, (h, w) in enumerate(sizes):
            level = parts[index].view(images.shape[0], 4, h, w)
            out.append(F.grid_sample(level, offsets[:, :, index].tanh(), align_corners=False))
        return torch.stack(out).sum((0, -1))


class Warp(nn.Module):
    """A homography by four points, with which an image is sampled."""

    def __init__(self, *, by_inverse: bool) -> None:
        super().__init__()
        self.by_inverse = by_inverse

    def forward(
        self, image: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (x, y), (u, v) = source.unbind(-1), target.unbind(-1)
        one, zero = torch.ones_like(x), torch.zeros_like(x)
        rows = [
            torch.stack([x, y, one, zero, zero, zero, -x * u, -y * u], -1),
            torch.stack([zero, zero, zero, x, y, one, -x * v, -y * v], -1),
        ]
        system, wanted = torch.cat(rows, 1), torch.cat([u, v], 1)[..., None]
        found = torch.inverse(system) @ wanted if self.by_inverse else torch.linalg.solve(system, wanted)
        matrix = F.pad(found[..., 0], (0, 1), value=1.0).view(-1, 3, 3)
        across, down = torch.linspace(-1, 1, image.shape[-1]), torch.linspace(-1, 1, image.shape[-2])
        grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)
        grid = F.pad(grid, (0, 1), value=1.0) @ matrix.mT[:, None]
        return F.grid_sample(image, grid[..., :2] / grid[..., 2:].clamp(min=0.1), align_corners=True), matrix


def _points(batch: int, height: int, width: int) -> Args:
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]).repeat(batch, 1, 1)
    return torch.rand(batch, 2, height, width), corners, corners + torch.rand(batch, 4, 2) / 5


class Stretched(nn.Module):
    """A phase vocoder: a spectrogram at another rate, its phases summed up, from its halves or from complex numbers."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.advance = rate, nn.Buffer(torch.linspace(0, torch.pi * 4, 5)[:, None])

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(0, spectrum.shape[-2], self.rate)
        padded = F.pad(spectrum, (0, 0, 0, 2))
        one, two = (padded.index_select(-2, (steps + more).long()) for more in (0, 1))
        angles, others = torch.atan2(one[..., 1], one[..., 0]), torch.atan2(two[..., 1], two[..., 0])
        gap = others - angles - self.advance
        gap = gap - 2 * torch.pi * torch.round(gap / (2 * torch.pi)) + self.advance
        phase = torch.cumsum(torch.cat([angles[..., :1], gap[..., :-1]], -1), -1)
        share, sizes = steps % 1, [part.norm(dim=-1) for part in (one, two)]
        return (share * sizes[1] + (1 - share) * sizes[0])[..., None] * torch.stack([phase.cos(), phase.sin()], -1)


class Chosen(nn.Module):
    """Elements at the places of the largest logarithms, some of which are NaN where ``verify`` draws negative numbers."""

    def __init__(self, *, largest: bool) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = x.log().topk(2, dim=-1, largest=self.largest)
        return values, x.gather(-1, places)


class Distinct(nn.Module):
    """The distinct roots or logarithms, some of which are NaN where ``verify`` draws negative numbers."""

    def __init__(self, *, has_counts: bool) -> None:
        super().__init__()
        self.has_counts = has_counts

    def forward(self, x: torch.Tensor) -> object:
        return (
            torch.unique(x.sqrt(), return_counts=True)
            if self.has_counts
            else torch.unique(x.log(), return_inverse=True)
        )


Case = tuple[Callable[[], nn.Module], Args, list[Args], tuple[dict[int, str], ...]]
_LEVELS = [(torch.randn(1, 4, 12, 6),), (torch.randn(3, 4, 5, 9),)]
_ABOVE = torch.tensor([[1.0, 2.0, 3.0, 0.5], [1.5, 2.5, 4.0, 0.25], [7.0, 6.0, 1.0, 9.0]])
CASES: dict[str, Case] = {
    **{
        f"crf {is_masked}": (
            lambda is_masked=is_masked: Tagger(is_masked=is_masked), _scores(5, 2), [_scores(9, 3), _scores(2, 1)],
            ({0: "t", 1: "b"}, {0: "t", 1: "b"}),
        )
        for is_masked in (True, False)
    },
    **{
        f"deformable {of_boxes}": (
            lambda of_boxes=of_boxes: Deformable(of_boxes=of_boxes), (torch.randn(2, 4, 6, 8),), _LEVELS, ({0: "b", 2: "h", 3: "w"},),
        )
        for of_boxes in (True, False)
    },
    **{
        f"homography {by_inverse}": (
            lambda by_inverse=by_inverse: Warp(by_inverse=by_inverse), _points(2, 7, 6), [_points(1, 9, 4), _points(3, 5, 5)],
            ({0: "b", 2: "h", 3: "w"}, {0: "b"}, {0: "b"}),
        )
        for by_inverse in (True, False)
    },
    **{
        f"phase vocoder {rate}": (
            lambda rate=rate: Stretched(rate), (torch.randn(2, 5, 12, 2),), [(torch.randn(1, 5, 31, 2),), (torch.randn(3, 5, 4, 2),)],
            ({0: "b", 2: "t"},),
        )
        for rate in (0.8, 1.3)
    },
    **{f"topk of NaN {largest}": (lambda largest=largest: Chosen(largest=largest), (_ABOVE,), [(_ABOVE + 2,), (_ABOVE[:1],)], ({0: "n"},)) for largest in (True, False)},
    **{f"unique of NaN {has}": (lambda has=has: Distinct(has_counts=has), (_ABOVE,), [(_ABOVE + 2,), (_ABOVE[:1],)], ({0: "n"},)) for has in (True, False)},
}  # fmt: skip


@pytest.mark.long_cases(but=["topk of NaN True", "unique of NaN False"])
@pytest.mark.parametrize("name", CASES)
def test_files_are_right_and_no_alarm_is_false(name: str) -> None:
    make, args, others, shapes = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    result = check(module, args, others=others, rtol=1e-3, atol=1e-4, dynamic_shapes=shapes)
    verdict = verify(result, module, args)
    assert verdict.ok, verdict.describe()
