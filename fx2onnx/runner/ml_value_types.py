"""The types that operators of ``ai.onnx.ml`` give their first output, which attributes decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fx2onnx.runner.types import type_name
from fx2onnx.runner.typing_protos import type_of_array

_STRING, _INT64, _FLOAT = "tensor(string)", "tensor(int64)", "tensor(float)"
_TABLES = {"strings": _STRING, "int64s": _INT64, "floats": _FLOAT}


def _table_type(attrs: Mapping[str, Any], side: str) -> str:
    """The type of the one table of keys or of values that LabelEncoder has."""
    names = [name for name in (f"{side}_tensor", *(f"{side}_{each}" for each in _TABLES)) if name in attrs]
    if len(names) != 1:
        raise ValueError(f"it has {' and '.join(names) or f'no {side}'}; ONNX wants one table of {side}")
    return type_name(type_of_array(attrs[names[0]])) if names[0].endswith("tensor") else _TABLES[names[0].split("_")[1]]


def _encoded(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    if "classes_strings" in attrs:
        return _other(attrs, given)
    keys = _table_type(attrs, "keys")
    if given[0] and given[0] != keys:
        raise ValueError(f"the input is {given[0]} and the keys are {keys}; ONNX wants one type for both")
    return _table_type(attrs, "values")


def _other(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return {_STRING: _INT64, _INT64: _STRING}.get(given[0], "")


def _labels(attrs: Mapping[str, Any], given: Sequence[str]) -> str:
    return _STRING if attrs.get("classlabels_strings") else _INT64


ML_OUTPUT_TYPES = {
    "LabelEncoder": _encoded,
    "CategoryMapper": _other,
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _labels),
}
"""Operators whose first output has a type that the schema does not derive from its inputs."""
