"""ai.onnx.ml: encoders, feature operators, linear models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.norm import softmax_array
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, INT64, Array, narrowed, string_array

ML = "ai.onnx.ml"


def _first(*candidates: Any) -> Any:
    return next((item for item in candidates if item is not None), None)


def _as_list(values: Any) -> list[Any]:
    return list(values.reshape(-1).tolist()) if isinstance(values, np.ndarray) else list(values)


@kernel("LabelEncoder", (2, 4), domain=ML)
def label_encoder(x: Array, *, version: int = 4, kept: dict[str, Any] | None = None, **attrs: Any) -> Array:
    """Each key replaced by its first value; unknown ones by the default. Before version 4 NaN is unknown."""
    kept = {} if kept is None else kept
    if "table" not in kept:
        kept["table"] = _table_of_labels(has_nan=version >= 4, **attrs)
    table, dtype, default, nan_value = kept["table"]
    items = x.reshape(-1).tolist()
    if x.dtype.kind in "OiubSU":
        result = list(map(table.get, items, itertools.repeat(default)))
    else:
        result = [nan_value if math.isnan(item) else table.get(item, default) for item in items]
    if dtype == np.dtype(object):
        return string_array(result, x.shape)
    return np.array(result, dtype).reshape(x.shape)


def _table_of_labels(
    *,
    has_nan: bool,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Array | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
) -> tuple[dict[Any, Any], Any, Any, Any]:
    """Keys and values, the dtype of the values, the default, and the value of NaN."""
    keys = _as_list(_first(keys_tensor, keys_strings, keys_int64s, keys_floats))
    default: Any
    if values_tensor is not None:
        dtype = values_tensor.dtype
        fallback = default_tensor.reshape(-1)[0] if default_tensor is not None else _plain_default(dtype)
        values, default = values_tensor.reshape(-1).tolist(), fallback
    elif values_strings is not None:
        dtype, values, default = np.dtype(object), list(values_strings), default_string
    elif values_int64s is not None:
        dtype, values, default = INT64, list(values_int64s), default_int64
    else:
        dtype, values, default = FLOAT32, list(values_floats or ()), default_float
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values")
    table = dict(zip(keys[::-1], values[::-1], strict=True))
    pairs = zip(keys, values, strict=True)
    nan_value = next((value for key, value in pairs if has_nan and isinstance(key, float) and math.isnan(key)), default)
    return table, dtype, default, nan_value


def _plain_default(dtype: Any) -> Any:
    if dtype.kind == "O":
        return "_Unused"
    return -1 if dtype.kind in "iu" else -0.0


@kernel("LabelEncoder", 1, domain=ML)
def label_encoder_1(
    x: Array, *, classes_strings: Sequence[str], default_int64: int = -1, default_string: str = "_Unused"
) -> Array:
    """Strings to their positions, or positions to strings."""
    if x.dtype.kind == "O":
        positions = {name: index for index, name in enumerate(classes_strings)}
        result = [positions.get(item, default_int64) for item in x.reshape(-1).tolist()]
        return np.array(result, INT64).reshape(x.shape)
    names = [classes_strings[i] if 0 <= i < len(classes_strings) else default_string for i in x.reshape(-1).tolist()]
    return string_array(names, x.shape)


@kernel("CategoryMapper", domain=ML)
def category_mapper(
    x: Array,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """Strings to integers or back."""
    if x.dtype.kind == "O":
        table = dict(zip(cats_strings, cats_int64s, strict=True))
        return np.array([table.get(i, default_int64) for i in x.reshape(-1).tolist()], INT64).reshape(x.shape)
    names = dict(zip(cats_int64s, cats_strings, strict=True))
    return string_array([names.get(item, default_string) for item in x.reshape(-1).tolist()], x.shape)


@kernel("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: Array, indices: Array) -> Array:
    """The columns ``indices`` of the last axis; a vector gives one row."""
    chosen = indices.reshape(-1)
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= x.shape[-1]:
        raise IndexError(f"indices are out of range for {x.shape[-1]} columns")
    picked = x[..., chosen]
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@kernel("Binarizer", domain=ML)
def binarizer(x: Array, *, threshold: float = 0.0) -> Array:
    """1 where x > threshold, else 0."""
    return (x > np.asarray(threshold, x.dtype)).astype(x.dtype)


@kernel("Imputer", domain=ML)
def imputer(
    x: Array,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    """x with one value (often NaN) replaced, by column."""
    if x.dtype.kind == "f":
        values, old = imputed_value_floats, replaced_value_float
    else:
        values, old = imputed_value_int64s, replaced_value_int64
    if imputed_value_floats and imputed_value_int64s:
        raise ValueError("imputed_value_floats and imputed_value_int64s are both given")
    if not values or (len(values) not in (1, x.shape[-1])):
        raise ValueError("the number of imputed values is neither 1 nor the number of columns")
    mask = np.isnan(x) if isinstance(old, float) and math.isnan(old) else x == old
    return np.where(mask, np.asarray(values, x.dtype), x)


@kernel("Scaler", domain=ML)
def scaler(x: Array, *, offset: Sequence[float] = (), scale: Sequence[float] = ()) -> Array:
    """(x - offset) * scale, by column."""
    return narrowed((x.astype(FLOAT32) - np.asarray(offset, FLOAT32)) * np.asarray(scale, FLOAT32), FLOAT32)


@kernel("Normalizer", domain=ML)
def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    """Each row over its norm MAX (the greatest element, not the greatest size: so ONNX has it), L1 or L2."""
    if x.ndim > 2:
        raise ValueError(f"the input has {x.ndim} axes, not 1 or 2")
    wide = x.astype(FLOAT32)
    if norm == "MAX":
        size = wide.max(axis=-1, keepdims=True)
    elif norm == "L1":
        size = np.abs(wide).sum(axis=-1, keepdims=True)
    elif norm == "L2":
        size = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    else:
        raise ValueError(f"the norm is {norm!r}")
    return narrowed(np.where(size == 0, wide, wide / np.where(size == 0, 1, size)), FLOAT32)


@kernel("OneHotEncoder", domain=ML)
def one_hot_encoder(
    x: Array, *, cats_int64s: Sequence[int] | None = None, cats_strings: Sequence[str] | None = None, zeros: int = 1
) -> Array:
    """A new last axis with 1 at the category."""
    if (cats_int64s is None) == (cats_strings is None):
        raise ValueError(f"cats_int64s and cats_strings are {'both' if cats_strings is not None else 'not'} given")
    cats = np.array(cats_strings, object) if cats_int64s is None else np.array(cats_int64s, INT64)
    check_shape((*x.shape, cats.size), FLOAT32, "the result of OneHotEncoder")
    if x.dtype.kind == "O" and cats_strings is not None and len(set(cats_strings)) == cats.size:
        place = {name: number for number, name in enumerate(cats_strings)}
        rows = np.eye(cats.size + 1, cats.size, dtype=FLOAT32)
        found = np.fromiter(map(place.get, x.reshape(-1).tolist(), itertools.repeat(cats.size)), INT64, x.size)
        if not zeros and (found == cats.size).any():
            raise ValueError("a value is none of the categories")
        return rows[found].reshape(*x.shape, cats.size)
    is_alike = (x.dtype.kind == "O") == (cats_int64s is None)
    hits = np.asarray((x.astype(cats.dtype) if is_alike else x)[..., None] == cats)
    if not zeros and not hits.any(-1).all():
        raise ValueError("a value is none of the categories")
    return hits.astype(FLOAT32)


@kernel("FeatureVectorizer", domain=ML)
def feature_vectorizer(*arrays: Array, inputdimensions: Sequence[int]) -> Array:
    """The first ``inputdimensions[i]`` columns of each input, joined; zeros where it has fewer."""
    matrices = [array.reshape(1, -1) if array.ndim < 2 else array for array in arrays]
    starts = np.cumsum([0, *inputdimensions])
    shape = (len(matrices[0]), int(starts[-1]))
    check_shape(shape, FLOAT32, "the result of FeatureVectorizer")
    y = np.zeros(shape, FLOAT32)
    for matrix, start, count in zip(matrices, starts, inputdimensions, strict=False):
        part = matrix[:, :count]
        y[:, start : start + part.shape[1]] = part
    return y


@kernel("DictVectorizer", domain=ML, shape_inputs=None)
def dict_vectorizer(
    x: Any, *, int64_vocabulary: Sequence[int] | None = None, string_vocabulary: Sequence[str] | None = None
) -> Array:
    """The values of a map in the vocabulary's order, 0 where missing."""
    if not isinstance(x, dict):
        raise TypeError("the input is not a map")
    values = [x.get(key, 0) for key in string_vocabulary or int64_vocabulary or ()]
    if any(isinstance(value, str) for value in values):
        return string_array([value or "" for value in values], (1, len(values)))
    return np.array([values], FLOAT32 if any(isinstance(v, float) for v in values) else INT64)


