"""Compiled forms of kernels, where numba is installed (``pip install 'fx2onnx[fast]'``): what NumPy cannot do in one pass.

``FAMILIES`` says which operators have one, and in which file. A file is imported, and with it numba, when the first model runs that
has one of its operators. What a form does not cover, the kernel computes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.cast import Convert, in_floats, is_by_floats
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, Facts, Kernel, Prepared
from fx2onnx.semantics.types import LEAST_HALVES, Spec

ENTRY = "fx2onnx.fast"
"""The config entry of a session: 0 for NumPy alone."""

FAMILIES: dict[tuple[str, str], str] = {
    ("", "lines"): """
        Cast DequantizeLinear DynamicQuantizeLinear Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Mish QuantizeLinear Selu Sigmoid Softplus ThresholdedRelu
    """,
    ("", "rows"): """
        BatchNormalization InstanceNormalization LayerNormalization LogSoftmax RMSNormalization RotaryEmbedding Softmax
    """,
    ("", "integers"): "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
    ("", "recurrent"): "GRU LSTM LinearAttention RNN",
    ("", "depthwise"): "Conv",
    ("", "pools"): "AveragePool ConvTranspose MaxPool",
    ("", "texts"): "RegexFullMatch",
    ("", "regions"): "MaxRoiPool RoiAlign",
    ("", "products"): "Gemm MatMul",
    ("", "choices"): "CumSum GridSample NonMaxSuppression ScatterND TopK",
    (MICROSOFT, "codes"): """
        QLinearAdd QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearWhere
    """,
    (MICROSOFT, "integers"): "QGemm",
    (MICROSOFT, "choices"): "DynamicTimeWarping",
    (MICROSOFT, "regions"): "CropAndResize",
    (MICROSOFT, "lines"): "Gelu",
    (MICROSOFT, "pools"): "NhwcMaxPool",
    (MICROSOFT, "rows"): "RotaryEmbedding",
    (MICROSOFT, "recurrent"): "DynamicQuantizeLSTM LinearAttention",
    (MICROSOFT, "halves"): "MatMulNBits",
    (PRIVATE_DOMAIN, "depthwise"): "FusedConv",
    (PRIVATE_DOMAIN, "integers"): "ScaledMatMulInteger",
}
"""The operators of each domain and file. A file has ``prepare_NAME(facts)`` or, for kernels that allocate, ``call_NAME(*inputs)``; both
return None for what they do not cover.
"""
_FILE_OF = {(domain, name): file for (domain, file), names in FAMILIES.items() for name in names.split()}


LEAST_NUMBA = (0, 68)
"""The version of the extra, the first that the instructions of ``taps.py`` and ``dot4.py`` were tried with."""


@functools.cache
def is_installed() -> bool:
    """Return whether numba is there, in a version that will do."""
    try:
        major, minor, *_ = importlib.metadata.version("numba").split(".")
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= LEAST_NUMBA


def improve(program: Program, is_wanted: bool = True) -> None:
    """Give the steps of a program, and of its bodies, the compiled forms that there are."""
    if not is_wanted or not is_installed():
        return
    for step in program.steps:
        if (step.kernel.domain, step.kernel.op_type) in _FILE_OF or (
            is_by_floats(step.kernel) and _has_halves(program, step)
        ):
            step.kernel = _improved(step.kernel)
        for body in step.bodies.values():
            improve(body)


def _has_halves(program: Program, step: Step) -> bool:
    return any(program.slots[index].type_name == "tensor(float16)" for index in step.inputs if index >= 0)


@functools.cache
def _improved(kernel: Kernel) -> Kernel:
    if kernel.infer is None:
        return replace(kernel, fn=functools.partial(_call, kernel))
    return replace(kernel, prepare=functools.partial(_prepare, kernel))


@functools.cache
def _module(file: str) -> ModuleType | None:
    """The file of a family; None, with a warning, where numba does not go with this version of NumPy."""
    try:
        return importlib.import_module(f"{__name__}.{file}")
    except ImportError as error:
        warnings.warn(f"numba cannot be imported, and NumPy computes alone: {error}", stacklevel=2)
        return None


def _form(kernel: Kernel, what: str) -> Any:
    """The function of the kernel's file; None where it has none of this kind."""
    module = _module(_FILE_OF.get((kernel.domain, kernel.op_type), "lines"))
    return getattr(module, f"{what}_{kernel.op_type}", None)


def _prepare(kernel: Kernel, facts: Facts) -> Prepared | None:
    form = _form(kernel, "prepare")
    halves = _halves() if is_by_floats(kernel) and any(map(_is_half, facts.inputs)) else None
    made = in_floats(kernel, facts, functools.partial(_prepare, kernel), *halves) if halves is not None else None
    if made is not None:
        return made
    if form is not None and kernel.since >= LEAST.get(kernel.op_type, 1):
        made = form(facts)
    elif form is not None and facts.attrs.get("axis", 1) in (-1, len(facts.outputs[0][0]) - 1):
        made = form(replace(facts, attrs={"axis": -1}))  # a single axis was flattened
    if made is None and kernel.prepare is not None:
        made = kernel.prepare(facts)
    return made


def _halves() -> tuple[Convert, Convert] | None:
    """float16 to float32, and back, where there are instructions for it."""
    lines = _module("lines")
    return (lines.from_half, lines.to_half) if lines is not None and lines.HAS_HALVES else None


def _is_half(spec: Spec | None) -> bool:
    return spec is not None and spec[1] == np.float16


def _call(kernel: Kernel, *inputs: Any, **attrs: Any) -> Any:
    x = inputs[0] if inputs else None
    if isinstance(x, np.ndarray) and x.dtype == np.float16 and x.size >= LEAST_HALVES and is_by_floats(kernel):
        halves = _halves() if attrs.get("n_outputs", 1) == 1 else None
        if halves is not None:
            result = _call(kernel, *(_converted(halves[0], one, np.float32) for one in inputs), **attrs)
            return _converted(halves[1], result, np.float16)
    form = _form(kernel, "call")
    made = form(*inputs, **attrs) if form is not None else None
    return kernel.fn(*inputs, **attrs) if made is None else made


def _converted(convert: Convert, x: Any, dtype: Any) -> Any:
    """Arrays of one of the two types in the other one; all else as it is."""
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float16, np.float32) or x.dtype == dtype:
        return x
    y = np.empty(x.shape, dtype)
    convert(x, y)
    return y


LEAST: Mapping[str, int] = {"Softmax": 13, "LogSoftmax": 13}
"""The version from which a form has the operator's meaning."""
