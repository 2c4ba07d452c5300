"""Decisions by sizes within the calls of submodules: joined by themselves, and what keeps that from being right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import agree

SIDE = 4
MOST = 7
"""Runs of the whole module, where calls have paths of their own."""
SIZES = [(2, 32, 48), (1, 9, 70), (3, 70, 9), (1, 8, 8), (2, 33, 17), (1, 16, 15), (1, 100, 100)]
AXES = {0: "batch", 2: "height", 3: "width"}
runs: list[int] = []
"""The runs of whole modules."""
last: dict[str, object] = {}


class Windows(torch.nn.Module):
    """Windows of pixels, moved where there is more than one, as torchvision's shifted_window_attention."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = [shift, shift]
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, height, width, _ = x.shape
        y = F.pad(x, (0, 0, 0, -width % SIDE, 0, -height % SIDE))
        _, below, beside, _ = y.shape
        shift = self.shift.copy()
        if below <= SIDE:
            shift[0] = 0
        if beside <= SIDE:
            shift[1] = 0
        if sum(shift) > 0:
            y = torch.roll(y, (-shift[0], -shift[1]), (1, 2))
        parts = y.view(y.shape[0], below // SIDE, SIDE, beside // SIDE, SIDE, y.shape[3])
        y = self.linear(parts.softmax(2) - parts.mean((2, 4), keepdim=True)).view(y.shape)
        if sum(shift) > 0:
            y = torch.roll(y, (shift[0], shift[1]), (1, 2))
        self.look(shift)
        return y[:, :height, :width].contiguous()

    def look(self, shift: list[int]) -> None:
        """What else the call does."""


class Attribute(Windows):
    def look(self, shift: list[int]) -> None:
        self.moved = shift[0]


class Element(Windows):
    def look(self, shift: list[int]) -> None:
        self.shift[0] = shift[0]


class OfOthers(Windows):
    def look(self, shift: list[int]) -> None:
        last["shift"] = shift[0]


class Variable(Windows):
    def look(self, shift: list[int]) -> None:
        global moved
        moved = shift[0]


class Object(Windows):
    def look(self, shift: list[int]) -> None:
        Windows.moved = shift[0]


class Net(torch.nn.Module):
    """Stages of windows, each of which halves the image: 2 decisions each, 16 paths of which some do not lie."""

    def __init__(self, windows: type[Windows] = Windows, stages: int = 3) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 2, 2)
        self.stages = torch.nn.ModuleList([windows(2) for _ in range(stages)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        x = self.first(x).permute(0, 2, 3, 1)
        for index, stage in enumerate(self.stages):
            x = x + stage(x)
            if index < len(self.stages) - 1:
                x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
                x = x[:, ::2, ::2] + x[:, 1::2, 1::2]
        return x


def exported(module: torch.nn.Module, *size: int) -> Any:
    torch.manual_seed(0)
    runs.clear()
    sample = torch.randn(size or (2, 3, 32, 48))
    return fx2onnx.export(module.eval(), (sample,), dynamic_axes={"x": AXES}, input_names=["x"])


def check(module: torch.nn.Module, result: Any, with_conditions: bool = True) -> None:
    """The runner refuses sizes that contradict conditions, of which whole paths ask for more than is needed."""
    model = result.model_proto.SerializeToString()
    sessions: list[Any] = [onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])]
    sessions += [InferenceSession(model)] * with_conditions
    for batch, height, width in SIZES:
        x = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            expected = module(x).numpy()
        for session in sessions:
            np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


def ifs(graph: Any) -> int:
    inner = [a.g for node in graph.node for a in node.attribute if a.type == a.GRAPH]
    return sum(node.op_type == "If" for node in graph.node) + sum(map(ifs, inner))


@pytest.mark.long
@pytest.mark.parametrize("sample", [(2, 3, 32, 48), (1, 3, 8, 64), (2, 3, 9, 9)])
def test_each_call_has_its_branches(sample: tuple[int, ...]) -> None:
    module = Net()
    result = exported(module, *sample)
    assert len(runs) <= MOST, "of the whole module"
    assert 3 <= ifs(result.model_proto.graph) <= 9
    check(module, result)


