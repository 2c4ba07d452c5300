"""The contents of ONNX's schemas: versions, types, attributes, arity, function bodies; and the rules that they state only in
words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from fx2onnx.semantics.types import TENSOR_NAMES, Dtype

NEWEST_OPSET = onnx.defs.onnx_opset_version()
STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview", "ai.onnx.training")


Allowed: TypeAlias = frozenset[str] | frozenset[int] | range
_ZERO_OR_ONE = frozenset({0, 1})
POSITIVE_NUMBERS = range(1, 1 << 63)
_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input or output, the last also for all that follow. Inputs and outputs of one ``variable`` have one type."""

    name: str
    variable: str
    """The type variable, such as "T"; "" where the type is fixed, or may differ between the values of a variadic
    parameter."""
    types: frozenset[str]
    is_optional: bool


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The form of the nodes of one operator version. Equal only to itself: there is one of each, a key of caches."""

    since_version: int
    is_deprecated: bool
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attribute_types: dict[str, int]
    required: tuple[str, ...]
    has_function: bool
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    values: dict[str, Allowed]
    """The allowed values of attributes that name one of a few things or are positive."""
    input_dtypes: tuple[frozenset[Dtype], ...]
    """The dtypes that each input may have; the last entry is for all that follow, too."""


@lru_cache(maxsize=4096)
def onnx_schema(op_type: str, opset: int, domain: str = "") -> Any:
    """The ``onnx.defs.OpSchema`` of an operator in an opset; None where the opset has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


onnx_schema("Identity", 1)  # onnx registers all schemas at the first question: once a process, not in a session's time


@lru_cache(maxsize=64)
def newest_opset(domain: str) -> int | None:
    """The newest opset of a domain of ONNX that the installed onnx knows; None for another domain."""
    if domain not in STANDARD_DOMAINS:
        return None
    newest = {"": onnx.defs.onnx_opset_version, "ai.onnx.ml": onnx.defs.onnx_ml_opset_version}.get(domain)
    if newest is not None:
        return int(newest())
    return max((each.since_version for each in onnx.defs.get_all_schemas() if each.domain == domain), default=None)


@lru_cache(maxsize=4096)
def signature_of(domain: str, op_type: str, opset: int) -> Signature | None:
    """The schema's facts, or None where neither ONNX (in that opset) nor onnxruntime knows the operator."""
    schema = onnx_schema(op_type, opset, domain)
    if schema is not None:
        return _signature_since(domain, op_type, schema.since_version)
    is_own = not domain or domain.startswith("com.microsoft")
    return _signature_of_onnxruntime(domain, op_type) if is_own else None


@lru_cache(maxsize=1)
def _onnxruntime() -> dict[str, Any]:
    """The schemas that ``tools/onnxruntime_schemas.py`` wrote down of onnxruntime's own operators."""
    table: dict[str, Any] = json.loads(Path(__file__).with_name("onnxruntime_schemas.json").read_text(encoding="utf-8"))
    table["types"] = [frozenset(types) for types in table["types"]]
    return table


def is_of_other_processors(domain: str, op_type: str) -> bool:
    """Return whether onnxruntime knows the operator and has no CPU kernel for it."""
    return domain == "com.microsoft" and op_type in _onnxruntime()["elsewhere"]


@lru_cache(maxsize=256)
def _signature_of_onnxruntime(domain: str, op_type: str) -> Signature | None:
    table = _onnxruntime()
    entry = table["operators"].get(domain, {}).get(op_type)
    if entry is None:
        return None
    inputs, outputs = (
        tuple(
            Parameter(name, variable, table["types"][types], bool(is_optional))
            for name, variable, types, is_optional in entry[key]
        )
        for key in ("inputs", "outputs")
    )
    attributes = entry["attributes"]
    min_inputs, max_inputs, min_outputs, max_outputs = entry["counts"]
    return Signature(
        1,
        False,
        min_inputs,
        max_inputs,
        min_outputs,
        max_outputs,
        {name: code for name, (code, _) in attributes.items()},
        tuple(name for name, (_, is_required) in attributes.items() if is_required),
        False,
        inputs,
        outputs,
        {},
        tuple(_dtypes(parameter.types) for parameter in inputs),
    )


@lru_cache(maxsize=4096)
def _signature_since(domain: str, op_type: str, since_version: int) -> Signature:
    schema = onnx_schema(op_type, since_version, domain)
    return Signature(
        since_version,
        schema.deprecated,
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: int(attribute.type.value) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        schema.has_function,
        tuple(_parameter(parameter, schema) for parameter in schema.inputs),
        tuple(_parameter(parameter, schema) for parameter in schema.outputs),
        {name: found for name in schema.attributes if not domain and (found := _allowed(op_type, name))},
        tuple(_dtypes(types_of(parameter, schema)) for parameter in schema.inputs),
    )


