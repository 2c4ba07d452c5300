"""The operators of ai.onnx.ml against onnxruntime, over random models. Each family has a maker of one random model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort

onnxruntime = pytest.importorskip("onnxruntime")

ML = "ai.onnx.ml"
Made = tuple[onnx.ModelProto, dict[str, Any]]
Rng = np.random.Generator

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
CODES = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "i": TensorProto.INT32, "l": TensorProto.INT64}


def one_node(
    op_type: str, inputs: dict[str, Any], n_outputs: int, version: int, domain: str = ML, **attrs: Any
) -> Made:
    """A model of one node whose inputs are fed."""
    outputs = [f"y{place}" for place in range(n_outputs)]
    node = helper.make_node(
        op_type, list(inputs), outputs, domain=domain, **{k: v for k, v in attrs.items() if v is not None}
    )
    infos = []
    for name, value in inputs.items():
        code = TensorProto.STRING if value.dtype.kind in "OU" else CODES[value.dtype.char]
        infos.append(helper.make_tensor_value_info(name, code, value.shape))
    free = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "g", infos, free)
    imports = [helper.make_opsetid(ML, version), helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), inputs


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def words(rng: Rng, count: int) -> list[str]:
    return [f"w{number}" for number in rng.permutation(count)]


def floats(values: Any) -> list[float]:
    return [float(value) for value in np.asarray(values, np.float32).ravel()]


def samples(rng: Rng, rows: int, columns: int, dtypes: str = "f") -> np.ndarray:
    dtype = np.dtype(pick(rng, *dtypes))
    return (rng.standard_normal((rows, columns)) * 2).astype(dtype)


def a_linear_regressor(rng: Rng) -> Made:
    rows, columns, targets = (int(n) for n in rng.integers(1, 6, 3))
    return one_node(
        "LinearRegressor",
        {"x": samples(rng, rows, columns)},
        1,
        1,
        coefficients=floats(rng.standard_normal(targets * columns)),
        intercepts=pick(rng, None, floats(rng.standard_normal(targets))),
        targets=targets,
        post_transform=pick(rng, "NONE", "SOFTMAX", "LOGISTIC") if targets > 1 else "NONE",
    )


def a_linear_classifier(rng: Rng) -> Made:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    classes = int(rng.integers(2, 5))
    machines = 1 if classes == 2 and rng.random() < 0.5 else classes
    labels = {"classlabels_ints": rng.permutation(classes).tolist()}
    if rng.random() < 0.5:
        labels = {"classlabels_strings": words(rng, classes)}
    return one_node(
        "LinearClassifier",
        {"x": samples(rng, rows, columns, "fdil")},
        2,
        1,
        coefficients=floats(rng.standard_normal(machines * columns)),
        intercepts=floats(rng.standard_normal(machines)),
        multi_class=int(rng.integers(2)),
        post_transform=pick(rng, "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"),
        **labels,
    )


def kernel_attrs(rng: Rng) -> dict[str, Any]:
    return {
        "kernel_type": pick(rng, "LINEAR", "POLY", "RBF", "SIGMOID"),
        "kernel_params": [float(rng.random() * 0.5 + 0.1), float(rng.random()), float(pick(rng, 2, 3))],
    }


def an_svm_regressor(rng: Rng) -> Made:
    rows, columns, supports = (int(n) for n in rng.integers(1, 6, 3))
    linear = rng.random() < 0.3
    return one_node(
        "SVMRegressor",
        {"x": samples(rng, rows, columns)},
        1,
        1,
        coefficients=floats(rng.standard_normal(columns if linear else supports)),
        support_vectors=None if linear else floats(rng.standard_normal(supports * columns)),
        n_supports=0 if linear else supports,
        rho=floats(rng.standard_normal(1)),
        one_class=int(rng.random() < 0.3),
        **(kernel_attrs(rng) | ({"kernel_type": "LINEAR"} if linear else {})),
    )


def an_svm_classifier(rng: Rng) -> Made:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    classes = int(rng.integers(2, 5))
    pairs = classes * (classes - 1) // 2
    per_class = rng.integers(1, 4, classes).tolist()
    supports = sum(per_class)
    proba = pick(rng, True, False)
    return one_node(
        "SVMClassifier",
        {"x": samples(rng, rows, columns)},
        2,
        1,
        coefficients=floats(rng.standard_normal((classes - 1) * supports)),
        support_vectors=floats(rng.standard_normal(supports * columns)),
        vectors_per_class=per_class,
        rho=floats(rng.standard_normal(pairs)),
        prob_a=floats(-rng.random(pairs) - 0.5) if proba else None,
        prob_b=floats(rng.standard_normal(pairs)) if proba else None,
        post_transform=pick(rng, "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"),
        **(
            {"classlabels_ints": rng.permutation(classes).tolist()}
            if rng.random() < 0.5
            else {"classlabels_strings": words(rng, classes)}
        ),
        **kernel_attrs(rng),
    )


def a_linear_svm_classifier(rng: Rng) -> Made:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    classes = int(rng.integers(3, 6))  # of two classes, onnxruntime names the second wherever a score is positive
    return one_node(
        "SVMClassifier",
        {"x": samples(rng, rows, columns)},
        2,
        1,
        coefficients=floats(rng.standard_normal(classes * columns)),
        rho=floats(rng.standard_normal(1)),
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        post_transform=pick(rng, "NONE", "LOGISTIC", "SOFTMAX"),
        classlabels_ints=rng.permutation(classes).tolist(),
    )


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

    # onnxruntime leaves out the base value of a target that no leaf votes for: the first tree votes for all.
    voted = [rng.permutation(outputs)[: int(rng.integers(1, outputs + 1))].tolist() for _ in range(4)]
    voted[0] = list(range(outputs))
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
        post_transform=pick(rng, "NONE", "LOGISTIC", "SOFTMAX") if targets > 1 else "NONE",
        **forest(rng, columns, targets, "target"),
    )


def a_tree_classifier(rng: Rng) -> Made:
    columns = int(rng.integers(1, 4))
    classes = int(rng.integers(2, 5))
    # Where both of two classes have votes, onnxruntime looks at the sign of the second's only.
    outputs = 1 if classes == 2 else classes
    attrs = forest(rng, columns, outputs, "class")
    if outputs == 1 and rng.random() < 0.4:
        attrs["class_weights"] = [abs(weight) for weight in attrs["class_weights"]]
    return one_node(
        "TreeEnsembleClassifier",
        {"x": tree_samples(rng, columns)},
        2,
        pick(rng, 1, 3),
        base_values=pick(rng, None, floats(rng.standard_normal(outputs))) if outputs == classes else None,
        post_transform=pick(rng, "NONE", "LOGISTIC", "SOFTMAX"),
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
        post_transform=0,
    )


def a_label_encoder(rng: Rng) -> Made:
    forms: dict[str, Callable[[int], Any]] = {
        "strings": lambda n: words(rng, n),
        "int64s": lambda n: rng.permutation(n).tolist(),
        "floats": lambda n: floats(rng.permutation(n)),
    }
    source, target = pick(rng, *forms), pick(rng, *forms)
    size = int(rng.integers(1, 6))
    keys, shape = forms[source](size), (int(rng.integers(1, 4)), 3)
    dtype = {"strings": object, "int64s": np.int64, "floats": np.float32}[source]
    x = np.array([pick(rng, *keys, *forms[source](8)) for _ in range(shape[0] * 3)], dtype).reshape(shape)
    attrs = {f"keys_{source}": keys, f"values_{target}": forms[target](size)}
    default: dict[str, Any] = {"strings": "none", "int64s": 77, "floats": 7.5}
    attrs[f"default_{target[:-1]}"] = default[target]
    return one_node("LabelEncoder", {"x": x}, 1, 2, **attrs)


def a_category_mapper(rng: Rng) -> Made:
    size = int(rng.integers(1, 6))
    names, numbers = words(rng, size), rng.permutation(size).tolist()
    x = np.array([pick(rng, *names, "other") for _ in range(6)], object).reshape(2, 3)
    if rng.random() < 0.5:
        x = rng.integers(-1, size + 2, (3, 2))
    return one_node(
        "CategoryMapper", {"x": x}, 1, 1, cats_strings=names, cats_int64s=numbers, default_int64=-9, default_string="?"
    )


def a_scaler(rng: Rng) -> Made:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    n = pick(rng, 1, columns)
    return one_node(
        "Scaler",
        {"x": samples(rng, rows, columns, "fdil")},
        1,
        1,
        offset=floats(rng.standard_normal(n)),
        scale=floats(rng.standard_normal(n)),
    )


def a_normalizer(rng: Rng) -> Made:
    x = samples(rng, *(int(n) for n in rng.integers(1, 6, 2)), "fdil")
    if rng.random() < 0.3:
        x[0] = 0
    return one_node("Normalizer", {"x": x}, 1, 1, norm=pick(rng, "MAX", "L1", "L2"))


def a_one_hot_encoder(rng: Rng) -> Made:
    size = int(rng.integers(1, 6))
    if rng.random() < 0.5:
        names = words(rng, size)
        x = np.array([pick(rng, *names, "other") for _ in range(6)], object).reshape(2, 3)
        return one_node("OneHotEncoder", {"x": x}, 1, 1, cats_strings=names, zeros=1)
    x = rng.integers(-1, size + 2, (2, 3)).astype(pick(rng, np.int64, np.float32))
    return one_node("OneHotEncoder", {"x": x}, 1, 1, cats_int64s=rng.permutation(size).tolist(), zeros=1)


def an_imputer(rng: Rng) -> Made:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    n = pick(rng, 1, columns)
    if rng.random() < 0.5:
        x = rng.integers(0, 3, (rows, columns))
        return one_node(
            "Imputer", {"x": x}, 1, 1, imputed_value_int64s=rng.integers(5, 9, n).tolist(), replaced_value_int64=1
        )
    x = rng.integers(0, 3, (rows, columns)).astype(np.float32)
    old = pick(rng, 1.0, float("nan"))
    x[x == 1] = old
    return one_node(
        "Imputer",
        {"x": x},
        1,
        1,
        imputed_value_floats=floats(rng.standard_normal(n)),
        replaced_value_float=old,
    )


def an_array_feature_extractor(rng: Rng) -> Made:
    x = samples(rng, *(int(n) for n in rng.integers(1, 6, 2)), "fdil")
    return one_node("ArrayFeatureExtractor", {"x": x, "i": rng.integers(0, x.shape[1], int(rng.integers(1, 5)))}, 1, 1)


def a_binarizer(rng: Rng) -> Made:
    x = samples(rng, *(int(n) for n in rng.integers(1, 6, 2)))
    return one_node("Binarizer", {"x": x}, 1, 1, threshold=float(x[0, 0]))


def a_feature_vectorizer(rng: Rng) -> Made:
    rows, dtypes = int(rng.integers(1, 5)), pick(rng, "f", "d", "l", "i")
    parts = {f"x{i}": samples(rng, rows, int(rng.integers(1, 5)), dtypes) for i in range(int(rng.integers(1, 4)))}
    return one_node("FeatureVectorizer", parts, 1, 1, inputdimensions=[part.shape[1] for part in parts.values()])


def a_tf_idf_vectorizer(rng: Rng) -> Made:
    largest = int(rng.integers(1, 4))
    pool, counts = [], []
    grams = 0
    for length in range(1, largest + 1):
        counts.append(len(pool))
        chosen = {tuple(rng.integers(0, 4, length).tolist()) for _ in range(int(rng.integers(1, 4)))}
        for gram in sorted(chosen):
            pool.extend(gram)
            grams += 1
    shape = pick(rng, (9,), (2, 7))
    shortest = int(rng.integers(1, largest + 1))
    return one_node(
        "TfIdfVectorizer",
        {"x": rng.integers(0, 4, shape)},
        1,
        1,
        "",
        mode=pick(rng, "TF", "IDF", "TFIDF"),
        min_gram_length=shortest,
        max_gram_length=largest,
        max_skip_count=int(rng.integers(0, 3)),
        ngram_counts=counts,
        ngram_indexes=rng.permutation(grams).tolist(),
        pool_int64s=pool,
        weights=pick(rng, None, floats(rng.random(grams) + 0.5)),
    )


MAKERS = [maker for name, maker in sorted(globals().items()) if name.startswith(("a_", "an_"))]
PER_MAKER = 30


def same(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
    if theirs.dtype.kind in "OUS":
        assert ours.astype(str).tolist() == theirs.astype(str).tolist(), what
        return
    assert ours.dtype == theirs.dtype, (what, ours.dtype, theirs.dtype)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=what)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_random_models(maker: Callable[[Rng], Made]) -> None:
    for seed in range(PER_MAKER):
        model, feeds = maker(np.random.default_rng(seed))
        what = f"seed {seed}: {model.graph.node[0].attribute}"
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        theirs = session.run(None, feeds)
        ours = ort.InferenceSession(model).run(None, feeds)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, what[:1500])


def test_zip_map() -> None:
    model, _ = one_node("ZipMap", {"x": np.zeros((2, 3), np.float32)}, 1, 1, classlabels_strings=["a", "b", "c"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (rows,) = ort.InferenceSession(model).run(None, {"x": x})
    assert rows == [{"a": 0.0, "b": 1.0, "c": 2.0}, {"a": 3.0, "b": 4.0, "c": 5.0}]
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert rows == wanted.run(None, {"x": x})[0]
