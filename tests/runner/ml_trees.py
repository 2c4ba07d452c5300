"""Random tree ensembles, in both of ONNX's forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from ml_models import Made, Rng, floats, one_node, pick, words

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def forest(rng: Rng, columns: int, outputs: int, prefix: str) -> dict[str, Any]:
    """Random binary trees in the form of versions 1 to 3."""
    nodes: dict[str, list[Any]] = {
        name: []
        for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing")
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    mode = pick(rng, "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "mixed")

    def grow(tree: int, depth: int, counter: list[int]) -> int:
        number = counter[0]
        counter[0] += 1
        place = len(nodes["treeids"])
        is_leaf = depth == 0 or rng.random() < 0.2
        own = pick(rng, "BRANCH_LEQ", "BRANCH_LT", "BRANCH_EQ", "BRANCH_NEQ") if mode == "mixed" else mode
        row = (tree, number, int(rng.integers(columns)), "LEAF" if is_leaf else own, float(rng.integers(-2, 3)), 0, 0)
        for name, value in zip(nodes, (*row, int(rng.integers(2))), strict=True):
            nodes[name].append(value)
        if is_leaf:
            for target in voted[tree]:
                for name, value in zip(leaves, (tree, number, target, float(rng.standard_normal())), strict=True):
                    leaves[name].append(value)
            return number
        nodes["truenodeids"][place] = grow(tree, depth - 1, counter)
        nodes["falsenodeids"][place] = grow(tree, depth - 1, counter)
        return number

    voted = [rng.permutation(outputs)[: int(rng.integers(1, outputs + 1))].tolist() for _ in range(4)]
    for tree in range(int(rng.integers(1, 5))):
        grow(tree, int(rng.integers(1, 4)), [0])
    missing = nodes.pop("missing")
    attrs = {f"nodes_{name}": values for name, values in nodes.items()}
    attrs["nodes_missing_value_tracks_true"] = pick(rng, None, missing)
    return attrs | {f"{prefix}_{name}": values for name, values in leaves.items()}


def tree_samples(rng: Rng, columns: int) -> np.ndarray:
    x = rng.integers(-3, 4, (int(rng.integers(1, 12)), columns)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def a_tree_regressor(rng: Rng) -> Made:
    columns, targets = (int(n) for n in rng.integers(1, 4, 2))
    return one_node(
        "TreeEnsembleRegressor",
        {"x": tree_samples(rng, columns)},
        1,
        pick(rng, 1, 3),
        n_targets=targets,
        aggregate_function=pick(rng, "SUM", "AVERAGE", "MIN", "MAX"),
        base_values=pick(rng, None, floats(rng.standard_normal(targets))),
        post_transform=pick(rng, *TRANSFORMS),
        **forest(rng, columns, targets, "target"),
    )


def a_tree_classifier(rng: Rng) -> Made:
    columns = int(rng.integers(1, 4))
    classes = int(rng.integers(2, 5))
    outputs = pick(rng, 1, 2) if classes == 2 else classes
    attrs = forest(rng, columns, outputs, "class")
    if rng.random() < 0.4:
        attrs["class_weights"] = [abs(weight) for weight in attrs["class_weights"]]
    if outputs == 1 and rng.random() < 0.5:
        attrs["class_ids"] = [1] * len(attrs["class_ids"])
    # Of two classes of which a row has votes for one, and one base value, onnxruntime writes one score.
    n_base = pick(rng, 0, *([1] if outputs == 1 else []), classes)
    return one_node(
        "TreeEnsembleClassifier",
        {"x": tree_samples(rng, columns)},
        2,
        pick(rng, 1, 3),
        base_values=floats(rng.standard_normal(n_base)) if n_base else None,
        post_transform=pick(rng, *TRANSFORMS),
        **(
            {"classlabels_int64s": rng.permutation(classes).tolist()}
            if rng.random() < 0.5
            else {"classlabels_strings": words(rng, classes)}
        ),
        **attrs,
    )


def a_tree_ensemble(rng: Rng) -> Made:
    """The form of version 5: inner nodes and leaves apart, modes by number, sets of members."""
    columns, targets = (int(n) for n in rng.integers(1, 4, 2))
    kinds = pick(rng, [0], [1], [2], [3], [6])
    inner: list[list[float]] = []
    leaves: list[tuple[int, float]] = []
    members: list[float] = []

    def grow(depth: int, is_root: bool) -> tuple[int, int]:
        """Number and whether it is a leaf."""
        if not is_root and (depth == 0 or rng.random() < 0.3):
            leaves.append((len(leaves) % targets, float(rng.standard_normal())))
            return len(leaves) - 1, 1
        place = len(inner)
        mode = pick(rng, *kinds)
        if mode == 6:
            members.extend([*floats(rng.permutation(5)[:2]), float("nan")])
        inner.append([])
        column, split, tracks = int(rng.integers(columns)), float(rng.integers(-2, 3)), int(rng.integers(2))
        true, false = grow(depth - 1, False), grow(depth - 1, False)
        inner[place] = [column, mode, split, tracks, *true, *false]
        return place, 0

    roots = [grow(int(rng.integers(1, 4)), True)[0] for _ in range(int(rng.integers(1, 4)))]
    column, mode, split, tracks, true, true_leaf, false, false_leaf = (list(part) for part in zip(*inner, strict=True))
    array = onnx.numpy_helper.from_array
    return one_node(
        "TreeEnsemble",
        {"x": tree_samples(rng, columns)},
        1,
        5,
        nodes_featureids=column,
        nodes_modes=array(np.array(mode, np.uint8)),
        nodes_splits=array(np.array(split, np.float32)),
        nodes_missing_value_tracks_true=tracks if rng.random() < 0.5 and kinds != [6] else None,
        nodes_truenodeids=true,
        nodes_trueleafs=true_leaf,
        nodes_falsenodeids=false,
        nodes_falseleafs=false_leaf,
        leaf_targetids=[target for target, _ in leaves],
        leaf_weights=array(np.array([weight for _, weight in leaves], np.float32)),
        membership_values=array(np.array(members, np.float32)) if members else None,
        tree_roots=roots,
        n_targets=targets,
        aggregate_function=1,
        post_transform=pick(
            rng, 0, 3
        ),  # onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX, ONNX has them the other way round
    )
