"""The distance of a file's outputs from eager PyTorch's, where random weights may blow up the differences by
rounding."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

ERROR = 1e-3
"""The largest error, as a share of the largest number of an output."""
RATIO = 8.0
"""Models with random weights may blow up what rounding does: an output may be so many times as far off as eager PyTorch is."""
NUDGED = 4
"""Runs of eager PyTorch with inputs a rounding apart: where errors are blown up, that of one run is a matter of luck."""


def eager_outputs(built: Any, arguments: Mapping[str, Any]) -> list[torch.Tensor] | None:
    """The tensors that the module gives; None where it does not run at these sizes."""
    from torch.utils._pytree import tree_leaves

    try:
        outputs = built.module(**arguments)
    except Exception:  # these sizes are not for this model
        return None
    return [value for value in tree_leaves(_plain(outputs)) if isinstance(value, torch.Tensor)]


def _plain(outputs: Any) -> Any:
    return outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs


def compared(outputs: Sequence[Any], built: Any, arguments: Mapping[str, Any]) -> str:
    """``equal``, where an output is no farther off than ``ERROR``, or than ``RATIO`` times what eager PyTorch may be in float32."""
    expected = [tensor.numpy() for tensor in eager_outputs(built, arguments) or []]
    pairs = list(zip(outputs, expected, strict=False))
    for got, want in pairs:
        if got.shape != want.shape:
            return f"shape {got.shape} instead of {want.shape}"
    worst = max((_error(got, want) for got, want in pairs), default=0.0)
    if worst > ERROR and (exact := _in_float64(built, arguments)) is not None:
        runs = [expected, *_nudged(built, arguments)]
        own = [
            max(map(_error, column, [true] * len(runs)))
            for column, true in zip(zip(*runs, strict=True), exact, strict=False)
        ]
        worst = max(_error(got, true) - RATIO * off for got, off, true in zip(outputs, own, exact, strict=False))
    return "equal" if worst <= ERROR else f"off by {worst:.1e}"


def _error(got: Any, want: Any) -> float:
    """The largest difference as a share of the largest number."""
    if not want.size or want.dtype.kind != "f":
        return 0.0
    scale = float(np.abs(np.nan_to_num(want)).max()) or 1.0
    return float(np.nanmax(np.abs(got - want), initial=0.0)) / scale


def _in_float64(built: Any, arguments: Mapping[str, Any]) -> list[Any] | None:
    wide = {name: _double(value) for name, value in arguments.items()}
    exact = eager_outputs(replace(built, module=copy.deepcopy(built.module).double()), wide)
    return None if exact is None else [tensor.numpy() for tensor in exact]


def _nudged(built: Any, arguments: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The outputs of eager PyTorch with every number of the inputs moved by a rounding, up or down."""
    for seed in range(NUDGED):
        random = torch.Generator().manual_seed(seed)

        def moved(value: Any, random: torch.Generator = random) -> Any:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return value
            signs = torch.randint(0, 2, value.shape, generator=random) * 2 - 1
            return value * (1 + signs * torch.finfo(value.dtype).eps)

        outputs = eager_outputs(built, {name: moved(value) for name, value in arguments.items()})
        if outputs is not None:
            yield [tensor.numpy() for tensor in outputs]


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
