"""Runs on fake tensors that hand over what a model keeps."""

from __future__ import annotations

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fx2onnx.sources.light_run import run_lightly


class Copies(torch.nn.Module):
    """Keeps copies of a counter and of a slice, as models with several caches a layer do."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        made = [torch.tensor(7), x[1:]]
        twice = copy.deepcopy([*made, made[0]])
        twice[0] += 1
        return {"made": made, "copies": twice}


def test_copies_of_fake_tensors_are_fake_and_apart() -> None:
    """Torch's own copy of a fake tensor made of a number harms the heap; the run would fall back to real tensors."""
    made, copies = run_lightly(Copies(), Copies(), {"x": torch.ones(3, 4)}).values()
    assert all(isinstance(value, FakeTensor) for value in (*made, *copies))
    assert [tuple(value.shape) for value in copies] == [(), (2, 4), ()]
    assert copies[0] is copies[2]
    assert not {id(value) for value in made} & {id(value) for value in copies}
    assert not {id(value.untyped_storage()) for value in made} & {id(value.untyped_storage()) for value in copies}