@kernel("CastMap", domain=ML, shape_inputs=None)
def cast_map(x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """The values of a map as one row."""
    if not isinstance(x, dict):
        raise TypeError("the input is not a map")
    if map_form == "SPARSE":
        check_shape((1, max_map), np.dtype(object), "the result of CastMap")
        values = np.zeros(max_map, object)
        inside = {key: value for key, value in x.items() if 0 <= key < max_map}
        values[list(inside)] = list(inside.values())
    else:
        values = np.array([x[key] for key in sorted(x)], object)
    if cast_to == "TO_STRING":
        return string_array([str(value) for value in values], (1, len(values)))
    return np.array([[float(value) for value in values]]).astype(FLOAT32 if cast_to == "TO_FLOAT" else INT64)


@kernel("ZipMap", domain=ML, shape_inputs=None)
def zip_map(
    x: Array, *, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
) -> Any:
    """Each row as a map from class to value."""
    labels = list(classlabels_strings or classlabels_int64s or ())
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return ([dict(zip(labels, map(float, row), strict=True)) for row in rows],)


NO_SCORE = 1e-7
"""SOFTMAX_ZERO takes smaller scores for 0, as onnxruntime does."""


def transformed(scores: Array, kind: str) -> Array:
    """NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT."""
    if kind == "SOFTMAX":
        return softmax_array(scores)
    if kind == "LOGISTIC":
        return narrowed(1 / (1 + np.exp(-scores)), scores.dtype)
    if kind == "SOFTMAX_ZERO":
        greatest = scores.max(-1, keepdims=True)
        shifted = np.where(np.abs(scores) > NO_SCORE, np.exp(scores - greatest), scores * np.exp(-greatest))
        return narrowed(shifted / np.maximum(shifted.sum(-1, keepdims=True), 1e-38), scores.dtype)
    if kind == "PROBIT":
        return narrowed(_probit(scores.astype(np.float64)), scores.dtype)
    if kind != "NONE":
        raise ValueError(f"post_transform is {kind!r}")
    return scores


def _probit(shares: Array) -> Array:
    """The inverse of the normal distribution, by Winitzki's approximation, as onnxruntime has it: NaN outside 0 to 1."""
    x = 2 * shares - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - x) * (1 + x))
        v = 2 / (math.pi * 0.147) + 0.5 * log
        return np.asarray(math.sqrt(2) * np.where(x < 0, -1, 1) * np.sqrt(-v + np.sqrt(v * v - log / 0.147)))


