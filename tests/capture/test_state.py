"""Whatever forward does or raises: torch's state, the module and the random numbers are as before the export."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx

X = torch.ones(3, 4)


class Module(nn.Module):
    def __init__(self, act: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.seen: list[Any] = [1, [2]]
        self.kept = {"a": [1]}
        self.act = act

    def forward(self, x: torch.Tensor) -> Any:
        found = self.act(self, x)
        return self.fc(x) if found is None else found


def _state(module: nn.Module) -> dict[str, Any]:
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return {
        "flags": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            str(torch.empty(()).device),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch._C._get_mkldnn_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
        ),
        "modes": (len(modes), len(torch.overrides._get_current_function_mode_stack())),
        "keys": (str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())),
        "patched": (min, max, torch.tensor, torch.compile, nn.Module.__call__, "data" in vars(torch.Tensor)),
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),
        "weights": {name: value.tolist() for name, value in module.state_dict().items()},
        "parts": [(sorted(vars(part)), part.training, len(part._forward_hooks)) for part in module.modules()],
        "frozen": [(parameter.requires_grad, parameter.grad is None) for parameter in module.parameters()],
        "kept": repr((module.seen, module.kept)),
    }


def _raises(module: Any, x: torch.Tensor) -> None:
    module.norm.train()
    module.extra = 1
    module.fc.weight.requires_grad_(False)
    module.norm(x)
    raise ValueError("no")


def _raises_in_regions(module: Any, x: torch.Tensor) -> None:
    with torch.no_grad(), torch.autocast("cpu"), torch.device("cpu"):
        raise KeyError("no")


def _raises_in_vmap(module: Any, x: torch.Tensor) -> Any:
    return torch.vmap(lambda row: row[10])(x)


def _raises_in_branch(module: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda v: v.missing, lambda v: v, (x,))


def _interrupted(module: Any, x: torch.Tensor) -> None:
    raise KeyboardInterrupt


def _turns_gradients_off(module: Any, x: torch.Tensor) -> None:
    torch.set_grad_enabled(False)


def _sets_device(module: Any, x: torch.Tensor) -> None:
    torch.set_default_device("meta")


def _leaves_autocast_on(module: Any, x: torch.Tensor) -> None:
    torch.autocast("cpu", torch.bfloat16).__enter__()


def _draws(module: Any, x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    return x + torch.rand(4) * 0 + np.random.rand() * 0 + random.random() * 0


def _trains(module: Any, x: torch.Tensor) -> Any:
    module.train()
    return module.drop(module.norm(x))


def _writes(module: Any, x: torch.Tensor) -> None:
    module.fc.weight.data.zero_()
    module.norm.running_mean.add_(1)
    module.seen[1].append(3)
    module.kept["a"].append(4)


def _adds_and_removes(module: Any, x: torch.Tensor) -> None:
    module.scale = nn.Parameter(torch.ones(4))
    module.register_buffer("shift", torch.ones(4))
    module.fc.register_forward_hook(lambda *args: None)
    del module.drop


def _takes_gradients(module: Any, x: torch.Tensor) -> None:
    with torch.enable_grad():
        module.fc(x).sum().backward()


ACTS = [
    _raises, _raises_in_regions, _raises_in_vmap, _raises_in_branch, _interrupted, _turns_gradients_off, _sets_device,
    _leaves_autocast_on, _draws, _trains, _writes, _adds_and_removes, _takes_gradients,
]  # fmt: skip


@pytest.fixture
def defaults() -> Iterator[None]:
    """A failing test must not spoil the others."""
    threads = torch.get_num_threads()
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)  # torch 2.8 would ask None for its device
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("capture", ["fake", "symbolic"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.strip("_").replace("_", " "))
def test_everything_is_as_before(act: Callable[[Any, torch.Tensor], Any], capture: str) -> None:
    module = Module(act).train()
    module.fc.eval()
    before = _state(module)
    try:
        fx2onnx.export(module, (X,), capture=capture)
    except (fx2onnx.UserError, KeyboardInterrupt) as error:
        failed = isinstance(error, KeyboardInterrupt) or error.code
        assert failed
    after = _state(module)
    for name, value in before.items():
        assert after[name] == value, name


class Caching(nn.Module):
    """Keeps what it made by size, as position embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, torch.Tensor] = {}
        self.conv = nn.Conv2d(3, 2, 4, 4)
        self.table = nn.Parameter(torch.randn(1, 2, 4, 4))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(nn.functional.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4)))
        height, width = x.shape[-2:]
        if (height, width) not in self.kept:
            self.kept[(height, width)] = nn.functional.interpolate(self.table, size=(height, width))
        return self.drop(x) + self.kept[(height, width)]


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.parametrize("has_run", [False, True])
def test_sizes_do_not_stay_behind_as_keys(has_run: bool) -> None:
    module, x = Caching(), torch.randn(1, 3, 17, 23)
    if has_run:
        module(x)
    before = [*module.kept]
    fx2onnx.export(module, (x,), dynamic_shapes=({2: "height", 3: "width"},))
    assert [*module.kept] == before
    assert all(type(size) is int for key in module.kept for size in key)
    assert module.drop.training


@pytest.mark.long
def test_a_device_set_by_forward_leaves_torchs_list_of_constructors_whole() -> None:
    """torch makes the list once a process, at the first use of a device: here in forward."""
    code = """
import torch, fx2onnx
def forward(x):
    torch.set_default_device("meta")
    return x + 1
fx2onnx.export(forward, (torch.ones(2),), None)
with torch.device("meta"):
    print(torch.tensor(1.0).device, torch.as_tensor([1]).device, torch.linspace(0, 1, 2).device)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["meta", "meta", "meta"]