def _allowed(op_type: str, name: str) -> Allowed:
    if (op_type, name) in POSITIVE:
        return POSITIVE_NUMBERS
    return _ZERO_OR_ONE if (op_type, name) in FLAGS else VALUES.get((op_type, name), frozenset())


def _parameter(parameter: Any, schema: Any) -> Parameter:
    name = parameter.type_str
    is_shared = parameter.is_homogeneous and any(each.type_param_str == name for each in schema.type_constraints)
    is_optional = parameter.option == _OPTIONAL
    return Parameter(parameter.name, name if is_shared else "", types_of(parameter, schema), is_optional)


_DTYPE_OF_NAME = {f"tensor({name})": dtype.numpy() for dtype, name in TENSOR_NAMES.items()}


@lru_cache(maxsize=512)
def _dtypes(type_names: frozenset[str]) -> frozenset[Dtype]:
    """The dtypes of arrays that a parameter of these types takes, by itself or as the value of an optional."""
    names = {name[9:-1] if name.startswith("optional(") else name for name in type_names}
    return frozenset(_DTYPE_OF_NAME[name] for name in names if name in _DTYPE_OF_NAME)


@lru_cache(maxsize=512)
def function_body(domain: str, op_type: str, opset: int) -> onnx.FunctionProto:
    """ONNX's own definition of an operator that has one, in that opset."""
    schema = onnx_schema(op_type, opset, domain)
    versions = [version for version in schema.function_opset_versions if version <= opset]
    body = schema.get_function_with_opset_version(max(versions)) if versions else schema.function_body
    function = onnx.FunctionProto()
    function.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    return function


_AUTO_PAD = frozenset({"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"})
_BLOCKS = frozenset({"DCR", "CRD"})
_DIRECTION = frozenset({"forward", "reverse", "bidirectional"})
_LOSS = frozenset({"none", "sum", "mean"})
_ROUND = frozenset({"up", "down", "nearest"})
_SCATTER = frozenset({"none", "add", "mul", "max", "min"})

