"""``--sweep`` and ``--depth``: the same model with other sample inputs, or with another number of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.sources import Source

_SWEEP = re.compile(r"\s*([A-Za-z_]\w*)\s*:\s*(\d+(?:\+\d+)*)\s*=\s*([\d,\s]+)")
_DEPTH = re.compile(r"\s*(?:([A-Za-z_][\w+]*)\s*=)?\s*([\d,\s]+)")
_LAYERS_OF = {"hf": "num_hidden_layers", "timm": "depth"}
"""The keyword that says how many layers a source of this kind has, where one says it for all."""


@dataclass(frozen=True)
class Sweep:
    """Sizes of one axis of one argument, or of several axes that have the same size each time."""

    argument: str
    axes: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def label(self) -> str:
        numbers = " and ".join(map(str, self.axes))
        return f"{self.argument}, {'axis' if len(self.axes) == 1 else 'axes'} {numbers}"


def parse_sweep(text: str) -> Sweep:
    """``input_ids:1=32,64`` or ``x:2+3=64,128``. Raises UserError E001."""
    match = _SWEEP.fullmatch(text)
    if match is None:
        raise UserError("E001", f"cannot read --sweep '{text}'", next="write ARG:AXIS=N,N, as input_ids:1=32,64,128")
    axes = tuple(dict.fromkeys(int(axis) for axis in match[2].split("+")))
    return Sweep(match[1], axes, _numbers(match[3], "--sweep"))


def parse_depth(text: str, spec: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """``12,24`` or ``KEY=12,24`` or ``KEY+KEY=12,24``: the keywords of the source and their values. Raises UserError E001."""
    match = _DEPTH.fullmatch(text)
    if match is None:
        raise UserError("E001", f"cannot read --depth '{text}'", next="write N,N or KEY=N,N, as num_layers=12,24")
    key = match[1] or _LAYERS_OF.get(spec.partition(":")[0])
    if key is None:
        raise UserError(
            "E001",
            f"--depth does not know which keyword of {spec} is the number of layers",
            next=f"name it: --depth KEY={text}",
        )
    return tuple(key.split("+")), _numbers(match[2], "--depth")


def _numbers(text: str, option: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(",") if part.strip())
    if not values or min(values) < 1:
        raise UserError("E001", f"{option} needs sizes of at least 1, not '{text.strip()}'")
    return values


def with_depth(spec: str, keys: Sequence[str], value: int) -> str:
    """The spec with every key set to ``value``."""
    body, _, query = spec.partition("?")
    kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in keys]
    return f"{body}?{'&'.join([*kept, *(f'{key}={value}' for key in keys)])}"


def with_size(source: Source, sweep: Sweep, value: int) -> Source:
    """The source with its sample inputs at another size: the argument's axes, and every axis of any argument that has the
    dim name of one of them. Numbers are repeated or cut, so that ids stay ids.

    Raises:   UserError E001 for an argument or an axis that the sample call does not have.
    """
    import torch

    from fx2onnx.cli.dynamic import arguments_of

    samples = arguments_of(source)
    named = source.dynamic_shapes or {}
    tensor = samples.get(sweep.argument)
    if not isinstance(tensor, torch.Tensor):
        raise UserError("E001", f"--sweep names '{sweep.argument}', which is no tensor", next=f"one of {list(samples)}")
    if max(sweep.axes) >= tensor.dim():
        what = f"{sweep.argument} has no axis {max(sweep.axes)}"
        raise UserError("E001", what, why=f"its shape is {list(tensor.shape)}")
    own = named.get(sweep.argument, {})
    dims = [own[axis] for axis in sweep.axes if own.get(axis) is not None]
    axes = {name: [axis for axis, dim in dim_of.items() if dim in dims] for name, dim_of in named.items()}
    axes[sweep.argument] = sorted({*axes.get(sweep.argument, []), *sweep.axes})
    resized = {name: _resized(samples[name], places, value) for name, places in axes.items() if name in samples}
    positional = list(samples)[: len(source.args)]
    return replace(
        source,
        args=tuple(resized.get(name, arg) for name, arg in zip(positional, source.args, strict=True)),
        kwargs={name: resized.get(name, arg) for name, arg in source.kwargs.items()},
    )


def _resized(tensor: Any, axes: Sequence[int], value: int) -> Any:
    import torch

    for axis in axes:
        index = torch.arange(value, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, index)
    return tensor
