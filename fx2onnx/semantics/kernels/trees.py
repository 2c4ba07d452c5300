"""ai.onnx.ml: tree ensembles."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
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
_AGGREGATE: dict[str, Any] = {"AVERAGE": np.add, "SUM": np.add, "MIN": np.fmin, "MAX": np.fmax}
_AGGREGATES = tuple(_AGGREGATE)


@dataclass(frozen=True)
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

    @functools.cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The least and the greatest feature, node or leaf, and target."""
        numbers = self.features, np.concatenate([self.below, self.roots]), self.targets
        return tuple((int(one.min()), int(one.max())) if one.size else (0, -1) for one in numbers)

    @functools.cached_property
    def below(self) -> Array:
        """The two children of each node, the one of a test that fails first."""
        return np.stack([self.false, self.true], axis=1).reshape(-1)

    @functools.cached_property
    def kinds(self) -> list[int]:
        """The modes that there are."""
        found: list[int] = np.unique(self.modes).tolist()
        return found

    def check(self, n_columns: int, n_targets: int) -> None:
        """Raises: ValueError or IndexError for what would be read outside, or in silence from the other end."""
        n_nodes, n_leaves = len(self.features), len(self.first_vote) - 1
        limits = ("feature", 0, n_columns), ("node or leaf", -n_leaves, n_nodes), ("target", 0, n_targets)
        for (name, low, high), (least, most) in zip(limits, self.ranges, strict=True):
            if (least, most) != (0, -1) and not low <= least <= most < high:
                raise IndexError(f"a {name} is out of range: {least} to {most}")

    def leaves(self, x: Array) -> Array:
        """[trees, rows]: the leaf of each tree that each row of x reaches. Raises: ValueError for a cycle."""
        columns, found = x.shape[1], np.repeat(self.roots, len(x))
        starts = np.tile(np.arange(len(x)) * columns, len(self.roots))
        values = x.reshape(-1)
        (active,) = np.nonzero(found >= 0)
        node = found[active]
        for _ in range(len(self.features) + 1):
            if not active.size:
                return (-1 - found).reshape(len(self.roots), len(x))
            value = values.take(self.features.take(node) + starts.take(active))
            node = self.below.take(2 * node + self.holds(node, value))
            is_inner = node >= 0
            if not is_inner.all():
                found[active] = node
                active, node = active[is_inner], node[is_inner]
        raise ValueError("the nodes of a tree form a cycle")

    def holds(self, nodes: Array, value: Array) -> Array:
        """Each node's test of the value beside it."""
        modes = self.modes.take(nodes) if len(self.kinds) > 1 else None
        result = np.zeros(len(nodes), np.bool_)
        for mode in self.kinds:
            here = slice(None) if modes is None else modes == mode
            if _MODE_NAMES[mode] == "BRANCH_MEMBER":
                pairs = zip(nodes[here].tolist(), value[here].tolist(), strict=True)
                result[here] = [item in self.members[node] for node, item in pairs]
            else:
                result[here] = _COMPARE[_MODE_NAMES[mode]](value[here], self.splits.take(nodes[here]))
        return result | (self.missing_is_true.take(nodes) & np.isnan(value))

    def combined(self, x: Array, n_targets: int, how: str, walk: Walk | None = None) -> Array:
        """[rows, targets]: the weights of all leaves that a row reaches. ``walk`` computes ``leaves``."""
        check_shape((len(x), n_targets), np.dtype(np.float64), "the votes of the trees")
        self.check(x.shape[1], n_targets)
        total, wide = np.zeros((len(x), n_targets), np.float64), x.astype(np.float64)
        counts, step = np.diff(self.first_vote), max(1, BLOCK // max(1, len(self.roots)))
        for start in range(0, len(x), step):
            some = wide[start : start + step]
            leaf = (self.leaves(some) if walk is None else walk(self, some)).reshape(-1)
            number, row = counts.take(leaf), np.tile(np.arange(len(some)), len(self.roots))
            vote = self.first_vote.take(leaf)
            if (number != 1).any():
                last = np.cumsum(number)
                vote = np.repeat(vote - last + number, number) + np.arange(last[-1])
                row = np.repeat(row, number)
            place, weights = row * n_targets + self.targets.take(vote), self.weights.take(vote)
            if _AGGREGATE[how] is np.add:
                found = np.bincount(place, weights, len(some) * n_targets)
            else:
                found = np.full(len(some) * n_targets, np.nan)
                _AGGREGATE[how].at(found, place, weights)
                found[np.bincount(place, minlength=found.size) == 0] = 0
            total[start : start + step] = found.reshape(-1, n_targets)
        return total / len(self.roots) if how == "AVERAGE" else total

    def voted(self, x: Array, total: Array, walk: Walk | None = None) -> Array:
        """[rows, targets]: whether a leaf that the row reaches votes for the target; ``total`` is not 0 only there."""
        if total.all():
            return np.ones(total.shape, np.bool_)
        if self.is_even:
            return np.broadcast_to(np.bincount(self.targets, minlength=total.shape[1]) > 0, total.shape)
        votes = dataclasses.replace(self, weights=np.ones_like(self.weights))
        return votes.combined(x, total.shape[1], "SUM", walk) > 0

    @functools.cached_property
    def is_even(self) -> bool:
        """True if every leaf votes for all targets that any leaf votes for."""
        counts = np.diff(self.first_vote)
        pairs = np.stack([np.repeat(np.arange(len(counts)), counts), self.targets])
        return bool(np.unique(pairs, axis=1).shape[1] == len(counts) * np.unique(self.targets).size)


Walk = Callable[[_Forest, Array], Array]
BLOCK = 1 << 16
"""Pairs of trees and rows that are computed at a time."""


@kernel("TreeEnsemble", 5, domain=ML)
def tree_ensemble(
    x: Array,
    *,
    kept: dict[str, _Forest] | None = None,
    walk: Walk | None = None,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    **attrs: Any,
) -> Array:
    """The leaves that each row reaches, combined by target."""
    if not (0 <= aggregate_function < len(_AGGREGATES) and 0 <= post_transform < len(_TRANSFORMS)):
        raise ValueError("a mode, aggregate_function or post_transform is out of range")
    kept = {} if kept is None else kept
    if "forest" not in kept:
        kept["forest"] = _new_forest(**attrs)
    total = kept["forest"].combined(x, n_targets, _AGGREGATES[aggregate_function], walk)
    return narrowed(_finished(total, _TRANSFORMS[post_transform]), x.dtype)


def _new_forest(
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
    membership_values: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_hitrates: Any = None,
) -> _Forest:
    """Trees of version 5, whose inner nodes and leaves are apart."""
    n_nodes = len(nodes_featureids)
    columns = (nodes_splits, nodes_modes, nodes_truenodeids, nodes_falsenodeids, nodes_trueleafs, nodes_falseleafs)
    if any(len(column) != n_nodes for column in columns) or len(leaf_weights) != len(leaf_targetids):
        raise ValueError(f"the attributes of {n_nodes} nodes differ in length")
    if not all(0 <= number < len(_MODE_NAMES) for number in nodes_modes.tolist()):
        raise ValueError("a mode, aggregate_function or post_transform is out of range")
    values = iter([] if membership_values is None else membership_values.tolist())
    chosen = [number for number, mode in enumerate(nodes_modes.tolist()) if _MODE_NAMES[mode] == "BRANCH_MEMBER"]
    members = {number: frozenset(itertools.takewhile(lambda value: value == value, values)) for number in chosen}
    true, false = (
        np.where(np.array(is_leaf, np.bool_), -1 - _ints(ids), _ints(ids))
        for ids, is_leaf in ((nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs))
    )
    return _Forest(
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


def _base_values(attrs: Mapping[str, Any], count: int, may_be_one: bool) -> Array:
    """The base values, none or one a target. Raises: ValueError for another number, as onnxruntime does."""
    base = attrs.get("base_values_as_tensor")
    values = np.asarray(attrs.get("base_values") or () if base is None else base, np.float64).reshape(-1)
    if values.size not in (0, count) and not (may_be_one and values.size == 1):
        raise ValueError(f"{values.size} base_values for {count} targets or classes")
    return values


def _finished(total: Array, kind: str) -> Array:
    """The scores of a regression. onnxruntime transforms those of a single target by PROBIT alone."""
    return transformed(total, kind if total.shape[1] > 1 or kind == "PROBIT" else "NONE")


def _forest_of(attrs: dict[str, Any], prefix: str, kept: dict[str, Any] | None) -> tuple[_Forest, Array]:
    """``_old_forest`` of the attributes, made once for each step."""
    kept = {} if kept is None else kept
    if prefix not in kept:
        kept[prefix] = _old_forest(attrs, prefix)
    made: tuple[_Forest, Array] = kept[prefix]
    return made


@kernel("TreeEnsembleRegressor", (1, 3), domain=ML)
def tree_ensemble_regressor(
    x: Array,
    *,
    kept: dict[str, Any] | None = None,
    walk: Walk | None = None,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    **attrs: Any,
) -> Array:
    """Leaves reached, combined by target, plus base values."""
    forest, _ = _forest_of(attrs, "target", kept)
    total, base = forest.combined(x, n_targets, aggregate_function, walk), _base_values(attrs, n_targets, False)
    if base.size:  # onnxruntime leaves it out where no leaf votes
        total = np.where(forest.voted(x, total, walk), total + base, 0) if n_targets > 1 else total + base
    return narrowed(_finished(total, attrs.get("post_transform", "NONE")), FLOAT32)


@kernel("TreeEnsembleClassifier", (1, 3), domain=ML)
def tree_ensemble_classifier(
    x: Array, *, kept: dict[str, Any] | None = None, walk: Walk | None = None, **attrs: Any
) -> tuple[Array, Array]:
    """The class with the greatest sum of leaf weights, of those that a leaf of the row votes for, and the sums."""
    forest, weights = _forest_of(attrs, "class", kept)
    ints, strings = attrs.get("classlabels_int64s"), attrs.get("classlabels_strings")
    n_classes, kind = len(ints or strings or ()), attrs.get("post_transform", "NONE")
    total, base = forest.combined(x, n_classes, "SUM", walk), _base_values(attrs, n_classes, n_classes == 2)
    voted = forest.voted(x, total, walk)
    if n_classes == 2:
        is_single, is_share = len(set(attrs["class_ids"])) == 1, weights.min(initial=0) >= 0
        chosen, scores = _two_classes(total, voted, base, kind, is_share and is_single)
        return class_labels(chosen, ints if is_single else None, strings), narrowed(scores, FLOAT32)
    total = total + base if base.size else total
    best = (total if base.size else np.where(voted, total, -np.inf)).argmax(1)
    return class_labels(best, ints, strings), narrowed(transformed(total, kind), FLOAT32)


def _two_classes(total: Array, voted: Array, base: Array, kind: str, is_share: bool) -> tuple[Array, Array]:
    """The numbers of the chosen classes, and both scores, of which a row's leaves may make one: a sum without votes is written as 0.

    Source: onnxruntime's ``TreeAggregatorClassifier``; ONNX does not say it. A second base value goes with the first sum.
    """
    (first, second), (has_first, has_second) = total.T, voted.T
    if base.size == 2:
        second = np.where(has_second, first + base[1], second + base[1])
        first = np.where(has_second, -second, first + base[0])
    elif base.size:
        first = first + base[0]
    alone, sure = np.where(has_first, first, 0), np.where(has_second, second, 0)
    chosen = np.where(has_second, second, alone) > (0.5 if is_share else 0)
    scores = transformed(np.stack([alone, sure], 1), kind)
    if base.size < 2 and not has_second.all():
        scores = np.where(has_second[:, None], scores, binary_scores(alone, kind, is_share))
    return chosen.astype(np.int64), scores