@pytest.mark.long
@pytest.mark.parametrize("windows", [Attribute, Element, OfOthers, Variable, Object])
def test_what_others_see_is_changed(windows: type[Windows]) -> None:
    """Then the module is run as a whole on each path."""
    module = Net(windows, stages=2)
    result = exported(module)
    assert len(runs) > MOST
    if windows is not Element:  # it is another module after each call
        check(module, result, with_conditions=False)


class Split(Windows):
    """Gives more than one tensor, and a size."""

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        return {"sum": y + x, "half": (y * 2, x.shape[1] // 2)}


class Parts(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        x = self.first(x).permute(0, 2, 3, 1)
        for stage in self.stages:
            given = stage(x)
            half, size = given["half"]
            x = given["sum"][:, : size + 1] + half[:, : size + 1]
        return x


@pytest.mark.long
def test_results_are_a_structure_with_sizes() -> None:
    module = Parts(Split, stages=2)
    result = exported(module)
    assert len(runs) <= MOST
    check(module, result)


class Same(Windows):
    """One path gives the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[1] <= SIDE and x.shape[2] <= SIDE else super().forward(x)


class View(Windows):
    """A view of the input: what is written into it, the input shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        super().forward(x)
        return x[:, :, :]


class Written(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        x = self.first(x).permute(0, 2, 3, 1)
        for stage in self.stages:
            y = stage(x)
            y += 1
            x = (x + y)[:, ::2, ::2].contiguous()
        return x


@pytest.mark.long
@pytest.mark.parametrize("windows", [Same, View])
def test_a_call_may_give_what_it_got(windows: type[Windows]) -> None:
    """Where nothing is written into later, it is a copy."""
    module = Net(windows, 2)
    result = exported(module)
    assert len(runs) <= MOST
    check(module, result)


class Counted(Windows):
    """Writes into a buffer."""

    def __init__(self, shift: int) -> None:
        super().__init__(shift)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x) + self.count * 0


class Random(Windows):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if np.random.rand() < 2 else y + 1


@pytest.mark.long
@pytest.mark.parametrize(("net", "windows"), [(Written, View), (Written, Same), (Net, Counted), (Net, Random)])
def test_calls_that_are_no_scopes(net: Callable[[type[Windows], int], torch.nn.Module], windows: type[Windows]) -> None:
    module = net(windows, 2)
    result = exported(module)
    assert len(runs) > MOST
    if windows is not Counted:
        check(module, result, with_conditions=False)


@pytest.mark.long
def test_results_may_be_written_into() -> None:
    module = Written(Windows, stages=2)
    result = exported(module)
    assert len(runs) <= MOST
    check(module, result)


@pytest.mark.long
def test_the_module_is_as_before() -> None:
    module = Net(stages=2).eval()
    before = [dict(vars(each)) for each in module.modules()]
    exported(module)
    assert [dict(vars(each)) for each in module.modules()] == before


class Joined(torch.nn.Module):
    """Features made twice as large and padded where the others' sides are odd, as decoders of U-Nets do."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.convolution = mode, torch.nn.Conv2d(12, 6, 3, padding=1)

    def forward(self, x: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        y = F.interpolate(x, scale_factor=2.0)
        padding = [0] * 4
        for axis in range(2):
            if others.shape[-axis - 1] != y.shape[-axis - 1]:
                padding[axis * 2 + 1] = 1
        return self.convolution(torch.cat([others, F.pad(y, padding, self.mode)], dim=1))


class UNet(torch.nn.Module):
    def __init__(self, mode: str, levels: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.joined = torch.nn.ModuleList([Joined(mode) for _ in range(levels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        kept = [self.first(x)]
        for _ in self.joined:
            kept.append(F.max_pool2d(kept[-1], 2))
        y = kept.pop()
        for module in self.joined:
            y = module(y, kept.pop()).relu()
        return y


@pytest.mark.parametrize("mode", ["replicate", "constant"])
def test_padding_to_odd_sides_is_decided_at_each_level(mode: str) -> None:
    """Four levels have 256 paths as a whole, and 4 a level."""
    module = UNet(mode, 4)
    result = exported(module, 1, 3, 48, 80)
    assert len(runs) <= 10, "of the whole module"
    sizes = [(2, 3, 16, 16), (1, 3, 17, 31), (1, 3, 47, 50), (1, 3, 33, 64)]
    agree(module, result.model_proto, *((torch.randn(size),) for size in sizes))
