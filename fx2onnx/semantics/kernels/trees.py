"""ai.onnx.ml: tree ensembles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.ml import ML, binary_scores, class_labels, transformed
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, narrowed

_COMPARE: dict[str, Any] = {
    "BRANCH_LEQ": lambda x, v: x <= v, "BRANCH_LT": lambda x, v: x < v, "BRANCH_GTE": lambda x, v: x >= v,
    "BRANCH_GT": lambda x, v: x > v, "BRANCH_EQ": lambda x, v: x == v, "BRANCH_NEQ": lambda x, v: x != v,
    "BRANCH_MEMBER": None,
}  # fmt: skip
_MODE_NAMES = tuple(_COMPARE)
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATE: dict[str, Any] = {"AVERAGE": np.add, "SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}
_AGGREGATES = tuple(_AGGREGATE)


@dataclass(frozen=True, slots=True)
class _Forest:
    """Inner nodes by number; a child below 0 is leaf ``-child - 1``. Each leaf votes ``first_vote[leaf]..`` for targets."""

    features: Array
    modes: Array
    splits: Array
    members: Mapping[int, frozenset[float]]
    missing_is_true: Array
    true: Array
    false: Array
    roots: Array
    first_vote: Array
    targets: Array
    weights: Array

    def check(self, n_columns: int, n_targets: int) -> None:
        """Raises: ValueError or IndexError for what would be read outside, or in silence from the other end."""
        n_nodes, n_leaves = len(self.features), len(self.first_vote) - 1
        children = np.concatenate([self.true, self.false, self.roots])
        for name, values, low, high in (
            ("feature", self.features, 0, n_columns),
            ("node or leaf", children, -n_leaves, n_nodes),
            ("target", self.targets, 0, n_targets),
        ):
            if values.size and not low <= values.min() <= values.max() < high:
                raise IndexError(f"a {name} is out of range: {values.min()} to {values.max()}")

    def leaves(self, x: Array) -> Iterator[Array]:
        """For each tree the leaf that each row of x reaches. Raises: ValueError for a cycle."""
        rows = np.arange(len(x))
        for root in self.roots:
            node = np.full(len(x), root)
            for _ in range(len(self.features) + 1):
                (inner,) = np.nonzero(node >= 0)
                if not inner.size:
                    break
                at = node[inner]
                value = x[rows[inner], self.features[at]]
                goes = self.holds(at, value) | (self.missing_is_true[at] & np.isnan(value))
                node[inner] = np.where(goes, self.true[at], self.false[at])
            else:
                raise ValueError("the nodes of a tree form a cycle")
            yield -node - 1

    def holds(self, nodes: Array, value: Array) -> Array:
        """Each node's test of the value beside it."""
        result = np.zeros(len(nodes), np.bool_)
        modes = self.modes[nodes]
        for mode in np.unique(modes):
            here = modes == mode
            if _MODE_NAMES[mode] == "BRANCH_MEMBER":
                pairs = zip(nodes[here].tolist(), value[here].tolist(), strict=True)
                result[here] = [item in self.members[node] for node, item in pairs]
            else:
                result[here] = _COMPARE[_MODE_NAMES[mode]](value[here], self.splits[nodes[here]])
        return result

    def combined(self, x: Array, n_targets: int, how: str) -> Array:
        """[rows, targets]: the weights of all leaves that a row reaches."""
        check_shape((len(x), n_targets), np.dtype(np.float64), "the votes of the trees")
        wide = x.astype(np.float64)
        self.check(x.shape[1], n_targets)
        total = np.zeros((len(x), n_targets), np.float64)
        seen = np.zeros((len(x), n_targets), np.bool_)
        counts = np.diff(self.first_vote)
        for leaf in self.leaves(wide):
            for number in range(int(counts[leaf].max(initial=0))):
                (rows,) = np.nonzero(counts[leaf] > number)
                vote = self.first_vote[leaf[rows]] + number
                place = rows, self.targets[vote]
                joined = _AGGREGATE[how](total[place], self.weights[vote])
                total[place] = np.where(seen[place], joined, self.weights[vote])
                seen[place] = True
        return total / len(self.roots) if how == "AVERAGE" else total


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
    n_nodes = len(nodes_featureids)
    columns = (nodes_splits, nodes_modes, nodes_truenodeids, nodes_falsenodeids, nodes_trueleafs, nodes_falseleafs)
    if any(len(column) != n_nodes for column in columns) or len(leaf_weights) != len(leaf_targetids):
        raise ValueError(f"the attributes of {n_nodes} nodes differ in length")
    numbers = (
        (nodes_modes.tolist(), _MODE_NAMES),
        ([aggregate_function], _AGGREGATES),
        ([post_transform], _TRANSFORMS),
    )
    if not all(0 <= number < len(names) for given, names in numbers for number in given):
        raise ValueError("a mode, aggregate_function or post_transform is out of range")
    values = iter([] if membership_values is None else membership_values.tolist())
    chosen = [number for number, mode in enumerate(nodes_modes.tolist()) if _MODE_NAMES[mode] == "BRANCH_MEMBER"]
    members = {number: frozenset(itertools.takewhile(lambda value: value == value, values)) for number in chosen}
    true, false = (
        np.where(np.array(is_leaf, np.bool_), -1 - _ints(ids), _ints(ids))
        for ids, is_leaf in ((nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs))
    )
    forest = _Forest(
        _ints(nodes_featureids),
        nodes_modes.astype(np.int64),
        nodes_splits.astype(np.float64),
        members,
        _flags(nodes_missing_value_tracks_true, n_nodes),
        true,
        false,
        _ints(tree_roots),
        np.arange(len(leaf_targetids) + 1),
        _ints(leaf_targetids),
        leaf_weights.astype(np.float64),
    )
    total = forest.combined(x, n_targets, _AGGREGATES[aggregate_function])
    return narrowed(transformed(total, _TRANSFORMS[post_transform]), x.dtype)


