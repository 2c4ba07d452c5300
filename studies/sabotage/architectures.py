"""Small models of many kinds, each with what its users may feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Architecture:
    """``ids``: for each input of whole numbers how many there are; ``masks``: inputs of 0 and 1; ``most``: the largest size of
    each dynamic dim, ``step``: what it is a multiple of.
    """

    name: str
    build: Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]]
    ids: Mapping[str, int] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    step: Mapping[str, int] = field(default_factory=dict)


def _zoo(name: str) -> Callable[[], Any]:
    def build() -> Any:
        from fx2onnx.sources import resolve

        source = resolve(f"zoo:{name}")
        names = list(source.dynamic_shapes)
        kwargs = dict(zip(names, source.args, strict=False)) | dict(source.kwargs)
        return source.module.eval(), kwargs, {key: dict(axes) for key, axes in source.dynamic_shapes.items()}

    return build


class _Graph(torch.nn.Module):
    """Messages along edges, summed at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = torch.relu(self.inner(x))[edges[0]]
        count = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1]))
        total = torch.zeros(x.shape[0], 16).index_add(0, edges[1], messages)
        return torch.log_softmax(self.outer(total / count.clamp(min=1).unsqueeze(1)), -1)


class _Detector(torch.nn.Module):
    """Boxes in pixels beside scores in one tensor, the best first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.BatchNorm2d(16), torch.nn.SiLU(), torch.nn.Conv2d(16, 24, 3, 2, 1)
        )
        self.head = torch.nn.Conv2d(24, 9, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.head(torch.nn.functional.hardswish(self.body(image)))
        height, width = found.shape[-2:]
        rows = torch.arange(height).view(1, height, 1).expand(1, height, width)
        columns = torch.arange(width).view(1, 1, width).expand(1, height, width)
        middle = torch.stack([columns + found[:, 0].sigmoid(), rows + found[:, 1].sigmoid()], -1) * 4
        size = torch.exp(found[:, 2:4].clamp(max=4)).permute(0, 2, 3, 1) * 8
        boxes = torch.cat([middle - size / 2, middle + size / 2], -1).flatten(1, 2)
        scores = found[:, 4:].flatten(2).transpose(1, 2).softmax(-1)
        order = scores[..., 1:].amax(-1).topk(4, dim=1).indices.unsqueeze(-1)
        return torch.cat([boxes.gather(1, order.expand(-1, -1, 4)), scores.gather(1, order.expand(-1, -1, 5))], -1)


def _graph() -> Any:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(6, 8), "edges": torch.randint(0, 6, (2, 14))}
    return _Graph().eval(), inputs, {"x": {0: "nodes"}, "edges": {1: "edges"}}


def _detector() -> Any:
    torch.manual_seed(0)
    shapes = {"image": {0: "batch", 2: "height", 3: "width"}}
    return _Detector().eval(), {"image": torch.rand(2, 3, 32, 24)}, shapes


def _experts() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=120, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=128, use_cache=False, sliding_window=8,
    )  # fmt: skip
    inputs = {"input_ids": torch.randint(0, 120, (2, 16)), "attention_mask": torch.ones(2, 16, dtype=torch.int64)}
    shapes = {key: {0: "batch", 1: "sequence"} for key in inputs}
    return MixtralForCausalLM(config).eval(), inputs, shapes


_TEXT = {"batch": 5, "sequence": 48, "decoder_sequence": 48, "target_sequence": 40}
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("mnist_cnn", _zoo("mnist_cnn"), most={"batch": 5}),
    Architecture("vit_tiny", _zoo("vit_tiny"), most={"batch": 5}),
    Architecture("realesrgan_tiny", _zoo("realesrgan_tiny"), most={"batch": 3, "height": 40, "width": 40}),
    Architecture(
        "diffusion_unet", _zoo("diffusion_unet"), ids={"timestep": 1000}, most={"batch": 4, "text_length": 40}
    ),
    Architecture("bert_tiny", _zoo("bert_tiny"), {"input_ids": 120}, ("attention_mask",), _TEXT),
    Architecture("gpt2_tiny", _zoo("gpt2_tiny"), {"input_ids": 120}, ("attention_mask",), _TEXT),
    Architecture("t5_tiny", _zoo("t5_tiny"), {"input_ids": 120, "decoder_input_ids": 120}, ("attention_mask",), _TEXT),
    Architecture("llama_tiny", _zoo("llama_tiny"), {"input_ids": 120}, ("attention_mask",), _TEXT),
    Architecture(
        "whisper_tiny", _zoo("whisper_tiny"), {"decoder_input_ids": 120}, most={**_TEXT, "decoder_sequence": 24}
    ),
    Architecture(
        "clip_tiny", _zoo("clip_tiny"), {"input_ids": 120}, ("attention_mask",), {**_TEXT, "sequence": 30, "images": 4}
    ),
    Architecture("lstm_tagger", _zoo("lstm_tagger"), {"tokens": 200}, most=_TEXT),
    Architecture("gru_seq2seq", _zoo("gru_seq2seq"), {"source": 200, "target": 200}, most=_TEXT),
    Architecture("mixtral_tiny", _experts, {"input_ids": 120}, ("attention_mask",), _TEXT),
    Architecture("graph_network", _graph, {"edges": 0}, most={"nodes": 30, "edges": 60}),
    Architecture("detector", _detector, most={"batch": 4, "height": 64, "width": 64}),
)


def feeds(
    architecture: Architecture,
    sample: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Mapping[int, str]],
    runs: Callable[[dict[str, torch.Tensor]], bool],
    count: int,
) -> Iterator[dict[str, torch.Tensor]]:
    """Feeds of users: sizes and numbers of all kinds that eager PyTorch ``runs`` on; first the example."""
    random = np.random.default_rng(2026)
    yield dict(sample)
    given, tries = 1, 0
    while given < count and tries < 4 * count:
        tries += 1
        sizes = {dim: int(random.integers(1, architecture.most.get(dim, 4) + 1)) for axes in shapes.values() for dim in axes.values()}  # fmt: skip
        if tries % 3 == 0:
            sizes = {dim: random.choice([1, architecture.most.get(dim, 4)]) for dim in sizes}
        made = {name: _numbers(architecture, name, value, shapes.get(name, {}), sizes, random) for name, value in sample.items()}  # fmt: skip
        if runs(made):
            given += 1
            yield made


def _numbers(
    architecture: Architecture,
    name: str,
    sample: torch.Tensor,
    axes: Mapping[int, str],
    sizes: Mapping[str, int],
    random: np.random.Generator,
) -> torch.Tensor:
    shape = [int(sizes[axes[axis]]) if axis in axes else size for axis, size in enumerate(sample.shape)]
    if name in architecture.masks:
        length = shape[-1]
        mask = np.ones(shape, np.int64)
        for row in mask.reshape(-1, length):
            kept = int(random.integers(1, length + 1))
            if random.random() < 0.4:
                row[kept:] = 0
            elif random.random() < 0.5:
                row[: length - kept] = 0
        return torch.from_numpy(mask)
    if not sample.is_floating_point():
        most = architecture.ids.get(name, 2) or sizes["nodes"]
        return torch.from_numpy(random.integers(0, most, shape))
    scale = random.choice([0.0, 0.1, 1.0, 1.0, 4.0])
    return torch.from_numpy((random.standard_normal(shape) * scale).astype(np.float32))
