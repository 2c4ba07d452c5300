"""Writes through views as values: the graphs of every inverse, computed and compared with eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.aliasing import carried_back, regenerated
from fx2onnx.capture.recording.values import Memory, View, ViewStep
from fx2onnx.capture.registry import Kind
from tests.capture.recorded import entries

aten = torch.ops.aten
COMPLEX = torch.complex(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3))


class Calls:
    """All that aliasing needs of a tracer."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()

    def call(self, func: Any, args: Any, kwargs: Any, info: TensorInfo) -> torch.fx.Node:
        return self.graph.call_function(func, tuple(args), kwargs)

    def refuse(self, code: str, what: str, **fields: Any) -> UserError:
        return UserError(code, what, **fields)

    def computed(self, nodes: list[torch.fx.Node], *inputs: torch.Tensor) -> list[torch.Tensor]:
        self.graph.output(nodes)
        return torch.fx.Interpreter(torch.nn.Module(), graph=self.graph).run(*inputs)


def info_of(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tensor.dtype, tuple(tensor.shape))


def step_of(func: Any, args: tuple[Any, ...], result: Any, output: int | None) -> ViewStep:
    if output is None:
        return ViewStep(func, args, {}, info_of(result), None)
    return ViewStep(func, args, {}, info_of(result[output]), output, tuple(map(info_of, result)))


BASE = torch.arange(24.0).reshape(2, 3, 4)
VIEWS: list[tuple[Any, tuple[Any, ...], int | None]] = [
    (aten.slice.Tensor, (BASE, 2, 1, 3), None),
    (aten.slice.Tensor, (BASE, 2, 0, 4, 2), None),
    (aten.select.int, (BASE, 1, 2), None),
    (aten.diagonal.default, (BASE, 0, 1, 2), None),
    (aten.as_strided.default, (BASE, [3, 2], [2, 1], 4), None),
    (aten.narrow.default, (BASE, 1, 1, 2), None),
    (aten.view.default, (BASE, [6, 4]), None),
    (aten.view.dtype, (BASE, torch.int32), None),
    (aten.unsqueeze.default, (BASE, 1), None),
    (aten.transpose.int, (BASE, 0, -1), None),
    (aten.permute.default, (BASE, [2, 0, 1]), None),
    (aten.movedim.int, (BASE, 0, 2), None),
    (aten.movedim.intlist, (BASE, [0, 1], [1, 2]), None),
    (aten.mT.default, (BASE,), None),
    (aten.numpy_T.default, (BASE[0],), None),
    (aten.t.default, (BASE[0],), None),
    (aten.expand.default, (BASE[:, :1], [2, 1, 4]), None),
    (aten.split.Tensor, (BASE, 2, 1), 1),
    (aten.split_with_sizes.default, (BASE, [1, 3], 2), 1),
    (aten.chunk.default, (BASE, 2, -1), 0),
    (aten.unbind.int, (BASE, -2), 2),
    (aten.tensor_split.indices, (BASE, [1, 2], 2), 2),
    (aten.hsplit.int, (BASE, 3), 1),
    (aten.real.default, (COMPLEX,), None),
    (aten.imag.default, (COMPLEX,), None),
    (aten.real.default, (BASE,), None),
    (aten.view_as_real.default, (COMPLEX,), None),
    (aten.view_as_complex.default, (torch.arange(6.0).reshape(3, 2),), None),
]


@pytest.mark.parametrize(("func", "args", "output"), VIEWS, ids=[str(func) for func, _, _ in VIEWS])
def test_a_write_through_a_view_is_what_eager_leaves_in_memory(func: Any, args: Any, output: int | None) -> None:
    base = args[0].clone()
    result = func(base, *args[1:])
    seen = result if output is None else result[output]
    value = torch.full_like(seen, 7) - seen
    calls = Calls()
    memory = Memory(calls.graph.placeholder("base"), info_of(base))
    step = step_of(func, args, result, output)
    shown = calls.graph.placeholder("shown")
    view = View(memory, (step,), shown, step.info, 0, seen)
    memory.node = carried_back(calls, view, calls.graph.placeholder("value"), False)
    again = regenerated(calls, memory.present(), (step,))
    after, reread = calls.computed([memory.node, again], base.clone(), seen.clone(), value)
    assert torch.equal(reread, value)
    seen.copy_(value)
    assert torch.equal(after, base)


def test_every_kind_of_inverse_is_tried() -> None:
    tried = {func for func, _, _ in VIEWS}
    functions = {entry.function for entry in entries(Kind.INVERSE) if entry.overload in tried}
    assert {entry.function for entry in entries(Kind.INVERSE)} == functions


def test_a_view_of_the_present_version_is_its_node() -> None:
    calls = Calls()
    node = calls.graph.placeholder("base")
    view = View(Memory(node, info_of(BASE)), (), node, info_of(BASE), 0, BASE)
    assert regenerated(calls, view.memory.present(), view.steps) is node
    assert len(calls.graph.nodes) == 1


def test_a_write_reaches_the_base_through_each_step() -> None:
    base = BASE.clone()
    calls = Calls()
    memory = Memory(calls.graph.placeholder("base"), info_of(base))
    turned, row = base.transpose(0, 2), base.transpose(0, 2)[1]
    steps = (
        ViewStep(aten.transpose.int, (base, 0, 2), {}, info_of(turned), None),
        ViewStep(aten.select.int, (turned, 0, 1), {}, info_of(row), None),
    )
    value = calls.graph.placeholder("value")
    memory.node = carried_back(calls, View(memory, steps, value, info_of(row), 0, row), value, False)
    (after,) = calls.computed([memory.node], base.clone(), torch.ones(3, 2))
    row.fill_(1)
    assert torch.equal(after, base)


@pytest.mark.parametrize(
    ("func", "args"),
    [(aten.expand.default, (BASE[0, :1], [3, 4])), (aten.as_strided.default, (BASE, [2, 3], [1, 1], 0))],
    ids=str,
)
def test_elements_shown_twice_take_one_number_only(func: Any, args: Any) -> None:
    calls = Calls()
    seen = func(*args)
    step = step_of(func, args, seen, None)
    node = calls.graph.placeholder("base")
    view = View(Memory(node, info_of(args[0])), (step,), node, step.info, 0, seen)
    with pytest.raises(UserError, match="shows elements of its memory twice"):
        carried_back(calls, view, node, False)
    assert carried_back(calls, view, node, True) is not node


def test_a_view_without_an_inverse_is_refused() -> None:
    calls = Calls()
    node = calls.graph.placeholder("base")
    step = ViewStep(aten.unfold.default, (BASE, 2, 2, 2), {}, info_of(BASE.unfold(2, 2, 2)), None)
    with pytest.raises(UserError, match=r"a view made by aten\.unfold\.default"):
        carried_back(calls, View(Memory(node, info_of(BASE)), (step,), node, step.info, 0, BASE), node, False)
