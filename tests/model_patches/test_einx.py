"""Functions that are written for the shapes of their operands, as einx writes them, for symbolic sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.model_patches.einx import construct_graph, to_tracer
from tests.support import check


class Shaped:
    """The shape of an operand, as einx has it."""

    def __init__(self, origin: object, shape: Any) -> None:
        self.shape = tuple(int(size) for size in shape)


tracer = SimpleNamespace(signature=SimpleNamespace(classical=SimpleNamespace(Tensor=Shaped)))


def _to_tracer(x: Any, backend: object, name: str) -> object:
    return Shaped(None, x.value.shape)


def _construct_graph(args: Any, kwargs: Any, func: Callable[..., str], backend: object = None) -> Any:
    code, names = func(*(each.shape for each in args), **kwargs), {"torch": torch}
    exec(code, names)
    return names["op"], code


def written(func: Callable[..., str], *operands: torch.Tensor, **options: Any) -> Any:
    """What the function gives whose code ``func`` writes for the operands' shapes."""
    if not any(isinstance(size, torch.SymInt) for each in operands for size in each.shape):
        return _construct_graph([Shaped(None, each.shape) for each in operands], options, func)[0](*operands)
    shapes = [to_tracer(_to_tracer, SimpleNamespace(value=each), None, "") for each in operands]
    options = {name: to_tracer(_to_tracer, value, None, "") for name, value in options.items()}
    return construct_graph(_construct_graph, shapes, options, func)[0](*operands)


def of(*shape: object) -> str:
    return f"def op(a, *others):\n    return torch.reshape(a, ({', '.join(map(str, shape))},))"


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a product": lambda x: written(lambda s: of(s[0] * s[1], s[2]), x),
    "a product of three": lambda x: written(lambda s: of(s[0] * s[1] * s[2]), x.transpose(0, 1)),
    "a part": lambda x: written(lambda s: of(s[0], s[1] // 4, 4, s[2]), x),
    "a multiple": lambda x: written(lambda s: of(s[1], s[0] // 2, 2, s[2]), x.repeat(6, 1, 1)),
    "an expression": lambda x: written(lambda s: of(s[1] * s[0], s[2]), torch.cat([x, x[:, 1:]], 1)),
    "a number of Python's": lambda x: written(lambda s, by: of(s[0] * by, s[1] // by, s[2]), x, by=x.shape[1]),
    "a prime": lambda x: written(lambda s, by: of(s[0], s[1] * 61 // by, s[2] * s[0] // s[0]), x, by=61),
    "two operands": lambda x: written(lambda s, t: of(t[0], 3, s[0] // t[0] // 3, s[1]), x.flatten(0, 1).repeat(3, 1), x),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_in_written_code(name: str) -> None:
    others = [(torch.randn(5, 8, 59),)]
    check(PROGRAMS[name], (torch.randn(3, 12, 59),), others=others, dynamic_shapes={"x": {0: "b", 1: "n"}})


@pytest.mark.parametrize(
    "number", [lambda b, n: b + n, lambda b, n: n - b, lambda b, n: b * n + 1, lambda b, n: b // 3]
)
def test_other_numbers_are_refused(number: Callable[[int, int], int]) -> None:
    def program(x: torch.Tensor) -> Any:
        return written(lambda s: f"def op(a):\n    return a * {number(s[0], s[1])}", x)

    with pytest.raises(fx2onnx.UserError, match="no product of the dynamic sizes"):
        fx2onnx.export(program, (torch.randn(3, 12),), dynamic_shapes={"x": {0: "b", 1: "n"}})


@pytest.mark.compares("einx._src.frontend.api:_to_tracer", "einx._src.frontend.api:_construct_graph")
@pytest.mark.skipif(importlib.util.find_spec("einx") is None, reason="einx is not installed")
def test_einx_itself() -> None:
    einx = importlib.import_module("einx")
    check(
        lambda x, y: (
            einx.mean("b (n [p]) d", x, p=4),
            einx.dot("b n d, b -> n d", x, y),
            einx.id("b n d -> (b n) d", x),
        ),
        (torch.randn(3, 12, 7), torch.randn(3)),
        others=[(torch.randn(5, 8, 7), torch.randn(5))],
        dynamic_shapes={"x": {0: "b", 1: "n"}, "y": {0: "b"}},
    )
