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

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.elementwise import in_floats
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import PRIVATE_DOMAIN, Facts, Kernel, Prepared
from fx2onnx.semantics.types import Spec

ENTRY = "fx2onnx.fast"
"""The config entry of a session: 0 for NumPy alone."""

FAMILIES: dict[tuple[str, str], str] = {
    ("", "lines"): """
        Cast DequantizeLinear DynamicQuantizeLinear Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Mish QuantizeLinear Selu Sigmoid Softplus ThresholdedRelu
    """,
    ("", "rows"): "BatchNormalization InstanceNormalization LayerNormalization LogSoftmax Softmax",
    ("", "integers"): "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
    ("", "recurrent"): "GRU LSTM RNN",
    ("", "depthwise"): "Conv",
    ("", "pools"): "AveragePool MaxPool",
    ("", "products"): "Gemm MatMul",
    ("", "choices"): "GridSample NonMaxSuppression TopK",
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
            step.kernel.elementwise and _has_halves(program, step)
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
    made: Prepared | None = None
    if form is not None and kernel.since >= LEAST.get(kernel.op_type, 1):
        made = form(facts)
    elif form is not None and facts.attrs.get("axis", 1) in (-1, len(facts.outputs[0][0]) - 1):
        made = form(replace(facts, attrs={"axis": -1}))  # a single axis was flattened
    if made is None and kernel.prepare is not None:
        made = kernel.prepare(facts)
    is_of_floats = kernel.elementwise or kernel.op_type == "LayerNormalization"
    lines = _module("lines") if made is None and is_of_floats and any(map(_is_half, facts.inputs)) else None
    return in_floats(kernel, facts, lines.from_half, lines.to_half) if lines is not None and lines.HAS_HALVES else made


def _is_half(spec: Spec | None) -> bool:
    return spec is not None and spec[1] == np.float16


def _call(kernel: Kernel, *inputs: Any, **attrs: Any) -> Any:
    form = _form(kernel, "call")
    made = form(*inputs, **attrs) if form is not None else None
    return kernel.fn(*inputs, **attrs) if made is None else made


LEAST: Mapping[str, int] = {"Softmax": 13, "LogSoftmax": 13}
"""The version from which a form has the operator's meaning."""
