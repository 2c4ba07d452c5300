"""The dispatch modes of a capture: what runs for real inside, and what fake tensors say of themselves."""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.torchcompat.capture_modes import capture_modes
from fx2onnx.torchcompat.dispatch import PreDispatchMode, no_dispatch
from fx2onnx.torchcompat.fake_tensors import FakeMode, fake_from_meta, fake_view, storage_key

FLOAT, CPU = torch.float32, torch.device("cpu")


def test_nothing_is_seen_of_what_runs_for_real() -> None:
    seen: list[str] = []

    def handler(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(str(func))
        return func(*args, **kwargs)

    real = torch.tensor([3.0, 4.0])
    with capture_modes(FakeMode(), PreDispatchMode(lambda: handler)):
        torch.ones(2)
        before = list(seen)
        with no_dispatch():
            length = (real * real).sum().sqrt()
            made = torch.arange(3)
            linear = torch.nn.functional.linear(real[None], torch.eye(2))
        assert seen == before
        assert torch._C._dispatch_keys(torch.ones(2)).has(torch._C.DispatchKey.Python)
    assert before == ["aten.ones.default"]
    assert [type(value) for value in (length, made, linear)] == [torch.Tensor] * 3
    assert length.item() == 5
    assert made.tolist() == [0, 1, 2]
    assert linear.tolist() == [[3, 4]]


def test_a_fake_tensor_says_its_device_and_its_alias_shares_its_memory() -> None:
    mode = FakeMode()
    fake = fake_from_meta(mode, (2, 3), FLOAT, CPU)
    with mode:
        told = torch.ops.prim.device.default(fake)  # as torch's indexing asks
        alias = fake.detach()
        picked = fake[..., None, 0]
        assert told == fake.device == alias.device == picked.device == CPU
    assert type(alias) is type(fake) is torch.Tensor
    assert alias is not fake
    assert alias.shape == fake.shape
    assert storage_key(alias) == storage_key(fake) == storage_key(picked)


def test_views_are_over_the_same_memory_at_any_depth() -> None:
    mode = FakeMode()
    for base in (fake_from_meta(mode, (4, 6), FLOAT, CPU), mode.from_real(torch.empty(4, 6))):
        view = fake_view(mode, fake_view(mode, base, (6, 4), (1, 6), 0), (2, 3), (6, 1), 7)
        assert (view.shape, view.stride(), view.storage_offset()) == ((2, 3), (6, 1), 7)
        assert storage_key(view) == storage_key(base)
        assert mode.device_of(view) == CPU