def class_labels(chosen: Array, ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """Positions as the model's labels."""
    if strings:
        return string_array(strings, (len(strings),))[chosen]
    return np.array(ints, INT64)[chosen] if ints else chosen.astype(INT64)


def kept_floats(kept: dict[str, Any] | None, name: str, values: Sequence[float]) -> Array:
    """An attribute in float32. A step keeps it: reading lists of numbers takes longer than small products."""
    if kept is None:
        return np.asarray(values, FLOAT32)
    if name not in kept:
        kept[name] = np.asarray(values, FLOAT32)
    made: Array = kept[name]
    return made


@kernel("LinearRegressor", domain=ML)
def linear_regressor(
    x: Array,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    targets: int = 1,
    post_transform: str = "NONE",
    kept: dict[str, Any] | None = None,
) -> Array:
    """x @ coefficients.T + intercepts."""
    y = x.astype(FLOAT32) @ kept_floats(kept, "coefficients", coefficients).reshape(targets, -1).T
    if intercepts:
        y = y + kept_floats(kept, "intercepts", intercepts)
    return transformed(y, post_transform)


@kernel("LinearClassifier", domain=ML)
def linear_classifier(
    x: Array,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
    kept: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """The best class and the scores of x @ coefficients.T + intercepts."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    n_classes = max(len(intercepts), len(classlabels_ints or classlabels_strings or ()) if not intercepts else 1)
    scores = rows.astype(FLOAT32) @ kept_floats(kept, "coefficients", coefficients).reshape(n_classes, -1).T
    if intercepts:
        scores = scores + kept_floats(kept, "intercepts", intercepts)
    if n_classes == 1:
        chosen = (scores[:, 0] > 0).astype(INT64)
        return class_labels(chosen, classlabels_ints, classlabels_strings), binary_scores(
            scores[:, 0], post_transform, is_share=True
        )
    final = transformed(scores, post_transform)
    return class_labels(scores.argmax(axis=1), classlabels_ints, classlabels_strings), final


def binary_scores(score: Array, kind: str, is_share: bool) -> Array:
    """Two columns out of the second class's score. The first is 1 - score where scores are shares, else -score.

    Source: onnxruntime's ``write_scores``; ONNX does not say it.
    """
    if kind == "PROBIT":
        return transformed(np.stack([1 - score, score], axis=1), kind)
    if kind == "LOGISTIC":
        return transformed(np.stack([-score, score], axis=1), kind)
    return np.stack([1 - score if is_share else -score, score], axis=1)
