"""Random models of the operators of ai.onnx.ml and of TfIdfVectorizer: a maker for each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

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
