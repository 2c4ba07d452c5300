"""``flex_attention``: attention whose scores and mask are functions of places."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import check

HEADS, WIDTH = 4, 8
SAMPLE = (2, 16)
OTHERS = ((1, 9), (3, 130), (2, 1))


class Biased(torch.nn.Module):
    """ALiBi with slopes that are parameters, and fewer heads of keys than of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))

    def forward(self, query: torch.Tensor, key: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        def score(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor
        ) -> torch.Tensor:
            return score - self.slopes[h] * (i - j).abs()

        halved = key[:, ::2]
        return flex_attention(query, halved, halved * 2, score_mod=score, enable_gqa=True, scale=0.3) + ids.sum()


class Capped(torch.nn.Module):
    """Scores that are capped, in a window; the function is compiled, as its users do."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = torch.compile(flex_attention)

    def forward(self, query: torch.Tensor, key: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        def score(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor
        ) -> torch.Tensor:
            return torch.where((i - j).abs() < 5, 5 * torch.tanh(score / 5), -float("inf"))

        return self.attend(query, key, key, score_mod=score) + ids.sum()


class Documents(torch.nn.Module):
    """Causal, each document by itself: the mask reads a tensor at places that are tensors."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def mask(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return (ids[b, i] == ids[b, j]) & (i >= j)

        batch, _, length, _ = query.shape
        blocks = create_block_mask(mask, batch, None, length, length, device=query.device)
        whole = create_mask(mask, batch, None, length, length, device=query.device)
        return flex_attention(query, key, key, block_mask=blocks), whole


def _inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(length)
    query, key = torch.randn(2, batch, HEADS, length, WIDTH, generator=generator)
    return query, key, torch.randint(0, 3, (batch, length), generator=generator)


@pytest.mark.long_cases("Documents")
@pytest.mark.parametrize("module", [Biased, Capped, Documents])
def test_scores_and_masks_by_functions(module: type[torch.nn.Module]) -> None:
    with torch.compiler.set_stance("force_eager"):
        check(
            module(),
            _inputs(*SAMPLE),
            dynamic_shapes={
                name: {0: "batch", axis: "length"} for name, axis in (("query", 2), ("key", 2), ("ids", 1))
            },
            others=[_inputs(*sizes) for sizes in OTHERS],
        )


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, places: list[torch.Tensor]) -> torch.Tensor:
        return x[places[0]] * 2

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: torch.Tensor) -> None:
        pass


def test_a_function_with_its_own_gradient_within_vmap() -> None:
    """What is vectorised is in a list, so torch looks for the mode before it looks for vmap."""
    check(
        lambda x, i: torch.vmap(lambda place: Doubled.apply(x, [place]))(i),
        (torch.randn(5, 3), torch.tensor([4, 0, 4])),
    )


@pytest.mark.long
def test_the_gradient_of_what_scores_read(tmp_path: Path) -> None:
    module, (query, key, ids) = Biased(), _inputs(*SAMPLE)
    fx2onnx.export_training(module, (query, key, ids), tmp_path, loss=lambda out: out.square().mean(), verify=True)
    places = torch.arange(SAMPLE[1])
    halved = key[:, ::2].repeat_interleave(2, 1)
    scores = query @ halved.mT * 0.3 - module.slopes[:, None, None] * (places[:, None] - places).abs()
    (scores.softmax(-1) @ halved * 2 + ids.sum()).square().mean().backward()  # type: ignore[no-untyped-call]
    for session in (onnxruntime.InferenceSession, InferenceSession):
        feeds = {"query": query, "key": key, "ids": ids, "slopes": module.slopes.detach()}
        _, gradient = session(tmp_path / "gradients.onnx").run(None, {name: x.numpy() for name, x in feeds.items()})
        torch.testing.assert_close(torch.as_tensor(gradient), module.slopes.grad)
