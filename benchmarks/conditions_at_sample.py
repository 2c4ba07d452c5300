"""Whether every condition on sizes in the report of a model is true at the sizes of its own example inputs.

    python -m benchmarks.conditions_at_sample [SOURCE ...] [--kind zoo|torchvision|timm] [--limit N]

Exports without a file, with the source's own dynamic sizes, or ``"auto"`` where it has none; prints each false condition, and what
was refused.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

import torch

import fx2onnx
from fx2onnx.base.assumptions import Assumption, Condition, Guard, Specialization
from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.sources import resolve
from fx2onnx.sources.registry import names as names_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--kind", help="all sources of a kind")
    parser.add_argument("--limit", type=int, default=sys.maxsize, help="models, evenly chosen")
    asked = parser.parse_args()
    sources = list(asked.sources)
    if asked.kind:
        names = [f"{asked.kind}:{name}" for name in names_of(asked.kind)]
        sources += names[:: max(1, len(names) // asked.limit)][: asked.limit]
    counts: Counter[str] = Counter()
    for source in sources:
        begin = time.perf_counter()
        text = _one(source, counts)
        print(f"{source}: {text} ({time.perf_counter() - begin:.1f} s)", flush=True)
    print(dict(counts))
    sys.exit(bool(counts["false"]))


def _one(source: str, counts: Counter[str]) -> str:
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = resolve(source)
            shapes = made.dynamic_shapes or "auto"
            result = fx2onnx.export(
                made.module, made.args, kwargs=made.kwargs or None, dynamic_shapes=shapes, bake=made.bake,
                data_branches=made.data_branches, optimize=False,
            )  # fmt: skip
    except Fx2OnnxError as error:
        counts["refused"] += 1
        return f"refused, [{error.code}] {error.what}"
    counts["exported"] += 1
    inputs = result.model.graph.inputs
    given = [*made.args, *(made.kwargs or {}).values()]
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    sizes = {
        dim.value: int(size)
        for value, tensor in zip(inputs, tensors, strict=False)
        for dim, size in zip(value.shape or (), tensor.shape, strict=False)
        if isinstance(getattr(dim, "value", None), str)
    }
    false = []
    for assumed in result.report.assumptions:
        if isinstance(assumed, Assumption):
            is_tried = "not tried on the example inputs" not in assumed.what
            counts["notes" if assumed.kind == "note" and is_tried else "asserted" if is_tried else "not tried"] += 1
            continue
        assert isinstance(assumed, Condition | Guard | Specialization)
        if not assumed.relation.symbols() <= sizes.keys():
            counts["of other sizes"] += 1
            continue
        counts["conditions"] += 1
        if not assumed.relation.is_true_at(sizes):
            counts["false"] += 1
            false.append(f"FALSE {assumed}")
    return "; ".join(false) or f"{len(result.report.assumptions)} lines"


if __name__ == "__main__":
    main()