VALUES: dict[tuple[str, str], frozenset[str]] = {
    **{
        (op_type, "auto_pad"): _AUTO_PAD
        for op_type in (
            "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv",
        )
    },
    ("BitShift", "direction"): frozenset({"LEFT", "RIGHT"}),
    ("Cast", "round_mode"): _ROUND,
    ("CastLike", "round_mode"): _ROUND,
    ("CausalConvWithState", "activation"): frozenset({"silu", "swish", "none"}),
    ("DepthToSpace", "mode"): _BLOCKS,
    ("GRU", "direction"): _DIRECTION,
    ("Gelu", "approximate"): frozenset({"none", "tanh"}),
    ("GridSample", "mode"): frozenset({"linear", "nearest", "cubic", "bilinear", "bicubic"}),
    ("GridSample", "padding_mode"): frozenset({"zeros", "border", "reflection"}),
    ("ImageDecoder", "pixel_format"): frozenset({"RGB", "BGR", "Grayscale"}),
    ("LSTM", "direction"): _DIRECTION,
    ("LinearAttention", "update_rule"): frozenset({"linear", "gated", "delta", "gated_delta"}),
    ("NegativeLogLikelihoodLoss", "reduction"): _LOSS,
    ("Pad", "mode"): frozenset({"constant", "reflect", "edge", "wrap"}),
    ("RNN", "direction"): _DIRECTION,
    ("Resize", "coordinate_transformation_mode"): frozenset(
        {
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        }
    ),
    ("Resize", "keep_aspect_ratio_policy"): frozenset({"stretch", "not_larger", "not_smaller"}),
    ("Resize", "mode"): frozenset({"nearest", "linear", "cubic"}),
    ("Resize", "nearest_mode"): frozenset({"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
    ("RoiAlign", "coordinate_transformation_mode"): frozenset({"half_pixel", "output_half_pixel"}),
    ("RoiAlign", "mode"): frozenset({"avg", "max"}),
    ("ScatterElements", "reduction"): _SCATTER,
    ("ScatterND", "reduction"): _SCATTER,
    ("SoftmaxCrossEntropyLoss", "reduction"): _LOSS,
    ("SpaceToDepth", "mode"): _BLOCKS,
    ("StringNormalizer", "case_change_action"): frozenset({"LOWER", "UPPER", "NONE"}),
    ("TensorScatter", "mode"): frozenset({"linear", "circular"}),
    ("TfIdfVectorizer", "mode"): frozenset({"TF", "IDF", "TFIDF"}),
    ("Upsample", "mode"): frozenset({"nearest", "linear", "bilinear"}),
}  # fmt: skip
"""The words that an attribute may have over all versions, by operator of the standard domain and attribute."""

FLAGS = frozenset(
    {
        ("BatchNormalization", "training_mode"), ("GRU", "layout"), ("LSTM", "layout"), ("MaxPool", "storage_order"),
        ("RNN", "layout"), ("RotaryEmbedding", "interleaved"), ("Scan", "directions"), ("Scan", "scan_input_directions"),
        ("Scan", "scan_output_directions"), ("TopK", "largest"), ("Unique", "sorted"),
    }
)  # fmt: skip
"""Integers that are 0 or 1, of which onnxruntime refuses others or takes them for 0. It takes those of other flags for 1."""

POSITIVE = frozenset(
    {
        ("Attention", "kv_num_heads"), ("Attention", "q_num_heads"), ("LinearAttention", "kv_num_heads"),
        ("LinearAttention", "q_num_heads"), ("Conv", "group"), ("ConvInteger", "group"), ("ConvTranspose", "group"),
        ("QLinearConv", "group"), ("DeformConv", "group"), ("DeformConv", "offset_group"), ("DepthToSpace", "blocksize"),
        ("SpaceToDepth", "blocksize"), ("GroupNormalization", "num_groups"), ("Split", "num_outputs"),
    }
)  # fmt: skip
"""Integers that others are divided by: at 0, native code ends the process."""


Axes = tuple[int, ...]

_REDUCTIONS = tuple(
    f"Reduce{name}" for name in ("Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
)
_LIST: Axes = (1,)
_NUMBER: Axes = (0, 1)
_SCALAR: Axes = (0,)

_TABLE: dict[str, tuple[int, Mapping[int, Axes]]] = {
    **dict.fromkeys(_REDUCTIONS, (13, {1: _LIST})),
    "CenterCropPad": (18, {1: _NUMBER}),
    "Clip": (11, {1: _NUMBER, 2: _NUMBER}),
    "Conv": (1, {2: _LIST}),
    "ConvTranspose": (1, {2: _LIST}),
    "CumProd": (26, {1: _NUMBER}),
    "CumSum": (11, {1: _NUMBER}),
    "DFT": (17, {1: _NUMBER, 2: _NUMBER}),
    "Dropout": (12, {1: _SCALAR, 2: _SCALAR}),
    "Expand": (8, {1: _LIST}),
    "ImageDecoder": (20, {0: _LIST}),
    "NegativeLogLikelihoodLoss": (12, {2: _LIST}),
    "OneHot": (9, {1: _NUMBER}),
    "Pad": (11, {1: (1, 2), 3: _LIST}),
    "QLinearConv": (10, {1: _NUMBER, 2: _NUMBER, 4: _NUMBER, 5: _NUMBER, 6: _NUMBER, 7: _NUMBER, 8: _LIST}),
    "Range": (11, {0: _NUMBER, 1: _NUMBER, 2: _NUMBER}),
    "Reshape": (5, {1: _LIST}),
    "Resize": (11, {2: _LIST, 3: _LIST}),
    "STFT": (17, {1: _NUMBER, 2: _LIST, 3: _NUMBER}),
    "Slice": (10, {1: _LIST, 2: _LIST, 3: _LIST, 4: _LIST}),
    "SoftmaxCrossEntropyLoss": (12, {2: _LIST}),
    "Split": (13, {1: _LIST}),
    "Squeeze": (13, {1: _LIST}),
    "TfIdfVectorizer": (9, {0: (1, 2)}),
    "Tile": (6, {1: _LIST}),
    "TopK": (10, {1: _LIST}),
    "Trilu": (14, {1: _NUMBER}),
    "Unsqueeze": (13, {1: _NUMBER}),
}
"""The first opset of an operator of the standard domain, and the axes by place of the operand."""


def axes_of(domain: str, op_type: str, since_version: int) -> Mapping[int, Axes]:
    """The axes that the operands of such a place may have; nothing is said of the others."""
    since, axes = _TABLE.get(op_type, (0, {}))
    return axes if not domain and since_version >= since else {}


_MAP = re.compile(r"map\((\w+), (\w+)\)")
"""A map type as constraints name it."""


def types_of(parameter: Any, schema: Any) -> frozenset[str]:
    """The types of ``parameter``, which onnx 1.20 cannot hand over."""
    allowed = next(
        (each.allowed_type_strs for each in schema.type_constraints if each.type_param_str == parameter.type_str),
        (parameter.type_str,),
    )
    return frozenset(_MAP.sub(r"map(\1,tensor(\2))", name) for name in allowed)
