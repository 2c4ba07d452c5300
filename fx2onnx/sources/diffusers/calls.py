"""A component's method as a module with flat inputs and outputs, and its example inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import torch

from fx2onnx.sizes.expr import Dim, Scalar, evaluate
from fx2onnx.sources.diffusers.rows import SIZES, Call
from fx2onnx.sources.hf.sample_context import main_dtype
from fx2onnx.sources.source import AxisName

OUT = "out_"
"""The prefix of the name of an output where an input has that name, as diffusers' own ONNX files have it."""
NUMBER = "number"
_DTYPES = {"int64": torch.int64, "bool": torch.bool}


class ComponentCall(torch.nn.Module):
    """``component.method(**inputs)`` with all inputs and outputs by flat names: a member of a dict or a tuple is ``NAME.KEY``."""

    def __init__(self, component: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.component = component
        self.call = call
        self.numbers = {name for name, sizes in call.inputs.items() if sizes.startswith(NUMBER)}
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {name: value.item() if name in self.numbers else value for name, value in inputs.items()}
        method = self.component if self.call.method == "forward" else getattr(self.component, self.call.method)
        found = _flat_output(method(**_nested(given), **self.call.constants))
        return {OUT + name if name in inputs else name: value for name, value in found.items()}


def _nested(inputs: Mapping[str, object]) -> dict[str, object]:
    """The arguments by name, from flat ones: ``a.key`` is a member of the dict ``a``, ``a.0`` of the tuple ``a``."""
    found: dict[str, object] = {}
    members: dict[str, dict[str, object]] = {}
    for name, value in inputs.items():
        head, dot, rest = name.partition(".")
        if dot:
            members.setdefault(head, {})[rest] = value
        else:
            found[head] = value
    for head, held in members.items():
        inner = _nested(held)
        values, is_sequence = list(inner.values()), "0" in inner
        is_deep = any(isinstance(value, list | tuple | dict) for value in values)
        found[head] = inner if not is_sequence else values if is_deep else tuple(values)
    return found


def _flat_output(result: object) -> dict[str, torch.Tensor]:
    """The tensors of what a component returns, by name."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, tuple):
        result = {f"output_{place}": value for place, value in enumerate(result)}
    assert isinstance(result, Mapping)  # outputs of both packages are
    found: dict[str, torch.Tensor] = {}
    for name, value in result.items():
        value = getattr(value, "parameters", value)  # of a distribution: mean and log of the variance
        if isinstance(value, list | tuple):
            found |= {f"{name}.{place}": item for place, item in enumerate(value) if isinstance(item, torch.Tensor)}
        elif isinstance(value, torch.Tensor):
            found[name] = value
    return found


def example(
    call: Call, module: torch.nn.Module, sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, AxisName]]]:
    """Inputs of the call, drawn by PyTorch's random numbers, and their dynamic sizes. ``sizes`` replace those of ``SIZES``."""
    known = {**SIZES, **sizes}
    inputs: dict[str, torch.Tensor] = {}
    shapes: dict[str, dict[int, AxisName]] = {}
    limit = _vocabulary(module)
    floating = main_dtype(module)
    for name, text in call.inputs.items():
        words = text.split()
        if words[:1] == [NUMBER]:
            inputs[name], shapes[name] = torch.tensor(int(words[1])), {}
            continue
        dtype = _DTYPES.get(words[0]) if words else None
        places = words if dtype is None else words[1:]
        dims = [_dim(word) for word in places]
        shape = [int(evaluate(dim, known)) for dim in dims]
        inputs[name] = _drawn(name, shape, dtype, limit, floating)
        shapes[name] = {
            axis: word if word.isidentifier() else dim
            for axis, (word, dim) in enumerate(zip(places, dims, strict=True))
            if not isinstance(dim, int)
        }
    return inputs, shapes


def _drawn(name: str, shape: list[int], dtype: torch.dtype | None, limit: int, floating: torch.dtype) -> torch.Tensor:
    if dtype is None:
        # Steps of a scheduler are numbers up to 1000 and more.
        is_time = name.startswith("timestep") and not name.endswith("_cond")
        drawn = torch.rand(shape) * 1000 if is_time else torch.randn(shape)
        return drawn.to(floating)
    if "mask" in name:
        return torch.ones(shape, dtype=dtype)
    return torch.randint(0, limit if name in ("input_ids", "audio_codes") else 1, shape).to(dtype)


def _vocabulary(module: torch.nn.Module) -> int:
    """The number of tokens that a text encoder knows."""
    get = getattr(module, "get_input_embeddings", None)
    try:
        return int(get().num_embeddings) if get is not None else 1
    except (AttributeError, NotImplementedError):
        return 1


def _dim(word: str) -> Scalar:
    """A number, or the size that the word says of names of ``SIZES``."""
    return _evaluated(ast.parse(word, mode="eval").body)


def _evaluated(node: ast.expr) -> Scalar:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return Dim.symbol(name)
        case ast.BinOp(left, ast.Mult(), right):
            return _evaluated(left) * _evaluated(right)
        case ast.BinOp(left, ast.Add(), right):
            return _evaluated(left) + _evaluated(right)
        case ast.BinOp(left, ast.FloorDiv(), right):
            return _evaluated(left) // _evaluated(right)
    raise ValueError(ast.unparse(node))
