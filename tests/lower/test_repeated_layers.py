"""Identical layers are stamped, and the file is what translating every node gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import fx2onnx
from fx2onnx.lower.layers import RepeatedLayers
from models_zoo.registry import build
from tests.support import check


class Counted:
    """A counter of the nodes that an export stamps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = 0
        stamp = RepeatedLayers._stamp

        def counting(layers: RepeatedLayers, pattern: Any, group: Any, outside: Any) -> None:
            self.nodes += len(group)
            stamp(layers, pattern, group, outside)

        monkeypatch.setattr(RepeatedLayers, "_stamp", counting)


@pytest.fixture
def stamped(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def _one_by_one(layers: RepeatedLayers, nodes: Any, depth: int = 0) -> None:
    for node in nodes:
        layers._translate(node)


def _file(entry: Any, dynamic: bool, metadata: str) -> bytes:
    shapes = entry.dynamic_shapes if dynamic else None
    found = fx2onnx.export(entry.module, entry.args, kwargs=entry.kwargs, dynamic_shapes=shapes, metadata=metadata)
    content: bytes = found.model_proto.SerializeToString(deterministic=True)
    return content


CASES = [(name, dynamic) for name in ("vit_b_16", "gpt2", "t5_small", "llama_small") for dynamic in (False, True)]
QUICK = [("t5_small", False), ("llama_small", False), ("llama_small", True)]
SLOW = pytest.mark.slow


@pytest.mark.long_cases("t5_small-False-light", "llama_small-False-light", "llama_small-True-light")
@pytest.mark.parametrize("metadata", ["light", pytest.param("full", marks=SLOW)])
@pytest.mark.parametrize(
    ("name", "dynamic"), [pytest.param(*case, marks=() if case in QUICK else SLOW) for case in CASES]
)
def test_the_file_is_the_same(
    name: str, dynamic: bool, metadata: str, stamped: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = build(name)
    entry.module.eval()
    found = _file(entry, dynamic, metadata)
    assert stamped.nodes > 200
    monkeypatch.setattr(RepeatedLayers, "run", _one_by_one)
    assert found == _file(entry, dynamic, metadata)


class Block(nn.Module):
    """A layer whose form depends on more than types where ``kind`` says so."""

    def __init__(self, kind: str, index: int) -> None:
        super().__init__()
        self.kind = kind
        self.index = index
        self.fc = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((1,), 0.5 + index))
        self.register_buffer("mask", torch.zeros(6, 6))
        if index == 4:
            self.mask[0] = -torch.inf

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.kind == "own mask":
            x = nn.functional.scaled_dot_product_attention(x, x, x, self.mask)
        if self.kind == "mask from outside":
            x = nn.functional.scaled_dot_product_attention(x, x, x, mask)
        if self.kind == "padded outside":
            x = x * nn.functional.max_pool1d(mask, 3, 1, 1).mean() / 2
        if self.kind == "number of its own":
            x = x * (1 + self.index / 10)
        if self.kind == "buffer":
            x = torch.clamp(x * self.scale, max=3.0)
        if self.kind == "sign of zero":
            x = torch.copysign(x, -0.0 if self.index == 4 else 0.0)
        if self.kind == "other branch" and self.index % 2:
            x = x.relu() - 1
        if self.kind == "same weight":
            x = x @ self.fc.weight @ self.fc.weight.T
        if self.kind == "two results":
            low, high = x.chunk(2, -1)
            x = torch.cat((high.sin(), low), -1)
        return torch.tanh(self.fc(x).sin()) + x


class Tower(nn.Module):
    def __init__(self, kind: str, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(kind, index) for index in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        seen = []
        open_rows = mask.exp()
        closed_row = torch.where(torch.arange(6)[:, None] == 1, -torch.inf, open_rows)
        if self.layers[0].kind == "padded outside":
            open_rows, closed_row = open_rows[None], nn.functional.pad(open_rows[None, :, 1:], (1, 0), value=0.5)
        for layer in self.layers:
            x = layer(x, closed_row if layer.index == 4 else open_rows)
            seen.append(x)
        return seen[-1], seen[2]


KINDS = [
    "plain", "own mask", "mask from outside", "padded outside", "number of its own", "buffer", "other branch",
    "same weight", "sign of zero", "two results",
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_differ_where_their_operands_do(kind: str, dynamic: bool, stamped: Counted) -> None:
    arguments = {"dynamic_shapes": ({0: "batch"}, None)} if dynamic else {}
    others = [(torch.randn(3, 6, 8), torch.rand(6, 6))] if dynamic else []
    check(Tower(kind).eval(), (torch.randn(2, 6, 8), torch.rand(6, 6)), others=others, **arguments)
    assert bool(stamped.nodes) == (kind not in ("own mask", "number of its own"))


@pytest.mark.parametrize("kind", ["own mask", "mask from outside", "padded outside"])
def test_a_copy_is_what_a_translation_would_be(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def operators() -> list[tuple[str, int]]:
        found = fx2onnx.export(Tower(kind).eval(), (torch.randn(2, 6, 8), torch.rand(6, 6)), optimize=0)
        return [(node.op_type, len(node.output)) for node in found.model_proto.graph.node]

    copied = operators()
    monkeypatch.setattr(RepeatedLayers, "run", _one_by_one)
    assert copied == operators()


def test_a_users_translation_is_asked_for_every_layer(stamped: Counted) -> None:
    asked = []

    def tanh(op: Any, self: Any) -> Any:
        asked.append(self)
        return op.Tanh(self)

    fx2onnx.export(
        Tower("plain").eval(),
        (torch.randn(2, 6, 8), torch.rand(6, 6)),
        custom_translations={torch.ops.aten.tanh.default: tanh},
    )
    assert len(asked) == 6
    assert not stamped.nodes


class Gated(nn.Module):
    """A layer of a few forms."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor, form: int) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x.roll(1, -2)) * (1.0 + form)))


class Recurring(nn.Module):
    """Layers that are called in any order, several times, each time in one of their forms."""

    def __init__(self, calls: list[tuple[int, int]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Gated() for _ in range(5))
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, form in self.calls:
            x = self.layers[index](x, form)
        return x


IN_TURN = [(index, form) for form in range(2) for index in range(5)]


@pytest.mark.parametrize("form", [1, 0])
def test_layers_of_a_later_round_have_their_own_weights(form: int, stamped: Counted) -> None:
    calls = [(index, round_ and form) for round_ in range(3) for index in range(5)]
    check(Recurring(calls).eval(), (torch.randn(2, 3, 8),))
    assert stamped.nodes


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@example(calls=IN_TURN)
@given(calls=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=20))
def test_layers_may_recur_in_any_order(calls: list[tuple[int, int]]) -> None:
    check(Recurring(calls).eval(), (torch.randn(2, 3, 8),))
