"""A classifier really trained, in seconds, so that an exported model can be seen to classify: scikit-learn's digits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.registry import require
from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.source import DEFAULT_BATCH, Source

from .registry import zoo_model

EPOCHS, BATCH = 12, 64
TEST_EVERY = 5
"""Every fifth image is kept for the test."""


class DigitsCnn(nn.Module):
    """Images of digits [N, 1, 8, 8], values 0 to 1 -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.fc1, self.dropout, self.fc2 = nn.Linear(32 * 4 * 4, 64), nn.Dropout(0.25), nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(image)))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = self.dropout(F.relu(self.fc1(torch.flatten(x, 1))))
        logits: Tensor = self.fc2(x)
        return logits


@functools.cache
def digits(*, test: bool) -> tuple[Tensor, Tensor]:
    """Images [N, 1, 8, 8] and labels [N] to train on, or the held-out ones.

    Raises:   UserError E602 without scikit-learn.
    """
    require("sklearn", "zoo:mnist_trained")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16.0
    held_out = torch.arange(len(images)) % TEST_EVERY == 0
    chosen = held_out if test else ~held_out
    return images[chosen], torch.from_numpy(labels)[chosen]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run PyTorch in one thread: small batches gain nothing from threads, which on a busy machine wait for each
    other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def network(seed: int, epochs: int = EPOCHS) -> DigitsCnn:
    """The network after so many epochs of Adam, in eval mode; some two seconds on one core."""
    images, labels = digits(test=False)
    with seeded(seed), _one_thread():
        module = DigitsCnn()
        optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(module(images[rows]), labels[rows]).backward()
                optimizer.step()
    return module.eval().requires_grad_(False)


@zoo_model("mnist_trained")
def mnist_trained(*, batch: int = DEFAULT_BATCH, seed: int = 0, weights: str | None = None) -> Source:
    """A small MNIST-like classifier, trained on scikit-learn's digits while it is built; with weights=random, untrained"""
    module = network(seed) if weights is None else network(seed, epochs=0)
    kind = "trained" if weights is None else "random weights"
    images, _ = digits(test=True)
    sample = images[:batch] if batch <= len(images) else images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]
    axes = {"image": {0: "batch"}}
    return Source("mnist_trained", module, (sample.clone(),), {}, axes, ("logits",), f"zoo, {kind}, seed {seed}")
