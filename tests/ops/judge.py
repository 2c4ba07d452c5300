"""Cases of one overload call each, judged over several opsets against eager PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.ops import harness
from tests.ops.database import ENGINES

aten = torch.ops.aten
OPSETS = (11, 13, 17, 20, 23)


@dataclass(slots=True)
class Case:
    """A call. ``since``: older opsets refuse it; ``nodes``: how many nodes it may take at the default opset."""

    overload: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    since: int = 11
    nodes: int | None = None
    tolerance: tuple[float, float] | None = None

    def __str__(self) -> str:
        return harness.Call(self.overload, self.args, self.kwargs, []).describe().removeprefix("aten.").replace(" ", "")


def case(overload: torch._ops.OpOverload, *args: Any, since: int = 11, **rest: Any) -> Case:
    """A case; keywords that are fields of ``Case`` are its own, the others the call's."""
    own = {name: rest.pop(name) for name in ("nodes", "tolerance") if name in rest}
    return Case(overload, args, rest, since, **own)


def judge(given: Case, opsets: Sequence[int] = OPSETS, fixed: bool = False) -> None:
    """The case is right in both engines in every opset that has it; refused with E202 or E203 below ``since``."""
    call = harness.call_of(given.overload, *given.args, **given.kwargs)
    half = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16 for leaf in call.args)
    for opset in opsets:
        if half and opset < 13:  # ONNX has no bfloat16 there, not even for Cast
            continue
        verdicts = harness.check_engines(call, ENGINES, opset, tolerance=given.tolerance, fixed=fixed)
        for engine, verdict in verdicts.items():
            wanted = ("refused",) if opset < given.since else ("ok", "unjudged")
            assert verdict.status in wanted, (
                f"{engine}, opset {opset}: {verdict.status} {verdict.note} {verdict.op_types}"
            )
        if given.nodes is not None and opset == harness.DEFAULT_OPSET:
            assert len(verdicts["runner"].op_types) <= given.nodes, verdicts["runner"].op_types


def judge_at_other_sizes(
    overload: torch._ops.OpOverload,
    args: tuple[Any, ...],
    others: Sequence[tuple[Any, ...]],
    symbols: Mapping[int, str],
    opsets: Sequence[int] = (13, 20),
    **kwargs: Any,
) -> None:
    """Built once with the sizes in ``symbols`` as named dims, the model is right at other sizes too."""
    call = harness.call_of(overload, *args, **kwargs)
    sizes = {
        size for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) for size in leaf.shape
    }
    named = {size: name for size, name in symbols.items() if size in sizes}
    for opset in opsets:
        model = harness.build(call, opset, named)
        for other in (args, *others):
            actual = harness.call_of(overload, *other, **kwargs)
            tensors = [leaf for leaf in pytree.tree_leaves((other, kwargs)) if isinstance(leaf, torch.Tensor)]
            model.feeds = {f"input{i}": harness.to_numpy(t) for i, t in enumerate(tensors)}
            outputs = harness.run_onnxruntime(model)
            wanted = [leaf for leaf in actual.outputs if isinstance(leaf, torch.Tensor)]
            kept = [want for want, typed in zip(wanted, model.output_types, strict=True) if typed is not None]
            for got, want in zip(outputs, kept, strict=True):
                fault = harness.difference(got, want)
                assert not fault, f"opset {opset}, {actual.describe()}: {fault} {model.op_types}"