def _ints(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


def _flags(values: Sequence[int], count: int) -> Array:
    """One flag a node; none set where they are not given."""
    if not values:
        return np.zeros(count, np.bool_)
    if len(values) != count:
        raise ValueError(f"{len(values)} flags for {count} nodes")
    return np.array(values, np.bool_)


def _reached(roots: Sequence[int], true: Sequence[int], false: Sequence[int]) -> set[int]:
    """The nodes and leaves below the roots, the roots included."""
    result, stack = set(roots), list(roots)
    while stack:
        node = stack.pop()
        below = {true[node], false[node]} - result if node >= 0 else set()
        result |= below
        stack += below
    return result


def _old_forest(attrs: Mapping[str, Any], prefix: str) -> tuple[_Forest, Array]:
    """Trees of versions 1-3, whose nodes are named by (tree, node); and the weights of all votes."""
    keys = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    values = attrs.get("nodes_values_as_tensor")
    values = np.array(attrs.get("nodes_values", ())) if values is None else values
    columns = [attrs[f"nodes_{name}"] for name in ("featureids", "modes", "truenodeids", "falsenodeids")]
    if any(len(column) != len(keys) for column in (values, *columns)):
        raise ValueError(f"the attributes of {len(keys)} nodes differ in length")
    weights = attrs.get(f"{prefix}_weights_as_tensor")
    weights = (
        np.array(attrs.get(f"{prefix}_weights", ()), np.float64) if weights is None else weights.astype(np.float64)
    )
    inner = [position for position, mode in enumerate(columns[1]) if mode != "LEAF"]
    leaves = [position for position, mode in enumerate(columns[1]) if mode == "LEAF"]
    number_of = {keys[position]: number for number, position in enumerate(inner)}
    number_of.update((keys[position], -1 - number) for number, position in enumerate(leaves))
    if len(number_of) < len(keys):
        raise ValueError("a tree node is defined twice")
    votes: list[list[int]] = [[] for _ in leaves]
    named = zip(attrs[f"{prefix}_treeids"], attrs[f"{prefix}_nodeids"], weights, strict=True)
    for vote, (tree, node, _) in enumerate(named):
        number = number_of[tree, node]
        if number < 0:
            votes[-1 - number].append(vote)
    order = list(itertools.chain.from_iterable(votes))
    true, false = (_ints([number_of[keys[at][0], column[at]] for at in inner]) for column in columns[2:])
    below = {*true.tolist(), *false.tolist()}
    roots = [number_of[key] for key in keys if number_of[key] not in below]
    if len(_reached(roots, true.tolist(), false.tolist())) < len(keys):
        raise ValueError("the nodes of a tree form a cycle")
    forest = _Forest(
        _ints([columns[0][at] for at in inner]),
        _ints([_MODE_NAMES.index(columns[1][at]) for at in inner]),
        values[inner].astype(np.float64),
        {},
        _flags(attrs.get("nodes_missing_value_tracks_true", ()), len(keys))[inner],
        true,
        false,
        _ints(roots),
        np.cumsum([0, *map(len, votes)]),
        _ints([attrs[f"{prefix}_ids"][vote] for vote in order]),
        weights[order],
    )
    return forest, weights


def _with_base(total: Array, attrs: dict[str, Any]) -> Array:
    base = attrs.get("base_values_as_tensor")
    values = attrs.get("base_values") if base is None else base
    return total if values is None or not len(values) else np.asarray(total + np.asarray(values))


@kernel("TreeEnsembleRegressor", (1, 3), domain=ML)
def tree_ensemble_regressor(x: Array, *, n_targets: int = 1, aggregate_function: str = "SUM", **attrs: Any) -> Array:
    """Leaves reached, combined by target, plus base values."""
    forest, _ = _old_forest(attrs, "target")
    total = forest.combined(x, n_targets, aggregate_function)
    return narrowed(transformed(_with_base(total, attrs), attrs.get("post_transform", "NONE")), FLOAT32)


@kernel("TreeEnsembleClassifier", (1, 3), domain=ML)
def tree_ensemble_classifier(x: Array, **attrs: Any) -> tuple[Array, Array]:
    """The class with the greatest sum of leaf weights, and the sums."""
    forest, weights = _old_forest(attrs, "class")
    ints, strings = attrs.get("classlabels_int64s"), attrs.get("classlabels_strings")
    n_classes = len(ints or strings or ())
    total = _with_base(forest.combined(x, n_classes, "SUM"), attrs)
    kind = attrs.get("post_transform", "NONE")
    if len(set(attrs["class_ids"])) == 1 and n_classes == 2:
        only = attrs["class_ids"][0]
        score, is_share = total[:, only], weights.min(initial=0) >= 0
        chosen = (score > (0.5 if is_share else 0)).astype(np.int64)
        scores = transformed(total, kind) if only == 1 else binary_scores(score, kind, is_share)
        return class_labels(chosen, ints, strings), narrowed(scores, FLOAT32)
    return class_labels(total.argmax(1), ints, strings), narrowed(transformed(total, kind), FLOAT32)
