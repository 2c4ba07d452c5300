"""One attempt to capture a module, as a value: the driver changes one thing of it, and tries again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fx2onnx.base.assumptions import Specialization
from fx2onnx.base.dims import Dim
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.patches import Patches, TracedCode
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.shapes.dynamic import hints_of


@dataclass(frozen=True)
class Attempt:
    """A module, and how it is run on fake tensors."""

    root: torch.nn.Module
    arguments: Arguments
    options: CaptureOptions
    keep: Callable[[Any], bool]
    """Whether an overload stays whole; others are split by PyTorch's decompositions."""
    patches: Patches
    """Of library functions, in place while the module runs."""
    strategy: str = "fake"
    """What ``root`` is: the module itself (``fake``), a traced copy (``symbolic``) or torch.export's program (``export``)."""
    hints: Mapping[str, int] = field(default_factory=dict)
    """The size of each symbol at which comparisons are decided."""
    larger: Mapping[str, int] = field(default_factory=dict)
    """Sizes in the place of hints at which a derived size is 1."""
    whole: bool = True
    """Whether composite operators are recorded whole, rather than as the operators that they consist of."""
    traced: TracedCode = frozenset()
    """Functions of libraries that take their branch for traced code."""
    change: str = ""
    """What makes this attempt differ from the one before."""

    def at_sample(self) -> Attempt:
        """With the sample's sizes. 0 and 1 would hide what happens at all others. Raises UserError E105."""
        sizes = hints_of(self.arguments).items()
        return replace(self, hints={name: size if size > 1 else 2 for name, size in sizes})

    def specialized(self, done: Specialization) -> Attempt:
        """With the number or the other size for one that was a symbol; everything else as in the first attempt."""
        name = str(done.size.as_symbol())
        leaves = [
            replace(
                leaf,
                axes={
                    axis: size.substitute({name: done.value}) if isinstance(size, Dim) else size  # type: ignore[misc]
                    for axis, size in leaf.axes.items()
                },
            )
            for leaf in self.arguments.leaves
        ]
        arguments = replace(self.arguments, leaves=leaves)
        return replace(
            self, arguments=arguments, larger={}, whole=True, traced=frozenset(), change=str(done)
        ).at_sample()

    def __str__(self) -> str:
        return self.strategy + (f": {self.change}" if self.change else "")
