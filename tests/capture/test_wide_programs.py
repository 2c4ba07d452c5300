"""Programs of size arithmetic with decisions, loops and indices: no file takes a size at which it is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.capture.wide_programs import drawn

SIZES = range(1, 65)
MOST_REFUSED = 2
"""The largest number of E105 among fifty programs."""


def image(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 6 * size).reshape(1, 2, 3, size)


def eager(program: Callable[[torch.Tensor], torch.Tensor], size: int) -> torch.Tensor | None:
    try:
        return program(image(size))
    except (RuntimeError, ValueError, IndexError, AssertionError, ZeroDivisionError):
        return None


def faults(result: Any, wanted: dict[int, torch.Tensor | None]) -> list[tuple[int, str]]:
    """Sizes that the runner takes, at which it does not give what eager PyTorch gives."""
    session = InferenceSession(result.model_proto.SerializeToString())
    (name,) = (value.name for value in session.get_inputs())
    found = []
    for size, want in wanted.items():
        try:
            (got,) = session.run(None, {name: image(size).numpy()})
        except fx2onnx.UserError as error:
            if error.code != "E401" and want is not None:
                found.append((size, error.code))
            continue
        if want is None:
            found.append((size, "runs where eager PyTorch raises"))
        elif got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-4, equal_nan=True):
            found.append((size, "differs"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_no_size_is_taken_at_which_the_file_is_wrong(group: int) -> None:
    wrong, refused = [], []
    for seed in range(group * 50, group * 50 + 50):
        draw = random.Random(seed)
        while True:
            program, steps = drawn(draw)
            wanted = {size: eager(program, size) for size in SIZES}
            fitting = [size for size, want in wanted.items() if want is not None and want.numel()]
            if len(fitting) > 1:
                break
        try:
            result = fx2onnx.export(program, (image(draw.choice(fitting)),), dynamic_shapes=({3: "n"},))
        except fx2onnx.UserError as error:
            refused.append((seed, steps, str(error)))
            continue
        found = faults(result, {size: want for size, want in wanted.items() if want is None or want.numel()})
        if found:
            wrong.append((seed, steps, found))
    assert not wrong
    assert len(refused) <= MOST_REFUSED, refused
