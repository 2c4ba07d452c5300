"""Functions of control flow as nested graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.control_flow import Nested, joined_dims, record_nested
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from tests.capture.recorded import M, N, handling, info, inputs_of, recorded, tracer_of

aten = torch.ops.aten


def test_a_function_becomes_a_graph_that_refers_to_outer_nodes() -> None:
    tracer = tracer_of({"n": 3})
    x, y = inputs_of(tracer, (N, 2), (2,))
    with handling(tracer):
        nested, rebuild = record_nested(tracer, lambda z: {"sum": z + y, "two": 2}, [x])
    assert [node.op for node in nested.graph.nodes] == ["placeholder", "call_function", "call_function"]
    assert nested.inputs[0].meta["val"] == info(N, 2)
    assert nested.outputs[0].args == (nested.inputs[0], tracer.values.node_of(y))
    assert nested.infos == (info(N, 2), info(dtype=torch.int64))
    assert rebuild(["a", "b"]) == {"sum": "a", "two": "b"}
    assert str(nested) == "graph of 3 nodes"


def test_writes_into_the_operands_are_refused() -> None:
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (2,))
    with handling(tracer), pytest.raises(UserError, match="writes into a tensor"):
        record_nested(tracer, lambda z: z.add_(1), [x])


def test_sizes_in_which_branches_differ_are_unknown() -> None:
    unknown = iter([M])
    assert joined_dims(info(2, N, 3), info(2, N + 1, 3), lambda: next(unknown)) == (2, M, 3)


@pytest.mark.parametrize(
    ("function", "name", "infos"),
    [
        (lambda x, y: torch.cond(x.sum() > 0, lambda z: z + 1, lambda z: z - 1, (x,)), "cond", [info(4, 3)]),
        (
            lambda x, y: torch.while_loop(lambda n, z: n < 5, lambda n, z: (n + 1, z * 2), (torch.tensor(0), x)),
            "while_loop",
            [info(dtype=torch.int64), info(4, 3)],
        ),
        (
            lambda x, y: HIGHER_ORDER["scan"](lambda c, z: [c + z, z.sum()], [y], [x], ()),
            "scan",
            [info(3), info(4)],
        ),
        (lambda x, y: HIGHER_ORDER["map_impl"](lambda z, w: (z * w,), (x,), (y,)), "scan", [info(4, 3)]),
    ],
    ids=["cond", "while_loop", "scan", "map"],
)
def test_operators(function: Any, name: str, infos: list[Any]) -> None:
    tracer, results = recorded(function, (4, 3), (3,))
    (node,) = [node for node in tracer.values.graph.nodes if node.target is HIGHER_ORDER[name]]
    assert any(isinstance(arg, Nested) for arg in node.args)
    results = [results] if isinstance(results, torch.Tensor) else results
    assert [tracer.values.node_of(result).meta["val"] for result in results] == infos


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cond(x.sum() > 0, lambda z: z, lambda z: z.double(), (x,)),
        lambda x: torch.while_loop(lambda z: z.sum() < 5, lambda z: (z[:1],), (x,)),
    ],
    ids=["branches", "body"],
)
def test_changed_types_are_refused(function: Any) -> None:
    with pytest.raises(UserError, match=r"different types|changes the type") as caught:
        recorded(function, (4, 3))
    assert caught.value.code == "E107"
