"""What ``prepare`` functions of kernels get and give: a callable bound to shapes, constants and scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fx2onnx.runner.types import Array, Spec


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a step before it runs. ``consts[i]`` is the input's value where it never changes."""

    inputs: Sequence[Spec | None]
    consts: Sequence[Array | None]
    outputs: Sequence[Spec]
    channels_last: Sequence[bool]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """``fn(outs, scratch, *inputs)`` writes all of ``outs``. Scratch lives for one call and holds garbage before it.

    ``channels_last``: the output is to lie in memory as [N, *dims, C], whatever its logical axes.
    """

    fn: Callable[..., None]
    scratch: tuple[Spec, ...] = ()
    channels_last: bool = False
    inplace: tuple[int, ...] | None = None
    """Overrides the kernel's ``inplace`` where given."""
