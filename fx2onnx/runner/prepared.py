"""What ``prepare`` functions of kernels get and give: a callable bound to shapes, constants and scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fx2onnx.runner.types import Array, Spec

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a step before it runs. ``consts[i]`` is the input's value where it never changes."""

    inputs: Sequence[Spec | None]
    consts: Sequence[Array | None]
    outputs: Sequence[Spec]
    channels_last: Sequence[bool]
    attrs: Mapping[str, Any]
    kept: dict[str, Any] = field(default_factory=dict)
    """The step's, whatever the shapes of its inputs."""

    def once(self, key: str, sources: Sequence[Any], make: Callable[[], Made]) -> Made:
        """What ``make`` gives of ``sources``, kept by the step until it is asked with others: weights in another order are
        there once, not once for each shape that an image had.
        """
        held = self.kept.get(key)
        if held is None or any(one is not other for one, other in zip(held[0], sources, strict=True)):
            held = self.kept[key] = (tuple(sources), make())
        made: Made = held[1]
        return made


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
