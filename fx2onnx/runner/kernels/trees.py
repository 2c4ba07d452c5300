"""ai.onnx.ml: tree ensembles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fx2onnx.runner.kernels.ml import ML, binary_scores, class_labels, transformed
from fx2onnx.runner.registry import kernel
from fx2onnx.runner.types import FLOAT32, Array, narrowed

_COMPARE: dict[str, Any] = {
    "BRANCH_LEQ": lambda x, v: x <= v,
    "BRANCH_LT": lambda x, v: x < v,
    "BRANCH_GTE": lambda x, v: x >= v,
    "BRANCH_GT": lambda x, v: x > v,
    "BRANCH_EQ": lambda x, v: x == v,
    "BRANCH_NEQ": lambda x, v: x != v,
    "BRANCH_MEMBER": lambda x, v: x in v,
}
_MODE_NAMES = tuple(_COMPARE)
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _combine(n_rows: int, n_targets: int, votes: Iterable[tuple[int, int, float]], how: str, n_trees: int) -> Array:
    """[rows, targets] of all (row, target, weight)."""
    total = np.zeros((n_rows, n_targets), np.float64)
    seen = np.zeros((n_rows, n_targets), np.bool_)
    for row, target, weight in votes:
        if how in ("SUM", "AVERAGE") or not seen[row, target]:
            total[row, target] += weight
        else:
            total[row, target] = (min if how == "MIN" else max)(total[row, target], weight)
        seen[row, target] = True
    return total / n_trees if how == "AVERAGE" else total


@kernel("TreeEnsemble", 5, domain=ML)
def tree_ensemble(
    x: Array,
    *,
    nodes_splits: Array,
    nodes_featureids: Sequence[int],
    nodes_modes: Array,
    nodes_truenodeids: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int],
    nodes_falseleafs: Sequence[int],
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    tree_roots: Sequence[int],
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    membership_values: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_hitrates: Any = None,
) -> Array:
    """The leaves that each row reaches, combined by target."""
    members = iter([] if membership_values is None else membership_values.tolist())
    tests: list[Any] = []
    for split, mode in zip(nodes_splits.tolist(), nodes_modes.tolist(), strict=True):
        if _MODE_NAMES[mode] != "BRANCH_MEMBER":
            tests.append(split)
            continue
        chosen = set()
        for value in members:
            if value != value:
                break
            chosen.add(value)
        tests.append(chosen)

    def walk(row: list[float], node: int) -> int:
        for _ in range(len(tests) + 1):
            value = row[nodes_featureids[node]]
            missing = bool(nodes_missing_value_tracks_true and nodes_missing_value_tracks_true[node] and value != value)
            if missing or _COMPARE[_MODE_NAMES[nodes_modes[node]]](value, tests[node]):
                target, is_leaf = nodes_truenodeids[node], nodes_trueleafs[node]
            else:
                target, is_leaf = nodes_falsenodeids[node], nodes_falseleafs[node]
            if is_leaf:
                return target
            node = target
        raise ValueError("the nodes of a tree form a cycle")

    weights = leaf_weights.tolist()
    votes = [
        (index, leaf_targetids[leaf], weights[leaf])
        for index, row in enumerate(x.tolist())
        for leaf in (walk(row, root) for root in tree_roots)
    ]
    total = _combine(len(x), n_targets, votes, _AGGREGATES[aggregate_function], len(tree_roots))
    return narrowed(transformed(total, _TRANSFORMS[post_transform]), x.dtype)


class _OldTrees:
    """Trees of versions 1-3: nodes named by (tree, node)."""

    def __init__(self, attrs: dict[str, Any], prefix: str) -> None:
        keys = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
        self.index = {key: position for position, key in enumerate(keys)}
        if len(self.index) != len(keys):
            raise ValueError("a tree node is defined twice")
        self.trees = attrs["nodes_treeids"]
        self.features, self.modes = attrs["nodes_featureids"], attrs["nodes_modes"]
        values = attrs.get("nodes_values_as_tensor")
        self.values = attrs.get("nodes_values", ()) if values is None else values.tolist()
        self.true, self.false = attrs["nodes_truenodeids"], attrs["nodes_falsenodeids"]
        self.missing = attrs.get("nodes_missing_value_tracks_true", ())
        weights = attrs.get(f"{prefix}_weights_as_tensor")
        numbers = attrs.get(f"{prefix}_weights", ()) if weights is None else weights.tolist()
        self.least_weight = min(numbers, default=0.0)
        self.leaves: dict[int, list[tuple[int, float]]] = {}
        places = zip(
            attrs[f"{prefix}_treeids"], attrs[f"{prefix}_nodeids"], attrs[f"{prefix}_ids"], numbers, strict=True
        )
        for tree, node, target, weight in places:
            self.leaves.setdefault(self.index[tree, node], []).append((target, weight))
        children = {(t, n) for t, ns in ((t, (a, b)) for t, a, b, m in zip(self.trees, self.true, self.false, self.modes, strict=True) if m != "LEAF") for n in ns}  # fmt: skip
        self.roots = [position for key, position in self.index.items() if key not in children]

    def votes(self, x: Array) -> Iterable[tuple[int, int, float]]:
        for number, row in enumerate(x.tolist()):
            for root in self.roots:
                for target, weight in self.leaves.get(self.walk(row, root), ()):
                    yield number, target, weight

    def walk(self, row: list[float], node: int) -> int:
        for _ in range(len(self.trees) + 1):
            if self.modes[node] == "LEAF":
                return node
            value = row[self.features[node]]
            missing = bool(self.missing and self.missing[node] and value != value)
            goes = missing or _COMPARE[self.modes[node]](value, self.values[node])
            node = self.index[self.trees[node], (self.true if goes else self.false)[node]]
        raise ValueError("the nodes of a tree form a cycle")


def _with_base(total: Array, attrs: dict[str, Any]) -> Array:
    base = attrs.get("base_values_as_tensor")
    values = attrs.get("base_values") if base is None else base
    return total if values is None or not len(values) else np.asarray(total + np.asarray(values))


@kernel("TreeEnsembleRegressor", (1, 3), domain=ML)
def tree_ensemble_regressor(x: Array, *, n_targets: int = 1, aggregate_function: str = "SUM", **attrs: Any) -> Array:
    """Leaves reached, combined by target, plus base values."""
    trees = _OldTrees(attrs, "target")
    total = _combine(len(x), n_targets, trees.votes(x), aggregate_function, len(trees.roots))
    return narrowed(transformed(_with_base(total, attrs), attrs.get("post_transform", "NONE")), FLOAT32)


@kernel("TreeEnsembleClassifier", (1, 3), domain=ML)
def tree_ensemble_classifier(x: Array, **attrs: Any) -> tuple[Array, Array]:
    """The class with the greatest sum of leaf weights, and the sums."""
    trees = _OldTrees(attrs, "class")
    ints, strings = attrs.get("classlabels_int64s"), attrs.get("classlabels_strings")
    n_classes = len(ints or strings or ())
    total = _with_base(_combine(len(x), n_classes, trees.votes(x), "SUM", len(trees.roots)), attrs)
    kind = attrs.get("post_transform", "NONE")
    if len(set(attrs["class_ids"])) == 1 and n_classes == 2:
        only = attrs["class_ids"][0]
        score, is_share = total[:, only], trees.least_weight >= 0
        chosen = (score > (0.5 if is_share else 0)).astype(np.int64)
        scores = transformed(total, kind) if only == 1 else binary_scores(score, kind, is_share)
        return class_labels(chosen, ints, strings), narrowed(scores, FLOAT32)
    return class_labels(total.argmax(1), ints, strings), narrowed(transformed(total, kind), FLOAT32)
